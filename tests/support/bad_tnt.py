"""Cases of a TNT that are refused: the change to a valid one, and its refusal."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tests.support import tnt_cases
from tests.support.casefiles import GONE, changed, changed_each, last_entry, written


class Bad(NamedTuple):
    """A fault of a valid case.

    Attributes:
        message: beginning of the refusal.
        header, parameters, local, convention, tensors: changes; `local` of the first local memory;
            a tensor may be a function of the old one.
        full: whether the case that is changed is `tnt_cases.FULL`.
        schema: whether JSON Schema refuses the header too.
    """

    message: str
    header: dict[str, Any] = {}
    parameters: dict[str, Any] = {}
    local: dict[str, Any] = {}
    convention: dict[str, Any] = {}
    tensors: dict[str, Any] = {}
    full: bool = False
    schema: bool = True


def header_of(bad: Bad) -> dict[str, Any]:
    header, _ = tnt_cases.some(**(tnt_cases.FULL if bad.full else {}))
    for key, changes in (("parameters", bad.parameters), ("convention", bad.convention)):
        if changes:
            header[key] = changed(header.get(key, {}), changes)
    if bad.local:
        first, *rest = header["parameters"]["locals"]
        own = {**header["parameters"], "locals": [changed(first, bad.local), *rest]}
        header["parameters"] = own
    return changed(header, bad.header)


def case_of(bad: Bad, folder: Any) -> Any:
    _, tensors = tnt_cases.some(**(tnt_cases.FULL if bad.full else {}))
    return written(folder / "bad.safetensors", header_of(bad), changed_each(tensors, bad.tensors))


HEADER = {
    "a key of another rule": Bad(
        "combine: the rule tnt has none; it has schema", header={"combine": "softmax"}
    ),
    "a feature map": Bad(
        "feature_map: the rule tnt has none; it has schema", header={"feature_map": {"kind": "elu"}}
    ),
    "window as a key": Bad(
        "window: the rule tnt has none; it is parameters.window", header={"window": 2}
    ),
    "span as a key": Bad(
        "span: the rule tnt has none; every memory has one in parameters", header={"span": 2}
    ),
    "level token": Bad(
        "level: the rule tnt has projected alone, found token", header={"level": "token"}
    ),
    "a reference": Bad(
        "convention: reference: TNT sets it for each memory", convention={"reference": "running"}
    ),
    "a read": Bad("convention: read: TNT sets it for each memory", convention={"read": "after"}),
    "an axis that does not exist": Bad("convention: axis 'shard'", convention={"shard": 2}),
}

PARAMETERS = {
    "no memory": Bad(
        "parameters: no global memory and no locals", parameters={"global": GONE, "locals": GONE}
    ),
    "an unknown parameter": Bad(
        "parameters.local: the rule tnt has none; it has rule, window, preset, origin, global, "
        "locals; did you mean locals",
        parameters={"local": []},
    ),
    "a deep memory": Bad(
        "parameters.rule: deep_memory is no rule of the linear family",
        parameters={"rule": "deep_memory"},
    ),
    "an unknown rule": Bad("parameters.rule: must be", parameters={"rule": "rnn"}),
    "a window of titans": Bad(
        "parameters.window: titans_lmm looks at one token, found 3",
        parameters={"window": 3},
        schema=False,
    ),
    "a window of 0": Bad("parameters.window: must be at least 1", parameters={"window": 0}),
    "an unknown preset": Bad("parameters.preset: must be", parameters={"preset": "printed"}),
    "tokens from 2": Bad("parameters.origin: must be 0 or 1", parameters={"origin": 2}),
    "tokens from true": Bad(
        "parameters.origin: must be 0 or 1, found true", parameters={"origin": True}
    ),
    "tokens from 1.0": Bad(
        "parameters.origin: must be 0 or 1, found 1.0", parameters={"origin": 1.0}, schema=False
    ),
    "a global memory without a span": Bad(
        "parameters.global.span: missing", parameters={"global": {}}
    ),
    "locals that are no list": Bad(
        "parameters.locals: must be a list", parameters={"locals": {"span": 1, "shard": 2}}
    ),
    "inclusive with a gate": Bad(
        "parameters.global.sum: inclusive is defined for gate none",
        parameters={"global": {"span": 2, "sum": "inclusive"}},
        schema=False,
    ),
    "a shard of 0": Bad("parameters.locals.0.shard: must be at least 1", local={"shard": 0}),
    "a local memory without a shard": Bad(
        "parameters.locals.0.shard: missing", local={"shard": GONE}
    ),
    "a local memory with a sum": Bad(
        "parameters.locals.0.sum: unknown key", local={"sum": "exclusive"}
    ),
    "previous with a gate": Bad(
        "parameters.locals.0.base: previous is a momentum", local={"base": "previous"}, schema=False
    ),
    "an unknown read": Bad("parameters.locals.0.read: must be", local={"read": "call_end"}),
    "a late read of the global memory": Bad(
        "parameters.global.read: must be", parameters={"global": {"span": 4, "read": "call_end"}}
    ),
    "a gated combination": Bad(
        "parameters.combine: the rule tnt has none; it has rule", parameters={"combine": "gated"}
    ),
    "a gated projection": Bad(
        "parameters.locals.0.projection.gate: unknown key", local={"projection": {"gate": "given"}}
    ),
    "a projection of the global memory": Bad(
        "parameters.global.projection: unknown key",
        parameters={"global": {"span": 4, "projection": {"kind": "sum_outer"}}},
    ),
    "a momentum of delta": Bad(
        "parameters.locals.0.reset_momentum: carry, but delta has no momentum",
        parameters={"rule": "delta"},
        local={"reset_momentum": "carry"},
        schema=False,
    ),
    "an unknown projection": Bad(
        "parameters.locals.0.projection.kind: must be", local={"projection": {"kind": "outer"}}
    ),
    "every key dependent": Bad(
        "parameters.locals.0.projection.dependent: must be less than 1, found 1e+300",
        local={"projection": {"kind": "orthogonal", "dependent": 1e300}},
    ),
    "a range window without a window": Bad(
        "parameters.locals.0.projection: window: None, but range window needs one",
        local={"projection": {"range": "window"}},
        schema=False,
    ),
}

TENSORS = {
    "no keys": Bad("in/k: missing, axes (..., T, d_in) are needed", tensors={"in/k": GONE}),
    "no step size": Bad("in/step_size: missing, axes (..., T)", tensors={"in/step_size": GONE}),
    "a mask of writes": Bad(
        "in/active: not part of this case: every token of a TNT writes",
        tensors={"in/active": np.ones(7, np.uint8)},
    ),
    "a memory that is not there": Bad(
        "in/local1/M0: unknown tensor for rule tnt with memories global, local0",
        tensors={"in/local1/M0": np.ones((3, 4))},
    ),
    "a first memory of the family": Bad(
        "in/M0: unknown tensor for rule tnt", tensors={"in/M0": np.ones((2, 3, 4))}
    ),
    "a first memory of another shape": Bad(
        "in/local0/M0: shape (4, 3), expected (3, 4), or leading axes in front",
        tensors={"in/local0/M0": lambda x: x.T},
    ),
    "a first memory of other rows": Bad(
        "in/global/M0: shape (3, 3, 4), expected (3, 4), or leading axes in front that broadcast "
        "against (2,)",
        tensors={"in/global/M0": np.ones((3, 3, 4))},
    ),
    "a momentum to which nothing returns": Bad(
        "in/local0/S0: not part of this case: reset_momentum zero has none",
        tensors={"in/local0/S0": np.ones((3, 4))},
    ),
    "a first momentum without its gate": Bad(
        "in/global/S0: not part of this case: it needs a momentum gate",
        tensors={"in/momentum": GONE},
    ),
    "a matrix of queries without need": Bad(
        "in/local0/W_QK: not part of this case: projection sum_outer has no matrix",
        tensors={"in/local0/W_QK": np.eye(4)},
    ),
    "no matrix of queries": Bad(
        "in/local0/W_QK: missing, axes (d_in, d_in) are needed",
        local={"projection": {"kind": "learned"}},
    ),
    "a gate above 1": Bad(
        "in/retain: entries must be at most 1, found 1.5 at (1, 6)",
        tensors={"in/retain": last_entry(1.5)},
    ),
    "a key that is not finite": Bad(
        "in/k: entries must be finite, found nan at (1, 6, 3)", tensors={"in/k": last_entry(np.nan)}
    ),
    "own keys of another length": Bad(
        "in/local0/k: shape (2, 7, 5) makes d_in 5, but in/k makes it 4",
        tensors={"in/local0/k": np.ones((2, 7, 5))},
    ),
    "one gate for each output": Bad(
        "in/retain: shape (2, 7, 3) makes", tensors={"in/retain": np.full((2, 7, 3), 0.5)}
    ),
    "whole numbers": Bad(
        "in/v: dtype int64, float64", tensors={"in/v": np.ones((2, 7, 3), np.int64)}
    ),
    "a cotangent of a state that is not there": Bad(
        "in/state_bar/local0/P: unknown tensor for rule tnt",
        tensors={"in/state_bar/local0/P": np.ones((2, 4, 4))},
    ),
}

STATES = {
    "a state without a position": Bad(
        "in/state/global/M: not part of this case: it needs in/state/position",
        tensors={"in/state/position": GONE},
        full=True,
    ),
    "a position without a state": Bad(
        "in/state/global/M: missing, axes (..., d_out, d_in) are needed",
        tensors={"in/state/position": np.asarray(3)},
    ),
    "a position before the first": Bad(
        "in/state/position: must be at least 1, parameters.origin, found 0",
        tensors={"in/state/position": np.asarray(0)},
        full=True,
    ),
    "a position that is no number": Bad(
        "in/state/position: dtype float64, int64 or int32 is needed",
        tensors={"in/state/position": np.asarray(3.0)},
        full=True,
    ),
    "part of a projection": Bad(
        "in/state/local0/P_size: missing, axes (...) are needed",
        tensors={"in/state/local0/P_size": GONE},
        full=True,
    ),
    "part of a window": Bad(
        "in/state/local0/window_v: missing beside in/state/local0/window_k",
        tensors={"in/state/local0/window_v": GONE},
        full=True,
    ),
    "more tokens than a window sees": Bad(
        "in/state/global/window_k: 2 tokens, at most window - 1 = 1 fit",
        tensors={
            "in/state/global/window_k": np.ones((2, 2, 3)),
            "in/state/global/window_v": np.ones((2, 2, 2)),
        },
        full=True,
    ),
    "more keys than a projection sees": Bad(
        "in/state/local1/P_keys: 3 keys, at most 2 are seen by a projection window of 3",
        tensors={"in/state/local1/P_keys": np.ones((2, 3, 3))},
        full=True,
    ),
    "keys of a sum": Bad(
        "in/state/local0/P_keys: not part of this case: the state of local0 has none",
        tensors={"in/state/local0/P_keys": np.ones((2, 1, 3))},
        full=True,
    ),
    "a momentum without its gate": Bad(
        "in/global/S0: not part of this case: it needs a momentum gate",
        tensors={"in/momentum": GONE},
        full=True,
    ),
    "a memory of one row": Bad(
        "in/state/local0/M: shape (2, 3) makes leading axes ()",
        tensors={"in/state/local0/M": lambda x: x[0]},
        full=True,
    ),
}

TABLE: dict[str, Bad] = {
    f"{kind}: {name}": bad
    for kind, table in (
        ("header", HEADER),
        ("parameters", PARAMETERS),
        ("tensors", TENSORS),
        ("states", STATES),
    )
    for name, bad in table.items()
}
