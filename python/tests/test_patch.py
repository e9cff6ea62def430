"""test_patch.py - rmsnorm.patch and unpatch: what they may change in a model and what not; what the probe lets through.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from collections import Counter

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import rmsnorm  # noqa: E402
from rmsnorm import families, hub  # noqa: E402
from rmsnorm.patch_models import is_patched  # noqa: E402
from torch import nn  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm  # noqa: E402
from transformers.models.llama.modeling_llama import LlamaRMSNorm  # noqa: E402
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm  # noqa: E402

SMALL = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MOE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
# model type: (what the configuration needs beside SMALL, how many norms of which class)
MODELS = {
    "llama": ({}, {"LlamaRMSNorm": 5}),
    "mistral": ({}, {"MistralRMSNorm": 5}),
    "qwen2": ({}, {"Qwen2RMSNorm": 5}),
    "qwen3": ({}, {"Qwen3RMSNorm": 9}),
    "gemma": ({}, {"GemmaRMSNorm": 5}),
    "gemma2": ({"query_pre_attn_scalar": 16}, {"Gemma2RMSNorm": 9}),
    "gemma3_text": ({"query_pre_attn_scalar": 16}, {"Gemma3RMSNorm": 13}),
    "olmo2": ({}, {"Olmo2RMSNorm": 9}),
    "gpt_oss": (MOE, {"GptOssRMSNorm": 5}),
    "glm4": ({"partial_rotary_factor": 0.5}, {"Glm4RMSNorm": 9}),
    "granite": ({}, {"GraniteRMSNorm": 5}),
    "deepseek_v3": (
        {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 24,
         "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16, "head_dim": 8,
         "num_key_value_heads": 4, **MOE},
        {"DeepseekV3RMSNorm": 9},
    ),
    "mamba2": (
        {"state_size": 8, "num_heads": 8, "head_dim": 16, "n_groups": 1, "expand": 2, "chunk_size": 16},
        {"Mamba2RMSNorm": 3, "MambaRMSNormGated": 2},
    ),
    "qwen3_next": (
        {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
         "layer_types": ["linear_attention", "full_attention"], "shared_expert_intermediate_size": 32, **MOE},
        {"Qwen3NextRMSNorm": 7, "Qwen3NextRMSNormGated": 1},
    ),
    "falcon_h1": (
        {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 8,
         "mamba_chunk_size": 16, "mamba_rms_norm": True},
        {"FalconH1RMSNorm": 5, "FalconH1RMSNormGated": 2},
    ),
}  # fmt: skip


def small_model(kind: str, seed: int = 3, **more) -> nn.Module:
    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(kind, **{**SMALL, **MODELS[kind][0], **more})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():  # weights of norms that are not all alike
        for module in model.modules():
            if families.family_of(type(module)) and getattr(module, "weight", None) is not None:
                module.weight += 0.25 * torch.randn_like(module.weight)
    return model


def small_model_config_only(kind: str) -> nn.Module:
    config = transformers.AutoConfig.for_model(kind, **{**SMALL, **MODELS[kind][0]})
    return transformers.AutoModelForCausalLM.from_config(config)


IDS = torch.arange(3, 35).reshape(2, 16)


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


@pytest.mark.parametrize("kind", MODELS)
def test_models(kind):
    """The right number of norms, the same objects before and after, nearly the same logits (exactly the same ones need
    the same statistic, see test_families.py and test_smollm2.py)."""
    model = small_model(kind)
    before = dict(model.named_modules())
    classes = {name: type(module) for name, module in before.items()}
    state = {name: value.clone() for name, value in model.state_dict().items()}
    own = logits(model)

    report = rmsnorm.patch(model)
    assert Counter(text.split(":")[0] for text in report.patched.values()) == MODELS[kind][1]
    assert not report.left, report
    assert list(model.state_dict()) == list(state)
    ours = logits(model)
    assert (ours - own).abs().max() <= 1e-4 * own.abs().max()
    again = rmsnorm.patch(model)
    assert not again.patched
    assert len(again.already) == len(report.patched)

    assert rmsnorm.unpatch(model) == len(report.patched)
    after = dict(model.named_modules())
    assert before.keys() == after.keys()
    assert all(after[name] is before[name] and type(after[name]) is classes[name] for name in before)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(logits(model), own)
    assert rmsnorm.unpatch(model) == 0


def test_t5_and_a_norm_by_itself():
    config = transformers.T5Config(
        vocab_size=96, d_model=32, d_kv=8, d_ff=32, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    model = transformers.T5ForConditionalGeneration(config).eval()
    assert len(rmsnorm.patch(model).patched) == 2 * 2 + 1 + 2 * 3 + 1
    norm = LlamaRMSNorm(64)
    assert list(rmsnorm.patch(norm).patched) == [""]
    assert is_patched(norm)


def test_q_and_k_norms_are_called_on_views_without_copies(monkeypatch):
    """Qwen3 norms q and k per head on views of the projections; their order in memory comes back as it went in."""
    norm = LlamaRMSNorm(16)
    rmsnorm.patch(norm)
    packed = torch.randn(2, 5, 3 * 64)
    q = packed[..., 64:128].view(2, 5, 4, 16)
    for x in (q, q.transpose(1, 2), packed[0, :, 3:19], torch.randn(16, 7).t(), torch.randn(16), torch.randn(3, 1, 16)):
        y, own = norm(x), LlamaRMSNorm.forward(norm, x)
        assert y.stride() == own.stride() or x.stride(-1) != 1
        torch.testing.assert_close(y, own, rtol=1e-5, atol=1e-5)


def test_what_the_library_does_not_take_runs_through_the_class():
    norm = LlamaRMSNorm(16)
    rmsnorm.patch(norm)
    x = torch.randn(4, 16, dtype=torch.float64)
    assert torch.equal(norm(x), LlamaRMSNorm.forward(norm, x))
    assert norm(torch.empty(0, 16)).shape == (0, 16)
    assert copy.deepcopy(norm).to("meta")(torch.empty(3, 16, device="meta")).device.type == "meta"
    with pytest.raises((RuntimeError, ValueError)):
        norm(torch.randn(4, 17))
    for odd in (torch.nested.nested_tensor([x.float(), x[:2].float()]), x.float().to_sparse(), x.float().to_mkldnn()):
        said = []
        for forward in (norm, lambda odd: LlamaRMSNorm.forward(norm, odd)):
            try:
                said.append(type(forward(odd)))
            except RuntimeError as error:
                said.append(str(error).splitlines()[0])
        assert said[0] == said[1], odd.layout
    norm.weight.data = norm.weight.data.double()
    assert norm(torch.randn(4, 16)).dtype == torch.float64


def _jvp(norm, x):
    return torch.func.jvp(norm, (x,), (torch.ones_like(x),))[1]


def _forward_mode(norm, x):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(norm(forward_ad.make_dual(x, torch.ones_like(x)))).tangent


def _for_each_row(norm, x):
    def loss(weight, row):
        return torch.func.functional_call(norm, {"weight": weight}, (row,)).sum()

    return torch.vmap(torch.func.grad(loss), (None, 0))(norm.weight.detach(), x)


def _through_autocast(norm, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return norm(x)


def _with_checkpoint(norm, x):
    leaf = x.clone().requires_grad_()
    torch.utils.checkpoint.checkpoint(norm, leaf, use_reentrant=False).sum().backward()
    return leaf.grad


ROUTES = {
    "vmap": lambda norm, x: torch.vmap(norm)(x),
    "gradient of each row": _for_each_row,
    "jvp": _jvp,
    "forward mode": _forward_mode,
    "compiled jvp": lambda norm, x: torch.compile(lambda x: _jvp(norm, x), fullgraph=True, backend="eager")(x),
    "trace": lambda norm, x: torch.jit.trace(norm, (torch.ones_like(x),))(x),
    "export": lambda norm, x: torch.export.export(norm, (x,)).module()(x),
    "autocast": _through_autocast,
    "checkpoint": _with_checkpoint,
    "inference mode": lambda norm, x: torch.inference_mode()(norm)(x),
}


@pytest.mark.parametrize("route", ROUTES)
def test_other_ways_to_call_a_module(route):
    norm = LlamaRMSNorm(16)
    with torch.no_grad():
        norm.weight.normal_()
    x = torch.randn(4, 16)
    own = ROUTES[route](norm, x)
    rmsnorm.patch(norm)
    ours = ROUTES[route](norm, x)
    assert ours.dtype == own.dtype
    torch.testing.assert_close(ours, own, rtol=1e-5, atol=1e-6)


def test_a_gradient_of_a_gradient_is_refused():
    norm = LlamaRMSNorm(16)
    rmsnorm.patch(norm)
    x = torch.randn(4, 16, requires_grad=True)
    (dx,) = torch.autograd.grad(norm(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="gradient of the gradient"):
        dx.sum().backward()


def test_eps_and_weight_are_read_at_every_call():
    norm = LlamaRMSNorm(16)
    rmsnorm.patch(norm)
    x = torch.randn(4, 16) * 1e-3
    norm.variance_epsilon = 0.5
    torch.testing.assert_close(norm(x), LlamaRMSNorm.forward(norm, x))
    norm.weight = nn.Parameter(torch.full((16,), 3.0))
    torch.testing.assert_close(norm(x), LlamaRMSNorm.forward(norm, x))


def test_copies_pickles_and_moves():
    model = small_model("qwen3")
    rmsnorm.patch(model)
    reference = logits(model)

    twin = copy.deepcopy(model)
    assert all(is_patched(a) == is_patched(b) for a, b in zip(model.modules(), twin.modules(), strict=True))
    assert torch.equal(logits(twin), reference)
    with torch.no_grad():
        twin.model.norm.weight.zero_()
    assert torch.equal(logits(model), reference)  # nothing is shared with the copy
    assert rmsnorm.unpatch(twin) == 9

    again = pickle.loads(pickle.dumps(model))
    assert sum(map(is_patched, again.modules())) == 9
    assert torch.equal(logits(again), reference)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    assert torch.equal(logits(torch.load(buffer, weights_only=False)), reference)

    plain = small_model("qwen3")
    plain.load_state_dict(model.state_dict())
    plain.load_state_dict(model.state_dict(), assign=True)
    assert model.to(torch.bfloat16).model.norm.weight.dtype == torch.bfloat16
    assert model(IDS).logits.dtype == torch.bfloat16
    assert is_patched(model.model.norm)
    meta = copy.deepcopy(model).to("meta")
    assert meta(IDS.to("meta")).logits.device.type == "meta"
    assert model.half()(IDS).logits.dtype == torch.float16


def test_a_pickle_of_another_release_is_asked_again(monkeypatch):
    """The class was patched, pickled, and is something else where it is unpickled."""
    norm = LlamaRMSNorm(16)
    rmsnorm.patch(norm)
    pickled = pickle.dumps(norm)
    monkeypatch.setattr(LlamaRMSNorm, "forward", lambda self, hidden_states: hidden_states * 2)
    with pytest.warns(UserWarning, match="not patched any more"):
        norm = pickle.loads(pickled)
    assert type(norm) is LlamaRMSNorm
    assert torch.equal(norm(torch.ones(2, 16)), torch.full((2, 16), 2.0))
    monkeypatch.undo()
    assert is_patched(pickle.loads(pickled))


def test_hooks_attributes_and_isinstance_stay():
    model = small_model("llama")
    seen = []
    model.model.norm.register_forward_hook(lambda module, args, y: seen.append(y))
    model.model.norm.marked = 1
    rmsnorm.patch(model)
    logits(model)
    assert len(seen) == 1
    norm = model.model.norm
    assert isinstance(norm, LlamaRMSNorm)
    assert norm.marked == 1
    assert "rmsnorm: llama" in repr(norm)
    assert type(norm).__name__ == "LlamaRMSNorm"
    assert torch.equal(norm(hidden_states=IDS.new_ones(1, 64).float()), norm(IDS.new_ones(1, 64).float()))
    rmsnorm.unpatch(model)
    logits(model)
    assert len(seen) >= 2


def test_training_reaches_the_shared_parameters():
    model = small_model("llama").train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # made before patch, as a trainer may
    rmsnorm.patch(model)
    before = model.model.norm.weight.clone()
    model(IDS, labels=IDS).loss.backward()
    optimizer.step()
    assert not torch.equal(model.model.norm.weight, before)
    rmsnorm.unpatch(model)
    assert model.model.norm.weight.grad is not None


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_without_graph_breaks(dynamic):
    torch._dynamo.reset()
    model = small_model("qwen3")
    rmsnorm.patch(model)
    reference = logits(model)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model.model, fullgraph=True, dynamic=dynamic, backend=backend)
    with torch.no_grad():
        torch.testing.assert_close(model.lm_head(compiled(IDS).last_hidden_state), reference, rtol=1e-5, atol=1e-6)
    calls = [node for graph in graphs for node in graph.graph.nodes if "rmsnorm" in str(node.target)]
    assert len(calls) == 9, "the norms are not in the graph as operators"
    rmsnorm.unpatch(model)
    torch._dynamo.reset()


def test_a_compiled_module_notices_patch_and_unpatch():
    torch._dynamo.reset()
    torch.manual_seed(0)
    norm = LlamaRMSNorm(576).bfloat16()
    x = torch.randn(400, 576).bfloat16()
    with torch.no_grad():
        norm.weight.normal_()
        compiled = torch.compile(norm, fullgraph=True, backend="aot_eager")
        own = norm(x)
        assert torch.equal(compiled(x), own)
        rmsnorm.patch(norm)
        ours = norm(x)
        assert not torch.equal(ours, own)  # so many elements that some last bit differs
        assert torch.equal(compiled(x), ours)
        rmsnorm.unpatch(norm)
        assert torch.equal(compiled(x), own)
        # Where it is inside of something, the compiler keeps no eye on its class.
        for function in (lambda x: norm(x), nn.Sequential(norm)):
            compiled = torch.compile(function, fullgraph=True, backend="eager")
            assert torch.equal(compiled(x), own)
            rmsnorm.patch(norm)
            assert torch.equal(compiled(x), ours)
            rmsnorm.unpatch(norm)
            assert torch.equal(compiled(x), own)
    torch._dynamo.reset()


def test_patch_among_tensors_without_memory():
    with torch._subclasses.FakeTensorMode(), torch.device("meta"):
        norm = nn.RMSNorm(64, 1e-6)
        assert list(rmsnorm.patch(norm).patched) == [""]
        assert norm(torch.empty(3, 64)).shape == (3, 64)


def test_weights_that_are_kept_elsewhere():
    """Parametrised modules and the replicas of DataParallel have no weight among their parameters."""
    norm = LlamaRMSNorm(16)
    rmsnorm.patch(norm)
    x = torch.randn(4, 16)
    replica = norm._replicate_for_data_parallel()
    replica.weight = 3 * norm.weight.detach()
    torch.testing.assert_close(replica(x), 3 * norm(x))
    torch.nn.utils.parametrize.register_parametrization(norm, "weight", nn.Softplus())
    torch.testing.assert_close(norm(x), LlamaRMSNorm.forward(norm, x))


def test_unpatch_under_a_class_that_was_made_since():
    """A parametrisation made a class on top of ours; sharding does the same."""
    norm, other = LlamaRMSNorm(576), LlamaRMSNorm(576)
    x = torch.randn(64, 576)
    for module in (norm, other):
        rmsnorm.patch(module)
        torch.nn.utils.parametrize.register_parametrization(module, "weight", nn.Softplus())
    own, ours = LlamaRMSNorm.forward(norm, x), norm(x)
    assert not torch.equal(ours, own)
    assert rmsnorm.patch(norm).already == {"": "LlamaRMSNorm: llama"}
    assert rmsnorm.unpatch(norm) == 1
    assert torch.equal(norm(x), own)
    assert torch.nn.utils.parametrize.is_parametrized(norm)
    assert rmsnorm.unpatch(norm) == 0
    assert is_patched(other)
    torch.nn.utils.parametrize.remove_parametrizations(norm, "weight")
    assert type(norm) is LlamaRMSNorm


@pytest.mark.parametrize("kind", ["qwen3_next", "gemma3_text"])
def test_compile_of_norms_in_a_view(kind):
    torch._dynamo.reset()
    model = small_model(kind)
    rmsnorm.patch(model)
    norms = [m for m in model.modules() if is_patched(m)]
    for norm in {type(m): m for m in norms}.values():
        width = norm.weight.shape[0]
        x = torch.randn(2, 3, 4, width).transpose(1, 2)
        arguments = (x, torch.randn_like(x)) if type(norm)._rmsnorm_plan.gate else (x,)
        with torch.no_grad():
            y = norm(*arguments)
            z = torch.compile(norm, fullgraph=True, dynamic=True, backend="aot_eager")(*arguments)
        assert torch.equal(y, z)
        assert y.stride() == z.stride()
    torch._dynamo.reset()


# ----------------------------------------------------------------------------------------------------------------------
# What is not patched.
class MyNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.variance_epsilon = 1e-6

    def forward(self, hidden_states):
        return LlamaRMSNorm.forward(self, hidden_states)


class CoolRMSNorm(MyNorm):
    pass


def test_unknown_classes_are_left_and_listed():
    model = nn.ModuleDict({"a": CoolRMSNorm(16), "b": LlamaRMSNorm(16), "c": nn.LayerNorm(16), "d": MyNorm(16)})
    report = rmsnorm.patch(model)
    assert list(report.patched) == ["b"]
    assert report.left == {"a": "CoolRMSNorm: unknown class", "d": "MyNorm: unknown class"}
    assert "1 norms patched" in str(report)
    assert "CoolRMSNorm" in str(report)
    assert type(model["a"]) is CoolRMSNorm
    added = rmsnorm.patch(model, also={CoolRMSNorm: "llama", MyNorm: "olmo2"})
    assert list(added.patched) == ["a"]
    assert "is not what its name says" in added.left["d"]
    with pytest.raises(ValueError, match="there is no family"):
        rmsnorm.patch(model, also={MyNorm: "lama"})


def _called_llama(core):
    """A class of that name that computes something else: core(x, weight, eps)."""

    def forward(self, hidden_states):
        return core(hidden_states, self.weight, self.variance_epsilon)

    return type("LlamaRMSNorm", (LlamaRMSNorm,), {"forward": forward})


def _llama(x, w, e):
    return w * _normed(x, e).to(x.dtype)


def _normed(x, e):
    return x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + e)


def _last_bit(x, w, e):
    y = _llama(x, w, e)
    return torch.nextafter(y, y.new_tensor(float("inf"))) if x.dtype == w.dtype == torch.float32 else y


IMPOSTORS = {
    "x-hat not rounded": lambda x, w, e: (w * _normed(x, e)).to(torch.promote_types(x.dtype, w.dtype)),
    "weight with an offset": lambda x, w, e: (1 + w) * _normed(x, e).to(x.dtype),
    "eps outside of the root": lambda x, w, e: (
        w * (x.float() / (x.float().pow(2).mean(-1, keepdim=True).sqrt() + e)).to(x.dtype)
    ),
    "another eps": lambda x, w, e: _llama(x, w, 1e-5),
    "no eps": lambda x, w, e: _llama(x, w, 0.0),
    "statistic of n - 1": lambda x, w, e: (
        w * (x.float() * torch.rsqrt(x.float().pow(2).sum(-1, keepdim=True) / (x.shape[-1] - 1) + e)).to(x.dtype)
    ),
    "mean subtracted": lambda x, w, e: _llama(x - x.mean(-1, keepdim=True), w, e),
    "sum in the type of x": lambda x, w, e: w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + e)).to(x.dtype),
    "factor rounded": lambda x, w, e: w * x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + e).to(x.dtype),
    "type of x comes back": lambda x, w, e: _llama(x, w, e).to(x.dtype),
    "last column forgotten": lambda x, w, e: (
        w * (x.float() * torch.rsqrt(x[..., :-1].float().pow(2).sum(-1, keepdim=True) / x.shape[-1] + e)).to(x.dtype)
    ),
    "another last bit": _last_bit,
    "fails": lambda x, w, e: 1 / 0,
    "returns a pair": lambda x, w, e: (_llama(x, w, e), None),
}


@pytest.mark.parametrize("kind", IMPOSTORS)
@pytest.mark.parametrize("width", [8, 64, 576])
def test_probe_refuses_a_class_of_the_right_name(kind, width):
    norm = _called_llama(IMPOSTORS[kind])(width)
    report = rmsnorm.patch(norm)
    assert not report.patched
    assert "is not what its name says" in report.left[""]
    assert not is_patched(norm)


def test_probe_takes_the_same_arithmetic_in_other_words():
    def quotient(x, w, e):
        return w * (x.float() / torch.sqrt(x.float().pow(2).mean(-1, keepdim=True) + e)).to(x.dtype)

    def reciprocal(x, w, e):
        factor = 1.0 / torch.sqrt((x.float() * x.float()).sum(-1, keepdim=True) / x.shape[-1] + e)
        return (factor * x.float()).type_as(x) * w

    assert rmsnorm.patch(_called_llama(_llama)(64)).patched
    assert rmsnorm.patch(_called_llama(reciprocal)(64)).patched
    # One rounding less than x * rsqrt(v): other bits.
    assert not rmsnorm.patch(_called_llama(quotient)(64)).patched


def test_every_family_refuses_the_classes_of_the_others():
    """One class of each arithmetic under the name of every other family: the probe, not the name, decides."""
    from families_support import instance, known_classes

    first = {}
    for cls in known_classes().values():
        first.setdefault(families.family_of(cls).name, cls)
    pairs = """gemma=gemma, groups/gemma3n=olmo2/gemma3n=torch/olmo2=torch/gemma3n=gemma, 1 + w rounded/llama=xlstm/
               llama, other names=xlstm/llama=llama, other names"""
    same = {frozenset(pair.strip().split("=")) for pair in pairs.split("/")}  # but for the name of an attribute
    tried = 0
    for name, cls in first.items():
        for family in families.FAMILIES:
            gated = "ated" in cls.__name__
            if family.name == name or {family.name, name} in same or bool(family.gate) != gated:
                continue
            if family.weight == "none" and families.family_named(name).weight != "none":
                continue
            if name == "no weight" and family.weight == "optional":
                continue  # without a weight they are the same
            module = instance(cls, families.family_named(name), 32)
            # so that the name of an attribute is not what tells them apart
            module.eps = module.variance_epsilon = 1.25e-5
            for attribute, value in (("activation", "silu"), ("norm_before_gate", True), ("n_groups", 1)):
                if not hasattr(module, attribute):
                    setattr(module, attribute, value)
            if "weight" not in module._parameters and family.weight in ("required", "plus one"):
                continue
            twin = type(cls.__name__, (cls,), {})
            module.__class__ = twin
            report = rmsnorm.patch(module, also={twin: family.name})
            assert not report.patched, f"{cls.__name__} passes as {family.name}"
            tried += 1
    assert tried > 60


def test_instances_with_something_of_their_own_are_left():
    norm = LlamaRMSNorm(16)
    norm.forward = lambda hidden_states: hidden_states
    assert "replaced on the instance" in rmsnorm.patch(norm).left[""]
    norm = LlamaRMSNorm(16)
    norm.bias = nn.Parameter(torch.zeros(16))
    assert "bias" in rmsnorm.patch(norm).left[""]
    norm = LlamaRMSNorm(16)
    norm.variance_epsilon = torch.tensor(1e-6)
    assert "eps" in rmsnorm.patch(norm).left[""]
    norm = LlamaRMSNorm(16)
    norm.inner = nn.Linear(2, 2)
    assert "modules inside" in rmsnorm.patch(norm).left[""]
    assert "dimensions" in rmsnorm.patch(nn.RMSNorm((4, 4))).left[""]
    assert "empty" in rmsnorm.patch(LlamaRMSNorm(0)).left[""]


def test_a_model_without_memory_is_patched_before_it_is_loaded():
    with torch.device("meta"):
        model = small_model_config_only("qwen3")
        assert len(rmsnorm.patch(model).patched) == 9
    model = model.to_empty(device="cpu")
    reference = small_model("qwen3")
    model.load_state_dict(reference.state_dict())
    rmsnorm.patch(reference)
    norm, twin = model.model.layers[0].self_attn.q_norm, reference.model.layers[0].self_attn.q_norm
    x = torch.randn(2, 3, 4, 16)
    assert is_patched(norm)
    assert torch.equal(norm(x), twin(x))


def test_importing_the_base_loads_no_torch():
    script = "import sys, rmsnorm; assert callable(rmsnorm.patch) and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
    script = "import sys, rmsnorm.families; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_patching_leaves_the_random_numbers_and_the_defaults_alone():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    torch.set_default_device("meta")
    try:
        with torch.device("cpu"):
            norm = LlamaRMSNorm(24)
        assert rmsnorm.patch(norm).patched
    finally:
        torch.set_default_device(None)
    assert torch.equal(torch.rand(3), expected)


# ----------------------------------------------------------------------------------------------------------------------
# The layers for the hub's slots.
def _bound(module, layer):
    module.forward = layer.forward.__get__(module)
    return module


@pytest.mark.parametrize("cls", [LlamaRMSNorm, Olmo2RMSNorm, Gemma3RMSNorm])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_hub_layer_is_what_patch_gives(cls, dtype):
    torch._dynamo.reset()
    torch.manual_seed(0)
    patched, layered = cls(64).to(dtype), cls(64).to(dtype)
    with torch.no_grad():
        layered.weight.copy_(patched.weight.normal_())
    rmsnorm.patch(patched)
    _bound(layered, hub.RMSNorm)
    x = torch.randn(5, 64, dtype=dtype)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, z = patched(a), layered(b)
    assert torch.equal(y, z)
    y.sum().backward()
    z.sum().backward()
    assert torch.equal(a.grad, b.grad)
    assert torch.equal(patched.weight.grad, layered.weight.grad)
    hub._norms.clear()
    hub._index.clear()  # so that the compiler is the first to ask
    compiled = torch.compile(layered, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert torch.equal(compiled(x), y)


def test_hub_layer_leaves_what_it_does_not_know_to_the_class():
    norm = _bound(CoolRMSNorm(16), hub.RMSNorm)
    x = torch.randn(3, 16)
    assert torch.equal(norm(x), LlamaRMSNorm.forward(norm, x))
    impostor = _bound(_called_llama(IMPOSTORS["mean subtracted"])(16), hub.RMSNorm)
    assert torch.equal(impostor(x), type(impostor).forward(impostor, x))


SLOTS = {"Qwen3NextRMSNorm": "RMSNormZeroCentered", "Qwen3NextRMSNormGated": "RMSNormGated", "LlamaRMSNorm": "RMSNorm"}


def test_hub_layers_through_kernels(monkeypatch):
    kernels = pytest.importorskip("kernels")
    mapped = {hub.RMSNorm.forward, hub.RMSNormGated.forward}
    for kind, count in (("qwen3_next", 8), ("llama", 5)):
        model = small_model(kind)
        own = logits(model)
        for module in model.modules():
            # transformers names the slot itself when the release of kernels is one that it likes
            if type(module).__name__ in SLOTS:
                monkeypatch.setattr(type(module), "kernel_layer_name", SLOTS[type(module).__name__], raising=False)
        inference, training = kernels.Mode.INFERENCE, kernels.Mode.TRAINING
        for mode in (inference, training, inference | kernels.Mode.TORCH_COMPILE):
            with kernels.use_kernel_mapping(hub.mapping(), inherit_mapping=False):
                kernels.kernelize(model, mode=mode, device="cpu")
            layers = [getattr(m.__dict__.get("forward"), "__func__", None) in mapped for m in model.modules()]
            assert sum(layers) == count
            ours = logits(model)
            assert (ours - own).abs().max() <= 1e-4 * own.abs().max()
            assert not torch.equal(ours, own)
        assert not rmsnorm.patch(model).patched  # they run through the library already
        with kernels.use_kernel_mapping({}, inherit_mapping=False):
            kernels.kernelize(model, mode=kernels.Mode.INFERENCE, device="cpu")  # its own forward, on each instance
        assert torch.equal(logits(model), own)
        assert len(rmsnorm.patch(model).patched) == count
        assert torch.equal(logits(model), ours)
        rmsnorm.unpatch(model)
        assert torch.equal(logits(model), own)


def test_only_a_module_is_patched():
    with pytest.raises(TypeError, match="^model: a torch.nn.Module is needed, not dict$"):
        rmsnorm.patch({})
