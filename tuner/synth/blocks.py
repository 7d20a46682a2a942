"""What does random but valid tensor data look like, at disk speed?

Any bits are valid in ggml's blocks except the scales, which must be finite and
of a sane size (layouts: ggml/src/ggml-common.h, b11434). So random bytes are
drawn once per type, the scales are set so that the weights have a standard
deviation of 1/sqrt(row length), and a tensor is a walk over that pool from a
place of its own. A pool's number of blocks is prime, so experts and layers
are not copies of each other.
"""

from __future__ import annotations

import math
import random
import struct
from array import array
from collections.abc import Iterator
from typing import Final

from offload.errors import UsageError
from offload.ggml import GGMLType
from tuner.synth.container import FileTensor

# type -> (offset of each f16 scale in a block and its multiple of d, deviation of weights at d = 1)
# The second scale is a minimum: its multiple brings the mean to zero.
_F16_SCALES: Final[dict[str, tuple[tuple[tuple[int, float], ...], float]]] = {
    "Q4_0": (((0, 1.0),), 4.61),
    "Q4_1": (((0, 1.0), (2, -7.5)), 4.61),
    "Q5_0": (((0, 1.0),), 9.23),
    "Q5_1": (((0, 1.0), (2, -15.5)), 9.23),
    "Q8_0": (((0, 1.0),), 73.9),
    "Q2_K": (((80, 1.0), (82, 1.5)), 13.9),
    "Q3_K": (((108, 1.0),), 43.3),
    "Q4_K": (((0, 1.0), (2, 7.5)), 259.0),
    "Q5_K": (((0, 1.0), (2, 15.5)), 524.0),
    "Q6_K": (((208, 1.0),), 1364.0),
    "IQ1_S": (((0, 1.0),), 7.23),
    "IQ2_XXS": (((0, 1.0),), 53.3),
    "IQ2_XS": (((0, 1.0),), 55.7),
    "IQ2_S": (((0, 1.0),), 56.4),
    "IQ3_XXS": (((0, 1.0),), 142.8),
    "IQ3_S": (((0, 1.0),), 139.7),
    "IQ4_NL": (((0, 1.0),), 67.2),
    "IQ4_XS": (((0, 1.0),), 1243.0),
    "TQ1_0": (((52, 1.0),), 0.82),
    "TQ2_0": (((64, 1.0),), 1.12),
    "Q1_0": (((0, 1.0),), 1.0),
    "Q2_0": (((0, 1.0),), 1.12),
}
_E8M0_ONE: Final = 127  # MXFP4: one power of two per block
_UE4M3_ONE: Final = 0x38  # NVFP4: four small floats per block, three bits of mantissa
_FP4_STD: Final = 2.92  # deviation of FP4 weights at scale 1 (the code book is doubled)
_FLOATS: Final = ("F32", "F16", "BF16")
_INTEGERS: Final = {"I8": "b", "I16": "h", "I32": "i", "I64": "q"}
_N_FLOATS: Final = 65537
_N_ROWS: Final = 4093
_HEADS: Final = ("output.weight", "token_embd.weight")  # the latter where the output is tied
_END_TOKEN: Final = 2  # of the byte vocabulary
_POOL_BYTES: Final = 1 << 22
_CHUNK_BYTES: Final = 1 << 22

RANDOM_TYPES: Final = frozenset({*_F16_SCALES, "IQ1_M", "MXFP4", "NVFP4", *_FLOATS})


def _prime_below(n: int) -> int:
    while any(n % k == 0 for k in range(2, math.isqrt(n) + 1)):
        n -= 1
    return n


def _set_scales(pool: bytearray, type_: GGMLType, std: float) -> None:
    """Write the scales of every block so that the weights deviate by `std`."""
    size, name = type_.block_bytes, type_.name
    n_blocks = len(pool) // size
    if name in _F16_SCALES:
        fields, unit_std = _F16_SCALES[name]
        for offset, multiple in fields:
            low, high = struct.pack("<e", multiple * std / unit_std)
            pool[offset::size] = bytes([low]) * n_blocks
            pool[offset + 1 :: size] = bytes([high]) * n_blocks
        return
    log2 = round(math.log2(std / _FP4_STD))
    if name == "MXFP4":
        pool[0::size] = bytes([_E8M0_ONE + log2]) * n_blocks
    elif name == "NVFP4":
        # the exponent reaches down to 2^-6 only
        scale = max(_UE4M3_ONE + 8 * log2, 8)
        for offset in range(4):
            pool[offset::size] = bytes([scale]) * n_blocks
    elif name == "IQ1_M":  # the f16 lies in the top nibbles of four 16-bit words at byte 48
        (bits,) = struct.unpack("<H", struct.pack("<e", std / 7.23))
        for i in range(4):
            nibble = bits >> 4 * i & 15
            table = bytes(byte & 15 | nibble << 4 for byte in range(256))
            at = 49 + 2 * i
            pool[at::size] = bytes(pool[at::size]).translate(table)


def _role_of(t: FileTensor) -> tuple[float, float]:
    """Mean and deviation of a tensor of plain floats, by its name."""
    kind = t.name.rsplit(".", 1)[0] if "." in t.name else t.name
    if kind.endswith(("norm", "norm_1", "norm_2", "layer_output_scale", "rope_freqs")):
        return 1.0, 0.0
    if t.name.endswith(".scale"):
        return 1.0, 0.0
    if t.name.endswith(".bias"):
        return 0.0, 0.02
    if t.name.endswith("ssm_a"):  # a decay: must be negative
        return -1.0, 0.1
    if kind.endswith("ssm_conv1d"):
        return 0.0, 0.5
    return 0.0, 1 / math.sqrt(t.shape[0])


def _walk(pool: bytearray, place: int, n_bytes: int) -> Iterator[memoryview]:
    """`n_bytes` from the pool in chunks, starting at `place` and over again from its start."""
    view = memoryview(pool)
    while n_bytes:
        chunk = view[place : place + min(n_bytes, _CHUNK_BYTES)]
        yield chunk
        n_bytes -= len(chunk)
        place = (place + len(chunk)) % len(pool)


class RandomData:
    """Deterministic data for the tensors of one file: calling it with a tensor yields chunks."""

    def __init__(self, seed: int, *, embedding_std: float | None = None, n_expert: int = 0) -> None:
        """Take the seed; pools are drawn when first needed.

        `embedding_std` 1 keeps tokens apart through all layers, as trained models do, so
        that routers choose as many different experts; without it attention soon makes
        them alike. `n_expert` bounds the entries of tables of expert numbers.
        """
        self._seed = seed
        self._embedding_std = embedding_std
        self._n_expert = n_expert
        self._pools: dict[tuple[str, float], bytearray] = {}
        self._gauss: list[float] = []

    def __call__(self, t: FileTensor) -> Iterator[memoryview]:
        """The tensor's bytes; raises UsageError for a type without a known block layout."""
        if t.type.name in _INTEGERS:
            yield from self._numbers(t)
            return
        if t.type.name not in RANDOM_TYPES:
            raise UsageError(f"{t.name}: no random data for type {t.type.name}")
        pool = self._floats(t) if t.type.name in _FLOATS else self._blocks(t)
        unit = t.type.block_bytes
        place = random.Random(f"{self._seed} {t.name}").randrange(len(pool) // unit) * unit
        if t.name not in _HEADS:
            yield from _walk(pool, place, t.n_bytes)
            return
        # the end token's row is zero, so that its logit is too and generation goes on
        row_bytes = t.n_bytes // t.shape[1]
        before = row_bytes * _END_TOKEN
        yield from _walk(pool, place, before)
        yield memoryview(bytes(row_bytes))
        yield from _walk(pool, (place + before) % len(pool), t.n_bytes - before - row_bytes)

    def _std(self, t: FileTensor) -> float:
        if t.name == "token_embd.weight" and self._embedding_std is not None:
            return self._embedding_std
        return 1 / math.sqrt(t.shape[0])

    def _numbers(self, t: FileTensor) -> Iterator[memoryview]:
        """Expert numbers where a table holds them, each row of different ones; else zeros."""
        n_rows = math.prod(t.shape[1:])
        row = t.shape[0]
        if "tid2eid" not in t.name or self._n_expert < row:
            yield memoryview(bytes(t.n_bytes))
            return
        rng = random.Random(f"{self._seed} {t.name}")
        width = t.type.block_bytes
        form = f"<{row}{_INTEGERS[t.type.name]}"
        pool = bytearray(
            b"".join(
                struct.pack(form, *rng.sample(range(self._n_expert), row)) for _ in range(_N_ROWS)
            )
        )
        yield from _walk(pool, 0, n_rows * row * width)

    def _blocks(self, t: FileTensor) -> bytearray:
        std = self._std(t)
        key = (t.type.name, std)
        if key not in self._pools:
            n_blocks = _prime_below(_POOL_BYTES // t.type.block_bytes)
            rng = random.Random(f"{self._seed} {t.type.name}")
            pool = bytearray(rng.randbytes(n_blocks * t.type.block_bytes))
            _set_scales(pool, t.type, std)
            self._pools[key] = pool
        return self._pools[key]

    def _floats(self, t: FileTensor) -> bytearray:
        if not self._gauss:
            rng = random.Random(f"{self._seed} floats")
            self._gauss = [rng.gauss(0.0, 1.0) for _ in range(_N_FLOATS)]
        mean, std = _role_of(t)
        if t.name == "token_embd.weight":
            std = self._std(t)
        values = array("f", [mean + std * g for g in self._gauss])
        if t.type.name == "F16":
            return bytearray(struct.pack(f"<{len(values)}e", *values))
        raw = bytearray(values.tobytes())
        if t.type.name == "BF16":  # the upper half of each float
            halves = bytearray(len(raw) // 2)
            halves[0::2], halves[1::2] = raw[2::4], raw[3::4]
            return halves
        return raw
