#!/usr/bin/env python3
"""gpu_table.py BENCH.json [TRITON.json] > docs/performance-gpu.md - every cell of `rmsnorm bench --device cuda --peers
FILE --json`, and beside it, when there is one, that of the same run with `--impl triton`.

SPDX-License-Identifier: Apache-2.0"""
import json
import math
import sys

NAMES = {
    "fwd": "Forward",
    "add": "Residual add + forward (the sum is stored, then normalised)",
    "bwd": "Backward: dx and dweight, saved rstd",
    "addbwd": "Backward with the residual's gradient",
    "q": "Forward to fp8 e4m3, given scale",
    "dyn": "Forward to fp8 e4m3, scale per row",
    "dyn8": "Forward to int8, scale per row",
    "addq": "Residual add + forward to fp8 e4m3, given scale",
    "adddyn": "Residual add + forward to fp8 e4m3, scale per row",
}


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def regime(cell):
    if cell["mode"] == "hot":
        return "hot"
    return "large" if cell["bytes"] >= 1 << 28 else "middle"


def summary(cells):
    print("| op | cells | hot: peer / ours | middle | large | slower than the best peer by more than 3 % |")
    print("|---|---|---|---|---|---|")
    for op in NAMES:
        mine = [c for c in cells if c["op"] == op]
        if not mine:
            continue
        columns = []
        for name in ("hot", "middle", "large"):
            ratios = [c["ratio"] for c in mine if regime(c) == name]
            columns.append("%.2f" % geometric_mean(ratios) if ratios else "-")
        slower = sum(1 for c in mine if c["ratio"] < 1 / 1.03)
        print("| %s | %d | %s | %d |" % (op, len(mine), " | ".join(columns), slower))
    print()


def table(op, kind, cells):
    rows = sorted({c["rows"] for c in cells if regime(c) != "large" or c["rows"] <= 32768})
    by = {(c["rows"], c["cols"]): c for c in cells}
    print("### %s, %s\n" % (NAMES[op], kind))
    print("| cols | " + " | ".join("%d rows" % r for r in rows) + " | largest |")
    print("|---" * (len(rows) + 2) + "|")
    for cols in sorted({c["cols"] for c in cells}):
        line = []
        used = set()
        for r in rows:
            c = by.get((r, cols))
            used.add(r)
            line.append(text(c) if c else "")
        rest = [c for c in cells if c["cols"] == cols and c["rows"] not in used]
        line.append(text(max(rest, key=lambda c: c["rows"])) if rest else "")
        print("| %d | %s |" % (cols, " | ".join(line)))
    print()


def text(c):
    mark = "**" if c["ratio"] < 1 / 1.03 else ""
    mine = "%.4g %.2f %s%.2f%s" % (c["us"], c["share"], mark, c["ratio"], mark)
    t = c.get("triton")
    return "%s; %.4g %.2f %.2f" % (mine, t["us"], t["share"], t["ratio"]) if t else mine


def key(c):
    return c["op"], c["type"], c["rows"], c["cols"], c["mode"]


def timed(name):
    data = json.load(open(name))
    return data, [c for c in data["cells"] if c["outcome"] == "timed" and "ratio" in c]


def triton_summary(cells):
    """Of each operation: Triton's share of the copy limit, and its time over that of the hand kernels."""
    print("| op | cells | Triton: share of the best copy, large | peer / Triton, hot | middle | large | Triton / CUDA, large |")
    print("|---" * 7 + "|")
    for op in NAMES:
        mine = [c for c in cells if c["op"] == op and "triton" in c]
        if not mine:
            continue
        large = [c for c in mine if regime(c) == "large"]
        columns = ["%.3f" % geometric_mean([c["triton"]["share"] for c in large]) if large else "-"]
        for name in ("hot", "middle", "large"):
            ratios = [c["triton"]["ratio"] for c in mine if regime(c) == name]
            columns.append("%.2f" % geometric_mean(ratios) if ratios else "-")
        columns.append("%.3f" % geometric_mean([c["triton"]["us"] / c["us"] for c in large]) if large else "-")
        print("| %s | %d | %s |" % (op, len(mine), " | ".join(columns)))
    print()


def main():
    data, cells = timed(sys.argv[1])
    beside = {key(c): c for c in timed(sys.argv[2])[1]} if len(sys.argv) > 2 else {}
    for c in cells:
        if key(c) in beside:
            c["triton"] = beside[key(c)]
    ratios = [c["ratio"] for c in cells]
    print("# Every GPU cell\n")
    print("One %s, driver %s; made by `scripts/gpu_table.py` from `rmsnorm bench --device cuda --peers FILE --json`." %
          (data["device"], data["driver"]))
    print("Each entry: microseconds a launch; fraction of the best copy of the same bytes in the same run; best peer's time")
    print("over ours, bold where we are slower by more than 3 %. The peers' times are those of an earlier day on a machine of")
    print("the same kind. What it means is [performance.md](performance.md).\n")
    print("%d cells, geometric mean of peer / ours %.3f, worst %.2f; %d slower than the best peer by more than 3 %%.\n" %
          (len(cells), geometric_mean(ratios), min(ratios), sum(1 for r in ratios if r < 1 / 1.03)))
    summary(cells)
    if beside:
        print("Behind each semicolon the same three numbers of `--impl triton`, in a run of its own.\n")
        triton_summary(cells)
    for op in NAMES:
        for kind in ("bf16", "f16", "f32"):
            some = [c for c in cells if c["op"] == op and c["type"] == kind]
            if some:
                table(op, kind, some)


main()
