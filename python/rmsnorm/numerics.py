"""The numerics of a norm and the forms of a quantised output: what the C structs hold, in words.

A preset is named ("llama", "gemma"), or written out as `Numerics`; both end up as the bytes of `rmsnorm_numerics`,
which are made once for each. Nothing here needs NumPy or torch.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import dataclasses
import struct
from dataclasses import dataclass
from functools import cache

from . import _native

# The codes of include/rmsnorm.h.
F32, F16, BF16, F64, FP8_E4M3, FP8_E5M2, INT8, E8M0 = 1, 2, 3, 4, 8, 9, 10, 11
CPU, CUDA, HIP = 0, 1, 2
WEIGHT_COLS, WEIGHT_HEADS_COLS, WEIGHT_GROUP = 0, 1, 2
TENSOR, ROW, BLOCK, MX = 1, 2, 3, 4

_ROUNDINGS = ("none", "x", "weight", "promoted", "stored")
_GATES = ("none", "silu", "sigmoid")
_PLACES = ("after", "before")
_LAYOUT = struct.Struct("=f6i")


def _word(field: str, word: str, words: tuple[str, ...]) -> int:
    if word not in words:
        raise ValueError(f"{field}: {word!r} is not one of {', '.join(words)}")
    return words.index(word)


@dataclass(frozen=True)
class Numerics:
    """Where a norm rounds and what it is gated with; the defaults are float32 throughout, rounded once.

    docs/numerics.md, section 7, explains each."""

    weight_offset: float = 0.0
    round_sum: str = "none"
    round_rstd: str = "none"
    round_xhat: str = "none"
    round_normed: str = "none"
    gate: str = "none"
    gate_place: str = "after"
    text: str = dataclasses.field(init=False, repr=False, compare=False, default="")

    def __post_init__(self) -> None:
        fields = [field.name for field in dataclasses.fields(self) if field.name != "text"]
        try:
            object.__setattr__(self, "weight_offset", float(self.weight_offset))
            _pack(self)  # a wrong word is refused here
        except (OverflowError, ValueError) as error:
            raise ValueError(f"preset: {error}") from None
        object.__setattr__(self, "text", " ".join(f"{name}={getattr(self, name)}" for name in fields))

    def replace(self, **changes) -> Numerics:
        return dataclasses.replace(self, **changes)

    @staticmethod
    def of(preset: str | Numerics) -> Numerics:
        """The numerics of a preset's name, of a text, or of themselves."""
        return preset if isinstance(preset, Numerics) else _from_text(preset)


def _pack(numerics: Numerics) -> bytes:
    return _LAYOUT.pack(
        numerics.weight_offset,
        _word("round_sum", numerics.round_sum, _ROUNDINGS),
        _word("round_rstd", numerics.round_rstd, _ROUNDINGS),
        _word("round_xhat", numerics.round_xhat, _ROUNDINGS),
        _word("round_normed", numerics.round_normed, _ROUNDINGS),
        _word("gate", numerics.gate, _GATES),
        _word("gate_place", numerics.gate_place, _PLACES),
    )


@cache
def _from_text(text: str) -> Numerics:
    if not isinstance(text, str):
        raise TypeError(f"preset: a name or Numerics, not {type(text).__name__}")
    if "=" in text:
        pairs = dict(pair.partition("=")[::2] for pair in text.split())
        known = [field.name for field in dataclasses.fields(Numerics) if field.init]
        if not set(pairs) <= set(known):
            raise ValueError(
                f"preset: {text!r} is no name, and in a text each word is one of {', '.join(known)}, then ="
            )
        return Numerics(**pairs)
    if text not in presets():
        raise ValueError(f"preset: there is no preset {text!r}; rmsnorm.presets() lists them")
    offset, *codes = _LAYOUT.unpack(_native.preset(text))
    words = [words[code] for words, code in zip((_ROUNDINGS,) * 4 + (_GATES, _PLACES), codes)]
    return Numerics(offset, *words)


class Rules:
    """What the callers need of a preset at every call, looked up once: its bytes and how types follow from it."""

    __slots__ = ("packed", "gate", "gate_before", "round_sum", "stored", "round_rstd", "offset", "result")

    def __init__(self, numerics: Numerics) -> None:
        self.packed = _pack(numerics)
        self.gate = numerics.gate != "none"
        self.gate_before = numerics.gate_place == "before"
        self.stored = numerics.round_sum == "stored"
        self.round_rstd = numerics.round_rstd != "none"
        self.offset = numerics.weight_offset
        # The type of y: "x", "weight" (if half, else f32) or "promoted". A gate after the norm is applied in float32
        # to the rounded value, and what is returned has the type of x again (Qwen3-Next).
        self.result = "x"
        if numerics.round_normed == "weight":
            self.result = "weight"
        elif numerics.round_normed == "promoted" and not (self.gate and not self.gate_before):
            self.result = "promoted"


class _RulesByText(dict):
    def __missing__(self, preset) -> Rules:
        rules = self[preset] = Rules(Numerics.of(preset))
        return rules


# A dict with __missing__ is the cheapest look-up that Python has; keys are names, texts and Numerics.
RULES: dict[str | Numerics, Rules] = _RulesByText()


def result_dtype(rules: Rules, x: int, weight: int) -> int:
    """The code of the type that the family returns; weight 0: there is none."""
    if rules.result == "x" or weight == 0:
        return x
    if rules.result == "weight":
        return weight if weight in (F16, BF16) else F64 if x == F64 else F32
    return x if x == weight else F64 if F64 in (x, weight) else F32


def preset(name: str) -> Numerics:
    """The numerics of the preset of that name; ValueError when there is none."""
    if not isinstance(name, str) or "=" in name:
        raise ValueError(f"preset: {name!r} is not a name")
    return _from_text(name)


def presets() -> dict[str, str]:
    """The names of all presets, and who uses each."""
    return dict(_native.presets())


@dataclass(frozen=True)
class Quant:
    """A quantised output. `kind` is as in the command: fp8, fp8-e5m2 or int8, then -tensor, -row, -block32, -block64 or
    -block128; mxfp8, mxfp8-e5m2.

    `multiply`: values are multiplied with the reciprocal of the scale instead of divided by it. `by_column`: scales of
    blocks with the rows as the fastest dimension. `ceil`: MX scales with which nothing saturates. `scale_max`: an upper
    bound of the scales of rows and blocks, 0 for none."""

    kind: str
    multiply: bool = False
    by_column: bool = False
    ceil: bool = False
    scale_max: float = 0.0
    granularity: int = dataclasses.field(init=False, repr=False, compare=False, default=0)
    block_cols: int = dataclasses.field(init=False, repr=False, compare=False, default=0)
    dtype: int = dataclasses.field(init=False, repr=False, compare=False, default=0)
    text: str = dataclasses.field(init=False, repr=False, compare=False, default="")

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ValueError(f"quant: {self.kind!r} is not one of {', '.join(_KINDS)}")
        for name, value in zip(("granularity", "block_cols", "dtype"), _KINDS[self.kind]):
            object.__setattr__(self, name, value)
        switches = (self.multiply, self.by_column, self.ceil)
        text = " ".join((self.kind, *(str(int(switch)) for switch in switches), repr(float(self.scale_max))))
        object.__setattr__(self, "text", text)

    @staticmethod
    def of(quant: str | Quant) -> Quant:
        return quant if isinstance(quant, Quant) else _quant_from_text(quant)

    def scale_blocks(self, cols: int) -> int:
        """How many scales a row of so many columns has."""
        width = {TENSOR: cols, ROW: cols, BLOCK: self.block_cols, MX: 32}[self.granularity]
        return -(-cols // width) if cols else 0

    def pack(self, scale: int, scale_out: int, stride: int, q: tuple) -> tuple:
        """The tuple that the extension module takes."""
        layout = int(self.by_column)
        return (self.granularity, self.block_cols, int(self.multiply), layout, int(self.ceil), self.scale_max, scale,
                scale_out, stride, q)  # fmt: skip


def check_whole(name: str, value) -> None:
    """Whether it can be taken for an integer; a symbolic one of a compiler stays what it is."""
    if not hasattr(value, "__index__"):
        raise TypeError(f"{name}: a whole number is needed, not {type(value).__name__}")


def _kinds() -> dict[str, tuple[int, int, int]]:
    kinds = {}
    for name, dtype in (("fp8", FP8_E4M3), ("fp8-e5m2", FP8_E5M2), ("int8", INT8)):
        kinds[f"{name}-tensor"] = (TENSOR, 0, dtype)
        kinds[f"{name}-row"] = (ROW, 0, dtype)
        for width in (32, 64, 128):
            kinds[f"{name}-block{width}"] = (BLOCK, width, dtype)
    kinds["mxfp8"] = (MX, 0, FP8_E4M3)
    kinds["mxfp8-e5m2"] = (MX, 0, FP8_E5M2)
    return kinds


_KINDS = _kinds()


_QUANTS: dict[str, Quant] = {}


def _quant_from_text(text: str) -> Quant:
    if not isinstance(text, str):
        raise TypeError(f"quant: a kind or Quant, not {type(text).__name__}")
    found = _QUANTS.get(text)
    if found is None:
        kind, *rest = text.split(" ")
        if len(rest) == 4:
            multiply, by_column, ceil, scale_max = rest
            found = Quant(kind, multiply == "1", by_column == "1", ceil == "1", float(scale_max))
        else:
            found = Quant(text)  # a kind, or refused
        _QUANTS[text] = found
    return found
