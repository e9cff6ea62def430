"""rms_norm for NumPy arrays, ml_dtypes included, and for any tensor that speaks DLPack, on the CPU or a GPU.

Results are NumPy arrays for what lies on the CPU; for a GPU they come from the array library of x, or are given with
out=. Tensors of torch are handed to rmsnorm.torch. NumPy is imported when an array is made, not before.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import math
import numbers
import sys
from functools import cache
from typing import Any

from . import _native
from . import threads as _threads
from .layout import collapse, packed_strides
from .numerics import (
    BF16,
    CPU,
    CUDA,
    E8M0,
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
    Numerics,
    Quant,
    check_whole,
    result_dtype,
)

_CODES = {
    "float32": F32, "float16": F16, "bfloat16": BF16, "float64": F64, "float8_e4m3fn": FP8_E4M3,
    "float8_e5m2": FP8_E5M2, "int8": INT8, "float8_e8m0fnu": E8M0,
}  # fmt: skip
_BYTE = -1  # uint8: a place for the codes of a one-byte number; of which, the caller says
_NAMES = {**{code: name for name, code in _CODES.items()}, _BYTE: "uint8"}
_REAL = (F32, F16, BF16, F64)
# Without ml_dtypes a one-byte number is its code.
_BYTES = (FP8_E4M3, FP8_E5M2, E8M0)
# DLPack: (type code, bits) and devices.
_DLPACK = {(2, 32): F32, (2, 16): F16, (4, 16): BF16, (2, 64): F64, (10, 8): FP8_E4M3, (12, 8): FP8_E5M2,
           (0, 8): INT8, (14, 8): E8M0, (1, 8): _BYTE}  # fmt: skip
_DEVICES = {1: CPU, 3: CPU, 2: CUDA, 13: CUDA, 10: HIP, 11: CPU}


_SEEN: dict = {}  # the codes of NumPy's types, whose names are slow to ask for


class _Look:
    """An array as the library sees it. `owner` keeps the memory alive."""

    __slots__ = ("name", "address", "code", "device", "shape", "strides", "packed", "read_only", "owner", "copied")

    def __init__(self, name: str, array: Any, stream: int | None = None) -> None:
        self.name, self.owner, self.copied = name, array, None
        if hasattr(array, "__array_interface__"):
            if hasattr(array, "mask"):
                raise TypeError(
                    f"{name}: is masked, which a norm can not take into account; give its .filled(0) or .data"
                )
            self._from_numpy(array)
        elif hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
            self._from_dlpack(array, stream)
        else:
            raise TypeError(f"{name}: a NumPy array or a tensor with DLPack is needed, not {type(array).__name__}")

    def _from_numpy(self, array: Any) -> None:
        facts = array.__array_interface__
        self.address, self.read_only = facts["data"]
        self.device, self.shape = CPU, facts["shape"]
        dtype = getattr(array, "dtype", None)
        if getattr(dtype, "isnative", None) is None:
            raise TypeError(f"{self.name}: a {type(array).__name__} has no type of NumPy; give numpy.asarray of it")
        self.code = _SEEN.get(dtype) or self._code(dtype)
        strides = facts["strides"]
        self.packed = strides is None
        if self.packed:
            self.strides = packed_strides(self.shape)
            return
        size = dtype.itemsize
        if any(step % size for step in strides):
            raise ValueError(f"{self.name}: its strides are no multiples of its elements")
        self.strides = tuple(step // size for step in strides)

    def _code(self, dtype: Any) -> int:
        code = _BYTE if dtype.name == "uint8" else _CODES.get(dtype.name, 0) if dtype.isnative else 0
        if code == 0:
            raise TypeError(f"{self.name}: {', '.join(_CODES)} are known, not {dtype.str} ({dtype.name})")
        _SEEN[dtype] = code
        return code

    def _from_dlpack(self, array: Any, stream: int | None) -> None:
        kind, _ = array.__dlpack_device__()
        if kind not in _DEVICES:
            raise ValueError(f"{self.name}: a DLPack device of kind {int(kind)} is not known here")
        if hasattr(array, "is_neg") and array.is_neg():  # a view of torch's, of which DLPack says nothing
            raise ValueError(f"{self.name}: its memory has the other sign; give its .resolve_neg()")
        self.device = _DEVICES[kind]
        # On CUDA 1 stands for the legacy default stream, on HIP 0 does.
        capsule = array.__dlpack__() if self.device == CPU else array.__dlpack__(stream=stream or 2 - self.device)
        facts = _native.dlpack(capsule)
        self.owner = (array, capsule)
        self.address, _, _, kind, bits, lanes, self.shape, strides, self.read_only = facts
        packed = packed_strides(self.shape)
        self.strides = packed if strides is None else strides
        self.packed = self.strides == packed
        self.code = _DLPACK.get((kind, bits), 0) if lanes == 1 else 0
        if self.code == 0:
            raise TypeError(f"{self.name}: the DLPack type (code {kind}, {bits} bits, {lanes} lanes) is not known here")

    def real(self) -> _Look:
        if self.code not in _REAL:
            raise TypeError(f"{self.name}: float32, float16, bfloat16 or float64 is needed, not {_NAMES[self.code]}")
        return self

    def like(self, x: _Look) -> _Look:
        if self.shape != x.shape:
            raise ValueError(f"{self.name}: has the shape {self.shape}, x has {x.shape}")
        if self.device != x.device:
            raise ValueError(f"{self.name}: is not on the device of x")
        return self

    def output(self, x: _Look) -> _Look:
        if self.read_only:
            raise ValueError(f"{self.name}: is read only")
        return self.like(x)

    def pack(self, copy: bool) -> None:
        """Take a packed copy of a NumPy array; the original is kept for outputs."""
        if not copy or self.packed or self.strides == packed_strides(self.shape):
            return
        if self.device != CPU or not hasattr(self.owner, "__array_interface__"):
            raise ValueError(
                f"{self.name}: its strides do not fold into rows and heads of packed columns; copy it first"
            )
        import numpy

        original = self.copied if self.copied is not None else self.owner
        packed = numpy.ascontiguousarray(original)
        self._from_numpy(packed)
        self.owner, self.copied = packed, original


# ----------------------------------------------------------------------------------------------------------------------
@cache
def _numpy_type(code: int):
    import numpy

    if code in (BF16, *_BYTES):
        try:
            import ml_dtypes
        except ImportError:
            if code == BF16:
                raise TypeError("a bfloat16 result needs the package ml_dtypes") from None
            return numpy.dtype(numpy.uint8)
        return numpy.dtype(getattr(ml_dtypes, _NAMES[code]))
    return numpy.dtype(_NAMES[code])


def _code_of(name: str, dtype: Any) -> int:
    """The code of a type: its name, a NumPy type, or a scalar type of ml_dtypes."""
    text = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or getattr(dtype, "__name__", "")
    if _CODES.get(text) not in _REAL:
        raise TypeError(f"{name}: the name or NumPy's type of a float32, float16, bfloat16 or float64, not {dtype!r}")
    return _CODES[text]


def _space(x: Any) -> Any:
    """The module whose `empty` makes what x is, or None. Not every array says it by __array_namespace__ (CuPy before
    14), and what is made by JAX may not be written."""
    root = type(x).__module__.split(".")[0]
    if root in ("jax", "jaxlib"):
        return None
    space = x.__array_namespace__() if hasattr(x, "__array_namespace__") else sys.modules.get(root)
    return space if hasattr(space, "empty") else None


def _make(name: str, x: Any, look: _Look, shape: tuple, code: int) -> Any:
    """An empty result beside x: of its kind, on its device."""
    if look.device == CPU:
        import numpy

        return numpy.empty(shape, dtype=_numpy_type(code))
    space = _space(x)
    if space is None:
        raise TypeError(f"{name}: results on a GPU have to be given for a {type(x).__module__}.{type(x).__name__}")
    dtype = x.dtype if code == look.code else getattr(space, _NAMES[code], None)
    if dtype is None:
        raise TypeError(f"{name}: {space.__name__} has no {_NAMES[code]}; give the result")
    device = getattr(x, "device", None)
    if hasattr(device, "__enter__"):  # CuPy's: what is made inside is made there
        with device:
            return space.empty(shape, dtype=dtype)
    return space.empty(shape, dtype=dtype, **({} if device is None else {"device": device}))


def _weight(weight: _Look, x: _Look, groups: int) -> int:
    if weight.device != x.device:
        raise ValueError("weight: is not on the device of x")
    cols = x.shape[-1]
    if weight.shape == (cols,):
        return WEIGHT_COLS
    if groups > 1 and len(weight.shape) == 1 and weight.shape[0] * groups == cols:
        return WEIGHT_GROUP
    if len(weight.shape) == 2 and weight.shape == x.shape[-2:]:
        return WEIGHT_HEADS_COLS
    raise ValueError(f"weight: the shape {weight.shape} does not fit x with {x.shape}, groups {groups}: "
                     "[cols], [cols / groups] or, for a weight per head, [heads, cols]")  # fmt: skip


def _fold(x: _Look, shape: int, looks: list) -> tuple[int, int, list]:
    """(rows, heads, strides of each look). NumPy arrays that do not fold are copied."""
    cols = x.shape[-1]
    if shape != WEIGHT_HEADS_COLS and all(look.packed for look in looks):
        return math.prod(x.shape[:-1]), 1, [(cols, 0)] * len(looks)
    for look in looks:
        look.pack(cols > 1 and look.strides[-1] != 1)
    heads_apart = shape == WEIGHT_HEADS_COLS
    outer = x.shape[:-2] if heads_apart else x.shape[:-1]
    for last in (False, True):
        folded = collapse(outer, [look.strides[: len(outer)] for look in looks])
        if folded is not None and not (heads_apart and folded[1] > 1):
            break
        for look in looks:
            look.pack(True)
    rows, heads, strides = folded
    if heads_apart:
        heads = x.shape[-2]
        strides = [(step[0], look.strides[-2]) for step, look in zip(strides, looks)]
    return rows, heads, strides


def _apart(y: _Look, total: _Look | None) -> None:
    """The library refuses results that lie in each other, but of a copy it does not see where it goes."""
    copied = [look for look in (y, total) if look is not None and look.copied is not None]
    if not copied:
        return
    import numpy

    for look in copied:
        if any(step == 0 and size > 1 for step, size in zip(look.copied.strides, look.shape)):
            raise ValueError(f"{look.name}: several of its elements are one place in memory")
    if total is not None:
        ends = [look.owner if look.copied is None else look.copied for look in (y, total)]
        if numpy.may_share_memory(*ends) and numpy.shares_memory(*ends):
            raise ValueError("out and residual_out share memory; two results have to be apart")


def _call(
    run, x, weight, eps, residual, gate, preset, quant, scale, groups, divisor, dtype, residual_dtype, out,
    residual_out, scale_out, stats, threads, impl, stream,
):  # fmt: skip
    rules = RULES[preset]
    if type(eps) is not float and not isinstance(eps, numbers.Real):
        raise TypeError(f"eps: a number is needed, that of the checkpoint, not {type(eps).__name__}")
    source, x = x, _Look("x", x, stream).real()
    if not x.shape:
        raise ValueError("x: has no dimension to normalise")
    cols = x.shape[-1]
    for name, value in (("groups", groups), ("divisor", divisor), ("threads", threads or 0)):
        if type(value) is not int:
            check_whole(name, value)
    if impl is not None and not isinstance(impl, str):
        raise TypeError(f"impl: a name of rmsnorm.impls() is needed, not {type(impl).__name__}")
    if groups < 1 or cols % groups:
        raise ValueError(f"groups: {groups} does not divide {cols} columns")
    if (gate is not None) != rules.gate:
        raise ValueError("gate: the preset has none" if gate is not None else "gate: the preset needs one")
    shape, weight_tuple, weight_code = WEIGHT_COLS, None, 0
    if weight is not None:
        weight = _Look("weight", weight, stream).real()
        weight.pack(True)
        shape, weight_code = _weight(weight, x, groups), weight.code
        weight_tuple = (weight.address, weight_code, shape)
    residual = None if residual is None else _Look("residual", residual, stream).real().like(x)
    gate = None if gate is None else _Look("gate", gate, stream).real().like(x)

    # Results.
    made = {}
    if quant is None:
        if scale is not None or scale_out is not None:
            raise ValueError("scale: is for a quantised result")
        code = result_dtype(rules, x.code, weight_code) if dtype is None else _code_of("dtype", dtype)
    else:
        quant = Quant.of(quant)
        if dtype is not None:
            raise ValueError("dtype: a quantised result has the type of its kind")
        code = quant.dtype
    made["y"] = out if out is not None else _make("out", source, x, x.shape, code)
    y = _Look("out", made["y"], stream).output(x)
    if quant is None:
        if y.real().code != code and dtype is not None:
            raise ValueError(f"dtype: {_NAMES[code]} is asked for, and out has {_NAMES[y.code]}")
    elif y.code != code and not (code in _BYTES and y.code == _BYTE):
        raise TypeError(f"out: {_NAMES[code]} is needed, not {_NAMES[y.code]}")
    else:
        y.code = code
    total = None
    if residual is not None:
        if residual_out is None:
            code = residual.code if residual.code == x.code else max((F32, F64)[F64 in (x.code, residual.code)], F32)
            code = code if residual_dtype is None else _code_of("residual_dtype", residual_dtype)
            residual_out = _make("residual_out", source, x, x.shape, code)
        made["residual_out"] = residual_out
        total = _Look("residual_out", residual_out, stream).output(x).real()
    elif residual_out is not None or residual_dtype is not None:
        raise ValueError("residual_out: is for calls with a residual")
    rstd = None
    if stats:
        rows = (*x.shape[:-1], groups) if groups > 1 else x.shape[:-1]
        made["rstd"] = _make("rstd", source, x, rows, F64 if x.code == F64 else F32)
        rstd = _Look("rstd", made["rstd"], stream)

    quant_of = None
    if quant is not None:
        quant_of = _scales(made, source, x, quant, scale, scale_out, stream)
    present = [look for look in (x, residual, gate, y, total) if look is not None]
    empty = 0 in x.shape[:-1]
    rows, heads, strides = (0, 1, [(0, 0)] * 5) if empty else _fold(x, shape, present)
    _apart(y, total)
    step = iter(strides)
    tuples = [
        None if look is None else (look.address, look.code, *next(step)) for look in (x, residual, gate, y, total)
    ]
    main = tuples[3] if quant is None else None
    on_device = x.device != CPU
    result = run(
        rows, heads, cols, groups, eps, divisor, rules.packed, x.device, stream if on_device else None,
        threads or _threads.limit, None if impl is None else impl.encode(), *tuples[:3], weight_tuple, main,
        tuples[4], None if rstd is None else rstd.address, None if quant is None else quant_of(tuples[3]),
    )  # fmt: skip
    for look in (y, total):
        if look is not None and look.copied is not None:
            look.copied[...] = look.owner
    return result, made


def _scales(made: dict, source, x: _Look, quant: Quant, scale, scale_out, stream):
    """Make or look at the scales; returns what packs the quantisation once q's tuple is known."""
    if (scale is not None) != (quant.granularity == TENSOR):
        raise ValueError(f"scale: is for the kinds with -tensor, and needed there; this one is {quant.kind}")
    if quant.granularity == TENSOR:
        if isinstance(scale, (int, float)):
            import numpy

            scale = numpy.array([scale], dtype=numpy.float32)
        look = _Look("scale", scale, stream)
        if look.code != F32 or look.device != x.device or any(size != 1 for size in look.shape):
            raise TypeError("scale: one float32 on the device of x is needed")
        made["scale"] = scale
        return lambda q: quant.pack(look.address, 0, 0, q)
    blocks = quant.scale_blocks(x.shape[-1])
    by_column = quant.by_column and quant.granularity != ROW
    stored = (blocks, *x.shape[:-1]) if by_column else (*x.shape[:-1], blocks)
    code = E8M0 if quant.granularity == MX else F32
    if scale_out is None:
        scale_out = _make("scale_out", source, x, stored, code)
    look = _Look("scale_out", scale_out, stream)
    if look.shape != stored or look.strides != packed_strides(stored) or look.device != x.device or look.read_only:
        raise ValueError(f"scale_out: the shape {stored}, packed and writable, on the device of x is needed")
    if look.code != code and not (code == E8M0 and look.code == _BYTE):
        raise TypeError(f"scale_out: {_NAMES[code]} is needed")
    made["scale"] = scale_out
    if by_column:
        made["scale"] = scale_out.transpose(*range(1, len(stored)), 0)
    return lambda q: quant.pack(0, look.address, 0, q)


# ----------------------------------------------------------------------------------------------------------------------
def _is_torch(x: Any) -> bool:
    if type(x).__module__ == "numpy":
        return False
    return any(base.__module__ == "torch" and base.__name__ == "Tensor" for base in type(x).__mro__)


def rms_norm(
    x: Any,
    weight: Any = None,
    *,
    eps: float,
    residual: Any = None,
    gate: Any = None,
    preset: str | Numerics = "torch",
    quant: str | Quant | None = None,
    scale: Any = None,
    groups: int = 1,
    divisor: int = 0,
    dtype: Any = None,
    residual_dtype: Any = None,
    out: Any = None,
    residual_out: Any = None,
    scale_out: Any = None,
    stats: bool = False,
    threads: int = 0,
    impl: str | None = None,
    stream: int | None = None,
):
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension of x.

    Returns y; or, in this order, a tuple of y (quant: q, scale), the sum x + residual where a residual is given, and
    rstd where stats asks for it. weight: [cols]; [cols / groups], shared by all groups; or [heads, cols] for an x of
    [..., heads, cols]. preset: a name of rmsnorm.presets(), or Numerics. quant: a kind such as "fp8-row", or Quant.
    threads, impl: as in rmsnorm.h; a forked child has one thread unless it asks for more. stream: of the GPU, an
    address; None is the default stream."""
    if _is_torch(x):
        return _torch(x, weight, eps, residual, gate, preset, quant, scale, groups, divisor, dtype, residual_dtype, out,
                      residual_out, scale_out, stats, threads, impl, stream)  # fmt: skip
    _, made = _call(
        _native.forward, x, weight, eps, residual, gate, preset, quant, scale, groups, divisor, dtype,
        residual_dtype, out, residual_out, scale_out, stats, threads, impl, stream,
    )  # fmt: skip
    results = tuple(made[name] for name in ("y", "scale", "residual_out", "rstd") if name in made)
    return results[0] if len(results) == 1 else results


def explain(x: Any, weight: Any = None, *, eps: float = 1e-6, residual: Any = None, gate: Any = None, quant: Any = None,
            scale: Any = None, preset: str | Numerics = "torch", groups: int = 1, divisor: int = 0,
            dtype: Any = None, threads: int = 0, impl: str | None = None) -> str:  # fmt: skip
    """Which implementation rms_norm would take for these arguments, and why not each other: one line for each."""
    text, _ = _call(
        _native.explain_forward, x, weight, eps, residual, gate, preset, quant, scale, groups, divisor, dtype, None,
        None, None, None, False, threads, impl, None,
    )  # fmt: skip
    return text


def _torch(x, weight, eps, residual, gate, preset, quant, scale, groups, divisor, dtype, residual_dtype, out,
           residual_out, scale_out, stats, threads, impl, stream):  # fmt: skip
    """The same call on tensors of torch. What it has no word for is refused, not forgotten."""
    from . import torch as functions

    for name, value in (("residual_out", residual_out), ("scale_out", scale_out), ("impl", impl), ("stream", stream)):
        if value is not None:
            raise ValueError(f"{name}: is not for tensors of torch")
    if (
        threads
        or (out is not None and not (residual is gate is quant is None))
        or (stats and not (residual is gate is quant is None))
        or (residual is not None and gate is not None and quant is None)
    ):
        raise ValueError("threads, out, stats, or a residual beside a gate: not in this combination for tensors of "
                         "torch")  # fmt: skip
    common = {"preset": preset, "groups": groups, "divisor": divisor}
    if quant is not None:
        return functions.rms_norm_quant(x, weight, eps, quant=quant, scale=scale, residual=residual, gate=gate,
                                        residual_dtype=residual_dtype, **common)  # fmt: skip
    if residual is not None:
        return functions.fused_add_rms_norm(x, residual, weight, eps, dtype=dtype, residual_dtype=residual_dtype,
                                            **common)  # fmt: skip
    if gate is not None:
        return functions.gated_rms_norm(x, gate, weight, eps, dtype=dtype, **common)
    if stats:
        return functions.rms_norm_with_stats(x, weight, eps, dtype=dtype, **common)
    return functions.rms_norm(x, weight, eps, dtype=dtype, out=out, **common)
