"""backward.py - the gradients of RMSNorm: dx and the weight gradient in one pass over dy and x [4].

    xhat = x * rstd;  t = dy * w;  D = sum over the row of t * xhat
    dx = rstd * (t - xhat * D / divisor) + dresidual_out          (no mean of dy: that is LayerNorm's)
    dweight = sum over rows of dy * xhat

dweight is a sum over rows, and its bits must not depend on how many programs share the work. So the rows are dealt out
by a rule of their own (`Chunks`), a program takes one chunk, keeps the chunk's sum of every column in registers, and
writes it once; `dweight_sum` adds the chunks as a plain tree. No atomics: they add in a different order each time. Of
short rows a program takes Q chunks side by side, and cuts their lanes into S tiles (see forward.py).

x here is what was normalised: with a fused residual the saved sum. rstd may be saved too; where it is not, or belongs
to a rescued row, it is computed again, to the same bits.

SPDX-License-Identifier: Apache-2.0
"""

from dataclasses import dataclass

import triton.language as tl

import triton

from .anytype import store_any
from .canonical import (
    RSTD_MAX,
    RSTD_MIN,
    exp2i,
    folded,
    isqrt,
    levels_of,
    magnitude,
    negated,
    negative_zero,
    ordinary,
    pairwise,
    present,
    rescue_exponent,
    rescued,
    widen_again,
)
from .forward import fetch_weight, place, widen_weight

RUN_TIME = ["units", "heads", "weight_type", "chunks", "unit_rows"]


def lanes_of(n):
    """W(n) [1.2]."""
    w = 64
    while w < 65536 and w <= n // 8:
        w *= 2
    return w


def pow2_below(v):
    return 1 << (max(v, 1).bit_length() - 1)


@dataclass
class Chunks:
    """How `rows` contributing rows of length n are dealt out [4.1]: C chunks of P row lanes, in units of B rows."""

    P: int
    C: int
    B: int

    @classmethod
    def of(cls, rows, n):
        p = 1 << (n - 1).bit_length()
        P = max(1, 256 // lanes_of(n))
        if p <= 32768:
            most = 8192 if p <= 1024 else 4096 if p == 2048 else 2048 if 3072 < n <= 4096 else 2**21 // p
            C = pow2_below(min(most, max(2**21 // (p * P), rows // (16 * P)), rows // P))
        else:
            C = max(1, min(rows, max(7, 7 * 2**19 // p)))
        return cls(P, C, pow2_below(min(4096 // p, rows // C)))


@triton.jit
def chunk_rows(chunk, rows, chunks, unit_rows):
    """How many of the rows this chunk takes."""
    whole = rows // unit_rows
    rest = rows % unit_rows
    last = whole % chunks
    mine = (whole // chunks + tl.where(chunk < last, 1, 0)) * unit_rows
    return mine + tl.where(chunk == last, rest, 0)


@triton.jit
def statistic(x, mask, group_cols, missing, divisor, eps, V: tl.constexpr, S: tl.constexpr):
    """(power, r) of the rows at x, as in forward_row. `missing`: the rows that want it.

    Seldom wanted, and in the middle of everything that lies in registers: so one tile at a time, read again.
    """
    R: tl.constexpr = mask.shape[0]
    most = tl.zeros([R, V], tl.int32)
    sums = ()
    for s in tl.static_range(S):
        lanes = tl.zeros([R, V], tl.float32)
        for start in range(s * V, group_cols, S * V):
            col = start + tl.arange(0, V)[None, :]
            wide = tl.load(x + col, mask=mask & (col < group_cols), other=0.0).to(tl.float32)
            lanes = tl.fma(wide, wide, lanes)
            most = tl.maximum(most, magnitude(wide))
        sums = sums + (pairwise(lanes),)
    v = tl.math.div_rn(folded(sums, S), divisor) + eps
    r = isqrt(v)
    power = tl.full(r.shape, 1.0, tl.float32)
    bad = (ordinary(v) == 0) & missing
    if tl.max(bad.to(tl.int32), 0) != 0:
        greatest = tl.max(most, 1)
        e = rescue_exponent(greatest, eps)
        scale = exp2i(-e)[:, None]
        again = ()
        for s in tl.static_range(S):
            lanes = tl.zeros([R, V], tl.float32)
            for start in range(s * V, group_cols, S * V):
                col = start + tl.arange(0, V)[None, :]
                wide = tl.load(x + col, mask=mask & (col < group_cols), other=0.0).to(tl.float32)
                lanes = tl.fma(wide * scale, wide * scale, lanes)
            again = again + (pairwise(lanes),)
        power2, r2, _ = rescued(greatest, folded(again, S), e, divisor, eps)
        power = tl.where(bad, power2, power)
        r = tl.where(bad, r2, r)
    return power, r


@triton.jit
def xhat_of(x, power, r, SIMPLE: tl.constexpr):
    """SIMPLE: no row here is rescued, the power is 1."""
    if SIMPLE:
        return x * r
    else:
        return (x * power) * r


@triton.jit
def row_of(xs, dys, ws, sums, incoming, has_incoming, into, power, r, divisor, group_cols, live, has_dx,
           SIMPLE: tl.constexpr, R: tl.constexpr, V: tl.constexpr, J: tl.constexpr, S: tl.constexpr):
    """dx of R rows, stored, and their products added to the sums of dweight, which it returns.

    Tile t of a row is its step j = t // S and part s = t % S; the sums are in the order of (s, j), as they are made.
    """
    T: tl.constexpr = into.dtype.element_ty
    dots = ()
    next_sums = ()
    for s in tl.static_range(S):
        lanes = tl.zeros([R, V], tl.float32)
        for j in tl.static_range(J):
            xhat = xhat_of(xs[j * S + s].to(tl.float32), power, r, SIMPLE)
            g = dys[j * S + s].to(tl.float32)
            lanes = tl.fma(g * ws[j * S + s], xhat, lanes)
            next_sums = next_sums + (tl.fma(g, xhat, sums[s * J + j]),)
        dots = dots + (pairwise(lanes),)
    by_dot = negated(tl.math.div_rn(folded(dots, S), divisor))[:, None]
    mores = ()
    for t in tl.static_range(J * S):
        col = t * V + tl.arange(0, V)[None, :]
        mask = (col < group_cols) & live & has_incoming
        mores = mores + (tl.load(incoming + col, mask=mask, other=negative_zero().to(T)),)
    for t in tl.static_range(J * S):
        col = t * V + tl.arange(0, V)[None, :]
        k = tl.fma(xhat_of(widen_again(xs[t]), power, r, SIMPLE), by_dot, widen_again(dys[t]) * ws[t])
        du = r * k
        if SIMPLE == 0:
            du = du * power
        tl.store(into + col, (du + mores[t].to(tl.float32)).to(T), mask=(col < group_cols) & live & has_dx)
    return next_sums


@triton.jit(do_not_specialize=RUN_TIME)
def backward_rows(x, weight, dy, dresidual_out, dx, rstd_in, partials,
                  x_row_stride, x_head_stride, dy_row_stride, dy_head_stride, dresidual_out_row_stride,
                  dresidual_out_head_stride, dx_row_stride, dx_head_stride,
                  units, heads, group_cols, chunks, unit_rows, divisor, eps, weight_offset, weight_type,
                  P: tl.constexpr, Q: tl.constexpr, W: tl.constexpr, J: tl.constexpr, S: tl.constexpr,
                  STAGES: tl.constexpr):
    """Q chunks a program, P rows of each at a time: row lane i takes the rows i, i + P, ... of its chunk."""
    T: tl.constexpr = x.dtype.element_ty
    R: tl.constexpr = Q * P
    V: tl.constexpr = W // S
    TILES: tl.constexpr = J * S
    has_dx = present(dx)
    has_incoming = present(dresidual_out)
    has_rstd = present(rstd_in)
    absent = negative_zero().to(T)
    lane = tl.arange(0, V)[None, :]
    ws = ()
    for t in tl.static_range(TILES):
        col = t * V + lane
        w = fetch_weight(weight, weight_type, col, col < group_cols)
        w = widen_weight(w, weight, weight_type, weight_offset, col, col < group_cols)
        # 1 past the last column: t is +0 there, xhat -0, and adding their product changes nothing.
        ws = ws + (tl.where(col < group_cols, w, 1.0),)

    for first in range(tl.program_id(0) * Q, chunks, tl.num_programs(0) * Q):
        chunk = first + tl.arange(0, R) // P
        members = tl.where(chunk < chunks, chunk_rows(chunk, units, chunks, unit_rows), 0)
        sums = ()
        for t in tl.static_range(TILES):
            sums = sums + (tl.zeros([R, V], tl.float32),)

        for i in tl.range(0, tl.max(members, 0), P, num_stages=STAGES):
            member = i + tl.arange(0, R) % P
            unit = (member // unit_rows * chunks + chunk) * unit_rows + member % unit_rows
            live = member < members
            token, head, _ = place(unit, heads, 1)
            x_row = x + (token * x_row_stride + head * x_head_stride)[:, None]
            dy_row = dy + (token * dy_row_stride + head * dy_head_stride)[:, None]
            incoming = dresidual_out + (token * dresidual_out_row_stride + head * dresidual_out_head_stride)[:, None]
            into = dx + (token * dx_row_stride + head * dx_head_stride)[:, None]
            xs = ()
            dys = ()
            for t in tl.static_range(TILES):
                col = t * V + lane
                mask = (col < group_cols) & live[:, None]
                xs = xs + (tl.load(x_row + col, mask=mask, other=absent),)
                dys = dys + (tl.load(dy_row + col, mask=mask, other=0.0),)
            r = tl.load(rstd_in + unit, mask=live & has_rstd, other=0.0)
            power = tl.full([R], 1.0, tl.float32)
            missing = ((r < RSTD_MIN) | (r > RSTD_MAX) | (r != r)) & live
            if tl.max(missing.to(tl.int32), 0) != 0:
                power2, r2 = statistic(x_row, live[:, None], group_cols, missing, divisor, eps, V, S)
                power = tl.where(missing, power2, power)
                r = tl.where(missing, r2, r)
            r = tl.where(live, r, 1.0)
            if tl.max((power != 1.0).to(tl.int32), 0) == 0:
                sums = row_of(xs, dys, ws, sums, incoming, has_incoming, into, power[:, None], r[:, None], divisor,
                              group_cols, live[:, None], has_dx, True, R, V, J, S)
            else:
                sums = row_of(xs, dys, ws, sums, incoming, has_incoming, into, power[:, None], r[:, None], divisor,
                              group_cols, live[:, None], has_dx, False, R, V, J, S)

        if present(partials):
            into_chunk = (first + tl.arange(0, Q))[:, None]
            for t in tl.static_range(TILES):
                col = t * V + lane
                whole = sums[t % S * J + t // S]
                if P == 4:  # the row lanes of a chunk are neighbours in the tree
                    whole = tl.sum(tl.reshape(whole, [2 * Q, 2, V]), 1)
                if P >= 2:
                    whole = tl.sum(tl.reshape(whole, [Q, 2, V]), 1)
                tl.store(partials + into_chunk * group_cols.to(tl.int64) + col, whole,
                         mask=(into_chunk < chunks) & (col < group_cols))


@triton.jit(do_not_specialize=["chunks", "dweight_cols", "dweight_vectors"])
def dweight_fold(partials, chunks, dweight_cols, dweight_vectors, K: tl.constexpr, W: tl.constexpr):
    """The lowest branches of the tree of dweight_sum, K chunks each, W columns a program; the sum of a branch takes the
    place of its first chunk. Columns alone are too few programs where there are many chunks."""
    tiles = tl.cdiv(dweight_cols, W)
    branches = tl.cdiv(chunks, K)
    for task in range(tl.program_id(0).to(tl.int64), dweight_vectors * branches * tiles, tl.num_programs(0)):
        vector = task // tiles // branches
        chunk = (task // tiles % branches).to(tl.int32) * K + tl.arange(0, K)[:, None]
        col = (task % tiles).to(tl.int32) * W + tl.arange(0, W)[None, :]
        at = partials + ((vector * chunks + chunk) * dweight_cols + col)
        mask = (chunk < chunks) & (col < dweight_cols)
        total = pairwise_rows(tl.load(at, mask=mask, other=negative_zero()))
        tl.store(at, tl.broadcast_to(total, [K, W]), mask=mask & (chunk % K == 0))


@triton.jit(do_not_specialize=["chunks", "chunk_step", "dweight_cols", "dweight_vectors", "dweight_type"])
def dweight_sum(partials, dweight, chunks, chunk_step, dweight_cols, dweight_vectors, dweight_type, K: tl.constexpr,
                W: tl.constexpr):
    """dweight of W columns: the chunks as a plain pairwise tree, one without a partner carried up.

    K chunks at a time, a branch of the tree each. -0 stands for those that are not there: x + -0 is x. Where
    dweight_fold has been, what is left are the chunks at multiples of chunk_step.
    """
    BRANCHES: tl.constexpr = 8192 // K
    tiles = tl.cdiv(dweight_cols, W)
    for task in range(tl.program_id(0).to(tl.int64), dweight_vectors * tiles, tl.num_programs(0)):
        vector = task // tiles
        col = (task % tiles).to(tl.int32) * W + tl.arange(0, W)[None, :]
        branches = tl.broadcast_to(negative_zero(), [BRANCHES, W])
        for first in range(0, tl.cdiv(chunks, chunk_step), K):
            chunk = (first + tl.arange(0, K)[:, None]) * chunk_step
            mask = (chunk < chunks) & (col < dweight_cols)
            at = (vector * chunks + chunk) * dweight_cols + col
            sums = tl.load(partials + at, mask=mask, other=negative_zero())
            branches = tl.where(tl.arange(0, BRANCHES)[:, None] == first // K, pairwise_rows(sums), branches)
        store_any(dweight, dweight_type, vector * dweight_cols + col, pairwise_rows(branches), col < dweight_cols)


@triton.jit
def pairwise_rows(rows):
    """[K, W] -> [1, W]: as `pairwise`, over the first axis."""
    K: tl.constexpr = rows.shape[0]
    W: tl.constexpr = rows.shape[1]
    LEVELS: tl.constexpr = levels_of(K)
    for level in tl.static_range(LEVELS):
        rows = tl.sum(tl.reshape(rows, [K >> (level + 1), 2, W]), 1)
    return tl.reshape(rows, [1, W])
