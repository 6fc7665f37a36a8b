"""Sizes of the package: lines, folders, names of rules, and the functions of one exact call with
gradient.

    python -m benchmarks.house

Lines are those of `atlas_ref` as they stand, docstrings included. The call is a Delta rule of 2
heads, 64 tokens and keys of 8 in the form exact, with the gradient of its reads by keys, values,
queries and gates, counted with `sys.setprofile`. Seconds are CPU time. They say what the loop of the
oracle saves by taking many conventions at once, and what it costs with a hook at every op.
"""

from __future__ import annotations

import ast
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import atlas_ref
import tape
from atlas_ref import forms
from atlas_ref.conventions import resolve
from atlas_ref.oracle.cases import new
from atlas_ref.oracle.family import candidates, lattice
from atlas_ref.oracle.family.facts import facts
from atlas_ref.oracle.replay import loop
from atlas_ref.rules import RULES, delta, omega
from atlas_ref.rules.sequence import Tokens
from tape import ops

ROOT = Path(atlas_ref.__file__).parent


def passed_through(call: Callable[[], Any]) -> tuple[int, int]:
    """Modules and functions of `atlas_ref` and `tape` that run in a call."""
    functions: set[tuple[str, str]] = set()

    def watch(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            code = frame.f_code
            if code.co_filename.startswith(str(ROOT)) or "/tape/" in code.co_filename:
                functions.add((code.co_filename, code.co_qualname))

    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
    return len({file for file, _ in functions}), len(functions)


def exact_with_gradient() -> Any:
    """The gradient of a form exact by everything that it takes."""
    draw = np.random.default_rng(0)
    arrays = {name: 0.3 * draw.standard_normal((2, 64, 8)) for name in ("k", "v", "q")}
    arrays |= {"retain": np.full((2, 64), 0.98), "step_size": np.full((2, 64), 0.1)}
    config = delta.Config(
        d_in=8, d_out=8, convention=resolve({"gate": "retain"}, rule=delta.RULE.name)
    )
    state = delta.start(config, (2,))

    def loss(arrays: dict[str, Any]) -> Any:
        return ops.sum(
            forms.run(delta.RULE, config, Tokens(**arrays), state, form="exact", chunk=16)[1]
        )

    return tape.grad(loss)(arrays)


def named_rules(path: Path) -> int:
    """Comparisons of a file with the name of a rule."""
    count = 0
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Compare):
            constants = {
                each.value
                for each in ast.walk(node)
                if isinstance(each, ast.Constant) and isinstance(each.value, str)
            }
            count += bool(constants & set(RULES))
    return count


def loop_seconds() -> tuple[int, float, float]:
    """CPU time of the loop for every convention one change away from a case.

    Once in one batch, and once one after another, op by op.
    """
    case = new.new(new.Request(rule=omega.RULE.name, tokens=8, window=3, d_in=4, d_out=3))
    inputs = {name: np.asarray(value, np.float64) for name, value in case.inputs.items()}
    conventions = lattice.enumerate_points(
        facts(case), lattice.point(case.convention), 1
    ).conventions
    start = time.process_time()
    for _ in candidates.evaluate(case, inputs, conventions):
        pass
    batch = time.process_time() - start
    for convention in conventions:
        under = case.replaced(header=case.header.replaced(convention=convention))
        loop.run_ops(
            under, inputs, lambda op, t, compute, *arguments, counts=None: compute(*arguments)
        )
    return len(conventions), batch, time.process_time() - start - batch


def main() -> None:
    """Print the table."""
    files = sorted(ROOT.rglob("*.py"))
    lines = {path: len(path.read_text().splitlines()) for path in files}
    folders = Counter(path.parent for path in files)
    outside = [
        path for path in files if path.parent.name not in ("rules", "certify", "conventions")
    ]
    exact_with_gradient()
    modules, functions = passed_through(exact_with_gradient)
    conventions, batch, one_by_one = loop_seconds()
    table = Table("what", "count")
    for what, count in (
        ("lines of the package", sum(lines.values())),
        ("files of the package", len(files)),
        ("modules at its root", folders[ROOT]),
        ("most files in a folder", max(folders.values())),
        ("lines of the longest file", max(lines.values())),
        (
            "comparisons with names of rules outside rules, conventions and certify",
            sum(map(named_rules, outside)),
        ),
        ("modules that exact with a gradient passes through", modules),
        ("functions that exact with a gradient passes through", functions),
        (f"seconds of {conventions} conventions in one batch of oracle.family", f"{batch:.3f}"),
        (f"seconds of {conventions} conventions one by one in oracle.replay", f"{one_by_one:.3f}"),
    ):
        table.add_row(what, str(count))
    Console().print(table)


if __name__ == "__main__":
    main()
