"""Mistakes of the kill matrices, named by identify and by check where results have one."""

from __future__ import annotations

import numpy as np
import pytest

from atlas_ref.oracle.cases.case import Case, load
from atlas_ref.oracle.cases.inputs import round_inputs
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.family import mistakes
from atlas_ref.oracle.family.mistake import compute
from atlas_ref.oracle.identify.identify import identify
from atlas_ref.oracle.judge.answers import Answer
from atlas_ref.oracle.judge.compare import checked
from atlas_ref.oracle.report.nearest import GRADIENTS, Nearest
from atlas_ref.oracle.sweep.first import tokens_of
from atlas_ref.vectors.sets import cases
from tests.oracle.planted.named import REFUSED, RULES, made, planted, said

#: Mistakes that are told as another or as a setting with the same numbers, where the smallest vector
#: that rejects one does not tell them apart; all others are named themselves.
EQUAL = {
    "omega": (
        "M0 ignored",
        "S0 ignored",
        "ceiling of entries",
        "ceiling of the largest entry",
        "initial momenta ignored",
        "initial window ignored",
        "initial window reversed",
        "momentum as an average",
        "phase ignored",
        "phase lost at a cut",
        "pulses ignored",
        "reference ignored",
        "resets ignored",
        "retain by columns",
        "retain left out",
        "span one longer",
        "window logits ignored",
        "window off by one",
        "window weights reversed",
    ),
    "titans_lmm": (
        "M0 ignored",
        "S0 ignored",
        "ceiling at the last token alone",
        "ceiling of entries",
        "ceiling of the largest entry",
        "greatest retain ignored",
        "greatest step size ignored",
        "momentum as an average",
        "phase ignored",
        "pulses ignored",
        "reference ignored",
        "resets ignored",
        "residual divided by d_out",
        "retain by columns",
        "retain left out",
    ),
    "delta": (
        "M0 ignored",
        "ceiling at the last token alone",
        "ceiling of entries",
        "ceiling of every column",
        "ceiling of every row",
        "ceiling of the largest entry",
        "greatest step size ignored",
        "least retain ignored",
        "phase ignored",
        "pulses ignored",
        "reference ignored",
        "resets ignored",
        "residual divided by d_out",
        "retain by columns",
        "retain left out",
    ),
    "hebbian": (
        "M0 ignored",
        "inactive tokens decay",
        "pulses ignored",
        "resets ignored",
        "retain by columns",
        "retain left out",
        "retain of the first output dimension",
    ),
}

OMEGA = [each for each in planted("omega") if each.name != REFUSED]
OTHERS = [each for rule in RULES[1:] for each in planted(rule)]


def assert_named(each, dtype="float32"):
    """Identify names a mistake that was made on a vector which rejects it."""
    one = made(each, dtype)
    if one is None:
        pytest.skip("no vector has finite results of it, and no others are searched (IDENT-7)")
    words = said(one.mistake, identify(one.case, one.results, depth=1))
    assert words == "itself" or (words and each.name in EQUAL.get(each.rule, ())), (
        each.name,
        words,
    )


@pytest.mark.sample(30)
@pytest.mark.clause("IDENT-17", "IDENT-18", "VEC-16")
@pytest.mark.parametrize("each", OMEGA, ids=lambda each: each.name)
def test_identify_names_every_mistake_of_the_matrices_on_an_omega_case(each):
    assert_named(each)


@pytest.mark.sample(10)
@pytest.mark.clause("IDENT-17", "IDENT-18", "VEC-16")
@pytest.mark.parametrize("each", OTHERS, ids=lambda each: f"{each.rule} {each.name}")
def test_identify_names_every_mistake_of_the_matrices_on_other_cases(each):
    assert_named(each)


@pytest.mark.clause("IDENT-17")
def test_a_mistake_is_judged_by_values_and_named_beside_any_gradients():
    """A kernel whose backward is that of its own forward, and one whose backward is none."""
    case, mistake = planted_on("v1:titans_lmm-gradient-1", "momentum of the token before")
    right = evaluate(case, grad=True, dtype="float32").tensors
    mine = {**right, **compute(case, mistake, "float32")}
    words = [each.words for each in identify(case, mine, depth=1).departures]
    assert words == [mistake.words]


@pytest.mark.clause("IDENT-17")
def test_tokens_behind_decide_what_reads_at_the_end_of_a_call():
    """First tokens alone say nothing about such a case, nor about a mistake that looks ahead."""
    case = load(cases.place("v1:hebbian-repeated"))
    whole = {each.name for each in mistakes.every(case) if each.whole}
    assert "padding leaks a future token" in whole
    assert "query one token late" not in whole
    end = case.replaced(convention=case.convention.replaced(read="call_end"))
    assert all(each.whole for each in mistakes.every(end))


@pytest.mark.clause("IDENT-18", "SRC-23", "SRC-27")
def test_check_names_a_mistake_of_the_backward_pass_and_one_behind_the_first_tokens():
    case, mistake = planted_on("v1:delta-gradient-1", "inner gradient held fixed")
    found = compute(case, mistake, "float32")
    said_of = nearest(case, found)
    under = "under the case's own convention: then this would be right"
    assert said_of == f"as if {mistake.words}, {under}"
    right = evaluate(case, grad=True, dtype="float32").tensors
    assert nearest(case, {**right, "grad/k": right["grad/k"] * np.float32(1.5)}) == GRADIENTS
    case, mistake = planted_on("v2:delta-130", "state one chunk late in chunks of 64")
    assert nearest(case, compute(case, mistake, "float32")) == f"as if {mistake.words}, {under}"


def planted_on(vector: str, name: str):
    """A vector and a mistake that can be made in it."""
    case = round_inputs(load(cases.place(vector)), "float32")
    return case, next(each for each in mistakes.every(case) if each.name == name)


def nearest(case: Case, results) -> str:
    """What check says about results of a case."""
    own = evaluate(case, grad="in/y_bar" in case.inputs).tensors
    answer = {name: x for name, x in results.items() if name in own}

    def source(each: Case) -> Answer:  # the first tokens are right
        return Answer(answer if tokens_of(each) == tokens_of(case) else evaluate(each).tensors)

    done = checked(case, source=source, dtype="float32")
    return Nearest().words(done, done.rows)
