"""hub.py - pure layers for the slots "RMSNorm", "RMSNormZeroCentered" and "RMSNormGated" of the package kernels.

    import rmsnorm.hub
    from kernels import Mode, kernelize, register_kernel_mapping
    register_kernel_mapping(rmsnorm.hub.mapping())
    kernelize(model, mode=Mode.INFERENCE, device="cpu")

A layer of that kind has no constructor, no state and no methods: its forward is bound to a module of the model and
reads that module's weight and eps. One slot holds classes of different arithmetic (Llama's and OLMo 2's norms are both
an "RMSNorm"), so the layer asks which class it was bound to: the table of families.py proposes and the probe decides,
as in patch_models.py, once for each class. A class that is not in the table keeps its own forward.
Forward and backward, CPU and CUDA, with and without torch.compile.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import torch
from torch import nn

from .families import family_of
from .patch_models import Refusal, norm_of, plan_of

_norms: list = []  # the norm of each class that was seen, by index: a number is what a compiler can keep
_index: dict[tuple, int] = {}


@torch.compiler.assume_constant_result
def _index_of(cls: type, activation: str | None) -> int:
    """Where in _norms the norm of a class stands; asked while a graph is traced, too."""
    key = (cls, activation)
    if key not in _index:
        _index[key] = len(_norms)
        _norms.append(_norm_for(cls, activation))
    return _index[key]


def _norm_for(cls: type, activation: str | None):
    original = getattr(cls, "_rmsnorm_original", cls)
    family = family_of(original)
    gated = family is not None and family.gate
    if family is not None:
        specimen = object.__new__(original)
        nn.Module.__init__(specimen)
        specimen.weight = nn.Parameter(torch.ones(128, device="cpu"), requires_grad=False)
        setattr(specimen, family.eps, 1e-6)
        if activation is not None:
            specimen.activation = activation
        try:
            return norm_of(original, plan_of(specimen, family))
        except (Refusal, AttributeError):
            pass  # not the class that the table means, or one with more settings than these slots know
    if gated or activation is not None:
        return lambda module, x, gate: original.forward(module, x, gate)
    return lambda module, x, gate: original.forward(module, x)


class RMSNorm(nn.Module):
    """For the slots "RMSNorm" and "RMSNormZeroCentered"."""

    has_backward = True
    can_torch_compile = True

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return _norms[_index_of(type(self), None)](self, hidden_states, None)


class RMSNormGated(nn.Module):
    """For the slot "RMSNormGated"."""

    has_backward = True
    can_torch_compile = True

    def forward(self, hidden_states: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
        return _norms[_index_of(type(self), getattr(self, "activation", None))](self, hidden_states, gate)


class Layer:
    """What kernels calls a repository: something that can load a layer. This one is installed already."""

    def __init__(self, layer: type[nn.Module]):
        self.layer = layer
        self.layer_name = layer.__name__

    def load(self) -> type[nn.Module]:
        return self.layer

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layer) and self.layer is other.layer

    def __hash__(self) -> int:
        return hash((Layer, self.layer))

    def __str__(self) -> str:
        return f"rmsnorm.hub.{self.layer_name}"


SLOTS = {"RMSNorm": RMSNorm, "RMSNormZeroCentered": RMSNorm, "RMSNormGated": RMSNormGated}


def mapping(devices: tuple[str, ...] = ("cpu", "cuda")) -> dict:
    """What kernels.register_kernel_mapping takes."""
    from kernels import Mode

    modes = (Mode.TRAINING | Mode.TORCH_COMPILE, Mode.INFERENCE | Mode.TORCH_COMPILE, Mode.TRAINING, Mode.INFERENCE)
    return {slot: {device: dict.fromkeys(modes, Layer(layer)) for device in devices} for slot, layer in SLOTS.items()}


__all__ = ["SLOTS", "Layer", "RMSNorm", "RMSNormGated", "mapping"]
