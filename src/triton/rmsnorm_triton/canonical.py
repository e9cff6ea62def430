"""canonical.py - what decides about bits: the order of a sum, the reciprocal root, rounding, rescue.

docs/numerics.md is the contract, src/portable_body.h its C form; sections in brackets are those of the former. Every
operation that rounds is written once and in order: `tl.fma` where two are one, `div_rn` and `sqrt_rn` where Triton's
`/` and `tl.sqrt` would be approximations, and the compiler is told not to fuse anything else (enable_fp_fusion=False).

SPDX-License-Identifier: Apache-2.0
"""

import triton.language as tl

import triton

F32, F16, BF16 = tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)  # rmsnorm_dtype

# An ordinary row has its v = S / divisor + eps between these, and so its rstd between the next two [1.3, 4].
V_MIN = tl.constexpr(2.0**-120)
V_MAX = tl.constexpr(3.4028234663852886e38)
RSTD_MIN = tl.constexpr(2.0**-64)
RSTD_MAX = tl.constexpr(2.0**60)
EXPONENT_OF_ZERO = tl.constexpr(-16384)
RESCUE_B = tl.constexpr(100)


@triton.jit
def present(pointer):
    """An absent tensor is a pointer to nothing."""
    return pointer.to(tl.int64) != 0


@triton.jit
def negative_zero():
    """The number that changes nothing when it is added: x + -0 is x, also for x = -0, while -0 + 0 is +0. From its
    bits, because Triton takes a literal -0.0 for 0."""
    return tl.full((), -0x80000000, tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def negated(v):
    """-v, by its sign bit: Triton's own minus is 0 - v, which makes +0 of both zeros."""
    return (v.to(tl.int32, bitcast=True) ^ -0x80000000).to(tl.float32, bitcast=True)


@triton.constexpr_function
def levels_of(n):
    """log2 of a power of two."""
    return n.bit_length() - 1


@triton.jit
def pairwise(lanes, SPREAD: tl.constexpr = False):
    """[R, W] -> [R]: neighbours, then neighbouring results, until one number is left [1.2].

    `tl.sum(lanes, 1)` would add in an order that depends on the layout, which is the compiler's business. A sum of two
    numbers has one order only, so the tree is written as sums of two.

    SPREAD: a row is spread over several warps, and sums of two would meet in shared memory on every level above a
    warp. `tl.split` brings the last 32 numbers to every warp at once. It takes registers, so it is not for kernels
    that have none left.
    """
    R: tl.constexpr = lanes.shape[0]
    W: tl.constexpr = lanes.shape[1]
    LEVELS: tl.constexpr = levels_of(W)
    for level in tl.static_range(LEVELS):
        if SPREAD and R == 1 and W >= 512 and W >> level == 32:
            left, right = tl.split(tl.reshape(lanes, [R, W >> (level + 1), 2]))
            lanes = left + right
        else:
            lanes = tl.sum(tl.reshape(lanes, [R, W >> (level + 1), 2]), 2)
    return tl.reshape(lanes, [R])


@triton.jit
def folded(parts, S: tl.constexpr):
    """The top of the tree, where the lanes lie in S tiles side by side: a tile is a whole branch of it."""
    if S == 4:
        return (parts[0] + parts[1]) + (parts[2] + parts[3])
    elif S == 2:
        return parts[0] + parts[1]
    else:
        return parts[0]


@triton.jit
def ordinary(v):
    return (v >= V_MIN) & (v <= V_MAX)


@triton.jit
def root(v):
    """sqrt(v), correctly rounded. On AMD `sqrt_rn` is that for large v only: what Triton makes of it leaves out a
    scaling, without which a remainder of v 2^-48 is not exact. So it is written here: by 2^64, and back by 2^-32."""
    small = v < 5.421010862427522e-20  # 2^-64
    raised = tl.math.sqrt_rn(tl.where(small, v * 18446744073709551616.0, v))
    return tl.where(small, raised * 2.3283064365386963e-10, raised)


@triton.jit
def isqrt(v):
    """1 / sqrt(v) and one step of Newton's method with an exact residual: e is 1 - v r^2 [1.3]."""
    r = tl.math.div_rn(1.0, root(v))
    high = v * r
    low = tl.fma(v, r, -high)
    e = tl.fma(-low, r, tl.fma(-high, r, 1.0))
    return tl.where(ordinary(v), tl.fma(0.5 * r, e, r), r)


@triton.jit
def exp2i(e):
    """2^e, exactly, for e within [-149, 127]; subnormal below -126."""
    normal = (e + 127) << 23
    subnormal = 1 << tl.minimum(tl.maximum(e + 149, 0), 22)
    return tl.where(e >= -126, normal, subnormal).to(tl.float32, bitcast=True)


@triton.jit
def exponent(m):
    """The e with 2^e <= m < 2^(e+1), subnormals included, for m >= 0; of 0 a number below every other one."""
    bits = m.to(tl.int32, bitcast=True)
    raised = (m * 16777216.0).to(tl.int32, bitcast=True)  # 2^24: a subnormal becomes normal, exactly
    e = tl.where(bits >= 0x00800000, (bits >> 23) - 127, (raised >> 23) - 151)
    return tl.where(bits == 0, EXPONENT_OF_ZERO, e)


@triton.jit
def magnitude(v):
    """The bits of |v|: they order like the numbers, and every NaN stands above infinity."""
    return v.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def round_to(v, dtype):
    """v rounded to the type of that code and widened again; any other code leaves it alone. A run-time value."""
    narrow = tl.where(dtype == BF16, v.to(tl.bfloat16).to(tl.float32), v.to(tl.float16).to(tl.float32))
    return tl.where(dtype > F32, narrow, v)


@triton.jit
def widen_again(raw):
    """raw.to(float32) in other words: the compiler would keep what it has widened before, for as long as the dot takes,
    in twice the registers."""
    if raw.dtype == tl.bfloat16:
        return (raw.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        return raw.to(tl.float32)


@triton.jit
def rescue_exponent(greatest, eps):
    """e of a rescued row, from the bits of its greatest |u| [1.4]."""
    e = tl.maximum(exponent(greatest.to(tl.float32, bitcast=True)), exponent(eps) >> 1)
    return tl.minimum(tl.maximum(e, -126), 127)


@triton.jit
def rescued(greatest, scaled_sum, e, divisor, eps):
    """(power, r, rstd) of rescued rows, not rounded: xhat = (u * power) * r [1.4].

    `scaled_sum` is the canonical sum of (u * 2^-e)^2. The power of two is exact; r' * 2^-e alone could overflow or
    vanish, so that a part b of e goes into r and the rest to u.
    """
    scale = exp2i(-e)
    v = tl.math.div_rn(scaled_sum, divisor) + (eps * scale) * scale
    b = tl.minimum(tl.maximum(e, 0), RESCUE_B)
    r = isqrt(v) * exp2i(-b)
    power = exp2i(b - e)
    rstd = r * power
    # A NaN makes its whole row NaN, an infinity everything else 0; a row of zeros stays zero.
    infinite = greatest == 0x7F800000
    zero = greatest == 0
    of_zero = tl.where(eps == 0.0, 0.0, isqrt(eps))
    plain = tl.where(zero, of_zero, tl.where(infinite, 0.0, float("nan")))
    special = zero | (greatest >= 0x7F800000)
    return tl.where(special, 1.0, power), tl.where(special, plain, r), tl.where(special, plain, rstd)
