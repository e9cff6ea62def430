"""general_backward.py - every gradient there is, for any types, strides, alignment and length [4].

Without dweight `general_backward_dx` does it all. With dweight, which sums over rows, the statistics and dots of all
rows are made first (`general_backward_sums`, three floats a unit), then the chunks (`general_backward_dweight`), then
dx, which may be the same tensor as x or dy; `dweight_sum` adds the chunks up.

SPDX-License-Identifier: Apache-2.0
"""

import triton.language as tl

import triton

from .anytype import load_act, load_any, load_s, store_any
from .backward import chunk_rows
from .canonical import F32, RSTD_MAX, RSTD_MIN, negated, negative_zero, pairwise, present, round_to
from .gate import dact
from .general_forward import given, statistic


@triton.jit
def load_gradient(x, x_type, at_x, residual, residual_type, at_residual, gate, gate_type, at_gate, dy, dy_type, at_dy,
                  round_sum, gate_kind, gate_before, power, r, mask):
    """(h, act, xhat, g, dy). A dweight has no w in it, so w is not in here."""
    h = round_to(load_s(x, x_type, at_x, residual, residual_type, at_residual, mask), round_sum)
    a = load_act(gate, gate_type, at_gate, gate_kind, mask)
    incoming = load_any(dy, dy_type, at_dy, mask)
    u = h
    g = incoming
    if gate_before != 0:
        u = h * a
    else:
        g = incoming * a
    return h, a, (u * power) * r, g, incoming


@triton.jit
def load_w(weight, weight_type, weight_offset, at, mask):
    """1 without a weight: t = g * 1 is g."""
    w = tl.full(mask.shape, 1.0, tl.float32)
    if weight_type != 0:
        w = weight_offset + load_any(weight, weight_type, at, mask)
    return w


@triton.jit
def row_sums(x, x_type, at_x, residual, residual_type, at_residual, gate, gate_type, at_gate, dy, dy_type, at_dy,
             weight, weight_type, at_weight, weight_offset, round_sum, gate_kind, gate_before, rstd_in, sumsq_in,
             dot_in, dot_out, round_rstd, wants_dot, unit, group_cols, lanes, divisor, eps, T: tl.constexpr):
    """(power, r, dot) of a unit; dot_out is written."""
    power = tl.full((), 1.0, tl.float32)
    r = tl.full((), 0.0, tl.float32)
    if present(rstd_in) & (round_rstd <= F32):
        r = tl.load(rstd_in + unit)
    # A saved rstd out of the range of ordinary rows belongs to a rescued one.
    if ((r >= RSTD_MIN) & (r <= RSTD_MAX)) == 0:
        if present(sumsq_in):
            r = given(tl.load(sumsq_in + unit), divisor, eps)
        else:
            power, r, _ = statistic(x, x_type, at_x, residual, residual_type, at_residual, round_sum, gate, gate_type,
                                    at_gate, gate_kind, gate_before, group_cols, lanes, divisor, eps, T)
    dot = tl.full((), 0.0, tl.float32)
    if present(dot_out) | ((wants_dot != 0) & (present(dot_in) == 0)):
        PARTS: tl.constexpr = 65536 // T
        lane = tl.arange(0, T)
        parts = tl.broadcast_to(negative_zero(), [1, PARTS])
        for first in range(0, lanes, T):
            sums = tl.zeros([T], tl.float32)
            for start in range(first, group_cols, lanes):
                col = start + lane
                mask = (col < group_cols) & (first + lane < lanes)
                _, _, xhat, g, _ = load_gradient(x, x_type, at_x + col, residual, residual_type, at_residual + col,
                                                 gate, gate_type, at_gate + col, dy, dy_type, at_dy + col, round_sum,
                                                 gate_kind, gate_before, power, r, mask)
                t = g * load_w(weight, weight_type, weight_offset, at_weight + col, mask)
                sums = tl.where(mask, tl.fma(t, xhat, sums), sums)
            sums = tl.where(first + lane < lanes, sums, negative_zero())
            part = pairwise(tl.reshape(sums, [1, T]))
            parts = tl.where(tl.arange(0, PARTS)[None, :] == first // T, part[:, None], parts)
        dot = tl.sum(pairwise(parts), 0)
        if present(dot_out):
            tl.store(dot_out + unit, dot)
    if present(dot_in):
        dot = tl.load(dot_in + unit)
    return power, r, dot


@triton.jit
def general_backward_sums(
        x, residual, gate, weight, dy, rstd_in, sumsq_in, dot_in, dot_out, sums,
        x_row_stride, x_head_stride, residual_row_stride, residual_head_stride, gate_row_stride, gate_head_stride,
        dy_row_stride, dy_head_stride, weight_head_stride, weight_group_stride,
        units, heads, groups, group_cols, lanes, divisor, eps, weight_offset,
        x_type, residual_type, gate_type, weight_type, dy_type, dx_type, dresidual_type, dgate_type,
        round_sum, round_rstd, gate_kind, gate_before, T: tl.constexpr):
    wants_dot = dx_type | dresidual_type | (dgate_type * gate_before)
    for unit in range(tl.program_id(0).to(tl.int64), units, tl.num_programs(0)):
        line = unit // groups
        group = unit % groups
        token = line // heads
        head = line % heads
        first = group * group_cols
        power, r, dot = row_sums(
            x, x_type, token * x_row_stride + head * x_head_stride + first,
            residual, residual_type, token * residual_row_stride + head * residual_head_stride + first,
            gate, gate_type, token * gate_row_stride + head * gate_head_stride + first,
            dy, dy_type, token * dy_row_stride + head * dy_head_stride + first,
            weight, weight_type, head * weight_head_stride + group * weight_group_stride, weight_offset,
            round_sum, gate_kind, gate_before, rstd_in, sumsq_in, dot_in, dot_out, round_rstd, wants_dot,
            unit, group_cols, lanes, divisor, eps, T)
        tl.store(sums + unit * 3, power)
        tl.store(sums + unit * 3 + 1, r)
        tl.store(sums + unit * 3 + 2, dot)


@triton.jit
def general_backward_dx(
        x, residual, gate, weight, dy, dresidual_out, rstd_in, sumsq_in, dot_in, dot_out, sums, dx, dresidual, dgate,
        x_row_stride, x_head_stride, residual_row_stride, residual_head_stride, gate_row_stride, gate_head_stride,
        dy_row_stride, dy_head_stride, dresidual_out_row_stride, dresidual_out_head_stride, dx_row_stride,
        dx_head_stride, dresidual_row_stride, dresidual_head_stride, dgate_row_stride, dgate_head_stride,
        weight_head_stride, weight_group_stride, units, heads, groups, group_cols, lanes, divisor, eps, weight_offset,
        x_type, residual_type, gate_type, weight_type, dy_type, dresidual_out_type, dx_type, dresidual_type,
        dgate_type, round_sum, round_rstd, gate_kind, gate_before, has_sums, T: tl.constexpr):
    wants_dot = dx_type | dresidual_type | (dgate_type * gate_before)
    for unit in range(tl.program_id(0).to(tl.int64), units, tl.num_programs(0)):
        line = unit // groups
        group = unit % groups
        token = line // heads
        head = line % heads
        first = group * group_cols
        at_x = token * x_row_stride + head * x_head_stride + first
        at_residual = token * residual_row_stride + head * residual_head_stride + first
        at_gate = token * gate_row_stride + head * gate_head_stride + first
        at_dy = token * dy_row_stride + head * dy_head_stride + first
        at_weight = head * weight_head_stride + group * weight_group_stride
        if has_sums != 0:
            power = tl.load(sums + unit * 3)
            r = tl.load(sums + unit * 3 + 1)
            dot = tl.load(sums + unit * 3 + 2)
        else:
            power, r, dot = row_sums(x, x_type, at_x, residual, residual_type, at_residual, gate, gate_type, at_gate,
                                     dy, dy_type, at_dy, weight, weight_type, at_weight, weight_offset, round_sum,
                                     gate_kind, gate_before, rstd_in, sumsq_in, dot_in, dot_out, round_rstd,
                                     wants_dot, unit, group_cols, lanes, divisor, eps, T)
        by_dot = negated(tl.math.div_rn(dot, divisor))
        at_incoming = token * dresidual_out_row_stride + head * dresidual_out_head_stride + first
        at_dx = token * dx_row_stride + head * dx_head_stride + first
        at_dresidual = token * dresidual_row_stride + head * dresidual_head_stride + first
        at_dgate = token * dgate_row_stride + head * dgate_head_stride + first
        for start in range(0, group_cols, T):
            col = start + tl.arange(0, T)
            mask = col < group_cols
            h, a, xhat, g, incoming = load_gradient(
                x, x_type, at_x + col, residual, residual_type, at_residual + col, gate, gate_type, at_gate + col,
                dy, dy_type, at_dy + col, round_sum, gate_kind, gate_before, power, r, mask)
            w = load_w(weight, weight_type, weight_offset, at_weight + col, mask)
            k = tl.fma(xhat, by_dot, g * w)
            du = (r * k) * power
            dh = du
            dz = incoming * (xhat * w)
            if gate_before != 0:
                dh = du * a
                dz = du * h
            if dresidual_out_type != 0:
                dh = dh + load_any(dresidual_out, dresidual_out_type, at_incoming + col, mask)
            if dgate_type != 0:
                z = load_any(gate, gate_type, at_gate + col, mask)
                store_any(dgate, dgate_type, at_dgate + col, dz * dact(z, gate_kind), mask)
            store_any(dx, dx_type, at_dx + col, dh, mask)
            store_any(dresidual, dresidual_type, at_dresidual + col, dh, mask)


@triton.jit
def general_backward_dweight(
        x, residual, gate, dy, sums, partials,
        x_row_stride, x_head_stride, residual_row_stride, residual_head_stride, gate_row_stride, gate_head_stride,
        dy_row_stride, dy_head_stride, heads, groups, cols, group_cols, dweight_rows, dweight_cols, dweight_vectors,
        chunks, unit_rows, x_type, residual_type, gate_type, dy_type, round_sum, gate_kind, gate_before,
        P: tl.constexpr, T: tl.constexpr):
    """One chunk's sums of T columns of one weight vector: its i-th row goes to row lane i mod P [4.1]."""
    tiles = tl.cdiv(dweight_cols, T)
    for task in range(tl.program_id(0).to(tl.int64), dweight_vectors * chunks * tiles, tl.num_programs(0)):
        vector = task // tiles // chunks
        chunk = task // tiles % chunks
        col = ((task % tiles).to(tl.int32) * T + tl.arange(0, T))[None, :]
        members = chunk_rows(chunk, dweight_rows, chunks, unit_rows)
        row_lanes = tl.zeros([P, T], tl.float32)
        for start in range(0, members, P):
            i = start + tl.arange(0, P).to(tl.int64)
            member = (i // unit_rows * chunks + chunk) * unit_rows + i % unit_rows
            # A vector of all groups: its rows are (line, group). One for each head: rows are tokens. Else: lines.
            shared = dweight_cols < cols
            line = tl.where(shared, member // groups, member * dweight_vectors + vector)
            group = tl.where(shared, (member % groups)[:, None], (col // group_cols).to(tl.int64))
            at = tl.where(shared, group * group_cols, 0) + col
            token = (line // heads)[:, None]
            head = (line % heads)[:, None]
            mask = (i < members)[:, None] & (col < dweight_cols)
            unit = line[:, None] * groups + group
            power = tl.load(sums + unit * 3, mask=mask, other=1.0)
            r = tl.load(sums + unit * 3 + 1, mask=mask, other=1.0)
            _, _, xhat, g, _ = load_gradient(
                x, x_type, token * x_row_stride + head * x_head_stride + at,
                residual, residual_type, token * residual_row_stride + head * residual_head_stride + at,
                gate, gate_type, token * gate_row_stride + head * gate_head_stride + at,
                dy, dy_type, token * dy_row_stride + head * dy_head_stride + at,
                round_sum, gate_kind, gate_before, power, r, mask)
            row_lanes = tl.where(mask, tl.fma(g, xhat, row_lanes), row_lanes)
        if P == 4:
            row_lanes = tl.sum(tl.reshape(row_lanes, [2, 2, T]), 1)
        if P >= 2:
            row_lanes = tl.sum(tl.reshape(row_lanes, [1, 2, T]), 1)
        tl.store(partials + (vector * chunks + chunk) * dweight_cols + col, row_lanes, mask=col < dweight_cols)
