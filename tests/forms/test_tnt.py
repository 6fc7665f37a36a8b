"""TNT against its definition in loops, and against the sum of ordinary runs: values, gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tape
from tape import ops
from tape.nested import flatten
from tests.support.close import assert_close, assert_differs, reordered
from tests.support.directions import check_directions
from tests.support.tnt import D_OUT, MODULES, Setup, T, ordinary, setup
from tests.truth import tnt_loops as loops

LOOPS = reordered(T)
CASES = [(rule, n) for rule in MODULES for n in range(4)]
COTANGENT = np.random.default_rng(9).standard_normal((T, D_OUT))


def loss(run: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A scalar of the reads of every token."""
    return lambda leaves: ops.sum(run(leaves) * COTANGENT)


def of_loops(setting: Setup, reading: loops.Reading) -> Callable[[Any], Any]:
    """The same scalar of the definition."""
    return lambda leaves: np.sum(loops.paper(setting.memories(leaves), reading).y * COTANGENT)


@pytest.mark.clause("TNT-1", "TNT-3", "TNT-4", "TNT-5", "TNT-6", "TNT-7", "TNT-10")
@pytest.mark.parametrize("each", [False, True], ids=["shared", "own inputs"])
@pytest.mark.parametrize(("rule", "n"), CASES)
def test_tnt_is_its_definition_in_loops(rule: str, n: int, each: bool) -> None:
    setting = setup(rule, n, each=each, seed=n)
    state, y = setting.run()
    want = loops.paper(setting.memories())
    assert_close("y", y, want.y, LOOPS)
    for i, place in enumerate(state.places):
        assert_close(f"M of memory {i}", place.memory.M, want.M[i], LOOPS)
        if MODULES[rule].RULE.has_momentum:
            assert_close(f"S of memory {i}", place.memory.S, want.S[i], LOOPS)


@pytest.mark.clause("TNT-14")
@pytest.mark.parametrize("each", [False, True], ids=["shared", "own inputs"])
@pytest.mark.parametrize(("rule", "n"), CASES)
def test_gradients_are_those_of_the_definition(rule: str, n: int, each: bool) -> None:
    setting = setup(rule, n, each=each, seed=n)
    check_directions(
        loss(lambda leaves: setting.run(leaves)[1]),
        setting.leaves,
        loops=of_loops(setting, loops.Reading()),
        tolerance=1e-12,
    )


@pytest.mark.clause("TNT-14")
@pytest.mark.parametrize("form", ["sequential", "chunkwise", "atlas_parallel"])
@pytest.mark.parametrize("rule", MODULES)
def test_tnt_is_the_sum_of_ordinary_runs(rule: str, form: str) -> None:
    setting = setup(rule, 3, seed=5)
    want = ordinary(setting, form=form)
    assert_close("y", setting.run()[1], want, LOOPS)
    ours, theirs = (
        flatten(tape.grad(loss(run))(setting.leaves), "gradient")
        for run in (
            lambda leaves: setting.run(leaves)[1],
            lambda leaves: ordinary(setting, leaves, form=form),
        )
    )
    for path, got, other in zip(ours[1], ours[0], theirs[0], strict=True):
        assert_close(path, got, other, reordered(T, amplification=4))


#: Each choice of the table in TNT-14, changed, and how far reads then are at the least.
TWINS: dict[str, tuple[dict[str, Any], float]] = {
    "global reads after": ({"of_global": {"read": "after"}}, 0.2),
    "global reads before": ({"of_global": {"read": "before"}}, 0.2),
    "global span is one longer": ({"longer_global": 1}, 0.1),
    "global reference runs": ({"of_global": {"reference": "running"}}, 0.02),
    "global spans at multiples": ({"of_global": {"span_origin": "multiple"}}, 0.1),
    "locals read before": ({"of_local": {"read": "before"}}, 0.2),
    "locals read the start of chunks": ({"of_local": {"read": "chunk_start"}}, 0.3),
    "local spans are one longer": ({"longer_local": 1}, 0.01),
    "local references run": ({"of_local": {"reference": "running"}}, 0.02),
    "local reference of the call": ({"of_local": {"reference": "call_start"}}, 0.05),
    "local spans at multiples": ({"of_local": {"span_origin": "multiple"}}, 0.01),
    "no reset": ({"resets": False}, 0.1),
    **{
        f"{name} for all": ({"of_global": axes, "of_local": axes}, least)
        for name, axes, least in (
            ("rate memory", {"rate": "memory"}, 0.1),
            ("decay before the error", {"decay": "before_error"}, 0.03),
            ("gate forget", {"gate": "forget"}, 0.2),
            ("twice the gradient", {"gradient_scale": 2.0}, 0.3),
        )
    },
}


@pytest.mark.clause("TNT-14")
@pytest.mark.parametrize("name", TWINS)
def test_every_choice_of_the_runs_matters(name: str) -> None:
    changed, least = TWINS[name]
    setting = setup("titans_lmm", 3, seed=5)
    y = setting.run()[1]
    assert_close("unchanged", ordinary(setting), y, LOOPS)
    assert_differs(name, ordinary(setting, **changed), y, least)


@pytest.mark.clause("TNT-14")
def test_the_sign_of_the_momentum_is_invisible() -> None:
    sign = {"momentum_sign": "minus"}
    setting = setup("titans_lmm", 3, seed=5)
    minus = ordinary(setting, of_global=sign, of_local=sign)
    assert_close("y", minus, setting.run()[1], LOOPS)
