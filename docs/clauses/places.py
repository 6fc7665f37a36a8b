"""Code that names clauses: functions, classes and modules whose docstrings or comments hold an
id.
"""

from __future__ import annotations

import ast
import functools
import io
import tokenize
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from docs.clauses.reading import parsed, text
from docs.clauses.specs import named

PACKAGES = ("atlas_ref", "tape", "docs/clauses")
Kind = Literal["function", "class", "data", "module"]


class Place(NamedTuple):
    """A piece of code that names clauses.

    Attributes:
        path: of the file, from the root.
        name: qualified within the file; empty for the module itself.
        kind: function, class, data (a statement outside functions, or a class without them) or
            module.
        first, last: its lines.
        body: the lines that run when it does: of the function, of the class's functions, of all
            functions of the module.
        names: (id, line) for each clause that it names.
    """

    path: str
    name: str
    kind: Kind
    first: int
    last: int
    body: frozenset[int]
    names: tuple[tuple[str, int], ...]

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(each for each, _ in self.names))

    @property
    def where(self) -> str:
        return f"{self.path}:{self.first}"


class _Owner(NamedTuple):
    name: str
    kind: Kind
    node: ast.AST
    first: int
    last: int


def read(root: Path, families: frozenset[str]) -> list[Place]:
    """Every place of the packages that names a clause of these families."""
    result: list[Place] = []
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            result += places(text(path, name), name, families)
    return result


@functools.lru_cache(maxsize=1024)
def places(source: str, path: str, families: frozenset[str]) -> tuple[Place, ...]:
    """The places of one file (TRACE-2): a mention belongs to the innermost function, class or
    statement around it.
    """
    tree = parsed(source, path)
    owners = _owners(tree, source)
    mentions: dict[_Owner, list[tuple[str, int]]] = {}
    for line, said in _words(source, tree, families):
        ids = named(said, families)
        if ids:
            owner = _innermost(owners, line)
            mentions.setdefault(owner, []).extend((each, line) for each in ids)
    whole = _bodies(tree) if mentions else frozenset()
    return tuple(
        Place(
            path,
            each.name,
            each.kind,
            each.first,
            each.last,
            _bodies(each.node) if each.kind == "function" else _bodies(each.node) or whole,
            tuple(names),
        )
        for each, names in sorted(mentions.items(), key=lambda item: item[0].first)
    )


def _words(source: str, tree: ast.AST, families: frozenset[str]) -> list[tuple[int, str]]:
    """(line, text) of every docstring and, if one names a clause, of every run of comment lines."""
    texts = []
    for node in _statements(tree):
        if isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ) and ast.get_docstring(node, clean=False):
            first_statement = node.body[0]
            assert isinstance(first_statement, ast.Expr)
            texts.append((first_statement.lineno, ast.get_docstring(node, clean=False) or ""))
    # Tokens take a third of the time, and no line break divides an id.
    if not any(named(line, families) for line in source.splitlines() if "#" in line):
        return texts
    previous = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, alone = token.start[0], token.line.lstrip().startswith("#")
        text = token.string.lstrip("#: ")
        if alone and previous == line - 1:
            first, before = texts.pop()
            texts.append((first, f"{before} {text}"))
        else:
            texts.append((line, text))
        previous = line if alone else -1
    return texts


def _owners(tree: ast.Module, source: str) -> list[_Owner]:
    """The module and all that can hold a mention, outer ones first."""
    lines = source.split("\n")
    owners = [_Owner("", "module", tree, 1, len(lines))]

    def walk(node: ast.AST, prefix: str, inside: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{prefix}{child.name}"
                function = not isinstance(child, ast.ClassDef)
                kind: Kind = "function" if function else "class" if _bodies(child) else "data"
                first = min([child.lineno, *(each.lineno for each in child.decorator_list)])
                owners.append(
                    _Owner(
                        name, kind, child, _with_comments(lines, first), child.end_lineno or first
                    )
                )
                walk(child, f"{name}.", inside or function)
            elif isinstance(child, ast.Assign | ast.AnnAssign) and not inside and not prefix:
                target = child.targets[0] if isinstance(child, ast.Assign) else child.target
                owners.append(
                    _Owner(
                        ast.unparse(target),
                        "data",
                        child,
                        _with_comments(lines, child.lineno),
                        child.end_lineno or 0,
                    )
                )

    walk(tree, "", False)
    return owners


def _with_comments(lines: list[str], first: int) -> int:
    """The line of the first comment right above, since a comment above a definition belongs to
    it.
    """
    while first > 1 and lines[first - 2].startswith("#"):
        first -= 1
    return first


def _innermost(owners: list[_Owner], line: int) -> _Owner:
    return min(
        (each for each in owners if each.first <= line <= each.last),
        key=lambda each: (each.last - each.first, -each.first),
    )


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """What `ast.walk` gives, in its order, without expressions, which hold no statement."""
    waiting = deque([tree])
    while waiting:
        node = waiting.popleft()
        yield node
        for field in node._fields:
            below = getattr(node, field)
            if isinstance(below, list):
                waiting.extend(
                    each
                    for each in below
                    if isinstance(each, ast.stmt | ast.excepthandler | ast.match_case)
                )


def _bodies(node: ast.AST) -> frozenset[int]:
    """Lines of statements inside functions, which run on a call and not on import."""
    lines: set[int] = set()
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting.extend(ast.iter_child_nodes(each))
            continue
        body = each.body if isinstance(each.body, list) else [each.body]
        docstring = (
            isinstance(each, ast.FunctionDef) and ast.get_docstring(each, clean=False) is not None
        )
        for statement in body[1:] if docstring else body:
            lines.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
        # what stands inside of these lines adds none
        waiting += [each.args, *getattr(each, "decorator_list", ())]
    return frozenset(lines)
