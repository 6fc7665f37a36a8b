"""The part of the survey's page about references of the linear family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.survey.pages.deep import Table, faults_table
from benchmarks.survey.pages.kept import asked_on

FAMILY = """## The linear family

PyTorch references of fla-core and fallbacks of transformers, run on the CPU and asked by
[`of_linear_family.py`](../examples/adapters/public/of_linear_family.py): one drawn case of [rule dplr](dplr_cases.md) for each, of the
member that is named, {heads} heads, keys of {d_in} and values of {d_out}, {tokens[1]} tokens, {tokens[0]} where only whole chunks of
{chunk} are taken, every second key and query a hundredth as long where they are normed, in float32, in which they compute. `values`
and `gradients`: tensors that PASS the tolerance of that format.
`identify` searched the settings of [DPLRCASE-9](dplr_cases.md) and the mistakes of [DPLRCASE-10](dplr_cases.md): MATCH says that the
stated member alone explains the results ([`family.py`](../benchmarks/survey/family.py)).
"""

NOTES = """A reference of fla-core lies in the file that is named. Its kernels in Triton, which users call, were not run here.
"""

FAULTS = r"""### Faults of references of the linear family

Each by one number that the run printed ([`family_faults.py`](../benchmarks/survey/family_faults.py)): drawn tensors of width 8 and 64
tokens in float32, unit keys, log gates $-\mathrm{softplus}$ of a normal where nothing else is said. Reads are finite wherever a gradient
holds a NaN, so that a test of values alone passes. Gradients of gated delta, Qwen3-Next and Kimi-Linear in chunks are finite there. What
`chunk_ttt_linear_ref` does to its caller's queries is among the [faults below](#faults-of-memories-that-learn-at-test-time).
"""

FAMILY_HEAD = (
    "implementation",
    "member",
    "file",
    "has",
    "values",
    "gradients",
    "verdict",
    "explained by",
)


def parts(family: Any, faults: Any, table: Table) -> list[str]:
    """The chapter, its two tables and what is between them."""
    rows = family["found"]
    notes = [f"- {_name(row)}: {row['note']}.\n" for row in rows if row["note"]]
    sizes = {name: value for name, value in family.items() if name != "found"}
    return [
        FAMILY.format(**sizes),
        table(FAMILY_HEAD, [_line(row) for row in rows]),
        NOTES,
        "".join(notes),
        FAULTS,
        faults_table(faults, table),
    ]


def _name(row: Any) -> str:
    words = " ".join(f"{row['package']} {row['version']}".split())
    return words + (f", {row['label']}" if "label" in row else "") + asked_on(row)


def _line(row: Any) -> tuple[str, ...]:
    if "missing" in row:
        return (_name(row), row["member"], row["source"], *[""] * 3, row["missing"], "")
    undecided = f" ({', '.join(row['undecided'])})" if row["undecided"] else ""
    return (
        _name(row),
        row["member"],
        row["source"],
        row["stated"],
        *(_counts(row.get(kind)) for kind in ("values", "gradients")),
        f"{row['verdict']}{undecided}, of {row['searched']}",
        row["found"],
    )


def _counts(pair: Sequence[int] | None) -> str:
    return f"{pair[0]} of {pair[1]}" if pair else "-"
