"""Links between the specs, and clause ids that code or a test names: all exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPECS = sorted((ROOT / "specs").glob("*.md"))
FAMILIES = (
    "OMEGA",
    "TITANS",
    "DELTA",
    "HEBBIAN",
    "DPLR",
    "GATES",
    "WINDOW",
    "PHI",
    "NS",
    "CONV",
    "CASE",
    "TAPE",
    "NOTATION",
)
FAMILIES += ("CHUNK", "EXACT", "SCAN", "ATLASP", "KERNEL")
FAMILIES += ("PULSE", "CMS", "TNT", "CONTRACT", "LIFE")
FAMILIES += ("NORM", "ROTARY", "CONVOLUTION", "FEED", "ATTENTION", "LAYER")
FAMILIES += (
    "LAYERS",
    "MEMORY",
    "MEMFUN",
    "DEEP",
    "DEEPCASE",
    "TNTCASE",
    "DPLRCASE",
    "RECUR",
    "SHORT",
    "PROG",
    "BLOCKS",
    "MODEL",
)
FAMILIES += ("QK", "SURROGATE", "NEURAL", "SHARED", "MAG", "OPTIM", "PROBE", "TRAIN", "EVAL")
FAMILIES += (
    "SRC",
    "SCHED",
    "TOL",
    "REPLAY",
    "IDENT",
    "SWEEP",
    "CERT",
    "VEC",
    "TRACE",
    "BACKEND",
    "CUDA",
)
NAMED = re.compile(rf"\b((?:{'|'.join(FAMILIES)})-\d+|E-[ADEFGMPRT]\d\d)[a-z]?\b")


def clauses() -> set[str]:
    """Ids of the clauses that a heading of a spec defines."""
    found: set[str] = set()
    for spec in SPECS:
        for heading in re.findall(r"^###? (.*)$", spec.read_text(), re.MULTILINE):
            found |= set(NAMED.findall(heading.split(" ")[0].rstrip(",")))
    return found


def anchors(text: str) -> set[str]:
    """Fragments of a Markdown page: explicit anchors and slugs of headings."""
    slugs = {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }
    return slugs | set(re.findall(r'<a id="([^"]+)">', text))


@pytest.mark.parametrize("spec", SPECS, ids=lambda path: path.name)
def test_every_link_of_a_spec_leads_somewhere(spec: Path) -> None:
    lost = []
    for target, fragment in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", spec.read_text()):
        if target.startswith("http"):
            continue
        page = spec.parent / target if target else spec
        if not page.exists() or (fragment and fragment not in anchors(page.read_text())):
            lost.append(f"{target}#{fragment}")
    assert lost == []


def test_every_clause_that_code_names_exists() -> None:
    known = clauses()
    assert len(known) > 250
    files = [
        path
        for folder in ("atlas_ref", "tape", "tests", "specs")
        for path in (ROOT / folder).rglob("*.*")
        if path.suffix in (".py", ".md")
    ]
    lost = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in files
        for name in NAMED.findall(path.read_text())
        if name not in known
    }
    scope = next(
        p
        for p in (ROOT / "specs" / "errata.md").read_text().split("\n\n")
        if p.startswith("This page covers")
    )
    later = set(NAMED.findall(scope))  # errata of parts that are not here yet
    assert sorted(entry for entry in lost if entry.split(": ")[1] not in later) == []
