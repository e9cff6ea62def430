"""general_forward.py - every forward and statistic there is, for any types, strides, alignment and length.

A program takes one line (token, head) after the other, and of it one tile of T columns after the other. Everything that
the fast kernels fix when they are compiled is a value here, and a row is read as often as it takes: once or twice for
the statistic, once more for a row's scale, once for the result.

Tiles are of the line and not of its groups, because the blocks that share a scale begin at the line's first column: a
block may reach over two groups, or over many. A group gets its statistic in the first tile that has a column of it, and
so before anything of the group is written: y may lie where x does.

SPDX-License-Identifier: Apache-2.0
"""

import triton.language as tl

import triton

from .anytype import load_act, load_any, load_s, load_u, store_any
from .canonical import (
    exp2i,
    isqrt,
    magnitude,
    negative_zero,
    ordinary,
    pairwise,
    present,
    rescue_exponent,
    rescued,
    round_to,
)
from .quantise import BLOCK, MX, ROW, TENSOR, amax_of, block_amax, mx_exponent, mx_scaled, quantise, scale_of, scaled


@triton.jit
def sum_squares(x, x_type, at_x, residual, residual_type, at_residual, round_sum, gate, gate_type, at_gate, gate_kind,
                gate_before, group_cols, lanes, scale, T: tl.constexpr):
    """The canonical sum of (u * scale)^2 and the bits of the greatest |u|, T lanes at a time."""
    PARTS: tl.constexpr = 65536 // T
    lane = tl.arange(0, T)
    parts = tl.broadcast_to(negative_zero(), [1, PARTS])
    most = tl.zeros([T], tl.int32)
    for first in range(0, lanes, T):
        sums = tl.zeros([T], tl.float32)
        for start in range(first, group_cols, lanes):
            col = start + lane
            mask = (col < group_cols) & (first + lane < lanes)
            u = load_u(x, x_type, at_x + col, residual, residual_type, at_residual + col, round_sum, gate, gate_type,
                       at_gate + col, gate_kind, gate_before, mask)
            most = tl.maximum(most, magnitude(u))
            sums = tl.where(mask, tl.fma(u * scale, u * scale, sums), sums)
        # Lanes past W are not there: -0 changes nothing, whatever it is added to.
        sums = tl.where(first + lane < lanes, sums, negative_zero())
        part = pairwise(tl.reshape(sums, [1, T]))
        parts = tl.where(tl.arange(0, PARTS)[None, :] == first // T, part[:, None], parts)
    return tl.sum(pairwise(parts), 0), tl.max(most, 0)


@triton.jit
def statistic(x, x_type, at_x, residual, residual_type, at_residual, round_sum, gate, gate_type, at_gate, gate_kind,
              gate_before, group_cols, lanes, divisor, eps, T: tl.constexpr):
    """(power, r, rstd, sum) of one group, not rounded [1.2 to 1.4]."""
    attempts = tl.full((), 0, tl.int32)
    going = tl.full((), 1, tl.int32)
    scale = tl.full((), 1.0, tl.float32)
    total = tl.full((), 0.0, tl.float32)
    greatest = tl.full((), 0, tl.int32)
    e = tl.full((), 0, tl.int32)
    while going != 0:
        total, greatest = sum_squares(x, x_type, at_x, residual, residual_type, at_residual, round_sum, gate,
                                      gate_type, at_gate, gate_kind, gate_before, group_cols, lanes, scale, T)
        attempts += 1
        done = (attempts == 2) | ordinary(tl.math.div_rn(total, divisor) + eps)
        going = tl.where(done, 0, 1)
        e = tl.where(done, e, rescue_exponent(greatest, eps))
        scale = tl.where(done, scale, exp2i(-e))
    power, r, rstd = rescued(greatest, total, e, divisor, eps)
    plain = isqrt(tl.math.div_rn(total, divisor) + eps)
    once = attempts == 1
    return tl.where(once, 1.0, power), tl.where(once, plain, r), tl.where(once, plain, rstd)


@triton.jit
def given(sumsq, divisor, eps):
    """rstd from given sums: no rescue [1.3]."""
    v = tl.math.div_rn(sumsq, divisor) + eps
    return tl.where(v == 0.0, 0.0, isqrt(v))


@triton.jit
def write_codes(q, at_q, v, mask, scale, scale_out, at_scale, scale_block_stride, start, cols, scale_max, quant,
                quant_type, scale_op, e8m0_rounding, block_cols, T: tl.constexpr):
    """A tile as codes, and with BLOCK and MX the scales of its blocks: a tile is a whole number of them [3]."""
    if quant < BLOCK:
        code = quantise(scaled(v, scale, scale_op), quant_type)
    else:
        most = block_amax(tl.where(mask, amax_of(v), 0.0), block_cols, T)
        at32 = start + tl.arange(0, T // 32) * 32
        is_block = (at32 < cols) & (at32 % block_cols == 0)  # blocks of 64 and 128: the first of 2, of 4
        at_block = at_scale + at32 // block_cols * scale_block_stride
        if quant == MX:
            e = mx_exponent(most, quant_type, e8m0_rounding)
            tl.store(scale_out + at_block, (e + 127).to(tl.int8), mask=is_block)
            small = mx_scaled(v, tl.reshape(tl.broadcast_to(e[:, None], [T // 32, 32]), [T]))
        else:
            own = scale_of(most, quant_type, scale_max)
            tl.store(scale_out.to(tl.pointer_type(tl.float32), bitcast=True) + at_block, own, mask=is_block)
            small = scaled(v, tl.reshape(tl.broadcast_to(own[:, None], [T // 32, 32]), [T]), scale_op)
        code = quantise(small, quant_type)
    tl.store(q + at_q, code.to(tl.int8), mask=mask)


@triton.jit
def general_forward(
        x, residual, gate, weight, y, residual_out, q, rstd_out, sumsq_in, sumsq_out, scale_in, scale_out, live_rows,
        x_row_stride, x_head_stride, residual_row_stride, residual_head_stride, gate_row_stride, gate_head_stride,
        y_row_stride, y_head_stride, residual_out_row_stride, residual_out_head_stride, q_row_stride, q_head_stride,
        weight_head_stride, weight_group_stride, scale_row_stride, scale_block_stride,
        rows, heads, groups, cols, group_cols, lanes, live_most, live_factor, divisor, eps, weight_offset, scale_max,
        x_type, residual_type, gate_type, weight_type, y_type, residual_out_type,
        round_sum, round_rstd, round_xhat, round_normed, gate_kind, gate_before,
        quant, quant_type, scale_op, e8m0_rounding, block_cols, T: tl.constexpr):
    if present(live_rows):
        rows = tl.minimum(tl.maximum(tl.load(live_rows), 0), live_most) * live_factor
    for line in range(tl.program_id(0).to(tl.int64), rows * heads, tl.num_programs(0)):
        token = line // heads
        head = line % heads
        x_line = token * x_row_stride + head * x_head_stride
        residual_line = token * residual_row_stride + head * residual_head_stride
        gate_line = token * gate_row_stride + head * gate_head_stride
        y_line = token * y_row_stride + head * y_head_stride
        residual_out_line = token * residual_out_row_stride + head * residual_out_head_stride
        q_line = token * q_row_stride + head * q_head_stride

        if present(sumsq_out):
            for group in range(0, groups):
                first = group * group_cols.to(tl.int64)
                total, _ = sum_squares(x, x_type, x_line + first, residual, residual_type, residual_line + first,
                                       round_sum, gate, gate_type, gate_line + first, gate_kind, gate_before,
                                       group_cols, lanes, 1.0, T)
                tl.store(sumsq_out + line * groups + group, total)

        # 0: only the greatest |v|, for a row's scale. 1: the results. Of statistics alone there is neither.
        scale = tl.full((), 1.0, tl.float32)
        if quant == TENSOR:
            scale = tl.load(scale_in)
        amax = tl.full((), 0.0, tl.float32)
        for phase in range(tl.where(quant == ROW, 0, 1), tl.where(present(sumsq_out), 0, 2)):
            if (phase == 1) & (quant == ROW):
                scale = scale_of(amax, quant_type, scale_max)
                tl.store(scale_out.to(tl.pointer_type(tl.float32), bitcast=True) + line, scale)
            known = tl.full((), -1, tl.int32)  # the group that power and r are of
            power = tl.full((), 1.0, tl.float32)
            r = tl.full((), 0.0, tl.float32)
            for start in range(0, cols, T):
                col = start + tl.arange(0, T)
                mask = col < cols
                own = tl.zeros([T], tl.int32)  # the group of each column
                if groups != 1:
                    own = col // group_cols
                powers = tl.zeros([T], tl.float32)
                rs = tl.zeros([T], tl.float32)
                for group in range(start // group_cols, (tl.minimum(start + T, cols) - 1) // group_cols + 1):
                    if group != known:
                        first = group * group_cols.to(tl.int64)
                        unit = line * groups + group
                        if present(sumsq_in):
                            power = tl.full((), 1.0, tl.float32)
                            r = given(tl.load(sumsq_in + unit), divisor, eps)
                            rstd = r
                        else:
                            power, r, rstd = statistic(
                                x, x_type, x_line + first, residual, residual_type, residual_line + first, round_sum,
                                gate, gate_type, gate_line + first, gate_kind, gate_before, group_cols, lanes, divisor,
                                eps, T)
                        r = round_to(r, round_rstd)
                        if present(rstd_out):
                            tl.store(rstd_out + unit, round_to(rstd, round_rstd))
                        known = group
                    powers = tl.where(own == group, power, powers)
                    rs = tl.where(own == group, r, rs)

                s = load_s(x, x_type, x_line + col, residual, residual_type, residual_line + col, mask)
                a = load_act(gate, gate_type, gate_line + col, gate_kind, mask)
                u = round_to(s, round_sum)
                if gate_before != 0:
                    u = u * a
                v = round_to((u * powers) * rs, round_xhat)
                if weight_type != 0:
                    at_weight = head * weight_head_stride + own * weight_group_stride + (col - own * group_cols)
                    v = v * (weight_offset + load_any(weight, weight_type, at_weight, mask))
                v = round_to(v, round_normed)
                if (gate_type != 0) & (gate_before == 0):
                    v = v * a
                if phase == 0:
                    amax = tl.maximum(amax, tl.max(tl.where(mask, amax_of(v), 0.0), 0))
                else:
                    store_any(residual_out, residual_out_type, residual_out_line + col, s, mask)
                    store_any(y, y_type, y_line + col, v, mask)
                    if quant != 0:
                        tl.static_assert(T % 128 == 0)
                        write_codes(q, q_line + col, v, mask, scale, scale_out, line * scale_row_stride,
                                    scale_block_stride, start, cols, scale_max, quant, quant_type, scale_op,
                                    e8m0_rounding, block_cols, T)
