"""Pages of the recorded cases: one per target of each shipped set, one of independent
implementations.

Each case has its header, its tensors, its properties, the mutants that it rejects, the clauses that
it exercises, and its file.
"""

from __future__ import annotations

import functools
import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import atlas_ref
from atlas_ref.vectors.sets import manifest
from atlas_ref.vectors.sets.manifest import Manifest, Vector
from docs import cells, links, tables
from docs.clauses.trace import Trace

#: How a cell of a kill matrix is read.
CELLS = "A cell names the formats in which the vector rejects the mutant: f float32, b bfloat16."
#: Cases that are links of their own in one list.
LINKED = 12
SETS = "vectors"
PEERS = (
    "tests/data/peers/*.safetensors",
    "tests/data/peers_layers/*.safetensors",
    "tests/data/peers_atlas_mag/*.safetensors",
)
PEERS_PAGE = "vectors/peers.md"
HEAD = "---\nsearch:\n  exclude: true\n---\n\n"


def sets(root: Path) -> dict[str, Manifest]:
    """The sets of a clone by their folders from the root."""
    paths = sorted((root / SETS).glob(f"*/{manifest.MANIFEST}"))
    return {path.parent.relative_to(root).as_posix(): manifest.load(path.parent) for path in paths}


@functools.cache
def places(root: Path) -> dict[str, tuple[str, str, str]]:
    """(page, anchor, target) of each recorded case by its path, read once for all pages."""
    result = {}
    for folder, listed in sets(root).items():
        for each in listed.vectors:
            result[f"{folder}/{each.file}"] = (f"{folder}/{each.target}.md", each.name, each.target)
    for path in peers(root):
        result[path] = (PEERS_PAGE, Path(path).stem, "other implementations")
    return result


def peers(root: Path) -> list[str]:
    """Paths of the cases of other implementations that this version evaluates."""
    paths = [path for pattern in PEERS for path in sorted(root.glob(pattern))]
    return [path.relative_to(root).as_posix() for path in paths if atlas_ref.load(path).supported]


def pages(root: Path, trace: Trace) -> Iterator[tuple[str, str]]:
    """All pages of recorded cases, as (path among the pages, Markdown)."""
    exercised: dict[str, list[str]] = {}
    for name, evidence in trace.evidence.items():
        for vector in evidence.vectors:
            exercised.setdefault(vector, []).append(name)
    for folder, listed in sets(root).items():
        yield f"{folder}/index.md", _index(root, folder, listed)
        for target in dict.fromkeys(each.target for each in listed.vectors):
            yield f"{folder}/{target}.md", _target(root, folder, listed, target, trace, exercised)
    yield PEERS_PAGE, _peers(root, trace, exercised)


def nav(root: Path) -> list[dict[str, Any]]:
    """The pages of recorded cases, for the navigation: each set with its targets."""
    sections: list[dict[str, Any]] = []
    for folder, listed in sets(root).items():
        targets = dict.fromkeys(each.target for each in listed.vectors)
        pages: list[Any] = [f"{folder}/index.md"]
        pages += [{"Kill matrix": f"{folder}-kill-matrix.md"}] if _has_matrix(root, folder) else []
        pages += [{target: f"{folder}/{target}.md"} for target in targets]
        sections.append({f"Set {listed.set}": pages})
    return [*sections, {"Other implementations": PEERS_PAGE}]


def _has_matrix(root: Path, folder: str) -> bool:
    return (root / f"{folder}-kill-matrix.md").is_file()


def listed_by_target(
    vectors: Iterable[str], known: dict[str, tuple[str, str, str]], page: str
) -> list[str]:
    """Links to these cases, one line for each target.

    A line links to the target's page, and to each case where they are few.
    """
    sizes: dict[str, int] = {}
    for where, _, _ in known.values():
        sizes[where] = sizes.get(where, 0) + 1
    by_page: dict[tuple[str, str], list[str]] = {}
    vectors = list(vectors)
    for vector in vectors:
        where, anchor, target = known[vector]
        by_page.setdefault((where, target), []).append(anchor)
    out = []
    for (where, target), anchors in by_page.items():
        to = links.relative(where, page)
        short = [each.removeprefix(f"{target}-") for each in anchors]
        if len(vectors) <= LINKED:
            short = [
                f"[{word}]({to}#{each.lower()})" for word, each in zip(short, anchors, strict=True)
            ]
        single = ", ".join(short)
        words = f"all {len(anchors)}" if len(anchors) == sizes[where] > 1 else single
        out.append(f"[{target}]({to}): {words}")
    return out


def _index(root: Path, folder: str, listed: Manifest) -> str:
    """The targets of a set with their vectors."""
    rows = []
    for target in dict.fromkeys(each.target for each in listed.vectors):
        own = [each for each in listed.vectors if each.target == target]
        killed = {name for each in own for name in each.kills["float32"]}
        names = ", ".join(
            f"[{each.name.removeprefix(f'{target}-')}]({target}.md#{each.name.lower()})"
            for each in own
        )
        rows.append((f"[{target}]({target}.md)", tables.code(own[0].rule), names, str(len(killed))))
    text = (
        f"# Vectors {listed.set}\n\nThe recorded cases of the set {listed.set} {listed.version}, "
        "by target: what they are is in "
    )
    text += (
        "[vectors](../../specs/vectors.md), which mutant which of them rejects in the [kill "
        f"matrix](../{listed.set}-kill-matrix.md). "
    )
    text += (
        "What other programs computed is "
        f"[here]({links.relative(PEERS_PAGE, f'{folder}/index.md')}).\n\n"
    )
    text += cells.table(("target", "rule", "vectors", "mutants killed at float32"), rows)
    return text + _others(listed)


def _others(listed: Manifest) -> str:
    """The files of a set that are no vectors, where it has them."""
    refused = [
        (tables.code(each.name), tables.code(each.code), tables.code(each.about))
        for each in listed.negative
    ]
    columns = ("file", "code", "what a message must name")
    large = [(tables.code(each.name), tables.code(each.rule)) for each in listed.large]
    return "".join(
        f"\n## {title}\n\n{cells.table(names, rows)}"
        for title, names, rows in (
            ("Files that must be refused", columns, refused),
            ("Larger cases, as recipes", ("name", "rule"), large),
        )
        if rows
    )


def _target(
    root: Path,
    folder: str,
    listed: Manifest,
    target: str,
    trace: Trace,
    exercised: dict[str, list[str]],
) -> str:
    """All vectors of a target."""
    page = f"{folder}/{target}.md"
    command = (
        f"atlas-ref check --set {listed.set} --target {target} --impl "
        f"mine.kernels:{target.replace('-', '_')}"
    )
    matrix = _by_target(root, f"{folder}-kill-matrix.md").get(target, "")
    text = (
        f"{HEAD}# Vectors of {target}\n\n[All targets](index.md) · "
        f"[all kill matrices](../{listed.set}-kill-matrix.md)\n\n    {command}\n"
    )
    if matrix:
        text += f"\n## Kill matrix {{ #kill-matrix }}\n\n{CELLS}\n\n{matrix}\n"
    own = [each for each in listed.vectors if each.target == target]
    paths = [f"{folder}/{each.file}" for each in own]
    words, shared = _shared(paths, exercised, trace, page)
    text += words
    for each in own:
        path = f"{folder}/{each.file}"
        text += f"\n## {each.name} {{ #{each.name.lower()} }}\n\n{_case(root, path, each.file)}\n"
        text += _shows(each) + _own(path, shared, exercised, trace, page)
    return text


def _peers(root: Path, trace: Trace, exercised: dict[str, list[str]]) -> str:
    """The page of cases that independent implementations computed."""
    text = (
        f"{HEAD}# Cases of other implementations\n\nWhat public code that nobody here wrote "
        "computed on random inputs, recorded as cases: "
    )
    text += (
        "fla-core and atlas-rnn for the rules, Atlas-MAG for Newton-Schulz, atlas-rnn for layers. "
        "This compares them all:\n\n    make oracle\n"
    )
    paths = peers(root)
    words, shared = _shared(paths, exercised, trace, PEERS_PAGE)
    text += words
    for path in paths:
        name = Path(path).stem
        text += f"\n## {name} {{ #{name.lower()} }}\n\n{_case(root, path, Path(path).name)}\n"
        text += _own(path, shared, exercised, trace, PEERS_PAGE)
    return text


def files(root: Path) -> Iterator[tuple[str, Path]]:
    """(path on the site, file) of every recorded case."""
    for folder, listed in sets(root).items():
        yield from ((f"{folder}/{each.file}", root / folder / each.file) for each in listed.vectors)
    yield from ((f"vectors/{Path(path).name}", root / path) for path in peers(root))


def _case(root: Path, path: str, file: str) -> str:
    """The header and the tensors of a case."""
    case = atlas_ref.load(root / path)
    header = json.dumps(
        case.header.model_dump(mode="json", exclude_unset=True, by_alias=True), indent=2
    )
    tensors: dict[str, Any] = {**case.inputs, **case.recorded}
    rows = [
        (tables.code(name), value.dtype.name, " x ".join(map(str, value.shape)) or "a number")
        for name, value in tensors.items()
    ]
    download = f"[{Path(file).name}]({file}) ({(root / path).stat().st_size:,} bytes)"
    return f"{download}\n\n```json\n{header}\n```\n\n" + cells.table(
        ("tensor", "type", "shape"), rows
    )


def _shows(vector: Vector) -> str:
    """Properties of a vector, its other forms, and how many mutants it rejects."""
    forms: dict[str, list[str]] = {}
    for each in vector.forms:
        forms.setdefault(each.form, []).append(str(each.chunk))
    lines = [f"- shows: {', '.join(vector.properties)}"]
    words = [f"{form} (chunks of {' and '.join(chunks)})" for form, chunks in forms.items()]
    lines += [f"- in forms: {', '.join(words)}"] if words else []
    lines += (
        [f"- may be cut before token {', '.join(map(str, vector.splits))}"] if vector.splits else []
    )
    counts = " and ".join(
        f"{len(names)} at {dtype}" for dtype, names in sorted(vector.kills.items(), reverse=True)
    )
    lines += [f"- rejects mutants, {counts}: [kill matrix](#kill-matrix)"] if counts else []
    return "\n".join(lines) + "\n"


def without_targets(root: Path, path: str) -> str:
    """A Markdown file as its page shows it: a kill matrix leads to a page for each target."""
    text = (root / path).read_text()
    if not path.endswith("-kill-matrix.md"):
        return text
    folder = posixpath.basename(path).removesuffix("-kill-matrix.md")
    return re.sub(
        r"\[([\w-]+)\]\(#\1\)", rf"[\1]({folder}/\1.md#kill-matrix)", text.split("\n## ")[0]
    )


def _by_target(root: Path, path: str) -> dict[str, str]:
    """The table of each target of a published kill matrix, its columns links to their cases."""
    if not (root / path).is_file():
        return {}
    tables_of = {}
    for part in (root / path).read_text().split("\n## ")[1:]:
        target, _, text = part.partition("\n")
        head, _, rest = text.strip().partition("\n")
        columns = [each.strip() for each in head.strip("|").split("|")]
        named = [
            f"[{each}](#{target.lower()}-{each.lower()})" if number else each
            for number, each in enumerate(columns)
        ]
        tables_of[target] = f"| {' | '.join(named)} |\n{rest}"
    return tables_of


def _shared(
    paths: Iterable[str], exercised: Mapping[str, list[str]], trace: Trace, page: str
) -> tuple[str, set[str]]:
    """The clauses that every case of a page exercises, as text and by id."""
    sets_of = [set(exercised.get(path, ())) for path in paths]
    shared = set.intersection(*sets_of) if len(sets_of) > 1 else set()
    names = [name for name in trace.clauses if name in shared]
    return _clauses(names, trace, page, "Every case exercises {} clauses"), shared


def _own(
    path: str, shared: set[str], exercised: Mapping[str, list[str]], trace: Trace, page: str
) -> str:
    """The clauses that a case exercises beyond those of every case."""
    names = [name for name in exercised.get(path, ()) if name not in shared]
    words = "Exercises {} clauses more" if shared else "Exercises {} clauses"
    return _clauses(names, trace, page, words)


def _clauses(names: list[str], trace: Trace, page: str, words: str) -> str:
    if not names:
        return ""
    listed = ", ".join(_run(each, trace, page) for each in _runs(names))
    return (
        f'\n<details class="proof test" markdown="1"><summary>{words.format(len(names))}'
        f"</summary>\n\n{listed}\n\n</details>\n"
    )


def _runs(names: Iterable[str]) -> Iterator[list[str]]:
    """Clauses in a row of one family: A-1, A-2, A-3, A-7 as [A-1, A-2, A-3] and [A-7]."""
    run: list[str] = []
    for name in names:
        family, _, number = name.rpartition("-")
        if run and number.isdigit() and run[-1] == f"{family}-{int(number) - 1}":
            run.append(name)
            continue
        if run:
            yield run
        run = [name]
    if run:
        yield run


def _run(names: list[str], trace: Trace, page: str) -> str:
    first = tables.to_clauses(names[:1], trace, page)
    return first if len(names) == 1 else f"{first} to {names[-1]}"
