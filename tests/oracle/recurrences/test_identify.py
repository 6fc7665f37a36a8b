"""Every mistake and every setting of every member is named by `identify`, and by `check`."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.case import Case, make
from atlas_ref.oracle.identify.identify import identify
from atlas_ref.oracle.judge import ensemble
from atlas_ref.oracle.recurrences.members import MEMBERS
from atlas_ref.oracle.registry import SUBJECTS
from tests.support.recurrence_cases import case

KINDS = ("masks", "long", "transposed", "short")


def searched() -> Any:
    return SUBJECTS["recurrence"].searched


def results(of: Case, chosen: tuple[Any, ...], *, grad: bool) -> dict[str, Any]:
    """Results of a case under some readings in float64."""

    def plain(inputs: Any, at: Case, rounding: Any) -> dict[str, Any]:
        found: dict[str, Any] = searched().run(inputs, at, rounding, chosen)
        return found

    return dict(ensemble.exact(of, grad=grad, plain=plain))


@functools.cache
def readings(member: str, kind: str) -> dict[str, Any]:
    of = case(member, kind)
    every = [*searched().settings(of), *searched().departures(of)]
    return {each.name: each for each in every}


EVERY = [(m, kind, name) for m in MEMBERS for kind in KINDS for name in readings(m, kind)]


def far(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether some result differs, or has another shape."""
    return any(
        x.shape != other[name].shape or not np.allclose(x, other[name], rtol=1e-9, atol=1e-12)
        for name, x in one.items()
    )


@pytest.mark.clause("PROG-4", "PROG-5", "RECUR-14", "SHORT-7")
@pytest.mark.sample(12)
@pytest.mark.parametrize(("member", "kind", "name"), EVERY)
def test_a_reading_is_named(member: str, kind: str, name: str) -> None:
    of, each = case(member, kind), readings(member, kind)[name]
    mine, own = (results(of, chosen, grad=each.grad) for chosen in ((each,), ()))
    if not far(own, mine):
        return  # the same function of this case
    answer = identify(of, mine)
    assert not answer.failed
    if each.change:
        fits = [fit for fit in answer.fits if not far(mine, results(of, fit, grad=False))]
        assert fits, (answer.verdict, answer.from_own)
        return
    words = [departure.words for departure in answer.departures]
    same = [one for one in readings(member, kind).values() if one.words in words]
    equal = [one for one in same if not far(mine, results(of, (one,), grad=each.grad))]
    assert equal, (answer.verdict, answer.from_own, words)


@pytest.mark.clause("PROG-4")
@pytest.mark.parametrize("member", MEMBERS)
def test_every_mistake_shows_in_some_case(member: str) -> None:
    shown = set()
    for kind in (*KINDS, "batch"):
        of = case(member, kind)
        own = results(of, (), grad=True)
        for name, each in readings(member, kind).items():
            if name not in shown and far(own, results(of, (each,), grad=True)):
                shown.add(name)
    every = {name for kind in (*KINDS, "batch") for name in readings(member, kind)}
    same = {"write of 1 - gate"}  # what a drawn case writes
    if member == "gsa":
        of = case("gsa", "long")
        other = make(of.header.plain(), {**of.inputs, "in/s": 2.0 * of.inputs["in/s"]})
        reading = readings("gsa", "long")["write of 1 - gate"]
        assert far(results(other, (), grad=False), results(other, (reading,), grad=False))
    assert every - shown <= same


@pytest.mark.clause("PROG-4")
@pytest.mark.parametrize("member", MEMBERS)
def test_a_mistake_has_a_name_and_words_of_its_own(member: str) -> None:
    found = [each for kind in KINDS for each in [*readings(member, kind).values()]]
    names = {each.name for each in found if not each.change}
    assert len({each.words for each in found if not each.change}) == len(names)
    assert len(names) > 20


@pytest.mark.clause("RECUR-14", "SRC-23")
@pytest.mark.parametrize(
    ("member", "name", "words"),
    [
        ("gsa", "sigmoid", "as if reads had a sigmoid in place of the softmax"),
        ("hgrn", "input times 1 - gate", "as if inputs were multiplied by one minus the gate"),
        ("mesa", "no ridge", "as if in/ridge was 0"),
        ("ttt_linear", "residual forgotten", "as if reads were their norm alone"),
        ("log_linear", "round robin", "as if value heads took key heads round robin"),
        ("short_conv", "bias forgotten", "as if in/bias was absent"),
        ("short_conv", "taps reversed", "as if taps were in reverse order"),
    ],
)
def test_check_says_the_nearest_reading(
    member: str, name: str, words: str, tmp_path: Any, cli: Any
) -> None:
    of = case(member, "long")
    wrong = results(of, (readings(member, "long")[name],), grad=False)
    file = tmp_path / "case.safetensors"
    atlas_ref.save(file, of.header.plain(), {**of.inputs, **wrong})
    code, out, _ = cli("check", str(file))
    assert code == 1
    assert words in " ".join(out.split())
