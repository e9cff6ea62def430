#!/usr/bin/env python3
"""A norm in three lines, on NumPy arrays; then what else one call can do.

SPDX-License-Identifier: Apache-2.0
"""

import numpy
import rmsnorm

x = numpy.random.default_rng(0).standard_normal((2, 576), dtype=numpy.float32)
weight = numpy.ones(576, dtype=numpy.float32)
y = rmsnorm.rms_norm(x, weight, eps=1e-5)

print("root mean square of each row, before:", numpy.sqrt((x**2).mean(-1)), "after:", numpy.sqrt((y**2).mean(-1)))

# The residual add in the same pass, with the roundings of a model family, straight into what the next product eats.
q, scale, stream = rmsnorm.rms_norm(x, weight, eps=1e-5, residual=y, preset="llama", quant="fp8-row")
print("quantised:", q.dtype, q.shape, "one scale a row:", scale.ravel())

# Who computed it, and why nobody else.
print(rmsnorm.explain(x, weight))
