"""Tables of runs that take minutes, as the benchmarks left them in their JSON files.

A function takes what every table takes, the record of the tests and the page, and needs neither.
"""

from __future__ import annotations

import html
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.survey.pages import field as scores
from docs.cells import table
from docs.clauses.trace import Trace

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
SURVEY = ROOT / "specs" / "survey.json"


def field(trace: Trace, page: str) -> str:
    """Every function of every public package, as `python -m benchmarks.survey` left it."""
    data = json.loads(SURVEY.read_text())
    rows = scores.lines(data["field"]["rows"], data["date"])
    return table(scores.HEAD, [_escaped(row) for row in rows])


def field_packages(trace: Trace, page: str) -> str:
    """The same by package, with the day of the run."""
    data = json.loads(SURVEY.read_text())
    rows = data["field"]["rows"]
    asked = [row for row in rows if "missing" not in row]
    taken, passed = (sum(row[name] for row in asked) for name in ("asked", "passed"))
    said = (
        f"{len(asked)} functions of {len({row['package'] for row in asked})} packages took "
        f"{taken:,} cases, of which {passed:,} PASS. Asked {data['date']}, on the CPU."
    )
    lines = [_escaped(row) for row in scores.packages(rows)]
    return f"{table(scores.SHORT_HEAD, lines)}\n{said}\n"


def _escaped(row: Sequence[str]) -> tuple[str, ...]:
    return tuple(html.escape(cell).replace("_", "\\_").replace("*", "\\*") for cell in row)


def _runs(name: str) -> list[Any]:
    found: list[Any] = json.loads((BENCHMARKS / name).read_text())
    return found


def _cases(runs: Sequence[Any]) -> dict[str, list[Any]]:
    """Runs of each case, by its name."""
    found: dict[str, list[Any]] = {}
    for run in runs:
        found.setdefault(run["case"], []).append(run)
    return found


def _conditions(runs: Sequence[Any]) -> str:
    """Under what conditions runs were made."""
    load = sorted(each for run in runs for each in run["load"])
    first = runs[0]
    machine = ", ".join(f"{name} {value}" for name, value in first["machine"].items())
    return html.escape(
        f"float32, {first['threads']} thread; load of the machine {load[0]:g} to {load[-1]:g} while "
        f"it ran; {machine}."
    )


def recall(trace: Trace, page: str) -> str:
    """Lessons of associative recall by case and pairs, as `python -m benchmarks.recall` left them."""
    runs = _runs("recall.json")
    found: dict[tuple[str, int], list[Any]] = {}
    for run in runs:
        for lesson in run["lessons"]:
            found.setdefault((run["case"], lesson["pairs"]), []).append(lesson)
    head = ("memory", "pairs", "steps", "accuracy", "seconds", "tokens a second")
    rows = [(html.escape(case), str(pairs), *_lessons(of)) for (case, pairs), of in found.items()]
    return f"{table(head, rows)}\nA cell has a number for each seed. {_conditions(runs)}\n"


def _lessons(of: Sequence[Any]) -> tuple[str, ...]:
    """Steps, accuracy, seconds and speed of the same lesson of several seeds."""
    return (
        ", ".join(f"{each['steps']}{'' if each['reached'] else ' (not reached)'}" for each in of),
        ", ".join(f"{each['accuracy']:.3f}" for each in of),
        ", ".join(f"{each['seconds']:.0f}" for each in of),
        ", ".join("" if each["rate"] is None else f"{each['rate']:,.0f}" for each in of),
    )


def text(trace: Trace, page: str) -> str:
    """What held-out text costs models, as `python -m benchmarks.text` left it."""
    runs = [each for each in _runs("text.json") if "bits" in each]
    head = (
        "model",
        "tokens a row",
        "bits a byte",
        "never written",
        "without memory",
        "minutes",
        "tokens a second",
        "page faults a step",
    )
    rows = [
        (
            html.escape(name),
            str(of[0]["settings"]["tokens"]),
            _spread([each["bits"] for each in of]),
            _spread([each.get("bits without writes") for each in of]),
            _spread([each.get("bits without memory") for each in of]),
            ", ".join(f"{each['seconds'] / 60:.1f}" for each in of),
            ", ".join(f"{each['tokens a second']:,.0f}" for each in of),
            ", ".join(str(each["page faults a step"][0]) for each in of),
        )
        for name, of in _cases(runs).items()
    ]
    first = runs[0]
    said = (
        f"Mean of {len(_cases(runs)[first['case']])} seeds, and their least and greatest; "
        f"{first['tokens']:,} tokens each, {first['held out']:,} held-out ones; "
        f"{html.escape(first['text'])}. Minutes are of the processor; page faults the median after "
        "the first steps. "
    )
    return f"{table(head, rows)}\n{said}{_conditions(runs)}\n"


def ngrams(trace: Trace, page: str) -> str:
    """What the same text costs byte n-grams, as `python -m benchmarks.text` left it."""
    runs = [each for each in _runs("text.json") if "bits of orders" in each]
    names = ("bits of orders", "bits of orders, all text")
    orders = range(len(runs[0][names[0]]))
    head = ("bytes of an n-gram", "counted in the rows that MAG saw", "counted in all text")
    rows = [
        (str(i + 1), *(_spread([each[name][i] for each in runs]) for name in names)) for i in orders
    ]
    return table(head, rows)


def prefixes(trace: Trace, page: str) -> str:
    """Reported losses beside those of prefixes, as `python -m benchmarks.prefixes` left them."""
    runs = _runs("prefixes.json")
    head = ("model", "preset", "reported", "of prefixes", "causal")
    rows = [
        (
            *map(html.escape, name.split(", ")),
            _spread([each["reported"] for each in of]),
            _spread([each["prefixes"] for each in of]),
            "yes" if of[0]["causal"] else "no",
        )
        for name, of in _cases(runs).items()
    ]
    first = runs[0]["settings"]
    said = (
        f"Nats a byte after {first['steps']} steps of {first['rows']} rows of {first['tokens']} "
        f"tokens, on {runs[0]['tokens']} held-out ones. "
    )
    return f"{table(head, rows)}\n{said}{_conditions(runs)}\n"


def needle(trace: Trace, page: str) -> str:
    """Needles that models find, as `python -m benchmarks.needle` left them."""
    runs = _runs("needle.json")
    head = ("model", "tokens", *(f"{each:g} %" for each in runs[0]["settings"]["asked"]["depths"]))
    rows = []
    for name, of in _cases(runs).items():
        cells: dict[int, list[str]] = {}
        for i, cell in enumerate(of[0]["cells"]):
            exact = statistics.fmean(each["cells"][i]["exact"] for each in of)
            mark = "" if cell["beyond"] else " (within)"
            cells.setdefault(cell["length"], []).append(f"{exact:.2f}{mark}")
        rows += [(html.escape(name), str(length), *found) for length, found in cells.items()]
    said = (
        "Share of whole answers by the needle's depth in percent of the hay before it; *within*: "
        "windows of attention lead back to it. "
    )
    return f"{table(head, rows)}\n{said}{_conditions(runs)}\n"


def _spread(values: Sequence[float | None]) -> str:
    """The mean and the extremes of numbers; empty where there are none."""
    found = [each for each in values if each is not None]
    if not found:
        return ""
    mean = f"{statistics.fmean(found):.3f}"
    return mean if len(found) == 1 else f"{mean} ({min(found):.3f} to {max(found):.3f})"


TABLES: tuple[Callable[[Trace, str], str], ...] = (
    field,
    field_packages,
    recall,
    text,
    ngrams,
    prefixes,
    needle,
)
