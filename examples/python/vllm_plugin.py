"""vllm_plugin.py - the library as an implementation of vLLM's norms, chosen by name.

vLLM calls its norms through an intermediate representation (vllm.ir); a package outside of vLLM adds an implementation
and the user puts it first:

    # pyproject.toml of your package
    [project.entry-points."vllm.general_plugins"]
    rmsnorm = "vllm_plugin:register"

    vllm serve MODEL --ir-op-priority.rms_norm=rmsnorm --ir-op-priority.fused_add_rms_norm=rmsnorm

The numerics are those of vLLM's own definition of the two operations: x-hat is rounded to the type of x before the
weight, and it is the float32 sum that is normalised, while the sum that is returned is rounded.

SPDX-License-Identifier: Apache-2.0
"""

import torch
from rmsnorm import Numerics
from rmsnorm import torch as norms

PROVIDER = "rmsnorm"
PLAIN = Numerics.of("llama").text
FUSED = Numerics.of("llama").replace(round_sum="none").text
TYPES = (torch.float32, torch.float16, torch.bfloat16)


def _takes(x, weight, variance_size):
    """vLLM asks this for every call, and for every graph with tensors that have no memory: types and strides only."""
    known = x.dtype in TYPES and (weight is None or weight.dtype in TYPES)
    return known and variance_size is None and x.stride(-1) == 1


def takes_norm(x, weight, epsilon, variance_size=None):
    return _takes(x, weight, variance_size)


def takes_fused(x, x_residual, weight, epsilon, variance_size=None):
    return _takes(x, weight, variance_size) and x_residual.dtype in TYPES and x_residual.stride(-1) == 1


def rms_norm(x, weight, epsilon, variance_size=None):
    return norms.rms_norm(x, weight, epsilon, preset=PLAIN)


def fused_add_rms_norm(x, x_residual, weight, epsilon, variance_size=None):
    return norms.fused_add_rms_norm(x, x_residual, weight, epsilon, preset=FUSED, residual_dtype=x.dtype)


def register():
    """The entry point: vLLM calls it in each of its processes."""
    from vllm import ir

    ir.ops.rms_norm.register_impl(PROVIDER, supports_args=takes_norm, supported=True)(rms_norm)
    ir.ops.fused_add_rms_norm.register_impl(PROVIDER, supports_args=takes_fused, supported=True)(fused_add_rms_norm)
