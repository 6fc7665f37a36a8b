"""The rule dplr against recordings of public code and literal loops: values, states, gradients."""

import numpy as np
import pytest

import tape
from tape import ops
from tests.support.close import ANALYTIC, Tolerance, assert_close
from tests.support.linear_family import EVERY, FILES, MEMBERS, computed, drawn, recorded
from tests.truth import family_loops, family_states

#: What recordings of autograd in another order of sums are held to.
RECORDING = Tolerance("RECORDING", 1e-12)
CLAUSES = (
    "DPLR-1",
    "DPLR-2",
    "DPLR-3",
    "DPLR-4",
    "DPLR-5",
    "DPLR-6",
    "DPLR-8",
    "DPLR-18",
    "DPLR-19",
    "DPLR-20",
)


def test_every_member_but_none_else_is_recorded():
    assert {recorded(file)[0] for file in FILES} == set(MEMBERS)
    loops = family_loops.MEMBERS.keys() | family_states.MEMBERS.keys()
    assert loops == {*MEMBERS, "momentum_delta"}
    assert (len(FILES), len(EVERY)) == (33, 40)


@pytest.mark.clause(*CLAUSES)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_results_and_every_gradient_of_a_recording_are_those_of_the_rule(file):
    member, x, bars, want, gradients = recorded(file)

    def loss(inputs):
        got = computed(member, inputs)
        return sum(ops.sum(bars[name] * got[name]) for name in bars)

    got = computed(member, x)
    for name, value in want.items():
        assert_close(name, got[name], value, RECORDING)
    own = tape.grad(loss)(x)
    assert own.keys() == gradients.keys()
    for name, value in gradients.items():
        assert_close(f"grad/{name}", own[name], value, RECORDING)


@pytest.mark.clause(*CLAUSES)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_literal_loops_are_those_of_the_recordings_too(file):
    member, x, _, want, _ = recorded(file)
    got = family_loops.run(member, x)
    for name, value in want.items():
        assert_close(name, got[name], value, RECORDING)


@pytest.mark.clause(*CLAUSES)
@pytest.mark.parametrize("member", MEMBERS)
def test_each_member_is_its_literal_loop_on_other_inputs(member):
    x = drawn(member, seed=5)
    got, want = computed(member, x), family_loops.run(member, x)
    for name, value in want.items():
        assert_close(name, got[name], value, ANALYTIC)


@pytest.mark.clause("DPLR-10", *CLAUSES)
@pytest.mark.parametrize("member", MEMBERS)
def test_gradients_are_those_of_the_literal_loop_by_complex_step(member):
    """Along one random direction of each input, by the loops, which share nothing with the tape."""
    x, draw = drawn(member, seed=7), np.random.default_rng(3)
    bars = {name: draw.standard_normal(value.shape) for name, value in computed(member, x).items()}

    def loss(inputs, run):
        got = run(member, inputs)
        return sum(ops.sum(bars[name] * got[name]) for name in bars)

    own = tape.grad(lambda inputs: loss(inputs, computed))(x)
    for name, value in x.items():
        along = draw.standard_normal(value.shape)
        moved = {**x, name: value + 1e-30j * along}
        want = loss(moved, family_loops.run).imag / 1e-30
        assert_close(name, np.sum(own[name] * along), want, ANALYTIC)
