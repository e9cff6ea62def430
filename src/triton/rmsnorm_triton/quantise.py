"""quantise.py - 8-bit codes and their scales [3], in integer arithmetic: no conversion instruction is asked, because
they differ between GPUs in what they do past the largest value, and some have none.

SPDX-License-Identifier: Apache-2.0
"""

import triton.language as tl

import triton

from .canonical import V_MAX, exp2i, exponent

TENSOR, ROW, BLOCK, MX = tl.constexpr(1), tl.constexpr(2), tl.constexpr(3), tl.constexpr(4)
E4M3, E5M2 = tl.constexpr(8), tl.constexpr(9)  # rmsnorm_dtype; the third is INT8
RECIPROCAL = tl.constexpr(1)
CEIL = tl.constexpr(1)
INT8_MAGIC = tl.constexpr(12582912.0)  # 1.5 * 2^23: adding it rounds to an integer, which its low bits then hold


@triton.jit
def largest(dtype):
    return tl.where(dtype == E4M3, 448.0, tl.where(dtype == E5M2, 57344.0, 127.0))


@triton.jit
def amax_of(v):
    """|v| as it counts for a greatest value: NaN not at all, infinity as the largest finite number."""
    a = tl.abs(v)
    return tl.where(a != a, 0.0, tl.minimum(a, V_MAX))


@triton.jit
def scale_of(amax, dtype, scale_max):
    scale = tl.maximum(tl.math.div_rn(amax, largest(dtype)), 1.1754943508222875e-38)  # 2^-126
    return tl.minimum(scale, scale_max)


@triton.jit
def shift_to_even(bits, shift):
    """bits / 2^shift, rounded to nearest even."""
    kept = bits >> shift
    rest = bits - (kept << shift)
    half = 1 << (shift - 1)
    up = (rest > half) | ((rest == half) & ((kept & 1) != 0))
    return kept + tl.where(up, 1, 0)


@triton.jit
def fp8(v, man, bias, most):
    """The code of v: to nearest even, saturated at `most`; NaN is 0x7f."""
    bits = v.to(tl.int32, bitcast=True)
    mag = bits & 0x7FFFFFFF
    power = mag >> 23
    normal = shift_to_even(mag - ((127 - bias) << 23), 23 - man)
    shift = 151 - bias - man - power  # subnormal there: its last place is worth 2^(1 - bias - man)
    subnormal = shift_to_even((mag & 0x007FFFFF) | 0x00800000, tl.minimum(tl.maximum(shift, 1), 25))
    code = tl.where(power > 127 - bias, normal, tl.where(shift > 24, 0, subnormal))
    code = tl.where(mag > 0x7F800000, 0x7F, tl.minimum(code, most))
    return code | ((bits >> 24) & 0x80)


@triton.jit
def int8(v):
    clamped = tl.minimum(tl.maximum(tl.where(v != v, 0.0, v), -128.0), 127.0)
    return (clamped + INT8_MAGIC).to(tl.int32, bitcast=True) & 0xFF


@triton.jit
def quantise(v, dtype):
    """The code of a scaled value, in the low 8 bits of an int32."""
    if dtype == E4M3:
        code = fp8(v, 3, 7, 0x7E)
    elif dtype == E5M2:
        code = fp8(v, 2, 15, 0x7B)
    else:
        code = int8(v)
    return code


@triton.jit
def scaled(v, scale, scale_op):
    if scale_op == RECIPROCAL:
        s = v * tl.math.div_rn(1.0, scale)
    else:
        s = tl.math.div_rn(v, scale)
    return s


@triton.jit
def mx_exponent(amax, dtype, e8m0_rounding):
    """E of a block: its e8m0 code is E + 127."""
    power = exponent(amax)
    emax = tl.where(dtype == E4M3, 8, 15)
    e = power - emax
    # CEIL: one more where amax, taken to [1, 2), is past the largest value taken there (both exact).
    past = amax * exp2i(tl.minimum(-power, 126)) > largest(dtype) * exp2i(-emax)
    e = tl.where((e8m0_rounding == CEIL) & past, e + 1, e)
    return tl.where(amax < 1.1754943508222875e-38, -127, tl.minimum(tl.maximum(e, -127), 127))


@triton.jit
def mx_scaled(v, e):
    """v * 2^-e in two normal factors: 2^-127 alone would be a subnormal one."""
    half = tl.where(e < 0, -((-e) >> 1), e >> 1)  # towards zero
    return (v * exp2i(half - e)) * exp2i(-half)


@triton.jit
def block_amax(a, block_cols, T: tl.constexpr):
    """For every 32 columns of a tile [T] of magnitudes the greatest of the block of 32, 64 or 128 that they lie in."""
    of32 = tl.max(tl.reshape(a, [T // 32, 32]), 1)
    pair = tl.max(tl.reshape(of32, [T // 64, 2]), 1)
    four = tl.max(tl.reshape(pair, [T // 128, 2]), 1)
    of64 = tl.reshape(tl.broadcast_to(pair[:, None], [T // 64, 2]), [T // 32])
    of128 = tl.reshape(tl.broadcast_to(four[:, None], [T // 128, 4]), [T // 32])
    return tl.where(block_cols == 128, of128, tl.where(block_cols == 64, of64, of32))
