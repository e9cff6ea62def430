"""forward.py - RMSNorm forward, plain or with a residual added first, one type throughout: the readable baseline.

    s = x + residual                        (when there is one; residual_out = s, rounded once)
    y = s * rstd(s) * (weight_offset + weight)        rstd = 1 / sqrt(sum(s^2) / divisor + eps)

What to look at, because kernels like these get it wrong:
- Squares are taken in float32. In f16 anything above 255 has an infinite square and anything below 2^-12 none at all.
- The mask's `other` is 0, because a column that is not there must add nothing to the sum of squares, and it does not:
  fma(0, 0, lane) changes no bit. Where a tensor is absent altogether it is the neutral element of what happens to it:
  -0 of a sum (x + -0 is x, also for -0), 1 of a product.
- There is no mean: RMSNorm subtracts none. The sum is divided by the number of columns, never by the size of the tile.
- The weight pointer has no row term: one weight serves all rows. (It has a head and a group term: those are 0 for it.)
- Rounding happens where a value is stored, and where the numerics of a model family name it: round_sum, round_xhat,
  round_rstd. Nothing is rounded in passing.
- Row offsets are 64-bit. rows * cols passes 2^31 in ordinary training.

`unit` counts (token, head, group); a unit has one statistic. W = lanes(n) and J = ceil(n / W): element i of a row
belongs to lane i mod W, and so a tile of W neighbours holds one element of every lane. With 4 to 8 tiles of a row in
registers nothing is read twice and each thread has that many wide loads under way. Where a row is shorter, its lanes
are cut into S tiles: fewer threads share a row then, and its statistic, which they all compute alike, is computed by
fewer.

SPDX-License-Identifier: Apache-2.0
"""

import triton.language as tl

import triton

from .canonical import (
    BF16,
    F32,
    exp2i,
    folded,
    isqrt,
    magnitude,
    negative_zero,
    ordinary,
    pairwise,
    present,
    rescue_exponent,
    rescued,
    widen_again,
)

# Counts and switches: a compilation for each value of these would be one for each number of rows. (Strides and lengths
# are left to Triton, which compiles once for those that are multiples of 16.)
RUN_TIME = ["units", "heads", "groups", "live_most", "live_factor", "weight_type", "round_sum", "round_xhat",
            "round_rstd"]

KEEP, DROP = tl.constexpr(1), tl.constexpr(2)  # hints for the cache: it is read again, it is not


@triton.jit
def place(unit, heads, groups):
    """(token, head, group) of a unit. Two divisions a row are worth a branch where rows are short."""
    token = unit.to(tl.int64)
    head = token * 0
    group = token * 0
    if (heads != 1) | (groups != 1):
        line = unit // groups
        token = (line // heads).to(tl.int64)
        head = (line % heads).to(tl.int64)
        group = (unit % groups).to(tl.int64)
    return token, head, group


@triton.jit
def live_units(units, heads, groups, live_rows, live_most, live_factor):
    """How many units there are: all, or as many as a number in the device's memory says."""
    if present(live_rows):
        rows = tl.minimum(tl.maximum(tl.load(live_rows), 0), live_most) * live_factor
        units = (rows * heads * groups).to(tl.int32)
    return units


@triton.jit
def fetch_weight(weight, weight_type, at, mask):
    """The weight as it is stored, where it has the kernel's type; otherwise 1, which nothing is read for."""
    T: tl.constexpr = weight.dtype.element_ty
    if T == tl.float32:
        has = weight_type == F32
    else:
        has = weight_type > F32
    return tl.load(weight + at, mask=mask & has, other=1.0)


@triton.jit
def widen_weight(raw, weight, weight_type, weight_offset, at, mask):
    """w. A weight in f32 beside narrow tensors is read only here. Without one w is 1, and xhat * 1 is xhat.

    No branch: it would keep the loads on its two sides apart.
    """
    w = raw.to(tl.float32)
    if raw.dtype != tl.float32:
        wide = weight.to(tl.pointer_type(tl.float32), bitcast=True) + at
        w = tl.where(weight_type == F32, tl.load(wide, mask=mask & (weight_type == F32), other=1.0), w)
    return weight_offset + w


@triton.jit
def rounded(v, on, T: tl.constexpr):
    """v rounded to T and widened again where `on`, a switch of the call, says so."""
    if T == tl.float32:
        return v
    else:
        return tl.where(on, v.to(T).to(tl.float32), v)


@triton.jit
def load_sum(x, residual, at, mask, has_residual, rounds_sum, HAS_RESIDUAL: tl.constexpr, HINT: tl.constexpr = 0):
    """u [1.1]: x as it is stored, to be widened where it is used; with a residual the sum, in float32."""
    policy: tl.constexpr = "evict_last" if HINT == KEEP else "evict_first" if HINT == DROP else ""
    u = tl.load(x + at, mask=mask, other=0.0, eviction_policy=policy)
    if HAS_RESIDUAL:
        absent = negative_zero().to(x.dtype.element_ty)
        more = tl.load(residual + at, mask=mask & has_residual, other=absent, eviction_policy=policy)
        s = u.to(tl.float32) + more.to(tl.float32)
        u = rounded(s, rounds_sum, x.dtype.element_ty)
    return u


@triton.jit
def is_simple(weight, weight_type, weight_offset):
    """A weight of the kernel's type, or none, and no offset: what is worth code of its own."""
    plain = weight_offset.to(tl.int32, bitcast=True) == -0x80000000  # -0
    if weight.dtype.element_ty != tl.float32:
        plain = plain & (weight_type != F32)
    return plain


@triton.jit
def normed(u, raw_weight, power, r, round_xhat, weight, weight_type, weight_offset, at_weight, mask,
           SIMPLE: tl.constexpr, ROUND: tl.constexpr, T: tl.constexpr):
    """v [1.5]. Memory leaves time for some 20 instructions an element: where nothing asks for them (SIMPLE, for rows
    that are not rescued, too), the power, the offset and the switches are left out."""
    if SIMPLE:
        xhat = widen_again(u) * r
        w = raw_weight.to(tl.float32)
        if ROUND:
            # The offset is -0 here and changes nothing, but without it the product of two narrow numbers, rounded to a
            # narrow one, would be made in that type: another result where it is subnormal.
            return xhat.to(T).to(tl.float32) * (weight_offset + w)
        return xhat * w
    else:
        xhat = rounded((widen_again(u) * power) * r, round_xhat > F32, T)
        return xhat * widen_weight(raw_weight, weight, weight_type, weight_offset, at_weight, mask)


@triton.jit
def store_row(y, residual_out, keeps_sum, us, ws, power, r, round_xhat, weight, weight_type, weight_offset, at_weight,
              group_cols, live, SIMPLE: tl.constexpr, ROUND: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
              V: tl.constexpr, TILES: tl.constexpr):
    T: tl.constexpr = y.dtype.element_ty
    for t in tl.static_range(TILES):
        col = t * V + tl.arange(0, V)[None, :]
        mask = (col < group_cols) & live
        v = normed(us[t], ws[t], power, r, round_xhat, weight, weight_type, weight_offset, at_weight + col, mask,
                   SIMPLE, ROUND, T)
        if HAS_RESIDUAL:
            tl.store(residual_out + col, us[t].to(T), mask=mask & keeps_sum)
        tl.store(y + col, v.to(T), mask=mask)


@triton.jit
def finish_rows(us, ws, unit, units, y, residual_out, rstd_out, keeps_sum, divisor, eps, round_xhat, round_rstd, weight,
                weight_type, weight_offset, at_weight, group_cols, HAS_RESIDUAL: tl.constexpr, PLAIN: tl.constexpr,
                R: tl.constexpr, V: tl.constexpr, J: tl.constexpr, S: tl.constexpr):
    """Everything but the loads: the statistic of R rows that are in registers, and what becomes of them. PLAIN: the
    weight is known to be what is_simple asks for, and registers are plenty."""
    T: tl.constexpr = y.dtype.element_ty
    live = (unit < units)[:, None]
    sums = ()
    for s in tl.static_range(S):
        lanes = tl.zeros([R, V], tl.float32)
        for j in tl.static_range(J):
            wide = us[j * S + s].to(tl.float32)
            lanes = tl.fma(wide, wide, lanes)
        sums = sums + (pairwise(lanes, PLAIN),)
    v = tl.math.div_rn(folded(sums, S), divisor) + eps
    power = tl.full([R], 1.0, tl.float32)
    r = isqrt(v)
    rstd = r
    bad = (ordinary(v) == 0) & (unit < units)
    any_bad = tl.max(bad.to(tl.int32), 0)
    if any_bad != 0:  # rare: squares overflowed or vanished, or something is not finite
        most = tl.zeros([R, V], tl.int32)
        for t in tl.static_range(J * S):
            most = tl.maximum(most, magnitude(widen_again(us[t])))
        greatest = tl.max(most, 1)
        e = rescue_exponent(greatest, eps)
        scale = exp2i(-e)[:, None]
        again = ()
        for s in tl.static_range(S):
            lanes = tl.zeros([R, V], tl.float32)
            for j in tl.static_range(J):
                scaled = widen_again(us[j * S + s]) * scale
                lanes = tl.fma(scaled, scaled, lanes)
            again = again + (pairwise(lanes),)
        power2, r2, rstd2 = rescued(greatest, folded(again, S), e, divisor, eps)
        power = tl.where(bad, power2, power)
        r = tl.where(bad, r2, r)
        rstd = tl.where(bad, rstd2, rstd)
    r = rounded(r, round_rstd > F32, T)[:, None]
    power = power[:, None]
    tl.store(rstd_out + unit, rounded(rstd, round_rstd > F32, T), mask=(unit < units) & present(rstd_out))

    usual = any_bad == 0
    if PLAIN == 0:
        usual = usual & is_simple(weight, weight_type, weight_offset)
    if usual:
        if (round_xhat > F32) & (T != tl.float32):
            store_row(y, residual_out, keeps_sum, us, ws, power, r, round_xhat, weight, weight_type, weight_offset,
                      at_weight, group_cols, live, True, True, HAS_RESIDUAL, V, J * S)
        else:
            store_row(y, residual_out, keeps_sum, us, ws, power, r, round_xhat, weight, weight_type, weight_offset,
                      at_weight, group_cols, live, True, False, HAS_RESIDUAL, V, J * S)
    else:
        store_row(y, residual_out, keeps_sum, us, ws, power, r, round_xhat, weight, weight_type, weight_offset,
                  at_weight, group_cols, live, False, False, HAS_RESIDUAL, V, J * S)


@triton.jit(do_not_specialize=RUN_TIME)
def forward_row(x, residual, weight, y, residual_out, rstd_out, live_rows,
                x_row_stride, x_head_stride, residual_row_stride, residual_head_stride, y_row_stride, y_head_stride,
                residual_out_row_stride, residual_out_head_stride, weight_head_stride, weight_group_stride,
                units, heads, groups, live_most, live_factor, group_cols, divisor, eps, weight_offset, weight_type,
                round_sum, round_xhat, round_rstd, HAS_RESIDUAL: tl.constexpr, R: tl.constexpr, W: tl.constexpr,
                J: tl.constexpr, S: tl.constexpr):
    """R rows a program, each of at most J * W columns, which stay in registers as J * S tiles of V."""
    V: tl.constexpr = W // S
    has_residual = present(residual)
    keeps_sum = present(residual_out)
    units = live_units(units, heads, groups, live_rows, live_most, live_factor)
    unit = tl.program_id(0) * R + tl.arange(0, R)
    token, head, group = place(unit, heads, groups)
    live = (unit < units)[:, None]
    first = group * group_cols
    x += (token * x_row_stride + head * x_head_stride + first)[:, None]
    y += (token * y_row_stride + head * y_head_stride + first)[:, None]
    if HAS_RESIDUAL:
        residual += (token * residual_row_stride + head * residual_head_stride + first)[:, None]
        residual_out += (token * residual_out_row_stride + head * residual_out_head_stride + first)[:, None]
    at_weight = (head * weight_head_stride + group * weight_group_stride)[:, None]
    lane = tl.arange(0, V)[None, :]

    # Everything that is read is asked for before anything is computed: the weight, too, is there when it is needed.
    us = ()
    ws = ()
    for t in tl.static_range(J * S):
        col = t * V + lane
        mask = (col < group_cols) & live
        ws = ws + (fetch_weight(weight, weight_type, at_weight + col, mask),)
        us = us + (load_sum(x, residual, col, mask, has_residual, round_sum > F32, HAS_RESIDUAL),)
    finish_rows(us, ws, unit, units, y, residual_out, rstd_out, keeps_sum, divisor, eps, round_xhat, round_rstd, weight,
                weight_type, weight_offset, at_weight, group_cols, HAS_RESIDUAL, False, R, V, J, S)


@triton.jit(do_not_specialize=RUN_TIME)
def forward_few(x, residual, weight, y, residual_out, rstd_out,
                x_row_stride, residual_row_stride, y_row_stride, residual_out_row_stride,
                group_cols, divisor, eps, weight_offset, round_sum, round_xhat, HAS_RESIDUAL: tl.constexpr,
                W: tl.constexpr, J: tl.constexpr):
    """forward_row for a launch that lasts as long as one row: nothing is asked that the plan knows. A row a program,
    one head, one group, a weight of the kernel's type without offset, all rows live, rstd not rounded; with a residual
    its sum is kept. (weight_offset is -0: see `normed`, where a number that the compiler knew would not do.)"""
    unit = tl.program_id(0) + tl.arange(0, 1)
    row = unit.to(tl.int64)[:, None]
    x += row * x_row_stride
    y += row * y_row_stride
    if HAS_RESIDUAL:
        residual += row * residual_row_stride
        residual_out += row * residual_out_row_stride
    us = ()
    ws = ()
    for t in tl.static_range(J):
        col = t * W + tl.arange(0, W)[None, :]
        us = us + (load_sum(x, residual, col, col < group_cols, True, round_sum > F32, HAS_RESIDUAL),)
        ws = ws + (tl.load(weight + col, mask=col < group_cols, other=1.0),)
    # A code that says that the weight is of the kernel's type: every narrow one does, beside narrow tensors.
    own: tl.constexpr = F32 if weight.dtype.element_ty == tl.float32 else BF16
    finish_rows(us, ws, unit, unit + 1, y, residual_out, rstd_out, True, divisor, eps, round_xhat, F32, weight, own,
                weight_offset, 0, group_cols, HAS_RESIDUAL, True, 1, W, J, 1)


@triton.jit
def long_sum(x, residual, group_cols, lanes, scale, has_residual, rounds_sum, SCALED: tl.constexpr,
             HAS_RESIDUAL: tl.constexpr, W: tl.constexpr, U: tl.constexpr, HINT: tl.constexpr = 0):
    """The canonical sum of squares of a row too long for registers; SCALED: of (u * scale)^2.

    W lanes at a time are finished, U elements of each under way, and folded to one number; those are folded in the end.
    """
    PARTS: tl.constexpr = 65536 // W
    lane = tl.arange(0, W)[None, :]
    parts = tl.broadcast_to(negative_zero(), [1, PARTS])  # what is not there changes no bit, not even that of a -0
    for first in range(0, lanes, W):
        sums = tl.zeros([1, W], tl.float32)
        for start in range(first, group_cols, lanes * U):
            us = ()
            for k in tl.static_range(U):
                col = start + k * lanes + lane
                us = us + (load_sum(x, residual, col, col < group_cols, has_residual, rounds_sum, HAS_RESIDUAL,
                                    HINT),)
            for k in tl.static_range(U):
                wide = us[k].to(tl.float32)
                if SCALED:
                    wide = wide * scale
                sums = tl.fma(wide, wide, sums)
        parts = tl.where(tl.arange(0, PARTS)[None, :] == first // W, pairwise(sums)[:, None], parts)
    return tl.sum(pairwise(parts), 0)


@triton.jit
def long_greatest(x, residual, group_cols, has_residual, rounds_sum, HAS_RESIDUAL: tl.constexpr, W: tl.constexpr):
    """The bits of the greatest |u|."""
    most = tl.zeros([W], tl.int32)
    for start in range(0, group_cols, W):
        col = start + tl.arange(0, W)
        u = load_sum(x, residual, col, col < group_cols, has_residual, rounds_sum, HAS_RESIDUAL)
        most = tl.maximum(most, magnitude(u.to(tl.float32)))
    return tl.max(most, 0)


@triton.jit
def store_long(y, residual_out, keeps_sum, x, residual, has_residual, rounds_sum, power, r, round_xhat, weight,
               weight_type, weight_offset, at_weight, group_cols, SIMPLE: tl.constexpr, ROUND: tl.constexpr,
               HAS_RESIDUAL: tl.constexpr, W: tl.constexpr, U: tl.constexpr):
    T: tl.constexpr = y.dtype.element_ty
    lane = tl.arange(0, W)
    for start in range(0, group_cols, W * U):
        us = ()
        ws = ()
        for k in tl.static_range(U):
            col = start + k * W + lane
            ws = ws + (fetch_weight(weight, weight_type, at_weight + col, col < group_cols),)
            us = us + (load_sum(x, residual, col, col < group_cols, has_residual, rounds_sum, HAS_RESIDUAL, DROP),)
        for k in tl.static_range(U):
            col = start + k * W + lane
            mask = col < group_cols
            v = normed(us[k], ws[k], power, r, round_xhat, weight, weight_type, weight_offset, at_weight + col, mask,
                       SIMPLE, ROUND, T)
            if HAS_RESIDUAL:
                tl.store(residual_out + col, us[k].to(T), mask=mask & keeps_sum, eviction_policy="evict_first")
            tl.store(y + col, v.to(T), mask=mask, eviction_policy="evict_first")


@triton.jit(do_not_specialize=RUN_TIME)
def forward_long(x, residual, weight, y, residual_out, rstd_out, live_rows,
                 x_row_stride, x_head_stride, residual_row_stride, residual_head_stride, y_row_stride, y_head_stride,
                 residual_out_row_stride, residual_out_head_stride, weight_head_stride, weight_group_stride,
                 units, heads, groups, live_most, live_factor, group_cols, lanes, divisor, eps, weight_offset,
                 weight_type, round_sum, round_xhat, round_rstd, HAS_RESIDUAL: tl.constexpr, W: tl.constexpr,
                 U: tl.constexpr):
    """One row a program, read twice: once for the sum, once (out of the cache) for the result. The cache is told to
    keep the row until then, and not what is written."""
    T: tl.constexpr = x.dtype.element_ty
    has_residual = present(residual)
    keeps_sum = present(residual_out)
    rounds_sum = round_sum > F32
    unit = tl.program_id(0)
    if unit >= live_units(units, heads, groups, live_rows, live_most, live_factor):
        return
    token, head, group = place(unit, heads, groups)
    first = group * group_cols
    x += token * x_row_stride + head * x_head_stride + first
    y += token * y_row_stride + head * y_head_stride + first
    residual += token * residual_row_stride + head * residual_head_stride + first
    residual_out += token * residual_out_row_stride + head * residual_out_head_stride + first
    at_weight = head * weight_head_stride + group * weight_group_stride

    total = long_sum(x, residual, group_cols, lanes, 1.0, has_residual, rounds_sum, False, HAS_RESIDUAL, W, U,
                     KEEP)
    v = tl.math.div_rn(total, divisor) + eps
    power = tl.full((), 1.0, tl.float32)
    r = isqrt(v)
    rstd = r
    bad = ordinary(v) == 0
    if bad:  # rare: squares overflowed or vanished, or something is not finite
        greatest = long_greatest(x, residual, group_cols, has_residual, rounds_sum, HAS_RESIDUAL, W)
        e = rescue_exponent(greatest, eps)
        again = long_sum(x, residual, group_cols, lanes, exp2i(-e), has_residual, rounds_sum, True, HAS_RESIDUAL, W, 1)
        power, r, rstd = rescued(greatest, again, e, divisor, eps)
    r = rounded(r, round_rstd > F32, T)
    if present(rstd_out):
        tl.store(rstd_out + unit, rounded(rstd, round_rstd > F32, T))
    if is_simple(weight, weight_type, weight_offset) & (bad == 0):
        if (round_xhat > F32) & (T != tl.float32):
            store_long(y, residual_out, keeps_sum, x, residual, has_residual, rounds_sum, power, r, round_xhat, weight,
                       weight_type, weight_offset, at_weight, group_cols, True, True, HAS_RESIDUAL, W, U)
        else:
            store_long(y, residual_out, keeps_sum, x, residual, has_residual, rounds_sum, power, r, round_xhat, weight,
                       weight_type, weight_offset, at_weight, group_cols, True, False, HAS_RESIDUAL, W, U)
    else:
        store_long(y, residual_out, keeps_sum, x, residual, has_residual, rounds_sum, power, r, round_xhat, weight,
                   weight_type, weight_offset, at_weight, group_cols, False, False, HAS_RESIDUAL, W, 1)
