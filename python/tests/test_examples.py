"""The examples run as a person would run them.

SPDX-License-Identifier: Apache-2.0
"""

import importlib.util
import pathlib
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "python"
# What each needs, and what its output has to say.
SAYS = {
    "norm.py": ("numpy", "quantised: float8_e4m3fn (2, 576)"),
    "train_step.py": ("torch", "the same bits after two runs: True"),
    "capture_graph.py": ("torch", ""),
}


@pytest.mark.parametrize("name", SAYS)
def test_example(name):
    needs, says = SAYS[name]
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    run = subprocess.run([sys.executable, EXAMPLES / name], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert says in run.stdout
    assert "False" not in run.stdout
