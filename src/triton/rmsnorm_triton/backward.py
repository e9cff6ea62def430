"""backward.py - the gradients of RMSNorm: dx and the weight gradient in one pass over dy and x [4].

    xhat = x * rstd;  t = dy * w;  D = sum over the row of t * xhat
    dx = rstd * (t - xhat * D / divisor) + dresidual_out          (no mean of dy: that is LayerNorm's)
    dweight = sum over rows of dy * xhat

dweight is a sum over rows, and its bits must not depend on how many programs share the work. So the rows are dealt out
by a rule of their own (`Chunks`), a program takes one chunk, keeps the chunk's sum of every column in registers, and
writes it once; `dweight_sum` adds the chunks as a plain tree. No atomics: they add in a different order each time. Of
short rows a program takes Q chunks side by side, and cuts their lanes into S tiles (see forward.py). While a row is
worked on, the next ones are on their way to local memory (`num_stages`).

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
def words(pointer):
    """Narrow numbers are read as words of two: see widened."""
    if pointer.dtype.element_ty == tl.float32:
        return pointer
    else:
        return pointer.to(tl.pointer_type(tl.int32), bitcast=True)


@triton.jit
def absent_word(T: tl.constexpr):
    """-0, or a word of two."""
    if T == tl.float32:
        return negative_zero()
    else:
        return tl.full((), -0x7FFF8000, tl.int32)


@triton.jit
def columns_of(t, group_cols, T: tl.constexpr, V: tl.constexpr):
    """The words of tile t, and which of them there are. Rows are whole words."""
    HALF: tl.constexpr = 1 if T == tl.float32 else 2
    word = t * (V // HALF) + tl.arange(0, V // HALF)[None, :]
    return word, word < group_cols // HALF


@triton.jit
def widened(raw, nothing, T: tl.constexpr):
    """[R, V // 2] words as [R, V] numbers in float32. `nothing` is 0, but the compiler does not know: without it, it
    would keep what it has widened for the dot until dx is made, in twice the registers.

    Two numbers are taken out of a word by two instructions; a compiler that is given single numbers takes three, and
    a register for each number on the way."""
    if T == tl.float32:
        return raw
    else:
        raw = raw | nothing
        if T == tl.bfloat16:
            low = (raw << 16).to(tl.float32, bitcast=True)
            high = (raw & -65536).to(tl.float32, bitcast=True)
        else:
            low = raw.to(tl.int16).to(T, bitcast=True).to(tl.float32)
            high = (raw >> 16).to(tl.int16).to(T, bitcast=True).to(tl.float32)
        return tl.reshape(tl.join(low, high), [raw.shape[0], 2 * raw.shape[1]])


@triton.jit
def row_of(xs, dys, mores, ws, sums, into, power, r, divisor, group_cols, live, has_dx, nothing,
           SIMPLE: tl.constexpr, R: tl.constexpr, V: tl.constexpr, J: tl.constexpr, S: tl.constexpr):
    """dx of R rows, stored, and their products added to the sums of dweight, which it returns.

    Tile t of a row is its step j = t // S and part s = t % S; the sums are in the order of (s, j), as they are made.
    `mores`: what has to be added to dx; nothing, or tiles like xs.
    """
    T: tl.constexpr = into.dtype.element_ty
    dots = ()
    next_sums = ()
    for s in tl.static_range(S):
        lanes = tl.zeros([R, V], tl.float32)
        for j in tl.static_range(J):
            xhat = xhat_of(widened(xs[j * S + s], 0, T), power, r, SIMPLE)
            g = widened(dys[j * S + s], 0, T)
            lanes = tl.fma(g * ws[j * S + s], xhat, lanes)
            next_sums = next_sums + (tl.fma(g, xhat, sums[s * J + j]),)
        dots = dots + (pairwise(lanes, True),)
    by_dot = negated(tl.math.div_rn(folded(dots, S), divisor))[:, None]
    for t in tl.static_range(J * S):
        col = t * V + tl.arange(0, V)[None, :]
        k = tl.fma(xhat_of(widened(xs[t], nothing, T), power, r, SIMPLE), by_dot, widened(dys[t], nothing, T) * ws[t])
        du = r * k
        if SIMPLE == 0:
            du = du * power
        if len(mores) > 0:
            du = du + widened(mores[t], 0, T)
        tl.store(into + col, du.to(T), mask=(col < group_cols) & live & has_dx)
    return next_sums


@triton.jit
def unit_of(member, chunk, chunks, unit_rows, unit_shift):
    """The row of a chunk's member. unit_rows is a power of two, 2^unit_shift: no division in the loop over rows."""
    return (((member >> unit_shift) * chunks + chunk) << unit_shift) + (member & (unit_rows - 1))


@triton.jit
def all_ordinary(rstd_in, has_rstd, deal, P: tl.constexpr, K: tl.constexpr):
    """Whether rstd is saved for every row of these chunks, and none of them is rescued.

    Asked before the loop over rows, so that what is seldom wanted takes no register in it."""
    chunk, members, chunks, unit_rows, unit_shift = deal
    seen = has_rstd
    if has_rstd:
        R: tl.constexpr = chunk.shape[0]
        strange = tl.zeros([R, K], tl.int32)
        for start in range(0, tl.max(members, 0), P * K):
            # The row lanes of a chunk share its members.
            member = (start + (tl.arange(0, R) % P)[:, None]) + P * tl.arange(0, K)[None, :]
            unit = unit_of(member, chunk[:, None], chunks, unit_rows, unit_shift)
            r = tl.load(rstd_in + unit, mask=member < members[:, None], other=1.0)
            strange = tl.where((r >= RSTD_MIN) & (r <= RSTD_MAX), strange, 1)
        seen = tl.max(tl.max(strange, 1), 0) == 0
    return seen


@triton.jit
def weights_of(weight, weight_type, weight_offset, group_cols, R: tl.constexpr, V: tl.constexpr, TILES: tl.constexpr):
    """Of every tile, a row for each of its rows, so that they lie in the threads as the tile does. -1 past the last
    column: t is -0 there, xhat +0, and adding their product changes no dot."""
    ws = ()
    for t in tl.static_range(TILES):
        col = t * V + tl.arange(0, V)[None, :] + tl.zeros([R, 1], tl.int32)
        w = fetch_weight(weight, weight_type, col, col < group_cols)
        w = widen_weight(w, weight, weight_type, weight_offset, col, col < group_cols)
        ws = ws + (tl.where(col < group_cols, w, -1.0),)
    return ws


@triton.jit
def chunk_sums(problem, deal, has_dx, has_incoming, has_rstd, SIMPLE: tl.constexpr, INCOMING: tl.constexpr,
               P: tl.constexpr, R: tl.constexpr, V: tl.constexpr, J: tl.constexpr, S: tl.constexpr,
               STAGES: tl.constexpr):
    """dx of all rows of R / P chunks, and what the chunks add to dweight. SIMPLE: every row's rstd is saved and
    ordinary; otherwise registers are short, and the weight is read again for every row, out of the cache. INCOMING:
    there is something to add to dx, or, where not SIMPLE, there may be."""
    (x, weight, dy, dresidual_out, dx, rstd_in, x_row_stride, x_head_stride, dy_row_stride, dy_head_stride,
     dresidual_out_row_stride, dresidual_out_head_stride, dx_row_stride, dx_head_stride, heads, group_cols, divisor,
     eps, weight_offset, weight_type) = problem
    chunk, members, chunks, unit_rows, unit_shift = deal
    T: tl.constexpr = x.dtype.element_ty
    sums = ()
    for t in tl.static_range(J * S):
        sums = sums + (tl.zeros([R, V], tl.float32),)
    if SIMPLE:
        ws = weights_of(weight, weight_type, weight_offset, group_cols, R, V, J * S)
    for i in tl.range(0, tl.max(members, 0), P, num_stages=STAGES):
        member = i + tl.arange(0, R) % P
        unit = unit_of(member, chunk, chunks, unit_rows, unit_shift)
        live = member < members
        token, head, _ = place(unit, heads, 1)
        x_row = x + (token * x_row_stride + head * x_head_stride)[:, None]
        dy_row = dy + (token * dy_row_stride + head * dy_head_stride)[:, None]
        incoming = dresidual_out + (token * dresidual_out_row_stride + head * dresidual_out_head_stride)[:, None]
        into = dx + (token * dx_row_stride + head * dx_head_stride)[:, None]
        xs = ()
        dys = ()
        mores = ()
        for t in tl.static_range(J * S):
            word, there = columns_of(t, group_cols, T, V)
            mask = there & live[:, None]
            # 0 costs nothing where nothing is read; any other number is a choice for every element.
            xs = xs + (tl.load(words(x_row) + word, mask=mask, other=0),)
            dys = dys + (tl.load(words(dy_row) + word, mask=mask, other=0),)
            if INCOMING and SIMPLE:
                mores = mores + (tl.load(words(incoming) + word, mask=mask, other=0),)
            elif INCOMING:
                more = tl.load(words(incoming) + word, mask=mask & has_incoming, other=0)
                mores = mores + (tl.where(has_incoming, more, absent_word(T)),)
        power = tl.full([R], 1.0, tl.float32)
        if SIMPLE:
            r = tl.load(rstd_in + unit, mask=live, other=1.0)
        else:
            r = tl.load(rstd_in + unit, mask=live & has_rstd, other=0.0)
            missing = (((r >= RSTD_MIN) & (r <= RSTD_MAX)) == 0) & live
            if tl.max(missing.to(tl.int32), 0) != 0:
                power2, r2 = statistic(x_row, live[:, None], group_cols, missing, divisor, eps, V, S)
                power = tl.where(missing, power2, power)
                r = tl.where(missing, r2, r)
            ws = weights_of(weight, weight_type, weight_offset, group_cols, R, V, J * S)
        # A row that is not there has g = +0 and xhat = -0: adding their product changes no sum, not even one of -0.
        r = tl.where(live, r, -1.0)
        sums = row_of(xs, dys, mores, ws, sums, into, power[:, None], r[:, None], divisor, group_cols, live[:, None],
                      has_dx, (unit >> 31)[:, None], SIMPLE, R, V, J, S)
    return sums


@triton.jit(do_not_specialize=RUN_TIME)
def backward_rows(x, weight, dy, dresidual_out, dx, rstd_in, partials,
                  x_row_stride, x_head_stride, dy_row_stride, dy_head_stride, dresidual_out_row_stride,
                  dresidual_out_head_stride, dx_row_stride, dx_head_stride,
                  units, heads, group_cols, chunks, unit_rows, divisor, eps, weight_offset, weight_type,
                  P: tl.constexpr, Q: tl.constexpr, W: tl.constexpr, J: tl.constexpr, S: tl.constexpr,
                  STAGES: tl.constexpr):
    """Q chunks a program, P rows of each at a time: row lane i takes the rows i, i + P, ... of its chunk."""
    R: tl.constexpr = Q * P
    V: tl.constexpr = W // S
    TILES: tl.constexpr = J * S
    has_dx = present(dx)
    has_incoming = present(dresidual_out)
    has_rstd = present(rstd_in)
    # log2, from the exponent of the number.
    unit_shift = (tl.full((), 0.0, tl.float32) + unit_rows).to(tl.int32, bitcast=True) // 8388608 - 127
    lane = tl.arange(0, V)[None, :]
    problem = (x, weight, dy, dresidual_out, dx, rstd_in, x_row_stride, x_head_stride, dy_row_stride, dy_head_stride,
               dresidual_out_row_stride, dresidual_out_head_stride, dx_row_stride, dx_head_stride, heads, group_cols,
               divisor, eps, weight_offset, weight_type)
    for first in range(tl.program_id(0) * Q, chunks, tl.num_programs(0) * Q):
        chunk = first + tl.arange(0, R) // P
        members = tl.where(chunk < chunks, chunk_rows(chunk, units, chunks, unit_rows), 0)
        deal = (chunk, members, chunks, unit_rows, unit_shift)
        # Three loops, so that the usual one has nothing in it that is seldom wanted. Where three tensors are read, a
        # row less of each is under way: local memory is for as many words either way.
        if all_ordinary(rstd_in, has_rstd, deal, P, 128 // R):
            if has_incoming:
                sums = chunk_sums(problem, deal, has_dx, True, True, True, True, P, R, V, J, S,
                                  STAGES - 1 if STAGES > 2 else STAGES)
            else:
                sums = chunk_sums(problem, deal, has_dx, False, True, True, False, P, R, V, J, S, STAGES)
        else:
            sums = chunk_sums(problem, deal, has_dx, has_incoming, has_rstd, False, True, P, R, V, J, S, 1)

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
