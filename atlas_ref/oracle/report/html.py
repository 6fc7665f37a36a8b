"""A report as one self-contained HTML page: no script, no network, light and dark (SRC-19)."""

from __future__ import annotations

import html
from pathlib import Path
from typing import TYPE_CHECKING, Any

import atlas_ref
from atlas_ref.oracle.report.style import STEPS, STYLE, level, level_words

if TYPE_CHECKING:
    from atlas_ref.oracle.judge.verdicts import Comparison
    from atlas_ref.oracle.report.failures import Failure
    from atlas_ref.oracle.report.report import Report

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""

ENDINGS = {
    0: "every compared tensor passes",
    1: "something does not pass",
    2: "bad input",
    3: "nothing could be compared",
}


def page(report: Report) -> str:
    """The whole page: the outcome, a list of cases, then each case.

    A case has its failure, its heat map and its table.
    """
    cases = report.by_case()
    numbers = {case: number for number, case in enumerate(cases)}
    failures = {failure.case: failure for failure in report.failures}
    parts = [
        "<header>",
        f"<h1>atlas-ref check: {ENDINGS[report.exit]}</h1>",
        _counts(report.counts()),
        f"<p><code>{_text(report.command)}</code></p>" if report.command else "",
        "</header>",
        *(
            f'<p class="note bad">{_text(line)}</p>'
            for line in (*report.bad_input, *report.problems)
        ),
        _legend(),
        _overview(cases) if len(cases) > 1 else "",
    ]
    order = sorted(cases, key=lambda case: case not in failures)  # stable: what fails comes first
    parts += [
        _case(numbers[case], case, cases[case], failures.get(case), report.void.get(case, {}))
        for case in order
    ]
    parts.append(
        f"<footer>atlas-ref {_text(atlas_ref.__version__)}, exit code {report.exit}</footer>"
    )
    return PAGE.format(
        title=f"atlas-ref check: {ENDINGS[report.exit]}",
        style=STYLE,
        body="\n".join(part for part in parts if part),
    )


def _text(words: Any) -> str:
    """Text escaped for HTML, with unprintable characters written out."""
    return html.escape(
        "".join(
            c
            if c.isprintable() or c == "\n"
            else c.encode("unicode_escape", "surrogatepass").decode()
            for c in str(words)
        )
    )


def _verdict(row: Comparison) -> str:
    word = "XFAIL" if row.xfail else row.verdict
    return f'<span class="verdict {word.lower().replace(" ", "-")}">{word}</span>'


def _counts(counts: dict[str, int]) -> str:
    each = "".join(
        f'<li><span class="verdict {word.lower().replace(" ", "-")}">{word}</span> {count}</li>'
        for word, count in counts.items()
    )
    return f'<ul class="counts">{each}</ul>' if each else ""


def _legend() -> str:
    cells = "".join(
        f'<li><span class="swatch l{i}"></span>{_text(step.words)}</li>'
        for i, step in enumerate(STEPS)
    )
    return (
        '<section aria-labelledby="legend"><h2 id="legend">Error over what is allowed</h2><ul '
        f'class="legend">{cells}</ul></section>'
    )


def _overview(cases: dict[str, list[Comparison]]) -> str:
    lines = []
    for number, (case, rows) in enumerate(cases.items()):
        ratios = [ratio for row in rows if (ratio := row.ratio) is not None]
        words = sorted({"XFAIL" if row.xfail else row.verdict for row in rows})
        verdicts = " ".join(
            f'<span class="verdict {word.lower().replace(" ", "-")}">{word}</span>'
            for word in words
        )
        worst = f"{max(ratios, key=_order):.3g}" if ratios else ""
        lines.append(
            "<tr><td><a "
            f'href="#case-{number}">{_text(Path(case).stem)}</a></td><td>{verdicts}</td><td '
            f'class="n">{worst}</td></tr>'
        )
    head = (
        '<tr><th scope="col">case</th><th scope="col">verdicts</th><th scope="col" '
        'class="n">worst error over tolerance</th></tr>'
    )
    return (
        '<section aria-labelledby="cases"><h2 '
        f'id="cases">Cases</h2>{_wide("cases", head, lines)}</section>'
    )


def _wide(label: str, head: str, lines: list[str]) -> str:
    """A table that scrolls by itself in a narrow window, by keyboard too."""
    table = f"<table><thead>{head}</thead><tbody>{''.join(lines)}</tbody></table>"
    return f'<div class="wide" role="region" aria-label="{_text(label)}" tabindex="0">{table}</div>'


def _case(
    number: int, case: str, rows: list[Comparison], failure: Failure | None, void: dict[str, str]
) -> str:
    name = _text(Path(case).stem)
    notes = "".join(
        f'<p class="note">void: {_text(axis)}: {_text(why)}</p>' for axis, why in void.items()
    )
    inside = "".join([_failure(failure) if failure else "", _heat(rows), _table(case, rows), notes])
    if failure is None:  # one line, which opens to the rest
        words = ", ".join(sorted({"XFAIL" if row.xfail else row.verdict for row in rows}))
        inside = (
            f"<details><summary>{words}: {len(rows)} "
            f"result{'s' * (len(rows) != 1)}</summary>{inside}</details>"
        )
    return (
        f'<section class="case" id="case-{number}" aria-labelledby="name-{number}"><h2 '
        f'id="name-{number}">{name}</h2>{inside}</section>'
    )


def _failure(failure: Failure) -> str:
    fields = "".join(
        f"<dt>{_text(name)}</dt><dd>{_field(name, words)}</dd>" for name, words in failure.fields()
    )
    return f'<div class="failure"><h3>{failure.verdict}: what is wrong</h3><dl>{fields}</dl></div>'


def _field(name: str, words: str) -> str:
    return (
        f"<code>{_text(words)}</code>"
        if name in ("got", "expected", "repeat with")
        else _text(words)
    )


def _heat(rows: list[Comparison]) -> str:
    """Heat map: one strip per tensor, with a cell per token coloured by error over tolerance.

    Cells beyond what is allowed carry a bar.
    """
    located = [row for row in rows if row.profile is not None]
    if not located:
        return ""
    strips = []
    for row in located:
        assert row.profile is not None
        strips.append(f'<div class="label">{_text(row.tensor)}</div>{_strip(row)}')
    longest = max(
        (row.profile for row in located if row.profile and row.profile.width),
        key=lambda each: len(each.ratios),
        default=None,
    )
    axis = ""
    if longest is not None:
        width = f" (each cell {longest.width} tokens)" if longest.width > 1 else ""
        last = len(longest.ratios) * longest.width - 1
        axis = (
            '<div class="label axis">token</div><div class="axis '
            f'ends"><span>0{width}</span><span>{last}</span></div>'
        )
    return f'<h3>Error over token and tensor</h3><div class="heat">{"".join(strips)}{axis}</div>'


def _strip(row: Comparison) -> str:
    assert row.profile is not None
    ratios, width = row.profile
    cells = []
    for start, end, step in _runs(ratios, apart=row.verdict != "PASS"):
        tokens = _tokens(start, end, width)
        title = f"{row.tensor}, {tokens}: {level_words(max(ratios[start:end], key=_order))}"
        bar = (
            f'<rect class="bar" x="{start}" y="15" width="{end - start}" height="3"/>'
            if STEPS[step].beyond
            else ""
        )
        cells.append(
            f'<g><title>{_text(title)}</title><rect class="l{step}" x="{start}" y="0" '
            f'width="{end - start}" height="18"/>{bar}</g>'
        )
    return (
        f'<svg class="strip" role="img" aria-label="{_text(_summary(row))}" viewBox="0 0 '
        f'{len(ratios)} 18" preserveAspectRatio="none">'
        f"{''.join(cells)}</svg>"
    )


def _order(ratio: float) -> float:
    return float("inf") if ratio != ratio else ratio


def _runs(ratios: tuple[float, ...], *, apart: bool) -> list[tuple[int, int, int]]:
    """Cells as (start, end, level); neighbours of one level are merged unless `apart`."""
    cells: list[tuple[int, int, int]] = []
    for i, ratio in enumerate(ratios):
        step = level(ratio)
        if cells and cells[-1][2] == step and not apart:
            cells[-1] = (cells[-1][0], i + 1, step)
        else:
            cells.append((i, i + 1, step))
    return cells


def _tokens(start: int, end: int, width: int) -> str:
    if not width:
        return "the whole tensor"
    first, last = start * width, end * width - 1
    return f"token {first}" if first == last else f"tokens {first} to {last}"


def _summary(row: Comparison) -> str:
    """Content of a strip in words, for screen readers."""
    assert row.profile is not None
    ratios, width = row.profile
    beyond = [i for i, ratio in enumerate(ratios) if STEPS[level(ratio)].beyond]
    if not beyond:
        return f"{row.tensor}: {row.verdict}, within tolerance throughout"
    if not width:
        return f"{row.tensor}: {row.verdict}, {level_words(ratios[0])}"
    words = _tokens(beyond[0], beyond[0] + 1, width)
    return (
        f"{row.tensor}: {row.verdict}, beyond its tolerance in {len(beyond)} of {len(ratios)} "
        f"cells, first at {words}"
    )


def _table(case: str, rows: list[Comparison]) -> str:
    lines = []
    for row in rows:
        ratio = row.ratio
        where = (
            ""
            if row.place is None or row.verdict == "PASS"
            else f"{list(row.place)}: {row.got!r}, {row.want!r}"
        )
        detail = "; ".join(
            words
            for words in (row.why, where, f"expected to fail: {row.xfail}" if row.xfail else "")
            if words
        )
        numbers = "".join(
            f'<td class="n">{"" if x is None else f"{x:.3g}"}</td>'
            for x in (row.error, row.tolerance, ratio)
        )
        lines.append(
            "<tr><th "
            f'scope="row">{_text(row.tensor)}</th><td>{_verdict(row)}</td>{numbers}<td>{_text(detail)}</td></tr>'
        )
    head = "".join(
        (
            "<th "
            f'scope="col"{" class=n" if name in ("error", "tolerance", "ratio") else ""}>{name}</th>'
        )
        for name in (
            "tensor",
            "verdict",
            "error",
            "tolerance",
            "ratio",
            "where it is worst: got, expected",
        )
    )
    return f"<h3>Verdicts</h3>{_wide(f'verdicts of {Path(case).stem}', f'<tr>{head}</tr>', lines)}"
