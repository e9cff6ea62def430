"""harness.py - one problem, run twice: by portable through the C interface, and by a kernel in the interpreter.

A problem is a dict of choices (`Problem`); inputs are random with rows of every special kind among them, outputs start
poisoned, lie between guards, and strides are all different. What is compared is bits; a NaN equals any NaN.

SPDX-License-Identifier: Apache-2.0
"""

from dataclasses import dataclass, field

import numpy as np
import portable as c
from exact import Array, narrow_bf16, widen_bf16  # first: it switches the interpreter on
from rmsnorm_triton.backward import Chunks, lanes_of

TYPES = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}
NONE, STORED = 0, 4
POISON = 0x5A


@dataclass
class Problem:
    rows: int
    cols: int
    x: str = "bf16"
    y: str = ""
    weight: str = ""  # "" = none
    residual: str = ""
    residual_out: str = ""
    gate: str = ""
    dy: str = ""
    dresidual_out: str = ""
    dx: str = ""
    dresidual: str = ""
    dgate: str = ""
    dweight: str = ""
    heads: int = 1
    groups: int = 1
    weight_shape: int = 0  # rmsnorm_weight_shape
    weight_offset: float = 0.0
    eps: float = 1e-6
    divisor: int = 0
    round_sum: int = NONE
    round_rstd: int = NONE
    round_xhat: int = NONE
    round_normed: int = NONE
    gate_kind: int = 0
    gate_before: int = 0
    quant: int = 0
    quant_type: str = "fp8_e4m3"
    block_cols: int = 0
    scale_op: int = 0
    e8m0_rounding: int = 0
    scale_max: float = 0.0
    saves_rstd: bool = True  # backward: rstd is given
    given_sums: bool = False
    special: bool = True
    align: int = 1  # row strides are multiples of it
    live: int | None = None  # forward: so many rows there are, says a number in memory
    seed: int = 1
    pad: dict = field(default_factory=dict)

    @property
    def lines(self):
        return self.rows * self.heads

    @property
    def units(self):
        return self.lines * self.groups

    @property
    def group_cols(self):
        return self.cols // self.groups


def encode(values, dtype):
    return {"f32": lambda v: v, "f16": lambda v: v.astype(np.float16), "bf16": narrow_bf16}[dtype](
        np.ascontiguousarray(values, np.float32))


def decode(codes):
    return widen_bf16(codes) if codes.dtype == np.uint16 else codes.astype(np.float32)


class Tensor:
    """[rows, heads, cols] with gaps between rows and heads, and guards around, all poisoned."""

    def __init__(self, p, dtype, gap):
        self.dtype, self.p = dtype, p
        align = p.align
        self.head_stride = (p.cols + gap + align - 1) // align * align
        self.row_stride = self.head_stride * p.heads + 2 * align
        kind = TYPES.get(dtype, np.uint8)
        self.first = 16 if align > 1 else 3
        count = self.row_stride * p.rows + 2 * self.first
        room = np.full(count * np.dtype(kind).itemsize + 64, POISON, np.uint8)
        start = -room.ctypes.data % 64
        self.room = room[start:start + count * np.dtype(kind).itemsize].view(kind)

    @property
    def flat(self):
        return self.room[self.first:]

    @property
    def view(self):
        itemsize = self.room.itemsize
        return np.lib.stride_tricks.as_strided(
            self.flat, (self.p.rows, self.p.heads, self.p.cols),
            (self.row_stride * itemsize, self.head_stride * itemsize, itemsize))

    def c(self):
        return c.Tensor(self.flat.ctypes.data, self.row_stride, self.head_stride, 1, c.DTYPES[self.dtype], 0)


def special_rows(values, rng, dtype):
    """Some rows become what kernels get wrong: squares that overflow or vanish, zeros, NaN, infinity, subnormals."""
    big, small = {"f16": (6e4, 6e-8)}.get(dtype, (1e30, 1e-30))
    kinds = [lambda r: r * big if dtype != "f16" else np.full_like(r, big), lambda r: r * small, lambda r: r * 0,
             lambda r: np.where(np.arange(r.size) == r.size // 2, np.nan, r),
             lambda r: np.where(np.arange(r.size) == 0, np.inf, r), lambda r: np.where(r > 0, big, r)]
    if dtype != "f16":
        kinds += [lambda r: r * 1e-42, lambda r: np.full_like(r, 3e38), lambda r: r * 1e19]
    flat = values.reshape(-1, values.shape[-1])
    for i in range(1, flat.shape[0], 2):
        flat[i] = kinds[(i // 2) % len(kinds)](flat[i])
    return values


class Case:
    def __init__(self, p):
        self.p, rng = p, np.random.default_rng(p.seed)
        self.rng = rng
        self.inputs, self.gap = {}, 0
        for name in ("x", "residual", "gate", "dy", "dresidual_out"):
            dtype = getattr(p, name)
            if dtype and not (name == "dresidual_out" and not p.dy):
                values = rng.standard_normal((p.rows, p.heads, p.cols)).astype(np.float32)
                if name == "gate":
                    values *= 8
                if p.special and name == "x":
                    values = special_rows(values, rng, dtype)
                if p.special and name in ("x", "dy", "residual"):  # zeros of both signs, here and there, and in one row
                    zero = np.where(rng.random(values.shape) < 0.5, np.float32(0.0), np.float32(-0.0))
                    values = np.where(rng.random(values.shape) < 0.1, zero, values)
                    values[-1, -1] = zero[-1, -1]
                self.inputs[name] = self._tensor(dtype)
                with np.errstate(all="ignore"):
                    self.inputs[name].view[:] = encode(values, dtype)
        vectors = {0: p.cols, 1: p.heads * p.cols, 2: p.group_cols}[p.weight_shape]
        self.weight = None
        if p.weight:
            self.weight = encode(1 + 0.5 * rng.standard_normal(vectors), p.weight)
        self.weight_count = vectors
        self.scale_in = np.array([0.037], np.float32)
        self.sumsq_in = None
        if p.given_sums:
            self.sumsq_in = (rng.random(p.units) * p.cols).astype(np.float32)
            self.sumsq_in[0] = 0

    def _tensor(self, dtype):
        self.gap += self.p.align if self.p.align > 1 else 1
        return Tensor(self.p, dtype, self.gap)

    def outputs(self):
        p = self.p
        out = {}
        self.gap = 20
        names = ("dx", "dresidual", "dgate") if p.dy else ("y", "residual_out")
        for name in names:
            if getattr(p, name):
                out[name] = self._tensor(getattr(p, name))
        if not p.dy:
            out["rstd_out"] = np.full(p.units, np.nan, np.float32)
            if p.quant:
                out["q"] = self._tensor(p.quant_type)
                lines = p.lines
                if p.quant == 2:
                    out["scale_out"] = np.full(lines, np.nan, np.float32)
                elif p.quant > 2:
                    blocks = -(-p.cols // p.block_cols)
                    out["scale_out"] = np.full(lines * (blocks + 1), 7, np.float32 if p.quant == 3 else np.uint8)
        else:
            out["dot_out"] = np.full(p.units, np.nan, np.float32)
            if p.dweight:
                out["dweight"] = encode(np.full(self.weight_count, np.nan), p.dweight)
        return out

    # The library.
    def _common(self, args):
        p = self.p
        args.rows, args.heads, args.cols, args.groups = p.rows, p.heads, p.cols, p.groups
        if p.live is not None:
            args.rows = min(max(p.live, 0), p.rows)
        for name in ("x", "residual", "gate"):
            if name in self.inputs:
                setattr(args, name, self.inputs[name].c())
        return args

    def _normed(self, args):
        p = self.p
        args.eps, args.divisor = p.eps, p.divisor
        args.numerics = c.Numerics(p.weight_offset, p.round_sum, p.round_rstd, p.round_xhat, p.round_normed,
                                   p.gate_kind, p.gate_before)
        if self.weight is not None:
            args.weight, args.weight_dtype = self.weight.ctypes.data, c.DTYPES[p.weight]
            args.weight_shape = p.weight_shape
        if self.sumsq_in is not None:
            args.sumsq = self.sumsq_in.ctypes.data
        return self._common(args)

    def portable(self, library, out):
        p = self.p
        if p.dy:
            args = self._normed(c.Backward())
            args.dy = self.inputs["dy"].c()
            if "dresidual_out" in self.inputs:
                args.dresidual_out = self.inputs["dresidual_out"].c()
            if p.saves_rstd:
                args.rstd = self.rstd.ctypes.data
            args.sum_dtype = c.DTYPES.get(p.residual_out, 0) if p.residual else 0
            for name in ("dx", "dresidual", "dgate"):
                if name in out:
                    setattr(args, name, out[name].c())
            if "dweight" in out:
                args.dweight, args.dweight_dtype = out["dweight"].ctypes.data, c.DTYPES[p.dweight]
            args.dot_out = out["dot_out"].ctypes.data
            library.call(args)
            return
        args = self._normed(c.Forward())
        for name in ("y", "residual_out"):
            if name in out:
                setattr(args, name, out[name].c())
        args.rstd = out["rstd_out"].ctypes.data
        if p.quant:
            q = c.Quant(p.quant, p.block_cols if p.quant == 3 else 0, p.scale_op, 0, p.e8m0_rounding, p.scale_max)
            q.q = out["q"].c()
            if p.quant == 1:
                q.scale = self.scale_in.ctypes.data
            else:
                q.scale_out = out["scale_out"].ctypes.data
                q.scale_stride = -(-p.cols // p.block_cols) + 1 if p.quant > 2 else 0
            args.quant = q
        library.call(args)

    def stats(self, library, sumsq):
        args = self._common(c.Stats())
        args.round_sum, args.sum_dtype = self.p.round_sum, c.DTYPES.get(self.p.residual_out, 0)
        args.gate_kind = self.p.gate_kind if self.p.gate_before else 0
        if not args.gate_kind:
            args.gate = c.Tensor()
        args.sumsq = sumsq.ctypes.data
        library.call(args)

    def save_rstd(self, library):
        """rstd as a forward in float32 returns it."""
        args = self._normed(c.Forward())
        args.numerics.round_rstd = NONE
        y = Tensor(self.p, "f32", 1)
        self.rstd = np.zeros(self.p.units, np.float32)
        args.y, args.rstd = y.c(), self.rstd.ctypes.data
        if self.p.round_sum == STORED:
            self.kept = Tensor(self.p, self.p.residual_out or self.promoted(self.p.x, self.p.residual), 5)
            args.residual_out = self.kept.c()
        library.call(args)

    # The kernels: every parameter by its name, as the host does it.
    @staticmethod
    def promoted(a, b):
        return a if a == b or not b else "f32"

    def _rounding(self, code, stored=""):
        p = self.p
        if code == 1 or (code == 3 and not p.weight):
            return c.DTYPES[p.x]
        if code == 2:
            return c.DTYPES[p.weight] if p.weight in ("f16", "bf16") else 1
        if code == 3:
            return c.DTYPES[self.promoted(p.x, p.weight)]
        if code == STORED and p.residual:
            return c.DTYPES[stored or self.promoted(p.x, p.residual)]
        return 1

    def values(self, out):
        p = self.p
        v = {"rows": p.rows, "heads": p.heads, "groups": p.groups, "units": p.units, "cols": p.cols,
             "group_cols": p.group_cols, "lanes": lanes_of(p.group_cols), "eps": float(np.float32(p.eps)),
             "divisor": float(np.float32(p.divisor or p.group_cols)),
             "weight_offset": p.weight_offset if p.weight and p.weight_offset else -0.0,
             "scale_max": p.scale_max or 3.4028234663852886e38, "gate_kind": p.gate_kind,
             "gate_before": int(p.gate_before and p.gate_kind != 0),
             "round_sum": self._rounding(p.round_sum, p.residual_out), "round_rstd": self._rounding(p.round_rstd),
             "round_xhat": self._rounding(p.round_xhat), "round_normed": self._rounding(p.round_normed),
             "live_most": p.rows, "live_factor": 1, "quant": p.quant,
             "quant_type": c.DTYPES[p.quant_type] if p.quant else 0, "scale_op": p.scale_op,
             "e8m0_rounding": p.e8m0_rounding, "block_cols": p.block_cols if p.quant == 3 else 32}
        for name, tensor in {**self.inputs, **out}.items():
            if isinstance(tensor, Tensor):
                v[name] = Array(tensor.flat)
                v[name + "_row_stride"], v[name + "_head_stride"] = tensor.row_stride, tensor.head_stride
                v[name + "_type"] = c.DTYPES[tensor.dtype]
            else:
                v[name] = Array(tensor)
        if self.weight is not None:
            v["weight"], v["weight_type"] = Array(self.weight), c.DTYPES[p.weight]
            v["weight_head_stride"] = p.cols if p.weight_shape == 1 else 0
            v["weight_group_stride"] = p.group_cols if p.weight_shape == 0 and p.groups > 1 else 0
            if p.weight_shape == 1 and p.groups > 1:
                v["weight_group_stride"] = p.group_cols
        v["scale_in"] = Array(self.scale_in)
        if p.live is not None:
            self.live = np.array([p.live], np.int64)
            v["live_rows"] = Array(self.live)
        if self.sumsq_in is not None:
            v["sumsq_in"] = Array(self.sumsq_in)
        if p.quant > 2:
            v["scale_row_stride"], v["scale_block_stride"] = -(-p.cols // p.block_cols) + 1, 1
        if p.dy and p.saves_rstd:
            v["rstd_in"] = Array(self.rstd)
        if p.dweight:
            vectors = p.heads if p.weight_shape == 1 else 1
            length = p.group_cols if p.weight_shape == 2 else p.cols
            rows = p.rows if p.weight_shape == 1 else p.lines * (p.groups if p.weight_shape == 2 else 1)
            chunks = Chunks.of(rows, length)
            self.chunks = chunks
            v |= {"dweight_rows": rows, "dweight_cols": length, "dweight_vectors": vectors, "chunks": chunks.C,
                  "chunk_step": 1, "row_lanes": chunks.P, "unit_rows": chunks.B, "dweight_type": c.DTYPES[p.dweight]}
            self.partials = np.full(vectors * chunks.C * length, np.nan, np.float32)
            self.sums = np.full(p.units * 3, np.nan, np.float32)
            v["partials"], v["sums"], v["has_sums"] = Array(self.partials), Array(self.sums), 1
        else:
            v |= {"chunks": min(p.units, 3), "unit_rows": 1, "has_sums": 0}
        return v


def launch(variant, values, grid):
    """The kernel in the interpreter; what has no value is 0 or absent."""
    arguments = []
    for name, kind, align in variant.parameters:
        if kind.startswith("*"):
            plain = {"*i8": "int8", "*i64": "int64", "*fp32": "float32", "*fp16": "float16", "*bf16": "bfloat16"}[kind]
            array = values.get(name) or Array(None, plain)
            if array.dtype != plain:
                other = Array(None, plain)
                other.base, other.address = array.base, array.address
                array = other
            assert array.address % align == 0, (variant.name, name, "is not aligned")
            arguments.append(array)
        else:
            value = values.get(name, 0.0 if kind == "fp32" else 0)
            assert kind == "fp32" or value % align == 0, (variant.name, name, value, "is not divisible")
            arguments.append(float(value) if kind == "fp32" else int(value))
    order = [name for name in variant.kernel.arg_names if name not in variant.constants]
    variant.kernel[(grid,)](**dict(zip(order, arguments)), **variant.constants)


def differing(expected, found):
    """How many elements differ, guards and gaps included."""
    a = expected.room if isinstance(expected, Tensor) else expected
    b = found.room if isinstance(found, Tensor) else found
    bits = np.dtype(f"u{a.itemsize}")
    bad = a.view(bits) != b.view(bits)
    name = expected.dtype if isinstance(expected, Tensor) else ""
    if a.dtype == np.uint8:
        if name.startswith("fp8"):  # the sign of a NaN is free
            bad &= ~(((a & 0x7F) == 0x7F) & ((b & 0x7F) == 0x7F))
    else:
        bad &= ~(np.isnan(decode(a)) & np.isnan(decode(b)))
    return int(bad.sum())
