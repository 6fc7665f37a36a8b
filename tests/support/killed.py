"""Mutants of a rule with settings of its own, and the vectors of v2 that kill them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

import atlas_ref
from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.judge.tolerance import PASS, tolerances
from atlas_ref.vectors.inputs.draw import drawn
from atlas_ref.vectors.inputs.targets import target_named, topic_named
from atlas_ref.vectors.mutants import erase_chunks, erase_layout, mutants, own, score
from atlas_ref.vectors.sets import locate, manifest

FOLDER = locate.SHIPPED[1] / "v2"


def case_of(target: str, topic: str, seed: int = 0) -> Case:
    """A draw of a topic of a target."""
    found = target_named(target)
    return drawn(found, topic_named(found, topic), seed)


def of_target(listing: manifest.Manifest, target: str) -> list[Any]:
    """The vectors of a target."""
    return [each for each in listing.vectors if each.target == target]


def kills(listing: manifest.Manifest, target: str, dtype: str) -> set[str]:
    """Mutants of a target that some vector of it rejects."""
    return {name for each in of_target(listing, target) for name in each.kills[dtype]}


def possible(listing: manifest.Manifest, target: str, rule: str) -> set[str]:
    """Mutants that the vectors of a target can have."""
    cases = (atlas_ref.load(FOLDER / each.file) for each in of_target(listing, target))
    return {name for case in cases for name in short_of(case, rule)}


def short_of(case: Case, rule: str) -> set[str]:
    """Mutants of a case that are no mistakes of chunks, which a long one has alone."""
    if mutants.long(case) or erase_chunks.long(case):
        return set()
    layouts = {f"{own.ahead(rule)}{name}" for name in erase_layout.made_in(case)}
    return layouts | {own.named(each, rule) for each in own.readings(case)}


def assert_kernel_is_the_rule(
    case: Case, *, grad: bool, others: Iterable[dict[str, Any]] = ()
) -> None:
    """The float32 kernel without a mistake has every result of the rule, and so have others."""
    want = evaluate(case, grad=grad).tensors
    want = {name: x for name, x in want.items() if not own.KEPT.fullmatch(name)}
    allowed = tolerances(case, dtype="float32", only=list(want), results=want, alternatives=False)
    for found in (own.kernel(case, "float32"), *others):
        found = {name: x for name, x in found.items() if not own.KEPT.fullmatch(name)}
        assert found.keys() == want.keys()
        assert score.ratio(found, want, allowed) <= PASS


def assert_backward_mistakes_leave_values(case: Case) -> int:
    """Every mistake of the gradient has right values and a wrong gradient.

    Returns:
        how many there are.
    """
    right = own.kernel(case, "float32")
    made = [each for each in own.readings(case) if each.grad]
    for each in made:
        found = own.kernel(case, "float32", (each,))
        gaps = {n: np.abs(x - right[n]).max() for n, x in found.items()}
        assert max(gap for name, gap in gaps.items() if name.startswith("out/")) == 0.0, each.name
        assert max(gap for name, gap in gaps.items() if name.startswith("grad/")) > 0.0, each.name
    return len(made)
