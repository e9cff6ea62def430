#!/usr/bin/env python3
"""Golden vectors: the formulas of include/rmsnorm.h evaluated in 60 decimal digits with mpmath.

Run from anywhere; writes golden.txt beside this file. The test that reads it (test_reference.c) needs no Python.

SPDX-License-Identifier: Apache-2.0
"""
import os
import random

from mpmath import exp, mp, mpf, sqrt

mp.dps = 60
random.seed(20240607)


def silu(z):
    return z / (1 + exp(-z))


def sigmoid(z):
    return 1 / (1 + exp(-z))


def silu_slope(z):
    s = sigmoid(z)
    return s * (1 + z * (1 - s))


def sigmoid_slope(z):
    return sigmoid(z) * (1 - sigmoid(z))


ACT = {0: (lambda z: mpf(1), lambda z: mpf(0)), 1: (silu, silu_slope), 2: (sigmoid, sigmoid_slope)}


def numbers(n, scale=1.0):
    """Multiples of 2^-10, so that sums of two are exact in a double."""
    return [round(random.gauss(0, 1) * 1024) / 1024 * scale for _ in range(n)]


def case(out, name, rows, heads, cols, groups, eps, divisor=0, offset=0.0, gate=0, before=0, residual=False, scale=1.0):
    width = cols // groups
    total = rows * heads * cols
    x = numbers(total, scale)
    r = numbers(total, scale) if residual else None
    z = numbers(total) if gate else None
    w = numbers(cols)
    dy = numbers(total)
    du_extra = numbers(total)
    act, slope = ACT[gate]
    y, rstd_all, dx, dgate, dot_all = [], [], [], [], []
    dweight = [mpf(0)] * cols
    for row in range(rows * heads):
        for g in range(groups):
            at = [row * cols + g * width + i for i in range(width)]
            h = [mpf(x[i]) + (mpf(r[i]) if r else 0) for i in at]
            a = [act(mpf(z[i])) if gate else mpf(1) for i in at]
            s = [slope(mpf(z[i])) if gate else mpf(0) for i in at]
            u = [p * q for p, q in zip(h, a)] if before else h
            rstd = 1 / sqrt(sum(v * v for v in u) / (divisor or width) + mpf(eps))
            weight = [mpf(offset) + mpf(w[i % cols]) for i in at]
            xhat = [v * rstd for v in u]
            upstream = [mpf(dy[i]) * (a[k] if gate and not before else 1) for k, i in enumerate(at)]
            dot = sum(p * q * v for p, q, v in zip(upstream, weight, xhat))
            rstd_all.append(rstd)
            dot_all.append(dot)
            for k, i in enumerate(at):
                v = xhat[k] * weight[k]
                y.append(v * a[k] if gate and not before else v)
                du = rstd * (upstream[k] * weight[k] - xhat[k] * dot / (divisor or width))
                dx.append((du * a[k] if before else du) + mpf(du_extra[i]))
                if gate:
                    dgate.append(du * h[k] * s[k] if before else mpf(dy[i]) * xhat[k] * weight[k] * s[k])
                dweight[i % cols] += upstream[k] * xhat[k]
    out.write(f"case {name} rows {rows} heads {heads} cols {cols} groups {groups} divisor {divisor} gate {gate} "
              f"before {before} eps {float(eps).hex()} offset {float(offset).hex()}\n")
    inputs = {"x": x, "residual": r, "gate": z, "weight": w, "dy": dy, "dresidual_out": du_extra}
    for key, values in inputs.items():
        if values:
            out.write(f"{key} {len(values)} " + " ".join(float(v).hex() for v in values) + "\n")
    outputs = {"y": y, "rstd": rstd_all, "dx": dx, "dgate": dgate, "dweight": dweight, "dot": dot_all}
    for key, values in outputs.items():
        if values:
            out.write(f"{key} {len(values)} " + " ".join(mp.nstr(v, 22) for v in values) + "\n")


with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden.txt"), "w") as f:
    f.write("# Written by golden.py: inputs as hexadecimal doubles, outputs with 22 decimal digits.\n")
    case(f, "plain", 2, 1, 5, 1, 1e-5)
    case(f, "offset-residual", 2, 1, 4, 1, 1e-6, offset=1.0, residual=True)
    case(f, "heads-groups", 1, 2, 6, 3, 1e-6)
    case(f, "divisor", 1, 1, 3, 1, 0.25, divisor=12)
    case(f, "silu-after", 1, 1, 5, 1, 1e-5, gate=1)
    case(f, "silu-before", 1, 1, 5, 1, 1e-5, gate=1, before=1, residual=True)
    case(f, "sigmoid-after", 1, 1, 4, 1, 1e-5, gate=2)
    case(f, "sigmoid-before", 1, 1, 4, 2, 1e-5, gate=2, before=1)
    case(f, "huge", 1, 1, 4, 1, 1e-5, scale=2.0**400)
    case(f, "tiny", 1, 1, 4, 1, 0.0, scale=2.0**-500)
