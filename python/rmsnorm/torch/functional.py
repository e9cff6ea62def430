"""The functions. Plain eager tensors go straight to the library; everything else - torch.compile, export, subclasses,
dispatch modes - goes through the registered operators, with the same bits.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import numbers

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..numerics import Numerics, Quant
from . import direct
from .autograd import NO_WAY, Norm, another_transform, refuse_tangents

Preset = str | Numerics

_PLAIN = frozenset((Tensor, torch.nn.Parameter, type(None)))
_STRIDED = torch.strided
_compiling = torch.compiler.is_compiling
_modes = torch._C._len_torch_dispatch_stack
_tracing = torch._C._get_tracing_state
_functorch = torch._C._functorch.peek_interpreter_stack
_grad = torch.is_grad_enabled


def _plain(x, weight, residual=None, gate=None) -> bool:
    """Whether the memory of these tensors is what they are."""
    if _compiling():
        if _transforms_in_graph():
            raise NotImplementedError(NO_WAY)
        return False
    if not (type(x) in _PLAIN and type(weight) in _PLAIN and type(residual) in _PLAIN and type(gate) in _PLAIN):
        for name, tensor in (("x", x), ("weight", weight), ("residual", residual), ("gate", gate)):
            if tensor is not None and not isinstance(tensor, Tensor):
                raise TypeError(f"{name}: a torch.Tensor is needed, not {type(tensor).__name__}")
        return False
    if x is None:
        raise TypeError("x: a torch.Tensor is needed, not None")
    if _functorch() is not None or forward_ad._current_level >= 0:
        _transformed(x, weight, residual, gate)
        return False
    return _modes() == 0 and _tracing() is None and (x.is_cpu or x.is_cuda) and x.layout is _STRIDED and not x.is_nested


@torch.compiler.assume_constant_result
def _transforms_in_graph() -> bool:
    """A compiler can not see which tensors will have a tangent."""
    return another_transform() or forward_ad._current_level >= 0


def _transformed(*tensors: Tensor | None) -> None:
    """Under vmap, torch calls an operator once for each example; others know no way through one."""
    if another_transform():
        raise NotImplementedError(NO_WAY)
    if forward_ad._current_level >= 0:
        refuse_tangents(*tensors)


def _stats() -> bool:
    """Whether backward may want rstd. A trace stands for both, and is checked without gradients."""
    return _grad() or _tracing() is not None


def _text(preset: Preset) -> str:
    return preset if isinstance(preset, str) else preset.text


def _wants_grad(*tensors: Tensor | None) -> bool:
    if _grad():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


def _forward_only(what: str, *tensors: Tensor | None) -> None:
    if _wants_grad(*tensors):
        raise TypeError(
            f"{what} is forward only, but an argument requires a gradient: use torch.no_grad(), or detach it"
        )


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    preset: Preset = "torch",
    groups: int = 1,
    divisor: int = 0,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension.

    weight: [cols]; [cols / groups], shared by all groups; or [heads, cols] for an x of [..., heads, cols]. dtype: of
    the result; None is what the family of the preset returns. out: written and returned, without a gradient."""
    if type(eps) is not float:
        _refuse_eps(eps)
    if out is not None and not isinstance(out, Tensor):
        raise TypeError(f"out: a torch.Tensor is needed, not {type(out).__name__}")
    if _plain(x, weight, out):
        if out is not None:
            if dtype is not None and dtype != out.dtype:
                raise ValueError(f"dtype: {dtype} is asked for, and out has {out.dtype}")
            _forward_only("rms_norm with out=", x, weight, out)
            return direct.forward(x, weight, None, None, eps, preset, groups, divisor, out=out)[0]
        if _grad() and (x.requires_grad or (weight is not None and weight.requires_grad)):
            return Norm.apply(x, weight, None, None, eps, preset, groups, divisor, dtype, None)
        return direct.forward(x, weight, None, None, eps, preset, groups, divisor, dtype)[0]
    if out is None:
        return torch.ops.rmsnorm.forward(
            x, weight, None, None, eps, _text(preset), groups, divisor, dtype, None, _stats()
        )[0]
    if groups != 1 or divisor != 0:
        raise NotImplementedError("rms_norm: out= with groups or a divisor is for plain eager tensors")
    norm_into(out, x, weight, eps, preset)
    return out


def _refuse_eps(eps) -> None:
    """A tensor would have to be waited for on a GPU, and its gradient would be missing without a word."""
    if eps is None:
        raise TypeError("eps: is needed; it belongs to the checkpoint, and there is no good default")
    if not isinstance(eps, numbers.Real | torch.SymFloat):
        raise TypeError(f"eps: a number is needed, that of the checkpoint, not {type(eps).__name__}")


def fused_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    preset: Preset = "torch",
    groups: int = 1,
    divisor: int = 0,
    dtype: torch.dtype | None = None,
    residual_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """(norm(x + residual), x + residual). residual_dtype: the type of the returned sum; None: what x and residual
    promote to."""
    if type(eps) is not float:
        _refuse_eps(eps)
    if residual is None:
        raise TypeError("residual: a torch.Tensor is needed, not None")
    if _plain(x, weight, residual):
        if _wants_grad(x, weight, residual):
            return Norm.apply(x, weight, residual, None, eps, preset, groups, divisor, dtype, residual_dtype)
        return direct.forward(x, weight, residual, None, eps, preset, groups, divisor, dtype, residual_dtype)[:2]
    return torch.ops.rmsnorm.forward(
        x, weight, residual, None, eps, _text(preset), groups, divisor, dtype, residual_dtype, _stats()
    )[:2]


def gated_rms_norm(
    x: Tensor,
    gate: Tensor,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    preset: Preset = "qwen3-next-gated",
    groups: int = 1,
    divisor: int = 0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """A norm with a gate, silu or sigmoid, before or after it, as the preset says."""
    if type(eps) is not float:
        _refuse_eps(eps)
    if _plain(x, weight, None, gate):
        if _wants_grad(x, weight, gate):
            return Norm.apply(x, weight, None, gate, eps, preset, groups, divisor, dtype, None)
        return direct.forward(x, weight, None, gate, eps, preset, groups, divisor, dtype)[0]
    return torch.ops.rmsnorm.forward(x, weight, None, gate, eps, _text(preset), groups, divisor, dtype, None, _stats())[
        0
    ]


def rms_norm_with_stats(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    preset: Preset = "torch",
    groups: int = 1,
    divisor: int = 0,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """(y, rstd), forward only. rstd is float32 (float64 for such an x): one for each row, or group of a row."""
    if type(eps) is not float:
        _refuse_eps(eps)
    plain = _plain(x, weight)
    _forward_only("rms_norm_with_stats", x, weight)
    if plain:
        y, _, rstd = direct.forward(x, weight, None, None, eps, preset, groups, divisor, dtype, None, True)
    else:
        y, _, rstd = torch.ops.rmsnorm.forward(
            x, weight, None, None, eps, _text(preset), groups, divisor, dtype, None, True
        )
    return y, rstd


def rms_norm_quant(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    quant: str | Quant = "fp8-row",
    scale: Tensor | None = None,
    residual: Tensor | None = None,
    gate: Tensor | None = None,
    preset: Preset = "torch",
    groups: int = 1,
    divisor: int = 0,
    residual_dtype: torch.dtype | None = None,
):
    """(q, scale), or (q, scale, x + residual): norm and quantisation in one pass, forward only.

    quant: a kind such as fp8-row, int8-tensor, fp8-block128, mxfp8, or Quant. scale: one float32, for the kinds with
    -tensor. The scales are [..., 1] for rows, [..., blocks] for blocks, and the given one for a tensor."""
    if type(eps) is not float:
        _refuse_eps(eps)
    quant = Quant.of(quant)
    plain = _plain(x, weight, residual, gate) and _plain(x, scale)
    _forward_only("rms_norm_quant", x, weight, residual, gate)
    if plain:
        q, scales, residual_out = direct.quantise(
            x, weight, residual, gate, scale, eps, preset, quant, groups, divisor, residual_dtype
        )
    else:
        q, scales, residual_out = torch.ops.rmsnorm.quantise(
            x, weight, residual, gate, scale, eps, _text(preset), quant.text, groups, divisor, residual_dtype
        )
    scales = scale if scale is not None else direct.show_scales(scales, quant)
    return (q, scales) if residual is None else (q, scales, residual_out)


# ----------------------------------------------------------------------------------------------------------------------
# With outputs of the caller: what serving.py gives names to.
def norm_into(out: Tensor, x: Tensor, weight: Tensor | None, eps: float, preset: Preset) -> None:
    """out <- norm(x); out may be x."""
    if type(eps) is not float:
        _refuse_eps(eps)
    plain = _plain(x, weight, out)
    _forward_only("a norm into a given tensor", x, weight, out)
    if plain:
        direct.forward(x, weight, None, None, eps, preset, out=out)
    elif out is x:
        torch.ops.rmsnorm.norm_(x, weight, eps, _text(preset))
    else:
        torch.ops.rmsnorm.norm_out(out, x, weight, eps, _text(preset))


def add_norm_in_place(x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, preset: Preset) -> None:
    """residual <- x + residual, x <- norm of it."""
    if type(eps) is not float:
        _refuse_eps(eps)
    plain = _plain(x, weight, residual)
    _forward_only("a norm in place", x, weight, residual)
    if plain:
        direct.forward(x, weight, residual, None, eps, preset, out=x, residual_out=residual)
    else:
        torch.ops.rmsnorm.add_norm_(x, residual, weight, eps, _text(preset))


def quantise_into(
    q: Tensor,
    scales: Tensor | None,
    residual: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    scale: Tensor | None,
    eps: float,
    preset: Preset,
    quant: Quant,
) -> None:
    """q, scales <- the quantised norm of x, or of x + residual, which goes to residual."""
    if type(eps) is not float:
        _refuse_eps(eps)
    plain = _plain(x, weight, residual, q) and _plain(x, scales, scale)
    _forward_only("a quantised norm", x, weight, residual)
    if plain:
        direct.quantise(x, weight, residual, None, scale, eps, preset, quant, q=q, scales=scales, residual_out=residual)
    else:
        torch.ops.rmsnorm.quantise_out(q, scales, residual, x, weight, scale, eps, _text(preset), quant.text)
