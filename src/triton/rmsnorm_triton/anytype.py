"""anytype.py - elements whose type is a value of the call: what the general kernels read and write.

A type is an rmsnorm_dtype in an integer; a branch on it is the same for a whole program and costs little beside memory.
Pointers come as pointers to bytes and offsets count elements. No alignment is assumed.

SPDX-License-Identifier: Apache-2.0
"""

import triton.language as tl

import triton

from .canonical import BF16, F16, F32, round_to
from .gate import act


@triton.jit
def load_any(pointer, dtype, at, mask):
    """Elements, widened; 0 where the mask is off or the tensor is absent (dtype 0)."""
    if dtype == BF16:
        v = tl.load(pointer.to(tl.pointer_type(tl.bfloat16), bitcast=True) + at, mask=mask, other=0.0).to(tl.float32)
    elif dtype == F16:
        v = tl.load(pointer.to(tl.pointer_type(tl.float16), bitcast=True) + at, mask=mask, other=0.0).to(tl.float32)
    else:
        v = tl.load(pointer.to(tl.pointer_type(tl.float32), bitcast=True) + at, mask=mask & (dtype == F32), other=0.0)
    return v


@triton.jit
def store_any(pointer, dtype, at, v, mask):
    """v, rounded once. Nothing where the tensor is absent (dtype 0)."""
    if dtype == BF16:
        tl.store(pointer.to(tl.pointer_type(tl.bfloat16), bitcast=True) + at, v.to(tl.bfloat16), mask=mask)
    elif dtype == F16:
        tl.store(pointer.to(tl.pointer_type(tl.float16), bitcast=True) + at, v.to(tl.float16), mask=mask)
    elif dtype == F32:
        tl.store(pointer.to(tl.pointer_type(tl.float32), bitcast=True) + at, v, mask=mask)


@triton.jit
def load_s(x, x_type, at_x, residual, residual_type, at_residual, mask):
    """s: x, or x + residual, not rounded yet [1.1]."""
    s = load_any(x, x_type, at_x, mask)
    if residual_type != 0:
        s = s + load_any(residual, residual_type, at_residual, mask)
    return s


@triton.jit
def load_act(gate, gate_type, at_gate, gate_kind, mask):
    """act(gate); 1 without a gate: h * 1 is h."""
    a = tl.full(mask.shape, 1.0, tl.float32)
    if gate_type != 0:
        a = act(load_any(gate, gate_type, at_gate, mask), gate_kind)
    return a


@triton.jit
def load_u(x, x_type, at_x, residual, residual_type, at_residual, round_sum, gate, gate_type, at_gate, gate_kind,
           gate_before, mask):
    """u: what is normalised [1.1]."""
    u = round_to(load_s(x, x_type, at_x, residual, residual_type, at_residual, mask), round_sum)
    if gate_before != 0:
        u = u * load_act(gate, gate_type, at_gate, gate_kind, mask)
    return u
