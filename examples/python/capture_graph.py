#!/usr/bin/env python3
"""A decoding step in a CUDA graph: norms in place, as serving engines call them, captured once and replayed.

Without a GPU the same step runs eagerly.

SPDX-License-Identifier: Apache-2.0
"""

import torch
from rmsnorm.torch import preload, serving

cuda = torch.cuda.is_available()
device = "cuda" if cuda else "cpu"
width = 4096
hidden = torch.randn(8, width, device=device).bfloat16()
stream = torch.randn(8, width, device=device).bfloat16()
weight = torch.ones(width, device=device).bfloat16()
q = torch.empty(8, width, device=device, dtype=torch.float8_e4m3fn)
scales = torch.empty(8, 1, device=device)


def step():
    """hidden <- norm(hidden + stream), stream <- the sum; then the norm of that, quantised for an fp8 product."""
    serving.fused_add_rms_norm(hidden, stream, weight, 1e-6, preset="llama")
    serving.rms_norm_dynamic_per_token_quant(q, hidden, weight, scales, 1e-6)


if not cuda:
    step()
    print("no GPU here; the step ran on the CPU. First scales:", scales[:3].ravel().tolist())
    raise SystemExit

preload()  # all kernels are loaded before a capture; a first call outside of it would do as well
kept = hidden.clone(), stream.clone()
step()
want = hidden.clone(), stream.clone(), q.view(torch.uint8).clone(), scales.clone()

hidden.copy_(kept[0]), stream.copy_(kept[1])
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
hidden.copy_(kept[0]), stream.copy_(kept[1])
graph.replay()
torch.cuda.synchronize()
got = hidden, stream, q.view(torch.uint8), scales
print("replayed with the bits of eager:", all(torch.equal(a, b) for a, b in zip(got, want)))
