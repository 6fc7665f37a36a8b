"""Colours of the HTML report, and the steps of its heat map."""

from __future__ import annotations

import math
from typing import NamedTuple


class Step(NamedTuple):
    """One colour: error over what is allowed, up to `most`."""

    most: float
    words: str
    beyond: bool
    light: str
    dark: str


#: From equal to far beyond. Cool colours are allowed; warm ones are not, and their cells carry a
#: bar as well.
STEPS = (
    Step(0.01, "up to 0.01", False, "#e8f1f8", "#16242f"),
    Step(0.1, "up to 0.1", False, "#c3dcee", "#1d3b52"),
    Step(1.0, "up to 1: allowed", False, "#7fb2d8", "#2f6690"),
    Step(10.0, "up to 10: beyond", True, "#fbc87a", "#8a5a10"),
    Step(1e3, "up to 1000", True, "#ef8a3c", "#c26a1c"),
    Step(1e6, "up to 1e6", True, "#d1421f", "#e0552f"),
    Step(math.inf, "more, or not a number", True, "#7d0f1e", "#ff8f8f"),
)


def level(ratio: float) -> int:
    """The step of an error over what is allowed."""
    return next((i for i, step in enumerate(STEPS) if ratio <= step.most), len(STEPS) - 1)


def level_words(ratio: float) -> str:
    """An error over what is allowed, in words."""
    return "not a number" if math.isnan(ratio) else f"{ratio:.3g} times what is allowed"


LIGHT = {
    "ink": "#1a1f24",
    "soft": "#56606a",
    "ground": "#ffffff",
    "card": "#f5f7f9",
    "line": "#d5dbe1",
    "link": "#0b5cad",
}
LIGHT |= {"good": "#136c3a", "bad": "#a8141f", "warn": "#7a5200", "bar": "#1a1f24"}
LIGHT |= {f"l{i}": step.light for i, step in enumerate(STEPS)}
DARK = {
    "ink": "#e6eaee",
    "soft": "#a3adb8",
    "ground": "#101418",
    "card": "#181e24",
    "line": "#323b44",
    "link": "#7db8f0",
}
DARK |= {"good": "#6fd39a", "bad": "#ff8d8d", "warn": "#f0c060", "bar": "#f2f5f7"}
DARK |= {f"l{i}": step.dark for i, step in enumerate(STEPS)}


def _root(colours: dict[str, str]) -> str:
    return (
        ":root {"
        + "".join(f" --{name}: {value};" for name, value in colours.items())
        + " color-scheme: light dark; }"
    )


STYLE = (
    _root(LIGHT)
    + "\n@media (prefers-color-scheme: dark) { "
    + _root(DARK)
    + " }\n"
    + "".join(
        f".l{i} {{ fill: var(--l{i}); background: var(--l{i}); }}\n" for i in range(len(STEPS))
    )
    + """
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 70rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: .5rem 0; }
h2 { font-size: 1.2rem; margin: 1.5rem 0 .5rem; overflow-wrap: anywhere; }
h3 { font-size: 1rem; margin: 1rem 0 .35rem; }
code { font: .875rem/1.5 ui-monospace, monospace; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; margin: .25rem 0; font-size: .9375rem; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
a { color: var(--link); }
a:focus-visible, summary:focus-visible, .wide:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
summary { cursor: pointer; color: var(--soft); }
ul.counts, ul.legend { list-style: none; padding: 0; margin: .5rem 0; display: flex; flex-wrap: wrap; gap: .4rem 1.2rem; }
ul.legend li { display: flex; align-items: center; gap: .4rem; }
.swatch { width: 1.4rem; height: 1rem; border: 1px solid var(--line); display: inline-block; }
section.case { border-top: 1px solid var(--line); margin-top: 1.5rem; }
.failure { background: var(--card); border: 1px solid var(--line); border-radius: 4px; padding: .25rem .9rem .75rem; }
.failure { border-left: 4px solid var(--bad); }
.note { color: var(--soft); margin: .25rem 0; overflow-wrap: anywhere; }
.note.bad { color: var(--bad); }
.verdict { font-weight: 600; white-space: nowrap; }
.pass { color: var(--good); }
.wrong, .failed, .missing { color: var(--bad); }
.marginal, .undecidable, .xfail { color: var(--warn); }
.not-supported { color: var(--soft); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; min-width: 100%; font-size: .875rem; }
th, td { text-align: left; font-weight: 400; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
thead th { color: var(--soft); white-space: nowrap; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td:last-child { overflow-wrap: anywhere; min-width: 14rem; }
.heat { display: grid; grid-template-columns: max-content 1fr; gap: 3px .75rem; align-items: center; font-size: .875rem; }
.strip { display: block; width: 100%; height: 18px; border: 1px solid var(--line); shape-rendering: crispEdges; }
.strip rect { stroke: var(--ground); stroke-width: 1px; vector-effect: non-scaling-stroke; }
.strip rect.bar { fill: var(--bar); stroke: none; }
.axis { color: var(--soft); }
.ends { display: flex; justify-content: space-between; }
footer { color: var(--soft); border-top: 1px solid var(--line); margin-top: 2rem; padding: .75rem 0; font-size: .875rem; }
@media (max-width: 36rem) {
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: .35rem; }
  .heat { grid-template-columns: 1fr; gap: 1px; }
  .heat .label { margin-top: .35rem; }
  .label.axis { display: none; }
}
@media print { .failure { break-inside: avoid; } }
"""
)
