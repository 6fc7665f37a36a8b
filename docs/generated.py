"""Pages made from the repository, as (path among the pages, Markdown)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from docs import (
    benchmark_page,
    command_line,
    equations,
    links,
    source_pages,
    spec_pages,
    vector_pages,
)
from docs.clauses import cases, planted, record
from docs.clauses.record import Record
from docs.clauses.trace import Trace, trace


def pages(root: Path, evidence: Trace) -> Iterator[tuple[str, str]]:
    """All generated pages of the theme."""
    for name in specs(root):
        yield name, spec_pages.page(evidence, root, name)
    yield "reference/cli.md", command_line.page()
    yield "tables/benchmarks.md", benchmark_page.page(root)
    yield from vector_pages.pages(root, evidence)
    for name in copied(root):
        text = vector_pages.without_targets(root, name)
        yield links.page_of(name), links.moved(text, name, links.page_of(name))


def files(root: Path) -> Iterator[tuple[str, str | Path]]:
    """All other files, as (path on the site, content or file)."""
    for name in source_pages.files(root):
        yield links.page_of(name), source_pages.page(root, name)
    yield from equations.assets()
    yield from ((f"bench/{each.name}", each) for each in benchmark_page.figures(root))
    yield from vector_pages.files(root)


def specs(root: Path) -> list[str]:
    """Paths of all specs."""
    return sorted(path.relative_to(root).as_posix() for path in (root / "specs").glob("*.md"))


def copied(root: Path) -> list[str]:
    """Markdown files of the repository that are pages as they stand."""
    paths = [
        path
        for folder in ("benchmarks", "examples", "vectors")
        for path in (root / folder).rglob("*.md")
    ]
    readmes = sorted(path.relative_to(root).as_posix() for path in paths)
    return [*links.COPIED, *readmes]


def traced(root: Path) -> Trace:
    """Clauses with their evidence.

    Where no run of these sources is recorded, cases are evaluated now, and the list of mutants is
    read, so that only what the tests executed is not known.
    """
    try:
        return trace(root, record.read(root))
    except record.RecordError:
        return trace(root, None, Record({}, cases.executed(root), planted.read(root)))
