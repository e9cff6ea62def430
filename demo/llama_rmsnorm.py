"""The model's own RMSNorm, restated in numpy: the reference the demo compares with.

This is the arithmetic of LlamaRMSNorm (transformers, modeling_llama.py) in our own words, for a model kept in bfloat16:
the row goes to float32, the mean of its squares is taken there, the normalised row is rounded back to bfloat16, and
only then multiplied by the bfloat16 weight, which rounds again. numpy adds in an order of its own, so the last bit of
the row's factor may differ from any other implementation's.

bfloat16 arrays are held as uint16 bit patterns, because numpy has no such type.

SPDX-License-Identifier: Apache-2.0
"""
import numpy as np


def widen(bits):
    """bfloat16 bit patterns -> float32 (exact)."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def narrow(values):
    """float32 -> bfloat16 bit patterns, to nearest, ties to even. Finite values only."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)


def rounded(values):
    """float32 values as bfloat16 would hold them."""
    return widen(narrow(values))


def rmsnorm(x, weight, eps):
    """x [rows, cols] and weight [cols] as bfloat16 bits -> y as bfloat16 bits."""
    h = widen(x)
    mean_square = np.mean(h * h, axis=-1, keepdims=True, dtype=np.float32)
    rstd = np.float32(1) / np.sqrt(mean_square + np.float32(eps))
    return narrow(widen(weight) * rounded(h * rstd))


def e4m3_table():
    """The value of each of the 256 fp8 e4m3fn codes; codes 0x7f and 0xff are NaN."""
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    value = np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    value[(codes & 0x7F) == 0x7F] = np.nan
    return np.where(codes & 0x80, -value, value)


def quantise_rows(y):
    """y as bfloat16 bits -> (fp8 e4m3 codes, float32 scale of each row), scale = largest magnitude / 448.

    The nearest code is searched in the table of all codes, in float64; of two equally near ones the even code wins."""
    v = widen(y)
    scale = np.abs(v).max(axis=-1, keepdims=True) / np.float32(448)
    ratio = (v / scale).astype(np.float64)
    table = e4m3_table()[:0x7F]
    distance = np.abs(np.abs(ratio)[..., None] - table)
    best = distance.min(axis=-1, keepdims=True)
    near = distance == best
    even = np.arange(0x7F) % 2 == 0
    code = np.where((near & even).any(-1), (near & even).argmax(-1), near.argmax(-1))
    return (code | np.where(np.signbit(v), 0x80, 0)).astype(np.uint8), scale[..., 0]
