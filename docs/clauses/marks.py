"""Tests that prove clauses, read from their text: `@pytest.mark.clause("FAMILY-5")`."""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import NamedTuple

from docs.clauses.reading import parsed, text


class Proof(NamedTuple):
    """A test function and the clauses that it proves; `path`, `line` and `last` are where it
    stands.
    """

    path: str
    name: str
    line: int
    last: int
    clauses: tuple[str, ...]

    @property
    def id(self) -> str:
        return f"{self.path}::{self.name}"


def read(root: Path) -> dict[str, Proof]:
    """Every test function of tests/ by its id, marked or not (TRACE-3).

    A mark on a parameter appears in the record of a run alone.
    """
    proofs: dict[str, Proof] = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        where = path.relative_to(root).as_posix()
        proofs |= {proof.id: proof for proof in _of_file(text(path, where), where)}
    return proofs


@functools.lru_cache(maxsize=1024)
def _of_file(source: str, where: str) -> tuple[Proof, ...]:
    """Test functions of one file."""
    tree = parsed(source, where)
    outer = [each for node in tree.body for each in _module_marks(node)]
    proofs = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            ids = outer + [each for mark in node.decorator_list for each in _ids(mark)]
            line = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            clauses = tuple(dict.fromkeys([*ids, *_erratum(node)]))
            proofs.append(Proof(where, node.name, line, node.end_lineno or line, clauses))
    return tuple(proofs)


def _module_marks(node: ast.stmt) -> list[str]:
    """Clause ids of `pytestmark = pytest.mark.clause(...)`, alone or in a list."""
    if not isinstance(node, ast.Assign) or ast.unparse(node.targets[0]) != "pytestmark":
        return []
    marks = node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else [node.value]
    return [each for mark in marks for each in _ids(mark)]


def _ids(mark: ast.expr) -> list[str]:
    if not isinstance(mark, ast.Call) or not ast.unparse(mark.func).endswith("mark.clause"):
        return []
    return [
        each.value
        for each in mark.args
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    ]


def _erratum(node: ast.FunctionDef) -> list[str]:
    """The erratum that a test names by its own name (TRACE-3)."""
    words = node.name.split("_")
    return (
        [f"E-{words[2].upper()}"]
        if words[1] == "e" and len(words) > 2 and words[2][1:3].isdigit()
        else []
    )
