"""The registered operators, `torch.ops.rmsnorm.*`: what torch.compile, export and dispatch modes see.

    forward        -> (y, residual_out, rstd), the last two empty where there is none
    backward       -> (dx, dresidual, dgate, dweight), empty where not wanted
    quantise       -> (q, scales, residual_out)
    norm_out, norm_, add_norm_, quantise_out    with outputs of the caller, forward only

Each has a version on shapes alone, an exact list of what it changes, and the gradient of forward; that of everything
else is refused in words.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import torch
from torch.autograd import forward_ad

from ..numerics import F64, RULES, Quant, result_dtype
from . import direct
from .autograd import NO_WAY, gradients, refuse_tangents, save, through_operator

_library = torch.library.Library("rmsnorm", "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag,)

_COMMON = "float eps, str preset, int groups=1, int divisor=0"


def _define(schema: str, run, fake) -> None:
    name = schema.split("(")[0]
    _library.define(schema, tags=_TAGS)
    for key in ("CPU", "CUDA"):
        _library.impl(name, run, key)
    torch.library.register_fake(f"rmsnorm::{name}", fake, lib=_library)


def _absent(x, dtype=None):
    return x.new_empty(0) if dtype is None else x.new_empty(0, dtype=dtype)


def _or_absent(x, *tensors):
    return tuple(_absent(x) if tensor is None else tensor for tensor in tensors)


# ----------------------------------------------------------------------------------------------------------------------
def _forward(x, weight, residual, gate, eps, preset, groups=1, divisor=0, dtype=None, residual_dtype=None, stats=True):
    if forward_ad._current_level >= 0:
        refuse_tangents(x, weight, residual, gate)
    y, residual_out, rstd = direct.forward(
        x, weight, residual, gate, eps, preset, groups, divisor, dtype, residual_dtype, stats
    )
    return (y, *_or_absent(x, residual_out, rstd))


def _check(x, weight, residual, gate, preset, groups):
    rules = RULES[preset]
    direct.check_x(x)
    code = direct.dtype_code("x", x)
    weight_code = 0
    if weight is not None:
        weight_code = direct.dtype_code("weight", weight)
        direct.weight_shape(x, weight, groups)
    for name, tensor in (("residual", residual), ("gate", gate)):
        if tensor is not None:
            direct.check_like(name, tensor, x)
            direct.dtype_code(name, tensor)
    direct.check_gate(gate, rules)
    direct.check_groups(groups, x.shape[-1])
    return rules, code, weight_code


def _forward_fake(
    x, weight, residual, gate, eps, preset, groups=1, divisor=0, dtype=None, residual_dtype=None, stats=True
):
    if forward_ad._current_level >= 0:  # a compiler can not see yet what will have a tangent
        raise NotImplementedError(NO_WAY)
    rules, code, weight_code = _check(x, weight, residual, gate, preset, groups)
    y = x.new_empty(x.shape, dtype=dtype or direct.TYPES[result_dtype(rules, code, weight_code)])
    residual_out = rstd = None
    if residual is not None:
        residual_out = x.new_empty(x.shape, dtype=residual_dtype or direct.sum_dtype(x, residual))
    if stats:
        rstd = x.new_empty(direct.stats_shape(x, groups), dtype=torch.float64 if code == F64 else torch.float32)
    return (y, *_or_absent(x, residual_out, rstd))


_define(
    f"forward(Tensor x, Tensor? weight, Tensor? residual, Tensor? gate, {_COMMON}, ScalarType? dtype=None, "
    "ScalarType? residual_dtype=None, bool stats=True) -> (Tensor, Tensor, Tensor)",
    _forward,
    _forward_fake,
)


# ----------------------------------------------------------------------------------------------------------------------
def _backward(
    dy, dresidual_out, x, residual, gate, weight, rstd, eps, preset, groups, divisor, sum_type, dx_type, dresidual_type,
    want_gate, want_weight,
):  # fmt: skip
    dx, dresidual, dgate, dweight = direct.backward(
        dy, dresidual_out, x, residual, gate, weight, rstd, eps, preset, groups, divisor, sum_type, dx_type,
        dresidual_type, want_gate, want_weight,
    )  # fmt: skip
    # An operator's results may not be one tensor.
    if dresidual is not None and dresidual is dx:
        dresidual = None
    return _or_absent(x, dx, dresidual, dgate, dweight)


def _backward_fake(
    dy, dresidual_out, x, residual, gate, weight, rstd, eps, preset, groups, divisor, sum_type, dx_type, dresidual_type,
    want_gate, want_weight,
):  # fmt: skip
    dx = dresidual = dgate = dweight = None
    if dx_type is not None:
        dx = x.new_empty(x.shape, dtype=dx_type)
    if dresidual_type is not None and dresidual_type != dx_type:
        dresidual = x.new_empty(x.shape, dtype=dresidual_type)
    if want_gate:
        dgate = gate.new_empty(x.shape)
    if want_weight:
        dweight = weight.new_empty(weight.shape)
    return _or_absent(x, dx, dresidual, dgate, dweight)


_define(
    "backward(Tensor dy, Tensor? dresidual_out, Tensor x, Tensor? residual, Tensor? gate, Tensor? weight, "
    "Tensor? rstd, float eps, str preset, int groups, int divisor, ScalarType? sum_type, ScalarType? dx_type, "
    "ScalarType? dresidual_type, bool want_gate, bool want_weight) -> (Tensor, Tensor, Tensor, Tensor)",
    _backward,
    _backward_fake,
)


def _setup(ctx, inputs, output):
    x, weight, residual, gate, eps, preset, groups, divisor = inputs[:8]
    _, residual_out, rstd = output
    ctx.mark_non_differentiable(*((rstd,) if residual is not None else (residual_out, rstd)))
    ctx.set_materialize_grads(False)
    ctx.eps, ctx.preset, ctx.groups, ctx.divisor = eps, preset, groups, divisor
    rstd_kept = rstd if inputs[10] else None
    save(ctx, x, residual, gate, weight, residual_out if residual is not None else None, rstd_kept, RULES[preset])


def _forward_gradient(ctx, dy, dresidual_out, drstd):
    want_x, want_weight, want_residual, want_gate = ctx.needs_input_grad[:4]
    dx, dresidual, dgate, dweight = gradients(
        ctx, through_operator, dy, dresidual_out, (want_x, want_residual, want_gate, want_weight)
    )
    return dx, dweight, dresidual, dgate, None, None, None, None, None, None, None


torch.library.register_autograd("rmsnorm::forward", _forward_gradient, setup_context=_setup, lib=_library)


def _refuse(name: str, why: str) -> None:
    def backward(ctx, *grads):
        raise RuntimeError(f"rmsnorm::{name}: {why}")

    torch.library.register_autograd(f"rmsnorm::{name}", backward, lib=_library)


_refuse("backward", "a gradient of the gradient is not implemented")


# ----------------------------------------------------------------------------------------------------------------------
def _quantise(x, weight, residual, gate, scale, eps, preset, quant, groups=1, divisor=0, residual_dtype=None):
    q, scales, residual_out = direct.quantise(
        x, weight, residual, gate, scale, eps, preset, Quant.of(quant), groups, divisor, residual_dtype
    )
    return (q, scales, *_or_absent(x, residual_out))


def _quantise_fake(x, weight, residual, gate, scale, eps, preset, quant, groups=1, divisor=0, residual_dtype=None):
    _check(x, weight, residual, gate, preset, groups)
    direct.check_scale(scale, x, Quant.of(quant))
    q_type, scale_type, shape = direct.quant_shapes(x, Quant.of(quant))
    residual_out = None
    if residual is not None:
        residual_out = x.new_empty(x.shape, dtype=residual_dtype or direct.sum_dtype(x, residual))
    return (
        x.new_empty(x.shape, dtype=q_type),
        x.new_empty(shape, dtype=scale_type),
        *_or_absent(x, residual_out),
    )


_define(
    "quantise(Tensor x, Tensor? weight, Tensor? residual, Tensor? gate, Tensor? scale, float eps, str preset, "
    "str quant, int groups=1, int divisor=0, ScalarType? residual_dtype=None) -> (Tensor, Tensor, Tensor)",
    _quantise,
    _quantise_fake,
)
_refuse("quantise", "a quantised output has no gradient")


# ----------------------------------------------------------------------------------------------------------------------
# With outputs of the caller.
def _norm_out(out, x, weight, eps, preset):
    direct.forward(x, weight, None, None, eps, preset, out=out)


def _norm_in_place(x, weight, eps, preset):
    direct.forward(x, weight, None, None, eps, preset, out=x)


def _add_norm(x, residual, weight, eps, preset):
    direct.forward(x, weight, residual, None, eps, preset, out=x, residual_out=residual)


def _quantise_out(q, scales, residual, x, weight, scale, eps, preset, quant):
    direct.quantise(
        x, weight, residual, None, scale, eps, preset, Quant.of(quant), q=q, scales=scales, residual_out=residual
    )


def _nothing(*arguments):
    return None


_define("norm_out(Tensor(a!) out, Tensor x, Tensor? weight, float eps, str preset) -> ()", _norm_out, _nothing)
_define("norm_(Tensor(a!) x, Tensor? weight, float eps, str preset) -> ()", _norm_in_place, _nothing)
_define(
    "add_norm_(Tensor(a!) x, Tensor(b!) residual, Tensor? weight, float eps, str preset) -> ()", _add_norm, _nothing
)
_define(
    "quantise_out(Tensor(a!) q, Tensor(b!)? scales, Tensor(c!)? residual, Tensor x, Tensor? weight, Tensor? scale, "
    "float eps, str preset, str quant) -> ()",
    _quantise_out,
    _nothing,
)
