"""Cases of deep memories that are refused: the change to a valid one, and its refusal."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tests.support import deep_cases
from tests.support.casefiles import GONE, changed, changed_each, last_entry, written


class Bad(NamedTuple):
    """A fault of a valid case.

    Attributes:
        message: beginning of the refusal.
        header, parameters, convention, tensors: changes; a tensor may be a function of the old one.
        full: whether the case that is changed is `deep_cases.FULL`.
        schema: whether JSON Schema refuses the header too.
    """

    message: str
    header: dict[str, Any] = {}
    parameters: dict[str, Any] = {}
    convention: dict[str, Any] = {}
    tensors: dict[str, Any] = {}
    full: bool = False
    schema: bool = True


def case_of(bad: Bad, folder: Any) -> Any:
    return written(folder / "bad.safetensors", header_of(bad), tensors_of(bad))


def _base(bad: Bad) -> tuple[dict[str, Any], dict[str, Any]]:
    return deep_cases.some(**deep_cases.FULL) if bad.full else deep_cases.some()


def header_of(bad: Bad) -> dict[str, Any]:
    header, _ = _base(bad)
    for key, changes in (("parameters", bad.parameters), ("convention", bad.convention)):
        if changes:
            header[key] = changed(header.get(key, {}), changes)
    return changed(header, bad.header)


def tensors_of(bad: Bad) -> dict[str, Any]:
    _, tensors = _base(bad)
    return changed_each(tensors, bad.tensors)


HEADER = {
    "a window": Bad(
        "window: the rule deep_memory has none; it is parameters.window", {"window": 3}
    ),
    "a span": Bad("span: the rule deep_memory has none; it is parameters.span", {"span": 3}),
    "a chunk": Bad("chunk: the rule deep_memory has none; it is parameters.chunk", {"chunk": 3}),
    "window weights": Bad(
        "window_weights: the rule deep_memory has none; it is parameters.window_weights",
        {"window_weights": {"kind": "ones"}},
    ),
    "a phase of a span": Bad("phase: the rule deep_memory has none; it has schema, ", {"phase": 3}),
    "a form": Bad("form: the rule deep_memory has none; it has schema, ", {"form": "scan"}),
    "a feature map": Bad(
        "feature_map: the rule deep_memory has none", {"feature_map": {"kind": "elu"}}
    ),
    "a schedule": Bad(
        "schedule: the rule deep_memory has none", {"schedule": {"periods": [1], "level": 0}}
    ),
    "levels": Bad("levels: the rule deep_memory has none", {"levels": [{"rule": "delta"}]}),
    "a layer": Bad("layer: the rule deep_memory has none", {"layer": "rms_norm"}),
    "level token": Bad(
        "level: the rule deep_memory has projected alone, found token", {"level": "token"}
    ),
    "parameters as a list": Bad("parameters: must be ", {"parameters": [3]}),
    "a note as a number": Bad("note: must be a string, found 3", {"note": 3}),
}

PARAMETERS = {
    "an objective of a network that is unknown": Bad(
        "parameters.deep_momentum.objective: must be 'l2', 'dot' or 'ones', found 'l1'",
        parameters={"deep_momentum": {"objective": "l1"}},
    ),
    "a network that looks ahead": Bad(
        "parameters.deep_momentum: given, but newton_schulz.argument nesterov looks ahead",
        parameters={"deep_momentum": {}},
        convention={"newton_schulz": {"argument": "nesterov"}},
        schema=False,
    ),
    "an unknown parameter": Bad(
        "parameters.windw: the rule deep_memory has none; it has memory, chunk, ",
        parameters={"windw": 3},
    ),
    "a size": Bad("parameters.d_in: the rule deep_memory has none", parameters={"d_in": 4}),
    "a memory by its name": Bad("parameters.memory: must be ", parameters={"memory": "mlp"}),
    "a memory without a kind": Bad("parameters.memory.kind: missing", parameters={"memory": {}}),
    "an unknown bias": Bad(
        "parameters.bias.kind: must be 'l2', 'l1', 'lp', 'huber' or 'kl', found 'l3'",
        parameters={"bias": {"kind": "l3"}},
    ),
    "a setting of another bias": Bad(
        "parameters.bias: power: 2.0 belongs to kind lp, found kind l1",
        parameters={"bias": {"kind": "l1", "power": 2.0}},
        schema=False,
    ),
    "a bias against values with the other sign": Bad(
        "parameters.bias: kl compares two distributions",
        parameters={"bias": {"kind": "kl"}},
        convention={"value_sign": "plus"},
        schema=False,
    ),
    "an unknown retention": Bad(
        "parameters.retention.kind: must be 'l2', 'elastic_net', 'kl', 'sphere', 'ftrl' or 'lq'",
        parameters={"retention": {"kind": "l1"}},
    ),
    "a setting of another retention": Bad(
        "parameters.retention: over: 'row' belongs to kind kl or sphere, found kind lq",
        parameters={"retention": {"kind": "lq", "over": "row"}},
        schema=False,
    ),
    "an unknown kind": Bad(
        "parameters.memory.kind: must be 'linear', 'mlp' or 'polynomial', found 'mpl'",
        parameters={"memory": {"kind": "mpl"}},
    ),
    "an unknown setting of a memory": Bad(
        "parameters.memory.hidden: unknown key", parameters={"memory": {"kind": "mlp", "hidden": 3}}
    ),
    "a setting of another kind": Bad(
        "parameters.memory: depth: 3 belongs to kind mlp, found kind linear",
        parameters={"memory": {"kind": "linear", "depth": 3}},
        schema=False,
    ),
    "a depth whose names alone fill the memory": Bad(
        "parameters.memory.depth: must be at most 1000, found 1000000000",
        parameters={"memory": {"kind": "mlp", "depth": 10**9}},
    ),
    "an activation that is unknown": Bad(
        "parameters.memory.activation: must be 'gelu', 'gelu_tanh' or 'silu'",
        parameters={"memory": {"kind": "mlp", "activation": "relu"}},
    ),
    "a polynomial without key_width": Bad(
        "parameters.memory: key_width: kind polynomial needs it",
        parameters={"memory": {"kind": "polynomial"}},
        schema=False,
    ),
    "no hidden unit": Bad(
        "parameters.memory.expansion: 0.1 of 4 leaves no hidden unit",
        parameters={"memory": {"kind": "mlp", "expansion": 0.1}},
        schema=False,
    ),
    "a residual norm of other widths": Bad(
        "parameters.memory.residual_norm: d_in 4 and d_out 3 must be the same",
        parameters={"memory": {"kind": "mlp", "residual_norm": True}},
        schema=False,
    ),
    "an eps of 0": Bad(
        "parameters.memory.norm_eps: must be greater than 0",
        parameters={"memory": {"kind": "mlp", "norm_eps": 0}},
    ),
    "chunk 0": Bad("parameters.chunk: must be at least 1, found 0", parameters={"chunk": 0}),
    "chunk as a word": Bad(
        "parameters.chunk: must be an integer, found '2'", parameters={"chunk": "2"}
    ),
    "chunk true": Bad(
        "parameters.chunk: must be an integer, found true", parameters={"chunk": True}
    ),
    "window 0": Bad("parameters.window: must be at least 1, found 0", parameters={"window": 0}),
    "window as a fraction": Bad(
        "parameters.window: must be an integer, found 2.5", parameters={"window": 2.5}
    ),
    "a span between chunks": Bad(
        "parameters.span: 3 is no multiple of chunk 2",
        parameters={"chunk": 2, "span": 3},
        schema=False,
    ),
    "unknown weights": Bad(
        "parameters.window_weights: kind 'hat' does not exist; kinds are ",
        parameters={"window_weights": {"kind": "hat"}},
    ),
    "a decay above 1": Bad(
        "parameters.window_weights.decay.base: must be at most 1",
        parameters={"window_weights": {"kind": "decay", "base": 1.5}},
    ),
    "an unknown reduction": Bad(
        "parameters.reduction: must be 'sum' or 'mean', found 'max'",
        parameters={"reduction": "max"},
    ),
    "an unknown coupling": Bad(
        "parameters.coupling: must be 'per_sample' or 'batch_shared'",
        parameters={"coupling": "shared"},
    ),
    "fast as another word": Bad("parameters.fast: must be ", parameters={"fast": "some"}),
    "a tensor that is not there": Bad(
        "parameters.fast: W_9: no tensor of the memory, which has W_1, W_2",
        parameters={"fast": ["W_9"]},
        schema=False,
    ),
    "no fast tensor": Bad(
        "parameters.fast: no tensor is left to write", parameters={"fast": []}, schema=False
    ),
    "unknown vectors": Bad("parameters.vectors: must be ", parameters={"vectors": "none"}),
    "an unknown clip": Bad(
        "parameters.clip: must be 'none', 'hard' or 'soft'", parameters={"clip": "norm"}
    ),
    "a bound of 0": Bad(
        "parameters.clip_norm: must be greater than 0", parameters={"clip_norm": 0}
    ),
    "adaptive as a word": Bad("parameters.adaptive: must be ", parameters={"adaptive": "yes"}),
    "an unknown outer gradient": Bad(
        "parameters.outer_gradient: must be ", parameters={"outer_gradient": "second_order"}
    ),
    "an unknown phase": Bad("parameters.phase: must be ", parameters={"phase": "eval"}),
    "training as a number": Bad("parameters.training: must be ", parameters={"training": 1}),
    "unfinished as another word": Bad(
        "parameters.unfinished: must be 'wait' or 'flush'", parameters={"unfinished": "drop"}
    ),
    "a reset at another place": Bad(
        "parameters.memory_reset: must be ", parameters={"memory_reset": "call"}
    ),
    "a reset of momentum at another place": Bad(
        "parameters.momentum_reset: must be ", parameters={"momentum_reset": True}
    ),
}

CONVENTIONS = {
    "an unknown axis": Bad("convention: axis 'retain' does not exist", convention={"retain": 1}),
    "another order": Bad(
        "convention: order momentum_then_window is not defined for a deep memory, ",
        convention={"order": "momentum_then_window"},
    ),
    "a window that is cut": Bad(
        "convention: window_at_boundary cut is not defined for a deep memory, ",
        convention={"window_at_boundary": "cut"},
    ),
    "a zero reference": Bad(
        "convention: reference zero is not defined for a deep memory, ",
        convention={"reference": "zero"},
    ),
    "spans from one": Bad(
        "convention: span_origin multiple is not defined for a deep memory, ",
        convention={"span_origin": "multiple"},
    ),
    "an argument that is written back": Bad(
        "convention: argument written_back is not defined for a deep memory, ",
        convention={"newton_schulz": {"argument": "written_back"}},
    ),
    "a preset of another rule": Bad(
        "convention: window_at_boundary carry is not defined for a deep memory, ",
        header={"convention": "atlas-rnn"},
        schema=False,
    ),
    "chunk_start without a span": Bad(
        "parameters.span: missing, read chunk_start needs one",
        convention={"read": "chunk_start"},
        schema=False,
    ),
}

ONE = np.ones((2, 5))
TENSORS = {
    **{
        f"no {name}": Bad(f"in/{name}: missing, axes (..., T", tensors={f"in/{name}": GONE})
        for name in ("k", "v", "q", "retain", "step_size")
    },
    "no first weights": Bad(
        "in/memory/W_1: missing, axes its own and perhaps leading ones are needed",
        tensors={"in/memory/W_1": GONE},
    ),
    "a tensor that another function has": Bad(
        "in/memory/W: unknown tensor for rule deep_memory; it has in/k, ",
        tensors={"in/memory/W": np.ones((3, 4))},
    ),
    "a weight without a logarithm": Bad(
        "in/memory/W_1: ",
        parameters={"retention": {"kind": "kl"}},
        tensors={"in/memory/W_1": last_entry(-1.0)},
    ),
    "a name that is misspelt": Bad(
        "in/momentun: unknown tensor for rule deep_memory; it has in/k, ",
        tensors={"in/momentun": ONE},
    ),
    "a matrix memory": Bad(
        "in/M0: unknown tensor for rule deep_memory", tensors={"in/M0": np.ones((2, 3, 4))}
    ),
    "a second rate": Bad(
        "in/step_size_memory: not part of this case: rate memory has one rate",
        tensors={"in/step_size_memory": ONE},
    ),
    "split without its rate": Bad(
        "in/step_size_memory: missing, ", convention={"rate": "split"}, schema=False
    ),
    "a gate that the convention has not": Bad(
        "in/retain: not part of this case: gate none has no retain gate",
        convention={"gate": "none"},
        schema=False,
    ),
    "a rate that the convention has not": Bad(
        "in/step_size: not part of this case: rate none has no step size",
        convention={"rate": "none"},
        schema=False,
    ),
    "a gate per output dimension": Bad(
        "in/retain: shape (2, 5, 3)", tensors={"in/retain": np.ones((2, 5, 3))}
    ),
    "values of other tokens": Bad(
        "in/v: shape (2, 4, 3) makes T 4, but in/k makes it 5", tensors={"in/v": np.ones((2, 4, 3))}
    ),
    "queries of another length": Bad(
        "in/q: shape (2, 5, 3) makes d_in 3, but in/k makes it 4",
        tensors={"in/q": np.ones((2, 5, 3))},
    ),
    "no token": Bad(
        "in/k: axis T has size 0, at least 1 is needed",
        tensors={"in/k": np.ones((2, 0, 4)), "in/v": np.ones((2, 0, 3))},
    ),
    "no row": Bad(
        "in/k: axis ... has size 0, at least 1 is needed",
        tensors={"in/k": np.ones((0, 5, 4)), "in/v": np.ones((0, 5, 3))},
    ),
    "weights of another window": Bad(
        "in/window_weights: shape (2, 5, 2) makes c 2, but parameters.window makes it 1",
        tensors={"in/window_weights": np.ones((2, 5, 2))},
    ),
    "a matrix that is transposed": Bad(
        "in/memory/W_1: shape (4, 16), expected (16, 4), or leading axes in front that broadcast "
        "against (2,)",
        tensors={"in/memory/W_1": lambda x: np.ascontiguousarray(x.T)},
    ),
    "rows that are not those of the tokens": Bad(
        "in/memory/W_2: shape (3, 3, 16), expected (3, 16), or leading axes in front",
        tensors={"in/memory/W_2": np.ones((3, 3, 16))},
    ),
    "a row each where they share": Bad(
        "in/memory/W_1: shape (2, 16, 4), expected (16, 4), or leading axes in front that "
        "broadcast against (1,)",
        parameters={"coupling": "batch_shared"},
        tensors={"in/memory/W_1": np.ones((2, 16, 4))},
        schema=False,
    ),
    "a retain above 1": Bad(
        "in/retain: entries must be at most 1, found 1.5 at (1, 4)",
        tensors={"in/retain": last_entry(1.5)},
    ),
    "a negative momentum": Bad(
        "in/momentum: entries must be at least 0, found -0.5",
        tensors={"in/momentum": last_entry(-0.5)},
    ),
    "a negative step": Bad(
        "in/step_size: entries must be at least 0", tensors={"in/step_size": last_entry(-0.5)}
    ),
    "a weight that is NaN": Bad(
        "in/memory/W_2: entries must be finite, found nan at (2, 15)",
        tensors={"in/memory/W_2": last_entry(np.nan)},
    ),
    "a key that is infinite": Bad(
        "in/k: entries must be finite, found inf at (1, 4, 3)", tensors={"in/k": last_entry(np.inf)}
    ),
    "a cotangent that is NaN": Bad(
        "in/y_bar: entries must be finite", tensors={"in/y_bar": last_entry(np.nan)}
    ),
    "whole weights": Bad(
        "in/memory/W_1: dtype int64, float64, ", tensors={"in/memory/W_1": np.ones((16, 4), int)}
    ),
    "a mask of floats": Bad(
        "in/active: dtype float64, bool or uint8 is needed", tensors={"in/active": np.ones(5)}
    ),
    "a mask of two": Bad(
        "in/reset: entries must be 0 or 1", tensors={"in/reset": np.full(5, 2, np.uint8)}
    ),
    "learned weights without them": Bad(
        "in/window_weights: missing, parameters.window_weights of kind softmax needs it",
        parameters={"window_weights": {"kind": "softmax"}},
        schema=False,
    ),
    "a gate of the window without it": Bad(
        "in/window_gate: missing, parameters.window_weights of kind gate needs it",
        parameters={"window_weights": {"kind": "gate"}},
        schema=False,
    ),
    "no input at all": Bad(
        "in/k: missing, axes (..., T, d_in) are needed", tensors={"in/k": GONE, "in/v": GONE}
    ),
}

STATES = {
    "a position of floats": Bad(
        "in/state/position: dtype float64, int64 or int32 is needed",
        tensors={"in/state/position": np.asarray(2.0)},
        full=True,
    ),
    "a position below 0": Bad(
        "in/state/position: entries must be at least 0",
        tensors={"in/state/position": np.asarray(-2)},
        full=True,
    ),
    "positions": Bad(
        "in/state/position: shape (1,)", tensors={"in/state/position": np.asarray([2])}, full=True
    ),
    "too many tokens": Bad(
        "in/state/keys: 2 tokens at position 0 of the document, 0 to 0 are needed",
        tensors={"in/state/position": GONE},
        full=True,
    ),
    "no token of the unfinished chunk": Bad(
        "in/state/keys: 0 tokens at position 3 of the document, 1 to 3 are needed for chunk 2",
        tensors={
            "in/state/position": np.asarray(3),
            **dict.fromkeys(("in/state/keys", "in/state/values", "in/state/token_gates"), GONE),
        },
        full=True,
    ),
    "keys without values": Bad(
        "in/state/values: missing, ", tensors={"in/state/values": GONE}, full=True
    ),
    "gates of no token": Bad(
        "in/state/token_gates: needs in/state/keys",
        tensors={"in/state/keys": GONE, "in/state/values": GONE},
        full=True,
    ),
    "gates of tokens that bring none": Bad(
        "in/state/token_gates: not part of this case: no token brings a weight here",
        tensors={"in/window_gate": GONE},
        full=True,
    ),
    "part of the weights": Bad(
        "in/state/weights/W_2: missing beside in/state/weights/W_1",
        tensors={"in/state/weights/W_2": GONE},
        full=True,
    ),
    "part of the momentum": Bad(
        "in/state/momentum/norm/gain: missing beside in/state/momentum/W_1",
        tensors={"in/state/momentum/norm/gain": GONE},
        full=True,
    ),
    "weights of one row": Bad(
        "in/state/weights/W_1: shape (12, 3), expected (2, 12, 3)",
        tensors={"in/state/weights/W_1": lambda x: x[0]},
        full=True,
    ),
    "a momentum without its gate": Bad(
        "in/state/momentum/W_1: not part of this case: it needs a momentum gate",
        tensors={"in/momentum": GONE},
        full=True,
    ),
    "a reference that nothing reads": Bad(
        "in/state/reference/W_1: not part of this case: the reference is not frozen",
        convention={"reference": "running"},
        full=True,
        schema=False,
    ),
    "weights that no write moves": Bad(
        "in/state/momentum/norm/gain: not part of this case: no write moves it",
        parameters={"fast": "matrices", "vectors": "raw"},
        full=True,
        schema=False,
    ),
    "a cotangent of a momentum that is not there": Bad(
        "in/state_bar/momentum/W_1: not part of this case: it needs a momentum gate",
        tensors={"in/momentum": GONE, "in/state_bar/momentum/W_1": np.ones((2, 16, 4))},
    ),
    "a cotangent of another shape": Bad(
        "in/state_bar/weights/W_1: shape (16, 4), expected (2, 16, 4)",
        tensors={"in/state_bar/weights/W_1": np.ones((16, 4))},
    ),
}

TABLE: dict[str, Bad] = {
    f"{kind}: {name}": bad
    for kind, table in (
        ("header", HEADER),
        ("parameters", PARAMETERS),
        ("convention", CONVENTIONS),
        ("tensors", TENSORS),
        ("states", STATES),
    )
    for name, bad in table.items()
}
