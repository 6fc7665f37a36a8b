"""Blocks of tokens with Newton-Schulz: in place as in tape ops, and alike for every share of memories."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from close import ANALYTIC, EXACT, assert_close, reordered
from sequences import Arrays

import tape
from atlas_ref.parallel import chunkwise_newton_schulz, newton_schulz_forward, run
from atlas_ref.parallel.recomputed import recomputed
from atlas_ref.rules import delta, omega
from atlas_ref.rules.run import Tokens
from atlas_ref.threads import processors, slices
from tape import ops, transforms

T = 11


def drawn(heads: int = 4, *, d_in: int = 3, d_out: int = 5, window: int = 3, rows: bool = False, dtype: Any = np.float64) -> Arrays:
    random = np.random.default_rng(3)
    gate = (heads, T, d_out) if rows else (heads, T)
    made = {"k": random.standard_normal((heads, T, d_in)), "v": random.standard_normal((heads, T, d_out))}
    made |= {"q": random.standard_normal((heads, T, d_in)), "window_weights": random.standard_normal((heads, T, window))}
    made |= {name: random.uniform(0.1, 0.9, gate) for name in ("retain", "momentum", "step_size")}
    return {name: value.astype(dtype) for name, value in made.items()}


def results(tensors: Arrays, chunk: int | None = 4, **convention: Any) -> tuple[Any, Any, Any]:
    """y, M and S of a call from a state that is not zero, as two calls make it."""
    window, d_in, d_out = tensors["window_weights"].shape[-1], tensors["k"].shape[-1], tensors["v"].shape[-1]
    settings = {"reference": "chunk_start", **convention}
    config = omega.Config(d_in=d_in, d_out=d_out, window=window, span=6, convention=settings)
    state = omega.start(config, tensors["k"].shape[:1], M=ops.zeros_like(tensors["k"], shape=(len(tensors["k"]), d_out, d_in)))
    tokens = Tokens(**tensors)
    state, _ = run.run(omega.RULE, config, tokens, state, form="chunkwise", chunk=chunk)
    state, y = run.run(omega.RULE, config, tokens, state, form="chunkwise", chunk=chunk)
    return y, state.M, state.S


def in_tape_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunkwise_newton_schulz, "_value", lambda config, sequence, read, plain: plain)


@pytest.mark.clause("CHUNK-18")
@pytest.mark.parametrize("read", ["after", "before", "chunk_start", "call_end"])
@pytest.mark.parametrize("reference", ["chunk_start", "call_start", "zero"])
@pytest.mark.parametrize(
    "sizes", [{}, {"d_in": 5, "d_out": 3}, {"window": 1}, {"window": 9}, {"heads": 1}, {"rows": True}, {"dtype": np.float32}], ids=str
)
def test_a_block_in_place_is_the_block_in_tape_ops(
    sizes: dict[str, Any], reference: str, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memories and momenta bit by bit; the product of a read adds up in an order that depends on where it finds the memory."""
    tensors = drawn(**sizes)
    got = results(tensors, reference=reference, read=read)
    in_tape_ops(monkeypatch)
    want = results(tensors, reference=reference, read=read)
    assert {each.dtype for each in (*got, *want)} == {tensors["k"].dtype}
    assert_close("y", got[0], want[0], reordered(5, dtype=tensors["k"].dtype))
    for name, value, true in zip(("M", "S"), got[1:], want[1:], strict=True):
        assert_close(name, value, true, EXACT)


@pytest.mark.clause("CHUNK-18")
@pytest.mark.parametrize(
    "settings", [{"guard": "return", "eps": 1.0}, {"scale": "norm"}, {"scale": "sqrt"}, {"transpose": "never"}], ids=str
)
@pytest.mark.parametrize("sizes", [{}, {"d_in": 5, "d_out": 3}], ids=str)
def test_whatever_newton_schulz_gives_is_not_what_it_was_given(
    settings: dict[str, Any], sizes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Updates become memories where they are, and momenta are still needed then."""
    tensors = drawn(**sizes)
    got = results(tensors, newton_schulz={"steps": 3, **settings})
    in_tape_ops(monkeypatch)
    for name, value, want in zip(("y", "M", "S"), got, results(tensors, newton_schulz={"steps": 3, **settings}), strict=True):
        assert_close(name, value, want, reordered(5))


@pytest.mark.host("arrays of a device take the tape ops")
@pytest.mark.clause("CHUNK-18")
@pytest.mark.parametrize(
    "settings", [{"decay": "before_error"}, {"window_at_boundary": "carry"}, {"order": "momentum_then_window"}], ids=str
)
def test_what_is_not_in_place_takes_the_tape_ops(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("in place")

    monkeypatch.setattr(newton_schulz_forward, "reads", refused)
    results(drawn(), **settings)
    with pytest.raises(AssertionError, match="in place"):
        results(drawn())


@pytest.mark.clause("CHUNK-18")
def test_overflow_stays_with_its_token_and_those_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = drawn(dtype=np.float32)
    tensors["v"][1, 8], tensors["window_weights"][1, 8:] = 3e38, 100.0
    with np.errstate(all="ignore"):
        got = results(tensors, chunk=None, reference="call_start")
        in_tape_ops(monkeypatch)
        want = results(tensors, chunk=None, reference="call_start")
    assert np.isfinite(got[0][0]).all()
    assert not np.isfinite(got[0][1]).any()  # from the second call, which starts from what the first one left
    for value, true in zip(got, want, strict=True):
        assert (np.isfinite(value) == np.isfinite(true)).all()
        assert_close("as in tape ops", value[np.isfinite(value)], true[np.isfinite(true)], reordered(5, dtype=np.float32))


@pytest.mark.clause("CHUNK-15", "CHUNK-18")
@pytest.mark.parametrize("parts", [2, 3, 4])
def test_shares_of_memories_have_the_bits_of_all_together(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = drawn()
    y_bar = np.random.default_rng(5).standard_normal((4, T, 5))

    def found() -> tuple[Any, Any]:
        y, pullback = tape.vjp(lambda moved: results(moved)[0], tensors)
        return (*results(tensors), y), pullback(y_bar)[0]

    want, want_gradients = found()
    monkeypatch.setattr(chunkwise_newton_schulz, "_shares", lambda M, tokens: slices(len(M), parts))
    got, gradients = found()
    for name, value, true in zip(("y", "M", "S", "y of the derivative"), got, want, strict=True):
        assert_close(name, value, true, EXACT)
    for name, true in want_gradients.items():
        assert_close(name, gradients[name], true, EXACT)


@pytest.mark.clause("CHUNK-15")
def test_an_array_that_belongs_to_all_shares_gets_the_sum_of_their_cotangents() -> None:
    def plain(x: Any, shared: Any, absent: Any) -> tuple[Any, ...]:
        assert absent is None
        return (x * shared, ops.sum(x, axis=1, keepdims=True) + shared[:, :1])

    random = np.random.default_rng(6)
    x, shared = random.standard_normal((5, 3)), random.standard_normal((1, 3))
    bars = (random.standard_normal((5, 3)), random.standard_normal((5, 1)))
    want, pullback = tape.vjp(lambda x, shared: plain(x, shared, None), x, shared)
    value, pulled = tape.vjp(lambda x, shared: recomputed(plain, slices(5, 3))(x, shared, None), x, shared)
    for got, true in zip((*value, *pulled(bars)), (*want, *pullback(bars)), strict=True):
        assert_close("of all shares", got, true, ANALYTIC)


@pytest.mark.host("threads share memories out on the host alone")
@pytest.mark.parametrize(("heads", "tokens", "shared"), [(4, 1, False), (4, 2**10, True), (5, 2**10, False), (0, 2**10, False)])
def test_memories_are_shared_out_where_there_is_enough_to_do_and_as_much_for_each(
    heads: int, tokens: int, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunkwise_newton_schulz, "processors", lambda: 2)
    found = chunkwise_newton_schulz._shares(np.zeros((heads, 32, 32)), tokens)
    assert found == (slices(heads, 2) if shared else (slice(None),))


@pytest.mark.host("threads share memories out on the host alone")
def test_one_share_leaves_all_threads_to_newton_schulz() -> None:
    """A part of several would count as a thread among others, and Newton-Schulz inside of it would take no more."""
    seen: list[int] = []
    recomputed(lambda x: (seen.append(processors()) or x,))(np.zeros((2, 1)))
    assert seen == [processors()]


def test_an_error_of_one_share_is_raised_as_it_is() -> None:
    def plain(x: Any) -> tuple[Any, ...]:
        if float(x[0, 0]) == 2.0:
            raise ValueError("the third memory")
        return (x * 1.0,)

    block, x = recomputed(plain, slices(4, 4)), np.arange(4.0)[:, None]
    with pytest.raises(ValueError, match="the third memory"):
        block(x)
    with pytest.raises(ValueError, match="the third memory"):
        tape.vjp(lambda x: block(x)[0], x)


def test_second_derivatives_go_through_shares() -> None:
    random = np.random.default_rng(7)
    x, v = random.standard_normal((4, 3)), random.standard_normal((4, 3))

    def plain(x: Any) -> tuple[Any, ...]:
        return (ops.tanh(x) * x, ops.sum(x * x, axis=1, keepdims=True))

    def number(block: Any) -> Any:
        return lambda x: ops.sum(block(x)[0] * ops.tanh(block(x)[1]))

    got, want = (tape.hvp(number(block))(x, v) for block in (recomputed(plain, slices(4, 2)), plain))
    assert_close("second derivative", got, want, ANALYTIC)


@pytest.mark.clause("CHUNK-18")
def test_a_state_shares_nothing_with_the_one_that_a_call_began_with() -> None:
    """Its reference is the memory that it began with: the span goes on."""
    tensors = drawn()
    config = omega.Config(d_in=3, d_out=5, window=3, span=2 * T, convention={"reference": "chunk_start"})
    M = np.zeros((4, 5, 3))
    state = omega.start(config, (4,)).replaced(M=M)
    found, _ = run.run(omega.RULE, config, Tokens(**tensors), state, form="chunkwise")
    assert M.flags.writeable
    assert not any(np.may_share_memory(M, each) for each in (found.M, found.S, found.reference))


@pytest.mark.host("moves are entries of the tape too")
@pytest.mark.parametrize("lead", [(), (4,), (2, 2)])
def test_gradients_of_tokens_are_those_of_the_block_where_there_is_one_leading_axis(
    lead: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[tuple[int, ...], bool]] = []
    like = transforms._like

    def noted(leaf: Any, g: Any, fresh: bool) -> Any:
        given.append((np.shape(leaf), fresh))
        return like(leaf, g, fresh)

    monkeypatch.setattr(transforms, "_like", noted)
    tensors = {name: np.ones((*lead, 6, 3)) for name in "kvq"}
    config = delta.Config(d_in=3, d_out=3, convention={"gate": "none"})
    rest = {"step_size": np.full((*lead, 6), 0.1)}
    state = delta.start(config, lead)
    y, pullback = tape.vjp(lambda moved: run.run(delta.RULE, config, Tokens(**moved, **rest), state, form="exact")[1], tensors)
    pullback(np.ones_like(y))
    assert [fresh for _, fresh in given] == [len(lead) == 1] * 3
