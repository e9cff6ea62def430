"""Gradients of the eager route: one autograd.Function for every differentiable form.

What is saved is what the exact gradient needs and no more: the returned sum where the norm saw just that, otherwise
the two that were added; rstd; weight and gate. docs/numerics.md, section 4, has every operation.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import torch
from torch.autograd import forward_ad

from ..numerics import RULES
from . import direct

_EXACT = (torch.float32, torch.float64)


def sum_is_seen(rules, residual_out: torch.Tensor) -> bool:
    """Whether the returned sum is, bit for bit, what was normalised."""
    return rules.stored or residual_out.dtype in _EXACT


def save(ctx, x, residual, gate, weight, residual_out, rstd, rules) -> None:
    """Keep for backward; shared with the registered operator."""
    ctx.x_type = x.dtype
    ctx.residual_type = residual.dtype if residual is not None else None
    ctx.sum_type = None
    if residual is not None:
        ctx.sum_type = residual_out.dtype
        if sum_is_seen(rules, residual_out):
            x, residual = residual_out, None
    ctx.save_for_backward(x, residual, gate, weight, rstd)


def gradients(ctx, backward, dy, dresidual_out, want):
    """(dx, dresidual, dgate, dweight) for a saved ctx; `want` in the same order. `backward` is direct.backward or the
    registered operator."""
    x, residual, gate, weight, rstd = ctx.saved_tensors
    want_x, want_residual, want_gate, want_weight = want
    want_residual = want_residual and ctx.residual_type is not None
    if dy is None:
        # Only the returned sum was used.
        if dresidual_out is None:
            return None, None, None, None
        return (
            dresidual_out.to(ctx.x_type) if want_x else None,
            dresidual_out.to(ctx.residual_type) if want_residual else None,
            None,
            None,
        )
    return backward(
        dy,
        dresidual_out,
        x,
        residual,
        gate,
        weight,
        rstd,
        ctx.eps,
        ctx.preset,
        ctx.groups,
        ctx.divisor,
        ctx.sum_type,
        ctx.x_type if want_x else None,
        ctx.residual_type if want_residual else None,
        want_gate and gate is not None,
        want_weight and weight is not None,
    )


def through_operator(*arguments):
    """direct.backward as the registered operator, whose own gradient is refused in words."""
    dx_type, dresidual_type, want_gate, want_weight = arguments[-4:]
    dx, dresidual, dgate, dweight = torch.ops.rmsnorm.backward(*arguments)
    if dresidual_type is not None and dresidual_type == dx_type:
        dresidual = dx
    return (
        dx if dx_type is not None else None,
        dresidual if dresidual_type is not None else None,
        dgate if want_gate else None,
        dweight if want_weight else None,
    )


def refuse_tangents(*tensors: torch.Tensor | None) -> None:
    """torch would take the tangent of an operator's results for zero, without a word."""
    if any(t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        raise NotImplementedError(NO_WAY)


def another_transform() -> bool:
    """Whether a transform of torch.func is at work under which no operator of ours is right."""
    types = torch._C._functorch.TransformType
    right = (types.Vmap, types.Functionalize)
    return any(level.key() not in right for level in torch._C._functorch.get_interpreter_stack() or ())


def _needs_dispatch(gradient: torch.Tensor | None) -> bool:
    """Whether its memory is not what it is: many gradients at once (torch has two kinds of that, for vmap and for
    is_grads_batched), zeros that were never written."""
    functorch = torch._C._functorch
    return gradient is not None and (
        functorch.is_batchedtensor(gradient) or functorch.is_legacy_batchedtensor(gradient) or gradient._is_zerotensor()
    )


NO_WAY = (
    "rmsnorm: forward-mode gradients and the gradients of torch.func do not go through a norm of the library; vmap and "
    "torch.autograd do"
)


class Norm(torch.autograd.Function):
    """apply(x, weight, residual, gate, eps, preset, groups, divisor, dtype, residual_dtype)

    returns y, or (y, residual_out) with a residual."""

    @staticmethod
    def forward(ctx, x, weight, residual, gate, eps, preset, groups, divisor, dtype, residual_dtype):
        y, residual_out, rstd = direct.forward(
            x, weight, residual, gate, eps, preset, groups, divisor, dtype, residual_dtype, True
        )
        ctx.set_materialize_grads(False)
        ctx.eps, ctx.preset, ctx.groups, ctx.divisor = eps, preset, groups, divisor
        save(ctx, x, residual, gate, weight, residual_out, rstd, RULES[preset])
        return y if residual is None else (y, residual_out)

    @staticmethod
    def backward(ctx, dy, dresidual_out=None):
        want_x, want_weight, want_residual, want_gate = ctx.needs_input_grad[:4]
        # With create_graph the gradient has a gradient, which must be missed loudly. (once_differentiable does not: it
        # is silent when dy itself needs no gradient.)
        backward = direct.backward
        if forward_ad._current_level >= 0:
            refuse_tangents(dy, dresidual_out)
        if torch.is_grad_enabled() or _needs_dispatch(dy) or _needs_dispatch(dresidual_out):
            backward, ctx.preset = through_operator, ctx.preset if isinstance(ctx.preset, str) else ctx.preset.text
        dx, dresidual, dgate, dweight = gradients(
            ctx, backward, dy, dresidual_out, (want_x, want_residual, want_gate, want_weight)
        )
        return dx, dweight, dresidual, dgate, None, None, None, None, None, None
