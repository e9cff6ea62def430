"""How many threads a call on the CPU may open: as many as OpenMP says, and one in a forked child.

The OpenMP runtime does not survive a fork: a child that opens its threads again hangs (include/rmsnorm.h, section 4).
Results do not depend on threads, so a child - of multiprocessing, of a data loader - simply has one.

SPDX-License-Identifier: Apache-2.0
"""

import os

limit = 0  # 0: as many as OpenMP says


def _after_fork() -> None:
    global limit
    limit = 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
