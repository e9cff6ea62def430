#!/usr/bin/env python3
"""table.py DIR - from DIR/manifest.json, which aot.py writes, to DIR/triton_table.c: the table of triton.h, and the
binaries inside the library.

Whatever the manifest says of a binary and the binary itself tells too has to agree: the digest, and how many bytes of
arguments the kernel reads. A launch hands over as much as the manifest says, so a difference must end the build.

SPDX-License-Identifier: Apache-2.0"""
import hashlib
import json
import re
import struct
import sys
from pathlib import Path

FAMILIES = ("forward_row", "forward_few", "forward_long", "backward_rows", "backward_long_sums", "backward_long",
            "backward_long_dx", "dweight_fold", "dweight_sum", "general_forward", "general_backward_sums",
            "general_backward_dweight", "general_backward_dx")
FACTS = ("type", "residual", "lanes", "steps", "row_lanes")
FOR_READERS = {"tile"}  # tile_cols says it, too
KINDS = {"i64": "I64", "i32": "I32", "fp32": "F32"}
WIDTHS = {"I64": 8, "I32": 4, "F32": 4, "POINTER": 8}
DEVICES = {"sm_": "RMSNORM_DEVICE_CUDA", "gfx": "RMSNORM_DEVICE_HIP"}
MOST_PARAMETERS = 96  # RN_TRITON_PARAMETERS


class Unfit(Exception):
    """What the manifest says can not be."""


def require(holds: bool, what: str) -> None:
    if not holds:
        raise Unfit(what)


def kind_of(parameter: dict) -> str:
    kind = parameter["type"]
    require(kind.startswith("*") or kind in KINDS, f"parameter {parameter['name']}: no such type as {kind}")
    return "POINTER" if kind.startswith("*") else KINDS[kind]


def argument_bytes(variant: dict) -> int:
    """Where the last argument ends, each at a multiple of its width."""
    end = 0
    for kind in [kind_of(p) for p in variant["parameters"]] + ["POINTER"] * variant["hidden_pointers"]:
        width = WIDTHS[kind]
        end = (end + width - 1) // width * width + width
    return end


# ---- what a binary tells of itself -----------------------------------------------------------------------------------

def sections(image: bytes) -> list[tuple[str, int, int, int, int]]:
    """(name, type, offset, size, link) of every section of a 64-bit ELF file."""
    require(image[:5] == b"\x7fELF\x02", "it is no 64-bit ELF file")
    table, = struct.unpack_from("<Q", image, 40)
    entry, count, names = struct.unpack_from("<HHH", image, 58)
    raw = [struct.unpack_from("<IIQQQQII", image, table + i * entry) for i in range(count)]
    at = raw[names][4]
    return [(text_at(image, at + s[0]), s[1], s[4], s[5], s[6]) for s in raw]


def text_at(image: bytes, at: int) -> str:
    return image[at:image.index(b"\0", at)].decode()


def arguments_of_cubin(image: bytes, entry: str) -> int:
    """EIATTR_CBANK_PARAM_SIZE of the kernel's .nv.info: a run of (format, attribute, 16-bit value or size, data)."""
    for name, _, at, size, _ in sections(image):
        if name != ".nv.info." + entry:
            continue
        end = at + size
        while at < end:
            form, attribute, value = struct.unpack_from("<BBH", image, at)
            if (form, attribute) == (3, 0x19):
                return value
            at += 4 + (value if form == 4 else 0)
    raise Unfit("it does not tell the size of its arguments")


def arguments_of_code_object(image: bytes, entry: str) -> int:
    """Where the last argument ends that is not one of the runtime's own, from the metadata, a note in MessagePack."""
    for _, kind, at, size, _ in sections(image):
        if kind != 7:  # SHT_NOTE
            continue
        named, described, number = struct.unpack_from("<III", image, at)
        if number != 32:  # NT_AMDGPU_METADATA
            continue
        metadata, _ = unpacked(image[:at + size], at + 12 + (named + 3) // 4 * 4)
        for kernel in metadata["amdhsa.kernels"]:
            if kernel[".name"] == entry:
                mine = [a for a in kernel[".args"] if not a[".value_kind"].startswith("hidden_")]
                return max(a[".offset"] + a[".size"] for a in mine)
    raise Unfit("it does not tell the size of its arguments")


def unpacked(data: bytes, at: int) -> tuple[object, int]:
    """One value of MessagePack and where the next one begins; only what such metadata is made of."""
    first = data[at]
    at += 1
    widths = {0xcc: 1, 0xcd: 2, 0xce: 4, 0xcf: 8, 0xd9: 1, 0xda: 2, 0xdb: 4, 0xdc: 2, 0xdd: 4, 0xde: 2, 0xdf: 4}
    width = widths.get(first, 0)
    number = int.from_bytes(data[at:at + width], "big")
    at += width
    if first < 0x80 or first in (0xcc, 0xcd, 0xce, 0xcf):
        return first if first < 0x80 else number, at
    if first in (0xc0, 0xc2, 0xc3):
        return {0xc0: None, 0xc2: False, 0xc3: True}[first], at
    if first >> 5 == 5 or first in (0xd9, 0xda, 0xdb):
        length = number if first >> 5 != 5 else first & 31
        return data[at:at + length].decode(), at + length
    if first >> 4 == 9 or first in (0xdc, 0xdd):
        items = []
        for _ in range(number if first >> 4 != 9 else first & 15):
            item, at = unpacked(data, at)
            items.append(item)
        return items, at
    require(first >> 4 == 8 or first in (0xde, 0xdf), "its metadata is not understood")
    pairs = {}
    for _ in range(number if first >> 4 != 8 else first & 15):
        key, at = unpacked(data, at)
        pairs[key], at = unpacked(data, at)
    return pairs, at


def check_binary(variant: dict, folder: Path) -> None:
    image = (folder / variant["file"]).read_bytes()
    require(hashlib.sha256(image).hexdigest() == variant["sha256"], "it is not the file that the manifest describes")
    said = argument_bytes(variant)
    if variant["target"].startswith("gfx"):
        found = arguments_of_code_object(image, variant["entry"])
    else:
        found = arguments_of_cubin(image, variant["entry"])
    require(found == said, f"its arguments are {found} bytes, those of the manifest {said}")


# ---- the table -------------------------------------------------------------------------------------------------------

def check(variant: dict) -> None:
    require(variant["family"] in FAMILIES, f"no such family as {variant['family']}")
    unknown = set(variant["when"]) - set(FACTS) - FOR_READERS
    require(not unknown, f"unknown facts: {sorted(unknown)}")
    require(variant["global_scratch"] == 0 and variant["profile_scratch"] == 0, "it wants memory of its own")
    require(len(variant["parameters"]) + variant["hidden_pointers"] <= MOST_PARAMETERS, "too many parameters")
    require(re.fullmatch(r"[A-Za-z0-9_.]+", variant["file"]) is not None, "a file name with odd letters")


def parameters_text(variant: dict) -> str:
    return ", ".join(f"{{RN_TRITON_{p['name']}, RN_TRITON_{kind_of(p)}, {p.get('align', 0)}}}"
                     for p in variant["parameters"])


def arch_text(target: str) -> str:
    return target[3:] if target.startswith("sm_") else "0x" + target[3:]


def order(variant: dict) -> tuple:
    return (variant["target"], FAMILIES.index(variant["family"]), variant["name"])


def embedded(variants: list[dict]) -> list[str]:
    return [f'EMBED({i}, {4096 if v["target"].startswith("gfx") else 64}, "{v["file"]}")'
            for i, v in enumerate(variants)]


def kernel_text(i: int, v: dict, lists: dict[str, int]) -> str:
    facts = "".join(f", .{name} = {v['when'].get(name, 0)}" for name in FACTS)
    return (f'    {{.name = "{v["name"]}", .entry = "{v["entry"]}", .image = rn_triton_image_{i}, '
            f'.parameters = list{lists[parameters_text(v)]}, .count = {len(v["parameters"])}, '
            f'.hidden = {v["hidden_pointers"]}, .family = RN_TRITON_{v["family"]}, '
            f'.any_grid = {v.get("any_grid", 0)}, .warps = {v["warps"]}, .wave = {v["warp_size"]}, '
            f'.shared = {v["shared"]}{facts}, .tile_rows = {v["tile_rows"]}, .tile_cols = {v["tile_cols"]}}},')


def targets_text(variants: list[dict]) -> list[str]:
    names = [v["target"] for v in variants]
    lines = []
    for name in sorted(set(names)):
        families = [FAMILIES.index(v["family"]) for v in variants if v["target"] == name]
        begins = ", ".join(str(sum(f < family for f in families)) for family in range(len(FAMILIES) + 1))
        place = f"{names.index(name)}, {len(families)}, {{{begins}}}"
        lines.append(f"    {{{DEVICES[name[:3]]}, {arch_text(name)}, {place}}},")
    return lines


HEAD = """/* triton_table.c - made by src/triton/table.py from manifest.json.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "triton.h"

#ifdef RN_TRITON_FOLDER
#define EMBED(number, alignment, file) \\
  __asm__(".pushsection .rodata\\n" \\
          ".hidden rn_triton_image_" #number "\\n" \\
          ".globl rn_triton_image_" #number "\\n" \\
          ".type rn_triton_image_" #number ", %object\\n" \\
          ".balign " #alignment "\\n" \\
          "rn_triton_image_" #number ":\\n" \\
          ".incbin \\"" RN_TRITON_FOLDER "/" file "\\"\\n" \\
          ".size rn_triton_image_" #number ", . - rn_triton_image_" #number "\\n" \\
          ".popsection\\n"); \\
  extern const unsigned char rn_triton_image_##number[] __attribute__((visibility("hidden")));
#else /* a test without binaries: what there is of one is its file's name */
#define EMBED(number, alignment, file) static const unsigned char rn_triton_image_##number[] = file;
#endif
"""


def table(manifest: dict) -> str:
    variants = manifest["variants"]
    lists: dict[str, int] = {}
    for v in variants:
        lists.setdefault(parameters_text(v), len(lists))
    lines = [HEAD, *embedded(variants), ""]
    lines += [f"static const rn_triton_parameter list{i}[] = {{{text}}};" for text, i in lists.items()]
    lines += ["", "const rn_triton_kernel rn_triton_kernels[] = {"]
    lines += [kernel_text(i, v, lists) for i, v in enumerate(variants)]
    lines += ["};", "const rn_triton_target rn_triton_targets[] = {", *targets_text(variants)]
    lines += ["    {0, 0, 0, 0, {0}}};"]
    lines += [f"rn_triton_loaded rn_triton_loads[{len(variants)}];"]
    targets = " ".join(sorted({v["target"] for v in variants}))
    lines += ["const char rn_triton_no_target[] =",
              f'    "this build has Triton kernels for {targets}, and none for this GPU (RMSNORM_TRITON_TARGETS)";', ""]
    return "\n".join(lines)


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        return 2
    folder = Path(sys.argv[1])
    manifest = json.loads((folder / "manifest.json").read_text())
    for variant in manifest["variants"]:
        try:
            check(variant)
            if "--without-binaries" not in sys.argv[2:]:
                check_binary(variant, folder)
        except Unfit as reason:
            print(f"table.py: {variant.get('file')}: {reason}", file=sys.stderr)
            return 1
    manifest["variants"].sort(key=order)
    (folder / "triton_table.c").write_text(table(manifest))
    return 0


if __name__ == "__main__":
    sys.exit(main())
