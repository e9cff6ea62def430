#!/usr/bin/env python3
"""aot.py - compile the Triton kernels ahead of time: binaries and a manifest, without a GPU and without torch.

    python3 src/triton/aot.py --out DIR [--targets sm_90,gfx942] [--kernels forward_row,...] [--list] [--jobs 2]

RMSNORM_TRITON_TARGETS and RMSNORM_TRITON_KERNELS (comma separated; kernels: beginnings of variant names) are the
defaults of the two lists, RMSNORM_TRITON_TEXT=1 that of --text. The manifest says of every binary what a host must
know; nothing in it is guessed:

    entry              the symbol
    warps, warp_size   threads = warps * warp_size, in x
    shared             bytes of dynamic shared memory
    parameters         in order: name, type, align (of a pointer in bytes; of an integer, a number that divides it)
    hidden_pointers    pointers after those, counted in the binary's own parameter list; pass NULL
    when, tile_rows, tile_cols, any_grid       which problems it is for, and how programs map to the work

Names of parameters, each with one meaning everywhere (p is the library's problem; unit = (row * heads + head) *
groups + group; strides in elements):

    x residual gate weight y residual_out q dy dresidual_out dx dresidual dgate     tensors; address 0 = absent
    NAME_row_stride NAME_head_stride, weight_head_stride weight_group_stride        i64
    NAME_type, weight_type, dweight_type     i32: rmsnorm_dtype, 0 = absent
    rstd_out rstd_in sumsq_in sumsq_out dot_in dot_out scale_in     f32, packed over units (scale_in: one number)
    scale_out, scale_row_stride scale_block_stride                  bytes or f32, by `quant`
    rows heads groups units cols group_cols; lanes = W(group_cols)
    divisor eps weight_offset scale_max     f32; weight_offset is -0 where there is none, or no weight
    round_sum round_rstd round_xhat round_normed     rmsnorm_dtype; 1 (f32) or 0 = not rounded
    gate_kind gate_before quant quant_type scale_op e8m0_rounding block_cols     as in rmsnorm.h
    live_rows live_most live_factor     rows there are: clamp(*live_rows, 0, live_most) * live_factor
    sums        f32 [units, 3]: power, r and dot of every unit (backward_long and general backward, with dweight)
    partials    f32 [dweight_vectors, chunks, dweight_cols]
    chunk_step     dweight_sum: every so many chunks there is one to be added
    chunks row_lanes unit_rows     C, P, B of docs/numerics.md 4.1;  dweight_rows dweight_cols dweight_vectors

Fixed for every kernel, because the bits depend on it: no fusion of a product and a sum that the source does not fuse,
subnormals kept. Line information is left out: it would put paths of the builder into the binaries.

SPDX-License-Identifier: Apache-2.0
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import re
import sys
import tempfile
from pathlib import Path

TARGETS = ["sm_80", "sm_89", "sm_90", "sm_100", "sm_120", "gfx90a", "gfx942", "gfx950"]
TRITON = "3.6.0"  # the binaries of another one may have other hidden parameters, and other bits
FLAGS = {"enable_fp_fusion": False, "flush_denormals": False, "line_info": False}
sys.path.insert(0, str(Path(__file__).resolve().parent))


def chosen(names, beginnings):
    return [v for v in names if not beginnings or any(v.name.startswith(b) for b in beginnings)]


def hidden_pointers(target, asm, known):
    """Parameters of the binary past the ones the kernel was written with."""
    if target.startswith("sm_"):
        head = re.search(r"\.visible \.entry \w+\((.*?)\)", asm["ptx"], re.S).group(1)
        every = re.findall(r"\.param \.(?:\w+ )+", head)
    else:
        # The metadata of a code object names the kind of each argument; the driver itself fills in what is `hidden_`.
        every = re.findall(r"^\s+(?:- )?\.value_kind:\s+(?!hidden_)\w+", asm["amdgcn"], re.M)
    return len(every) - known


# Bytes of local memory that a program may have.
LOCAL = {"sm_80": 166912, "sm_89": 101376, "sm_90": 232448, "sm_100": 232448, "sm_120": 101376}
SIZES = {1: 4, 2: 2, 3: 2}  # of an rmsnorm_dtype


def is_for(target, variant):
    """On AMD the gradients of a row of more than 12288 narrow numbers do not fit into registers: those rows have two
    passes there, as longer ones have everywhere."""
    c = variant.constants
    return not (target.startswith("gfx") and variant.family == "backward_rows" and SIZES[variant.type] == 2 and
                c["W"] * c["J"] > 12288)


def constants_for(target, variant):
    """Rows are fetched ahead into local memory where there is enough of it; on AMD they are not. There a program has at
    least 64 threads, and so many chunks side by side that each of them has words of 16 bytes."""
    constants = dict(variant.constants)
    if target.startswith("gfx") and constants.get("J", 8) <= 4 and "Q" in constants:
        while constants["Q"] * constants["P"] * constants["W"] // constants["S"] < 64 * 16 // SIZES[variant.type]:
            constants["Q"] *= 2
    while constants.get("STAGES", 1) > 1:
        # One row fewer than stages lies there: of x and dy, or, with one less again, of the residual's gradient, too.
        row = constants["Q"] * constants["P"] * constants["W"] * constants["J"] * SIZES[variant.type]
        most = max(2 * (constants["STAGES"] - 1), 3 * max(1, constants["STAGES"] - 2))
        if not target.startswith("gfx") and most * row + 4096 <= LOCAL[target]:
            break
        constants["STAGES"] -= 1
    return constants


def build(target, variant, ttir=None):
    """(bytes of the binary, its entry of the manifest, its texts). `ttir`: a file with what the front end made of it
    for another target of the same maker; the target has no part in that."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    import triton

    cuda = target.startswith("sm_")
    gpu = GPUTarget("cuda", int(target[3:]), 32) if cuda else GPUTarget("hip", target, 64)
    parameters = variant.parameters
    signature = {name: "constexpr" for name in variant.kernel.arg_names} | {n: t for n, t, _ in parameters}
    at = {name: i for i, name in enumerate(variant.kernel.arg_names)}
    attrs = {(at[n],): [["tt.divisibility", align]] for n, _, align in parameters if align > 1}
    constants = constants_for(target, variant)
    source = ASTSource(fn=variant.kernel, signature={n: signature[n] for n in variant.kernel.arg_names},
                       constexprs=constants, attrs=attrs)
    options = {"num_warps": variant.warps(gpu.warp_size), "num_ctas": 1, "enable_fp_fusion": False}
    options |= {"enable_reflect_ftz": False} if cuda else {"allow_flush_denorm": False}
    if cuda and variant.registers:
        options["maxnreg"] = variant.registers
    kernel = triton.compile(str(ttir) if ttir else source, target=gpu, options=options)
    meta = kernel.metadata
    kind = "cubin" if cuda else "hsaco"
    binary = kernel.asm[kind]
    scratch = {"global_scratch": getattr(meta, "global_scratch_size", 0) or 0,
               "profile_scratch": getattr(meta, "profile_scratch_size", 0) or 0}
    if any(scratch.values()):
        raise SystemExit(f"{variant.name} for {target} wants scratch memory, which no host gives it: {scratch}")
    entry = {
        "family": variant.family, "name": variant.name, "target": target, "file": f"{variant.name}.{target}.{kind}",
        "entry": meta.name, "warps": meta.num_warps, "warp_size": gpu.warp_size, "shared": meta.shared,
        "hidden_pointers": hidden_pointers(target, kernel.asm, len(parameters)),
        "parameters": [{"name": n, "type": t} | ({"align": a} if a > 1 else {}) for n, t, a in parameters],
        "when": variant.when, "tile_rows": constants.get("Q", variant.tile_rows), "tile_cols": variant.tile_cols,
        "any_grid": variant.any_grid, **scratch, "sha256": hashlib.sha256(binary).hexdigest(),
    }
    return binary, entry, kernel.asm


def build_one(task):
    """One variant for all its targets; the front end works once for each maker."""
    index, targets, out, keep_text = task
    from rmsnorm_triton.variants import VARIANTS

    entries, front = [], {}
    targets = [target for target in targets if is_for(target, VARIANTS[index])]
    with tempfile.TemporaryDirectory() as folder:
        for target in targets:
            source = target[:2] + str(constants_for(target, VARIANTS[index]).get("STAGES", ""))
            binary, entry, texts = build(target, VARIANTS[index], front.get(source))
            if source not in front:
                front[source] = Path(folder) / f"{source}.ttir"
                front[source].write_text(texts["ttir"])
            (out / entry["file"]).write_bytes(binary)
            if keep_text:
                text = texts["ptx"] if "ptx" in texts else texts["amdgcn"]
                (out / (entry["file"] + ".s")).write_text(text)
            entries.append(entry)
    return entries


def main():
    def words(name):
        return [word for word in os.environ.get(name, "").split(",") if word]

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="directory for the binaries and manifest.json")
    parser.add_argument("--targets", default=None, help="comma separated; default: all")
    parser.add_argument("--kernels", default=None, help="comma separated beginnings of variant names; default: all")
    parser.add_argument("--text", action="store_true", default=bool(words("RMSNORM_TRITON_TEXT")),
                        help="leave the assembly beside each binary, for tests/triton/inspect_objects.py")
    parser.add_argument("--jobs", type=int, default=min(8, os.cpu_count() or 1))
    parser.add_argument("--list", action="store_true", help="print the variants and compile nothing")
    args = parser.parse_args()
    targets = args.targets.split(",") if args.targets else words("RMSNORM_TRITON_TARGETS") or TARGETS
    kernels = args.kernels.split(",") if args.kernels else words("RMSNORM_TRITON_KERNELS")
    if unknown := set(targets) - set(TARGETS):
        parser.error(f"unknown targets: {', '.join(sorted(unknown))}; known: {', '.join(TARGETS)}")
    os.environ.pop("TRITON_INTERPRET", None)
    os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
    import triton

    if triton.__version__.split("+")[0] != TRITON:
        parser.error(f"Triton {TRITON} is needed, this is {triton.__version__}")
    from rmsnorm_triton.variants import VARIANTS

    wanted = chosen(VARIANTS, kernels)
    if args.list:
        print(*(v.name for v in wanted), sep="\n")
        return
    if not args.out:
        parser.error("--out is needed")
    args.out.mkdir(parents=True, exist_ok=True)
    tasks = [(VARIANTS.index(v), targets, args.out, args.text) for v in wanted]
    tasks.sort(key=lambda task: -len(VARIANTS[task[0]].kernel.arg_names))  # the long ones first
    with tempfile.TemporaryDirectory() as cache:  # an old cache could hold a binary of other flags
        os.environ["TRITON_CACHE_DIR"] = cache
        if args.jobs > 1:
            with concurrent.futures.ProcessPoolExecutor(args.jobs) as pool:
                entries = [entry for some in pool.map(build_one, tasks) for entry in some]
        else:
            entries = [entry for task in tasks for entry in build_one(task)]
    order = {v.name: i for i, v in enumerate(VARIANTS)}
    entries.sort(key=lambda e: (TARGETS.index(e["target"]), order[e["name"]]))
    manifest = {"triton": triton.__version__, "flags": FLAGS, "variants": entries}
    (args.out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    print(f"{len(entries)} binaries, {len(wanted)} variants, targets {' '.join(targets)}: {args.out}")


if __name__ == "__main__":
    main()
