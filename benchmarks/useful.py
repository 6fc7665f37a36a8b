"""The least work of a rule, counted: multiply-adds of its products, bytes of its inputs and
results.

A form may do more - solve what another substitutes, read an array twice - and its share of the
machine's rate falls by that. So one count serves every form of a memory and every implementation of
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

BACKWARD = 2  # every product has two in the backward, each as large


class Useful(NamedTuple):
    """Multiply-adds, and bytes read or written once."""

    multiply_adds: float
    bytes: float


def frozen(d: int, c: int, C: int) -> int:
    """Multiply-adds of a chunk of C tokens in the frozen dual form (CHUNK-26).

    The chunk has K = C + c - 1 columns.

    Residuals C d d, scores C K d, masked scores times residuals C K d, reads from the memory and
    momentum at the chunk's start 2 C d d, both end states 2 K d d.
    """
    K = C + c - 1
    return C * d * d + C * K * d + C * K * d + 2 * C * d * d + 2 * K * d * d


def exact(d: int, c: int, C: int, *, momentum: bool) -> int:
    """Multiply-adds of a chunk of C tokens in the exact form (EXACT-2, EXACT-3).

    The chunk has K = C + c - 1 keys and cC residuals.

    Products of the keys K K d and with the queries C K d, predictions from the states at the
    chunk's start K d d each, substitution over the residuals c C K d / 2, masked scores C K d,
    reads from the states C d d each, end states K d d each.
    """
    K = C + c - 1
    states = 2 if momentum else 1
    return (
        K * K * d
        + C * K * d
        + states * K * d * d
        + c * C * K * d // 2
        + C * K * d
        + states * (C * d * d + K * d * d)
    )


def fewest(count: Callable[[int], int], tokens: int) -> int:
    """Multiply-adds of a sequence, with the chunk that needs fewest."""
    return int(min(-(-tokens * count(2**n) // 2**n) for n in range(1, 9)))


def multiply_adds(memory: Any, heads: int, tokens: int, kind: str) -> float:
    """Multiply-adds of one of `benchmarks.memories`; kind "forward", or "both" with the
    backward.
    """
    config, convention = memory.config, memory.config.convention
    d, c = config.d_in, getattr(config, "window", 1)
    momentum = "momentum" in memory.gates
    if convention.reference == "running" and not convention.has_newton_schulz:
        count = fewest(lambda C: exact(d, c, C, momentum=momentum), tokens)
        # or token after token: predictions, writes, a read and the momentum (EXACT-21)
        count = min(count, tokens * (2 * c + 1 + momentum) * d * d)
    elif convention.has_newton_schulz:
        steps = convention.newton_schulz_settings.steps
        # Newton-Schulz, the gradient's outer products, the read
        count = tokens * (3 * steps * d**3 + 2 * c * d * d + d * d)
    else:
        count = fewest(lambda C: frozen(d, c, C), tokens)
    return float(heads * count * (1 + BACKWARD if kind == "both" else 1))


def bytes_moved(memory: Any, heads: int, tokens: int, kind: str, itemsize: int = 4) -> float:
    """Bytes of the inputs and reads, each moved once.

    With the backward the inputs count twice, and the cotangent of the reads and a gradient for each
    input are added.
    """
    rows = 3 * memory.config.d_in + len(memory.gates)
    reads = memory.config.d_out
    numbers = rows + reads if kind == "forward" else 3 * rows + 2 * reads
    return float(heads * tokens * numbers * itemsize)


def useful(memory: Any, heads: int, tokens: int, kind: str, itemsize: int = 4) -> Useful:
    """Both counts."""
    return Useful(
        multiply_adds(memory, heads, tokens, kind),
        bytes_moved(memory, heads, tokens, kind, itemsize),
    )
