"""The calls that serving engines make, under the names and with the arguments they have there: outputs of the caller,
in place, no gradient. vLLM first, then SGLang and FlashInfer. Each takes a `preset` more, for the roundings of the
model (the default is float32 throughout and one rounding, on the rounded sum).

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

from torch import Tensor

from ..numerics import FP8_E4M3, INT8, Quant
from . import direct, functional
from .functional import Preset

_KIND_OF = {direct.QUANTISED[FP8_E4M3]: "fp8", direct.QUANTISED[INT8]: "int8"}


def _quant(out: Tensor, granularity: str, **more) -> Quant:
    if out.dtype not in _KIND_OF:
        raise TypeError(f"out: {' or '.join(map(str, _KIND_OF))} is needed, not {out.dtype}")
    return Quant(f"{_KIND_OF[out.dtype]}-{granularity}", **more)


# ----------------------------------------------------------------------------------------------------------------------
# vLLM.
def rms_norm(out: Tensor, input: Tensor, weight: Tensor | None, epsilon: float, *, preset: Preset = "torch") -> None:
    functional.norm_into(out, input, weight, epsilon, preset)


def fused_add_rms_norm(
    input: Tensor, residual: Tensor, weight: Tensor | None, epsilon: float, *, preset: Preset = "torch"
) -> None:
    functional.add_norm_in_place(input, residual, weight, epsilon, preset)


def rms_norm_static_fp8_quant(
    out: Tensor, input: Tensor, weight: Tensor, scale: Tensor, epsilon: float, *, preset: Preset = "torch"
) -> None:
    functional.quantise_into(out, None, None, input, weight, scale, epsilon, preset, Quant("fp8-tensor"))


def fused_add_rms_norm_static_fp8_quant(
    out: Tensor,
    input: Tensor,
    residual: Tensor,
    weight: Tensor,
    scale: Tensor,
    epsilon: float,
    *,
    preset: Preset = "torch",
) -> None:
    functional.quantise_into(out, None, residual, input, weight, scale, epsilon, preset, Quant("fp8-tensor"))


def rms_norm_dynamic_per_token_quant(
    out: Tensor,
    input: Tensor,
    weight: Tensor,
    scales: Tensor,
    epsilon: float,
    scale_ub: float | None = None,
    residual: Tensor | None = None,
    *,
    preset: Preset = "torch",
) -> None:
    """scale_ub is a number here: reading it from a tensor would wait for the device."""
    if isinstance(scale_ub, Tensor):
        raise TypeError("scale_ub: a number is needed; reading a tensor would wait for the device")
    quant = _quant(out, "row", scale_max=float(scale_ub or 0.0))
    functional.quantise_into(out, scales, residual, input, weight, None, epsilon, preset, quant)


def rms_norm_per_block_quant(
    out: Tensor,
    input: Tensor,
    weight: Tensor,
    scales: Tensor,
    epsilon: float,
    scale_ub: float | None,
    residual: Tensor | None,
    group_size: int,
    is_scale_transposed: bool = False,
    *,
    preset: Preset = "torch",
) -> None:
    """is_scale_transposed: scales are [blocks, tokens] in memory."""
    if isinstance(scale_ub, Tensor):
        raise TypeError("scale_ub: a number is needed; reading a tensor would wait for the device")
    quant = _quant(out, f"block{group_size}", scale_max=float(scale_ub or 0.0), by_column=is_scale_transposed)
    if is_scale_transposed and not scales.is_contiguous():
        scales = scales.movedim(-1, 0)
    functional.quantise_into(out, scales, residual, input, weight, None, epsilon, preset, quant)


# ----------------------------------------------------------------------------------------------------------------------
# SGLang, FlashInfer.
def rmsnorm(
    input: Tensor,
    weight: Tensor | None,
    eps: float = 1e-6,
    out: Tensor | None = None,
    enable_pdl: bool | None = None,
    *,
    preset: Preset = "torch",
) -> Tensor:
    """enable_pdl is accepted and has no effect: it changes time, not results."""
    if out is None:
        return functional.rms_norm(input, weight, eps, preset=preset)
    functional.norm_into(out, input, weight, eps, preset)
    return out


def fused_add_rmsnorm(
    input: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    eps: float = 1e-6,
    enable_pdl: bool | None = None,
    *,
    preset: Preset = "torch",
) -> None:
    functional.add_norm_in_place(input, residual, weight, eps, preset)


def gemma_rmsnorm(
    input: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    out: Tensor | None = None,
    enable_pdl: bool | None = None,
) -> Tensor:
    return rmsnorm(input, weight, eps, out, preset="gemma")


def gemma_fused_add_rmsnorm(
    input: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6, enable_pdl: bool | None = None
) -> None:
    functional.add_norm_in_place(input, residual, weight, eps, "gemma")


def rmsnorm_quant(
    out: Tensor,
    input: Tensor,
    weight: Tensor,
    scale: Tensor,
    eps: float = 1e-6,
    enable_pdl: bool | None = None,
    *,
    preset: Preset = "torch",
) -> None:
    functional.quantise_into(out, None, None, input, weight, scale, eps, preset, _quant(out, "tensor"))
