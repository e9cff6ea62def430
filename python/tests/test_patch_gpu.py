"""test_patch_gpu.py - patched models on a GPU: the bits of the CPU, whole models, torch.compile, graphs, training.

Models have random weights, of the shape of SmolLM2-135M; nothing is loaded. Skipped without a GPU;
RMSNORM_TEST_PATCH_DEVICE=cpu runs on the CPU, with a small model, what does not need one.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import copy
import os

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import rmsnorm  # noqa: E402
from families_support import (  # noqa: E402
    BITS,
    TYPES,
    StatisticOfEveryNorm,
    gate_rows,
    instance,
    known_classes,
    rows,
    same_bits,
)
from rmsnorm.families import family_of  # noqa: E402
from rmsnorm.patch_models import is_patched  # noqa: E402
from training_support import train  # noqa: E402
from transformers.models.llama.modeling_llama import LlamaRMSNorm  # noqa: E402

DEVICE = os.environ.get("RMSNORM_TEST_PATCH_DEVICE", "cuda")
if DEVICE == "cuda" and not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)
on_gpu = pytest.mark.skipif(DEVICE != "cuda", reason="a graph of CUDA")
LAYERS, WIDTH = (30, 576) if DEVICE == "cuda" else (2, 64)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(7)
    config = transformers.LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=WIDTH * 8 // 3,
        num_hidden_layers=LAYERS,
        num_attention_heads=WIDTH // 64 or 1,
        num_key_value_heads=WIDTH // 192 or 1,
        vocab_size=4096,
        rms_norm_eps=1e-5,
        initializer_range=0.06,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter += 0.3 * torch.randn_like(parameter)
    return model.to(DEVICE)


@pytest.fixture
def ids():
    return torch.randint(0, 4096, (2, 48), generator=torch.Generator().manual_seed(1)).to(DEVICE)


def causal(ids):
    """The usual mask, in full. Without one, transformers asks whether the stream is being captured and if so builds it,
    otherwise leaves it to the kernel of the attention: two kernels, whose gradients differ in the last bits."""
    rows, tokens = ids.shape
    return torch.ones(rows, 1, tokens, tokens, dtype=torch.bool, device=ids.device).tril()


def logits(model, ids):
    with torch.no_grad():
        return model(ids).logits


@pytest.mark.parametrize("name", sorted({family_of(cls).name: name for name, cls in known_classes().items()}.values()))
def test_the_bits_of_the_cpu(name):
    """One class of each arithmetic, forward and all gradients."""
    cls = known_classes()[name]
    family = family_of(cls)
    for width in (66, 576, 4096):
        for dtype in TYPES:
            module = instance(cls, family, width).to(dtype)
            assert rmsnorm.patch(module).patched
            twin = copy.deepcopy(module).to(DEVICE)
            assert is_patched(twin)
            x = rows(width, dtype, width)
            arguments = [x, gate_rows(width, dtype, width)] if family.gate else [x]
            dy = torch.randn(x.shape, generator=torch.Generator().manual_seed(2))
            results = []
            for norm, device in ((module, "cpu"), (twin, DEVICE)):
                leaves = [t.to(device).requires_grad_() for t in (a.clone() for a in arguments)]
                y = norm(*leaves)
                y.backward(dy.to(device, y.dtype))
                weight = norm.weight.grad if type(norm)._rmsnorm_plan.weighted else None
                grads = [leaf.grad.cpu() for leaf in leaves]
                results.append([y.detach().cpu(), *grads, *([] if weight is None else [weight.cpu()])])
            for a, b in zip(*results, strict=True):
                assert same_bits(a, b).all(), (width, dtype)


@pytest.mark.parametrize("dtype", BITS, ids=str)
def test_every_bit_of_the_logits(model, ids, dtype):
    model = copy.deepcopy(model).to(dtype)
    with StatisticOfEveryNorm(1e-5) as mode:
        expected = logits(model, ids)
    assert mode.used == 2 * LAYERS + 1
    rmsnorm.patch(model)
    assert torch.equal(logits(model, ids), expected)


def test_the_same_tokens_for_200_steps(model, ids):
    def greedy():
        mask = torch.ones_like(ids[:1])
        return model.generate(
            ids[:1], attention_mask=mask, min_new_tokens=200, max_new_tokens=200, do_sample=False, pad_token_id=0
        )

    own = greedy()
    rmsnorm.patch(model)
    ours = greedy()
    rmsnorm.unpatch(model)
    assert torch.equal(own, ours)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(model, ids, dynamic):
    """Through inductor, whole: the norms stay what they are, the rest may be fused in another order."""
    torch._dynamo.reset()
    model = copy.deepcopy(model)
    own = logits(model, ids)
    rmsnorm.patch(model)
    reference = logits(model, ids)
    compiled = torch.compile(model.forward, fullgraph=True, dynamic=dynamic)
    with torch.no_grad():
        for cut in (48, 17) if dynamic else (48,):
            found = compiled(ids[:, :cut], use_cache=False).logits
            largest = reference.abs().max()
            assert (found - reference[:, :cut]).abs().max() <= 2.0**-12 * largest
            assert (found - own[:, :cut]).abs().max() <= 2.0**-12 * largest
    torch._dynamo.reset()


def captured(step):
    """A graph of step(), and what it returned; run twice before, as torch wants it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = step()
    return graph, kept


@on_gpu
def test_captured_graph(model, ids):
    """Captured once, replayed with other tokens: the bits of the eager model."""
    model = copy.deepcopy(model).to(torch.bfloat16)
    rmsnorm.patch(model)
    place = ids.clone()

    def step():
        with torch.no_grad():
            return model(place, attention_mask=causal(ids), use_cache=False).logits

    graph, y = captured(step)
    for shift in (0, 1, 5):
        place.copy_((ids + shift) % 4096)
        graph.replay()
        assert torch.equal(y, step())


@on_gpu
@pytest.mark.parametrize("dtype", BITS, ids=str)
@pytest.mark.parametrize("tokens", [1, 96, 16384])
def test_captured_norms(dtype, tokens):
    """A stack of norms and nothing else, forward and backward in one graph, replayed with other numbers: every bit."""
    norms = torch.nn.ModuleList(LlamaRMSNorm(WIDTH) for _ in range(8)).to(DEVICE, dtype)
    assert len(rmsnorm.patch(norms).patched) == 8
    x, dy = (torch.randn(tokens, WIDTH, device=DEVICE).to(dtype) for _ in range(2))
    leaves = [x.requires_grad_(), *norms.parameters()]

    def step():
        y = x
        for norm in norms:
            y = y + norm(y)
        return y, *torch.autograd.grad(y, leaves, dy)

    graph, kept = captured(step)
    for _ in range(3):
        with torch.no_grad():
            for place in (x, dy):
                place.copy_(torch.randn_like(place))
            for tensor in kept:
                tensor.fill_(float("nan"))
        graph.replay()
        for a, b in zip(kept, step(), strict=True):
            assert b.isfinite().all() and torch.equal(a, b)


@on_gpu
def test_captured_training_step(model, ids):
    """Forward and backward of a model in one graph; gradients are those of the eager step, every bit."""
    model = copy.deepcopy(model)
    rmsnorm.patch(model)
    norms = [p for name, p in model.named_parameters() if "norm" in name]
    place = ids.clone()

    def step():
        loss = model(place, attention_mask=causal(ids), labels=place, use_cache=False).loss
        return torch.autograd.grad(loss, norms)

    graph, kept = captured(step)
    for shift in (0, 1, 5):
        place.copy_((ids + shift) % 4096)
        graph.replay()
        for a, b in zip(kept, step(), strict=True):
            assert torch.equal(a, b)


def test_training(model):
    """100 steps with and without patch; training_support.py says what is measured and why."""
    text = torch.randint(0, 200, (8, 65), generator=torch.Generator().manual_seed(4)).to(DEVICE)
    train(model, text, rate=3e-4).check()
