"""One page per spec, with the evidence of each clause beside it.

The evidence is its code from the source, its tests, errata, vectors and mutants.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from pathlib import Path

from docs import equations, lined_code, links, tables, vector_pages
from docs.clauses.places import Place
from docs.clauses.specs import Clause
from docs.clauses.trace import Evidence, Trace, rank

#: Places shown in full beside a clause, the lines that one may have, and the clauses that the
#: second may name: more of the spec's own module than of other code.
SHOWN, LONGEST, BROADEST, OWN = 2, 70, 4, 8
#: Errata that stand open beside their clause.
ERRATA_OPEN = 6
#: Where recorded cases are on the site.
Vectors = dict[str, tuple[str, str, str]]


def page(trace: Trace, root: Path, path: str) -> str:
    """The Markdown of a spec's page."""
    known, vectors = trace.clauses, vector_pages.places(root)

    def link(word: str) -> str | None:
        return links.clause_link(known[word], path) if word in known else None

    lines = (root / path).read_text().split("\n")
    heads = {clause.line: clause for clause in known.values() if clause.path == path}

    def converted(words: str) -> str:
        return links.moved(links.linked(equations.without_tags(words), link), path, path)

    out: list[str] = []
    number = 1
    for clause in [heads[line] for line in sorted(heads)]:
        out += [
            converted(_between(lines, number, clause.line)),
            *_clause(trace, clause, converted(clause.text), vectors, path),
        ]
        number = clause.last + 1
    out.append(converted(_between(lines, number, len(lines) + 1)))
    body = "\n".join(out)
    notation = (
        ""
        if path.endswith("notation.md")
        else (
            f"Symbols and names: [notation]({links.relative('specs/notation.md', path)}).\n{{ "
            f".notation }}\n\n"
        )
    )
    title, _, rest = body.partition("\n")
    contents = _contents([heads[line] for line in sorted(heads)])
    return f"{title}\n\n{notation}{contents}{rest}"


def _contents(clauses: list[Clause]) -> str:
    """The clauses of the page as links, for a screen where the navigation is hidden."""
    if not clauses:
        return ""
    items = "\n".join(
        f"- [{each.id} {html.escape(each.title)}](#{each.id.lower()})" for each in clauses
    )
    return (
        f'<details class="proof contents" markdown="1"><summary>{len(clauses)} '
        f"clauses</summary>\n\n{items}\n\n</details>\n\n"
    )


def _between(lines: list[str], first: int, end: int) -> str:
    """Lines outside clauses, without the anchors of errata, which their headings carry here."""
    return "\n".join(
        line for line in lines[first - 1 : end - 1] if not re.match(r'<a id="e-', line)
    )


def _clause(trace: Trace, clause: Clause, text: str, vectors: Vectors, page: str) -> list[str]:
    """Heading, contract and evidence of one clause."""
    evidence = trace.evidence[clause.id]
    left = ['<div class="contract" markdown="1">', "", text, "", "</div>"]
    # the search takes the end of any inner tag of this name for the end of what it leaves out
    right = [
        '<aside class="beside" data-search-exclude="true" markdown="1">',
        "",
        *_code(clause, evidence, page),
        *_proofs(trace, clause, evidence, vectors, page),
        "</aside>",
    ]
    heading = f"### {clause.id} {clause.title} {{ #{clause.id.lower()} }}"
    # without code the evidence is short, and a table may take the whole width
    kind = "clause" if evidence.places and not clause.no_code else "clause whole"
    return [
        "",
        heading,
        "",
        f'<div class="{kind}" markdown="1">',
        "",
        *left,
        "",
        *right,
        "",
        "</div>",
        "",
    ]


def _code(clause: Clause, evidence: Evidence, page: str) -> list[str]:
    """The code of a clause: the rule itself in full, further places as links that fold."""
    places = evidence.places
    if clause.no_code or not places:
        return []  # the clause itself says why; an erratum has a test alone
    full = shown(clause, places)
    out: list[str] = []
    for place in full:
        out += [f"{_link(place, page)}{{ .where }}", "", lined_code.wanted(place), ""]
    others = [_link(each, page) for each in places if each not in full]
    if not full:
        return ['<p class="also" markdown="1">Code: ' + ", ".join(others) + "</p>", ""]
    return out + _list("Also in", "place", others, 0)


def shown(clause: Clause, places: Sequence[Place]) -> list[Place]:
    """The places that stand in full beside a clause: the first, and a second one like it."""
    short = [each for each in places if each.kind != "module" and each.last - each.first < LONGEST]
    full = short[:1]
    for each in short[1:]:
        close = rank(clause, each)
        broadest = OWN if close == 0 else BROADEST
        if len(full) < SHOWN and close == rank(clause, full[0]) and len(each.ids) <= broadest:
            full.append(each)
    return full


def _link(place: Place, page: str) -> str:
    words = place.path.removeprefix("atlas_ref/").removesuffix(".py") + (
        f" · {place.name}" if place.name else ""
    )
    return f"[`{words}`]({links.line_link(place.path, place.first, page)})"


def _proofs(
    trace: Trace, clause: Clause, evidence: Evidence, vectors: Vectors, page: str
) -> list[str]:
    """Tests, errata, vectors and mutants of a clause, as lists of links."""
    out: list[str] = []
    tests = [
        f"[{tables.words_of(each.name)}]({links.line_link(each.path, each.line, page)})"
        for each in evidence.tests
    ]
    out += _list("Proved by", "test", tests, 0)
    errata = [
        f"[{each} {trace.clauses[each].title}]({links.clause_link(trace.clauses[each], page)})"
        for each in evidence.errata
    ]
    out += _list("Errata", "erratum", errata, ERRATA_OPEN)
    count = f"{len(evidence.vectors)} recorded case{'s' * (len(evidence.vectors) != 1)}"
    out += _list(
        "Exercised by",
        "vector",
        vector_pages.listed_by_target(evidence.vectors, vectors, page),
        0,
        count,
    )
    mutants = [
        (
            f"[{each.name}]({links.relative('tables/mutants.md', page)}#{each.name}): "
            f"{html.escape(each.what)}"
        )
        for each in evidence.mutants
    ]
    out += _list(
        "Dies by a test of this clause",
        "mutant",
        mutants,
        0,
        f"{len(mutants)} mutant{'s' * (len(mutants) != 1)}",
    )
    return out


def _list(title: str, kind: str, items: list[str], opened: int, count: str = "") -> list[str]:
    """Items under a heading that folds; closed where there are many, nothing without items."""
    if not items:
        return []
    word = count or (
        f"{len(items)} {kind if len(items) == 1 else {'erratum': 'errata'}.get(kind, kind + 's')}"
    )
    state = " open" if len(items) <= opened else ""
    head = f'<details class="proof {kind}"{state} markdown="1"><summary>{title}: {word}</summary>'
    return [head, "", *(f"- {each}" for each in items), "", "</details>", ""]
