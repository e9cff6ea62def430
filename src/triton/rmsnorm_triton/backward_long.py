"""backward_long.py - the gradients of rows too long for registers: a loop over tiles, in two passes [4].

A column of dx wants the dot of its whole row. So the first pass takes a row a program and leaves behind what its
columns have in common, (power, r, dot); the second has it at hand and reads x and dy once more. Chunks of such rows are
dealt out row by row.

With dweight the second pass (`backward_long`) takes W columns of a chunk a program, row after row: the chunk's sum for
these columns stays in registers, as in backward_rows. There are few chunks of long rows, 7 of half a million columns,
and a program for each would leave most of a GPU idle; chunks times tiles are many.

Without dweight nothing is shared by rows, and `backward_long_dx` does both passes of a row in one program, the second
out of the cache.

SPDX-License-Identifier: Apache-2.0
"""

import triton.language as tl

import triton

from .canonical import (
    RSTD_MAX,
    RSTD_MIN,
    exp2i,
    isqrt,
    negated,
    negative_zero,
    ordinary,
    pairwise,
    present,
    rescue_exponent,
    rescued,
)
from .forward import fetch_weight, long_greatest, long_sum, place, widen_weight

RUN_TIME = ["units", "heads", "weight_type", "chunks"]


@triton.jit
def row_of(unit, heads):
    """The number of a row, and its (token, head)."""
    unit = tl.full((), 0, tl.int32) + unit  # an int of Python, in the interpreter
    token, head, _ = place(unit, heads, 1)
    return unit, token, head


@triton.jit
def weight_of(weight, weight_type, weight_offset, col, mask):
    """w; 1 where there is no column: t is +0 there, xhat -0, and adding their product changes nothing."""
    raw = fetch_weight(weight, weight_type, col, mask)
    return tl.where(mask, widen_weight(raw, weight, weight_type, weight_offset, col, mask), 1.0)


@triton.jit
def long_dot(x, dy, weight, weight_type, weight_offset, group_cols, lanes, power, r, W: tl.constexpr,
             U: tl.constexpr):
    """D of a row: the canonical sum of t * xhat, W lanes at a time, U elements of each under way."""
    PARTS: tl.constexpr = 65536 // W
    absent = negative_zero().to(x.dtype.element_ty)
    lane = tl.arange(0, W)[None, :]
    parts = tl.broadcast_to(negative_zero(), [1, PARTS])
    for first in range(0, lanes, W):
        sums = tl.zeros([1, W], tl.float32)
        for start in range(first, group_cols, lanes * U):
            xs = ()
            dys = ()
            for k in tl.static_range(U):
                col = start + k * lanes + lane
                xs = xs + (tl.load(x + col, mask=col < group_cols, other=absent),)
                dys = dys + (tl.load(dy + col, mask=col < group_cols, other=0.0),)
            for k in tl.static_range(U):
                col = start + k * lanes + lane
                w = weight_of(weight, weight_type, weight_offset, col, col < group_cols)
                sums = tl.fma(dys[k].to(tl.float32) * w, (xs[k].to(tl.float32) * power) * r, sums)
        parts = tl.where(tl.arange(0, PARTS)[None, :] == first // W, pairwise(sums)[:, None], parts)
    return tl.sum(pairwise(parts), 0)


@triton.jit
def long_row(x, dy, weight, weight_type, weight_offset, rstd_in, unit, group_cols, lanes, divisor, eps,
             W: tl.constexpr, U: tl.constexpr):
    """(power, r, dot) of a row."""
    power = tl.full((), 1.0, tl.float32)
    r = tl.full((), 0.0, tl.float32)
    if present(rstd_in):
        r = tl.load(rstd_in + unit)
    # A saved rstd out of the range of ordinary rows belongs to a rescued one.
    if ((r >= RSTD_MIN) & (r <= RSTD_MAX)) == 0:
        total = long_sum(x, x, group_cols, lanes, 1.0, False, False, False, False, W, U)
        v = tl.math.div_rn(total, divisor) + eps
        r = isqrt(v)
        if ordinary(v) == 0:
            greatest = long_greatest(x, x, group_cols, False, False, False, W)
            e = rescue_exponent(greatest, eps)
            again = long_sum(x, x, group_cols, lanes, exp2i(-e), False, False, True, False, W, 1)
            power, r, _ = rescued(greatest, again, e, divisor, eps)
    return power, r, long_dot(x, dy, weight, weight_type, weight_offset, group_cols, lanes, power, r, W, U)


@triton.jit
def dh_of(xhat, g, w, power, r, by_dot, incoming):
    """dx, before it is rounded. Where no row is rescued the power is 1, and nothing is absent, -0."""
    return (r * tl.fma(xhat, by_dot, g * w)) * power + incoming.to(tl.float32)


@triton.jit(do_not_specialize=RUN_TIME)
def backward_long_sums(x, weight, dy, rstd_in, sums, x_row_stride, x_head_stride, dy_row_stride, dy_head_stride,
                       units, heads, group_cols, lanes, divisor, eps, weight_offset, weight_type, W: tl.constexpr,
                       U: tl.constexpr):
    """power, r and dot of every row: three floats."""
    for i in range(tl.program_id(0), units, tl.num_programs(0)):
        unit, token, head = row_of(i, heads)
        power, r, dot = long_row(x + (token * x_row_stride + head * x_head_stride),
                                 dy + (token * dy_row_stride + head * dy_head_stride), weight, weight_type,
                                 weight_offset, rstd_in, unit, group_cols, lanes, divisor, eps, W, U)
        at = sums + unit.to(tl.int64) * 3
        tl.store(at, power)
        tl.store(at + 1, r)
        tl.store(at + 2, dot)


@triton.jit(do_not_specialize=RUN_TIME)
def backward_long(x, weight, dy, dresidual_out, dx, sums, partials,
                  x_row_stride, x_head_stride, dy_row_stride, dy_head_stride, dresidual_out_row_stride,
                  dresidual_out_head_stride, dx_row_stride, dx_head_stride,
                  units, heads, group_cols, chunks, divisor, weight_offset, weight_type, W: tl.constexpr,
                  U: tl.constexpr):
    """dx of W columns of a chunk's rows, and the chunk's sum of them for dweight. U rows are under way at once."""
    T: tl.constexpr = x.dtype.element_ty
    has_dx = present(dx)
    has_incoming = present(dresidual_out)
    absent = negative_zero().to(T)
    tiles = tl.cdiv(group_cols, W)
    for task in range(tl.program_id(0), chunks * tiles, tl.num_programs(0)):
        chunk = task // tiles
        col = task % tiles * W + tl.arange(0, W)
        there = col < group_cols
        w = weight_of(weight, weight_type, weight_offset, col, there)
        total = tl.zeros([W], tl.float32)
        for start in range(chunk, units, chunks * U):
            xs = ()
            dys = ()
            mores = ()
            powers = ()
            rs = ()
            dots = ()
            for k in tl.static_range(U):
                unit, token, head = row_of(start + k * chunks, heads)
                live = unit < units
                mask = there & live
                xs = xs + (tl.load(x + (token * x_row_stride + head * x_head_stride) + col, mask=mask, other=absent),)
                dys = dys + (tl.load(dy + (token * dy_row_stride + head * dy_head_stride) + col, mask=mask,
                                     other=0.0),)
                more = dresidual_out + (token * dresidual_out_row_stride + head * dresidual_out_head_stride)
                mores = mores + (tl.load(more + col, mask=mask & has_incoming, other=absent),)
                at = sums + unit.to(tl.int64) * 3
                powers = powers + (tl.load(at, mask=live, other=1.0),)
                rs = rs + (tl.load(at + 1, mask=live, other=1.0),)
                dots = dots + (tl.load(at + 2, mask=live, other=0.0),)
            for k in tl.static_range(U):
                unit, token, head = row_of(start + k * chunks, heads)
                xhat = (xs[k].to(tl.float32) * powers[k]) * rs[k]
                g = dys[k].to(tl.float32)
                total = tl.fma(g, xhat, total)  # of a row past the last: +0 * -0, which changes nothing
                by_dot = negated(tl.math.div_rn(dots[k], divisor))
                dh = dh_of(xhat, g, w, powers[k], rs[k], by_dot, mores[k])
                into = dx + (token * dx_row_stride + head * dx_head_stride)
                tl.store(into + col, dh.to(T), mask=there & (unit < units) & has_dx)
        tl.store(partials + group_cols.to(tl.int64) * chunk + col, total, mask=there)


@triton.jit(do_not_specialize=RUN_TIME)
def backward_long_dx(x, weight, dy, dresidual_out, dx, rstd_in,
                     x_row_stride, x_head_stride, dy_row_stride, dy_head_stride, dresidual_out_row_stride,
                     dresidual_out_head_stride, dx_row_stride, dx_head_stride,
                     units, heads, group_cols, lanes, divisor, eps, weight_offset, weight_type, W: tl.constexpr,
                     U: tl.constexpr):
    """dx alone, a row a program."""
    T: tl.constexpr = x.dtype.element_ty
    has_incoming = present(dresidual_out)
    absent = negative_zero().to(T)
    lane = tl.arange(0, W)
    for i in range(tl.program_id(0), units, tl.num_programs(0)):
        unit, token, head = row_of(i, heads)
        x_row = x + (token * x_row_stride + head * x_head_stride)
        dy_row = dy + (token * dy_row_stride + head * dy_head_stride)
        incoming = dresidual_out + (token * dresidual_out_row_stride + head * dresidual_out_head_stride)
        into = dx + (token * dx_row_stride + head * dx_head_stride)
        power, r, dot = long_row(x_row, dy_row, weight, weight_type, weight_offset, rstd_in, unit, group_cols, lanes,
                                 divisor, eps, W, U)
        by_dot = negated(tl.math.div_rn(dot, divisor))
        for start in range(0, group_cols, W * U):
            xs = ()
            dys = ()
            mores = ()
            for k in tl.static_range(U):
                col = start + k * W + lane
                xs = xs + (tl.load(x_row + col, mask=col < group_cols, other=absent),)
                dys = dys + (tl.load(dy_row + col, mask=col < group_cols, other=0.0),)
                mores = mores + (tl.load(incoming + col, mask=(col < group_cols) & has_incoming, other=absent),)
            for k in tl.static_range(U):
                col = start + k * W + lane
                w = weight_of(weight, weight_type, weight_offset, col, col < group_cols)
                xhat = (xs[k].to(tl.float32) * power) * r
                dh = dh_of(xhat, dys[k].to(tl.float32), w, power, r, by_dot, mores[k])
                tl.store(into + col, dh.to(T), mask=col < group_cols)
