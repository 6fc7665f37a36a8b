"""Every value of every axis planted, and identified from float32 reads alone: IDENT-10."""

import numpy as np
import pytest

from atlas_ref.conventions import resolve
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.family import lattice
from atlas_ref.oracle.family.facts import facts
from atlas_ref.oracle.identify.identify import identify
from atlas_ref.oracle.identify.score import seen_as

RULES = ("titans_lmm", "delta", "hebbian", "omega")


def base(rule):
    return {"newton_schulz": "none"} if rule == "omega" else {}


def separating(rule, seed=3):
    """A case that separates the settings.

    Eight tokens, square matrices that are neither zero nor symmetric, both rates, a map for the
    place of norms, and two heads with keys and queries from 1 down to 1e-15 for their eps.
    """
    sizes = {"span": 3, "d_in": 3, "d_out": 3, "heads": 3, "seed": seed}
    omega = {"window": 3, "feature_map": {"kind": "elu"}} if rule == "omega" else {}
    split = {} if rule == "hebbian" else {"rate": "split"}
    made = new(Request(rule=rule, convention=(base(rule) | split) or "spec", **sizes, **omega))
    lengths = 10.0 ** -np.array([np.zeros(8), np.arange(0, 16, 2), np.arange(1, 17, 2)])
    inputs = {f"in/{name}": made.inputs[f"in/{name}"] * lengths[..., None] for name in "kq"}
    return made.replaced(inputs={**made.inputs, **inputs})


CASES = {rule: separating(rule) for rule in RULES}


ALONE, FROZEN, NORMED = {}, {"reference": "chunk_start"}, {"k_norm": "l2"}


def plants(rule, arounds):
    """Each value of each axis, alone and, since some axes need them, under a frozen reference and
    beside a norm.
    """
    axes = {
        a: values
        for a, values in lattice.tried_values(CASES[rule].convention, rule).items()
        if not a.startswith("newton_schulz")
    }
    # gradients of these cases close the factor of delta momentum, which then has no S: it has a
    # case of its own (tests/rules/test_delta_momentum.py)
    axes["momentum_kind"] = tuple(v for v in axes["momentum_kind"] if v != "delta_momentum")
    for around in arounds:
        for axis, values in axes.items():
            for value in values:
                if axis not in around:
                    yield base(rule) | around | {axis: value}


def planted(rule, changes):
    """The planted point, and its reads in float32."""
    case = CASES[rule]
    convention = resolve(changes, rule=rule)
    reads = evaluate(seen_as(case, convention)).tensors["out/y"].astype(np.float32)
    return lattice.fold(facts(case), lattice.point(convention)), reads


def found(rule, reads, depth):
    case = CASES[rule]
    answer = identify(case, {"out/y": reads}, depth=depth)
    return answer, lattice.fold(
        facts(case), lattice.point(resolve(answer.match.convention, rule=rule))
    )


def distinct(rule, *arounds):
    seen, chosen = set(), []
    for changes in plants(rule, arounds):
        at = lattice.fold(facts(CASES[rule]), lattice.point(resolve(changes, rule=rule)))
        if at not in seen:
            seen.add(at)
            chosen.append(changes)
    return chosen


@pytest.mark.sample(10)
@pytest.mark.clause("IDENT-7", "IDENT-10")
@pytest.mark.parametrize(
    ("rule", "changes"),
    [
        (rule, each)
        for rule in ("titans_lmm", "delta", "hebbian")
        for each in distinct(rule, ALONE, FROZEN)
    ],
    ids=str,
)
def test_every_value_is_found_from_float32_reads_among_all_two_changes_away(rule, changes):
    at, reads = planted(rule, changes)
    answer, match = found(rule, reads, depth=2)
    assert (answer.verdict, match) == ("MATCH", at), (answer.why, answer.match, answer.undecided)
    # l2 and rms times 1/sqrt(d_in) differ by their 1e-6 under the root alone
    assert answer.times_worse > 50


@pytest.mark.sample(4)
@pytest.mark.clause("IDENT-10")
@pytest.mark.parametrize("changes", distinct("omega", ALONE), ids=str)
def test_every_value_of_omega_without_newton_schulz_is_found_one_change_away(changes):
    at, reads = planted("omega", changes)
    answer, match = found("omega", reads, depth=1)
    assert (answer.verdict, match) == ("MATCH", at), (answer.why, answer.match, answer.undecided)


@pytest.mark.slow
@pytest.mark.clause("IDENT-10")
@pytest.mark.parametrize("changes", distinct("omega", ALONE, FROZEN, NORMED), ids=str)
def test_every_value_of_omega_without_newton_schulz_is_found_two_changes_away(changes):
    at, reads = planted("omega", changes)
    answer, match = found("omega", reads, depth=2)
    assert (answer.verdict, match) == ("MATCH", at), (answer.why, answer.match, answer.undecided)


@pytest.mark.clause("IDENT-6", "IDENT-10")
@pytest.mark.parametrize("rule", ["titans_lmm", "delta", "hebbian"])
def test_reads_of_the_first_memory_alone_show_nothing_else_and_that_is_said(rule):
    """The one linear setting that no case decides: every token reads M0 (CONV-11)."""
    changes = {"reference": "call_start", "read": "chunk_start"}
    _, reads = planted(rule, changes)
    answer, _ = found(rule, reads, depth=2)
    assert answer.verdict == "UNDECIDABLE"
    assert answer.undecided["gate"][0] in ("retain", "none", "forget")
    assert {"gate", "k_norm"} <= answer.undecided.keys()
    assert "read" not in answer.undecided
    assert all("CONV-11: every token reads M0" in twin.reason for twin in answer.twins)
