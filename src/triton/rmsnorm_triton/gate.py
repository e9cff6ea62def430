"""gate.py - sigmoid and silu from one fixed exponential [2].

A library's exp differs in its last bit from machine to machine, so the steps are written out: scale by log2 e, split
off the integer, a polynomial of degree 6 on what is left, two exact powers of two.

SPDX-License-Identifier: Apache-2.0
"""

import triton.language as tl

import triton

from .canonical import exp2i

SILU = tl.constexpr(1)  # rmsnorm_gate
LIMIT = tl.constexpr(110.0)  # exp(-110) is 0 in float32
MAGIC = tl.constexpr(12582912.0)  # 1.5 * 2^23: adding it rounds to an integer
LOG2E = tl.constexpr(float.fromhex("0x1.715476p+0"))
LN2_HI = tl.constexpr(float.fromhex("0x1.62e4p-1"))
LN2_LO = tl.constexpr(float.fromhex("0x1.7f7d1cp-20"))
C2 = tl.constexpr(float.fromhex("0x1.fffffcp-2"))
C3 = tl.constexpr(float.fromhex("0x1.555492p-3"))
C4 = tl.constexpr(float.fromhex("0x1.5558fp-5"))
C5 = tl.constexpr(float.fromhex("0x1.1239fp-7"))
C6 = tl.constexpr(float.fromhex("0x1.6a270cp-10"))


@triton.jit
def exp_minus(a):
    """exp(-a) for a >= 0, infinity included; NaN gives NaN."""
    nan = a != a
    b = tl.where(a > LIMIT, LIMIT, tl.where(nan, 0.0, a))
    t = tl.fma(-b, LOG2E, MAGIC)
    k = t - MAGIC
    r = tl.fma(k, -LN2_HI, -b)
    r = tl.fma(k, -LN2_LO, r)
    p = tl.fma(r, C6, C5)
    p = tl.fma(p, r, C4)
    p = tl.fma(p, r, C3)
    p = tl.fma(p, r, C2)
    p = tl.fma(p, r, 1.0)
    p = tl.fma(p, r, 1.0)
    whole = k.to(tl.int32)
    half = whole >> 1  # in two steps: 2^k alone may be below the smallest float
    return tl.where(nan, a, (p * exp2i(half)) * exp2i(whole - half))


@triton.jit
def sigmoids(z):
    """sigmoid(z) and 1 - sigmoid(z), neither of them through a difference."""
    e = exp_minus(tl.abs(z))
    d = 1.0 + e
    below = z < 0.0
    return tl.math.div_rn(tl.where(below, e, 1.0), d), tl.math.div_rn(tl.where(below, 1.0, e), d)


@triton.jit
def act(z, kind):
    sigmoid, _ = sigmoids(z)
    return tl.where(kind == SILU, z * sigmoid, sigmoid)


@triton.jit
def dact(z, kind):
    """The derivative of act."""
    sigmoid, cosig = sigmoids(z)
    return sigmoid * tl.where(kind == SILU, tl.fma(z, cosig, 1.0), cosig)
