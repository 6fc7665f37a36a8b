"""What a deep memory refuses, and in which words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.rules import deep_memory, sequence
from atlas_ref.rules.sequence import Tokens

B, T, D = 2, 6, 3
PLAIN: dict[str, Any] = {"d_in": D, "d_out": D, "memory": {"kind": "linear"}}


@pytest.mark.clause("DEEP-1", "DEEP-3", "DEEP-4")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"chunk": 3, "span": 4}, "span: 4 is no multiple of chunk 3"),
        ({"chunk": 0}, "greater than or equal to 1"),
        ({"chunk": "call"}, "window: chunk call needs it"),
        ({"chunk": "call", "window": 3, "span": 4}, "span: 4 is no multiple of chunk call"),
        ({"fast": ("V",)}, "fast: V: no tensor of the memory, which has W"),
        ({"fast": ()}, "fast: no tensor is left to write"),
        ({"fast": ("W", "W")}, "fast: W is named twice"),
        (
            {"window": 2**40, "convention": {"window_edge": "renormalise"}},
            "window: 1099511627776 tokens, but window_edge renormalise adds the weights of all lags",
        ),
        ({"clip_norm": 0.0}, "greater than 0"),
        ({"per_dimension_gates": True}, "False"),
        (
            {"convention": {"order": "momentum_then_window"}},
            "convention: order momentum_then_window",
        ),
        ({"convention": {"reference": "zero"}}, "convention: reference zero is not defined"),
        ({"convention": {"window_at_boundary": "cut"}}, "convention: window_at_boundary cut"),
        ({"convention": {"span_origin": "multiple"}}, "convention: span_origin multiple"),
        (
            {"convention": {"newton_schulz": {"argument": "accumulated"}}},
            "convention: argument accumulated is not defined for a deep memory, S or nesterov is",
        ),
        ({"convention": {"reference": "chunk_start"}}, "span: missing"),
        ({"memory": {"kind": "tree"}}, "linear"),
    ],
    ids=str,
)
def test_settings_that_contradict_each_other(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        deep_memory.Config(**PLAIN | settings)


def called(**changes: Any) -> Any:
    config = deep_memory.Config(**PLAIN, window=3, **changes.pop("settings", {}))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((B, T, D))
    fields = {"k": x, "v": x, "q": x, "retain": np.full((B, T), 0.9)}
    fields |= {"momentum": np.full((B, T), 0.5), "step_size": np.full((B, T), 0.1)}
    start = deep_memory.start(config, (B,))
    state = changes.pop("state", lambda state: state)(start)
    phi = changes.pop("phi", {"W": np.zeros((D, D))})
    tokens = Tokens(**{n: a for n, a in (fields | changes).items() if a is not None})
    return sequence.run(deep_memory.RULE, config, tokens, state, phi=phi)


@pytest.mark.clause("DEEP-24")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"step_size": None}, "step_size: missing"),
        ({"retain": None}, "retain: missing"),
        ({"step_size_memory": np.ones((B, T))}, "step_size_memory: the rule deep_memory"),
        ({"retain": np.full((B, T, D), 0.5)}, "retain: .* no gate per output dimension"),
        ({"window_weights": np.ones((B, T, 2))}, "window_weights: shape"),
        (
            {"window_gate": np.ones((B, T)), "settings": {"window_weights": {"kind": "softmax"}}},
            "window_weights: missing, the kind of the settings learns window_logits",
        ),
        ({"k": np.zeros((B, T, 2)), "q": np.zeros((B, T, 2))}, "k: shape"),
        ({"q": np.zeros((B, T, 2))}, "q: shape|d_in"),
        ({"phi": {}}, "W"),
        ({"phi": {"W": np.zeros((D, 2))}}, "W"),
        ({"phi": {"W": np.zeros((D, D)), "V": np.zeros(2)}}, "V"),
        ({"phi": np.zeros((D, D))}, "memory: arrays by name are needed, found ndarray"),
        (
            {"phi": {"W": np.zeros((3, D, D))}},
            r"memory/W: shape \(3, 3, 3\), expected \(3, 3\), .* broadcast to \(2,\) of the",
        ),
        ({"phi": {"W": np.zeros((1, B, D, D))}}, r"memory/W: .* broadcast to \(2,\) of the tokens"),
        (
            {"phi": {"W": np.zeros((B, D, D))}, "settings": {"coupling": "batch_shared"}},
            r"memory/W: .* broadcast to \(1,\) of the tokens",
        ),
        ({"phi": {"W": np.zeros((D, D), np.float32)}}, "memory.W: float32, but k is float64"),
        (
            {"state": lambda s: s.replaced(weights={"W": np.zeros((B, D, 2))})},
            "state.weights.W: shape",
        ),
        ({"state": lambda s: s.replaced(momentum={"V": np.zeros((B, D, D))})}, "state.momentum"),
        ({"state": lambda s: s.replaced(position=2, keys=np.zeros((B, 5, D)))}, "state.keys: 5"),
        ({"state": lambda s: s.replaced(keys=np.zeros((1, 0, D)))}, "state.keys: .*leading"),
        ({"state": lambda s: s.replaced(values=np.zeros((B, 0, 2)))}, "state.values"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_calls_that_contradict_their_settings(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        called(**changes)


@pytest.mark.clause("DEEP-24")
def test_rows_that_share_a_memory_are_at_least_one() -> None:
    config = deep_memory.Config(**PLAIN, coupling="batch_shared", reduction="mean")
    none, state = np.zeros((0, T, D)), deep_memory.start(config, (0,))
    tokens = Tokens(k=none, v=none, q=none, retain=none[..., 0], step_size=none[..., 0])
    with pytest.raises(ValueError, match=r"k: shape \(0, 6, 3\) has no row"):
        sequence.run(deep_memory.RULE, config, tokens, state, phi={"W": np.zeros((D, D))})


@pytest.mark.clause("DEEP-24")
def test_one_token_cannot_be_written_alone() -> None:
    with pytest.raises(TypeError, match=r"writes whole chunks: call rules\.sequence\.run"):
        deep_memory.RULE.write(None, None, None, None, None)


@pytest.mark.clause("DEEP-6")
@pytest.mark.parametrize("given", [{"V": np.zeros((B, D, D))}, {"W": np.zeros((D, D))}])
def test_first_weights_of_another_name_or_shape(given: dict[str, Any]) -> None:
    config = deep_memory.Config(**PLAIN)
    with pytest.raises(ValueError, match="weights"):
        deep_memory.start(config, (B,), weights=given)


@pytest.mark.clause("DEEP-1")
def test_the_window_is_the_chunk_unless_given() -> None:
    assert deep_memory.Config(**PLAIN, chunk=5).window == 5
    with pytest.warns(UserWarning, match="window 2 below chunk 5: no write sees 3 of 5 tokens"):
        assert deep_memory.Config(**PLAIN, chunk=5, window=2).window == 2
