"""tensors.py - the fast kernels for torch tensors: compiled when first used, once for a variant, never for a row count.

Rows must start at multiples of 16 bytes and be as long (the general kernels take any other, through the C library).

SPDX-License-Identifier: Apache-2.0
"""

import torch

from .backward import Chunks, lanes_of
from .variants import BOTH, VARIANTS

DTYPES = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}
MANY_CHUNKS = 256  # from so many on their sum is made in two steps
FEW = 512  # fewer rows than this do not fill a GPU
_absent = {}


def absent(like, dtype=None):
    """A tensor at address 0."""
    key = (like.device, dtype or like.dtype)
    if key not in _absent:
        _absent[key] = torch.empty(0, device=key[0], dtype=key[1])
    return _absent[key]


def find(family, dtype, lanes, steps, residual=None):
    best = None
    for v in VARIANTS:
        w = v.when
        if v.family != family or (family not in ("dweight_fold", "dweight_sum") and w["type"] != dtype):
            continue
        if residual is not None and w["residual"] not in (residual, BOTH):
            continue
        if w.get("lanes", 0) not in (0, lanes) or w.get("steps", steps) < steps:
            continue
        if best is None or w.get("steps", 0) < best.when.get("steps", 0):
            best = v
    return best


def by_tile(family, dtype, most, largest, residual=None):
    """Of a family that works in tiles the variant with the largest or the smallest one of at most so many columns."""
    fit = [v for v in VARIANTS if v.family == family and v.type == dtype and v.tile_cols <= most and
           (residual is None or v.when["residual"] in (residual, BOTH))]
    if not fit:
        raise ValueError(f"no {family} of this file is for so few columns")
    return (max if largest else min)(fit, key=lambda v: v.tile_cols)


def forward_variant(dtype, n, units, residual, plain):
    """As plan_triton.c chooses. plain: a weight of x's type without offset."""
    lanes = lanes_of(n)
    steps = -(-n // lanes)
    few = plain and units <= 1024 and units * n <= 2**22
    return (few and find("forward_few", dtype, lanes, steps, residual) or
            find("forward_row", dtype, lanes, steps, residual) or
            by_tile("forward_long", dtype, n, True, residual))


def launch(variant, grid, values):
    """Every parameter by its name; what has no value is 0."""
    warp_size = 64 if torch.version.hip else 32
    arguments = [values.get(name, 0) for name, _, _ in variant.parameters]
    names = [name for name, _, _ in variant.parameters]
    variant.kernel[(grid,)](**dict(zip(names, arguments)), **variant.constants, num_warps=variant.warps(warp_size),
                            enable_fp_fusion=False, **({"maxnreg": variant.registers} if variant.registers else {}))


def _rows(x):
    if x.stride(-1) != 1:
        raise ValueError("the last dimension must have stride 1")
    flat = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    run = 16 // x.element_size()
    if flat.shape[1] % run or flat.stride(0) % run or flat.data_ptr() % 16:
        raise ValueError("rows must start at, and be, multiples of 16 bytes")
    return flat


def _strides(values, **tensors):
    for name, tensor in tensors.items():
        values[name] = tensor
        values[name + "_row_stride"] = tensor.stride(0) if tensor.dim() == 2 else 0
        values[name + "_head_stride"] = 0


def _forward(x, weight, eps, residual, weight_offset, round_sum, round_xhat, residual_out=None, out=None):
    rows = _rows(x)
    n, units, dtype = rows.shape[1], rows.shape[0], DTYPES[x.dtype]
    y = torch.empty_like(rows) if out is None else _rows(out)
    rstd = torch.empty(units, device=x.device, dtype=torch.float32)
    lanes = lanes_of(n)
    with_residual = int(residual is not None)
    total = None
    if with_residual:
        total = torch.empty_like(rows) if residual_out is None else _rows(residual_out)
    if units:
        nothing = absent(rows)
        variant = forward_variant(dtype, n, units, with_residual,
                                  weight is not None and weight.dtype == x.dtype and not weight_offset)
        values = {"weight": nothing if weight is None else weight, "rstd_out": rstd, "units": units, "heads": 1,
                  "live_rows": absent(rows, torch.int64), "groups": 1, "group_cols": n, "lanes": lanes,
                  "divisor": float(n), "eps": float(eps),
                  "weight_offset": float(weight_offset) if weight is not None and weight_offset else -0.0,
                  "weight_type": 0 if weight is None else DTYPES[weight.dtype],
                  "round_sum": dtype if round_sum else 1, "round_xhat": dtype if round_xhat else 1, "round_rstd": 1}
        _strides(values, x=rows, y=y, residual=_rows(residual) if with_residual else nothing,
                 residual_out=total if with_residual else nothing)
        grid = -(-units // variant.tile_rows) if variant.tile_rows else units
        launch(variant, grid, values)
    y = y.view(x.shape)
    return (y, total.view(x.shape), rstd) if with_residual else (y, rstd)


def rms_norm(x, weight=None, eps=1e-6, *, weight_offset=0.0, round_xhat=False, out=None):
    """(y, rstd). round_xhat: x * rstd is rounded to x's type before the weight (Llama's way)."""
    return _forward(x, weight, eps, None, weight_offset, False, round_xhat, out=out)


def rms_norm_residual(x, residual, weight=None, eps=1e-6, *, weight_offset=0.0, round_sum=True, round_xhat=False,
                      residual_out=None, out=None):
    """(y, x + residual, rstd). round_sum: the sum as it is stored is what is normalised."""
    return _forward(x, weight, eps, residual, weight_offset, round_sum, round_xhat, residual_out, out)


def rms_norm_backward(dy, x, weight=None, rstd=None, eps=1e-6, *, dresidual_out=None, weight_offset=0.0,
                      wants_dweight=True, dx=None):
    """(dx, dweight or None). x is what was normalised: with a residual, the sum."""
    rows, dys = _rows(x), _rows(dy)
    n, units, dtype = rows.shape[1], rows.shape[0], DTYPES[x.dtype]
    dx = torch.empty_like(rows) if dx is None else _rows(dx)
    wants_dweight = wants_dweight and weight is not None
    dweight = torch.zeros_like(weight) if wants_dweight else None
    if not units:
        return dx.view(x.shape), dweight
    lanes = lanes_of(n)
    chunks = Chunks.of(units, n)
    partials = torch.empty(chunks.C * n if wants_dweight else 0, device=x.device, dtype=torch.float32)
    nothing = absent(rows)
    no_floats = absent(partials)
    values = {"weight": nothing if weight is None else weight, "rstd_in": no_floats if rstd is None else rstd,
              "partials": partials if wants_dweight else no_floats, "units": units, "heads": 1, "group_cols": n,
              "lanes": lanes, "chunks": chunks.C, "unit_rows": chunks.B, "divisor": float(n), "eps": float(eps),
              "weight_offset": float(weight_offset) if weight is not None and weight_offset else -0.0,
              "weight_type": 0 if weight is None else DTYPES[weight.dtype]}
    _strides(values, x=rows, dy=dys, dx=dx,
             dresidual_out=nothing if dresidual_out is None else _rows(dresidual_out))
    variant = find("backward_rows", dtype, lanes, -(-n // lanes))
    if variant is not None:
        if not wants_dweight:  # the rows may be dealt out in any way
            values |= {"chunks": min(units, 4096), "unit_rows": 1}
        launch(variant, -(-values["chunks"] // variant.tile_rows), values)
    elif wants_dweight:
        values["sums"] = torch.empty(3 * units, device=x.device, dtype=torch.float32)
        launch(by_tile("backward_long_sums", dtype, lanes, units < FEW), units, values)
        columns = by_tile("backward_long", dtype, lanes, True)
        launch(columns, chunks.C * -(-n // columns.tile_cols), values)
    else:
        launch(by_tile("backward_long_dx", dtype, lanes, True), units, values)
    if wants_dweight:
        total, fold = find("dweight_sum", 0, 0, 0), find("dweight_fold", 0, 0, 0)
        values = {"partials": partials, "dweight": dweight.view(torch.int8), "chunks": chunks.C, "chunk_step": 1,
                  "dweight_cols": n, "dweight_vectors": 1, "dweight_type": DTYPES[weight.dtype]}
        if chunks.C >= MANY_CHUNKS:
            launch(fold, -(-chunks.C // fold.tile_rows) * -(-n // fold.tile_cols), values)
            values["chunk_step"] = fold.tile_rows
        launch(total, -(-n // total.tile_cols), values)
    return dx.view(x.shape), dweight
