#!/usr/bin/env python3
"""test_kernels.py - every Triton kernel in the interpreter against portable: zero differing bits.

    RMSNORM_LIBRARY=build/librmsnorm.so python3 tests/triton/test_kernels.py [--full] [--seed N] [name ...]

SPDX-License-Identifier: Apache-2.0
"""

import argparse
import importlib.util
import itertools
import sys
import time
from pathlib import Path

if importlib.util.find_spec("numpy") is None:
    print("skipped: the interpreter needs numpy")
    sys.exit(77)
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "src" / "triton")]
import numpy as np  # noqa: E402
import portable  # noqa: E402
from exact import Array, fma  # noqa: E402
from harness import STORED, Case, Problem, decode, differing, encode, launch  # noqa: E402
from rmsnorm_triton.backward import lanes_of  # noqa: E402
from rmsnorm_triton.variants import BOTH, VARIANTS  # noqa: E402

NAMES = {1: "f32", 2: "f16", 3: "bf16"}
CODES = {name: code for code, name in NAMES.items()}
RUNS = {1: 4, 2: 8, 3: 8}


def named(family, **when):
    for v in VARIANTS:
        if v.family == family and all(v.when.get(k) == value for k, value in when.items()):
            return v
    raise LookupError(family, when)


class Tester:
    def __init__(self, library, seed):
        self.library, self.seed = library, seed
        self.ran, self.failures = 0, []

    def check(self, what, p, expected, out):
        for name, tensor in expected.items():
            if bad := differing(tensor, out[name]):
                self.failures.append(f"{what}: {name}: {bad} elements differ: {p}")
                print("FAILED", self.failures[-1], flush=True)
        self.ran += 1

    def forward(self, variant, p, grid):
        p.seed = self.seed + self.ran
        case = Case(p)
        expected, out = case.outputs(), case.outputs()
        case.portable(self.library, expected)
        launch(variant, case.values(out), grid)
        self.check(variant.name, p, expected, out)

    def stats(self, variant, p):
        p.seed = self.seed + self.ran
        case = Case(p)
        expected, out = (np.full(p.units, np.nan, np.float32) for _ in range(2))
        case.stats(self.library, expected)
        values = case.values({})
        values["sumsq_out"] = Array(out)
        launch(variant, values, 3)
        self.check(variant.name + " stats", p, {"sumsq": expected}, {"sumsq": out})

    def backward(self, variants, p, grids):
        p.seed = self.seed + self.ran
        case = Case(p)
        if p.saves_rstd:
            case.save_rstd(self.library)
        expected, out = case.outputs(), case.outputs()
        case.portable(self.library, expected)
        values = case.values(out)
        for variant, grid in zip(variants, grids):
            launch(variant, values, grid)
        if p.dweight and variants[-1].family in ("backward_long", "backward_rows"):
            out["dweight"] = encode(tree(case.partials.reshape(case.chunks.C, -1)), p.dweight)
        if variants[0].type:  # the fast ones give no dots
            expected.pop("dot_out"), out.pop("dot_out")
        self.check(variants[0].name, p, expected, out)


def lengths(lanes, steps, run, fewer):
    """Row lengths that a variant takes, multiples of a run: the longest, the shortest, and odd ones between."""
    least = max(run, (steps - (2 if fewer else 1)) * lanes + run)
    every = [n for n in range(least, steps * lanes + 1, run) if lanes_of(n) == lanes and -(-n // lanes) <= steps]
    return sorted({every[0], every[-1], every[len(every) // 3]}) if every else []


def fast_forward(test, variant, full, turn):
    """`turn` counts the variants: what changes from one problem to the next changes with it."""
    dtype, run = NAMES[variant.type], RUNS[variant.type]
    if variant.family == "forward_long":
        cols, rows = [16384 + 5 * run, 33000], 3
    else:
        lanes, steps = variant.when["lanes"], variant.when["steps"]
        cols = lengths(lanes, steps, run, True)
        rows = variant.tile_rows + 2 if lanes <= 128 and variant.tile_rows else 5
    kinds = {0: [""], 1: [dtype], BOTH: ["", dtype]}[variant.when["residual"]]
    every = list(itertools.product(cols, kinds))
    for i, (n, residual) in enumerate(every if full else [every[turn % len(every)]], turn):
        p = Problem(rows, n, x=dtype, y=dtype, weight=(dtype, "f32", "")[i % 3], residual=residual,
                    residual_out=residual if i % 5 else "", align=run, round_sum=STORED if residual and i % 2 else 0,
                    round_xhat=i % 2, round_rstd=int(i % 4 == 3), weight_offset=float(i % 2),
                    eps=(1e-6, 0.0, 1e-30)[i % 3], live=(None, None, rows - 1, None, 0, rows + 9, -3, 1)[i % 8])
        if variant.family == "forward_few":  # what the plan asks of a problem
            p.weight, p.weight_offset, p.round_rstd, p.live, p.residual_out = dtype, 0.0, 0, None, residual
        grid = -(-p.units // variant.tile_rows) if variant.tile_rows else p.units
        test.forward(variant, p, grid)
    # Heads and groups, each with a weight of its own.
    if variant.when.get("lanes") == 64 and variant.family == "forward_row":
        p = Problem(2, 2 * cols[-1] // run * run, x=dtype, y=dtype, weight=dtype, heads=3, groups=2,
                    weight_shape=turn % 3, residual=kinds[-1], residual_out=kinds[-1], align=run)
        if lanes_of(p.group_cols) == lanes and -(-p.group_cols // lanes) <= steps:
            test.forward(variant, p, -(-p.units // variant.tile_rows))


def fast_backward(test, variant, full, turn):
    dtype, run = NAMES[variant.type], RUNS[variant.type]
    lanes, steps = variant.when["lanes"], variant.when["steps"]
    cols = lengths(lanes, steps, run, True)
    for i, n in enumerate(cols if full else [cols[turn % len(cols)]], turn):
        rows = (23, 9, 40)[i % 3] if lanes <= 256 else 7 if lanes <= 1024 else 3
        p = Problem(rows, n, x=dtype, dy=dtype, dx=dtype, dweight=("f32", dtype)[i % 2], weight=(dtype, "f32")[i % 2],
                    dresidual_out=dtype if i % 2 == 0 else "", align=run, weight_offset=float(i % 2),
                    saves_rstd=i % 2 == 0, heads=1 + 2 * (i % 2))
        p.rows = rows if p.heads == 1 else max(1, rows // 3)
        # Of long rows the sum of the chunks would take most of the time.
        test.backward([variant, named("dweight_sum")] if lanes < 512 else [variant], p, [5, 3])
    if lanes == 64 or full:  # no weight at all
        p = Problem(5, cols[-1], x=dtype, dy=dtype, dx=dtype, align=run, saves_rstd=False)
        test.backward([variant], p, [2])


def tree(rows):
    """A plain pairwise tree over the first axis: what `dweight_sum` does, which takes the interpreter long."""
    while len(rows) > 1:
        pairs = len(rows) // 2 * 2
        rows = np.concatenate([rows[0:pairs:2] + rows[1:pairs:2], rows[pairs:]])
    return rows[0]


def long_backward(test, full):
    """Rows of 8192 columns and more, with a tile that is not whole, and with lanes of two tiles."""
    few = (("bf16", 16392, 3), ("f32", 8196, 2), ("f16", 8200, 3))
    more = (("bf16", 33000, 3), ("f32", 65540, 2), ("f16", 16400, 150), ("bf16", 131072, 20), ("f16", 8200, 520))
    for turn, (dtype, cols, rows) in enumerate(few + more if full else few):
        columns, dx = (named(family, type=CODES[dtype]) for family in ("backward_long", "backward_long_dx"))
        of_sums = [v for v in VARIANTS if v.family == "backward_long_sums" and v.type == CODES[dtype] and
                   v.tile_cols <= lanes_of(cols)]
        for i, wants in enumerate(("both", "dx", "dweight"), turn):
            if not full and wants == "dweight" and turn:
                continue
            heads = 3 if rows % 3 == 0 else 1
            p = Problem(rows // heads, cols, x=dtype, dy=dtype, dx="" if wants == "dweight" else dtype,
                        dweight="" if wants == "dx" else ("f32", dtype)[i % 2], weight=(dtype, "f32")[i % 2],
                        dresidual_out="" if wants == "dweight" or i % 3 == 1 else dtype, align=RUNS[CODES[dtype]],
                        weight_offset=float(i % 2), saves_rstd=i % 2 == 0, heads=heads)
            if wants == "dx":
                test.backward([dx], p, [2])
            else:
                test.backward([of_sums[i % len(of_sums)], columns], p, [3, 5])
        if not turn or full:
            many_rows_a_chunk(test, dtype, of_sums[0], columns)


def chunk_sums(test, full):
    """dweight of many chunks, added in one step and in two: whole branches, one that is not, vectors, odd columns."""
    fold, total = named("dweight_fold"), named("dweight_sum")
    K, rng = fold.constants["K"], np.random.default_rng(test.seed)
    for chunks, vectors, cols in ((4 * K, 1, 65), (5 * K + 3, 2, 24), *(((8192, 1, 70), (7 * K + 1, 3, 129)) * full)):
        partials = rng.standard_normal((vectors, chunks, cols)).astype(np.float32)
        partials[:, :, ::5] = np.where(rng.random(partials[:, :, ::5].shape) < 0.5, np.float32(0.0), np.float32(-0.0))
        expected = np.stack([tree(p) for p in partials])
        for step in (1, K):
            room = np.concatenate([partials.ravel(), np.full(64, 7, np.float32)])
            found = np.full(vectors * cols + 64, 7, np.float32)
            values = {"partials": Array(room), "dweight": Array(found), "chunks": chunks, "chunk_step": step,
                      "dweight_cols": cols, "dweight_vectors": vectors, "dweight_type": 1}
            for variant in (fold, total) if step > 1 else (total,):
                launch(variant, values, 3)
            test.check(f"{chunks} x {cols} chunks, step {step}", None,
                       {"dweight": np.concatenate([expected.ravel(), found[-64:] * 0 + 7]), "end": room[-64:] * 0 + 7},
                       {"dweight": found, "end": room[-64:]})


def many_rows_a_chunk(test, dtype, sums, columns):
    """More rows than are under way at once: the order of docs/numerics.md has so many only from some hundred rows on,
    so they are dealt to three chunks here, and what comes of these is added in numpy."""
    chunks, steps = 3, columns.constants["U"]
    p = Problem(chunks * steps + 2, 8200, x=dtype, dy=dtype, dx=dtype, dweight="f32", weight=dtype, align=8,
                special=False, seed=test.seed + test.ran)
    case = Case(p)
    case.save_rstd(test.library)
    expected, out = case.outputs(), case.outputs()
    case.portable(test.library, expected)
    values = case.values(out) | {"chunks": chunks}
    partials = np.zeros((chunks, p.cols), np.float32)
    for row in range(p.rows):
        xhat = decode(case.inputs["x"].view[row, 0]) * case.rstd[row]
        partials[row % chunks] = fma(decode(case.inputs["dy"].view[row, 0]), xhat, partials[row % chunks])
    case.partials = np.full(chunks * p.cols, np.nan, np.float32)
    values["partials"] = Array(case.partials)
    for variant, grid in ((sums, 4), (columns, 5)):
        launch(variant, values, grid)
    test.check(columns.name + " many rows", p, {"dx": expected["dx"], "partials": partials},
               {"dx": out["dx"], "partials": case.partials.reshape(partials.shape)})


def general(test, full):
    types = ("f32", "f16", "bf16")
    for tile in (256, 2048):
        v = named("general_forward", tile=tile)
        sums, dx = named("general_backward_sums", tile=tile), named("general_backward_dx", tile=tile)
        shapes = [(17, 1), (64, 4), (130, 2), (257, 1), (1000, 1)] if tile == 256 else [(3000, 1), (9001, 1)]
        for i, ((cols, groups), x, residual) in enumerate(itertools.product(shapes, types, ("", "bf16", "f32"))):
            if not full and i % 7 != (2 if tile == 256 else 6):
                continue
            many = 18 if full and cols < 300 else 6
            heads = 1 + i % 3
            w = ("", *types)[i % 4]
            p = Problem(-(-many // heads), cols, x=x, y=types[(i + 1) % 3], weight=w, residual=residual, heads=heads,
                        residual_out=types[i % 3] if residual and i % 2 else "", groups=groups,
                        weight_shape=i % 3, weight_offset=(0.0, 1.0)[i % 2], round_sum=STORED * (i % 2) if residual
                        else 0, round_rstd=i // 2 % 2, round_xhat=i % 4, round_normed=(i // 3) % 4,
                        gate=types[i % 3] if i % 5 > 1 else "", gate_kind=(0, 0, 1, 2, 1)[i % 5],
                        gate_before=i // 5 % 2, eps=(1e-6, 0.0, 1e-20)[i % 3], divisor=(0, 77)[i % 2],
                        given_sums=i % 7 == 6)
            test.forward(v, p, 4)
            if i % 2:
                test.stats(v, p)
            b = Problem(p.rows, cols, x=x, weight=w, residual=residual, residual_out=p.residual_out, heads=heads,
                        groups=groups, weight_shape=p.weight_shape, weight_offset=p.weight_offset,
                        round_sum=p.round_sum, round_rstd=p.round_rstd, gate=p.gate, gate_kind=p.gate_kind,
                        gate_before=p.gate_before, eps=p.eps, divisor=p.divisor, dy=types[(i + 2) % 3],
                        dx=types[i % 3], dresidual=types[(i + 1) % 3] if i % 3 else "",
                        dresidual_out=types[(i // 2) % 3] if i % 2 else "", dgate=types[i % 3] if p.gate else "",
                        dweight=types[i % 3] if w else "", saves_rstd=i % 3 != 0, given_sums=p.given_sums)
            if not b.dweight:
                test.backward([dx], b, [3])
                continue
            n = b.group_cols if b.weight_shape == 2 else b.cols
            weights = named("general_backward_dweight", row_lanes=max(1, 256 // lanes_of(n)))
            test.backward([sums, weights, dx, named("dweight_sum")], b, [3, 4, 2, 2])


def quantised(test, full):
    v = named("general_forward", tile=256)
    i = 0
    for quant, q, block in itertools.product((1, 2, 3, 4), ("fp8_e4m3", "fp8_e5m2", "int8"), (32, 64, 128)):
        if (quant == 4 and (q == "int8" or block != 32)) or (quant < 3 and block != 32):
            continue
        # 3 x 100: blocks over two groups, groups over two tiles; 20 x 3: blocks over many groups
        for cols, groups in ((96, 1), (300, 1), (256, 2), (300, 3), (60, 20)):
            i += 1
            if not full and i % 4 != quant % 4:
                continue
            rows = 19 if full else 9 if groups < 3 else 3
            p = Problem(rows, cols, x=("bf16", "f32", "f16")[i % 3], y=("", "bf16")[i % 2],
                        weight=("bf16", "")[i % 2],
                        quant=quant, quant_type=q, block_cols=block if quant > 2 else 0, scale_op=i % 2 if quant < 4
                        else 0, e8m0_rounding=i % 2 if quant == 4 else 0, groups=groups,
                        scale_max=(0.0, 0.01)[i % 2] if quant in (2, 3) else 0.0, round_normed=i % 2,
                        residual=("", "f32")[i % 2], residual_out=("", "f16")[i % 2])
            test.forward(v, p, 3)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*",
                        help="beginnings of variant names, `backward_long`, `dweight`, `general`, `quantised`")
    parser.add_argument("--full", action="store_true", help="every length and combination, not a thinned set")
    parser.add_argument("--seed", type=int, default=20240607)
    args = parser.parse_args()
    test = Tester(portable.Library(), args.seed)
    started = time.time()
    print(f"seed {args.seed}")
    families = {"forward_row": fast_forward, "forward_few": fast_forward,
                "forward_long": fast_forward, "backward_rows": fast_backward}
    for turn, variant in enumerate(VARIANTS):
        if variant.family in families and (not args.names or any(variant.name.startswith(n) for n in args.names)):
            families[variant.family](test, variant, args.full, turn)
    for name, run in (("backward_long", long_backward), ("dweight", chunk_sums), ("general", general),
                      ("quantised", quantised)):
        if not args.names or name in args.names:
            run(test, args.full)
    print(f"{test.ran} problems, {len(test.failures)} failures, {time.time() - started:.0f} s")
    sys.exit(bool(test.failures))


if __name__ == "__main__":
    main()
