#!/usr/bin/env python3
"""Train a small model with rmsnorm.torch, twice: the gradients have no atomics, so both runs end in the same bits.

SPDX-License-Identifier: Apache-2.0
"""

import rmsnorm.torch as rt
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"


class Block(torch.nn.Module):
    """Pre-norm with a residual stream: the add and the norm are one call, and both results have gradients."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = rt.RMSNorm(width, eps=1e-6, preset="llama")
        self.up = torch.nn.Linear(width, 4 * width, bias=False)
        self.down = torch.nn.Linear(4 * width, width, bias=False)

    def forward(self, x, stream):
        y, stream = self.norm(x, stream)
        return self.down(torch.nn.functional.silu(self.up(y))), stream


class Model(torch.nn.Module):
    def __init__(self, width: int = 128, depth: int = 4):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(width) for _ in range(depth))
        self.last = rt.RMSNorm(width, eps=1e-6, preset="llama")

    def forward(self, stream):
        x = torch.zeros_like(stream)
        for block in self.blocks:
            x, stream = block(x, stream)
        return self.last(x, stream)[0]


def train(steps: int = 20) -> torch.Tensor:
    torch.manual_seed(0)
    model = Model().to(device)
    x, target = torch.randn(2, 64, 128, device=device).unbind(0)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        loss = torch.nn.functional.mse_loss(model(x), target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 5 == 0 or step == steps - 1:
            print(f"step {step:2d}  loss {loss.item():.6f}")
    return torch.cat([p.detach().flatten() for p in model.parameters()])


torch.use_deterministic_algorithms(device == "cpu")
first, second = train(), train()
print("the same bits after two runs:", torch.equal(first, second))
