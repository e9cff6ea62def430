"""torch.compile without graph breaks, dynamic row counts, the operator checker, and CUDA graphs.

SPDX-License-Identifier: Apache-2.0
"""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import rmsnorm  # noqa: E402
import rmsnorm.torch as rt  # noqa: E402
from test_torch import DEVICES, devices, make, same  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

# On the CPU, generated code needs a C++ compiler and half a minute; tracing and gradients are seen without it.
backends = pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(20261130)
    torch._dynamo.reset()


def block(x, residual, gate, weight):
    """All differentiable functions in one graph."""
    y, total = rt.fused_add_rms_norm(x, residual, weight, 1e-6, preset="llama")
    z = rt.gated_rms_norm(y * 2, gate, weight, 1e-6)
    return rt.rms_norm(z, weight, 1e-6, preset="gemma") + total


def tensors(rows, device, dtype=torch.bfloat16):
    return [make(rows, 64, dtype=dtype, device=device, grad=True) for _ in range(3)] + [
        make(64, dtype=dtype, device=device, grad=True)
    ]


@devices
@backends
def test_full_graph(device, backend):
    """No graph break, one graph for all row counts, and the bits of eager in both directions."""
    graphs = CompileCounterWithBackend(backend)
    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=graphs)
    for rows in (5, 8, 33):
        inputs = tensors(rows, device)
        dy = make(rows, 64, dtype=torch.bfloat16, device=device)
        want, got = block(*inputs), compiled(*inputs)
        if backend == "aot_eager":  # inductor may round between operators elsewhere than eager does
            assert same(got, want)
        else:
            torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
        for a, b in zip(torch.autograd.grad(got, inputs, dy), torch.autograd.grad(want, inputs, dy), strict=True):
            if backend == "aot_eager":
                assert same(a, b)
            else:
                torch.testing.assert_close(a, b, rtol=3e-2, atol=3e-2)
    assert graphs.frame_count == 1


@devices
@backends
def test_bits_of_one_norm(device, backend):
    """One norm between a graph's inputs and outputs has the bits of eager whatever the backend."""
    compiled = torch.compile(
        lambda x, r, w: rt.fused_add_rms_norm(x, r, w, 1e-6, preset="llama"), fullgraph=True, backend=backend
    )
    x, residual, _, weight = tensors(9, device)
    got, want = compiled(x, residual, weight), rt.fused_add_rms_norm(x, residual, weight, 1e-6, preset="llama")
    assert same(got[0], want[0]) and same(got[1], want[1])
    dy = [make(9, 64, dtype=torch.bfloat16, device=device) for _ in range(2)]
    for a, b in zip(torch.autograd.grad(got, (x, residual, weight), dy),
                    torch.autograd.grad(want, (x, residual, weight), dy), strict=True):  # fmt: skip
        assert same(a, b)


@devices
def test_modules_and_no_grad(device):
    module = rt.RMSNorm(64, 1e-6, preset="llama", device=device)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x = make(7, 64, device=device)
    assert same(compiled(x), module(x))
    with torch.no_grad():
        assert same(compiled(x), module(x))
        both = compiled(x, x)
        assert same(both[0], module(x, x)[0]) and same(both[1], x + x)


@devices
def test_objects_and_shapes(device):
    """Numerics and Quant as objects, a weight per head, groups, and several normalised dimensions, in one graph."""
    numerics = rmsnorm.Numerics(round_sum="stored", round_xhat="x", round_normed="promoted")
    quant = rmsnorm.Quant("fp8-block32", by_column=True, scale_max=0.5)
    module = rt.RMSNorm((6, 64), preset=numerics, device=device)

    def call(x, weight, heads):
        q, scales = rt.rms_norm_quant(x, weight, 1e-6, quant=quant)
        y, rstd = rt.rms_norm_with_stats(x, weight, 1e-6, groups=2)
        return module(x), rt.rms_norm(x, heads, 1e-6, preset=numerics), q.view(torch.uint8), scales, y, rstd

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    weight, heads = make(64, device=device), make(6, 64, device=device)
    with torch.no_grad():
        for rows in (4, 9):
            x = make(rows, 6, 64, device=device)
            for a, b in zip(compiled(x, weight, heads), call(x, weight, heads), strict=True):
                assert same(a, b) and a.stride() == b.stride()


@devices
def test_serving_forms(device):
    """What is written in place is written in the compiled graph too, and nothing else."""

    def step(x, residual, out, weight):
        rt.serving.fused_add_rms_norm(x, residual, weight, 1e-6)
        rt.serving.rms_norm(out, residual, weight, 1e-6)
        q, scale = rt.rms_norm_quant(x, weight, 1e-6, quant="fp8-row")
        return q.view(torch.uint8), scale

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    inputs = [t.detach() for t in tensors(6, device)]
    copies = [t.clone() for t in inputs]
    want, got = step(*inputs), compiled(*copies)
    for a, b in zip([*copies, *got], [*inputs, *want], strict=True):
        assert same(a, b)


def test_export():
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = rt.RMSNorm(64, 1e-6, preset="llama")

        def forward(self, x):
            return self.norm(x)

    x = make(5, 64)
    rows = torch.export.Dim("rows", min=2, max=1000)
    program = torch.export.export(Block(), (x,), dynamic_shapes={"x": {0: rows}})
    other = make(11, 64)
    assert same(program.module()(other), Block()(other))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_transforms_in_a_graph(backend):
    """What is refused outside of a compiler is refused by it, too: torch would take a tangent for zeros."""
    w, x = make(64), make(4, 64)

    def norm(x):
        return rt.rms_norm(x, w, 1e-6)

    for transform in (
        lambda x: torch.func.jvp(norm, (x,), (x,)),
        torch.func.jacrev(norm),
        torch.func.grad(lambda x: norm(x).sum()),
    ):
        torch._dynamo.reset()
        with pytest.raises(Exception, match="do not go through a norm of the library"):
            torch.compile(transform, backend=backend)(x)
    torch._dynamo.reset()
    assert same(torch.compile(torch.vmap(norm), backend=backend)(x), norm(x))


# ----------------------------------------------------------------------------------------------------------------------
def samples(device):
    def t(*shape, dtype=torch.float32, grad=False):
        return make(*shape, dtype=dtype, device=device, grad=grad)

    x, r, g, w = t(4, 3, 32, grad=True), t(4, 3, 32, grad=True), t(4, 3, 32, grad=True), t(32, grad=True)
    b, bw = t(4, 32, dtype=torch.bfloat16), t(32, dtype=torch.bfloat16)
    # The checker multiplies what is written, which torch can not do in fp8.
    q = torch.empty(4, 32, dtype=torch.int8, device=device)
    scale = torch.full((1,), 0.02, device=device)
    dy = t(4, 3, 32)
    d = [p.detach() for p in (x, r, g, w)]
    op = torch.ops.rmsnorm
    return [
        (op.forward, (x, w, None, None, 1e-6, "llama")),
        (op.forward, (x, None, None, None, 1e-6, "torch", 2, 100)),
        (op.forward, (x, w, r, None, 1e-6, "deepseek", 1, 0, torch.bfloat16, torch.float16)),
        (op.forward, (x, w, None, g, 1e-6, "mamba2")),
        (op.forward, (x, t(3, 32, grad=True), r, None, 1e-6, "gemma", 1, 0, None, None, False)),
        (op.forward, (b[:, ::2], None, None, None, 1e-6, "torch")),
        (op.forward, (b, bw, b.clone(), None, 1e-6, "llama")),
        (op.backward, (dy, dy, d[0], d[1], None, d[3], None, 1e-6, "deepseek", 1, 0, torch.bfloat16, torch.float32,
                       torch.float16, False, True)),
        (op.backward, (dy, None, d[0], None, d[2], d[3], None, 1e-6, "fla", 1, 0, None, torch.float32, None, True,
                       False)),
        (op.quantise, (b, bw, None, None, None, 1e-6, "llama", "fp8-block32 0 1 0 0.0")),
        (op.quantise, (b, bw, b.clone(), None, scale, 1e-6, "llama", "int8-tensor")),
        (op.norm_out, (torch.empty_like(b), b, bw, 1e-6, "llama")),
        (op.norm_, (b.clone(), bw, 1e-6, "llama")),
        (op.add_norm_, (b.clone(), b.clone(), bw, 1e-6, "llama")),
        (op.quantise_out, (q, None, b.clone(), b, bw, scale, 1e-6, "llama", "int8-tensor")),
        (op.quantise_out, (q, torch.empty(4, 1, device=device), None, b, bw, None, 1e-6, "llama", "int8-row")),
    ]  # fmt: skip


@devices
@pytest.mark.parametrize("case", range(16))
def test_opcheck(device, case):
    """Schema, mutations, shapes-only version, gradient registration, and tracing, by torch's own checker."""
    op, arguments = samples(device)[case]
    torch.library.opcheck(op.default, arguments)


@devices
def test_fakes_refuse_what_the_operators_refuse(device):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        x, w = (mode.from_tensor(make(*shape, device=device)) for shape in ((4, 64), (32,)))
        for arguments, match in (
            ((x, w, None, None, 1e-6, "torch"), "weight: the shape"),
            ((x, None, x[:2], None, 1e-6, "torch"), "residual: has"),
            ((x, None, None, None, 1e-6, "mamba2"), "gate: "),
            ((x, None, None, None, 1e-6, "torch", 5), "groups: "),
        ):
            with pytest.raises(ValueError, match=match):
                torch.ops.rmsnorm.forward(*arguments)


# ----------------------------------------------------------------------------------------------------------------------
@pytest.mark.skipif("cuda" not in DEVICES, reason="no GPU here")
def test_graph_capture():
    """Forward and backward in one CUDA graph, replayed with other numbers: the bits of eager, three times."""
    x, residual, gate, weight = tensors(64, "cuda")
    dy = make(64, 64, dtype=torch.bfloat16, device="cuda")
    rt.preload()

    def step():
        y = block(x, residual, gate, weight)
        return y, *torch.autograd.grad(y, (x, residual, gate, weight), dy)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = step()
    for _ in range(3):
        with torch.no_grad():
            for t in (x, residual, gate, dy):
                t.copy_(torch.randn_like(t))
        graph.replay()
        for a, b in zip(kept, step(), strict=True):
            assert same(a, b)


@pytest.mark.skipif("cuda" not in DEVICES, reason="no GPU here")
def test_current_stream_and_other_threads():
    """Work is queued behind what the current stream holds, also from a thread that never touched the GPU."""
    import threading

    x, weight = make(4096, 4096, device="cuda"), make(4096, device="cuda")
    want = rt.rms_norm(x * 3, weight, 1e-6)
    torch.cuda.synchronize()
    got = []

    def run():
        with torch.cuda.stream(torch.cuda.Stream()):
            later = torch.zeros_like(x)
            torch.cuda._sleep(20_000_000)
            later.copy_(x * 3)
            got.append(rt.rms_norm(later, weight, 1e-6))
            torch.cuda.current_stream().synchronize()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert same(got[0], want)


@pytest.mark.skipif("cuda" not in DEVICES, reason="no GPU here")
@pytest.mark.slow
def test_cuda_graphs_by_the_compiler():
    compiled = torch.compile(block, fullgraph=True, mode="reduce-overhead")
    inputs = tensors(32, "cuda")
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        got = compiled(*inputs)
        torch.testing.assert_close(got, block(*inputs), rtol=2e-2, atol=2e-2)
        torch.autograd.grad(got.sum(), inputs)
