"""variants.py - which kernels are compiled ahead of time, for which cases, and what a host has to know to launch them.

A variant is a kernel with its constants fixed. `when` says for which problems it is made, in integers; the rest of what
a family asks of a problem is written at `FAMILIES`. docs: aot.py has the list of parameter names.

Threads: a tile of a fast kernel is spread so that each thread has 16 bytes of every step (8 elements of 2 bytes, 4 of
4), or 8 where registers are short, and a narrow row shares its program with others until the program has some 128
threads. The numbers for lengths that were tried are the fastest of those tried on one H200; others follow them.

SPDX-License-Identifier: Apache-2.0
"""

from dataclasses import dataclass, field

from . import backward, backward_long, forward, general_backward, general_forward

TYPES = {1: "fp32", 2: "fp16", 3: "bf16"}  # rmsnorm_dtype
SIZES = {1: 4, 2: 2, 3: 2}
F32, F16, BF16 = 1, 2, 3
BOTH = 2  # with or without a residual

UNTYPED = {"x", "residual", "gate", "weight", "y", "residual_out", "q", "scale_out", "dy", "dresidual_out", "dx",
           "dresidual", "dgate", "dweight"}
FLOATS = {"rstd_out", "rstd_in", "sumsq_in", "sumsq_out", "scale_in", "dot_in", "dot_out", "sums", "partials"}
SCALARS = {"divisor", "eps", "weight_offset", "scale_max"}
LONG = {"live_most", "live_factor", "dweight_rows", "dweight_vectors"}
ADDERS = ("dweight_fold", "dweight_sum")
LONG_IN_GENERAL = {"rows", "units", "chunks", "unit_rows"}  # the fast families have fewer than 2^31 of them


@dataclass
class Variant:
    family: str
    kernel: object
    constants: dict
    threads: int
    type: int = 0  # of the fast families; 0: every type
    when: dict = field(default_factory=dict)
    tile_rows: int = 0
    tile_cols: int = 0
    any_grid: int = 1  # programs take their work from program_id on in steps of num_programs
    registers: int = 0  # most a thread may have; 0: the compiler's choice

    @property
    def name(self):
        facts = [TYPES[self.type]] if self.type else []
        facts += [f"{key}{value}" for key, value in self.when.items() if key != "type"]
        return "_".join([self.family, *facts])

    @property
    def parameters(self):
        """[(name, type, alignment)], in the order of the kernel. The alignment of an integer is a divisor of it."""
        return [(name, *self._of(name)) for name in self.kernel.arg_names if name not in self.constants]

    def _of(self, name):
        fast = self.type != 0
        run = 16 // SIZES[self.type] if fast else 1
        if name in FLOATS:
            return "*fp32", 16 if name == "partials" and fast else 4
        if name in UNTYPED:
            return ("*" + TYPES[self.type], 16) if fast and name != "dweight" else ("*i8", 1)
        if name == "live_rows":
            return "*i64", 8
        if name in SCALARS:
            return "fp32", 1
        if name.endswith("_stride"):
            return "i64", run
        if name in LONG or (name in LONG_IN_GENERAL and not fast and self.family not in ADDERS):
            return "i64", 1
        return "i32", {"group_cols": run, "lanes": 64}.get(name, 1)

    def warps(self, warp_size):
        return max(1, min(self.threads, 1024) // warp_size)


def _row(dtype, residual, lanes, steps):
    run = 16 // SIZES[dtype]
    rows, cuts, registers = max(1, 128 * run // lanes), 1, 0
    threads = max(128, min(1024, lanes // run))
    if steps < 4:
        # Fewer threads share a row, so that its statistic, which they all compute alike, is computed by fewer.
        rows, cuts, threads = {(1, 1): (16, 4), (2, 1): (32, 4), (3, 1): (16, 2), (1, 2): (8, 2), (2, 2): (16, 2),
                               (3, 2): (16, 2)}[dtype, steps] + (64,)
    elif threads == 512:
        registers = 64 if steps == 4 else 0
    elif steps == 4 and (lanes, residual) == (64, 1):
        rows, threads = 8, 64
    elif steps == 4 and residual != 1 and dtype != F32 and threads < 512:
        # Some 60 KiB have to be under way on a multiprocessor, and so many rows have to fit at once.
        registers = 80 if threads == 128 else 64
    elif residual == 0 and threads < 512:
        registers = {6: 96 if lanes < 2048 else 80, 8: 128}[steps]
    return Variant("forward_row", forward.forward_row,
                   {"HAS_RESIDUAL": residual != 0, "R": rows, "W": lanes, "J": steps, "S": cuts}, threads,
                   type=dtype, when={"type": dtype, "residual": residual, "lanes": lanes, "steps": steps},
                   tile_rows=rows, any_grid=0, registers=registers)


def _few(dtype, residual, lanes, steps):
    """A row a program; 8 to 16 bytes of every step a thread, or fewer where a warp has more threads than that."""
    threads = {64: 32, 128: 32, 256: 64, 512: 128, 1024: 128, 2048: 256, 4096: 256, 8192: 512}[lanes]
    if lanes * steps > 16384:
        threads = 512
    return Variant("forward_few", forward.forward_few, {"HAS_RESIDUAL": residual != 0, "W": lanes, "J": steps},
                   threads, type=dtype, any_grid=0,
                   when={"type": dtype, "residual": residual, "lanes": lanes, "steps": steps})


def _long(dtype, residual, lanes, least):
    """`lanes` of them at once. `least`: how many columns make it worth it; a plan finds it in tile_cols."""
    steps = 2 if residual == 1 else 4
    return Variant("forward_long", forward.forward_long, {"HAS_RESIDUAL": residual != 0, "W": lanes, "U": steps},
                   threads=lanes * SIZES[dtype] // 16, type=dtype, tile_cols=least, any_grid=0,
                   when={"type": dtype, "residual": residual, "lanes": 0, "tile": lanes},
                   registers=0 if dtype == F16 else 64)


# Of backward_rows: chunks a program, parts of the lanes, threads, registers, stages. Those of up to 6 steps were each
# the best of some dozen, or within two hundredths of it where that one is worse with a residual's gradient. What
# decides: the sums of dweight, the weight, and x and dy on their way lie in registers, 12 to 16 bytes a column; enough
# rows have to be under way on a multiprocessor; and the chunks, of which there are only as many as the contract says,
# have to fit on it at once.
_BACKWARD = {
    (64, 1): (4, 1, 128, 128, 4), (64, 2): (4, 1, 128, 128, 3), (64, 4): (4, 1, 128, 168, 3),
    (64, 8): (1, 1, 64, 128, 3), (128, 4): (1, 1, 32, 168, 3), (128, 8): (1, 1, 64, 128, 3),
    (256, 4): (1, 1, 64, 128, 3), (512, 4): (1, 1, 128, 128, 4), (512, 6): (1, 1, 128, 128, 3),
    (1024, 4): (1, 1, 128, 168, 4), (1024, 5): (1, 1, 256, 128, 3), (2048, 4): (1, 1, 512, 128, 4),
}


def _backward(dtype, lanes, steps):
    row_lanes = max(1, 256 // lanes)
    if dtype != F32 and (lanes, steps) in _BACKWARD:
        chunks, cuts, threads, registers, stages = _BACKWARD[lanes, steps]
    elif dtype != F32:
        chunks, cuts, threads, stages = 1, 1, min(512, lanes // 4), 4 if lanes == 1024 else 3
        registers = 168 if lanes <= 1024 else 128
    elif lanes == 64 and steps <= 4:
        chunks, cuts, threads, registers, stages = 2, 1, 128, 128, 3
    else:
        chunks, cuts, threads, stages = 1, 1, min(512, lanes * row_lanes // 4), 3
        registers = 168 if steps == 8 else 128
    return Variant("backward_rows", backward.backward_rows,
                   {"P": row_lanes, "Q": chunks, "W": lanes, "J": steps, "S": cuts, "STAGES": stages}, threads,
                   type=dtype, when={"type": dtype, "lanes": lanes, "steps": steps, "row_lanes": row_lanes},
                   tile_rows=chunks, registers=registers)


def _long_backward(dtype):
    """A row a program, then W columns of a chunk; 16 bytes a thread of each of U steps. Many rows are read best by many
    small programs, and few by large ones."""
    run = 16 // SIZES[dtype]
    for kernel, threads, steps, registers in (
            (backward_long.backward_long_sums, 1024 // run, 1, 64),
            (backward_long.backward_long_sums, 512, 2 if dtype != F32 else 4, 128),
            (backward_long.backward_long, 1024 // run, 1, 64),
            (backward_long.backward_long_dx, 2048 // run, 4 if dtype != F32 else 2, 128)):
        tile = threads * run
        yield Variant(kernel.__name__, kernel, {"W": tile, "U": steps}, threads, type=dtype,
                      when={"type": dtype, "lanes": 0, "tile": tile}, tile_cols=tile, registers=registers)


def _all():
    for lanes in (64, 128, 256, 512, 1024, 2048, 4096):
        for steps in {64: (1, 2, 4, 8), 128: (4, 8)}.get(lanes, (4, 6, 8)):
            for residual in (0, 1):
                if lanes < 4096 or residual:  # without one the long kernel is faster
                    yield _row(BF16, residual, lanes, steps)
        for dtype in (F32, F16):
            # 8 steps of 4096 lanes of 4 bytes do not fit into the registers of 1024 threads.
            for steps in {64: (1, 2, 4, 8), 4096: (4,) if dtype == F32 else (4, 8)}.get(lanes, (4, 8)):
                yield _row(dtype, BOTH, lanes, steps)
        for steps in {64: (1, 2, 4, 8), 128: (4, 8), 256: (4, 8), 4096: (4,)}.get(lanes, (4, 5, 6, 7, 8)):
            yield _backward(BF16, lanes, steps)
        for dtype in (F32, F16):
            every = (1, 2, 4, 8) if lanes == 64 else (4, 8)
            if dtype == F32 and lanes >= 2048:  # more would not fit
                every = (4,) if lanes == 2048 else ()
            for steps in every if lanes < 4096 else every[:1]:
                yield _backward(dtype, lanes, steps)
    yield _row(BF16, 1, 8192, 4)
    for residual in (0, 1):
        for lanes in (64, 128, 256, 512, 1024, 2048, 4096, 8192):
            for steps in {64: (1, 2, 4, 8), 128: (4, 8), 256: (4, 8), 512: (4, 8), 8192: (4,)}.get(lanes, (4, 6, 8)):
                yield _few(BF16, residual, lanes, steps)
    for dtype, residual, lanes, least in ((BF16, 0, 2048, 8192), (BF16, 0, 4096, 32768), (BF16, 1, 4096, 16384),
                                          (F32, BOTH, 2048, 8192), (F16, BOTH, 2048, 8192)):
        yield _long(dtype, residual, lanes, least)
    for dtype in (BF16, F32, F16):
        yield from _long_backward(dtype)
    yield Variant("dweight_fold", backward.dweight_fold, {"K": 32, "W": 64}, threads=128, tile_rows=32, tile_cols=64)
    yield Variant("dweight_sum", backward.dweight_sum, {"K": 128, "W": 8}, threads=128, tile_cols=8)
    for tile, threads in ((256, 64), (2048, 512)):
        yield Variant("general_forward", general_forward.general_forward, {"T": tile}, threads, when={"tile": tile},
                      tile_cols=tile)
        yield Variant("general_backward_sums", general_backward.general_backward_sums, {"T": tile}, threads,
                      when={"tile": tile}, tile_cols=tile)
        yield Variant("general_backward_dx", general_backward.general_backward_dx, {"T": tile}, threads,
                      when={"tile": tile}, tile_cols=tile)
    for row_lanes in (1, 2, 4):
        yield Variant("general_backward_dweight", general_backward.general_backward_dweight,
                      {"P": row_lanes, "T": 128}, 128, when={"row_lanes": row_lanes}, tile_cols=128)


VARIANTS = list(_all())
