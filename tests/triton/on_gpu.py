#!/usr/bin/env python3
"""on_gpu.py - the kernels on a GPU, with torch: bits against portable on the CPU, and time against a copy.

    RMSNORM_LIBRARY=build/librmsnorm.so python3 tests/triton/on_gpu.py [check] [time] [sweep]

SPDX-License-Identifier: Apache-2.0
"""

import sys
import time
from pathlib import Path

import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "src" / "triton")]
import portable as c  # noqa: E402
from rmsnorm_triton import rms_norm, rms_norm_backward, rms_norm_residual, tensors, variants  # noqa: E402

CODES = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}
BITS = {4: torch.int32, 2: torch.int16}


def view(t):
    return c.Tensor(t.data_ptr(), t.stride(0), 0, 1, CODES[t.dtype], 0)


def special(x):
    """Every fifth row: too large, too small, zero, not a number, infinite."""
    with_f16 = x.dtype == torch.float16
    x[1::10] *= 6e4 if with_f16 else 1e30
    x[3::10] *= 1e-6 if with_f16 else 1e-30
    x[5::50] = 0
    x[7::50, x.shape[1] // 2] = float("nan")
    x[9::50, 0] = float("inf")
    return x


def differ(a, b):
    a, b = a.cpu(), b.cpu()
    bad = a.view(BITS[a.element_size()]) != b.view(BITS[b.element_size()])
    return int((bad & ~(a.isnan() & b.isnan())).sum())


def check_one(library, rows, n, dtype):
    g = torch.Generator().manual_seed(rows * 1000 + n)
    x = special(torch.randn(rows, n, generator=g)).to(dtype)
    r, dy, more = (torch.randn(rows, n, generator=g).to(dtype) for _ in range(3))
    w = (1 + 0.3 * torch.randn(n, generator=g)).to(dtype)
    found = []

    def forward(residual, stored, **kw):
        y, s, rstd = torch.zeros_like(x), torch.zeros_like(x), torch.zeros(rows)
        a = c.Forward(rows=rows, heads=1, cols=n, groups=1, eps=1e-6, weight=w.data_ptr(), weight_dtype=CODES[dtype],
                      x=view(x), y=view(y), rstd=rstd.data_ptr())
        a.numerics.round_xhat = 1 if kw.get("round_xhat") else 0
        if residual is not None:
            a.residual, a.residual_out, a.numerics.round_sum = view(residual), view(s), 4 if stored else 0
        library.call(a)
        return y, s, rstd

    y, _, rstd = forward(None, False)
    got, got_rstd = rms_norm(x.cuda(), w.cuda(), 1e-6)
    found += [differ(y, got), differ(rstd, got_rstd)]
    for stored in (False, True):
        y, s, _ = forward(r, stored, round_xhat=stored)
        got, total, _ = rms_norm_residual(x.cuda(), r.cuda(), w.cuda(), 1e-6, round_sum=stored, round_xhat=stored)
        found += [differ(y, got), differ(s, total)]
    lanes = tensors.lanes_of(n)
    if tensors.find("backward_rows", CODES[dtype], lanes, -(-n // lanes)):
        dx, dw = torch.zeros_like(x), torch.zeros_like(w)
        for saved in (rstd, None):
            a = c.Backward(rows=rows, heads=1, cols=n, groups=1, eps=1e-6, weight=w.data_ptr(),
                           weight_dtype=CODES[dtype], x=view(x), dy=view(dy), dx=view(dx), dresidual_out=view(more),
                           dweight=dw.data_ptr(), dweight_dtype=CODES[dtype])
            if saved is not None:
                a.rstd = saved.data_ptr()
            library.call(a)
            gx, gw = rms_norm_backward(dy.cuda(), x.cuda(), w.cuda(), None if saved is None else saved.cuda(),
                                       dresidual_out=more.cuda())
            found += [differ(dx, gx), differ(dw, gw)]
    return found


def check(library):
    bad = 0
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for n in (16, 64, 128, 192, 256, 512, 768, 1024, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 8192, 11008, 16384,
                  32768, 65536, 131072):
            for rows in (1, 67, 700) if n <= 8192 else (1, 53):
                try:
                    found = check_one(library, rows, n, dtype)
                except Exception as error:  # one line for each, and on to the next
                    print(f"{dtype} {rows} x {n}: {type(error).__name__}: {str(error)[:300]}", flush=True)
                    bad += 1
                    continue
                if any(found):
                    bad += 1
                    print(f"{dtype} {rows} x {n}: differing {found}", flush=True)
    print(f"check: {bad} shapes differ")
    return bad


def timed(run, sets, repeats):
    for i in range(sets):
        run(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(repeats):
            run(i % sets)
    times = []
    for _ in range(9):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(100000)
        a.record(), graph.replay(), b.record(), b.synchronize()
        times.append(a.elapsed_time(b) * 1000 / repeats)
    return sorted(times)[4]


def measure(shapes, dtype=torch.bfloat16, elements=1 << 28):
    """us and the fraction of a copy kernel that moves the same bytes (Triton's own, 16 bytes a thread twice)."""
    import triton.language as tl

    import triton

    @triton.jit
    def copy(a, b, N: tl.constexpr):
        at = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
        tl.store(b + at, tl.load(a + at))

    pool = [torch.randn(elements, device="cuda", dtype=dtype) for _ in range(2)]
    out = [torch.empty_like(p) for p in pool]
    copy_us = timed(lambda i: copy[(elements // 2048,)](pool[i], out[i], N=2048, num_warps=4), 2, 4)
    per_byte = copy_us / (2 * elements * pool[0].element_size())
    print(f"copy {copy_us:.1f} us, {1e-6 / per_byte:.2f} TB/s")
    for n in shapes:
        rows = elements // n
        x, y = ([p[:rows * n].view(rows, n) for p in some] for some in (pool, out))
        w = torch.rand(n, device="cuda").to(dtype)
        bytes_row = rows * n * pool[0].element_size()
        line = f"{n:7d}"
        us = timed(lambda i: rms_norm(x[i], w, out=y[i]), 2, 4)
        line += f"  fwd {us:7.1f} {2 * bytes_row * per_byte / us:.3f}"
        us = timed(lambda i: rms_norm_residual(x[0], x[1], w, out=y[0], residual_out=y[1]), 1, 4)
        line += f"  res {us:7.1f} {4 * bytes_row * per_byte / us:.3f}"
        if n <= 16384:
            rstd = rms_norm(x[0], w)[1]
            us = timed(lambda i: rms_norm_backward(x[1], x[0], w, rstd, dx=y[i]), 2, 4)
            line += f"  bwd {us:7.1f} {3 * bytes_row * per_byte / us:.3f}"
        print(line, flush=True)


def sweep(shapes=(1024, 4096, 8192), elements=1 << 27):
    """us of other numbers of threads, registers and stages than those of the table, which stand first in each line."""
    pool = [torch.randn(elements, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    for n in shapes:
        x, dy, dx = (p[:elements // n * n].view(-1, n) for p in pool)
        w, lanes = torch.rand(n, device="cuda").bfloat16(), tensors.lanes_of(n)
        rstd = rms_norm(x)[1]
        works = {"forward_row": (lambda: rms_norm(x, w, out=dx), [(0, 1, 0), (0, 1, 96), (0, 0.5, 0), (0, 0.5, 128)]),
                 "backward_rows": (lambda: rms_norm_backward(dy, x, w, rstd, dx=dx),
                                   [(1, 1, 0), (1, 1, 128), (1, 2, 0), (2, 1, 0), (2, 1, 128), (2, 2, 0), (2, 2, 80),
                                    (3, 1, 0)])}
        for family, (run, others) in works.items():
            v = tensors.find(family, 3, lanes, -(-n // lanes), 0 if family == "forward_row" else None)
            table = v.constants.get("STAGES", 0), v.threads, v.registers
            line = f"{family} {n}:"
            for stage, factor, registers in [(table[0], 1, table[2]), *others]:
                threads = int(table[1] * factor)
                if not 32 <= threads <= 1024:
                    continue
                if stage:
                    v.constants["STAGES"] = stage
                v.threads, v.registers = threads, registers
                try:
                    line += f"  s{stage} t{threads} r{registers} {timed(lambda i: run(), 1, 4):.0f}"
                except Exception as error:
                    line += f"  s{stage} t{threads} r{registers} {type(error).__name__}"
            if table[0]:
                v.constants["STAGES"] = table[0]
            v.threads, v.registers = table[1:]
            print(line, flush=True)


if __name__ == "__main__":
    started = time.time()
    what = sys.argv[1:] or ["check", "time"]
    failed = check(c.Library()) if "check" in what else 0
    if "time" in what:
        measure([64, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 5120, 6144, 8192, 12288, 16384, 32768, 65536,
                 131072, 262144])
    if "sweep" in what:
        sweep()
    print(f"{time.time() - started:.0f} s, {len(variants.VARIANTS)} variants in the table")
    sys.exit(bool(failed))
