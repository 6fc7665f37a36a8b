"""Blocks of tokens with Newton-Schulz: alike for every partition of memories, in memory of their
own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tape
from atlas_ref import forms as run
from atlas_ref.backend.threads import slices
from atlas_ref.forms import newton_schulz_blocks
from atlas_ref.rules import delta, omega
from atlas_ref.rules.sequence import Tokens
from tape import ops, transforms
from tests.support.close import EXACT, assert_close
from tests.support.sequences import Arrays

T = 11


def drawn(
    heads: int = 4,
    *,
    d_in: int = 3,
    d_out: int = 5,
    window: int = 3,
    rows: bool = False,
    dtype: Any = np.float64,
) -> Arrays:
    random = np.random.default_rng(3)
    gate = (heads, T, d_out) if rows else (heads, T)
    tensors = {
        "k": random.standard_normal((heads, T, d_in)),
        "v": random.standard_normal((heads, T, d_out)),
    }
    tensors |= {
        "q": random.standard_normal((heads, T, d_in)),
        "window_weights": random.standard_normal((heads, T, window)),
    }
    tensors |= {
        name: random.uniform(0.1, 0.9, gate) for name in ("retain", "momentum", "step_size")
    }
    return {name: value.astype(dtype) for name, value in tensors.items()}


def results(tensors: Arrays, chunk: int | None = 4, **convention: Any) -> tuple[Any, Any, Any]:
    """y, M and S of two calls from a state that is not zero."""
    window, d_in, d_out = (
        tensors["window_weights"].shape[-1],
        tensors["k"].shape[-1],
        tensors["v"].shape[-1],
    )
    settings = {"reference": "chunk_start", **convention}
    config = omega.Config(d_in=d_in, d_out=d_out, window=window, span=6, convention=settings)
    state = omega.start(
        config,
        tensors["k"].shape[:1],
        M=ops.zeros_like(tensors["k"], shape=(len(tensors["k"]), d_out, d_in)),
    )
    tokens = Tokens(**tensors)
    state, _ = run.run(omega.RULE, config, tokens, state, form="chunkwise", chunk=chunk)
    state, y = run.run(omega.RULE, config, tokens, state, form="chunkwise", chunk=chunk)
    return y, state.M, state.S


@pytest.mark.clause("CHUNK-18")
def test_overflow_stays_with_its_memory_and_those_tokens_after_it() -> None:
    tensors = drawn(dtype=np.float32)
    finite = results(tensors, chunk=None, reference="call_start")
    tensors["v"][1, 8], tensors["window_weights"][1, 8:] = 3e38, 100.0
    with np.errstate(all="ignore"):
        got = results(tensors, chunk=None, reference="call_start")
    assert not np.isfinite(
        got[0][1]
    ).any()  # from the second call, which starts from what the first one left
    for value, true in zip(got, finite, strict=True):
        others = np.arange(len(value)) != 1
        assert np.isfinite(value[others]).all()
        assert_close("other memories", value[others], true[others], EXACT)


@pytest.mark.clause("CHUNK-15", "CHUNK-18")
@pytest.mark.parametrize("parts", [2, 3, 4])
def test_parts_of_memories_have_the_bits_of_all_together(
    parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = drawn()
    y_bar = np.random.default_rng(5).standard_normal((4, T, 5))

    def found() -> tuple[Any, Any]:
        y, pullback = tape.vjp(lambda moved: results(moved)[0], tensors)
        return (*results(tensors), y), pullback(y_bar)[0]

    want, want_gradients = found()
    monkeypatch.setattr(newton_schulz_blocks, "_partition", lambda M, tokens: slices(len(M), parts))
    got, gradients = found()
    for name, value, true in zip(("y", "M", "S", "y of the derivative"), got, want, strict=True):
        assert_close(name, value, true, EXACT)
    for name, true in want_gradients.items():
        assert_close(name, gradients[name], true, EXACT)


@pytest.mark.host("threads share memories out on the host alone")
@pytest.mark.parametrize(
    ("heads", "tokens", "shared"),
    [(4, 1, False), (4, 2**10, True), (5, 2**10, False), (0, 2**10, False)],
)
def test_memories_are_shared_out_where_there_is_enough_to_do_and_as_much_for_each(
    heads: int, tokens: int, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newton_schulz_blocks, "processors", lambda: 2)
    parts = newton_schulz_blocks._partition(np.zeros((heads, 32, 32)), tokens)
    assert parts == (slices(heads, 2) if shared else (slice(None),))


@pytest.mark.clause("CHUNK-18")
def test_a_state_shares_nothing_with_the_one_that_a_call_began_with() -> None:
    """A state whose reference is the memory at the start of the call, since the span goes on."""
    tensors = drawn()
    config = omega.Config(
        d_in=3, d_out=5, window=3, span=2 * T, convention={"reference": "chunk_start"}
    )
    M = np.zeros((4, 5, 3))
    state = omega.start(config, (4,)).replaced(M=M)
    end, _ = run.run(omega.RULE, config, Tokens(**tensors), state, form="chunkwise")
    assert M.flags.writeable
    assert not any(np.may_share_memory(M, each) for each in (end.M, end.S, end.reference))


@pytest.mark.host("moves are entries of the tape too")
@pytest.mark.parametrize("lead", [(), (4,), (2, 2)])
def test_gradients_of_tokens_are_those_of_the_block_where_there_is_one_leading_axis(
    lead: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[tuple[int, ...], bool]] = []
    like = transforms._like

    def noted(leaf: Any, g: Any, fresh: bool) -> Any:
        calls.append((np.shape(leaf), fresh))
        return like(leaf, g, fresh)

    monkeypatch.setattr(transforms, "_like", noted)
    tensors = {name: np.ones((*lead, 6, 3)) for name in "kvq"}
    config = delta.Config(d_in=3, d_out=3, convention={"gate": "none"})
    rest = {"step_size": np.full((*lead, 6), 0.1)}
    state = delta.start(config, lead)
    y, pullback = tape.vjp(
        lambda moved: run.run(delta.RULE, config, Tokens(**moved, **rest), state, form="exact")[1],
        tensors,
    )
    pullback(np.ones_like(y))
    assert [fresh for _, fresh in calls] == [len(lead) == 1] * 3
