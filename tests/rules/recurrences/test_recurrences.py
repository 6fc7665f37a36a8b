"""Recurrences beside rule dplr: literal loops, the complex step, cuts, gates of 0, refusals."""

from __future__ import annotations

import numpy as np
import pytest

import tape
from atlas_ref.rules.recurrences import gsa, hgrn
from tape import ops
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs
from tests.support.recurrences import (
    GATED,
    MODULES,
    SETTINGS,
    STATES,
    T,
    computed,
    drawn,
    driven,
    part,
    results,
    started,
)
from tests.truth import recurrence_loops

CLAUSES = ("RECUR-1", "RECUR-2", "RECUR-3", "RECUR-10", "RECUR-11", "RECUR-12")
MASKS = {
    "active": np.array([True, False, True, True, False]),
    "reset": np.array([False, False, True, False, False]),
}
EVERY = pytest.mark.parametrize("member", MODULES)


@pytest.mark.clause(*CLAUSES)
@pytest.mark.parametrize("masks", [{}, MASKS], ids=["all", "masks"])
@EVERY
def test_each_is_its_literal_loop(member, masks):
    x = drawn(member, seed=1, **masks)
    got = computed(member, x)
    for name, value in recurrence_loops.run(member, x, **SETTINGS[member]).items():
        assert_close(name, got[name], value, ANALYTIC)


@pytest.mark.clause("RECUR-2")
def test_a_query_scale_of_one_is_the_loop_without_it():
    x = drawn("gsa", seed=2)
    got, want = computed("gsa", x, query_scale=1), recurrence_loops.run("gsa", x)
    for name, value in want.items():
        assert_close(name, got[name], value, ANALYTIC)
    assert_differs("y", computed("gsa", x)["y"], want["y"], 1e-3)


@pytest.mark.clause("RECUR-4", *CLAUSES)
@pytest.mark.parametrize("masks", [{}, MASKS], ids=["all", "masks"])
@EVERY
def test_gradients_are_those_of_the_literal_loop_by_complex_step(member, masks):
    """Along one random direction of each input, of reads and of the last state together."""
    x, draw = drawn(member, seed=3), np.random.default_rng(4)
    bars = {name: draw.standard_normal(z.shape) for name, z in computed(member, x).items()}

    def loss(results):
        return sum(ops.sum(bars[name] * results[name]) for name in bars)

    own = tape.grad(lambda inputs: loss(computed(member, {**inputs, **masks})))(x)
    for name, value in x.items():
        along = draw.standard_normal(value.shape)
        moved = {**x, name: value + 1e-30j * along, **masks}
        want = loss(recurrence_loops.run(member, moved, **SETTINGS[member])).imag / 1e-30
        assert_close(name, np.sum(own[name] * along), want, ANALYTIC)


@pytest.mark.clause("RECUR-1")
@pytest.mark.parametrize("cut", range(1, T))
@EVERY
def test_a_call_that_is_cut_is_the_whole_one(member, cut):
    x = drawn(member, seed=5, active=MASKS["active"])
    whole = computed(member, x)
    between, first = driven(member, *started(member, part(member, x, slice(0, cut))))
    rest, _ = started(member, part(member, x, slice(cut, T)))
    after, second = driven(member, rest, between)
    y = np.concatenate([first, second], axis=1)
    for name, value in results(member, after, y).items():
        assert_close(name, value, whole[name], EXACT)


@pytest.mark.clause("RECUR-1")
@EVERY
def test_a_sequence_without_leading_axes_is_one_of_a_batch(member):
    x = drawn(member, seed=8)
    whole = computed(member, x)
    for name, value in computed(member, {name: value[1] for name, value in x.items()}).items():
        assert_close(name, value, whole[name][1], ANALYTIC)


@pytest.mark.clause("RECUR-1", "RECUR-4")
@pytest.mark.parametrize("member", GATED)
def test_a_gate_of_zero_forgets_and_has_a_gradient_of_zero(member):
    x = drawn(member, seed=6)
    x["log_retain"][:, 2] = -np.inf
    got = computed(member, x)
    later = part(member, x, slice(2, T)) | {name: np.zeros_like(x[name]) for name in STATES[member]}
    for name, value in computed(member, later, position=5).items():
        assert_close(name, got[name][:, 2:] if name == "y" else got[name], value, ANALYTIC)
    own = tape.grad(lambda inputs: ops.sum(computed(member, inputs)["y"][:, 2:]))(x)
    assert not own["log_retain"][:, :3].any()
    assert own["log_retain"][:, 3].any()


@pytest.mark.clause("RECUR-2", "RECUR-3")
def test_one_slot_is_hgrn_of_its_values_and_two_equal_slots_share_its_weight():
    """One slot has the weight 1, and two equal ones a half each, so a read is the memory of values."""
    x = drawn("gsa", seed=7)
    one = {n: x[n][..., :1] for n in ("s", "log_retain", "M")} | {"K": x["K"][:, :1]}
    single = x | one
    got = computed("gsa", single)
    want = recurrence_loops.run(
        "hgrn",
        {
            "x": single["s"] * single["v"],
            "log_retain": single["log_retain"] + 0 * single["v"],
            "h": single["M"][..., 0],
        },
    )
    assert_close("y", got["y"], want["y"], ANALYTIC)
    twice = {n: np.concatenate([z, z], axis=1 if n == "K" else -1) for n, z in one.items()}
    assert_close("y", computed("gsa", x | twice)["y"], got["y"], ANALYTIC)


@pytest.mark.clause("RECUR-1")
@pytest.mark.parametrize(
    ("member", "changes", "words"),
    [
        ("gsa", {"log_retain": -np.ones((2, 5, 2))}, r"log_retain: shape \(2, 5, 2\), expected"),
        ("gsa", {"k": np.full((2, 5, 4), np.nan)}, "k: every entry must be finite"),
        ("gsa", {"log_retain": np.ones((2, 5, 6))}, "log_retain: entries must be at most 0"),
        ("gsa", {"q": np.ones((2, 5, 4), np.float32)}, "q: float32, but k is float64"),
        ("gsa", {"K": np.ones((2, 6, 5))}, r"K: shape \(2, 6, 5\), expected \(2, 6, 4\)"),
        ("hgrn", {"log_retain": -np.ones((2, 5, 3), np.float32)}, "log_retain: float32, but x is"),
        ("hgrn", {"active": np.ones(5)}, r"active: float64, expected bool \(T,\)"),
        ("hgrn", {"reset": np.ones(4, bool)}, r"reset: shape \(4,\), expected \(5,\)"),
        ("hgrn", {"h": np.ones((2, 4))}, r"h: shape \(2, 4\), expected \(2, 3\)"),
    ],
)
def test_what_contradicts_is_refused_by_name(member, changes, words):
    with pytest.raises(ValueError, match=words):
        computed(member, drawn(member) | changes)


@pytest.mark.clause("RECUR-1")
def test_a_state_of_other_sequences_is_refused_by_name():
    x = drawn("hgrn")
    tokens = hgrn.Tokens(x=x["x"], log_retain=x["log_retain"])
    with pytest.raises(ValueError, match=r"state.h: shape \(3,\), expected \(2, 3\)"):
        hgrn.run(tokens, hgrn.State(h=np.zeros(3)))
    y = drawn("gsa")
    one = gsa.State(K=y["K"][0], M=y["M"][0])
    fields = {name: z for name, z in y.items() if name not in ("K", "M")}
    with pytest.raises(ValueError, match=r"state.K: shape \(6, 4\), expected \(2, 6, 4\)"):
        gsa.run(gsa.Tokens(**fields), one)
