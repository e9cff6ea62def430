"""References made from the formula, in NumPy's float64 and in staged float32; nothing here calls the library.

`exact` is the formula in float64. `staged` takes the statistic as given and rounds where the numerics say: what comes
after the sum of squares has to agree with it bit for bit, whatever the order of that sum.

SPDX-License-Identifier: Apache-2.0
"""

import ml_dtypes
import numpy as np

BF16 = np.dtype(ml_dtypes.bfloat16)
F16 = np.dtype(np.float16)
F32 = np.dtype(np.float32)
F64 = np.dtype(np.float64)
DTYPES = {"f32": F32, "f16": F16, "bf16": BF16}
U = 2.0**-24


def promoted(a, b):
    return a if a == b else F32


def chain(n: int) -> int:
    """The longest chain of roundings in the sum of n squares: docs/numerics.md, section 8."""
    w = 64
    while w < 65536 and 8 * w <= n:
        w *= 2
    return -(-n // w) + int(np.log2(w))


def activation(kind: str, z):
    z = z.astype(np.float64)
    with np.errstate(over="ignore"):
        s = 1 / (1 + np.exp(-z))
    return {"silu": z * s, "sigmoid": s}[kind]


def seen_sum(x, residual, numerics, sum_dtype=None):
    """h as float32, the way the norm sees it."""
    h = x.astype(F32)
    if residual is None:
        return h
    h = h + residual.astype(F32)
    if numerics.round_sum == "stored":
        h = h.astype(sum_dtype or promoted(x.dtype, residual.dtype)).astype(F32)
    return h


def expand(stat, groups, cols):
    """[*outer] or [*outer, groups] over the columns."""
    stat = stat[..., None] if groups == 1 else stat
    return np.repeat(stat, cols // groups, axis=-1)


def weights(weight, numerics, cols, dtype):
    if weight is None:
        return None
    w = weight.astype(dtype)
    if numerics.weight_offset:
        w = dtype.type(numerics.weight_offset) + w
    return np.tile(w, cols // w.shape[-1]) if w.ndim == 1 else w


def exact(x, weight, eps, numerics, residual=None, gate=None, groups=1, divisor=0, sum_dtype=None):
    """(y, rstd) in float64, from the sum that the norm sees."""
    h = (
        seen_sum(x, residual, numerics, sum_dtype).astype(F64)
        if x.dtype != F64
        else x + (0 if residual is None else residual)
    )
    cols = x.shape[-1]
    if numerics.gate != "none" and numerics.gate_place == "before":
        h = h * activation(numerics.gate, gate)
    square = (h.reshape(*h.shape[:-1], groups, cols // groups) ** 2).sum(-1) / (divisor or cols // groups)
    rstd = 1 / np.sqrt(square + eps)
    rstd = rstd[..., 0] if groups == 1 else rstd
    y = h * expand(rstd, groups, cols)
    w = weights(weight, numerics, cols, F64)
    y = y if w is None else y * w
    if numerics.gate != "none" and numerics.gate_place == "after":
        y = y * activation(numerics.gate, gate)
    return y, rstd


def staged(x, weight, rstd, numerics, y_dtype, residual=None, groups=1, sum_dtype=None):
    """y from a given float32 rstd, rounded where the numerics say. No gates: their exponential is not NumPy's."""
    cols = x.shape[-1]

    def rounded(value, where):
        if where == "none":
            return value
        if where == "weight":
            return (
                value.astype(weight.dtype).astype(F32) if weight is not None and weight.dtype in (F16, BF16) else value
            )
        target = x.dtype if where == "x" or weight is None else promoted(x.dtype, weight.dtype)
        return value.astype(target).astype(F32)

    h = seen_sum(x, residual, numerics, sum_dtype)
    v = rounded(h * expand(rstd, groups, cols), numerics.round_xhat)
    w = weights(weight, numerics, cols, F32)
    v = v if w is None else v * w
    return rounded(v, numerics.round_normed).astype(y_dtype)


def ulp(value, dtype):
    """The distance of neighbouring numbers of a type around a float64 value."""
    info = ml_dtypes.finfo(dtype)
    exponent = np.floor(np.log2(np.maximum(np.abs(value), float(info.smallest_normal))))
    return 2.0 ** (exponent - info.nmant)


def distance(got, want):
    """In ulps of got's type."""
    return np.abs(got.astype(F64) - want) / ulp(want, got.dtype)


def bits(array):
    """The bytes, for a comparison that knows -0 and NaN."""
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def same_bits(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and bool((bits(a) == bits(b)).all())


def gradients(x, weight, eps, dy, numerics, residual=None, gate=None, groups=1, divisor=0, dsum=None):
    """(dx, dweight, dgate) in float64: the closed form of docs/numerics.md, section 4, written from the formula."""
    cols = x.shape[-1]
    n = divisor or cols // groups
    h = seen_sum(x, residual, numerics).astype(F64) if x.dtype != F64 else x + (0 if residual is None else residual)
    dy = dy.astype(F64)
    before = numerics.gate != "none" and numerics.gate_place == "before"
    after = numerics.gate != "none" and not before
    u = h * activation(numerics.gate, gate) if before else h
    parts = u.reshape(*u.shape[:-1], groups, cols // groups)
    rstd = 1 / np.sqrt((parts**2).sum(-1, keepdims=True) / n + eps)
    xhat = (parts * rstd).reshape(u.shape)
    w = weights(weight, numerics, cols, F64)
    w = 1.0 if w is None else w
    g = dy * activation(numerics.gate, gate) if after else dy
    t = (g * w).reshape(parts.shape)
    dot = (t * xhat.reshape(parts.shape)).sum(-1, keepdims=True)
    du = (rstd * (t - xhat.reshape(parts.shape) * dot / n)).reshape(u.shape)
    dgate = None
    if gate is not None:
        z = gate.astype(F64)
        s = 1 / (1 + np.exp(-z))
        slope = {"silu": s * (1 + z * (1 - s)), "sigmoid": s * (1 - s)}[numerics.gate]
        dgate = du * h * slope if before else dy * xhat * w * slope
    dx = du * activation(numerics.gate, gate) if before else du
    if dsum is not None:
        dx = dx + dsum.astype(F64)
    dweight = None
    if weight is not None:
        product = g * xhat
        if weight.ndim == 2:
            dweight = product.reshape(-1, *weight.shape).sum(0)
        else:
            dweight = product.reshape(-1, weight.shape[0]).sum(0)
    return dx, dweight, dgate
