"""RMSNorm in Triton: y = x * rsqrt(mean(x^2, -1) + eps) * weight, with the same bits everywhere.

    from rmsnorm_triton import rms_norm, rms_norm_residual, rms_norm_backward        # torch tensors on a GPU, JIT

Kernels to read, in this order: canonical.py, forward.py, backward.py, backward_long.py. What is compiled ahead of
time: variants.py.

SPDX-License-Identifier: Apache-2.0
"""


def __getattr__(name):
    """The functions for torch tensors, when they are asked for: the kernels themselves need no torch."""
    if name in ("rms_norm", "rms_norm_residual", "rms_norm_backward"):
        from . import tensors

        return getattr(tensors, name)
    raise AttributeError(name)
