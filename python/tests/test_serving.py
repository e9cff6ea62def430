"""The calls that serving engines make, against the functions: the same bits, in the caller's memory and nowhere else.

SPDX-License-Identifier: Apache-2.0
"""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import rmsnorm.torch as rt  # noqa: E402
from rmsnorm.torch import serving  # noqa: E402
from test_torch import devices, make, same  # noqa: E402


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(20261130)


def guarded(like, pad=32):
    """A poisoned tensor of this shape with guards around every row; returns it and a check of the guards."""
    room = torch.full((*like.shape[:-1], like.shape[-1] + 2 * pad), -77.0, device=like.device).to(like.dtype)
    view = room[..., pad:-pad]

    def check():
        assert (room[..., :pad].float() == -77).all() and (room[..., -pad:].float() == -77).all(), "a guard was hit"

    return view, check


@devices
def test_vllm(device):
    for shape in ((1, 64), (7, 576), (3, 4, 128)):
        x = make(*shape, dtype=torch.bfloat16, device=device)
        residual = make(*shape, dtype=torch.bfloat16, device=device)
        weight = make(shape[-1], dtype=torch.bfloat16, device=device)
        want = rt.rms_norm(x, weight, 1e-6)
        out, check = guarded(x)
        assert serving.rms_norm(out, x, weight, 1e-6) is None
        assert same(out.contiguous(), want)
        check()
        want, total = rt.fused_add_rms_norm(x, residual, weight, 1e-6)
        (a, check_a), (b, check_b) = guarded(x), guarded(x)
        a.copy_(x)
        b.copy_(residual)
        serving.fused_add_rms_norm(a, b, weight, 1e-6)
        assert same(a.contiguous(), want) and same(b.contiguous(), total)
        check_a()
        check_b()
        serving.rms_norm(a, a, weight, 1e-6)  # in place
        assert same(a.contiguous(), rt.rms_norm(want, weight, 1e-6))


@devices
def test_vllm_quantised(device):
    x = make(7, 300, dtype=torch.bfloat16, device=device)
    residual, weight = make(7, 300, dtype=torch.bfloat16, device=device), make(300, device=device)
    scale = torch.tensor([0.03], device=device)
    out = torch.full((7, 300), 5.0, device=device).to(torch.float8_e4m3fn)

    def q_same(a, b):
        return same(a.view(torch.uint8), b.view(torch.uint8))

    serving.rms_norm_static_fp8_quant(out, x, weight, scale, 1e-6)
    assert q_same(out, rt.rms_norm_quant(x, weight, 1e-6, quant="fp8-tensor", scale=scale)[0])
    moved = residual.clone()
    serving.fused_add_rms_norm_static_fp8_quant(out, x, moved, weight, scale, 1e-6)
    want = rt.rms_norm_quant(x, weight, 1e-6, quant="fp8-tensor", scale=scale, residual=residual)
    assert q_same(out, want[0]) and same(moved, want[2])
    for kind, dtype in (("fp8", torch.float8_e4m3fn), ("int8", torch.int8)):
        out, scales = torch.empty(7, 300, dtype=dtype, device=device), torch.full((7, 1), -1.0, device=device)
        serving.rms_norm_dynamic_per_token_quant(out, x, weight, scales, 1e-6, scale_ub=0.01)
        quant = rt.functional.Quant(f"{kind}-row", scale_max=0.01)
        want = rt.rms_norm_quant(x, weight, 1e-6, quant=quant)
        assert q_same(out, want[0]) and same(scales, want[1]) and scales.max() <= 0.01
        for transposed in (False, True):
            scales = torch.full((3, 7) if transposed else (7, 3), -1.0, device=device)
            scales = scales.t() if transposed else scales
            moved = residual.clone()
            serving.rms_norm_per_block_quant(out, x, weight, scales, 1e-6, None, moved, 128, transposed)
            want = rt.rms_norm_quant(x, weight, 1e-6, quant=f"{kind}-block128", residual=residual)
            assert q_same(out, want[0]) and same(scales.contiguous(), want[1]) and same(moved, want[2])
    with pytest.raises(TypeError, match="scale_ub"):
        serving.rms_norm_dynamic_per_token_quant(out, x, weight, scales, 1e-6, scale_ub=scale)
    with pytest.raises(TypeError, match="out: "):
        serving.rms_norm_dynamic_per_token_quant(x.clone(), x, weight, scales, 1e-6)


@devices
def test_flashinfer(device):
    x, residual = make(5, 8, 64, device=device), make(5, 8, 64, device=device)
    weight = make(64, device=device)
    for call, preset in ((serving.rmsnorm, "torch"), (serving.gemma_rmsnorm, "gemma")):
        want = rt.rms_norm(x, weight, 1e-6, preset=preset)
        out = torch.full_like(x, 9.0)
        assert same(call(x, weight), want) and call(x, weight, out=out) is out and same(out, want)
    for call, preset in ((serving.fused_add_rmsnorm, "torch"), (serving.gemma_fused_add_rmsnorm, "gemma")):
        want, a, b = rt.fused_add_rms_norm(x, residual, weight, 1e-6, preset=preset), x.clone(), residual.clone()
        call(a, b, weight)
        assert same(a, want[0]) and same(b, want[1])
    out = torch.empty(5, 8, 64, dtype=torch.float8_e4m3fn, device=device)
    scale = torch.tensor([0.05], device=device)
    serving.rmsnorm_quant(out, x, weight, scale)
    want = rt.rms_norm_quant(x, weight, 1e-6, quant="fp8-tensor", scale=scale)[0]
    assert same(out.view(torch.uint8), want.view(torch.uint8))


@devices
def test_outputs_that_do_not_fold(device):
    """Such an output is made beside and copied to where it belongs."""
    x, weight = make(4, 6, 8, 64, device=device), make(64, device=device)
    room = torch.full((8, 12, 16, 64), -77.0, device=device)
    out = room[::2, ::2, ::2]
    serving.rms_norm(out, x, weight, 1e-6)
    assert same(out.contiguous(), rt.rms_norm(x, weight, 1e-6))
    assert (room[1::2] == -77).all() and (room[:, 1::2] == -77).all() and (room[:, :, 1::2] == -77).all()
