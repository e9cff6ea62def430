"""variants.py - which kernels are compiled ahead of time, for which cases, and what a host has to know to launch them.

A variant is a kernel with its constants fixed. `when` says for which problems it is made, in integers; the rest of what
a family asks of a problem is written at `FAMILIES`. docs: aot.py has the list of parameter names.

Threads: a tile of a fast kernel is spread so that each thread has 16 bytes of every step (8 elements of 2 bytes, 4 of
4), and a narrow row shares its program with others until the program has some 128 threads.

SPDX-License-Identifier: Apache-2.0
"""

from dataclasses import dataclass, field

from . import backward, backward_long, forward, general_backward, general_forward

TYPES = {1: "fp32", 2: "fp16", 3: "bf16"}  # rmsnorm_dtype
SIZES = {1: 4, 2: 2, 3: 2}
BF16, BOTH = 3, 2  # BOTH: with or without a residual

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
    rows = max(1, 128 * run // lanes)
    threads = max(128, min(1024, lanes // run))
    registers, cuts = 0, 1
    if steps < 4:
        rows *= 4 // steps  # as many loads under way as with 4 steps
        cuts = 4 if steps == 1 else 1  # each statistic is computed by two threads of its row, not by eight
    elif residual == 0 and (threads < 512 or steps == 4):
        # Some 60 KiB have to be under way on a multiprocessor, and so many rows have to fit at once.
        registers = {4: 64, 6: 96 if lanes < 2048 else 80, 8: 128}[steps]
    elif threads == 512 and steps == 4:
        registers = 64
    return Variant("forward_row", forward.forward_row,
                   {"HAS_RESIDUAL": residual != 0, "R": rows, "W": lanes, "J": steps, "S": cuts}, threads,
                   type=dtype, when={"type": dtype, "residual": residual, "lanes": lanes, "steps": steps},
                   tile_rows=rows, any_grid=0, registers=registers)


def _long(dtype, residual):
    lanes = 4096  # at once; a row has to have as many
    return Variant("forward_long", forward.forward_long, {"HAS_RESIDUAL": residual != 0, "W": lanes, "U": 4},
                   threads=512, type=dtype, when={"type": dtype, "residual": residual, "lanes": 0},
                   tile_cols=4 * lanes, any_grid=0, registers=64 if dtype == BF16 else 0)


def _backward(dtype, lanes, steps):
    run = 16 // SIZES[dtype]
    row_lanes = max(1, 256 // lanes)
    chunks, cuts = 1, 1
    if steps < 4:
        # A warp for the four rows of a chunk would have more to do for the rows than for their columns: 128 threads for
        # the rows of several chunks, two words of 16 bytes of x and of dy each.
        cuts = 2 // steps
        chunks = 128 * run * cuts // (row_lanes * lanes)
    threads = max(32, chunks * row_lanes * lanes // run // cuts)
    if steps > 4 and dtype != 1:
        threads *= 2  # the sums of dweight take a register for every column
    threads = min(512, threads)  # more would have too few registers each
    return Variant("backward_rows", backward.backward_rows,
                   {"P": row_lanes, "Q": chunks, "W": lanes, "J": steps, "S": cuts, "STAGES": 2}, threads, type=dtype,
                   when={"type": dtype, "lanes": lanes, "steps": steps, "row_lanes": row_lanes},
                   tile_rows=chunks, registers=168 if steps >= 4 and threads <= (256 if dtype == 1 else 128) else 128)


def _long_backward(dtype):
    """A row a program (512 threads), then W columns of a chunk (128): 16 bytes a thread of each of U steps."""
    run = 16 // SIZES[dtype]
    for kernel, threads, steps in ((backward_long.backward_long_sums, 2048 // run, 4),
                                   (backward_long.backward_long, 128, 4 if dtype != 1 else 2),
                                   (backward_long.backward_long_dx, 2048 // run, 4 if dtype != 1 else 2)):
        tile = threads * run
        yield Variant(kernel.__name__, kernel, {"W": tile, "U": steps}, threads, type=dtype,
                      when={"type": dtype, "lanes": 0}, tile_cols=tile, registers=128)


def _all():
    for lanes in (64, 128, 256, 512, 1024, 2048, 4096):
        for steps in {64: (1, 2, 4, 8), 128: (4, 8)}.get(lanes, (4, 6, 8)):
            for residual in (0, 1):
                yield _row(BF16, residual, lanes, steps)
        for dtype in (1, 2):
            # 8 steps of 4096 lanes of 4 bytes do not fit into the registers of 1024 threads.
            for steps in {64: (2, 4, 8), 4096: (4,) if dtype == 1 else (4, 8)}.get(lanes, (4, 8)):
                yield _row(dtype, BOTH, lanes, steps)
        for steps in {64: (1, 2, 4, 8), 128: (4, 8), 256: (4, 8), 4096: (4,)}.get(lanes, (4, 5, 6, 7, 8)):
            yield _backward(BF16, lanes, steps)
        for dtype in (1, 2):
            for steps in (4, 8) if lanes < 4096 else (4,) if dtype == 2 else ():  # f32 would not fit
                yield _backward(dtype, lanes, steps)
    yield _row(BF16, 0, 8192, 4)
    yield _row(BF16, 1, 8192, 4)
    for dtype, residual in ((BF16, 0), (BF16, 1), (1, BOTH), (2, BOTH)):
        yield _long(dtype, residual)
    for dtype in (BF16, 1, 2):
        yield from _long_backward(dtype)
    yield Variant("dweight_fold", backward.dweight_fold, {"K": 64, "W": 64}, threads=128, tile_rows=64, tile_cols=64)
    yield Variant("dweight_sum", backward.dweight_sum, {"K": 128, "W": 16}, threads=128, tile_cols=16)
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
