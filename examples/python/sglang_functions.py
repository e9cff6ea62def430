"""sglang_functions.py - the library under SGLang's norm layers.

SGLang's layers call four functions that their module took from a kernel package by name. They are replaced there,
before the model is built:

    import sglang_functions
    sglang_functions.install()

The functions have the shapes of FlashInfer and sgl-kernel: a new tensor, or x and residual overwritten.

SPDX-License-Identifier: Apache-2.0
"""

import importlib

from rmsnorm.torch import serving

FUNCTIONS = {
    "rmsnorm": serving.rmsnorm,
    "fused_add_rmsnorm": serving.fused_add_rmsnorm,
    "gemma_rmsnorm": serving.gemma_rmsnorm,
    "gemma_fused_add_rmsnorm": serving.gemma_fused_add_rmsnorm,
}


def install(module="sglang.srt.layers.layernorm"):
    """Replace those of the four that the module has; returns their names. None at all is an error: another SGLang."""
    layers = importlib.import_module(module)
    found = [name for name in FUNCTIONS if hasattr(layers, name)]
    if not found:
        raise RuntimeError(f"{module} calls none of {', '.join(FUNCTIONS)}: read how this release calls its norms")
    for name in found:
        setattr(layers, name, FUNCTIONS[name])
    return found
