"""What a deep memory promises of time, calls, rows and documents."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from atlas_ref.rules import deep_memory, sequence
from atlas_ref.rules.sequence import Tokens
from tests.support import deep_memories as deep
from tests.support.close import EXACT, assert_close, assert_differs, reordered

T = 13
CLOSE = reordered(64, amplification=100.0)


def choice_of(memory: str, **more: Any) -> dict[str, Any]:
    plain = {"phase": "both", "calls": False, "documents": False, "unfinished": "wait"}
    plain |= {"memory_reset": "sequence", "momentum_reset": "sequence", "coupling": "per_sample"}
    return deep.drawn(
        2, memory=memory, **(plain | {"read": "after", "chunk": 3, "window": 5} | more)
    )


def tokens_of(given: deep.Inputs, of: Any = slice(None)) -> Tokens:
    return Tokens(
        k=given.k[:, of],
        v=given.v[:, of],
        q=given.q[:, of],
        **{name: x[:, of] for name, x in given.gates.items()},
        reset=None if given.reset is None else given.reset[of],
    )


@pytest.mark.clause("DEEP-15", "DEEP-23")
@pytest.mark.parametrize("read", ["after", "before", "chunk_start"])
@pytest.mark.parametrize("memory", ["linear", "mlp_residual", "geglu"])
def test_no_token_changes_an_earlier_read(memory: str, read: str) -> None:
    choice = choice_of(memory, read=read, span="twice")
    given, settings = deep.inputs(choice), deep.config(choice)
    _, want = deep.run(settings, given)
    for t in range(T):
        moved = given._replace(k=given.k.copy(), v=given.v.copy())
        moved.k[:, t] += 1.0
        moved.v[:, t] -= 1.0
        _, y = deep.run(settings, moved)
        assert_close(f"before {t}", y[:, :t], want[:, :t], EXACT)


@pytest.mark.clause("DEEP-15")
def test_the_read_at_the_calls_end_is_not_causal() -> None:
    choice = choice_of("mlp", read="call_end")
    given, settings = deep.inputs(choice), deep.config(choice)
    _, want = deep.run(settings, given)
    moved = given._replace(k=given.k.copy())
    moved.k[:, 11] += 1.0
    assert_differs("y", deep.run(settings, moved)[1][:, :9], want[:, :9], 1e-3)


@pytest.mark.clause("DEEP-5", "DEEP-14", "DEEP-23")
@pytest.mark.parametrize("memory", deep.FUNCTIONS)
@pytest.mark.parametrize("span", ["chunk", "twice", "once"])
def test_calls_cut_anywhere_are_one_call(memory: str, span: str) -> None:
    choice = choice_of(memory, span=span)
    given, settings = deep.inputs(choice), deep.config(choice)
    want_state, want = deep.run(settings, given)
    for cut in range(1, T):
        state, y = deep.run(settings, given._replace(calls=[cut, T - cut]))
        # products of fewer rows may sum in another order
        assert_close(f"cut at {cut}", y, want, CLOSE)
        assert (state.position, state.keys.shape) == (want_state.position, want_state.keys.shape)
        for kind in ("weights", "momentum", "reference"):
            for name, x in getattr(want_state, kind).items():
                assert_close(f"{kind}.{name}", getattr(state, kind)[name], x, CLOSE)


@pytest.mark.clause("DEEP-1", "DEEP-7")
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("kind", ["ones", "decay", "product"])
def test_a_window_far_longer_than_the_tokens_costs_nothing(kind: str, gated: bool) -> None:
    decay = {"kind": "decay", "base": 0.9}
    weights = {"kind": "product", "of": [decay, {"kind": "ones"}]} if kind == "product" else None
    weights = weights or (decay if kind == "decay" else {"kind": "ones"})
    draw = np.random.default_rng(3)
    k, v, q = draw.standard_normal((3, 2, T, 3))
    gates = dict(zip(("retain", "momentum", "step_size"), np.full((3, 2, T), 0.5), strict=True))
    gate = np.abs(draw.standard_normal((2, T))) if gated else None
    tokens = Tokens(k=k, v=v, q=q, **gates, window_gate=gate)

    def reads(window: int) -> Any:
        config = deep_memory.Config(d_in=3, d_out=3, chunk=2, window=window, window_weights=weights)
        phi = {name: x[0] for name, x in deep_memory.RULE.draw(config, 0).items()}
        start = deep_memory.start(config, (2,))
        return sequence.run(deep_memory.RULE, config, tokens, start, phi=phi)[1]

    assert_close("y", reads(10**12), reads(T), EXACT)
    assert_differs("y", reads(3), reads(T), 1e-3)


@pytest.mark.clause("DEEP-14")
def test_a_flush_depends_on_the_calls() -> None:
    choice = choice_of("mlp", unfinished="flush")
    given, settings = deep.inputs(choice), deep.config(choice)
    state, want = deep.run(settings, given)
    assert state.position % 3 == 0
    assert_differs("y", deep.run(settings, given._replace(calls=[5, T - 5]))[1], want, 1e-3)


@pytest.mark.clause("DEEP-13", "DEEP-23")
@pytest.mark.parametrize("memory", ["linear", "mlp", "polynomial"])
def test_rows_do_not_touch_unless_they_share_a_memory(memory: str) -> None:
    for coupling, touches in (("per_sample", False), ("batch_shared", True)):
        choice = choice_of(memory, coupling=coupling)
        given, settings = deep.inputs(choice), deep.config(choice)
        _, want = deep.run(settings, given)
        moved = given._replace(k=given.k.copy())
        moved.k[1] += 1.0
        _, y = deep.run(settings, moved)
        assert np.array_equal(y[0], want[0]) != touches


@pytest.mark.clause("DEEP-6", "DEEP-16")
@pytest.mark.parametrize("memory", ["linear", "mlp", "polynomial"])
def test_a_packed_document_is_a_call_of_its_own(memory: str) -> None:
    choice = choice_of(memory, documents=True)
    given, settings = deep.inputs(choice), deep.config(choice)
    _, packed = deep.run(settings, given)
    starts = [0, *np.nonzero(given.reset)[0], T]
    for first, last in itertools.pairwise(starts):
        tokens = tokens_of(given._replace(reset=None), slice(first, last))
        start = deep_memory.start(settings, (2,))
        _, y = sequence.run(deep_memory.RULE, settings, tokens, start, phi=given.tensors)
        assert_close(f"document at {first}", packed[:, first:last], y, EXACT)


@pytest.mark.clause("DEEP-16")
@pytest.mark.parametrize(
    ("memory", "momentum"),
    [("never", "never"), ("never", "sequence"), ("sequence", "never"), ("batch", "sequence")],
)
def test_reset_modes_differ(memory: str, momentum: str) -> None:
    plain = choice_of("mlp", documents=True, momentum=True)
    given = deep.inputs(plain)._replace(calls=[6, T - 6])
    _, want = deep.run(deep.config(plain), given)
    settings = deep.config(plain | {"memory_reset": memory, "momentum_reset": momentum})
    assert_differs("y", deep.run(settings, given)[1], want, 1e-4)


@pytest.mark.clause("DEEP-17")
def test_training_and_evaluation_give_the_same_numbers_but_where_a_phase_parts_them() -> None:
    choice = choice_of("mlp")
    given = deep.inputs(choice)
    _, want = deep.run(deep.config(choice), given)
    _, off = deep.run(deep.config(choice | {"phase": "off"}), given)
    assert_differs("off", off, want, 1e-3)
    for phase, trains, infers in (("both", want, want), ("train", want, off), ("infer", off, want)):
        for training, expected in ((True, trains), (False, infers)):
            settings = deep.config(choice | {"phase": phase}, training=training)
            assert_close(f"{phase} {training}", deep.run(settings, given)[1], expected, EXACT)


@pytest.mark.clause("DEEP-6")
def test_given_first_weights_stand_in_place_of_those_of_the_tensors() -> None:
    choice = choice_of("mlp", documents=True)
    given, settings = deep.inputs(choice), deep.config(choice)
    _, want = deep.run(settings, given)
    own = {name: np.stack([given.tensors[name]] * 2) for name in settings.fast_shapes}
    others = given.tensors | {name: 0.0 * x for name, x in given.tensors.items() if name in own}
    start = deep_memory.start(settings, (2,), weights=own)
    _, y = sequence.run(deep_memory.RULE, settings, tokens_of(given), start, phi=others)
    assert_close("y", y, want, EXACT)


@pytest.mark.clause("DEEP-9")
def test_a_zero_gradient_stays_zero_under_every_clip() -> None:
    for clip in ("hard", "soft"):
        choice = choice_of("linear", clip=clip, window_gate=True, newton_schulz=0)
        given = deep.inputs(choice)
        given = given._replace(gates=given.gates | {"window_gate": np.zeros((2, T))})
        state, y = deep.run(deep.config(choice), given)
        assert np.isfinite(y).all()
        assert not np.any(state.momentum["W"])


@pytest.mark.clause("DEEP-9")
def test_a_soft_clip_gives_a_small_gradient_half_the_bound() -> None:
    choice = choice_of("linear", clip="soft", newton_schulz=0, momentum=False, rate="memory")
    given = deep.inputs(choice)
    small = given._replace(k=1e-4 * given.k, v=1e-4 * given.v)
    state, _ = deep.run(deep.config(choice), small)
    assert_close("length", np.linalg.norm(state.momentum["W"][0]), np.float64(0.25), deep.CLIPPED)
