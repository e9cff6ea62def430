"""RMSNorm for PyTorch: functions, modules, registered operators (rmsnorm.torch.serving: in place and out= forms).

SPDX-License-Identifier: Apache-2.0
"""

import torch as _torch

if tuple(int(part) for part in _torch.__version__.split(".")[:2]) < (2, 4):
    raise ImportError(f"rmsnorm.torch needs torch 2.4 or newer, this is {_torch.__version__}")

from . import ops as _ops  # noqa: F401  registers torch.ops.rmsnorm
from . import serving
from .direct import preload
from .functional import fused_add_rms_norm, gated_rms_norm, rms_norm, rms_norm_quant, rms_norm_with_stats
from .modules import GatedRMSNorm, RMSNorm

__all__ = [
    "GatedRMSNorm",
    "RMSNorm",
    "fused_add_rms_norm",
    "gated_rms_norm",
    "preload",
    "rms_norm",
    "rms_norm_quant",
    "rms_norm_with_stats",
    "serving",
]
