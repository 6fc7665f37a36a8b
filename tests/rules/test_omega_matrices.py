"""Window gradients as matrices: OMEGA-29 and OMEGA-30."""

import numpy as np
import pytest

import tape
from atlas_ref import forms
from atlas_ref.rules import omega
from atlas_ref.rules.matrices import window_gradients, with_gradients
from atlas_ref.rules.sequence import Tokens
from atlas_ref.rules.sequence import run as run_rule
from tape import ops
from tests.support.close import ANALYTIC, assert_close, assert_differs, reordered
from tests.truth import matrix_loop

T, C, OUT, IN, SCALE = 7, 4, 3, 5, 1.7
AXES = {
    "gate": "retain",
    "rate": "memory",
    "read": "before",
    "reference": "call_start",
    "window_at_boundary": "carry",
    "window_edge": "truncate",
    "gradient_scale": SCALE,
    "newton_schulz": "none",
}
GATES = ("retain", "momentum", "step_size", "window_gate")


def config(**axes):
    return omega.Config(d_in=IN, d_out=OUT, window=C, convention=AXES | axes)


def inputs(seed=0, n=C - 1):
    draw = np.random.default_rng(seed)
    p = {name: draw.uniform(0.2, 0.9, T) for name in GATES}
    p |= {"k": draw.normal(size=(T, IN)), "v": draw.normal(size=(T, OUT))}
    p |= {"q": draw.normal(size=(T, IN)), "window_weights": draw.normal(size=(T, C))}
    p |= {"M": draw.normal(size=(OUT, IN)), "S": draw.normal(size=(OUT, IN))}
    p["active"] = np.array([True, True, False, True, True, True, True])
    return p, draw.normal(size=(n, OUT, IN))


def tokens(p, part=slice(None), **more):
    names = ("k", "v", "q", "window_weights", "active", *GATES)
    return Tokens(**{name: p[name][part] for name in names}, **more)


def begun(p, matrices):
    return with_gradients(config(), omega.start(config(), M=p["M"], S=p["S"]), matrices)


def called(p, state, part=slice(None), **more):
    return forms.run(omega.RULE, config(), tokens(p, part, **more), state)


@pytest.mark.clause("OMEGA-29")
@pytest.mark.parametrize("n", range(C))
def test_matrices_of_full_rank_give_the_numbers_of_the_literal_loop(n):
    p, matrices = inputs(n=n)
    assert all(np.linalg.matrix_rank(each) == OUT for each in matrices)
    M, y, S = matrix_loop.run(p, matrices, c=C, s=SCALE)
    state, read = called(p, begun(p, matrices))
    for name, found, expected in (("M", state.M, M), ("y", read, y), ("S", state.S, S)):
        assert_close(name, found, expected, reordered(T * C))
    if n:
        assert_differs("M", matrix_loop.run(p, 0 * matrices, c=C, s=SCALE)[0], M, 1e-3)


@pytest.mark.clause("OMEGA-29")
@pytest.mark.parametrize("cut", range(1, T))
def test_a_split_call_ends_in_the_state_of_one_call(cut):
    p, matrices = inputs(1)
    whole, y = called(p, begun(p, matrices))
    middle, first = called(p, begun(p, matrices), slice(cut))
    split, second = called(p, middle, slice(cut, None))
    assert np.array_equal(y, np.concatenate([first, second]))
    for name, value in whole.__dict__.items():
        assert np.array_equal(value, split.__dict__[name]), name


@pytest.mark.clause("OMEGA-29")
def test_a_reset_drops_matrices():
    p, matrices = inputs(2)
    reset = np.arange(T) == 0
    found, y = called(p, begun(p, matrices), reset=reset)
    other, z = called(p, begun(p, 2 * matrices), reset=reset)
    assert found.gradients is None
    assert np.array_equal(found.M, other.M)
    assert np.array_equal(y, z)


@pytest.mark.clause("OMEGA-30")
def test_pairs_written_as_matrices_continue_with_the_same_numbers():
    p, matrices = inputs(3)
    middle, _ = called(p, begun(p, matrices), slice(2))
    p2 = p | {"M": middle.M, "S": middle.S}
    exported = window_gradients(config(), middle)
    at_call = middle.replaced(reference=None, position=0)
    pairs, y = called(p, at_call, slice(2, None))
    again, z = called(p, begun(p2, exported), slice(2, None))
    assert_close("M", again.M, pairs.M, reordered(T * C))
    assert_close("y", z, y, reordered(T * C))
    twice = exported * np.array([1.0, *p["window_gate"][:2]])[:, None, None]
    assert_differs("M", called(p, begun(p2, twice), slice(2, None))[0].M, pairs.M, 1e-3)
    assert np.array_equal(window_gradients(config(), begun(p, matrices)), matrices)


@pytest.mark.clause("OMEGA-29")
@pytest.mark.parametrize("form", ["chunkwise", "atlas_parallel", "kernel"])
def test_other_forms_refuse_matrices_in_one_line(form):
    p, matrices = inputs()
    with pytest.raises(ValueError, match=f"form {form}: the window holds gradient matrices"):
        forms.run(omega.RULE, config(), tokens(p), begun(p, matrices), form=form)


@pytest.mark.clause("OMEGA-29")
@pytest.mark.parametrize("axes", [{"window_at_boundary": "cut"}, {"reference": "running"}])
def test_other_conventions_refuse_matrices(axes):
    p, matrices = inputs()
    other = config(**axes)
    with pytest.raises(ValueError, match="need window_at_boundary carry"):
        with_gradients(other, omega.start(other), matrices)
    state = omega.start(other).replaced(gradients=begun(p, matrices).gradients)
    with pytest.raises(ValueError, match=r"state\.gradients: stored"):
        run_rule(omega.RULE, other, tokens(p), state)


@pytest.mark.clause("OMEGA-29")
@pytest.mark.parametrize("shape", [(C, OUT, IN), (1, IN, OUT), (OUT, IN), (2, 1, OUT, IN)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match="gradients: shape"):
        with_gradients(config(), omega.start(config()), np.zeros(shape))


@pytest.mark.clause("OMEGA-29")
@pytest.mark.parametrize("name", ["matrices", "M", "S", "k", "v", "q", "window_weights", *GATES])
def test_the_gradient_of_every_input_is_that_of_a_complex_step(name):
    p, matrices = inputs(4)
    p |= {"matrices": matrices}
    draw = np.random.default_rng(5)
    G, H = draw.normal(size=(OUT, IN)), draw.normal(size=(T, OUT))

    def loss(value):
        all_of = p | {name: value}
        state, y = called(all_of, begun(all_of, all_of["matrices"]))
        return ops.sum(G * state.M) + ops.sum(H * y)

    expected = np.zeros(p[name].shape)
    for place in np.ndindex(p[name].shape):
        moved = p | {name: p[name].astype(complex)}
        moved[name][place] += 1e-30j
        M, y, _ = matrix_loop.run(moved, moved["matrices"], c=C, s=SCALE)
        expected[place] = (np.sum(G * M) + np.sum(H * y)).imag / 1e-30
    assert np.any(expected)
    assert_close(name, tape.grad(loss)(p[name]), expected, ANALYTIC)
