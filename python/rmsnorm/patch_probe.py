"""patch_probe.py - is a class's own forward the same arithmetic as ours, bit for bit?

Two correct norms differ in three places: the order of the sum, how 1 / sqrt is rounded, and the exponential in a gate.
The probe takes inputs on which none of them matters: small integers times a power of two, whose squares add up exactly
in any order; rows for which the usual ways to write 1 / sqrt(v) all give the correctly rounded value; gate values for
which PyTorch's activation (its vector and its scalar code) and the library's agree, or, for a gate before the norm,
such that the gated squares add up exactly too. What is left are the roundings, the
weight, eps, groups and the gate's place, which is what tells the families apart: every bit has to agree then.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from .torch import gated_rms_norm

TYPES = (torch.bfloat16, torch.float16, torch.float32)
ROWS = 12
BITS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32, torch.float64: torch.int64}


class Differs(Exception):
    """In which combination of types the class is something else, and by how much."""


def exact_rows(
    columns: int, groups: int, divisor: int, eps: float, generator: torch.Generator, gated_before: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """x and gate, both [ROWS, columns * groups] in f32, exact in every type, with a statistic that is the same however
    it is computed.

    The groups of a row hold the same numbers with other signs, so that one statistic is good for all of them. Every
    second row is so small that eps counts. The statistic is that of x; with gated_before that of x times the gate,
    whose values are such that silu(z) = z in every type.
    """
    largest = max(1, min(15, int((2**22 / columns) ** 0.5)))  # columns (2 largest)^2 < 2^24: the sum is exact
    kept = torch.empty(0, 2, columns, device="cpu")
    while len(kept) < ROWS:
        numbers = torch.randint(-largest, largest + 1, (64, columns), generator=generator, device="cpu")
        scale = torch.where(torch.arange(64, device="cpu") % 2 == 0, 0.25, 2.0**-10)
        x = numbers.to(torch.float32) * scale[:, None]
        z = torch.randint(0, 3, (64, columns), generator=generator, device="cpu").to(torch.float32) * 32
        u = x * z if gated_before else x
        v = u.double().square().sum(-1).float() / (divisor or columns) + eps
        nearest = v.double().rsqrt().float()
        ways = (v.rsqrt(), v.pow(-0.5), 1 / v.sqrt())
        same = torch.stack([way == nearest for way in ways]).all(0) & (v > 0)
        kept = torch.cat([kept, torch.stack([x, z], 1)[same]])
    signs = torch.randint(0, 2, (ROWS, groups, columns), generator=generator, device="cpu") * 2 - 1
    x, z = kept[:ROWS, 0, None, :] * signs, kept[:ROWS, 1, None, :].expand(ROWS, groups, columns)
    return x.reshape(ROWS, groups * columns), z.reshape(ROWS, groups * columns)


def exact_gate(shape: tuple[int, int], dtype: torch.dtype, activation: str, generator: torch.Generator) -> torch.Tensor:
    """Gate values of type dtype for which every way to compute the activation gives the same f32."""
    act = {"silu": torch.nn.functional.silu, "sigmoid": torch.sigmoid}[activation]
    wanted = shape[0] * shape[1]
    kept = torch.empty(0, dtype=dtype, device="cpu")
    while len(kept) < wanted:
        z = (torch.randn(2 * wanted, generator=generator, device="cpu") * 3).to(dtype).float()
        apart = torch.stack([z, z], -1).flatten()[::2]  # not contiguous: PyTorch's scalar code
        ones = torch.ones(len(z), 1, device="cpu")
        ours = gated_rms_norm(ones, z[:, None], None, 0.0, preset=ACTIVATION_ALONE[activation])[:, 0]
        kept = torch.cat([kept, z[(act(z) == ours) & (act(apart) == ours)].to(dtype)])
    return kept[:wanted].reshape(shape)


# A norm of rows of one 1, with eps 0: what is left of it is the activation of the gate.
ACTIVATION_ALONE = {"silu": "fla", "sigmoid": "fla-sigmoid"}


def stand_in(module: nn.Module, weight: torch.Tensor | None) -> nn.Module:
    """A module of the same class and settings with another weight, on the CPU; the module itself is not touched."""
    twin = object.__new__(type(module))
    twin.__dict__.update(module.__dict__)
    for kind in ("_parameters", "_buffers"):
        tensors = copy.copy(module.__dict__[kind])
        if tensors.get("weight") is not None:
            tensors["weight"] = weight if kind == "_buffers" else nn.Parameter(weight, requires_grad=False)
        twin.__dict__[kind] = tensors
    return twin


def agreeing_pairs(
    module: nn.Module,
    ours: Callable[[nn.Module, torch.Tensor, torch.Tensor | None], torch.Tensor],
    *,
    width: int,
    groups: int = 1,
    divisor: int = 0,
    eps: float,
    gate: str = "",
    gate_place: str = "after",
    activation: str = "silu",
    has_weight: bool = True,
    weighted: bool = True,
) -> frozenset:
    """The (type of x, type of weight) in which the module's own forward works and `ours` agrees with it; Differs when
    it works and ours does not agree."""
    own = type(module).forward
    generator = torch.Generator(device="cpu").manual_seed(20260)
    pairs = set()
    # Not under what the caller may be in: autocast, tensors without memory.
    with _disable_current_modes(), torch.no_grad(), torch.autocast("cpu", enabled=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the class, about mixed types
        plain, _ = exact_rows(width // groups, groups, divisor, eps, generator)
        gated, before = exact_rows(width // groups, groups, divisor, eps, generator, gated_before=True)
        weight = torch.randn(width, generator=generator, device="cpu")
        for x_type in TYPES:
            calls = []
            if gate and gate_place == "before":
                calls.append((gated.to(x_type), before.to(x_type)))
            elif gate:
                calls.append((plain.to(x_type), exact_gate(tuple(plain.shape), x_type, activation, generator)))
            if gate != "required":
                calls.append((plain.to(x_type), None))
            for weight_type in TYPES if has_weight else (None,):
                twin = stand_in(module, None if weight_type is None else weight.to(weight_type))
                for x, z in calls:
                    try:
                        expected = own(twin, x) if not gate else own(twin, x, z)
                    except Exception:  # noqa: BLE001 - whatever it is, the class itself can not do this
                        continue
                    where = f"x {x_type}, weight {weight_type}" + (", without gate" if gate and z is None else "")
                    _compare(ours(twin, x, z), expected, where.replace("torch.", ""))
                    pairs.add((x_type, weight_type if weighted else None))
        if not pairs:
            raise Differs("its own forward fails on every combination of types")
        if gate and gate_place == "before":
            # The values above do not tell activations apart that are alike far from zero; near zero no sum is exact.
            z = torch.randn(plain.shape, generator=generator, device="cpu")
            twin = stand_in(module, weight if has_weight else None)
            if not torch.allclose(ours(twin, plain, z), own(twin, plain, z), rtol=1e-4, atol=1e-6):
                raise Differs("its gate has another activation")
    return frozenset(pairs)


def _compare(y: torch.Tensor, expected: torch.Tensor, where: str) -> None:
    if not isinstance(expected, torch.Tensor) or expected.shape != y.shape:
        raise Differs(f"it returns something else than a normalised x ({where})")
    if expected.dtype != y.dtype:
        raise Differs(f"it returns {expected.dtype}, the family {y.dtype} ({where})".replace("torch.", ""))
    other = y.contiguous().view(BITS[y.dtype]) != expected.contiguous().view(BITS[y.dtype])
    if other.any():
        raise Differs(f"{int(other.sum())} of {other.numel()} elements have other bits ({where})")
