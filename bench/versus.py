#!/usr/bin/env python3
"""versus.py - rmsnorm beside the other RMSNorms that PyTorch users have, as a Markdown table.

    bench/versus.py                    throughput, on the GPU when there is one
    bench/versus.py --device cpu
    bench/versus.py --host             what one eager call costs the host
    bench/versus.py --ops forward --shapes 8192x4096 --dtype bfloat16

Every peer is optional: torch eager, torch.compile, Liger, flash-attention's Triton norm, quack. Each is checked against
float64 before it is timed, and left out with the reason when it is wrong. On a GPU the calls are captured in a CUDA
graph over up to 256 buffers, which together exceed the caches (events around eager calls, marked "e", for what can not
be captured), so that host time is not in the numbers; GB/s counts the bytes that the operation has to move.

SPDX-License-Identifier: Apache-2.0
"""

import argparse
import ctypes
import statistics
import time

import rmsnorm.torch as rt
import torch
import torch.nn.functional as F
from rmsnorm import _native
from rmsnorm.numerics import RULES

EPS = 1e-6
CACHES = 512 << 20  # bytes that a round of buffers has at least


# ----------------------------------------------------------------------------------------------------------------------
# Peers: name -> {"forward": call(x, w), "add": call(x, r, w) -> (y, sum)}. A missing package raises ImportError.
def ours():
    return {
        "forward": lambda x, w: rt.rms_norm(x, w, EPS),
        "add": lambda x, r, w: rt.fused_add_rms_norm(x, r, w, EPS),
    }


def torch_eager():
    def add(x, r, w):
        s = x + r
        return F.rms_norm(s, w.shape, w, EPS), s

    return {"forward": lambda x, w: F.rms_norm(x, w.shape, w, EPS), "add": add}


def torch_compiled():
    return {name: torch.compile(call, dynamic=False) for name, call in torch_eager().items()}


def liger():
    from liger_kernel.transformers.functional import liger_rms_norm

    calls = {"forward": lambda x, w: liger_rms_norm(x, w, EPS, 0.0, "llama", False)}
    try:
        from liger_kernel.transformers.functional import liger_fused_add_rms_norm

        calls["add"] = lambda x, r, w: liger_fused_add_rms_norm(x, r, w, EPS, 0.0, "llama", False)
    except ImportError:
        pass
    return calls


def flash_attention():
    from flash_attn.ops.triton.layer_norm import rms_norm_fn

    return {
        "forward": lambda x, w: rms_norm_fn(x, w, None, eps=EPS),
        "add": lambda x, r, w: rms_norm_fn(x, w, None, residual=r, eps=EPS, prenorm=True),
    }


def quack():
    from quack import rmsnorm

    return {
        "forward": lambda x, w: rmsnorm(x, w, eps=EPS),
        "add": lambda x, r, w: rmsnorm(x, w, residual=r, eps=EPS, prenorm=True),
    }


PEERS = {
    "rmsnorm": ours,
    "torch eager": torch_eager,
    "torch.compile": torch_compiled,
    "Liger": liger,
    "flash-attn Triton": flash_attention,
    "quack": quack,
}


# ----------------------------------------------------------------------------------------------------------------------
# Operations: how many tensors of the shape of x they move, and how to make one call of a peer's functions.
def forward_call(calls, x, r, w, dy):
    return calls["forward"](x, w)


def add_call(calls, x, r, w, dy):
    return calls["add"](x, r, w)


def train_call(calls, x, r, w, dy):
    y = calls["forward"](x, w)
    return (y, *torch.autograd.grad(y, (x, w), dy))


OPERATIONS = {"forward": (2, forward_call), "add": (4, add_call), "train": (5, train_call)}


def buffers(shape, dtype, device, grad):
    x, r, dy = (torch.randn(shape, device=device).to(dtype) for _ in range(3))
    w = torch.randn(shape[-1], device=device).to(dtype)
    return x.requires_grad_(grad), r, w.requires_grad_(grad), dy


def reference(operation, x, r, w, dy):
    x, r, w, dy = (t.detach().double().cpu() for t in (x, r, w, dy))
    if operation == "add":
        s = (x.float() + r.float()).double()
        return F.rms_norm(s, w.shape, w, EPS), s
    if operation == "forward":
        return (F.rms_norm(x, w.shape, w, EPS),)
    x.requires_grad_(), w.requires_grad_()
    y = F.rms_norm(x, w.shape, w, EPS)
    return (y.detach(), *torch.autograd.grad(y, (x, w), dy))


def wrong(got, want, dtype):
    """Why these results are not right, or None: four roundings of the type, against the largest of a row (a column)."""
    got = got if isinstance(got, tuple) else (got,)
    unit = torch.finfo(dtype).eps
    for name, a, b in zip(("y", "the second result", "dweight"), got, want):
        a = a.detach().double().cpu()
        scale = b.abs().amax(-1, keepdim=True) if b.dim() > 1 else b.abs().max()
        worst = ((a - b).abs() / (scale + 1e-30)).max().item()
        if not worst <= 4 * unit:
            return f"{name} is off by {worst:.1e} of the largest"
    return None


# ----------------------------------------------------------------------------------------------------------------------
# Clocks.
def time_cpu(call, rounds):
    for _ in range(3):
        call(0)
    times = []
    for i in range(30):
        start = time.perf_counter()
        call(i % rounds)
        times.append(time.perf_counter() - start)
    return statistics.median(times), ""


def time_cuda(call, rounds):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for i in range(min(rounds, 3)):
            call(i)
    torch.cuda.synchronize()

    def all_calls():
        for i in range(rounds):
            call(i)

    mark = ""
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            all_calls()
        run = graph.replay
    except RuntimeError:
        torch.cuda.synchronize()
        run, mark = all_calls, " e"
    run()
    times = []
    for _ in range(15):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / rounds)
    return statistics.median(times), mark


def throughput(options):
    device, dtype = options.device, getattr(torch, options.dtype)
    peers, absent = {}, {}
    for name in options.peers:
        try:
            peers[name] = PEERS[name]()
        except Exception as error:  # a package may fail in any way when it is loaded
            absent[name] = f"{type(error).__name__}: {error}".splitlines()[0][:100]
    print(f"{options.dtype}, {torch.cuda.get_device_name() if device == 'cuda' else 'CPU'}, torch {torch.__version__}; "
          "us a call (GB/s)\n")  # fmt: skip
    print("| operation | shape | " + " | ".join(peers) + " |")
    print("|---|---|" + "---:|" * len(peers))
    notes = []
    for operation in options.ops:
        moves, make_call = OPERATIONS[operation]
        for shape in options.shapes:
            size = shape[0] * shape[1] * torch.finfo(dtype).bits // 8
            rounds = max(2, min(256, -(-CACHES // (moves * size)))) if device == "cuda" else 2
            sets = [buffers(shape, dtype, device, operation == "train") for _ in range(rounds)]
            want = reference(operation, *sets[0])
            cells = []
            for name, calls in peers.items():
                if ("add" if operation == "add" else "forward") not in calls:
                    cells.append("-")
                    continue
                try:
                    reason = wrong(make_call(calls, *sets[0]), want, dtype)
                    if reason is None:
                        clock = time_cuda if device == "cuda" else time_cpu
                        keep = []  # results live as long as the graph

                        def call(i, calls=calls, keep=keep):
                            keep[:] = [make_call(calls, *sets[i])]

                        seconds, mark = clock(call, rounds)
                        cells.append(f"{seconds * 1e6:.1f} ({moves * size / seconds / 1e9:.0f}){mark}")
                        continue
                except Exception as error:
                    reason = f"{type(error).__name__}: {error}".splitlines()[0][:100]
                cells.append("wrong")
                notes.append(f"{name}, {operation} {shape[0]}x{shape[1]}: {reason}")
            print(f"| {operation} | {shape[0]} x {shape[1]} | " + " | ".join(cells) + " |", flush=True)
    for line in notes + [f"{name} is not here: {why}" for name, why in absent.items()]:
        print(f"\n{line}")


# ----------------------------------------------------------------------------------------------------------------------
# Host cost.
class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("strides", ctypes.c_int64 * 3), ("dtype", ctypes.c_int32),
                ("reserved", ctypes.c_int32)]  # fmt: skip


class ForwardArgs(ctypes.Structure):
    """The front of rmsnorm_forward_args, enough to fill in a plain norm; `rest` covers what stays zero."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t), ("sizes", ctypes.c_int64 * 4), ("eps", ctypes.c_double),
        ("divisor", ctypes.c_int64), ("numerics", ctypes.c_char * 28), ("weight_dtype", ctypes.c_int32),
        ("weight_shape", ctypes.c_int32), ("weight", ctypes.c_void_p), ("x", Tensor), ("residual", Tensor),
        ("gate", Tensor), ("y", Tensor), ("residual_out", Tensor), ("rstd", ctypes.c_void_p),
        ("sumsq", ctypes.c_void_p), ("quant", ctypes.c_char * 88), ("parallel", ctypes.c_void_p),
        ("threads", ctypes.c_int32), ("device", ctypes.c_int32), ("impl", ctypes.c_void_p),
        ("launch", ctypes.c_void_p),
    ]  # fmt: skip


def loaded_library():
    with open("/proc/self/maps") as maps:
        return next(line.split()[-1] for line in maps if "librmsnorm.so" in line)


def host(options):
    device, dtype = options.device, getattr(torch, options.dtype)
    x, _, w, _ = buffers((1, 4096), dtype, device, False)
    out = torch.empty_like(x)
    code = rt.direct.CODES[dtype]
    stream = torch.cuda.current_stream().cuda_stream if device == "cuda" else None
    place = rt.direct.GPU if device == "cuda" else 0
    arguments = (1, 1, 4096, 1, EPS, 0, RULES["torch"].packed, place, stream, 0, None,
                 (x.data_ptr(), code, 4096, 0), None, None, (w.data_ptr(), code, 0), (out.data_ptr(), code, 4096, 0),
                 None, None, None)  # fmt: skip
    library = ctypes.CDLL(loaded_library())
    args = ForwardArgs(struct_size=ctypes.sizeof(ForwardArgs), sizes=(1, 1, 4096, 1), eps=EPS, device=place)
    ctypes.memmove(ctypes.addressof(args) + ForwardArgs.numerics.offset, RULES["torch"].packed, 28)
    args.weight, args.weight_dtype = w.data_ptr(), code
    for name, tensor in (("x", x), ("y", out)):
        setattr(args, name, Tensor(tensor.data_ptr(), (4096, 0, 1), code, 0))
    pointer, stream_pointer = ctypes.byref(args), ctypes.c_void_p(stream)
    # With everything filled in before: the C call and what ctypes itself costs, and no allocation.
    if library.rmsnorm_forward(pointer, stream_pointer) != 0:
        library.rmsnorm_last_error.restype = ctypes.c_char_p
        raise SystemExit(f"ctypes: {library.rmsnorm_last_error().decode()}")
    module = rt.RMSNorm(4096, EPS, device=device, dtype=dtype)
    rows = {
        "C call, arguments ready (extension module)": lambda: _native.forward(*arguments),
        "C call, arguments ready (ctypes)": lambda: library.rmsnorm_forward(pointer, stream_pointer),
        "rmsnorm, out given": lambda: rt.rms_norm(x, w, EPS, out=out),
        "rmsnorm, serving.rms_norm": lambda: rt.serving.rms_norm(out, x, w, EPS),
        "rmsnorm": lambda: rt.rms_norm(x, w, EPS),
        "rmsnorm, RMSNorm module": lambda: module(x),
        "rmsnorm, registered operator": lambda: torch.ops.rmsnorm.forward(x, w, None, None, EPS, "torch", stats=False),
        "torch.empty_like alone": lambda: torch.empty_like(x),
        "F.rms_norm": lambda: F.rms_norm(x, (4096,), w, EPS),
    }
    for name in ("Liger", "flash-attn Triton", "quack"):
        try:
            call = PEERS[name]()["forward"]
            call(x, w)
            rows[name] = lambda call=call: call(x, w)
        except Exception as error:
            print(f"{name} is not here: {type(error).__name__}: {error}".splitlines()[0][:120])
    print(f"Host time of one eager call, 1 x 4096, {options.dtype}, {device}, no gradient: median and least of 40 "
          "batches\n\n| call | us | least |\n|---|---:|---:|")  # fmt: skip
    with torch.no_grad():
        for name, call in rows.items():
            for _ in range(50):
                call()
            times = []
            for _ in range(40):
                if device == "cuda":
                    torch.cuda.synchronize()
                start = time.perf_counter()
                for _ in range(200):
                    call()
                times.append((time.perf_counter() - start) / 200 * 1e6)
            print(f"| {name} | {statistics.median(times):.2f} | {min(times):.2f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "float16", "bfloat16"))
    parser.add_argument("--host", action="store_true", help="the cost of a call on the host, instead of throughput")
    parser.add_argument("--ops", default="forward,add,train", help="of forward, add, train (forward and backward)")
    parser.add_argument("--shapes", default=None, help="ROWSxCOLS,...")
    parser.add_argument("--peers", default=",".join(PEERS))
    options = parser.parse_args()
    shapes = options.shapes or (
        "16x4096,128x4096,4096x2048,8192x4096,16384x4096,65536x128" if options.device == "cuda" else "16x4096,512x4096"
    )
    options.shapes = [tuple(map(int, shape.split("x"))) for shape in shapes.split(",")]
    options.ops, options.peers = options.ops.split(","), options.peers.split(",")
    torch.manual_seed(0)
    host(options) if options.host else throughput(options)


if __name__ == "__main__":
    main()
