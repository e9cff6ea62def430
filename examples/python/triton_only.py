"""triton_only.py - the norm as plain Triton kernels, without the C library: for a project that has only Triton.

    python examples/python/triton_only.py

The kernels are the folder src/triton/rmsnorm_triton; it needs triton (3.4 or newer; seen with 3.6) and, for these three
functions, torch. On a GPU they are compiled when they are first used; without one this example lets Triton's
interpreter run them.

SPDX-License-Identifier: Apache-2.0
"""

import sys
from pathlib import Path

import torch

root = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(root / "src" / "triton"))
device = "cuda" if torch.cuda.is_available() else "cpu"
if device == "cpu":  # Triton's interpreter, with the arithmetic of a device, as the tests use it
    sys.path.insert(0, str(root / "tests" / "triton"))
    import exact  # noqa: F401

from rmsnorm_triton import rms_norm, rms_norm_backward, rms_norm_residual  # noqa: E402

torch.manual_seed(0)
x = torch.randn(4, 256, device=device, dtype=torch.bfloat16)
residual = torch.randn_like(x)
weight = torch.randn(256, device=device, dtype=torch.bfloat16)

y, rstd = rms_norm(x, weight, 1e-6, round_xhat=True)
normed, total, _ = rms_norm_residual(x, residual, weight, 1e-6, round_xhat=True)


def formula(t):
    return t.double() * (t.double().pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * weight.double()


results = [
    ("y", y, formula(x)),
    ("y of x + residual", normed, formula(total)),
    ("x + residual", total, (x.float() + residual.float()).bfloat16()),
]
dx, dweight = rms_norm_backward(torch.ones_like(y), x, weight, rstd, 1e-6)
leaf = x.double().requires_grad_()
formula(leaf).sum().backward()
results += [
    ("dx", dx, leaf.grad),
    ("dweight", dweight, (x.double() * (x.double().pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()).sum(0)),
]
for name, found, right in results:
    off = ((found.double() - right.double()).abs() / right.abs().max()).max().item()
    print(f"{name}: within {off:.1e} of the formula: {off < 2**-7}")
