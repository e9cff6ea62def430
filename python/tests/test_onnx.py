"""test_onnx.py - the operator RMSNormalization of ONNX (opset 23) on this library, against its official node cases.

The cases are made by the package onnx, nothing is stored here. They are small and loose (float32, 1e-3), so the
function bodies of the definition and the roundings that its text asks for are checked beside them: statistics
and normalisation in the stash type, then to the type of X, then times the scale in the scale's type.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import math
import warnings

import pytest

np = pytest.importorskip("numpy")
onnx = pytest.importorskip("onnx")

import ml_dtypes  # noqa: E402
import oracle  # noqa: E402
import rmsnorm  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402
from rmsnorm import Numerics  # noqa: E402

NORMALIZED_IN_THE_TYPE_OF_X = Numerics(round_xhat="x")
TYPES = {TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16, TensorProto.BFLOAT16: ml_dtypes.bfloat16}


def rms_normalization(x, scale, *, axis=-1, epsilon=1e-5, stash_type=TensorProto.FLOAT):
    """The operator: the last dimensions from `axis` on are one row. Y has the type of the scale."""
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"axis {axis} is outside of the {x.ndim} dimensions of X")
    doubles = x.dtype == np.float64
    if stash_type != (TensorProto.DOUBLE if doubles else TensorProto.FLOAT):
        raise NotImplementedError(
            f"stash_type {stash_type} for {x.dtype}: statistics are in float32, of doubles in double"
        )
    axis %= x.ndim
    row = x.shape[axis:]
    while scale.ndim > len(row) and scale.shape[0] == 1:
        scale = scale[0]
    if scale.ndim > len(row):
        raise NotImplementedError("a scale that differs from row to row")
    scale = np.ascontiguousarray(np.broadcast_to(scale, row)).reshape(-1)
    y = rmsnorm.rms_norm(
        x.reshape(*x.shape[:axis], math.prod(row)),
        scale,
        eps=epsilon,
        preset=NORMALIZED_IN_THE_TYPE_OF_X,
        dtype=scale.dtype,
    )
    return y.reshape(x.shape)


def _attributes(node):
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def _cases():
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the generator, about other operators
        cases = collect_testcases("RMSNormalization")
    return {case.name: case for case in cases}


CASES = _cases()


def test_the_official_cases_are_all_here():
    plain = [name for name in CASES if not name.endswith("_expanded")]
    assert len(plain) >= 19
    assert len(CASES) == 2 * len(plain)


@pytest.mark.parametrize("name", [name for name in CASES if not name.endswith("_expanded")])
def test_official_case(name):
    case = CASES[name]
    (node,) = case.model.graph.node
    assert node.op_type == "RMSNormalization"
    for (x, scale), (expected,) in case.data_sets:
        y = rms_normalization(x, scale, **_attributes(node))
        assert y.dtype == expected.dtype
        assert y.shape == expected.shape
        np.testing.assert_allclose(y, expected, rtol=case.rtol, atol=case.atol)
        # Far nearer than the case asks for: a row of at most 120 numbers, both sides in float32.
        np.testing.assert_allclose(y, expected, rtol=2.0**-20, atol=2.0**-22)


@pytest.mark.parametrize("name", [name for name in CASES if name.endswith("_expanded")])
def test_function_body_of_the_definition(name):
    """The same input through the primitive operators that the definition expands to."""
    plain = CASES[name.removesuffix("_expanded")]
    for (x, scale), _ in plain.data_sets:
        graph = CASES[name].model.graph
        inputs = dict(zip([value.name for value in graph.input], (x, scale), strict=True))
        (expected,) = ReferenceEvaluator(CASES[name].model).run(None, inputs)
        y = rms_normalization(x, scale, **_attributes(plain.model.graph.node[0]))
        np.testing.assert_allclose(y, expected, rtol=2.0**-20, atol=2.0**-22)


@pytest.mark.parametrize("dtype", TYPES.values(), ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
@pytest.mark.parametrize("epsilon", [1e-5, 1e-1, 0.0])
def test_roundings_of_the_definition(random, dtype, axis, epsilon):
    """Normalized is cast to the type of X before it is scaled: every bit, from the library's own statistic."""
    x = random.standard_normal((3, 5, 24)).astype(np.float32).astype(dtype)
    scale = random.standard_normal(x.shape[axis:]).astype(np.float32).astype(dtype)
    rows = x.reshape(*x.shape[: axis % 3], -1)
    _, rstd = rmsnorm.rms_norm(rows, eps=epsilon, preset="fp32", dtype=np.float32, stats=True)
    expected = oracle.staged(rows, scale.reshape(-1), rstd, NORMALIZED_IN_THE_TYPE_OF_X, np.dtype(dtype))
    reference = 1 / np.sqrt((rows.astype(np.float64) ** 2).mean(-1) + epsilon)
    np.testing.assert_allclose(rstd, reference, rtol=2.0**-22)
    y = rms_normalization(x, scale, axis=axis, epsilon=epsilon)
    assert oracle.same_bits(y.reshape(rows.shape), expected)


def test_the_order_of_cast_and_scale_is_seen(random):
    """A planted fault: without the cast in between, other bits come out."""
    x = random.standard_normal((64, 96)).astype(ml_dtypes.bfloat16)
    scale = random.standard_normal(96).astype(ml_dtypes.bfloat16)
    other = rmsnorm.rms_norm(x, scale, eps=1e-5, preset="fp32", dtype=scale.dtype)
    assert (other != rms_normalization(x, scale)).any()


def test_types_of_x_and_scale_that_differ(random):
    """Y has the type of the scale."""
    x = random.standard_normal((7, 40)).astype(np.float16)
    scale = random.standard_normal(40).astype(np.float32)
    y = rms_normalization(x, scale)
    _, rstd = rmsnorm.rms_norm(x, eps=1e-5, preset="fp32", dtype=np.float32, stats=True)
    expected = (x.astype(np.float32) * rstd[:, None]).astype(np.float16).astype(np.float32) * scale
    assert oracle.same_bits(y, expected)


def test_double_with_its_own_stash_type(random):
    x = random.standard_normal((4, 33))
    scale = random.standard_normal(33)
    y = rms_normalization(x, scale, stash_type=TensorProto.DOUBLE)
    np.testing.assert_allclose(y, x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * scale, rtol=1e-14)


def test_what_is_refused(random):
    x = random.standard_normal((4, 8)).astype(np.float32)
    scale = np.ones(8, np.float32)
    with pytest.raises(NotImplementedError, match="stash_type 10"):
        rms_normalization(x, scale, stash_type=TensorProto.FLOAT16)
    with pytest.raises(ValueError, match="axis"):
        rms_normalization(x, scale, axis=2)
    with pytest.raises(NotImplementedError, match="from row to row"):
        rms_normalization(x, np.ones((4, 1), np.float32))


def test_a_scale_that_is_broadcast(random):
    x = random.standard_normal((2, 3, 8)).astype(np.float32)
    for shape in ((8,), (1, 8), (3, 1), (3, 8), (1,), (), (1, 3, 8)):
        scale = random.standard_normal(shape).astype(np.float32)
        full = np.broadcast_to(scale.reshape(scale.shape[-2:]), (3, 8))
        y = rms_normalization(x, scale, axis=1)
        assert oracle.same_bits(y, rms_normalization(x, np.ascontiguousarray(full), axis=1))
