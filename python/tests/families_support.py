"""families_support.py - what the tests of families share: the classes of the installed transformers, instances of them,
inputs, and PyTorch's own operations with the library's statistic put in.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from pathlib import Path
from types import SimpleNamespace

import torch
from rmsnorm.families import FAMILY_OF, Family
from rmsnorm.torch import gated_rms_norm, rms_norm_with_stats
from torch import nn
from torch.overrides import TorchFunctionMode

TYPES = (torch.bfloat16, torch.float16, torch.float32)
BITS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}
EPS = 1.25e-5


def _sources() -> list[Path]:
    import transformers

    root = Path(transformers.__file__).parent
    return sorted(p for p in root.rglob("*.py") if not p.name.startswith("modular_"))


@functools.cache
def classes_in_text() -> dict[str, list[Path]]:
    """Every class in the sources of transformers that is called RMSNorm something, and those of the table."""
    found: dict[str, list[Path]] = {}
    for path in _sources():
        for name, bases in re.findall(r"^[ \t]*class (\w+)\(([^)]*)\)", path.read_text(), re.MULTILINE):
            if (re.search("rms_?norm", name, re.IGNORECASE) and "Module" in bases) or name in FAMILY_OF:
                found.setdefault(name, []).append(path)
    return found


@functools.cache
def known_classes() -> dict[str, type]:
    """The classes of the table that the installed packages have, by name; a name that two files have comes twice."""
    import transformers

    root = Path(transformers.__file__).parent.parent
    classes: dict[str, type] = {"torch.nn.modules.normalization.RMSNorm": nn.RMSNorm}
    for name, paths in classes_in_text().items():
        for i, path in enumerate(paths):
            if name in FAMILY_OF:
                module = importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts))
                classes[name if i == 0 else f"{name} ({path.stem})"] = getattr(module, name)
    return classes


def instance(cls: type, family: Family, width: int, *, eps: float = EPS, **settings) -> nn.Module:
    """An instance with a random f32 weight. Arguments go by the name that the constructor has for them."""
    values = {
        "hidden_size": width,
        "dim": width,
        "num_features": width,
        "normalized_shape": width,
        "eps": eps,
        "config": SimpleNamespace(hidden_size=width, eps=eps, rms_norm_eps=eps),
        "group_size": width // 2 if family.groups == "columns:group_size" else None,
        "n_groups": 2,
        "use_bias": False,
        **settings,
    }
    names = inspect.signature(cls.__init__).parameters
    module = cls(**{name: values[name] for name in names if name in values and values[name] is not None})
    weight = getattr(module, "weight", None)
    if weight is not None:
        generator = torch.Generator().manual_seed(width)
        with torch.no_grad():
            weight.copy_(torch.randn(weight.shape, generator=generator))
    return module


def variants(family: Family) -> list[dict]:
    """The settings of instances that change the arithmetic."""
    if family.before:
        return [{"norm_before_gate": True}, {"norm_before_gate": False}]
    if family.groups:
        return [{}, {"group_size": None}] if family.name == "gemma, groups" else [{}]
    if family.name == "gemma3n":
        return [{}, {"with_scale": False}]
    if family.name == "torch":
        return [{}, {"elementwise_affine": False}]
    if family.name == "xlstm":
        return [{}, {"use_weight": False}]
    return [{}]


def rows(width: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Random and adversarial rows whose statistic is an ordinary f32 number."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(14, width, generator=g)
    x[1] *= 1000
    x[2] *= 2.0**-14  # eps counts
    x[3] = 0
    x[4] = 0
    x[4, width // 2] = -3.0  # one value
    x[5] = torch.where(torch.arange(width) % 2 == 0, 1.0, -1.0)
    x[6] = torch.randn(width, generator=g).exp() ** 4  # a wide range
    x[7] = 1.0 + 2.0**-7 * torch.randint(0, 2, (width,), generator=g)  # ties after the factor
    x[8] = torch.full((width,), 65504.0 if dtype == torch.float16 else 2.0**50)
    x[9] *= 2.0**-22  # f16: subnormal, squares beside nothing but eps
    x[10] = -0.0
    x[11, 0] = float("inf")
    x[12, width - 1] = float("nan")
    x[13] = torch.arange(width) / width
    return x.to(dtype)


def gate_rows(width: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed + 1)
    z = torch.randn(14, width, generator=g) * 3
    z[1] *= 10
    z[2] = 0
    z[5] = -40.0
    z[13] = 80.0
    return z.to(dtype)


def act(z: torch.Tensor, activation: str) -> torch.Tensor:
    """The library's activation of z in f32: what is left of a gated norm of a single 1 without eps."""
    ones = torch.ones(z.numel(), 1)
    preset = {"silu": "fla", "sigmoid": "fla-sigmoid"}[activation]
    return gated_rms_norm(ones, z.float().reshape(-1, 1), None, 0.0, preset=preset).reshape(z.shape)


class LibraryStatistic(TorchFunctionMode):
    """Runs a class's own forward with the library's rstd where it takes 1 / sqrt, and the library's activations. What
    remains is the class's arithmetic: casts, products, groups, the order of all of them."""

    def __init__(self, rstd: torch.Tensor):
        super().__init__()
        self.rstd = rstd
        self.used = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        root = name == "rsqrt" or (name in ("pow", "__pow__") and len(args) > 1 and args[1] == -0.5)
        if root:
            self.used += 1
            return self.rstd.reshape(args[0].shape)
        if name in ("silu", "sigmoid") and args[0].dtype == torch.float32:
            return act(args[0], name)
        return func(*args, **(kwargs or {}))


def statistic(u: torch.Tensor, eps: float, groups: int, divisor: int) -> torch.Tensor:
    """The library's rstd of rows u, f32."""
    return rms_norm_with_stats(u, None, eps, preset="fp32", groups=groups, divisor=divisor)[1]


class StatisticOfEveryNorm(TorchFunctionMode):
    """Runs a whole model's own code with the library's rstd where a norm of float32 rows takes 1 / sqrt."""

    def __init__(self, eps):
        super().__init__()
        self.eps, self.squared, self.used = eps, None, 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name == "pow" and args[1] == 2:
            self.squared = args[0]
        if name == "rsqrt":
            self.used += 1
            return statistic(self.squared, self.eps, 1, 0).reshape(args[0].shape)
        return func(*args, **(kwargs or {}))


def same_bits(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Elementwise: the same bits, or NaN in both."""
    return (a.view(BITS[a.dtype]) == b.view(BITS[b.dtype])) | (a.isnan() & b.isnan())
