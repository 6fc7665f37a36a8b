"""Log-linear attention: which level holds which token, groups of heads, and capacity."""

from __future__ import annotations

import numpy as np
import pytest

import tape
from atlas_ref.rules import dplr
from atlas_ref.rules.recurrences import log_linear
from tape import ops
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs
from tests.support.recurrences import computed, drawn

BARE = ("k", "v", "q", "log_retain", "level_scales")


def bare(seed, **changes):
    """Inputs without a first memory."""
    x = {name: value for name, value in drawn("log_linear", seed).items() if name in BARE}
    return x | changes


def run(x, **settings):
    tokens = log_linear.Tokens(**x)
    return log_linear.run(tokens, log_linear.start(tokens), **settings)


@pytest.mark.clause("RECUR-12")
@pytest.mark.parametrize("position", range(34))
def test_levels_that_hold_tokens_are_those_of_their_bits(position):
    last = position - 1
    levels = {(last ^ s).bit_length() for s in range(position)}
    assert log_linear.holding(position) == tuple(sorted(levels))


@pytest.mark.clause("RECUR-12")
def test_factors_of_one_are_linear_attention_with_a_gate_and_others_are_not():
    x = bare(1)
    config = dplr.Config(d_in=4, d_out=3, query_scale="1/sqrt(d_in)")
    tokens = dplr.Tokens(**{name: x[name] for name in ("k", "v", "q", "log_retain")})
    after, want = dplr.run(config, tokens, dplr.start(config, (2,)))
    ones = np.ones_like(x["level_scales"])
    state, y = run(x | {"level_scales": ones})
    assert_close("y", y, want, ANALYTIC)
    assert_close("M", state.M.sum(axis=1), after.M, ANALYTIC)
    assert_differs("factors", run(x)[1], want, 1e-3)


@pytest.mark.clause("RECUR-12")
def test_a_level_holds_the_tokens_of_its_block_and_no_other():
    """After 11 tokens level 0 holds token 10, level 2 tokens 8 and 9, level 4 the first eight."""
    draw, T = np.random.default_rng(2), 11
    x = {name: draw.standard_normal((1, T, 2)) for name in ("k", "v", "q")}
    x |= {"log_retain": np.zeros((1, T)), "level_scales": np.ones((1, T, 5))}
    state, _ = run(x)
    blocks = {0: [10], 1: [], 2: [8, 9], 3: [], 4: list(range(8))}
    for level, block in blocks.items():
        want = sum((np.outer(x["v"][0, s], x["k"][0, s]) for s in block), np.zeros((2, 2)))
        assert_close(f"level {level}", state.M[0, level], want, ANALYTIC)


@pytest.mark.clause("RECUR-4", "RECUR-12")
def test_groups_of_value_heads_share_a_key_and_a_query_and_sum_their_gradients():
    x, draw = bare(3), np.random.default_rng(4)
    narrow = x | {name: x[name][:1] for name in ("k", "q")}
    wide = x | {name: np.repeat(narrow[name], 2, axis=0) for name in ("k", "q")}
    weights = draw.standard_normal((2, 5, 3))
    assert_close("y", run(narrow, groups=2)[1], run(wide)[1], EXACT)
    own = tape.grad(lambda z: ops.sum(weights * run(z, groups=2)[1]))(narrow)
    each = tape.grad(lambda z: ops.sum(weights * run(z)[1]))(wide)
    for name, value in each.items():
        want = value.sum(axis=0, keepdims=True) if name in ("k", "q") else value
        assert_close(name, own[name], want, ANALYTIC)


@pytest.mark.clause("RECUR-4", "RECUR-12")
def test_a_level_that_holds_no_token_has_a_gradient_of_zero():
    x = drawn("log_linear", seed=5)
    own = tape.grad(lambda z: ops.sum(computed("log_linear", z)["y"]))(x)["M"]
    assert not own[:, [1, 3]].any()
    assert own[:, [0, 2]].any(axis=(0, 2, 3)).all()


@pytest.mark.clause("RECUR-12")
def test_a_query_before_any_token_reads_zero():
    x = bare(6, active=np.array([False, False, True, True, True]))
    _, y = run(x)
    assert not y[:, :2].any()
    assert y[:, 2].any()


@pytest.mark.clause("RECUR-1", "RECUR-12")
def test_more_tokens_than_the_levels_hold_are_refused_and_a_reset_frees_them():
    x = bare(7)
    three = x | {"level_scales": x["level_scales"][..., :3]}
    with pytest.raises(ValueError, match="level_scales: 3 levels, which hold 4 tokens, found 5"):
        run(three)
    run(three | {"reset": np.array([False, False, True, False, False])})
    with pytest.raises(ValueError, match="level_scales: 0 levels, which hold 0 tokens, found 5"):
        run(x | {"level_scales": x["level_scales"][..., :0]})


@pytest.mark.clause("RECUR-1", "RECUR-12")
def test_what_contradicts_is_refused_by_name():
    x = drawn("log_linear")
    with pytest.raises(ValueError, match="M: level 1 must be 0, which holds no token at position"):
        computed("log_linear", x | {"M": np.ones_like(x["M"])})
    with pytest.raises(ValueError, match=r"v: leading axes \(2,\), expected value heads in whole"):
        run(bare(0), groups=3)
    with pytest.raises(ValueError, match=r"k: shape \(2, 5, 4\), expected \(1, 5, 4\)"):
        run(bare(0), groups=2)
    with pytest.raises(ValueError, match="log_retain: entries must be at most 0, found"):
        run(bare(0, log_retain=np.ones((2, 5))))
    with pytest.raises(ValueError, match=r"M: shape \(2, 3, 4\), expected \(2, 4, 3, 4\)"):
        computed("log_linear", x | {"M": np.ones((2, 3, 4))})
