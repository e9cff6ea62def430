"""What all tests share: the seed, and the switch for the full matrices.

SPDX-License-Identifier: Apache-2.0
"""

import os

import numpy
import pytest


def pytest_report_header():
    import rmsnorm

    able = [name for name, why in rmsnorm.impls().items() if why is None]
    return f"rmsnorm {rmsnorm.__version__}, here: {', '.join(able)}; seed {seed()}"


def seed() -> int:
    return int(os.environ.get("RMSNORM_TEST_SEED", "20261130"))


@pytest.fixture
def random():
    return numpy.random.default_rng(seed())
