"""portable.py - the library's portable implementation through its C interface: what every bit is compared with.

SPDX-License-Identifier: Apache-2.0
"""

import ctypes as c
import os

I32, I64, F32, F64, PTR = c.c_int32, c.c_int64, c.c_float, c.c_double, c.c_void_p
DTYPES = {"f32": 1, "f16": 2, "bf16": 3, "fp8_e4m3": 8, "fp8_e5m2": 9, "int8": 10, "e8m0": 11}


class Tensor(c.Structure):
    _fields_ = [("data", PTR), ("row_stride", I64), ("head_stride", I64), ("col_stride", I64), ("dtype", I32),
                ("reserved", I32)]


class Numerics(c.Structure):
    _fields_ = [("weight_offset", F32), ("round_sum", I32), ("round_rstd", I32), ("round_xhat", I32),
                ("round_normed", I32), ("gate", I32), ("gate_place", I32)]


class Quant(c.Structure):
    _fields_ = [("granularity", I32), ("block_cols", I32), ("scale_op", I32), ("scale_layout", I32),
                ("e8m0_rounding", I32), ("scale_max", F32), ("scale", PTR), ("scale_out", PTR), ("scale_stride", I64),
                ("q", Tensor)]


_WHERE = [("parallel", PTR), ("threads", I32), ("device", I32), ("impl", c.c_char_p), ("launch", PTR)]


class Forward(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("rows", I64), ("heads", I64), ("cols", I64), ("groups", I64),
                ("eps", F64), ("divisor", I64), ("numerics", Numerics), ("weight_dtype", I32), ("weight_shape", I32),
                ("weight", PTR), ("x", Tensor), ("residual", Tensor), ("gate", Tensor), ("y", Tensor),
                ("residual_out", Tensor), ("rstd", PTR), ("sumsq", PTR), ("quant", Quant)] + _WHERE


class Stats(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("rows", I64), ("heads", I64), ("cols", I64), ("groups", I64),
                ("round_sum", I32), ("sum_dtype", I32), ("gate_kind", I32), ("reserved", I32), ("x", Tensor),
                ("residual", Tensor), ("gate", Tensor), ("sumsq", PTR)] + _WHERE


class Backward(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("rows", I64), ("heads", I64), ("cols", I64), ("groups", I64),
                ("eps", F64), ("divisor", I64), ("numerics", Numerics), ("weight_dtype", I32), ("weight_shape", I32),
                ("weight", PTR), ("x", Tensor), ("residual", Tensor), ("gate", Tensor), ("dy", Tensor),
                ("dresidual_out", Tensor), ("rstd", PTR), ("sumsq", PTR), ("dot", PTR), ("sum_dtype", I32),
                ("dweight_dtype", I32), ("dx", Tensor), ("dresidual", Tensor), ("dgate", Tensor), ("dweight", PTR),
                ("dot_out", PTR), ("workspace", PTR), ("workspace_bytes", c.c_size_t)] + _WHERE


class Library:
    def __init__(self, path=None):
        self.lib = c.CDLL(path or os.environ["RMSNORM_LIBRARY"])
        self.lib.rmsnorm_last_error.restype = c.c_char_p

    def call(self, args):
        """Runs the struct's own operation on `portable`, with a workspace where it wants one."""
        name = {Forward: "forward", Stats: "stats", Backward: "backward"}[type(args)]
        args.struct_size, args.impl, args.threads = c.sizeof(args), b"portable", 1
        if name == "backward":
            size = c.c_size_t()
            self._check(self.lib.rmsnorm_backward_workspace_bytes(c.byref(args), c.byref(size)))
            space = c.create_string_buffer(size.value + 64)
            args.workspace, args.workspace_bytes = (c.addressof(space) + 63) & ~63, size.value
        self._check(getattr(self.lib, f"rmsnorm_{name}")(c.byref(args), None))

    def _check(self, status):
        if status:
            raise RuntimeError(f"status {status}: {self.lib.rmsnorm_last_error().decode()}")
