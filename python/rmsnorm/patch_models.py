"""patch_models.py - put the library under the RMSNorms of a loaded model, and take it away again.

    report = rmsnorm.patch(model)      # which norms run through the library now, which do not, and why
    rmsnorm.unpatch(model)

A patched module is the object it was: same parameters, same attributes, same place, same hooks. Only its class is
another one, made here: a subclass of its own class with another `forward`. So state_dict, .to(), deepcopy, pickle,
isinstance and whoever holds a reference are not touched, nothing is copied, and unpatch gives the class back.

Which arithmetic a class has is proposed by the table of families.py and decided by a probe: the class's own forward and
ours run on rows whose statistic comes out the same however it is summed and rooted, in all combinations of types, and
every bit has to agree. A combination in which the class itself fails is left to the class. A class that the probe tells
apart from its row is not patched, whatever its name; a digest of its source would refuse harmless edits and miss what
the source calls.

What the library does not take (f64, other devices, subclasses of tensors, vmap and the like, torch.jit.trace) goes
through the class's own forward. One thing a patched model does not have: the gradient of a gradient.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MethodType

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad

from .families import REASONS, Family, family_named, family_of
from .numerics import Numerics
from .patch_probe import TYPES, Differs, agreeing_pairs
from .torch import gated_rms_norm, rms_norm

ALL_PAIRS = frozenset((x, weight) for x in TYPES for weight in (None, *TYPES))
_TENSORS = (torch.Tensor, nn.Parameter, FakeTensor)
_ACTIVATIONS = {"silu": "silu", "swish": "silu", "sigmoid": "sigmoid"}


@dataclass(frozen=True)
class Plan:
    """What a patched class does: one for each class and each setting of its instances. Hashable and picklable."""

    family: str
    numerics: str  # Numerics.text, with the gate
    plain: str  # the same without a gate, for a call that brings none
    eps: str
    weighted: bool
    plus_one: bool
    gate: str
    groups: str
    divisor: int
    pairs: frozenset  # (type of x, type of weight or None) that were seen to agree


@dataclass
class Report:
    """What patch did. `patched` and `already`: name of the module -> "Class: family". `left`: name -> reason."""

    patched: dict[str, str] = field(default_factory=dict)
    already: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{len(self.patched)} norms patched" + (f", {len(self.already)} were already" if self.already else "")]
        lines += [f"  {count} x {what}" for what, count in Counter(self.patched.values()).items()]
        if self.left:
            lines.append(f"{len(self.left)} left alone")
            lines += [f"  {count} x {why}" for why, count in Counter(self.left.values()).items()]
        return "\n".join(lines)


def patch(model: nn.Module, *, also: Mapping[type, str] | None = None) -> Report:
    """Let the library compute every RMSNorm inside `model` (or `model` itself) whose arithmetic it has.

    `also` adds classes that the table of families.py does not know: {MyRMSNorm: "llama"}. They are probed like all.
    """
    _need_module(model)
    if also is not None and not isinstance(also, Mapping):
        raise TypeError(f"also: a dict from classes to names of families is needed, not {type(also).__name__}")
    report = Report()
    for name, module in model.named_modules():
        cls = type(module)
        if is_patched(module):
            report.already[name] = f"{cls._rmsnorm_original.__name__}: {cls._rmsnorm_plan.family}"
            continue
        added = (also or {}).get(cls)
        family = family_named(added) if added else family_of(cls)
        if family is None:
            if _looks_like_a_norm(module):
                report.left[name] = f"{cls.__name__}: {REASONS.get(cls.__name__, 'unknown class')}"
            continue
        try:
            plan = plan_of(module, family)
        except Refusal as reason:
            report.left[name] = f"{cls.__name__}: {reason}"
            continue
        _change_class(module, _patched_class(cls, plan))
        report.patched[name] = f"{cls.__name__}: {family.name}"
    if report.patched:
        _forget_graphs()
    return report


def unpatch(model: nn.Module) -> int:
    """Give every patched module inside `model` its own class back; returns how many there were."""
    _need_module(model)
    patched = [module for module in model.modules() if is_patched(module)]
    for module in patched:
        _change_class(module, _without_patch(type(module)))
    if patched:
        _forget_graphs()
    return len(patched)


def is_patched(module: nn.Module) -> bool:
    return hasattr(type(module), "_rmsnorm_plan")


def _need_module(model) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: a torch.nn.Module is needed, not {type(model).__name__}")


def _forget_graphs() -> None:
    """What torch.compile has made of a module goes on when the module's class changes: it does not look at that. All of
    it is made again when it is called next."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset_code_caches()


def _without_patch(cls: type) -> type:
    """The class that this one would be without patch. Others change classes too, on top of ours (parametrisations,
    sharding): theirs is made once more, on top of the original."""
    if "_rmsnorm_plan" in cls.__dict__:
        return cls._rmsnorm_original
    bases = tuple(_without_patch(base) if hasattr(base, "_rmsnorm_plan") else base for base in cls.__bases__)
    own = {name: value for name, value in cls.__dict__.items() if name not in ("__dict__", "__weakref__")}
    return type(cls)(cls.__name__, bases, own)


def _looks_like_a_norm(module: nn.Module) -> bool:
    cls = type(module)
    name = cls.__name__.lower()
    return "rms" in name or ("norm" in name and not cls.__module__.startswith("torch.nn."))


# A forward may also stand on the instance: kernels puts the class's own there when it has no better, and accelerate
# keeps it as _old_forward under a hook.
_BOUND = ("forward", "_old_forward")


def _forward_is_its_own(module: nn.Module) -> bool:
    own = [getattr(module.__dict__.get(name), "__func__", None) is type(module).forward for name in _BOUND]
    return "forward" not in module.__dict__ or any(own)


def _change_class(module: nn.Module, cls: type) -> None:
    before = type(module).forward
    module.__class__ = cls
    for name in _BOUND:
        if getattr(module.__dict__.get(name), "__func__", None) is before:
            module.__dict__[name] = MethodType(cls.forward, module)


# ----------------------------------------------------------------------------------------------------------------------
# The patched class.
def _in_order_of_memory(x: torch.Tensor) -> list[int] | None:
    """The outer dimensions from the widest stride to the narrowest, or None when they stand so already. PyTorch's own
    operations lay their result out like their input; ours would pack it in the order of its dimensions."""
    if x.is_contiguous():
        return None
    order = list(range(x.dim()))
    moved = False
    for end in range(x.dim() - 2, 0, -1):
        for i in range(end):
            if x.stride(order[i]) < x.stride(order[i + 1]):
                order[i], order[i + 1] = order[i + 1], order[i]
                moved = True
    return order if moved else None


def _others_look_on() -> bool:
    """Whether something wants to see the operations themselves: functorch (vmap, grad), torch.jit.trace, forward-mode
    gradients. Ours is one operation that knows nothing of them."""
    return _functorch() is not None or _tracing() is not None or forward_ad._current_level >= 0


@torch.compiler.assume_constant_result
def _others_look_on_graph() -> bool:
    """The same while a compiler traces. Its graphs are good for one stack of transforms, so that this is constant."""
    return _functorch() is not None or forward_ad._current_level >= 0


_functorch = torch._C._functorch.peek_interpreter_stack
_tracing = torch._C._get_tracing_state
_compiling = torch.compiler.is_compiling


def norm_of(original: type, plan: Plan):
    """The function of a patched class: (module, x, gate) -> y."""
    pairs, plain, eps_name, weighted = plan.pairs, plan.plain, plan.eps, plan.weighted
    # Most classes have nothing of what _settled does.
    simple = not (plan.gate or plan.groups or plan.plus_one or plan.divisor or plan.family == "torch")

    def norm(self, x, gate):
        weight = None
        if weighted:  # straight from the dict is faster; elsewhere it is in replicas, flat and parametrised modules
            weight = self._parameters.get("weight")
            weight = self.weight if weight is None else weight
        if (
            type(x) not in _TENSORS
            or (weighted and type(weight) not in _TENSORS)
            or (_others_look_on_graph() if _compiling() else _others_look_on())
            or (x.dtype, weight.dtype if weighted else None) not in pairs
            or not (x.is_cpu or x.is_cuda)
            or x.is_nested
            or x.layout is not torch.strided
            or x.numel() == 0
            or x.dim() == 0
            or not (simple or _fits(plan, self, x, gate))
        ):
            return original.forward(self, x) if plan.gate == "" else original.forward(self, x, gate)
        eps = getattr(self, eps_name)
        if simple and x.is_contiguous():
            return rms_norm(x, weight, eps, preset=plain)
        return _general(plan, self, x, weight, eps, gate)

    return norm


def _fits(plan: Plan, module: nn.Module, x: torch.Tensor, gate: torch.Tensor | None) -> bool:
    """What only some families have to ask."""
    if gate is not None and (gate.shape != x.shape or gate.dtype not in TYPES or gate.device != x.device):
        return False
    if gate is None and plan.gate == "required":
        return False  # the class has its own word for that
    # torch.nn.RMSNorm is one operation, which autocast may run in float32; all other classes are made of operations
    # that autocast leaves alone.
    return plan.family != "torch" or (
        x.shape[-1] == module.normalized_shape[0] and not torch.is_autocast_enabled(x.device.type)
    )


def _general(plan: Plan, module: nn.Module, x, weight, eps, gate) -> torch.Tensor:
    """Gates, groups, and an x that is not packed."""
    if eps is None:
        eps = torch.finfo(torch.float32).eps
    groups = 1
    if plan.groups.startswith("columns:"):
        columns = getattr(module, plan.groups[8:], None)
        groups = 1 if columns is None else x.shape[-1] // columns
    elif plan.groups:
        groups = getattr(module, plan.groups)
    if plan.plus_one:
        weight = 1.0 + weight
    order = _in_order_of_memory(x)
    if order is not None:
        x = x.permute(order)
        gate = gate if gate is None else gate.permute(order)
    if x.stride(-1) != 1:
        x = x.contiguous()
    if gate is None:
        y = rms_norm(x, weight, eps, preset=plan.plain, groups=groups, divisor=plan.divisor)
    else:
        gate = gate if gate.stride(-1) == 1 else gate.contiguous()
        y = gated_rms_norm(x, gate, weight, eps, preset=plan.numerics, groups=groups)
    return y if order is None else y.permute([order.index(i) for i in range(len(order))])


def _forward(original: type, plan: Plan):
    """A forward with the names that the class's own has, so that callers by keyword do not notice."""
    norm = norm_of(original, plan)
    first = list(inspect.signature(original.forward).parameters)[1]
    if first == "x":
        if plan.gate:

            def forward(self, x, gate=None):
                return norm(self, x, gate)
        else:

            def forward(self, x):
                return norm(self, x, None)
    elif plan.gate:

        def forward(self, hidden_states, gate=None):
            return norm(self, hidden_states, gate)
    else:

        def forward(self, hidden_states):
            return norm(self, hidden_states, None)

    return forward


def _reduce(self, protocol):
    cls = type(self)
    return _rebuild, (cls._rmsnorm_original, cls._rmsnorm_plan), self.__dict__


def _rebuild(original: type, plan: Plan) -> nn.Module:
    cls = _patched_class(original, plan)
    return cls.__new__(cls)


def _setstate(self, state) -> None:
    """After a copy or a pickle. The class may be of another release here than where the pickle was made: ask again."""
    cls = type(self)
    super(cls, self).__setstate__(state)
    original = cls._rmsnorm_original
    _change_class(self, original)
    try:
        plan = plan_of(self, family_named(cls._rmsnorm_plan.family))
    except Refusal as reason:
        warnings.warn(f"rmsnorm: {original.__name__} is not patched any more: {reason}", stacklevel=2)
    else:
        _change_class(self, _patched_class(original, plan))


@functools.cache
def _patched_class(original: type, plan: Plan) -> type:
    return type(
        original.__name__,
        (original,),
        {
            "__module__": original.__module__,
            "__qualname__": original.__qualname__,
            "__doc__": original.__doc__,
            "__reduce_ex__": _reduce,
            "__setstate__": _setstate,
            "extra_repr": lambda self: ", ".join(filter(None, (original.extra_repr(self), f"rmsnorm: {plan.family}"))),
            "forward": _forward(original, plan),
            "_rmsnorm_original": original,
            "_rmsnorm_plan": plan,
        },
    )


# ----------------------------------------------------------------------------------------------------------------------
# May this module be patched, and how?
class Refusal(Exception):
    """Why a module is left alone."""


_probed: dict[tuple, frozenset | Differs] = {}


def plan_of(module: nn.Module, family: Family) -> Plan:
    """The plan of a module that may be patched; Refusal otherwise."""
    cls = type(module)
    if not _forward_is_its_own(module):
        raise Refusal("its forward was replaced on the instance")
    if module._modules:
        raise Refusal("has modules inside")
    tensors = {name: t for name, t in {**module._parameters, **module._buffers}.items() if t is not None}
    if set(tensors) - {"weight"}:
        raise Refusal(f"has a tensor that a norm of this family has not: {sorted(set(tensors) - {'weight'})[0]}")
    weight = tensors.get("weight")
    if weight is None and family.weight in ("required", "plus one"):
        raise Refusal("has no weight")
    if weight is not None and weight.dim() != 1:
        raise Refusal(f"its weight has {weight.dim()} dimensions")
    weighted = weight is not None and family.weight != "none"
    if weighted and module._parameters.get("weight") is None:
        raise Refusal("its weight is not a parameter")
    eps = getattr(module, family.eps, "missing")
    number = isinstance(eps, float | int) and math.isfinite(eps) and eps >= 0
    if not number and not (eps is None and family.name == "torch"):
        raise Refusal(f"eps ({family.eps}) is {eps!r}")
    for name, value in family.only:
        if getattr(module, name, value) != value:
            raise Refusal(f"{name} is {getattr(module, name)!r}; only {value!r} is this arithmetic")
    parameters = list(inspect.signature(cls.forward).parameters)[1:]
    if parameters[:1] not in (["x"], ["hidden_states"]) or parameters[1:] != (["gate"] if family.gate else []):
        raise Refusal(f"its forward takes ({', '.join(parameters)})")

    numerics = Numerics.of(family.preset)
    if family.before:
        before = getattr(module, "norm_before_gate", None)
        if not isinstance(before, bool):
            raise Refusal(f"norm_before_gate is {before!r}")
        numerics = Numerics.of(dict(family.before)[before])
    if family.activation:
        activation = getattr(module, family.activation, "silu")
        if activation not in _ACTIVATIONS:
            raise Refusal(f"the activation {activation!r} of its gate is not one of the library")
        numerics = numerics.replace(gate=_ACTIVATIONS[activation])
    width = 128
    if weight is not None:
        width = weight.shape[0]
    if family.name == "torch":
        shape = getattr(module, "normalized_shape", ())
        if len(shape) != 1:
            raise Refusal(f"normalises over {len(shape)} dimensions")
        width = shape[0]
    groups = 1
    if family.groups:
        name = family.groups.removeprefix("columns:")
        value = getattr(module, name, None)
        if value is not None or name == family.groups:  # without a number of columns there is one group
            if not isinstance(value, int) or value < 1 or width % value:
                raise Refusal(f"{name} is {value!r}, which does not divide {width}")
            groups = value if name == family.groups else width // value
    if width < 1:
        raise Refusal("its weight is empty here; patch before it is sharded, or after it was gathered")
    if width // groups > 70000:
        raise Refusal(f"{width // groups} columns are more than the probe can sum exactly")

    plan = Plan(
        family=family.name,
        numerics=numerics.text,
        plain=numerics.replace(gate="none", gate_place="after").text,
        eps=family.eps,
        weighted=weighted,
        plus_one=family.weight == "plus one",
        gate=family.gate,
        groups=family.groups,
        divisor=family.divisor,
        pairs=ALL_PAIRS,
    )
    # What the answer depends on: the class as it is now, its settings, the width.
    functions = tuple(f for f in vars(cls).values() if callable(f))
    simple = (int, float, str, type(None))
    settings = tuple(sorted((k, repr(v)) for k, v in vars(module).items() if isinstance(v, simple) and k != "training"))
    key = (cls, functions, plan, width, groups, settings)
    if key not in _probed:
        try:
            _probed[key] = agreeing_pairs(
                module,
                norm_of(cls, plan),
                width=width,
                groups=groups,
                divisor=family.divisor,
                eps=torch.finfo(torch.float32).eps if eps is None else float(eps),
                gate=family.gate,
                gate_place=numerics.gate_place,
                activation=numerics.gate if family.gate else "silu",
                has_weight=weight is not None,
                weighted=weighted,
            )
        except Differs as difference:
            _probed[key] = difference
    if isinstance(_probed[key], Differs):
        raise Refusal(f"is not what its name says ({family.name}): {_probed[key]}")
    return replace(plan, pairs=_probed[key])
