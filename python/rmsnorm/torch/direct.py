"""The calls of the library on torch tensors: views, outputs, stream and device, and nothing of autograd or dispatch.

Outputs and workspace come from torch, so that its caching allocator knows them and CUDA graphs can keep them; work is
queued on torch's current stream. A tensor whose last dimension is not packed, or whose outer strides fold into more
than two dimensions, is copied first; everything else is read and written where it lies.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from .. import _native, threads
from ..layout import collapse
from ..numerics import (
    BF16,
    BLOCK,
    CPU,
    CUDA,
    F16,
    F32,
    F64,
    FP8_E4M3,
    FP8_E5M2,
    HIP,
    INT8,
    MX,
    ROW,
    RULES,
    TENSOR,
    WEIGHT_COLS,
    WEIGHT_GROUP,
    WEIGHT_HEADS_COLS,
    Quant,
    Rules,
    check_whole,
    result_dtype,
)

CODES = {torch.float32: F32, torch.float16: F16, torch.bfloat16: BF16, torch.float64: F64}
TYPES = {code: dtype for dtype, code in CODES.items()}
QUANTISED = {FP8_E4M3: torch.float8_e4m3fn, FP8_E5M2: torch.float8_e5m2, INT8: torch.int8}
E8M0_TYPE = getattr(torch, "float8_e8m0fnu", torch.uint8)  # torch before 2.7 has no type for it
GPU = HIP if torch.version.hip else CUDA

_empty = torch.empty
_empty_like = torch.empty_like
_PACKED = torch.contiguous_format
_num_threads = torch.get_num_threads
_short_forward = _native.short_forward
# The short way needs DLPack's exchange table, which torch has from 2.10 on.
_table = getattr(Tensor, "__dlpack_c_exchange_api__", None)
HAS_SHORT = _table is not None and _native.use_exchange(_table)


# ----------------------------------------------------------------------------------------------------------------------
# Devices.
class _Ready(threading.local):
    """The GPUs that this thread has made current once, with all kernels loaded: graphs may be captured from then on."""

    def __init__(self) -> None:
        self.devices: set[int] = set()


_ready = _Ready()


def _threads() -> int:
    """As torch.set_num_threads says, whichever OpenMP runtime torch brings."""
    return threads.limit or _num_threads()


def _here(x: Tensor) -> bool:
    """Whether x is on the CPU, or on the current GPU with all kernels loaded."""
    if x.is_cpu:
        return True
    index = x.get_device()
    if index not in _ready.devices:
        _prepare(index)
    return torch._C._cuda_getDevice() == index


def _prepare(index: int) -> None:
    # A kernel of torch's own makes the context current in this thread, which the library needs and never does itself.
    with torch.cuda.device(index):
        torch.zeros(1, device=f"cuda:{index}")
        _native.preload(GPU)
    _ready.devices.add(index)


def preload(device=None) -> None:
    """Load all kernels for a GPU (default: the current one). The first call on a GPU does it too, so that one call
    before a graph is captured is enough."""
    index = torch.device("cuda" if device is None else device).index
    _prepare(torch.cuda.current_device() if index is None else index)


def _run(call, x: Tensor, common: tuple, rest: tuple) -> None:
    """call(sizes and numerics, who runs it, tensors): on the current stream of x's device."""
    if x.is_cpu:
        call(*common, CPU, None, _threads(), None, *rest)
        return
    index = x.get_device()
    if index not in _ready.devices:
        _prepare(index)
    stream = torch._C._cuda_getCurrentRawStream(index)
    if torch._C._cuda_getDevice() == index:
        call(*common, GPU, stream, 0, None, *rest)
    else:
        with torch.cuda.device(index):
            call(*common, GPU, stream, 0, None, *rest)


# ----------------------------------------------------------------------------------------------------------------------
# What arguments have to be; shared with the shapes-only versions of the operators.
def dtype_code(name: str, tensor: Tensor) -> int:
    code = CODES.get(tensor.dtype)
    if code is None:
        raise TypeError(f"{name}: float32, float16, bfloat16 or float64 is needed, not {tensor.dtype}")
    return code


def check_strided(name: str, tensor: Tensor) -> None:
    if tensor.layout is not torch.strided or tensor.is_nested:
        kind = "a nested one" if tensor.is_nested else str(tensor.layout)
        raise TypeError(f"{name}: an ordinary strided tensor is needed, not {kind}")


def check_like(name: str, tensor: Tensor, x: Tensor) -> None:
    check_strided(name, tensor)
    if tensor.shape != x.shape:
        raise ValueError(f"{name}: has the shape {tuple(tensor.shape)}, x has {tuple(x.shape)}")
    check_device(name, tensor, x)


def check_device(name: str, tensor: Tensor, x: Tensor) -> None:
    if tensor.device != x.device:
        raise ValueError(f"{name}: is on {tensor.device}, x on {x.device}")


def check_dtype(name: str, dtype: torch.dtype | None) -> None:
    if dtype is not None and dtype not in CODES:
        raise TypeError(f"{name}: torch.float32, float16, bfloat16 or float64 is needed, not {dtype!r}")


def check_x(x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"x: a torch.Tensor is needed, not {type(x).__name__}")
    if x.dim() == 0:
        raise ValueError("x: has no dimension to normalise")


def weight_shape(x: Tensor, weight: Tensor, groups: int) -> int:
    """How weight lies over x: a code of the library. Refuses what does not fit."""
    cols = x.shape[-1]
    check_strided("weight", weight)
    check_device("weight", weight, x)
    if weight.dim() == 1:
        if weight.shape[0] == cols:
            return WEIGHT_COLS
        if groups > 1 and weight.shape[0] * groups == cols:
            return WEIGHT_GROUP
    elif weight.dim() == 2 and x.dim() >= 2 and weight.shape == x.shape[-2:]:
        return WEIGHT_HEADS_COLS
    raise ValueError(f"weight: the shape {tuple(weight.shape)} does not fit x with {tuple(x.shape)}, groups {groups}: "
                     "[cols], [cols / groups] or, for a weight per head, [heads, cols]")  # fmt: skip


def check_gate(gate: Tensor | None, rules: Rules) -> None:
    if (gate is not None) != rules.gate:
        raise ValueError("gate: the preset has none" if gate is not None else "gate: the preset needs one")


def check_groups(groups: int, cols: int) -> None:
    if cols == 0:
        raise ValueError("x: has no columns to normalise")
    check_whole("groups", groups)
    if groups < 1 or cols % groups:
        raise ValueError(f"groups: {groups} does not divide {cols} columns")


def stats_shape(x: Tensor, groups: int) -> tuple[int, ...]:
    return (*x.shape[:-1], groups) if groups > 1 else tuple(x.shape[:-1])


def _changed(*tensors: Tensor | None) -> None:
    """Tell autograd that these were written, so that it refuses a backward that had saved what they held."""
    for tensor in tensors:
        if tensor is not None and not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)


# ----------------------------------------------------------------------------------------------------------------------
# Views.
class View:
    """The common [rows, heads, cols] of some tensors, and the tuples that the extension module takes of them."""

    __slots__ = ("rows", "heads", "strides", "tensors", "copies")

    def __init__(self, x: Tensor, shape: int, tensors: tuple) -> None:
        """tensors: those with x's shape, or None; the first `x` decides. Tensors that had to be copied are exchanged in
        .tensors; .copies maps the position to the original, for outputs that have to be written back."""
        cols = x.shape[-1]
        self.tensors = tensors
        self.copies: dict[int, Tensor] = {}
        packed = True
        for tensor in tensors:
            if tensor is not None and (not tensor.is_contiguous() or tensor.is_neg()):
                packed = False
                break
        if packed:
            self.heads = x.shape[-2] if shape == WEIGHT_HEADS_COLS else 1
            self.rows = x.numel() // (cols * self.heads) if cols and self.heads else 0
            self.strides = [(self.heads * cols, cols)] * len(tensors)
        else:
            self._fold(x, shape, cols)

    def _copy(self, wanted) -> None:
        tensors = list(self.tensors)
        for i, tensor in enumerate(tensors):
            if tensor is not None and wanted(tensor):
                self.copies[i] = tensor
                tensors[i] = tensor.resolve_neg().contiguous()
        self.tensors = tuple(tensors)

    def _fold(self, x: Tensor, shape: int, cols: int) -> None:
        self._copy(lambda tensor: (cols > 1 and tensor.stride(-1) != 1) or tensor.is_neg())
        if not self._try(x, shape):
            self._copy(lambda tensor: not tensor.is_contiguous())
            self._try(x, shape)

    def _try(self, x: Tensor, shape: int) -> bool:
        outer = x.shape[:-2] if shape == WEIGHT_HEADS_COLS else x.shape[:-1]
        steps = [t.stride()[: len(outer)] if t is not None else (0,) * len(outer) for t in self.tensors]
        present = [step for step, t in zip(steps, self.tensors) if t is not None]
        folded = collapse(outer, present)
        if folded is None:
            return False
        self.rows, self.heads, found = folded
        if shape == WEIGHT_HEADS_COLS:
            if self.heads > 1:
                return False
            self.heads = x.shape[-2]
            found = [(step[0], t.stride(-2)) for step, t in zip(found, (t for t in self.tensors if t is not None))]
        strides = iter(found)
        self.strides = [next(strides) if t is not None else (0, 0) for t in self.tensors]
        return True

    def tuples(self) -> list:
        return [
            None if tensor is None else (tensor.data_ptr(), ALL_CODES[tensor.dtype], *stride)
            for tensor, stride in zip(self.tensors, self.strides)
        ]

    def check_outputs(self, **positions: int) -> None:
        """The library refuses results that lie in each other, but of a copy it does not see where it goes."""
        originals = {name: self.copies.get(i, self.tensors[i]) for name, i in positions.items()}
        for name, tensor in originals.items():
            if tensor is not None and any(s == 0 and n > 1 for s, n in zip(tensor.stride(), tensor.shape)):
                raise ValueError(f"{name}: several of its elements are one place in memory")
        places = [tensor.data_ptr() for tensor in originals.values() if tensor is not None]
        if len(set(places)) < len(places):
            raise ValueError(f"{' and '.join(positions)} are the same memory; two results have to be apart")

    def write_back(self, positions) -> None:
        for i in positions:
            if i in self.copies:
                self.copies[i].copy_(self.tensors[i])


ALL_CODES = {**CODES, **{dtype: code for code, dtype in QUANTISED.items()}}


# ----------------------------------------------------------------------------------------------------------------------
# Forward.
def forward(
    x: Tensor,
    weight: Tensor | None,
    residual: Tensor | None,
    gate: Tensor | None,
    eps: float,
    preset,
    groups: int = 1,
    divisor: int = 0,
    dtype: torch.dtype | None = None,
    residual_dtype: torch.dtype | None = None,
    stats: bool = False,
    out: Tensor | None = None,
    residual_out: Tensor | None = None,
):
    """(y, residual_out, rstd), of which the last two may be None. out and residual_out are written where given."""
    rules = RULES[preset]
    if out is not None or residual_out is not None:
        _changed(out, residual_out)
    if residual_dtype is not None:
        check_dtype("residual_dtype", residual_dtype)
    # A negated tensor is a view whose memory has the other sign, as of the imaginary part of a conjugate.
    if (
        HAS_SHORT
        and groups == 1
        and divisor == 0
        and gate is None
        and x.is_contiguous()
        and not x.is_neg()
        and (weight is None or not weight.is_neg())
        and (residual is None or not residual.is_neg())
        and (out is None or not out.is_neg())
        and (residual_out is None or not residual_out.is_neg())
        and _here(x)
    ):
        y, x_type = out, x.dtype
        if y is None:
            if dtype is None and (rules.result == "x" or weight is None or weight.dtype is x_type):
                dtype = x_type
            if dtype is x_type:
                y = _empty_like(x, memory_format=_PACKED)
        if y is not None:
            total, rstd = residual_out, None
            if total is None and residual is not None:
                total = _empty_like(x, dtype=residual_dtype or sum_dtype(x, residual), memory_format=_PACKED)
            if stats:
                kept = torch.float64 if x_type is torch.float64 else torch.float32
                rstd = _empty(x.shape[:-1], dtype=kept, device=x.device)
            if _short_forward(x, weight, residual, y, total, rstd, eps, rules.packed, _threads()):
                return y, total, rstd
    code = CODES.get(x.dtype) or dtype_code("x", x)
    if x.dim() == 0:
        check_x(x)
    weight_tuple, shape, weight_code = None, WEIGHT_COLS, 0
    if weight is not None:
        weight_code = CODES.get(weight.dtype) or dtype_code("weight", weight)
        shape = weight_shape(x, weight, groups)
        weight = weight.resolve_neg().contiguous()
        weight_tuple = (weight.data_ptr(), weight_code, shape)
    if residual is not None:
        check_like("residual", residual, x)
        dtype_code("residual", residual)
    if gate is not None or rules.gate:
        check_gate(gate, rules)
        check_like("gate", gate, x)
        dtype_code("gate", gate)
    if groups != 1 or x.shape[-1] == 0:
        check_groups(groups, x.shape[-1])
    if divisor != 0:
        check_whole("divisor", divisor)

    if out is None:
        check_dtype("dtype", dtype)
        out = _empty(x.shape, dtype=dtype or TYPES[result_dtype(rules, code, weight_code)], device=x.device)
    else:
        check_like("out", out, x)
        dtype_code("out", out)
    if residual is not None and residual_out is None:
        residual_out = _empty(x.shape, dtype=residual_dtype or sum_dtype(x, residual), device=x.device)
    rstd = None
    if stats:
        rstd = _empty(stats_shape(x, groups), dtype=torch.float64 if code == F64 else torch.float32, device=x.device)
    if x.numel() == 0:
        return out, residual_out, rstd

    view = View(x, shape, (x, residual, gate, out, residual_out))
    if view.copies:
        view.check_outputs(out=3, residual_out=4)
    tuples = view.tuples()
    _run(
        _native.forward,
        x,
        (view.rows, view.heads, x.shape[-1], groups, eps, divisor, rules.packed),
        (*tuples[:3], weight_tuple, *tuples[3:], None if rstd is None else rstd.data_ptr(), None),
    )
    if view.copies:
        view.write_back((3, 4))
    return out, residual_out, rstd


def sum_dtype(x: Tensor, residual: Tensor) -> torch.dtype:
    """The type of the returned sum when nobody asks for another: the one x and residual promote to, as torch adds."""
    return x.dtype if x.dtype == residual.dtype else torch.promote_types(x.dtype, residual.dtype)


# ----------------------------------------------------------------------------------------------------------------------
# Quantised forward.
def quant_shapes(x: Tensor, quant: Quant):
    """(dtype of q, dtype of the scales, shape of the scales as they lie in memory)."""
    q_type = QUANTISED[quant.dtype]
    blocks = quant.scale_blocks(x.shape[-1])
    scale_type = E8M0_TYPE if quant.granularity == MX else torch.float32
    if quant.granularity == TENSOR:
        return q_type, scale_type, (0,)
    if quant.by_column and quant.granularity != ROW:
        return q_type, scale_type, (blocks, *x.shape[:-1])
    return q_type, scale_type, (*x.shape[:-1], blocks)


def show_scales(stored: Tensor, quant: Quant) -> Tensor:
    """The scales as [*outer, blocks], whatever their order in memory."""
    return stored.movedim(0, -1) if quant.by_column and quant.granularity in (BLOCK, MX) else stored


def check_scale(scale: Tensor | None, x: Tensor, quant: Quant) -> None:
    if (scale is not None) != (quant.granularity == TENSOR):
        raise ValueError(f"scale: is for the kinds with -tensor, and needed there; this one is {quant.kind}")
    if scale is not None:
        check_device("scale", scale, x)
        if scale.dtype != torch.float32 or scale.numel() != 1:
            raise TypeError(f"scale: one float32 is needed, not {scale.numel()} of {scale.dtype}")


def quantise(
    x: Tensor,
    weight: Tensor | None,
    residual: Tensor | None,
    gate: Tensor | None,
    scale: Tensor | None,
    eps: float,
    preset,
    quant: Quant,
    groups: int = 1,
    divisor: int = 0,
    residual_dtype: torch.dtype | None = None,
    q: Tensor | None = None,
    scales: Tensor | None = None,
    residual_out: Tensor | None = None,
):
    """(q, scales as they lie in memory, residual_out or None); the outputs are written where given."""
    rules = RULES[preset]
    dtype_code("x", x)
    check_x(x)
    weight_tuple, shape = None, WEIGHT_COLS
    if weight is not None:
        code = dtype_code("weight", weight)
        shape = weight_shape(x, weight, groups)
        weight = weight.resolve_neg().contiguous()
        weight_tuple = (weight.data_ptr(), code, shape)
    if residual is not None:
        check_like("residual", residual, x)
        dtype_code("residual", residual)
    check_gate(gate, rules)
    if gate is not None:
        check_like("gate", gate, x)
        dtype_code("gate", gate)
    check_groups(groups, x.shape[-1])
    check_whole("divisor", divisor)
    check_scale(scale, x, quant)
    check_dtype("residual_dtype", residual_dtype)
    if any(tensor is not None and tensor.is_neg() for tensor in (scale, scales)):
        raise ValueError("scale: its memory has the other sign; give its .resolve_neg()")
    _changed(q, scales, residual_out)
    q_type, scale_type, scale_shape = quant_shapes(x, quant)
    if q is None:
        q = _empty(x.shape, dtype=q_type, device=x.device)
    else:
        check_like("q", q, x)
        if q.dtype != q_type:
            raise TypeError(f"q: {q_type} is needed for {quant.kind}, not {q.dtype}")
    if scales is None:
        scales = _empty(scale_shape, dtype=scale_type, device=x.device)
    else:
        check_device("scales", scales, x)
        if scales.dtype != scale_type or not scales.is_contiguous() or scales.numel() != _count(scale_shape):
            raise ValueError(f"scales: {scale_type} of the shape {scale_shape}, packed, is needed")
    if residual is not None and residual_out is None:
        residual_out = _empty(x.shape, dtype=residual_dtype or sum_dtype(x, residual), device=x.device)
    if x.numel() == 0:
        return q, scales, residual_out

    view = View(x, shape, (x, residual, gate, q, residual_out))
    if view.copies:
        view.check_outputs(q=3, residual_out=4)
    tuples = view.tuples()
    packed = quant.pack(
        0 if scale is None else scale.data_ptr(), 0 if quant.granularity == TENSOR else scales.data_ptr(), 0, tuples[3]
    )
    _run(
        _native.forward,
        x,
        (view.rows, view.heads, x.shape[-1], groups, eps, divisor, rules.packed),
        (*tuples[:3], weight_tuple, None, tuples[4], None, packed),
    )
    if view.copies:
        view.write_back((3, 4))
    return q, scales, residual_out


def _count(shape) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


# ----------------------------------------------------------------------------------------------------------------------
# Backward.
def backward(
    dy: Tensor,
    dresidual_out: Tensor | None,
    x: Tensor,
    residual: Tensor | None,
    gate: Tensor | None,
    weight: Tensor | None,
    rstd: Tensor | None,
    eps: float,
    preset,
    groups: int,
    divisor: int,
    sum_type: torch.dtype | None,
    dx_type: torch.dtype | None,
    dresidual_type: torch.dtype | None,
    want_gate: bool,
    want_weight: bool,
):
    """(dx, dresidual, dgate, dweight), each None where its type is None or it is not wanted. x may be the saved sum;
    then residual is None and dx_type that of the x that was added. sum_type: the type of the sum that forward stored,
    where it is made again from x and residual."""
    rules = RULES[preset]
    shape, weight_tuple = WEIGHT_COLS, None
    if weight is not None:
        shape = weight_shape(x, weight, groups)
        weight = weight.resolve_neg().contiguous()
        weight_tuple = (weight.data_ptr(), CODES[weight.dtype], shape)
    dx = _empty(x.shape, dtype=dx_type, device=x.device) if dx_type is not None else None
    dresidual = None
    if dresidual_type is not None and dresidual_type != dx_type:
        dresidual = _empty(x.shape, dtype=dresidual_type, device=x.device)
    dgate = _empty(x.shape, dtype=gate.dtype, device=x.device) if want_gate and gate is not None else None
    dweight = torch.empty_like(weight) if want_weight and weight is not None else None
    if x.numel() == 0:
        if dweight is not None:
            dweight.zero_()
    elif dx is not None or dresidual is not None or dgate is not None or dweight is not None:
        view = View(x, shape, (x, residual, gate, dy, dresidual_out, dx, dresidual, dgate))
        tuples = view.tuples()
        device = x.device

        def allocate(count: int) -> tuple[int, Tensor]:
            # 64 bytes more: the library wants that alignment, torch promises it on the GPU only.
            owner = _empty(count + 64, dtype=torch.uint8, device=device)
            return -(-owner.data_ptr() // 64) * 64, owner

        _run(
            _native.backward,
            x,
            (view.rows, view.heads, x.shape[-1], groups, eps, divisor, rules.packed),
            (
                *tuples[:5],
                weight_tuple,
                None if rstd is None or rules.round_rstd else rstd.data_ptr(),
                CODES[sum_type] if sum_type is not None and residual is not None and rules.stored else 0,
                *tuples[5:],
                None if dweight is None else dweight.data_ptr(),
                0 if dweight is None else CODES[dweight.dtype],
                allocate,
            ),
        )
    if dresidual_type is not None and dresidual is None:
        dresidual = dx
    return dx, dresidual, dgate, dweight
