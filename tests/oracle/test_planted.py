"""Every mistake of the design's list, planted by hand: caught, traced to its op, named.

Legal variants pass.
"""

from __future__ import annotations

import numpy as np
import pytest

from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.replay.trace import trace
from tests.oracle.planted import __main__ as command
from tests.oracle.planted import chunked, restatement, table
from tests.oracle.planted.cases import REQUESTS, case_of, inputs_of, rule_of
from tests.oracle.planted.mistakes import MISTAKES, Mistake

#: What the design names, word for word, and which mistakes here stand for it.
LIST = {
    "forget for retain": "forget for retain",
    "rate in the wrong place": "rate at the memory",
    "factor 2": "factor 2",
    "window off by one": "window off by one",
    "window order swapped": "window order swapped",
    "read before write": "read before write",
    "frozen for running": "frozen for running",
    "spurious transpose in a backward": "spurious transpose in a backward",
    "cubic for quintic": "cubic for quintic",
    "NS written back": "Newton-Schulz written back",
    "missing eps": "missing eps",
    "a dropped carry of dM": "dropped carry of dM",
    "a dropped carry of dS": "dropped carry of dS",
    "gate values copied onto padding": "gate values copied onto padding",
    "padding that leaks a future token": "padding leaks a future token",
}

CONVENTIONS = [mistake for mistake in MISTAKES if mistake.axes is not None]


def named(mistake: Mistake) -> str:
    return mistake.name


@pytest.mark.parametrize("name", REQUESTS)
def test_the_restatement_agrees_with_ours(name: str) -> None:
    """Two programs that share no code: results, gradients, traces and adjoints."""
    case = case_of(name)
    ours = evaluate(case, grad=True).tensors | trace(case, grad=True)
    theirs = restatement.run(rule_of(case), inputs_of(case), np.float64, grad=True)
    assert set(ours) - set(theirs) <= {"out/window_k", "out/window_v"}
    assert set(theirs) <= set(ours)
    for tensor, value in theirs.items():
        want = ours[tensor]
        assert value.shape == want.shape, tensor
        assert np.linalg.norm(value - want) <= 1e-4 * np.linalg.norm(want), tensor


@pytest.mark.parametrize("name", table.CHUNKED)
def test_the_chunk_form_agrees_with_the_loop(name: str) -> None:
    case = case_of(name)
    loop = restatement.run(rule_of(case), inputs_of(case), np.float64)
    for tensor, value in chunked.run(rule_of(case), inputs_of(case), np.float64).items():
        if tensor.startswith("out/"):
            assert np.linalg.norm(value - loop[tensor]) <= 1e-5 * np.linalg.norm(loop[tensor]), (
                tensor
            )


def test_inputs_are_exact_in_every_format() -> None:
    for name in REQUESTS:
        for tensor, value in case_of(name).inputs.items():
            for kind in (*table.STORAGE.values(), np.float16):
                tiny = name == "omega small" and kind is np.float16
                assert tiny or np.array_equal(value.astype(kind).astype(np.float64), value), (
                    name,
                    tensor,
                )


def test_the_whole_list_is_planted() -> None:
    assert set(LIST.values()) <= {mistake.name for mistake in MISTAKES}
    assert len({mistake.name for mistake in MISTAKES}) == len(MISTAKES)
    assert all(name in REQUESTS for mistake in MISTAKES for name in mistake.cases)


@pytest.mark.sample(5)
@pytest.mark.parametrize("dtype", table.STORAGE)
@pytest.mark.parametrize("mistake", MISTAKES, ids=named)
def test_a_mistake_is_caught_and_the_replay_names_its_op(mistake: Mistake, dtype: str) -> None:
    for name in mistake.cases:
        found = table.planted(mistake, name, dtype)
        assert found.caught, name
        assert found.replayed == mistake.op, name


@pytest.mark.sample(4)
@pytest.mark.parametrize("dtype", table.STORAGE)
@pytest.mark.parametrize("name", REQUESTS)
def test_no_legal_variant_raises_an_alarm(name: str, dtype: str) -> None:
    ways = [way for way, case, kind in table.legal() if (case, kind) == (name, dtype)]
    assert len(ways) >= 8
    for way in ways:
        found = table.alarmed(way, name, dtype)
        assert not found.caught, (way, found)


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", table.STORAGE)
def test_a_convention_is_named_on_a_linear_rule(dtype: str) -> None:
    for mistake in CONVENTIONS:
        for name in set(mistake.cases) & {"delta", "hebbian", "titans_lmm"}:
            found = table.named(mistake, name, dtype)
            assert found.right, (mistake.name, name, found)
            assert found.unique, (mistake.name, name, found)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", table.STORAGE)
@pytest.mark.parametrize("mistake", CONVENTIONS, ids=named)
def test_a_convention_is_named(mistake: Mistake, dtype: str) -> None:
    for name in mistake.cases:
        found = table.named(mistake, name, dtype)
        assert found.right, (name, found)
        assert found.unique or mistake.name == "missing eps", (name, found)


def test_the_table_counts_and_says_no(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table with one mistake of the list, then with a legal variant in its place, which
    survives.
    """
    (one,) = [mistake for mistake in MISTAKES if mistake.name == "read before write"]
    few = Mistake(one.name, one.plant, ("hebbian",), one.op, one.axes)
    monkeypatch.setattr(table, "MISTAKES", (few,))
    monkeypatch.setattr(command, "MISTAKES", (few,))
    monkeypatch.setattr(table, "REQUESTS", {"hebbian": REQUESTS["hebbian"]})
    assert command.main(quick=False) == 0
    printed = capsys.readouterr().out
    assert (
        "float32: 1 of 1 mistakes caught, 1 by check, 1 by replay; 1 of 1 conventions named, "
        "1 of them alone"
    ) in printed
    assert "0 alarms on 18 legal variants" in printed
    harmless = Mistake("nothing at all", restatement.RIGHT, ("hebbian",))
    monkeypatch.setattr(table, "MISTAKES", (harmless,))
    monkeypatch.setattr(command, "MISTAKES", (harmless,))
    assert command.main(quick=True) == 1
    assert "SURVIVED: nothing at all hebbian float32" in capsys.readouterr().out
