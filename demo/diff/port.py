"""Make port.safetensors: the norms of SmolLM2-135M as a port with one mistake computes them.

    python3 demo/diff/port.py [demo/diff/port.safetensors]

The port took its kernel from a model whose width is a multiple of its block of 512 columns. Here a row has 576, and the
block that is not full is left out of the sum of squares: the last 64 columns are normalised, and do not count. That is
the mistake, and it is made in one norm only, the fused residual add and norm of layer 15; the norms of layer 0 and of the
end are right. Inputs and weights are those of demo/smollm2-135m.safetensors. Needs numpy.

SPDX-License-Identifier: Apache-2.0
"""
import json
import os
import sys

import numpy as np

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(FOLDER))
from llama_rmsnorm import narrow, rmsnorm, rounded, widen  # noqa: E402  (demo/llama_rmsnorm.py)

EPS = 1e-5
BLOCK = 512


def load(path):
    """The bf16 tensors of a safetensors file, as their bits."""
    with open(path, "rb") as file:
        data = file.read()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    return {
        name: np.frombuffer(data[begin + t["data_offsets"][0] : begin + t["data_offsets"][1]], np.uint16).reshape(t["shape"])
        for name, t in header.items()
        if name != "__metadata__" and t["dtype"] == "BF16"
    }


def rmsnorm_of_full_blocks(x, weight, eps):
    """As rmsnorm, but for the block that is not full: it is missing in the sum, and the sum is divided by all columns."""
    h = widen(x)
    full = h.shape[-1] // BLOCK * BLOCK
    mean_square = np.sum(h[:, :full] * h[:, :full], axis=-1, keepdims=True, dtype=np.float32) / np.float32(h.shape[-1])
    rstd = np.float32(1) / np.sqrt(mean_square + np.float32(eps))
    return narrow(widen(weight) * rounded(h * rstd))


def save(path, tensors):
    header, offset = {"__metadata__": {"made_by": "demo/diff/port.py of rmsnorm", "fault": "see there"}}, 0
    for name, t in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(t.shape), "data_offsets": [offset, offset + t.nbytes]}
        offset += t.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text + b"".join(t.tobytes() for t in tensors.values()))


def main():
    model = load(os.path.join(os.path.dirname(FOLDER), "smollm2-135m.safetensors"))
    first, middle, last = "layers.0.input_layernorm", "layers.15.post_attention_layernorm", "norm"
    stream = narrow(widen(model[middle + ".branch"]) + widen(model[middle + ".residual"]))
    save(
        sys.argv[1] if len(sys.argv) > 1 else os.path.join(FOLDER, "port.safetensors"),
        {
            first + ".output": rmsnorm(model[first + ".input"], model[first + ".weight"], EPS),
            middle + ".output": rmsnorm_of_full_blocks(stream, model[middle + ".weight"], EPS),
            last + ".output": rmsnorm(model[last + ".input"], model[last + ".weight"], EPS),
        },
    )


if __name__ == "__main__":
    main()
