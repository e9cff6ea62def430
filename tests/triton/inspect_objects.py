#!/usr/bin/env python3
"""inspect_objects.py - what can be said of the compiled kernels without running them, from their text and metadata.

    python3 src/triton/aot.py --out DIR --text ...;  python3 tests/triton/inspect_objects.py DIR

Each binary: subnormals kept, no arithmetic on halves (so no square is taken in one), none that approximates, no scratch
memory, no spilled registers (NVIDIA: few), local memory as the manifest says, 16-byte accesses where a family promises
them; on AMD 64 lanes a wave. The AMD objects are inspected here and run nowhere.

SPDX-License-Identifier: Apache-2.0
"""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

HALVES = {
    "sm": r"\b(?:add|sub|mul|fma|div|min|max|abs|neg)(?:\.\w+)*\.(?:f16|f16x2|bf16|bf16x2)\b",
    "gfx": r"\bv_(?:pk_)?(?:add|sub|mul|fma|fmac|mac|mad|dot2\w*|rcp|sqrt|rsq)_(?:b?f16)\w*",
}
INEXACT = {
    "sm": r"\b(?:div\.full|(?:div|rcp|sqrt|rsqrt|ex2|lg2|sin|cos)\.approx)[.\w]*",
    "gfx": r"\bv_(?:exp|log|sin|cos)_f32\w*",  # rcp, rsq and sqrt are steps of the exact sequences
}
WIDE = {
    "sm": (r"\b(?:ld\.global(?:[.:]+\w+)*\.v4\.b32|cp\.async\.cg\.shared)", r"\bst\.global(?:[.:]+\w+)*\.v4\.b32"),
    "gfx": (r"\b(?:global|buffer)_load_dwordx4", r"\b(?:global|buffer)_store_dwordx4"),
}
FAST = ("forward_row", "forward_long", "backward_rows", "backward_long", "backward_long_dx")


def number(text, pattern):
    found = re.search(pattern, text)
    return int(found.group(1)) if found else None


def amd_facts(text, entry):
    """Metadata of the code object against what it should be."""
    expected = {
        # Scalar registers are spilled into lanes of vector registers, which is no memory; these are not.
        r"\.wavefront_size:\s+(\d+)": 64, r"\.vgpr_spill_count:\s+(\d+)": 0,
        r"\.private_segment_fixed_size:\s+(\d+)": 0, r"\.amdhsa_float_denorm_mode_32 (\d+)": 3,
        r"\.amdhsa_float_denorm_mode_16_64 (\d+)": 3, r"\.amdhsa_float_round_mode_32 (\d+)": 0,
        r"\.max_flat_workgroup_size:\s+(\d+)": entry["warps"] * 64,
        r"\.group_segment_fixed_size:\s+(\d+)": 0,  # all of it comes with the launch: `shared` of the manifest
    }
    for pattern, want in expected.items():
        if (found := number(text, pattern)) != want:
            yield f"{pattern.split(':')[0]} is {found}, not {want}"
    accesses = re.findall(r"\bds_(?:read|write|load|store)\w*[^\n;]*", text)
    if accesses and not entry["shared"]:
        yield "uses local memory that the manifest does not have"
    for access in accesses:
        for offset in re.findall(r"offset[01]?:(\d+)", access):
            if int(offset) >= max(entry["shared"], 1) and "offset0" not in access and "offset1" not in access:
                yield f"reaches past its local memory: {access}"


def cuda_facts(path, text, entry):
    if re.search(r"\.ftz\b", text):
        yield "flushes subnormals"
    if number(text, r"\.reqntid (\d+)") != entry["warps"] * 32:
        yield "the number of threads is another one"
    try:
        import triton

        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        usage = subprocess.run([tool, "-res-usage", path], capture_output=True, text=True, check=True).stdout
    except (ImportError, OSError, subprocess.CalledProcessError):
        return
    # Where the table caps the registers, so that more rows fit on a multiprocessor, a few values are parked in memory
    # (on AMD nothing is capped, and nothing may be).
    if (stack := number(usage, r"STACK:(\d+)") or 0) > 256:
        yield f"spills: {stack} bytes of stack"


def inspect(folder, entry):
    path = folder / entry["file"]
    text = (folder / (entry["file"] + ".s")).read_text()
    kind = "sm" if entry["target"].startswith("sm_") else "gfx"
    if hashlib.sha256(path.read_bytes()).hexdigest() != entry["sha256"]:
        yield "is not the file of the manifest"
    if entry["global_scratch"] or entry["profile_scratch"]:
        yield "wants scratch memory"
    if entry["hidden_pointers"] not in (0, 1, 2):
        yield f"has {entry['hidden_pointers']} hidden parameters"
    for what, patterns in (("half-precision arithmetic", HALVES), ("an approximation", INEXACT)):
        if found := re.search(patterns[kind], text):
            yield f"{what}: {found.group(0)}"
    if entry["family"] in FAST:
        steps = entry["when"].get("steps", 4)
        wide = WIDE[kind]
        if entry["family"] == "backward_rows" and steps > 4 and entry["when"]["type"] != 1:
            # Twice the threads there, for the sake of registers: 8 bytes each.
            wide = [p.replace("v4", "v[24]").replace("cg.shared", "c[ga].shared").replace("x4", "x[24]") for p in wide]
        for what, pattern, least in (("loads", wide[0], steps), ("stores", wide[1], 1)):
            if (found := len(re.findall(pattern, text))) < least:
                yield f"{found} 16-byte {what}, at least {least} expected"
    yield from amd_facts(text, entry) if kind == "gfx" else cuda_facts(path, text, entry)


def main():
    folder = Path(sys.argv[1])
    manifest = json.loads((folder / "manifest.json").read_text())
    bad = 0
    if manifest["flags"].get("enable_fp_fusion") or manifest["flags"].get("flush_denormals"):
        bad += 1
        print("the manifest's flags are not those that keep the bits")
    if not all((folder / (entry["file"] + ".s")).exists() for entry in manifest["variants"]):
        print("the texts are missing: build with RMSNORM_TRITON_TEXT=1, or call aot.py with --text")
        sys.exit(77)
    for entry in manifest["variants"]:
        for fault in inspect(folder, entry):
            bad += 1
            print(f"{entry['target']} {entry['name']}: {fault}")
    print(f"{len(manifest['variants'])} binaries inspected, {bad} faults")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
