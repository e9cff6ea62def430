"""exact.py - Triton's interpreter with the arithmetic of the hardware, and numpy arrays for tensors.

The interpreter of Triton 3.6 rounds `tl.fma` twice and cuts bf16 off instead of rounding it; kernels whose point is the
last bit need both right. It also asks for torch tensors; `Array` answers what it asks of them, so that no torch is
needed. Import this before any kernel: it switches the interpreter on.

SPDX-License-Identifier: Apache-2.0
"""

import os

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np  # noqa: E402
import triton.language as tl  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

np.seterr(all="ignore")


def fma(a, b, c):
    """a * b + c with one rounding, float32. The product is exact in float64; the sum is rounded to odd there, so that
    the second rounding, to float32, sees whether something was left."""
    product = a.astype(np.float64) * b.astype(np.float64)
    wide = c.astype(np.float64)
    total = product + wide
    part = total - product
    rest = (product - (total - part)) + (wide - part)
    bits = total.view(np.int64)
    away = (rest > 0) == (total > 0)
    odd = np.where(away, bits | 1, (bits - 1) | 1)
    fix = (rest != 0) & np.isfinite(total) & np.isfinite(rest) & ((bits & 1) == 0)
    return np.where(fix, odd, bits).view(np.float64).astype(np.float32)


def widen_bf16(codes):
    return (codes.astype(np.uint32) << 16).view(np.float32)


def narrow_bf16(values):
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    even = ((bits >> 16) & 1) + np.uint32(0x7FFF)
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(nan, bits >> 16 | 0x40, (bits + even) >> 16).astype(np.uint16)


def _cast(self, source, target):
    have, want = source.dtype.scalar, target.scalar
    if have == tl.bfloat16 and want == tl.float32:
        data = widen_bf16(source.data)
    elif have == tl.float32 and want == tl.bfloat16:
        data = narrow_bf16(source.data)
    else:
        data = source.data.astype(interpreter._get_np_dtype(target))
    return interpreter.TensorHandle(data, want)


def _fma(self, a, b, c):
    return interpreter.TensorHandle(fma(*np.broadcast_arrays(a.data, b.data, c.data)), c.dtype.scalar)


builder = interpreter.InterpreterBuilder
builder.cast_impl = _cast
builder.create_fma = _fma
for _name in ("create_fp_ext", "create_fp_trunc", "create_si_to_fp", "create_int_cast"):
    setattr(builder, _name, lambda self, source, target, *rest: self.cast_impl(source, target))

_convert_argument = interpreter._implicit_cvt


def _argument(value):
    """Floats become float32 scalars, as they are on a device; the interpreter leaves them Python's."""
    if isinstance(value, float):
        return tl.tensor(interpreter.TensorHandle(np.array([value], np.float32), tl.float32), tl.float32)
    return _convert_argument(value)


_patch_tensor = interpreter._patch_lang_tensor


def _patch(tensor, scope):
    """A scalar is an array of one element there, which a new numpy does not take for a number by itself."""
    _patch_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


_patched = set()


def _call(self, *args, **kwargs):
    """A helper. The language it is written in is patched once, and not for every call: that took most of the time."""
    if self.fn.__module__ not in _patched:
        interpreter._patch_lang(self.fn)
        _patched.add(self.fn.__module__)
    return self.rewrite()(*args, **kwargs)


interpreter.InterpretedFunction.__call__ = _call
interpreter._implicit_cvt = _argument
interpreter._patch_lang_tensor = _patch

_NAMES = {np.dtype(np.float32): "float32", np.dtype(np.float16): "float16", np.dtype(np.uint16): "bfloat16",
          np.dtype(np.int8): "int8", np.dtype(np.uint8): "int8", np.dtype(np.int64): "int64"}


class Array:
    """A numpy array (bf16 as uint16), or None for an absent tensor, as the interpreter wants to see it."""

    def __init__(self, data, dtype="float32", offset=0):
        self.base = data
        self.dtype = dtype if data is None else _NAMES[data.dtype]
        self.address = 0 if data is None else data.ctypes.data + offset

    def data_ptr(self):
        return self.address

    def untyped(self):
        """The same memory as bytes, for kernels that learn the type at run time."""
        other = Array(None, "int8")
        other.base, other.address = self.base, self.address
        return other

    # What the interpreter does to bring a tensor to the CPU and back: it is there already.
    def untyped_storage(self):
        return self

    def cpu(self):
        return self

    def new_empty(self, *_, **__):
        return Array(None, self.dtype)

    def set_(self, storage, *_):
        self.base, self.address = storage.base, storage.address

    def storage_offset(self):
        return 0

    def size(self):
        return ()

    def stride(self):
        return ()

    def copy_(self, _):
        pass
