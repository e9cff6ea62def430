#!/usr/bin/env python3
"""test_triton_table.py FIXTURE [BUILT] - src/triton/table.py refuses manifests that can not be, and, where a build has
compiled kernels, those that do not agree with the binaries.

SPDX-License-Identifier: Apache-2.0"""
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TABLE = Path(__file__).resolve().parent.parent / "src" / "triton" / "table.py"


def answer(folder: Path, *options: str) -> tuple[int, str]:
    run = subprocess.run([sys.executable, str(TABLE), str(folder), *options], capture_output=True, text=True)
    return run.returncode, run.stderr


def with_change(source: Path, change, *options: str) -> tuple[int, str]:
    """What table.py says of a copy of the folder whose first variant, or whose files, were changed."""
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "copy"
        manifest = json.loads((source / "manifest.json").read_text())
        shutil.copytree(source, folder)
        change(manifest["variants"][0], folder)
        (folder / "manifest.json").write_text(json.dumps(manifest))
        return answer(folder, *options)


def expect(said: tuple[int, str], code: int, word: str) -> None:
    if said[0] != code or word not in said[1]:
        sys.exit(f"expected exit {code} and {word!r}, found {said}")


def set_to(**values):
    return lambda variant, folder: variant.update(values)


def damaged(variant: dict, folder: Path) -> None:
    file = folder / variant["file"]
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def one_parameter_less(variant: dict, folder: Path) -> None:
    variant["parameters"].pop()


def narrow(variant: dict, folder: Path) -> None:
    """Every 64-bit number to 32 bits."""
    for parameter in variant["parameters"]:
        if parameter["type"] == "i64":
            parameter["type"] = "i32"


def main() -> None:
    fixture = Path(sys.argv[1])
    plain = "--without-binaries"
    expect(with_change(fixture, set_to(), plain), 0, "")
    expect(with_change(fixture, set_to(family="sideways"), plain), 1, "no such family as sideways")
    expect(with_change(fixture, set_to(when={"moon": 1}), plain), 1, "unknown facts: ['moon']")
    expect(with_change(fixture, set_to(global_scratch=64), plain), 1, "memory of its own")
    expect(with_change(fixture, set_to(hidden_pointers=90), plain), 1, "too many parameters")
    expect(with_change(fixture, set_to(file="a b.cubin"), plain), 1, "odd letters")
    expect(with_change(fixture, set_to(parameters=[{"name": "x", "type": "u8"}]), plain), 1, "no such type as u8")
    for built in map(Path, sys.argv[2:]):
        expect(with_change(built, set_to()), 0, "")
        expect(with_change(built, damaged), 1, "not the file that the manifest describes")
        for target in {v["target"] for v in json.loads((built / "manifest.json").read_text())["variants"]}:
            def of_target(change, target=target):
                def changed(variant: dict, folder: Path) -> None:
                    whole = json.loads((folder / "manifest.json").read_text())["variants"]
                    variant.update(next(v for v in whole if v["target"] == target and v["family"] == "general_forward"))
                    change(variant, folder)
                return changed
            expect(with_change(built, of_target(set_to())), 0, "")
            for change in (set_to(hidden_pointers=1), set_to(hidden_pointers=3), one_parameter_less, narrow):
                expect(with_change(built, of_target(change)), 1, "those of the manifest")
    print("manifests that can not be were refused", "with and without binaries" if sys.argv[2:] else "")


if __name__ == "__main__":
    main()
