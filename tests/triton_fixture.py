#!/usr/bin/env python3
"""triton_fixture.py DIR - DIR/manifest.json as src/triton/aot.py writes one, of kernels that do not exist: for the
tests of the host part, which then need no Triton.

SPDX-License-Identifier: Apache-2.0"""
import json
import sys
from pathlib import Path

TARGETS = {"sm_80": 32, "sm_90": 32, "sm_100": 32, "gfx90a": 64, "gfx942": 64}
TYPES = {1: "*fp32", 2: "*fp16", 3: "*bf16"}
SIZES = {1: 4, 2: 2, 3: 2}


def pointers(names: str, kind: str, align: int = 0) -> list[dict]:
    return [{"name": n, "type": kind} | ({"align": align} if align else {}) for n in names.split()]


def numbers(kind: str, names: str, align: int = 0) -> list[dict]:
    return pointers(names, kind, align)


def strides(tensors: str, align: int = 0) -> list[dict]:
    return [p for t in tensors.split() for p in numbers("i64", f"{t}_row_stride {t}_head_stride", align)]


def fast(type_code: int, inputs: str, rest: list[dict]) -> list[dict]:
    """Tensors of one type in words of 16 bytes."""
    return (pointers(inputs, TYPES[type_code], 16) + pointers("weight", TYPES[type_code], 16) +
            strides(inputs, 16 // SIZES[type_code]) + numbers("i32", "units heads groups") +
            pointers("live_rows", "*i64", 8) + numbers("i64", "live_most live_factor") +
            numbers("i64", "weight_head_stride weight_group_stride", 16 // SIZES[type_code]) +
            numbers("i32", "group_cols", 16 // SIZES[type_code]) + numbers("fp32", "divisor eps weight_offset") +
            numbers("i32", "weight_type round_sum round_xhat round_rstd") + rest)


ALL = "x residual gate y residual_out q dy dresidual_out dx dresidual dgate"
EVERYTHING = (pointers(ALL + " weight dweight scale_out", "*i8") + strides(ALL) +
              pointers("rstd_out rstd_in sumsq_in sumsq_out dot_in dot_out scale_in sums partials", "*fp32") +
              pointers("live_rows", "*i64") + numbers("i64", "rows heads groups units live_most live_factor") +
              numbers("i32", "cols group_cols lanes") +
              numbers("i64", "weight_head_stride weight_group_stride scale_row_stride scale_block_stride") +
              numbers("i32", "block_cols") +
              numbers("i32", "x_type residual_type gate_type weight_type y_type residual_out_type dy_type "
                      "dresidual_out_type dx_type dresidual_type dgate_type dweight_type round_sum round_rstd "
                      "round_xhat round_normed gate_kind gate_before quant quant_type scale_op e8m0_rounding "
                      "has_sums") +
              numbers("fp32", "divisor eps weight_offset scale_max") +
              numbers("i64", "chunks unit_rows dweight_rows dweight_vectors") +
              numbers("i32", "row_lanes dweight_cols"))


def variant(family: str, target: str, parameters: list[dict], when: dict, **more: int) -> dict:
    name = "_".join([family, *(f"{fact}{value}" for fact, value in sorted(when.items())),
                     *(f"{key}{value}" for key, value in sorted(more.items()))])
    usual = {"warps": 4, "shared": 0, "tile_rows": 1, "tile_cols": 0}
    return {"family": family, "name": name, "target": target, "file": f"{name}.{target}.bin", "entry": family,
            "warp_size": TARGETS[target], "hidden_pointers": 2, "parameters": parameters, "when": when,
            "global_scratch": 0, "profile_scratch": 0, "sha256": ""} | usual | more


def few(kind: int, tensors: str) -> list[dict]:
    """The parameters of forward_few: no heads, no live rows, no switches of the weight."""
    left_out = {"heads", "groups", "units", "live_rows", "live_most", "live_factor", "weight_type",
                "weight_head_stride", "weight_group_stride", "round_rstd"}
    every = fast(kind, tensors, pointers("rstd_out", "*fp32", 4))
    return [p for p in every if p["name"] not in left_out and not p["name"].endswith("_head_stride")]


def variants(target: str) -> list[dict]:
    found = []
    for kind in TYPES:
        for residual in (0, 1) if kind == 3 else (2,):  # 2: with or without
            tensors = "x y residual residual_out" if residual else "x y"
            parameters = fast(kind, tensors, pointers("rstd_out", "*fp32", 4))
            for lanes, steps, tile_rows in ((64, 1, 8), (64, 8, 4), (1024, 4, 1), (1024, 8, 1)):
                found.append(variant("forward_row", target, parameters,
                                     {"type": kind, "residual": residual, "lanes": lanes, "steps": steps},
                                     tile_rows=tile_rows, warps=1 if lanes == 64 else 4))
            found.append(variant("forward_few", target, few(kind, tensors),
                                 {"type": kind, "residual": residual, "lanes": 1024, "steps": 4}))
            for least in (8192, 32768):
                found.append(variant("forward_long", target, parameters,
                                     {"type": kind, "residual": residual, "lanes": 0}, tile_cols=least, shared=60000))
        backward = fast(kind, "x dy dresidual_out dx", pointers("rstd_in partials", "*fp32", 4) +
                        numbers("i64", "chunks unit_rows"))
        for family in ("backward_long_sums", "backward_long", "backward_long_dx"):
            for tile in (1024, 2048) if family == "backward_long_sums" else (2048,):
                found.append(variant(family, target,
                                     backward + pointers("sums", "*fp32", 4) + numbers("i32", "lanes"),
                                     {"type": kind, "lanes": 0}, tile_cols=tile, any_grid=1))
        for lanes, steps, row_lanes in ((64, 8, 4), (1024, 4, 1), (1024, 8, 1)):
            found.append(variant("backward_rows", target, backward,
                                 {"type": kind, "lanes": lanes, "steps": steps, "row_lanes": row_lanes}))
    found.append(variant("dweight_fold", target, pointers("partials", "*fp32", 16) +
                         numbers("i32", "chunks dweight_cols") + numbers("i64", "dweight_vectors"), {}, tile_rows=32,
                         tile_cols=64, any_grid=1))
    found.append(variant("dweight_sum", target,
                         pointers("partials", "*fp32", 16) + pointers("dweight", "*i8") + numbers("i64", "chunks") +
                         numbers("i32", "chunk_step dweight_cols dweight_type") + numbers("i64", "dweight_vectors"), {},
                         tile_cols=32, any_grid=1))
    for tile in (1024, 4096):
        for family in ("general_forward", "general_backward_sums", "general_backward_dx"):
            found.append(variant(family, target, EVERYTHING, {}, tile_cols=tile, any_grid=1))
    for row_lanes in (1, 2, 4):
        found.append(variant("general_backward_dweight", target, EVERYTHING, {"row_lanes": row_lanes}, tile_cols=64,
                             any_grid=1))
    return found


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {"triton": "0.0.0", "variants": [v for target in TARGETS for v in variants(target)]}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))


if __name__ == "__main__":
    main()
