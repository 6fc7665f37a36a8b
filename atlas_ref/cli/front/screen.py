"""What try prints: one screen, or one JSON object. Specified in specs/sources.md."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from atlas_ref.cli import output

if TYPE_CHECKING:
    from atlas_ref.cli.front.asking import Asked, Outcome

ARRAYS = {"torch": "PyTorch", "jax": "JAX", "mlx": "MLX", "numpy": "NumPy"}

#: Columns of a reason in the table.
WIDTH = 72

#: Messages of failing cases that are shown whole.
SHOWN = 1


def parts(asked: Asked, outcome: Outcome, kept: bool) -> list[Any]:
    """Lines and the table, in order (SRC-31)."""
    rows = [
        (each.feature, Text(each.verdict, style=_colour(each.verdict)), _cut(each.why))
        for each in outcome.supports
    ]
    title = f"what {asked.function.rpartition(':')[2]} supports"
    failures = outcome.report.failures
    lines = [outcome.hint] if outcome.hint else []
    lines += [line for each in failures[:SHOWN] for line in each.text().splitlines()]
    if len(failures) > SHOWN:
        others = ", ".join(Path(each.case).stem for each in failures[SHOWN:])
        lines.append(
            f"and {len(failures) - SHOWN} more, {others}: the same command with their files"
        )
    if outcome.cases and not outcome.has_state:
        lines.append("no final state comes back, so none was compared")
    if kept:
        lines.append(f"kept in {asked.folder}: cases, and the adapter, for check, sweep and pytest")
    return [
        *_heading(asked),
        output.table(title, ("feature", "verdict", "of what, or why"), rows),
        *(output.printable(line) for line in lines),
        _counts(outcome),
    ]


def _heading(asked: Asked) -> list[str]:
    """What the function is taken for."""
    taken = asked.taken
    member = "" if taken["member"] == asked.name else f", member {taken['member']}"
    heads = "(B, H, T, D)" if asked.how.get("head_axis") == 1 else "(B, T, H, D)"
    heads = "(B, T, H D)" if taken["flat"] else heads
    matrix = "(K, V)" if asked.how.get("state", taken["state"]) == "(d_in, d_out)" else "(V, K)"
    lines = [
        f"{asked.name}: {asked.function}{member}",
        f"  {ARRAYS[taken['arrays']]}, {asked.dtype or 'float64'}; layout of {taken['like']}: {heads}, "
        f"states {matrix}",
        f"  takes {', '.join(_argument(a, tensor, taken) for a, tensor in taken['arguments'].items())}",
    ]
    if taken["options"]:
        words = ", ".join(f"{name}={value}" for name, value in taken["options"].items())
        lines.append(f"  hands over {words}")
    if taken["ignored"]:
        lines.append(f"  leaves at their defaults {', '.join(taken['ignored'])}")
    return lines


def _argument(argument: str, tensor: str, taken: dict[str, Any]) -> str:
    """An argument, with what it is where its name does not say it."""
    kind = "each key channel" if taken["channels"] else "each head"
    meaning = {
        "log_retain": f"log of the gate of {kind}",
        "retain": f"gate of {kind}",
    }.get(tensor)
    return argument if meaning is None else f"{argument} ({meaning})"


def _counts(outcome: Outcome) -> str:
    verdicts = [each.verdict for each in outcome.supports]
    return ", ".join(f"{verdicts.count(word)} {word}" for word in dict.fromkeys(verdicts))


def _colour(verdict: str) -> str:
    return output.COLOURS.get(verdict, "")


def _cut(why: str) -> str:
    return why if len(why) <= WIDTH else f"{why[: WIDTH - 3]}..."


def plain(asked: Asked, outcome: Outcome, kept: bool) -> dict[str, Any]:
    """The same as JSON can hold it, with the keys of `check --json`."""
    return {
        **outcome.report.plain(),
        "name": asked.name,
        "function": asked.function,
        "dtype": asked.dtype or "float64",
        "taken": asked.taken,
        "supports": [each._asdict() for each in outcome.supports],
        "hint": outcome.hint,
        "kept": str(asked.folder) if kept else None,
    }
