"""test_patch_hosts.py - the examples for hosts that are not installed here, each with a stub of what it registers with.

The stubs have the shape of the host's registration and its own definition of the operation in plain PyTorch, written
from its documentation; what they can not show is that the next release still looks like that.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from families_support import BITS, statistic  # noqa: E402

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "python"


def _load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Op:
    """An operation of vllm.ir: implementations by provider, the first that takes the arguments."""

    def __init__(self):
        self.implementations = {}

    def register_impl(self, provider, *, supports_args=None, supported=True, inplace=False):
        def add(function):
            self.implementations[provider] = (supported, supports_args, inplace, function)
            return function

        return add

    def __call__(self, provider, *arguments):
        supported, supports_args, inplace, function = self.implementations[provider]
        assert supported
        assert not inplace
        return function(*arguments) if supports_args(*arguments) else None


@pytest.fixture
def vllm(monkeypatch):
    ir = types.ModuleType("vllm.ir")
    ir.ops = types.SimpleNamespace(rms_norm=Op(), fused_add_rms_norm=Op())
    package = types.ModuleType("vllm")
    package.ir = ir
    monkeypatch.setitem(sys.modules, "vllm", package)
    monkeypatch.setitem(sys.modules, "vllm.ir", ir)
    _load("vllm_plugin").register()
    return ir.ops


@pytest.mark.parametrize("dtype", BITS, ids=str)
def test_vllm(vllm, dtype):
    g = torch.Generator().manual_seed(1)
    x, residual = torch.randn(2, 9, 160, generator=g).to(dtype)
    weight = torch.randn(160, generator=g).to(dtype)

    def definition(h, rstd):
        return (h * rstd[:, None]).to(dtype) * weight

    h = x.float()
    assert torch.equal(vllm.rms_norm("rmsnorm", x, weight, 1e-5), definition(h, statistic(h, 1e-5, 1, 0)))
    h = x.float() + residual.float()  # what is normalised is not rounded
    y, total = vllm.fused_add_rms_norm("rmsnorm", x, residual, weight, 1e-5)
    assert torch.equal(y, definition(h, statistic(h, 1e-5, 1, 0)))
    assert torch.equal(total, h.to(dtype))
    assert vllm.rms_norm("rmsnorm", x, None, 1e-5).dtype == dtype
    assert vllm.rms_norm("rmsnorm", x, weight, 1e-5, 80) is None  # a statistic of some columns: left to others
    assert vllm.rms_norm("rmsnorm", x.double(), weight, 1e-5) is None
    assert vllm.rms_norm("rmsnorm", x.t(), weight[:9], 1e-5) is None


def test_vllm_asks_with_tensors_without_memory(vllm):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x, weight = torch.empty(4, 32, dtype=torch.bfloat16), torch.empty(32, dtype=torch.bfloat16)
        assert vllm.rms_norm("rmsnorm", x, weight, 1e-6).shape == x.shape


SGLANG = """
def rmsnorm(*arguments): raise AssertionError("not replaced")
fused_add_rmsnorm = gemma_rmsnorm = gemma_fused_add_rmsnorm = rmsnorm

def layer(x, weight, eps, residual=None, gemma=False):
    if residual is not None:
        (gemma_fused_add_rmsnorm if gemma else fused_add_rmsnorm)(x, residual, weight, eps)
        return x, residual
    return (gemma_rmsnorm if gemma else rmsnorm)(x, weight, eps)
"""


@pytest.mark.parametrize("gemma", [False, True])
def test_sglang(monkeypatch, gemma):
    layers = types.ModuleType("layers_of_sglang")
    exec(SGLANG, layers.__dict__)
    monkeypatch.setitem(sys.modules, layers.__name__, layers)
    example = _load("sglang_functions")
    assert len(example.install(layers.__name__)) == 4

    x, residual = torch.randn(2, 5, 64)
    weight = torch.randn(64)
    w = weight + 1 if gemma else weight
    expected = x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * w
    torch.testing.assert_close(layers.layer(x, weight, 1e-6, gemma=gemma), expected, rtol=1e-6, atol=1e-6)
    total = x + residual
    expected = total * (total.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * w
    y, out = layers.layer(x, weight, 1e-6, residual, gemma)
    assert y is x
    assert out is residual
    assert torch.equal(out, total)
    torch.testing.assert_close(y, expected, rtol=1e-6, atol=1e-6)

    empty = types.ModuleType("another_sglang")
    monkeypatch.setitem(sys.modules, empty.__name__, empty)
    with pytest.raises(RuntimeError, match="calls none of"):
        example.install(empty.__name__)


def test_triton_only():
    if not hasattr(pytest.importorskip("triton"), "constexpr_function"):
        pytest.skip("the kernels need Triton 3.4 or newer")
    run = subprocess.run([sys.executable, str(EXAMPLES / "triton_only.py")], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count(": True") >= 5
    assert "False" not in run.stdout


def test_every_file_that_the_page_names_exists():
    import re

    root = EXAMPLES.parents[1]
    page = (root / "docs" / "integrate.md").read_text()
    named = set(re.findall(r"\[[^\]]*\]\((\.\./[^)#]+)\)", page))
    assert len(named) >= 8
    missing = [name for name in named if not (root / "docs" / name).exists()]
    assert not missing
