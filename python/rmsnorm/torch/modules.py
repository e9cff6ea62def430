"""The modules: a drop-in for torch.nn.RMSNorm that knows the model families, and its gated form.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence

import torch
from torch import Tensor

from ..numerics import Numerics
from . import functional


def default_eps(dtype: torch.dtype) -> float:
    """What torch takes for eps None: the epsilon of the type it computes in, so that of float32 for half types too."""
    return torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps


class RMSNorm(torch.nn.Module):
    """torch.nn.RMSNorm, with the roundings of a model family by name.

    The same constructor, state and results; `preset`, `groups` and a residual are what it has more. Under autocast the
    types stay those of the tensors. A preset whose weight is stored around zero ("gemma") starts with zeros."""

    normalized_shape: tuple[int, ...]
    eps: float | None
    elementwise_affine: bool

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device=None,
        dtype: torch.dtype | None = None,
        *,
        preset: str | Numerics = "torch",
        groups: int = 1,
    ) -> None:
        super().__init__()
        if isinstance(normalized_shape, numbers.Integral):
            normalized_shape = (normalized_shape,)
        self.normalized_shape = tuple(normalized_shape)
        if not self.normalized_shape:
            raise ValueError("normalized_shape: is empty")
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.weight_offset = Numerics.of(preset).weight_offset  # an unknown preset is refused here
        self.preset = preset if isinstance(preset, str) else preset.text
        self.groups = groups
        if elementwise_affine:
            self.weight = torch.nn.Parameter(torch.empty(self.normalized_shape, device=device, dtype=dtype))
        else:
            self.register_parameter("weight", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.weight is not None:
            torch.nn.init.constant_(self.weight, 1.0 - self.weight_offset)

    def _flat(self, *tensors: Tensor | None):
        """The normalised dimensions as one; the rest stays."""
        shape = self.normalized_shape
        for tensor in tensors:
            if tensor is not None and tuple(tensor.shape[-len(shape) :]) != shape:
                raise ValueError(f"normalized_shape is {shape}, the input has {tuple(tensor.shape)}")
        if len(shape) == 1:
            return tensors
        return tuple(t if t is None else t.flatten(-len(shape)) for t in tensors)

    def _arguments(self, x: Tensor):
        weight = self.weight
        if weight is not None and weight.dim() > 1:
            weight = weight.flatten()
        return weight, default_eps(x.dtype) if self.eps is None else self.eps

    def forward(self, x: Tensor, residual: Tensor | None = None):
        if residual is None and x.shape[-1:] == self.normalized_shape:  # the everyday case, without detours
            eps = default_eps(x.dtype) if self.eps is None else self.eps
            return functional.rms_norm(x, self.weight, eps, preset=self.preset, groups=self.groups)
        shape = x.shape
        x, residual = self._flat(x, residual)
        weight, eps = self._arguments(x)
        if residual is None:
            return functional.rms_norm(x, weight, eps, preset=self.preset, groups=self.groups).view(shape)
        y, residual_out = functional.fused_add_rms_norm(
            x, residual, weight, eps, preset=self.preset, groups=self.groups
        )
        return y.view(shape), residual_out.view(shape)

    def extra_repr(self) -> str:
        text = f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        if self.preset != "torch":
            text += f", preset={self.preset!r}"
        return text + (f", groups={self.groups}" if self.groups != 1 else "")


class GatedRMSNorm(RMSNorm):
    """A norm with a gate: forward(x, gate)."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device=None,
        dtype: torch.dtype | None = None,
        *,
        preset: str | Numerics = "qwen3-next-gated",
        groups: int = 1,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype, preset=preset, groups=groups)

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        shape = x.shape
        x, gate = self._flat(x, gate)
        weight, eps = self._arguments(x)
        return functional.gated_rms_norm(x, gate, weight, eps, preset=self.preset, groups=self.groups).view(shape)
