"""How tensors of any rank become the [rows, heads, cols] of the library, without a copy where strides allow it.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

from collections.abc import Sequence


def collapse(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[int, int, list] | None:
    """Fold the outer dimensions of tensors of one shape into two: (rows, heads, [(row stride, head stride), ...]).

    `shape` and each of `strides` are those of the outer dimensions, all but the last. Two neighbouring dimensions are
    one where every tensor's stride of the left is the stride of the right times its size. None: more than two are left.
    """
    sizes: list[int] = []
    kept: list[list[int]] = [[] for _ in strides]
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        if sizes and all(steps[-1] == stride[axis] * size for steps, stride in zip(kept, strides)):
            sizes[-1] *= size
            for steps, stride in zip(kept, strides):
                steps[-1] = stride[axis]
        else:
            sizes.append(size)
            for steps, stride in zip(kept, strides):
                steps.append(stride[axis])
    if len(sizes) > 2:
        return None
    rows, heads = (sizes + [1, 1])[:2]
    return rows, heads, [tuple((steps + [0, 0])[:2]) for steps in kept]


def packed_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor of this shape."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))
