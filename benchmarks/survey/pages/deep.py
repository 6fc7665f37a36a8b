"""The part of the survey's page about memories of several layers that learn at test time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.survey.pages.kept import asked_on

DEEP = """## Memories of several layers

Memories that learn at test time and are no mere matrix, asked by
[`of_deep_memories.py`](../examples/adapters/public/of_deep_memories.py): one drawn case of [deep memory](deep_memory.md) for each row,
{rows} rows of {tokens} tokens of width {width}, gates that vary, weights away from their start, in float64. The stated settings are those
of [DEEPCASE-2](deep_memory_cases.md), without sizes. `values` and `gradients`: the largest relative difference of a tensor from ours
under them; below a power of ten where it is rounding, then all pass. `identify` searched the readings of
[DEEPCASE-14](deep_memory_cases.md) without the stated ones: MATCH says that they alone explain the results. Gradients by weights of a
write, keys, values, queries, gates and first weights pass through every write, to second order, and match `outer_gradient: full`
([`deep.py`](../benchmarks/survey/deep.py)).
"""

UNOFFICIAL = """titans-unofficial departs from every reading: its activation is relu, which no memory function here has, and its layers have
biases that learn. The last column has ours as if the activation were relu: with the biases held at 0 that is all that is left, and with
them it is what they do. Its bound of gradients adds 1e-6 to their length, ours 1e-8 (DEEP-9), which is the rest of the last row.
"""

FAULTS = """### Faults of memories that learn at test time

Each by one number ([`deep_faults.py`](../benchmarks/survey/deep_faults.py)), beside what it would be otherwise. What a second call of
titans-pytorch returns is [below](#a-second-call-of-titans-pytorch). Two more memories are near: `ops/ttt` and `ops/titans` of fla-core
have one matrix, of ttt with a bias, under a LayerNorm with one; of the functions here an mlp of depth 1 with `residual_norm` is the
nearest, and has neither bias.
"""

DEEP_HEAD = (
    "implementation",
    "layers, settings",
    "stated",
    "values",
    "gradients",
    "verdict",
    "explained by",
    "as if relu",
)
FAULT_HEAD = ("implementation", "fault", "measured", "number", "otherwise")

Table = Callable[[Sequence[str], Sequence[Sequence[str]]], str]


def faults_table(faults: Any, table: Table) -> str:
    """Faults of packages that are there."""
    names = ("fault", "measured", "number", "right")
    lines = [(named(row), *(row[name] for name in names)) for row in faults if row["version"]]
    return table(FAULT_HEAD, lines)


def parts(deep: Any, faults: Any, table: Table) -> list[str]:
    """The chapter, its two tables and what is between them."""
    return [
        DEEP.format(rows=deep["rows"], tokens=deep["tokens"], width=deep["width"]),
        table(DEEP_HEAD, [_line(row) for row in deep["found"]]),
        UNOFFICIAL,
        FAULTS,
        faults_table(faults, table),
    ]


def named(row: Any) -> str:
    words = " ".join(f"{row['package']} {row['version']} {row.get('label', '')}".split())
    return words + asked_on(row)


def _line(row: Any) -> tuple[str, ...]:
    if "missing" in row:
        return (named(row), row["settings"], *[""] * 3, row["missing"], "", "")
    verdict = f"{row['verdict']}, of {row['searched']}"
    explained = "the stated" if row["verdict"] == "MATCH" and not row["nearest"] else ""
    if row["departure"]:
        explained = f"the nearest, as if {row['departure']}"
    elif row["verdict"] == "NO MATCH":
        explained = f"none; nearest: {row['nearest'] or 'the stated'}"
    numbers = (_size(row["values"]), _size(row["gradients"]) or "not asked")
    return (
        named(row),
        row["settings"],
        row["stated"],
        *numbers,
        verdict,
        explained,
        _size(row["relu"]),
    )


def _size(words: str) -> str:
    """A power of ten is a bound."""
    return f"below {words}" if words.startswith("1e-") else words
