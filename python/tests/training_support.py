"""training_support.py - the same training with and without patch, and how far apart rounding alone would drive them.

Forward, a model and its patched copy are equal but for each norm's rstd, one number a row (test_smollm2.py has every
bit of that). So the measure is a run of the model's own norms whose outputs are multiplied, row by row, by 1 + 2^-23 or
1 - 2^-23: an ulp of rstd, in every row of every norm of every step and, as the factor is in the graph, of every
gradient. Noise in the weights would be no measure: independent in each of n elements, it averages out over a row as
sqrt(n), which is 24 for 576; what rstd is off by, the whole row is.

How many such nudges may a patched run be off by? Its rstd and the model's own differ, with u = 2^-24, a row by
    4 u  a GPU's rsqrtf is within 2 ulp (CUDA C++ Programming Guide); 1 / sqrt on the CPU loses 2 u
    1 u  the library's root is rounded once (docs/numerics.md, 8.1)
    2 u  mean and mean + eps are rounded, u each, in both of them, and the root halves it
    1 u  the two sums of squares. A level of a tree with 2^k partial sums has as many independent errors of a 2^k-th, so
         all levels together have the variance of two roundings: 0.8 u, halved, twice, at two standard deviations
at most: 8 u, which is 4 nudges, the factor. That is the worst row. Of 200000 rows of 576 on the CPU the farthest is at
2.04 nudges, and the root mean square is 0.46, while that of the measure is 1: what is left is the room for two runs
with the same kind of noise to be apart by different amounts. Gradients have their number a row, too (the mean of
dy w xhat, summed in another order), and roundings of single elements, which average out.

Training amplifies: Adam divides a gradient by its size, so the sign of one that is nearly 0 is worth a whole step. So
- several nudged runs are taken, and the farthest of them counts: two with random signs, one with the same sign in all
  rows, since the error of a root may have a direction;
- a run is as far away as its losses of single tokens are, root mean square. The mean loss alone is one number, in which
  distances may cancel by accident, in the measure as in what is measured;
- it is asked after every step, of the largest distance so far. In the first steps, where runs are 1e-6 apart, a fault
  is plain that the end, where they are 1e-2 apart, would hide.
What this can not see: a factor common to all of a parameter's gradients, which Adam divides out. test_families.py can.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import rmsnorm
import torch
from rmsnorm.families import family_of

ULP = 2.0**-23
FACTOR = 4.0
NUDGES = ("random 0", "random 1", "up")


@dataclass
class Curves:
    """Losses of single tokens [steps, tokens]: of the model, patched, and nudged."""

    own: torch.Tensor
    ours: torch.Tensor
    nudged: list[torch.Tensor]

    def apart(self) -> torch.Tensor:
        """The largest distance of the patched run so far, after every step."""
        return _distance(self.ours, self.own)

    def floor(self) -> torch.Tensor:
        """That of the farthest of the nudged runs."""
        return torch.stack([_distance(run, self.own) for run in self.nudged]).amax(0)

    def allowed(self) -> torch.Tensor:
        """A loss is a float32 itself: its last bit is not asked for."""
        return FACTOR * self.floor() + ULP * self.own.square().mean(1).sqrt().cummax(0).values

    def check(self) -> None:
        apart, floor = self.apart(), self.floor()
        mean = self.own.mean(1)
        worst = (apart / self.allowed()).argmax().item()
        print(
            f"loss {mean[0]:.4f} -> {mean[-1]:.4f}; apart {apart[-1]:.3g}, by an ulp of rstd {floor[-1]:.3g}; "
            f"nearest to what is allowed after step {worst + 1}: {apart[worst]:.3g} of {self.allowed()[worst]:.3g}"
        )
        runs = [self.ours, *self.nudged]
        for step in sorted({*(2**i for i in range(len(mean).bit_length())), len(mean)}):
            distances = (f"{_distance(run, self.own)[step - 1]:.3g}" for run in runs)
            print(f"after step {step}: loss {mean[step - 1]:.4f}; patched, nudged: {', '.join(distances)}")
        assert all(run.isfinite().all() for run in (self.own, self.ours, *self.nudged))
        assert mean[-8:].mean() < 0.8 * mean[:8].mean(), "nothing was learned, so nothing is compared"
        assert (apart <= self.allowed()).all(), f"after step {(apart > self.allowed()).nonzero()[0].item() + 1}"


def _distance(run: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (run - other).square().mean(1).sqrt().cummax(0).values


def _nudge(model: torch.nn.Module, how: str) -> None:
    """Multiplies what every norm gives by 1 + ULP or 1 - ULP, one factor for a row."""
    kind, _, seed = how.partition(" ")
    generator = torch.Generator(next(model.parameters()).device).manual_seed(int(seed or 0))

    def hook(norm, args, y):
        signs = torch.ones(*y.shape[:-1], 1, device=y.device)
        if kind == "random":
            signs = 2.0 * torch.randint(0, 2, signs.shape, generator=generator, device=y.device) - 1
        return y * (1 + ULP * signs)

    norms = [module for module in model.modules() if family_of(type(module)) is not None]
    assert norms
    for norm in norms:
        norm.register_forward_hook(hook)


def _run(model: torch.nn.Module, text: torch.Tensor, rate: float, steps: int) -> torch.Tensor:
    """Trains the model on the rows of `text`, one a step."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, fused=True)
    losses = []
    for step in range(steps):
        row = text[step % len(text)]
        logits = model(row[None, :-1]).logits[0]  # so that the last row of the norms has a loss, too
        loss = torch.nn.functional.cross_entropy(logits, row[1:], reduction="none")
        loss.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    return torch.stack(losses).double().cpu()


def train(model: torch.nn.Module, text: torch.Tensor, *, rate: float, steps: int = 100) -> Curves:
    """The runs, each of a copy of the model."""

    def run(prepare) -> torch.Tensor:
        twin = copy.deepcopy(model)
        prepare(twin)
        return _run(twin, text, rate, steps)

    def patch(twin):
        assert rmsnorm.patch(twin).patched

    return Curves(
        own=run(lambda twin: None),
        ours=run(patch),
        nudged=[run(lambda twin, how=how: _nudge(twin, how)) for how in NUDGES],
    )
