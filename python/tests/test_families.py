"""test_families.py - every RMSNorm class of the installed transformers against the library, bit for bit.

The class's own forward runs with the library's statistic (and its exponential, where there is a gate) put in, so that
what is compared is the arithmetic that tells families apart: which value is rounded where, the offset, the type that
comes back, groups, the gate's place. More widths with -m "".

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import math
import re

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from families_support import (  # noqa: E402
    EPS,
    TYPES,
    LibraryStatistic,
    act,
    classes_in_text,
    gate_rows,
    instance,
    known_classes,
    rows,
    same_bits,
    statistic,
    variants,
)
from rmsnorm.families import FAMILIES, FAMILY_OF, REASONS, family_of  # noqa: E402
from rmsnorm.patch_models import is_patched, patch, unpatch  # noqa: E402

WIDTHS = [66, *(pytest.param(width, marks=pytest.mark.slow) for width in (8, 64, 128, 576, 1000, 4096))]


def test_every_class_is_in_the_table_or_has_a_reason():
    named = [n for n in classes_in_text() if re.search("rms_?norm", n, re.IGNORECASE)]
    assert len(named) > 150
    unknown = [n for n in named if n not in FAMILY_OF and n not in REASONS]
    assert not unknown, f"read these, and put each into families.py, as a family or with a reason: {unknown}"


def test_table_has_no_name_twice_and_no_reason_for_a_member():
    names = [name for family in FAMILIES for name in family.classes]
    assert len(names) == len(set(names))
    assert not set(names) & set(REASONS)
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)


def _cases():
    return [pytest.param(cls, variant, id=f"{name}-{variant}" if variant else name)
            for name, cls in known_classes().items() for variant in variants(family_of(cls))]  # fmt: skip


@pytest.mark.parametrize(("cls", "variant"), _cases())
@pytest.mark.parametrize("width", WIDTHS)
def test_forward_bit_for_bit(cls, variant, width):
    family = family_of(cls)
    module = instance(cls, family, width, **variant)
    report = patch(module)
    assert is_patched(module), report
    plan = type(module)._rmsnorm_plan
    assert len(plan.pairs) == (9 if plan.weighted else 3), "some combinations of types were not seen to agree"
    for x_type in TYPES:
        for weight_type in TYPES if plan.weighted else (torch.float32,):
            _forward_case(module.to(weight_type), cls, family, plan, width, x_type)
    assert unpatch(module) == 1
    assert type(module) is cls


def _groups(module, family, width):
    if family.groups == "n_groups":
        return module.n_groups
    columns = getattr(module, "group_size", None) if family.groups else None
    return 1 if columns is None else width // columns


def _forward_case(module, cls, family, plan, width, x_type):
    x = rows(width, x_type, width)
    groups = _groups(module, family, width)
    gates = [gate_rows(width, x_type, width)] if family.gate else [None]
    if family.gate == "optional":
        gates.append(None)
    for z in gates:
        arguments = (x,) if z is None else (x, z)
        u = x.float()
        if z is not None and "gate_place=before" in plan.numerics:
            u = u * act(z, "silu")
        mode = LibraryStatistic(statistic(u, EPS, groups, family.divisor))
        with torch.no_grad():
            y = module(*arguments)
            if family.name == "torch":
                _near(y, cls.forward(module, x), width)
                continue
            with mode:
                expected = cls.forward(module, *arguments)
        assert mode.used == 1, "the class takes its root in a way that the test does not know"
        assert y.dtype == expected.dtype
        assert y.shape == expected.shape
        agree = same_bits(y, expected)
        assert agree.all(), f"{int((~agree).sum())} of {agree.numel()}, first at {(~agree).nonzero()[0].tolist()}"


def _near(y, own, width):
    """torch.nn.RMSNorm is one operation, whose sum can not be replaced. Both sides round once at the end; before that
    they differ by the order of a sum of `width` terms and the rounding of a root: (width / 2 + 8) 2^-24, relatively."""
    assert y.dtype == own.dtype
    digits = {torch.bfloat16: 8, torch.float16: 11, torch.float32: 24}[y.dtype]
    ordinary = own.isfinite()
    assert torch.equal(ordinary, y.isfinite())
    assert torch.equal(own.isnan(), y.isnan())
    a, b = y[ordinary].double(), own[ordinary].double()
    ulp = torch.exp2(torch.floor(torch.log2(b.abs().clamp_min(2.0**-126))) + 1 - digits)
    if y.dtype == torch.float16:
        ulp = ulp.clamp_min(2.0**-24)
    allowed = (width / 2 + 8) * 2.0**-24 * b.abs() + (0.0 if y.dtype == torch.float32 else 1.0) * ulp
    assert ((a - b).abs() <= allowed).all()


@pytest.mark.parametrize("family", [f for f in FAMILIES if f.gate], ids=lambda f: f.name)
def test_gates_against_the_class_untouched(family):
    """With PyTorch's own exponential. Its silu is z / (1 + exp(-z)), ours z * sigmoid(z), each within 6 u of the exact
    one; with the sums and roots that is (width / 2 + 8 + 2 * 14) u before the roundings, which then may fall to
    different sides: at most one step of x-hat and one of each rounding after it."""
    width = 66
    cls = next(c for c in known_classes().values() if family_of(c) is family)
    for variant in variants(family):
        module = instance(cls, family, width, **variant)
        assert patch(module).patched
        for dtype in TYPES:
            module.to(dtype)
            generator = torch.Generator().manual_seed(5)
            x, z = torch.randn(2, 200, width, generator=generator).to(dtype)
            with torch.no_grad():
                y, own = module(x, z).double(), cls.forward(module, x, z).double()
            steps = {torch.bfloat16: 3 * 2.0**-8, torch.float16: 3 * 2.0**-11, torch.float32: 0}[dtype]
            tiny = 2.0**-24 if dtype == torch.float16 else 0.0
            worst = ((y - own).abs() - tiny).clamp_min(0) / own.abs().clamp_min(1e-30)
            assert worst.max() <= steps + (width / 2 + 36) * 2.0**-24


# ----------------------------------------------------------------------------------------------------------------------
def _chain(n):
    """d of docs/numerics.md, section 8: the longest chain of roundings in a sum of n terms."""
    w = 64
    while 8 * w <= n and w < 65536:
        w *= 2
    return math.ceil(n / w) + int(math.log2(w))


def _half_ulp(value, dtype):
    """What the last rounding may add; of f32 the bounds have it already."""
    if dtype == torch.float32:
        return 0.0
    digits, least = {torch.bfloat16: (8, 2.0**-133), torch.float16: (11, 2.0**-24)}[dtype]
    return 0.5 * torch.exp2(torch.floor(torch.log2(value.clamp_min(1e-300))) + 1 - digits).clamp_min(least)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_gradients_within_the_bound_of_float64(family, dtype):
    """dx, dweight and dgate against the exact derivative in float64, within section 8.2 of docs/numerics.md."""
    width, count, u = 66, 40, 2.0**-24
    cls = next(c for c in known_classes().values() if family_of(c) is family)
    for variant in variants(family):
        module = instance(cls, family, width, **variant)
        assert patch(module).patched
        plan = type(module)._rmsnorm_plan
        module.to(dtype)
        g = torch.Generator().manual_seed(11)
        x = (torch.randn(count, width, generator=g) * torch.logspace(-3, 3, count)[:, None]).to(dtype)
        z = torch.randn(count, width, generator=g).mul(2).to(dtype) if family.gate else None
        weight = module.weight if plan.weighted else None
        groups = _groups(module, family, width)
        leaves = [t.clone().requires_grad_() for t in (x, z) if t is not None]
        y = module(*leaves)
        dy = torch.randn(count, width, generator=g).to(y.dtype)
        y.backward(dy)

        gate = re.search(r"gate=(\w+)", plan.numerics)[1] if family.gate else "none"
        before = "gate_place=before" in plan.numerics
        exact = [t.detach().double().requires_grad_() for t in leaves]
        h = exact[0]
        w = torch.ones(width, dtype=torch.float64)
        if weight is not None:
            offset = float(re.search(r"weight_offset=(\S+)", plan.numerics)[1])
            stored = (1.0 + weight.detach()) if plan.plus_one else weight.detach()
            w = (stored.double() + offset).requires_grad_()
        n = width // groups
        divisor = family.divisor or n

        def activation(t, gate=gate):
            return t * torch.sigmoid(t) if gate == "silu" else torch.sigmoid(t)

        v = h * activation(exact[1]) if before else h
        grouped = v.reshape(count, groups, n)
        rstd = (grouped.square().sum(-1, keepdim=True) / divisor + EPS).rsqrt()
        xhat = (grouped * rstd).reshape(count, width)
        out = xhat * w
        if gate != "none" and not before:
            out = out * activation(exact[1])
        out.backward(dy.double())

        d = _chain(n)
        with torch.no_grad():
            a = activation(exact[1]) if gate != "none" else torch.ones(1, dtype=torch.float64)
            gy = dy.double() * (a if gate != "none" and not before else 1)
            t = gy * w
            total = (t * xhat).abs().reshape(count, groups, n).sum(-1, keepdim=True).expand(count, groups, n)
            total = total.reshape(count, width)
            rs = rstd.expand(count, groups, n).reshape(count, width)
            extra = 0 if gate == "none" else (42 if before else 7)
            du_bound = (2.5 * d + 20 + extra) * u * rs * (t.abs() + xhat.abs() * total / divisor)
            dx_bound = du_bound * (a.abs() if before else 1) + (14 * u * exact[0].grad.abs() if before else 0)
            _inside(leaves[0].grad, exact[0].grad, dx_bound, "dx")
            if weight is not None:
                more = 0 if gate == "none" else (14 if before else 7)
                bound = (d / 2 + 5 + count * groups + more) * u * (gy * xhat).abs().sum(0)
                _inside(weight.grad, w.grad, bound, "dweight")
            if gate != "none":
                s = torch.sigmoid(exact[1])
                slope = s * (1 - s) if gate == "sigmoid" else s * (1 + exact[1].abs() * (1 - s))
                if before:
                    # the exact du: what dx is without the activation, which is never zero here
                    du = exact[0].grad / a
                    bound = du_bound * h.abs() * slope + (15 + 14) * u * (du * h).abs() * slope
                else:
                    bound = (d / 2 + 20 + 7) * u * (dy.double() * xhat * w).abs() * slope
                _inside(leaves[1].grad, exact[1].grad, bound, "dgate")


def _inside(found, exact, bound, what):
    off = (found.double() - exact).abs() - (bound + _half_ulp(exact.abs() + bound, found.dtype) + 2.0**-140)
    assert (off <= 0).all(), f"{what}: {int((off > 0).sum())} of {off.numel()} outside, by {off.max().item():.3g}"
