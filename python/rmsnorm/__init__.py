"""RMSNorm with the same bits everywhere: the C library rmsnorm for NumPy, DLPack, PyTorch and transformers.

    import rmsnorm
    y = rmsnorm.rms_norm(x, weight, eps=1e-6)             # NumPy arrays, or any tensor with DLPack

    import rmsnorm.torch                                  # functions, modules, operators for PyTorch
    rmsnorm.patch(model)                                  # the norms of a loaded transformers model

Importing this module loads neither NumPy nor torch nor anything for a GPU.

SPDX-License-Identifier: Apache-2.0
"""

import importlib.util

try:
    from . import _native
except ImportError as error:
    raise ImportError(
        "rmsnorm: the extension module is not beside the Python files. Install with `pip install .`, or build with "
        "cmake -DRMSNORM_PYTHON=ON and set PYTHONPATH to the folder python of the build"
    ) from error

from .arrays import explain, rms_norm
from .numerics import Numerics, Quant, preset, presets

__version__ = _native.version()


def impls() -> dict:
    """The implementations of the library, fastest first: None where this machine can run it, otherwise why not."""
    return {name: why for name, _, why in _native.impls()}


def _torch_for(what: str) -> None:
    if importlib.util.find_spec("torch") is None:
        raise ModuleNotFoundError(f"rmsnorm.{what} needs PyTorch: pip install torch", name="torch")


def patch(model, *arguments, **options):
    """Replace the RMSNorms of a loaded transformers model by equivalents on this library."""
    _torch_for("patch")
    from .patch_models import patch as run

    return run(model, *arguments, **options)


def unpatch(model, *arguments, **options):
    """Undo patch."""
    _torch_for("unpatch")
    from .patch_models import unpatch as run

    return run(model, *arguments, **options)


__all__ = ["Numerics", "Quant", "__version__", "explain", "impls", "patch", "preset", "presets", "rms_norm", "unpatch"]
