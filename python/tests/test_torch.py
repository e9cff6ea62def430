"""The functions and modules for PyTorch: bits against the NumPy layer and torch, gradients against float64.

With a GPU everything runs there too (RMSNORM_TEST_DEVICES=cpu,cuda; by default what torch sees).

SPDX-License-Identifier: Apache-2.0
"""

import os

import numpy as np
import oracle
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import rmsnorm  # noqa: E402
import rmsnorm.torch as rt  # noqa: E402
from rmsnorm import Numerics  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402

DEVICES = os.environ.get("RMSNORM_TEST_DEVICES", "cpu,cuda" if torch.cuda.is_available() else "cpu").split(",")
TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
devices = pytest.mark.parametrize("device", DEVICES)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(20261130)


def make(*shape, dtype=torch.float32, device="cpu", grad=False):
    """Made on the CPU, so that every device sees the same numbers."""
    return (torch.randn(*shape) * 1.7).to(dtype).to(device).requires_grad_(grad)


def array(tensor):
    """As NumPy; bf16 through its bytes."""
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(oracle.BF16)
    if tensor.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        return tensor.contiguous().view(torch.uint8).numpy()
    return tensor.numpy()


def same(a, b):
    """Bit for bit, with the same type."""
    assert a.dtype == b.dtype and a.shape == b.shape, (a.dtype, b.dtype, a.shape, b.shape)
    return oracle.same_bits(array(a), array(b))


# ----------------------------------------------------------------------------------------------------------------------
# Forward.
@devices
@pytest.mark.parametrize("way", ["short", "long"])
@pytest.mark.parametrize("preset", ["torch", "llama", "gemma", "t5", "deepseek", "fp32"])
@pytest.mark.parametrize("x_type", TYPES)
@pytest.mark.parametrize("w_type", [None, "f32", "bf16"])
def test_forward_is_the_numpy_layer(device, way, preset, x_type, w_type, monkeypatch):
    """By the short way of the extension module, where torch offers it, and by the long one."""
    if way == "long":
        monkeypatch.setattr(rt.direct, "HAS_SHORT", False)
    elif not rt.direct.HAS_SHORT:
        pytest.skip("this torch has no DLPack exchange table")
    for cols in (1, 64, 577):
        x = make(2, 5, cols, dtype=TYPES[x_type], device=device)
        weight = None if w_type is None else make(cols, dtype=TYPES[w_type], device=device)
        residual = make(2, 5, cols, dtype=TYPES[x_type], device=device)
        plain = [array(x), None if weight is None else array(weight)]
        got = rt.rms_norm(x, weight, 1e-6, preset=preset)
        assert oracle.same_bits(array(got), rmsnorm.rms_norm(*plain, eps=1e-6, preset=preset, impl="portable"))
        got = rt.fused_add_rms_norm(x, residual, weight, 1e-6, preset=preset)
        want = rmsnorm.rms_norm(*plain, eps=1e-6, preset=preset, residual=array(residual), impl="portable")
        assert oracle.same_bits(array(got[0]), want[0]) and oracle.same_bits(array(got[1]), want[1])
        got = rt.rms_norm_with_stats(x, weight, 1e-6, preset=preset)
        want = rmsnorm.rms_norm(*plain, eps=1e-6, preset=preset, stats=True, impl="portable")
        assert oracle.same_bits(array(got[1]), want[1])


@devices
def test_views_without_a_copy(device):
    """q and k inside a packed projection, heads and tokens exchanged, a wider row: the same bits, and no new memory but
    the result's."""
    packed = make(2, 7, (4 + 2 + 2) * 64, dtype=torch.bfloat16, device=device)
    weight = make(64, dtype=torch.bfloat16, device=device)
    q, k, v = packed.split((256, 128, 128), -1)
    views = [q.unflatten(-1, (4, 64)), k.unflatten(-1, (2, 64)), k[:1].unflatten(-1, (2, 64)).transpose(1, 2),
             packed[:, ::2], packed[..., 3:67], packed.expand(3, 2, 7, -1)[1:], packed[:1, 2:3]]  # fmt: skip
    for view in views:
        weight = make(view.shape[-1], dtype=torch.bfloat16, device=device)
        want = rt.rms_norm(view.contiguous(), weight, 1e-6, preset="qwen3")
        assert same(rt.rms_norm(view, weight, 1e-6, preset="qwen3"), want)
        found = rt.direct.View(view, 0, (view, None, None, want, None))
        assert not found.copies, (view.shape, view.stride())
    for view in (
        packed.transpose(1, 2),
        k.unflatten(-1, (2, 64)).transpose(1, 2),
        make(2, 3, 4, 5, 64, device=device)[:, ::2, ::2, ::2],
    ):
        weight = make(view.shape[-1], device=device)  # these are copied
        got = rt.rms_norm(view, weight, 1e-6, preset="fp32")
        assert same(got, rt.rms_norm(view.contiguous(), weight, 1e-6, preset="fp32"))
    per_head = make(4, 64, dtype=torch.bfloat16, device=device)
    heads = views[0]
    want = torch.stack([rt.rms_norm(heads[..., h, :], per_head[h], 1e-6) for h in range(4)], -2)
    assert same(rt.rms_norm(heads, per_head, 1e-6), want)
    assert same(rt.rms_norm(heads.transpose(0, 1), per_head, 1e-6), want.transpose(0, 1).contiguous())


@devices
@pytest.mark.parametrize("preset", ["qwen3-next-gated", "mamba2", "fla", "fla-sigmoid"])
def test_gates(device, preset):
    x, gate, weight = (make(*shape, dtype=torch.bfloat16, device=device) for shape in ((3, 4, 96), (3, 4, 96), (96,)))
    want = rmsnorm.rms_norm(array(x), array(weight), eps=1e-5, gate=array(gate), preset=preset, impl="portable")
    assert oracle.same_bits(array(rt.gated_rms_norm(x, gate, weight, 1e-5, preset=preset)), want)
    module = rt.GatedRMSNorm(96, 1e-5, preset=preset, device=device, dtype=torch.bfloat16)
    module.load_state_dict({"weight": weight})
    assert oracle.same_bits(array(module(x, gate)), want)


@devices
@pytest.mark.parametrize("kind", ["fp8-tensor", "fp8-row", "int8-row", "fp8-block128", "mxfp8"])
def test_quantised(device, kind):
    x, residual = (
        make(3, 5, 300, dtype=torch.bfloat16, device=device),
        make(3, 5, 300, dtype=torch.bfloat16, device=device),
    )
    weight = make(300, device=device)
    scale = torch.tensor([0.02], device=device) if "tensor" in kind else None
    q, scales, total = rt.rms_norm_quant(x, weight, 1e-6, quant=kind, scale=scale, residual=residual, preset="llama")
    want = rmsnorm.rms_norm(array(x), array(weight), eps=1e-6, quant=kind, residual=array(residual), preset="llama",
                            scale=None if scale is None else array(scale), impl="portable")  # fmt: skip
    assert oracle.same_bits(array(q).view(np.uint8), want[0].view(np.uint8)) and oracle.same_bits(array(total), want[2])
    if scale is None:
        assert scales.shape == want[1].shape
        assert (
            scales.cpu().contiguous().view(torch.uint8).numpy() == np.ascontiguousarray(want[1]).view(np.uint8)
        ).all()


@devices
def test_scales_by_column(device):
    x = make(4, 5, 300, device=device)
    q, scales = rt.rms_norm_quant(x, None, 1e-6, quant="fp8-block128")
    other, turned = rt.rms_norm_quant(x, None, 1e-6, quant=rmsnorm.Quant("fp8-block128", by_column=True))
    assert same(other, q) and same(turned.contiguous(), scales) and turned.stride() == (5, 1, 20)


# ----------------------------------------------------------------------------------------------------------------------
# The drop-in.
@devices
@pytest.mark.parametrize("shape", [(16,), (4, 16), (3, 4, 16)])
@pytest.mark.parametrize("eps", [None, 1e-5])
@pytest.mark.parametrize("x_type", ["f32", "bf16"])
def test_module_is_torchs(device, shape, eps, x_type):
    """The same constructor and state, and results within what two orders of summation may differ."""
    if x_type != "f32" and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 11):
        pytest.skip("older versions of torch compute half types in half types")  # seen in 2.4
    dtype = TYPES[x_type]
    theirs = torch.nn.RMSNorm(shape, eps, device=device, dtype=dtype)
    ours = rt.RMSNorm(shape, eps, device=device, dtype=dtype)
    assert repr(theirs) == repr(ours) or theirs.extra_repr().split(",")[0] == ours.extra_repr().split(",")[0]
    torch.nn.init.normal_(theirs.weight)
    ours.load_state_dict(theirs.state_dict())
    assert list(ours.state_dict()) == list(theirs.state_dict())
    x = make(5, 3, 4, 16, dtype=dtype, device=device) * 1e-3
    got, want = ours(x), theirs(x)
    assert got.dtype == want.dtype and got.shape == want.shape
    # Two float32 results of the formula, each within (d / 2 + 6) u; in bf16 that can flip one rounding.
    allowed = 2 * (oracle.chain(192) / 2 + 6) * oracle.U if x_type == "f32" else 2.0**-7
    assert ((got.double() - want.double()).abs() <= allowed * want.double().abs() + 1e-30).all()
    assert rt.RMSNorm(shape, elementwise_affine=False).weight is None
    assert (rt.RMSNorm(8, preset="gemma").weight == 0).all() and (rt.RMSNorm(8).weight == 1).all()


def test_autocast_changes_nothing():
    x, weight = make(4, 64, dtype=torch.bfloat16), make(64)
    want = rt.rms_norm(x, weight, 1e-6, preset="llama")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert same(rt.rms_norm(x, weight, 1e-6, preset="llama"), want)
        assert same(torch.ops.rmsnorm.forward(x, weight, None, None, 1e-6, "llama")[0], want)


# ----------------------------------------------------------------------------------------------------------------------
# Gradients.
def forms(**more):
    """Every differentiable form: name -> (function of tensors, shapes of the tensors)."""
    shape, n = (3, 2, 8), 8
    return {
        "plain": (lambda x, w: rt.rms_norm(x, w, 1e-3, **more), (shape, (n,))),
        "no weight": (lambda x: rt.rms_norm(x, None, 1e-3, **more), (shape,)),
        "offset": (lambda x, w: rt.rms_norm(x, w, 1e-3, preset="gemma", **more), (shape, (n,))),
        "groups": (lambda x, w: rt.rms_norm(x, w, 1e-3, groups=2, **more), (shape, (n,))),
        "weight of a group": (lambda x, w: rt.rms_norm(x, w, 1e-3, groups=2, **more), (shape, (n // 2,))),
        "weight per head": (lambda x, w: rt.rms_norm(x, w, 1e-3, **more), (shape, (2, n))),
        "divisor": (lambda x, w: rt.rms_norm(x, w, 1e-3, divisor=20, **more), (shape, (n,))),
        "residual": (lambda x, r, w: rt.fused_add_rms_norm(x, r, w, 1e-3, **more), (shape, shape, (n,))),
        "unrounded": (lambda x, r, w: rt.fused_add_rms_norm(x, r, w, 1e-3, preset="deepseek"), (shape, shape, (n,))),
        "gate after": (lambda x, g, w: rt.gated_rms_norm(x, g, w, 1e-3, preset="fla"), (shape, shape, (n,))),
        "gate before": (lambda x, g, w: rt.gated_rms_norm(x, g, w, 1e-3, preset="mamba2"), (shape, shape, (n,))),
        "sigmoid": (lambda x, g, w: rt.gated_rms_norm(x, g, w, 1e-3, preset="fla-sigmoid"), (shape, shape, (n,))),
        "transposed": (lambda x, w: rt.rms_norm(x.transpose(0, 1), w, 1e-3), (shape, (n,))),
        "columns apart": (lambda x, w: rt.rms_norm(x.transpose(1, 2), w, 1e-3), (shape, (2,))),
        "only the sum is used": (lambda x, r, w: rt.fused_add_rms_norm(x, r, w, 1e-3)[1] * 2, (shape, shape, (n,))),
    }  # fmt: skip


@pytest.mark.parametrize("form", forms())
def test_gradcheck(form):
    """In double, which takes the portable implementation, against finite differences."""
    function, shapes = forms()[form]
    tensors = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    assert torch.autograd.gradcheck(function, tensors)
    for i in range(len(tensors)):  # each alone
        alone = [t.detach().requires_grad_(j == i) for j, t in enumerate(tensors)]
        if form != "only the sum is used" or i < 2:
            assert torch.autograd.gradcheck(function, alone)


@pytest.mark.parametrize("form", forms())
def test_gradcheck_of_the_operator(form):
    """The same through the registered operator, as compiled code takes it."""
    function, shapes = forms()[form]
    tensors = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in shapes]

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            self.seen += str(op).startswith("rmsnorm")
            return op(*args, **(kwargs or {}))

    want = function(*tensors)
    with Mode() as mode:
        got = function(*tensors)
    assert mode.seen
    pairs = [(got, want)] if isinstance(got, torch.Tensor) else list(zip(got, want, strict=True))
    for a, b in pairs:
        assert same(a, b)
    dy = [torch.randn_like(a) for a, _ in pairs]
    grads = [torch.autograd.grad([p[i] for p in pairs], tensors, dy, allow_unused=True) for i in (0, 1)]
    for a, b in zip(*grads, strict=True):
        assert (a is None) == (b is None) and (a is None or same(a, b))


@devices
@pytest.mark.parametrize("preset", ["torch", "llama", "gemma", "deepseek", "mamba2", "fla"])
@pytest.mark.parametrize("x_type", TYPES)
def test_gradients_are_float64s(device, preset, x_type):
    """Within the bounds of docs/numerics.md, 8.2, of float64, each rounded once; and twice the same bits."""
    numerics = rmsnorm.preset(preset)
    dtype, cols, rows = TYPES[x_type], 160, 37
    gated = numerics.gate != "none"
    x = make(rows, cols, dtype=dtype, device=device, grad=True)
    other = make(rows, cols, dtype=dtype, device=device, grad=True)
    weight = make(cols, dtype=dtype, device=device, grad=True)
    dy, dsum = make(rows, cols, dtype=dtype, device=device), make(rows, cols, dtype=dtype, device=device)

    def run():
        if gated:
            y, through = rt.gated_rms_norm(x, other, weight, 1e-5, preset=preset), None
            return torch.autograd.grad(y, (x, other, weight), dy), through
        y, total = rt.fused_add_rms_norm(x, other, weight, 1e-5, preset=preset)
        return torch.autograd.grad((y, total), (x, other, weight), (dy, dsum)), total

    (dx, dother, dweight), _ = run()
    for a, b in zip(run()[0], (dx, dother, dweight), strict=True):
        assert same(a, b)
    tensors = [array(t) for t in (x, weight, dy, other)]
    want = oracle.gradients(
        tensors[0], tensors[1], 1e-5, tensors[2], numerics, residual=None if gated else tensors[3],
        gate=tensors[3] if gated else None, dsum=None if gated else array(dsum),
    )  # fmt: skip
    assert dx.dtype == dother.dtype == dweight.dtype == dtype
    d = oracle.chain(cols)
    # The magnitudes of 8.2, bounded from above by their largest in the row.
    width = {"f32": 0.0, "f16": 2.0**-11, "bf16": 2.0**-8}[x_type]
    size = np.abs(want[0]).max(-1, keepdims=True)
    slack = 60 if gated else 0
    assert (
        np.abs(array(dx).astype(np.float64) - want[0])
        <= width * 1.02 * np.abs(want[0]) + (2.5 * d + 25 + slack) * oracle.U * 8 * size
    ).all()
    if gated:
        size = np.abs(want[2]).max(-1, keepdims=True)
        assert (
            np.abs(array(dother).astype(np.float64) - want[2])
            <= width * 1.02 * np.abs(want[2]) + (2.5 * d + 80) * oracle.U * 8 * size
        ).all()
    else:
        assert same(dx, dother)
    size = np.abs(want[1]).max()
    assert (
        np.abs(array(dweight).astype(np.float64) - want[1])
        <= width * 1.02 * np.abs(want[1]) + (d / 2 + 25 + rows) * oracle.U * 4 * size
    ).all()


@devices
def test_gradients_of_one_or_the_other(device):
    """Any subset of the gradients has the bits of all of them."""
    x, r, w = (make(*shape, dtype=torch.bfloat16, device=device) for shape in ((6, 96), (6, 96), (96,)))
    dy = make(6, 96, dtype=torch.bfloat16, device=device)

    def grads(*which):
        leaves = [t.clone().requires_grad_(i in which) for i, t in enumerate((x, r, w))]
        y, _ = rt.fused_add_rms_norm(*leaves, 1e-5, preset="llama")
        y.backward(dy)
        return [leaf.grad for leaf in leaves]

    want = grads(0, 1, 2)
    for which in ((0,), (1,), (2,), (0, 2), (1, 2)):
        for i, (a, b) in enumerate(zip(grads(*which), want, strict=True)):
            assert (i in which) == (a is not None) and (a is None or same(a, b))


@devices
def test_mixed_types_and_broadcast_gradients(device):
    x = make(4, 64, dtype=torch.bfloat16, device=device, grad=True)
    residual = make(4, 64, device=device, grad=True)
    weight = make(64, device=device, grad=True)
    y, total = rt.fused_add_rms_norm(x, residual, weight, 1e-6, preset="llama", residual_dtype=torch.bfloat16)
    assert y.dtype == torch.float32 and total.dtype == torch.bfloat16
    (y.sum() + total.float().sum()).backward()  # gradients with strides of 0
    assert (
        x.grad.dtype == torch.bfloat16 and residual.grad.dtype == torch.float32 and weight.grad.dtype == torch.float32
    )
    assert same(x.grad, residual.grad.bfloat16())


def test_second_gradient_is_refused():
    for mode in ("eager", "operator"):
        x, w = make(3, 16, grad=True), make(16, grad=True)
        if mode == "eager":
            y = rt.rms_norm(x, w, 1e-6)
        else:
            y = torch.ops.rmsnorm.forward(x, w, None, None, 1e-6, "torch")[0]
        dx = torch.autograd.grad(y.sum(), x, create_graph=True)[0]
        with pytest.raises(RuntimeError, match="gradient of the gradient"):
            (y.sum() + dx.square().sum()).backward()


@devices
def test_empty(device):
    for shape in ((0, 16), (2, 0, 16)):
        x, w = make(*shape, device=device, grad=True), make(16, device=device, grad=True)
        y, total = rt.fused_add_rms_norm(x, x.detach(), w, 1e-6)
        y.sum().backward()
        assert y.shape == total.shape == shape and x.grad.shape == shape and (w.grad == 0).all()
        assert rt.rms_norm_quant(x.detach(), None, 1e-6)[0].shape == shape


# ----------------------------------------------------------------------------------------------------------------------
# Refusals.
def refusals(x, w):
    wide = torch.zeros(4, 64, dtype=torch.int32)
    leaf = x.clone().requires_grad_()
    return {
        "not a tensor": (TypeError, "x: a torch.Tensor", lambda: rt.rms_norm([1.0], w, 1e-6)),
        "no eps": (TypeError, "eps", lambda: rt.rms_norm(x, w)),
        "integers": (TypeError, "x: float32.*int32", lambda: rt.rms_norm(wide, None, 1e-6)),
        "weight type": (TypeError, "weight: ", lambda: rt.rms_norm(x, w.long(), 1e-6)),
        "weight shape": (ValueError, "weight: the shape", lambda: rt.rms_norm(x, w[:-1], 1e-6)),
        "residual shape": (ValueError, "residual: has", lambda: rt.fused_add_rms_norm(x, x[:1], w, 1e-6)),
        "residual None": (TypeError, "residual", lambda: rt.fused_add_rms_norm(x, None, w, 1e-6)),
        "meta weight": (ValueError, "weight: is on", lambda: rt.rms_norm(x, w.to("meta"), 1e-6)),
        "gate missing": (ValueError, "gate: ", lambda: rt.rms_norm(x, w, 1e-6, preset="mamba2")),
        "gate unknown": (ValueError, "gate: ", lambda: rt.gated_rms_norm(x, x, w, 1e-6, preset="torch")),
        "preset": (ValueError, r"preset: .*'lama'.*presets\(\)", lambda: rt.rms_norm(x, w, 1e-6, preset="lama")),
        "module preset": (ValueError, "no preset", lambda: rt.RMSNorm(8, preset="lama")),
        "module shape": (ValueError, "normalized_shape", lambda: rt.RMSNorm(8)(x)),
        "eps": (ValueError, "eps", lambda: rt.rms_norm(x, w, -1.0)),
        "groups": (ValueError, "groups", lambda: rt.rms_norm(x, w, 1e-6, groups=7)),
        "groups a float": (TypeError, "groups: a whole", lambda: rt.rms_norm(x, w, 1e-6, groups=2.0)),
        "divisor a text": (TypeError, "divisor: a whole", lambda: rt.rms_norm(x, w, 1e-6, divisor="64")),
        "divisor of quantised": (TypeError, "divisor: a whole", lambda: rt.rms_norm_quant(x, w, 1e-6, divisor=0.5)),
        "f64 weight": (ValueError, "weight", lambda: rt.rms_norm(x, w.double(), 1e-6)),
        "f64 quantised": (NotImplementedError, "f64", lambda: rt.rms_norm_quant(x.double(), None, 1e-6)),
        "gradient of quantised": (TypeError, "forward only", lambda: rt.rms_norm_quant(leaf, w, 1e-6)),
        "gradient of stats": (TypeError, "forward only", lambda: rt.rms_norm_with_stats(leaf, w, 1e-6)),
        "gradient of out": (TypeError, "forward only", lambda: rt.rms_norm(leaf, w, 1e-6, out=torch.empty_like(x))),
        "gradient in place": (TypeError, "forward only", lambda: rt.serving.fused_add_rms_norm(leaf, x, w, 1e-6)),
        "out shape": (ValueError, "out: has", lambda: rt.rms_norm(x, w, 1e-6, out=x[:1])),
        "out overlaps": (ValueError, "overlap", lambda: rt.rms_norm(x[:-1], w, 1e-6, out=x[1:])),
        "sparse": (NotImplementedError, "Sparse", lambda: rt.rms_norm(x.to_sparse(), None, 1e-6)),
        "sparse weight": (TypeError, "weight: .*strided", lambda: rt.rms_norm(x, w.to_sparse(), 1e-6)),
        "sparse residual": (TypeError, "residual: .*strided", lambda: rt.fused_add_rms_norm(x, x.to_sparse(), w, 1e-6)),
        "mkldnn out": (TypeError, "out: .*strided", lambda: rt.rms_norm(x, w, 1e-6, out=x.to_mkldnn())),
        "nested": (NotImplementedError, "Nested", lambda: rt.rms_norm(torch.nested.nested_tensor([x]), w, 1e-6)),
        "nested weight": (TypeError, "weight: .*nested", lambda: rt.rms_norm(x, torch.nested.nested_tensor([w]), 1e-6)),
        "eps a tensor": (TypeError, "eps: a number", lambda: rt.rms_norm(x, w, torch.tensor(1e-6))),
        "eps None": (TypeError, "eps: is needed", lambda: rt.serving.rms_norm(x, x, w, None)),
        "a word of a text": (ValueError, "preset: ", lambda: rt.rms_norm(x, w, 1e-6, preset="offset=1")),
        "a number of a text": (ValueError, "preset: ", lambda: rt.rms_norm(x, w, 1e-6, preset="weight_offset=1e300")),
        "a zero in a name": (ValueError, "no preset", lambda: rt.rms_norm(x, w, 1e-6, preset="llama\0")),
        "half a text": (ValueError, "quant: ", lambda: rt.rms_norm_quant(x, w, 1e-6, quant="fp8-row 1")),
        "a scalar": (ValueError, "no dimension", lambda: rt.rms_norm(torch.tensor(1.0), None, 1e-6)),
        "no columns": (ValueError, "no columns", lambda: rt.rms_norm(torch.zeros(3, 0), None, 1e-6)),
        "scale": (ValueError, "scale", lambda: rt.rms_norm_quant(x, w, 1e-6, quant="fp8-tensor")),
    }  # fmt: skip


CASES = list(refusals(torch.zeros(4, 64), torch.zeros(64)))


@pytest.mark.parametrize("case", CASES)
def test_refusals(case):
    x, w = make(4, 64), make(64)
    kept = x.clone()
    kind, match, call = refusals(x, w)[case]
    with pytest.raises(kind, match=match):
        call()
    assert same(x, kept)


@pytest.mark.skipif("cuda" not in DEVICES, reason="no GPU here")
def test_refusals_on_a_gpu():
    x, w = make(4, 64, device="cuda"), make(64)
    with pytest.raises(ValueError, match="weight: is on cpu, x on cuda"):
        rt.rms_norm(x, w, 1e-6)
    with pytest.raises(NotImplementedError, match="f64"):
        rt.rms_norm(x.double(), None, 1e-6)


def test_numerics_written_out():
    x, w = make(4, 64, dtype=torch.bfloat16), make(64, dtype=torch.bfloat16)
    numerics = Numerics(round_sum="stored", round_xhat="x", round_normed="promoted")
    want = rt.rms_norm(x, w, 1e-6, preset="llama")
    assert same(rt.rms_norm(x, w, 1e-6, preset=numerics), want)
    assert same(rt.rms_norm(x, w, 1e-6, preset=numerics.text), want)
    assert same(rt.RMSNorm(64, 1e-6, preset=numerics)(x.float()), rt.RMSNorm(64, 1e-6, preset="llama")(x.float()))


def test_autograd_knows_what_was_overwritten():
    x, w = make(4, 64, grad=True), make(64)
    for write in (
        lambda t: rt.serving.rms_norm(t, t, w, 1e-6),
        lambda t: rt.serving.fused_add_rms_norm(make(4, 64), t, w, 1e-6),
    ):
        saved = x * 2
        y = saved.sigmoid() + saved.square()
        with torch.no_grad():
            write(saved)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
    with torch.inference_mode():
        t = make(4, 64)
        rt.serving.rms_norm(t, t, w, 1e-6)


def test_a_trace_has_the_operator():
    w = make(64)
    traced = torch.jit.trace(lambda x: rt.rms_norm(x, w, 1e-6), make(4, 64))
    x = make(7, 64)
    assert same(traced(x), rt.rms_norm(x, w, 1e-6))


def test_transforms():
    """vmap and many gradients at once are right; what would come out as zeros or as nonsense is refused in words."""
    x, w = make(3, 2, 64), make(3, 64)
    want = torch.stack([rt.rms_norm(a, b, 1e-6) for a, b in zip(x, w)])
    assert same(torch.vmap(lambda a, b: rt.rms_norm(a, b, 1e-6))(x, w), want)
    x = make(2, 64, grad=True)
    y = rt.rms_norm(x, None, 1e-6)
    dy = make(3, 2, 64)
    (got,) = torch.autograd.grad(y, x, dy, is_grads_batched=True, retain_graph=True)
    assert same(got, torch.stack([torch.autograd.grad(y, x, one, retain_graph=True)[0] for one in dy]))
    x = x.detach()

    def norm(x):
        return rt.rms_norm(x, None, 1e-6)

    def dual(x):
        with forward_ad.dual_level():
            norm(x)  # has no tangent
            return norm(forward_ad.make_dual(x, x))

    def dual_operator(x):
        with forward_ad.dual_level():
            torch.ops.rmsnorm.forward(forward_ad.make_dual(x, x), None, None, None, 1e-6, "torch")

    def dual_backward(x):
        y = norm(x.requires_grad_())
        with forward_ad.dual_level():
            y.backward(forward_ad.make_dual(x.detach(), x.detach()))

    for transform in (lambda x: torch.func.jvp(norm, (x,), (x,)), torch.func.jacrev(norm), dual, dual_operator,
                      dual_backward, torch.vmap(torch.func.grad(lambda x: norm(x).sum()))):  # fmt: skip
        # The second is what torch 2.4 itself says of an operator.
        with pytest.raises(NotImplementedError, match="do not go through a norm of the library|must implement the jvp"):
            transform(x)


def test_negated_memory():
    """The imaginary part of a conjugate is a view whose memory has the other sign."""
    for cols in (1, 64):
        x = torch.complex(make(4, cols), make(4, cols)).conj().imag
        assert x.is_neg()
        w, plain = make(cols), x.resolve_neg()
        assert same(rt.rms_norm(x, w, 1e-6), rt.rms_norm(plain, w, 1e-6))
        out = torch.empty(4, cols, dtype=torch.complex64).conj().imag
        assert same(rt.rms_norm(x, w, 1e-6, out=out).resolve_neg(), rt.rms_norm(plain, w, 1e-6))
        q, _ = rt.rms_norm_quant(x, w, 1e-6)
        assert np.array_equal(array(q), array(rt.rms_norm_quant(plain, w, 1e-6)[0]))
    w = torch.complex(make(64), make(64)).conj().imag
    assert same(rt.rms_norm(plain, w, 1e-6), rt.rms_norm(plain, w.resolve_neg(), 1e-6))


def test_negated_memory_that_is_packed():
    """In each role, by every route: the memory of a packed one looks like any other."""
    other = torch._neg_view
    x, r, g, dy = (make(4, 3, 64) for _ in range(4))
    w, heads = make(64), make(3, 64)
    norm, add, gated, quant = rt.rms_norm, rt.fused_add_rms_norm, rt.gated_rms_norm, rt.rms_norm_quant
    for got, want in (
        (norm(other(x), w, 1e-6), norm(-x, w, 1e-6)),
        (norm(x, other(w), 1e-6), norm(x, -w, 1e-6)),
        (norm(x, other(heads), 1e-6), norm(x, -heads, 1e-6)),
        (add(x, other(r), w, 1e-6)[0], add(x, -r, w, 1e-6)[0]),
        (gated(x, other(g), w, 1e-6), gated(x, -g, w, 1e-6)),
        (quant(other(x), other(w), 1e-6, quant="int8-row")[0], quant(x, w, 1e-6, quant="int8-row")[0]),
        (rt.rms_norm_with_stats(other(x), w, 1e-6)[0], norm(-x, w, 1e-6)),
    ):
        assert same(got, want)
    out, total = other(torch.zeros(4, 3, 64)), other(r.clone())
    assert same(norm(x, w, 1e-6, out=out).resolve_neg(), norm(x, w, 1e-6)) and out.is_neg()
    y = x.clone()
    rt.serving.fused_add_rms_norm(y, total, w, 1e-6)
    want = add(x, -r, w, 1e-6)
    assert same(y, want[0]) and same(total.resolve_neg(), want[1])
    leaves = [x.clone().requires_grad_(), w.clone().requires_grad_()]
    y = norm(other(leaves[0]), other(leaves[1]), 1e-6)
    for a, b in zip(torch.autograd.grad(y, leaves, other(dy), retain_graph=True), torch.autograd.grad(y, leaves, -dy)):
        assert same(a.resolve_neg(), b.resolve_neg())
    with pytest.raises(ValueError, match="^scale: its memory has the other sign"):
        quant(x, w, 1e-6, quant="fp8-tensor", scale=other(torch.tensor([-0.02])))
    with pytest.raises(ValueError, match="^weight: its memory has the other sign"):
        rmsnorm.rms_norm(array(x), other(w), eps=1e-6)


@pytest.mark.parametrize("way", ["short", "long"])
def test_tensors_whose_memory_was_taken_away(way, monkeypatch):
    """As sharding does between two uses. NULL must not be taken for an argument that is not there."""
    if way == "long":
        monkeypatch.setattr(rt.direct, "HAS_SHORT", False)

    def gone(*shape):
        tensor = make(*shape)
        tensor.untyped_storage().resize_(0)
        return tensor

    x, w = make(4, 64), make(64)
    for name, call in {
        "x": lambda: rt.rms_norm(gone(4, 64), w, 1e-6),
        "weight": lambda: rt.rms_norm(x, gone(64), 1e-6),
        "residual": lambda: rt.fused_add_rms_norm(x, gone(4, 64), w, 1e-6),
        "gate": lambda: rt.gated_rms_norm(x, gone(4, 64), w, 1e-6),
        "out": lambda: rt.rms_norm(x, w, 1e-6, out=gone(4, 64)),
        "dy": lambda: rt.rms_norm(x.clone().requires_grad_(), w, 1e-6).backward(gone(4, 64)),
    }.items():
        with pytest.raises(ValueError, match=f"^{name}: is given and has no memory$"):
            call()


def test_results_in_one_place():
    x = make(40, 6).t()
    with pytest.raises(ValueError, match="^out and residual_out are the same memory"):
        rt.serving.fused_add_rms_norm(x, x, None, 1e-6)
    with pytest.raises(ValueError, match="^out: several of its elements are one place in memory"):
        rt.rms_norm(x, None, 1e-6, out=torch.empty(6, 1).expand(6, 40))


def test_words_for_types():
    x = make(4, 64)
    for name in ("dtype", "residual_dtype"):
        for dtype in (torch.int32, "float16"):
            with pytest.raises(TypeError, match=f"^{name}: torch.float32, .* is needed, not {dtype!r}$"):
                rt.fused_add_rms_norm(x, x, None, 1e-6, **{name: dtype})
    with pytest.raises(TypeError, match="^out: a torch.Tensor is needed, not ndarray$"):
        rt.rms_norm(x, None, 1e-6, out=x.numpy())
    with pytest.raises(ValueError, match="^dtype: torch.float16 is asked for, and out has torch.float32$"):
        rt.rms_norm(x, None, 1e-6, out=torch.empty(4, 64), dtype=torch.float16)


def test_base_hands_tensors_of_torch_on():
    x, w = make(4, 64), make(64, grad=True)
    y = rmsnorm.rms_norm(x, w, eps=1e-6)
    assert y.requires_grad and same(y, rt.rms_norm(x, w, 1e-6))


def test_from_a_thread_that_is_new(tmp_path):
    import threading

    x, w = make(8, 64), make(64)
    want, got = rt.rms_norm(x, w, 1e-6), []
    threads = [threading.Thread(target=lambda: got.append(rt.rms_norm(x, w, 1e-6))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 4 and all(same(y, want) for y in got)
