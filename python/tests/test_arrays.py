"""The NumPy and DLPack layer against float64, the staged model and the portable implementation.

SPDX-License-Identifier: Apache-2.0
"""

import os
import subprocess
import sys
import types

import ml_dtypes
import numpy as np
import oracle
import pytest
import rmsnorm
from oracle import BF16, DTYPES, F32, F64
from rmsnorm import Numerics, arrays

PLAIN = [name for name in rmsnorm.presets() if rmsnorm.preset(name).gate == "none"]
GATED = [name for name in rmsnorm.presets() if rmsnorm.preset(name).gate != "none"]


def make(random, shape, dtype, spread=3.0):
    return (random.standard_normal(shape) * random.uniform(0.1, spread, shape)).astype(dtype)


def result_type(numerics, x, weight):
    """The type the family returns: docs/numerics.md, section 7."""
    if weight is None or numerics.round_normed not in ("weight", "promoted"):
        return x.dtype
    if numerics.round_normed == "weight":
        return weight.dtype if weight.dtype in (oracle.F16, BF16) else F32
    return oracle.promoted(x.dtype, weight.dtype)


@pytest.mark.parametrize("preset", PLAIN)
@pytest.mark.parametrize("x_type", DTYPES)
@pytest.mark.parametrize("w_type", [None, "f32", "bf16"])
def test_bits_after_the_statistic(random, preset, x_type, w_type):
    """rstd within its bound of float64, and y the bits of the staged model for it, with a residual and without."""
    numerics = rmsnorm.preset(preset)
    for cols in (1, 7, 64, 576, 1029):
        x = make(random, (3, cols), DTYPES[x_type])
        weight = None if w_type is None else make(random, (cols,), DTYPES[w_type])
        for residual in (None, make(random, (3, cols), DTYPES[x_type])):
            y, *rest = rmsnorm.rms_norm(x, weight, eps=1e-6, preset=preset, residual=residual, stats=True)
            rstd = rest[-1]
            assert y.dtype == result_type(numerics, x, weight)
            _, want = oracle.exact(x, weight, 1e-6, numerics, residual)
            bound = (oracle.chain(cols) / 2 + 3) * oracle.U * want  # docs/numerics.md, 8.1
            if numerics.round_rstd != "none":
                bound = bound + (0 if x_type == "f32" else 0.5 * oracle.ulp(want, x.dtype))
            assert (np.abs(rstd - want) <= bound).all()
            assert oracle.same_bits(y, oracle.staged(x, weight, rstd, numerics, y.dtype, residual))
            if residual is not None:
                assert oracle.same_bits(rest[0], (x.astype(F32) + residual.astype(F32)).astype(x.dtype))


@pytest.mark.parametrize("preset", GATED)
@pytest.mark.parametrize("x_type", DTYPES)
def test_gates(random, preset, x_type):
    numerics = rmsnorm.preset(preset)
    x, gate = make(random, (5, 192), DTYPES[x_type]), make(random, (5, 192), DTYPES[x_type])
    weight = make(random, (192,), DTYPES[x_type])
    y = rmsnorm.rms_norm(x, weight, eps=1e-5, gate=gate, preset=preset)
    assert oracle.same_bits(y, rmsnorm.rms_norm(x, weight, eps=1e-5, gate=gate, preset=preset, impl="portable"))
    want, _ = oracle.exact(x, weight, 1e-5, numerics, gate=gate)
    stages = sum(getattr(numerics, name) != "none" for name in ("round_xhat", "round_normed"))
    # f32: docs/numerics.md, 8.3. Otherwise half an ulp of the type for each rounding, one more where a product can
    # double it, and the rounding of y.
    allowed = 6.0 if x_type == "f32" else 0.51 + 1.01 * stages
    assert oracle.distance(y, want).max() <= allowed


@pytest.mark.parametrize("preset", ["torch", "llama", "gemma"])
def test_groups_divisor_and_heads(random, preset):
    numerics = rmsnorm.preset(preset)
    x = make(random, (4, 3, 96), BF16)
    for weight, groups, divisor in (
        (make(random, (96,), BF16), 4, 0),
        (make(random, (24,), BF16), 4, 0),
        (make(random, (3, 96), BF16), 1, 0),
        (make(random, (96,), BF16), 1, 200),
        (make(random, (3, 96), BF16), 2, 50),
    ):
        y, rstd = rmsnorm.rms_norm(x, weight, eps=1e-5, preset=preset, groups=groups, divisor=divisor, stats=True)
        _, want = oracle.exact(x, weight, 1e-5, numerics, groups=groups, divisor=divisor)
        assert rstd.shape == want.shape
        assert (np.abs(rstd - want) <= (oracle.chain(96 // groups) / 2 + 3) * oracle.U * want).all()
        assert oracle.same_bits(y, oracle.staged(x, weight, rstd, numerics, y.dtype, groups=groups))


def test_float64(random):
    x, weight = make(random, (6, 77), F64), make(random, (77,), F64)
    y = rmsnorm.rms_norm(x, weight, eps=1e-9, preset="fp32")
    want, _ = oracle.exact(x, weight, 1e-9, Numerics())
    assert y.dtype == F64 and np.abs(y / want - 1).max() < 40 * 2.0**-53


def test_strides_and_in_place(random):
    """Bits do not depend on where the rows lie; views are read and written where they are."""
    packed = make(random, (5, 4, 3, 64), BF16)
    weight = make(random, (64,), BF16)
    want = rmsnorm.rms_norm(packed, weight, eps=1e-6, preset="llama")
    room = np.zeros((5, 4, 3, 90), BF16)
    views = {
        "columns of a wider row": room[..., 20:84],
        "every other row": np.zeros((10, 4, 3, 64), BF16)[::2],
        "backwards": np.zeros((5, 4, 3, 64), BF16)[::-1],
        "outer dimensions exchanged": np.zeros((3, 5, 4, 64), BF16).transpose(1, 2, 0, 3),
        "columns apart: a copy": np.zeros((5, 4, 64, 3), BF16).transpose(0, 1, 3, 2),
        "three strides that do not fold: a copy": np.zeros((5, 5, 4, 64), BF16)[:, ::2, ::2].transpose(0, 2, 1, 3),
    }  # fmt: skip
    for name, view in views.items():
        if view.shape != packed.shape:
            x = make(random, view.shape, BF16)
            view[...] = x
            expected = rmsnorm.rms_norm(x, weight, eps=1e-6, preset="llama")
        else:
            view[...] = packed
            expected = want
        assert oracle.same_bits(rmsnorm.rms_norm(view, weight, eps=1e-6, preset="llama"), expected), name
        out = rmsnorm.rms_norm(view, weight, eps=1e-6, preset="llama", out=view)
        assert out is view and oracle.same_bits(view, expected), f"{name}, in place"
    outside = np.concatenate((room[..., :20].ravel(), room[..., 84:].ravel()))
    assert not outside.any(), "written beside the view"


@pytest.mark.parametrize(
    "kind",
    ["fp8-tensor", "fp8-row", "fp8-e5m2-row", "int8-row", "fp8-block32", "int8-block128", "mxfp8", "mxfp8-e5m2"],
)
def test_quantised(random, kind):
    quant = rmsnorm.Quant(kind)
    largest = 127.0 if kind.startswith("int8") else 57344.0 if "e5m2" in kind else 448.0
    x, weight = make(random, (6, 200), BF16), make(random, (200,), BF16)
    residual = make(random, (6, 200), BF16)
    given = np.array([0.03], np.float32) if kind.endswith("tensor") else None
    q, scale, total = rmsnorm.rms_norm(
        x, weight, eps=1e-6, residual=residual, quant=kind, scale=given, preset="fp32", residual_dtype="float32"
    )
    rstd = rmsnorm.rms_norm(x, weight, eps=1e-6, residual=residual, preset="fp32", stats=True)[-1]
    v = oracle.staged(x, weight, rstd, Numerics(), F32, residual)
    assert oracle.same_bits(total, x.astype(F32) + residual.astype(F32))
    if given is None and kind[0] != "m":
        width = quant.block_cols or 200
        blocks = [np.abs(v[:, i : i + width]).max(-1) for i in range(0, 200, width)]
        assert oracle.same_bits(scale, np.stack(blocks, -1) / np.float32(largest))
        factor = np.repeat(scale, width, -1)[:, :200]
    elif given is None:
        assert scale.dtype == np.dtype(ml_dtypes.float8_e8m0fnu) and scale.shape == (6, 7)
        factor = np.repeat(scale.astype(F32), 32, -1)[:, :200]
        blocks = np.stack([np.abs(v[:, i : i + 32]).max(-1) for i in range(0, 200, 32)], -1)
        assert (np.log2(scale.astype(F64)) == np.floor(np.log2(blocks)) - (15 if "e5m2" in kind else 8)).all()
    else:
        assert scale is given
        factor = given
    clipped = np.clip(v / factor, -largest if kind[0] != "i" else -128, largest)
    want = np.rint(clipped) if kind[0] == "i" else clipped
    assert oracle.same_bits(q, want.astype(q.dtype))


def test_scales_by_column(random):
    x = make(random, (4, 5, 96), F32)
    q, scale = rmsnorm.rms_norm(x, eps=1e-6, quant=rmsnorm.Quant("fp8-block32"))
    q2, scale2 = rmsnorm.rms_norm(x, eps=1e-6, quant=rmsnorm.Quant("fp8-block32", by_column=True))
    assert scale.shape == scale2.shape == (4, 5, 3) and scale2.strides == (20, 4, 80)
    assert oracle.same_bits(q, q2) and oracle.same_bits(scale, scale2)


def test_empty_rows():
    for shape in ((0, 8), (3, 0, 8)):
        x = np.zeros(shape, np.float32)
        y, total, rstd = rmsnorm.rms_norm(x, eps=1e-6, residual=x, stats=True)
        assert y.shape == total.shape == shape and rstd.shape == shape[:-1]
        q, scale = rmsnorm.rms_norm(x, eps=1e-6, quant="fp8-row")
        assert q.shape == shape and scale.shape == (*shape[:-1], 1)


def test_dlpack(random):
    """An object that has nothing but DLPack, as old and as new capsules."""

    class Foreign:
        def __init__(self, array, **options):
            self.array, self.options = array, options

        def __dlpack__(self, stream=None):
            return self.array.__dlpack__(**self.options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    x, weight = make(random, (4, 6, 64), F32)[:, ::2], make(random, (64,), F32)
    want = rmsnorm.rms_norm(x, weight, eps=1e-6)
    options = [{}]
    if int(np.__version__.split(".")[0]) >= 2:
        options.append({"max_version": (1, 0)})
    for option in options:
        assert oracle.same_bits(rmsnorm.rms_norm(Foreign(x, **option), Foreign(weight, **option), eps=1e-6), want)
    with pytest.raises(ValueError, match="strides do not fold"):
        rmsnorm.rms_norm(Foreign(x.transpose(0, 2, 1)), eps=1e-6)


def test_dlpack_offset_and_packed_strides(random):
    """A capsule with a byte offset, and without strides, which stand for packed rows."""
    import ctypes

    class Tensor(ctypes.Structure):
        _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("rank", ctypes.c_int32),
                    ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                    ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
                    ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]  # fmt: skip

    values = make(random, (5, 64), F32)
    shape = (ctypes.c_int64 * 2)(4, 64)
    tensor = Tensor(values.ctypes.data, (1, 0), 2, 2, 32, 1, ctypes.addressof(shape), None, 64 * 4)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)

    class Foreign:
        def __dlpack__(self, stream=None):
            return new(ctypes.addressof(tensor), b"dltensor", None)

        def __dlpack_device__(self):
            return 1, 0

    assert oracle.same_bits(rmsnorm.rms_norm(Foreign(), eps=1e-6), rmsnorm.rms_norm(values[1:], eps=1e-6))
    tensor.code = 5  # complex
    with pytest.raises(TypeError, match="DLPack type"):
        rmsnorm.rms_norm(Foreign(), eps=1e-6)


BAD = {
    "a list": (TypeError, "x: a NumPy array", lambda x, w: rmsnorm.rms_norm([[1.0]], eps=1e-6)),
    "no eps": (TypeError, "eps", lambda x, w: rmsnorm.rms_norm(x, w)),
    "negative eps": (ValueError, "eps", lambda x, w: rmsnorm.rms_norm(x, w, eps=-1.0)),
    "eps NaN": (ValueError, "eps", lambda x, w: rmsnorm.rms_norm(x, w, eps=float("nan"))),
    "integers": (TypeError, "x: .*int32", lambda x, w: rmsnorm.rms_norm(x.astype(np.int32), eps=1e-6)),
    "int8": (TypeError, "x: .*int8", lambda x, w: rmsnorm.rms_norm(x.astype(np.int8), eps=1e-6)),
    "byte order": (TypeError, "x: ", lambda x, w: rmsnorm.rms_norm(x.astype(">f4"), eps=1e-6)),
    "a scalar": (ValueError, "no dimension", lambda x, w: rmsnorm.rms_norm(np.float32(3.0), eps=1e-6)),
    "short weight": (ValueError, "weight: the shape", lambda x, w: rmsnorm.rms_norm(x, w[:-1], eps=1e-6)),
    "residual shape": (ValueError, "residual: has", lambda x, w: rmsnorm.rms_norm(x, w, eps=1e-6, residual=x[:1])),
    "gate without one": (ValueError, "gate: ", lambda x, w: rmsnorm.rms_norm(x, w, eps=1e-6, gate=x)),
    "gate missing": (ValueError, "gate: ", lambda x, w: rmsnorm.rms_norm(x, w, eps=1e-6, preset="mamba2")),
    "unknown preset": (ValueError, "preset: .*'lama'", lambda x, w: rmsnorm.rms_norm(x, w, eps=1e-6, preset="lama")),
    "unknown kind": (ValueError, "quant: ", lambda x, w: rmsnorm.rms_norm(x, w, eps=1e-6, quant="fp9-row")),
    "scale missing": (ValueError, "scale: ", lambda x, w: rmsnorm.rms_norm(x, w, eps=1e-6, quant="fp8-tensor")),
    "bad scale": (ValueError, "scale", lambda x, w: rmsnorm.rms_norm(x, w, eps=1e-6, quant="fp8-tensor", scale=-1.0)),
    "groups": (ValueError, "groups: 5", lambda x, w: rmsnorm.rms_norm(x, w, eps=1e-6, groups=5)),
    "groups a float": (TypeError, "groups: a whole", lambda x, w: rmsnorm.rms_norm(x, w, eps=1e-6, groups=2.0)),
    "divisor None": (TypeError, "divisor: a whole", lambda x, w: rmsnorm.rms_norm(x, w, eps=1e-6, divisor=None)),
    "half a thread": (TypeError, "threads: a whole", lambda x, w: rmsnorm.rms_norm(x, w, eps=1e-6, threads=0.5)),
    "impl no name": (TypeError, "impl: a name", lambda x, w: rmsnorm.rms_norm(x, w, eps=1e-6, impl=3)),
    "kinds in a list": (TypeError, "quant: a kind", lambda x, w: rmsnorm.rms_norm(x, w, eps=1e-6, quant=["fp8-row"])),
    "dtype int8": (TypeError, "dtype: the name", lambda x, w: rmsnorm.rms_norm(x, w, eps=1e-6, dtype=np.int8)),
    "f64 weight": (ValueError, "weight", lambda x, w: rmsnorm.rms_norm(x, w.astype(F64), eps=1e-6)),
    "read only": (ValueError, "read only", lambda x, w: rmsnorm.rms_norm(x, eps=1e-6, out=np.broadcast_to(x, x.shape))),
    "overlap": (ValueError, "overlap", lambda x, w: rmsnorm.rms_norm(x[:-1], w, eps=1e-6, out=x[1:])),
    "unknown impl": (ValueError, "impl", lambda x, w: rmsnorm.rms_norm(x, w, eps=1e-6, impl="fastest")),
    "f64 quantised": (NotImplementedError, "f64", lambda x, w: rmsnorm.rms_norm(x.astype(F64), eps=1, quant="fp8-row")),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_refusals(random, case):
    """A refusal is an exception with a sentence, and nothing was written."""
    kind, match, call = BAD[case]
    x, weight = make(random, (4, 64), F32), make(random, (64,), F32)
    kept = x.copy()
    with pytest.raises(kind, match=match):
        call(x, weight)
    assert oracle.same_bits(x, kept)


def test_presets_and_numerics():
    for name in rmsnorm.presets():
        numerics = rmsnorm.preset(name)
        assert Numerics.of(numerics.text) == numerics
    assert rmsnorm.preset("gemma").weight_offset == 1.0 and rmsnorm.preset("t5").round_xhat == "weight"
    assert rmsnorm.preset("mamba2").gate_place == "before"
    with pytest.raises(ValueError, match="round_xhat"):
        Numerics(round_xhat="sometimes")


def test_explain(random):
    text = rmsnorm.explain(make(random, (4, 64), F64))
    assert "portable" in text and "runs" in text


def test_import_is_light():
    """Neither NumPy nor torch nor a GPU's library is loaded by the import, and it is quick."""
    code = (
        "import sys, time; start = time.perf_counter(); import rmsnorm; took = time.perf_counter() - start;"
        "maps = open('/proc/self/maps').read() if sys.platform == 'linux' else '';"
        "assert not {'numpy', 'torch', 'ml_dtypes'} & set(sys.modules), sorted(sys.modules);"
        "assert 'libcuda' not in maps and 'amdhip' not in maps; assert took < 5, took"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_child():
    """A child of a parent that has opened OpenMP's threads does not hang: it has one thread."""
    code = """
import os, signal, numpy, rmsnorm
x = numpy.ones((4096, 1024), numpy.float32)
want = rmsnorm.rms_norm(x, eps=1e-6, threads=2)
child = os.fork()
if child == 0:
    signal.alarm(60)
    os._exit(0 if (rmsnorm.rms_norm(x, eps=1e-6) == want).all() else 1)
raise SystemExit(os.waitpid(child, 0)[1])
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    assert subprocess.run([sys.executable, "-c", code], timeout=120, env=environment).returncode == 0


def test_results_in_one_place(random):
    """Results that lie in each other are refused where copies would hide it from the library; those that lie between
    each other are not."""
    x = make(random, (6, 40), F32)
    both = np.empty((40, 6), F32).T
    with pytest.raises(ValueError, match="^out and residual_out share memory"):
        rmsnorm.rms_norm(x, eps=1e-6, residual=x, out=both, residual_out=both)
    one = np.empty(6, F32)
    with pytest.raises(ValueError, match="^out: several of its elements are one place in memory"):
        rmsnorm.rms_norm(x, eps=1e-6, out=np.lib.stride_tricks.as_strided(one, (6, 40), (4, 0)))
    between = np.empty((6, 80), F32)
    want = rmsnorm.rms_norm(x, eps=1e-6, residual=x)
    rmsnorm.rms_norm(x, eps=1e-6, residual=x, out=between[:, ::2], residual_out=between[:, 1::2])
    assert oracle.same_bits(between[:, ::2], want[0]) and oracle.same_bits(between[:, 1::2], want[1])


def test_one_byte_numbers_are_not_mixed_up(random):
    """uint8 takes the codes of each; an array of another type would show them as other numbers."""
    x = make(random, (6, 64), F32)
    for quant, own, other in (
        ("fp8-e5m2-row", ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn),
        ("fp8-row", ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
    ):
        want = rmsnorm.rms_norm(x, eps=1e-6, quant=quant)[0]
        for dtype in (own, np.uint8):
            got = rmsnorm.rms_norm(x, eps=1e-6, quant=quant, out=np.empty(x.shape, dtype))[0]
            assert got.dtype == dtype and (got.view(np.uint8) == want.view(np.uint8)).all()
        with pytest.raises(TypeError, match=f"^out: {own.__name__} is needed, not {other.__name__}$"):
            rmsnorm.rms_norm(x, eps=1e-6, quant=quant, out=np.empty(x.shape, other))
    with pytest.raises(TypeError, match="^scale_out: float8_e8m0fnu is needed"):
        rmsnorm.rms_norm(x, eps=1e-6, quant="mxfp8", scale_out=np.empty((6, 2), ml_dtypes.float8_e4m3fn))
    rmsnorm.rms_norm(x, eps=1e-6, quant="mxfp8", scale_out=np.empty((6, 2), np.uint8))
    with pytest.raises(TypeError, match="^x: float32, .* is needed, not uint8$"):
        rmsnorm.rms_norm(np.ones((2, 2), np.uint8), eps=1e-6)


def test_memory_that_is_not_all(random):
    """A mask; an object that has memory and no type of NumPy."""
    x = make(random, (6, 40), F32)
    masked = np.ma.masked_array(x, x > 0)
    for call in (
        lambda: rmsnorm.rms_norm(masked, eps=1e-6),
        lambda: rmsnorm.rms_norm(x, masked[0], eps=1e-6),
        lambda: rmsnorm.rms_norm(x, eps=1e-6, out=masked),
    ):
        with pytest.raises(TypeError, match="^(x|weight|out): is masked"):
            call()

    class Image:
        __array_interface__ = x.__array_interface__

    with pytest.raises(TypeError, match="^x: a Image has no type of NumPy"):
        rmsnorm.rms_norm(Image(), eps=1e-6)


def test_words_for_eps_and_dtype(random):
    x = make(random, (6, 40), F32)
    for eps in (None, "1e-6"):
        with pytest.raises(TypeError, match=f"^eps: a number is needed, .*, not {type(eps).__name__}$"):
            rmsnorm.rms_norm(x, eps=eps)
    with pytest.raises(ValueError, match="^dtype: float16 is asked for, and out has float32$"):
        rmsnorm.rms_norm(x, eps=1e-6, out=np.empty_like(x), dtype="float16")
    assert rmsnorm.rms_norm(x, eps=np.float32(1e-6), out=np.empty(x.shape, BF16)).dtype == BF16


@pytest.mark.parametrize("standard", [False, True])
def test_results_beside_arrays_on_a_gpu(standard, monkeypatch):
    """They are made by the module of x on the device of x, which is current (CuPy) or said (the array API), whether the
    array names its module or not; a type that the module has not is refused in words."""
    made, current = [], ["gpu 0"]

    class Current:
        def __enter__(self):
            current.append("gpu 1")

        def __exit__(self, *error):
            current.pop()

    class ndarray:  # noqa: N801 - as CuPy spells it
        __module__ = "stubpy._core"
        dtype, device = "stub float32", "gpu 1" if standard else Current()

    def empty(shape, dtype, device=None):
        made.append((shape, dtype, device or current[-1]))

    space = types.ModuleType("stubpy")
    space.empty, space.float16 = empty, "stub float16"
    look = types.SimpleNamespace(device=arrays.CUDA, code=arrays.F32)
    with pytest.raises(TypeError, match=r"^out: results on a GPU have to be given for a stubpy._core.ndarray$"):
        arrays._make("out", ndarray(), look, (2, 3), arrays.F32)
    if standard:
        ndarray.__array_namespace__ = lambda self: space
    else:
        monkeypatch.setitem(sys.modules, "stubpy", space)
    arrays._make("out", ndarray(), look, (2, 3), arrays.F32)
    arrays._make("out", ndarray(), look, (2,), arrays.F16)
    assert made == [((2, 3), "stub float32", "gpu 1"), ((2,), "stub float16", "gpu 1")] and current == ["gpu 0"]
    with pytest.raises(TypeError, match=r"^out: stubpy has no bfloat16; give the result$"):
        arrays._make("out", ndarray(), look, (2, 3), arrays.BF16)


def test_cupy(random):
    """Arrays of another library, on a GPU: results are its own, the bits those of the CPU."""
    cupy = pytest.importorskip("cupy", reason="cupy is not installed")
    try:
        if cupy.cuda.runtime.getDeviceCount() < 1 or rmsnorm.impls().get("cuda") is not None:
            pytest.skip("no GPU here, or no kernels for it")
    except cupy.cuda.runtime.CUDARuntimeError:
        pytest.skip("no GPU here")
    x, weight = make(random, (6, 5, 640), F32), make(random, (640,), oracle.F16)
    for preset in ("llama", "fp32"):
        want = rmsnorm.rms_norm(x, weight, eps=1e-6, preset=preset, residual=x, stats=True)
        got = rmsnorm.rms_norm(cupy.asarray(x), cupy.asarray(weight), eps=1e-6, preset=preset, residual=cupy.asarray(x),
                               stats=True)  # fmt: skip
        for a, b in zip(got, want, strict=True):
            assert isinstance(a, cupy.ndarray) and oracle.same_bits(cupy.asnumpy(a), b)
    part = (slice(None), slice(None, None, 2), slice(32, 96))
    got = rmsnorm.rms_norm(cupy.asarray(x)[part], eps=1e-6)
    assert oracle.same_bits(cupy.asnumpy(got), rmsnorm.rms_norm(x[part], eps=1e-6))
    side = cupy.cuda.Stream(non_blocking=True)
    with side:
        y = rmsnorm.rms_norm(cupy.asarray(x), eps=1e-6, stream=side.ptr)
        assert oracle.same_bits(cupy.asnumpy(y, stream=side), rmsnorm.rms_norm(x, eps=1e-6))
