"""Recordings of Atlas-MAG whose headers are older than those of its layers (LAYER-17).

Their rules are `ttl`, steps of learning, and `qk_projection` with `parameters` in place of `config`.
They are read as the recordings of `ttl_steps` and `qk_projection` that came after them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.json_text import decoded
from atlas_ref.oracle.cases.tensor_spec import CHARACTERS

Tensors = Mapping[str, Any]

#: Parameters that such a recording has, by its rule.
PARAMETERS = {
    "ttl": {
        *("alpha", "context_window", "dim", "eta", "expansion", "key_dim", "poly_degree"),
        *("poly_rank", "steps", "theta", "vectors"),
    },
    "qk_projection": {"context_window", "decay_base", "keys"},
}


def in_later_words(text: str, tensors: Tensors) -> tuple[str, Tensors]:
    """Header and tensors of such a recording as a later one has them; any other as they are.

    Args:
        text: the header as it stands in the file.
    """
    if len(text) > CHARACTERS or not any(rule in text for rule in PARAMETERS):
        return text, tensors
    try:
        data = decoded(text)
    except ValueError:  # which the reader of headers refuses
        return text, tensors
    rule, given = (data.get("rule"), data.get("parameters")) if isinstance(data, dict) else ("", "")
    if not isinstance(given, dict) or rule not in PARAMETERS or set(given) != PARAMETERS[rule]:
        return text, tensors
    found = _READERS[rule](given, tensors)
    if found is None:
        return text, tensors
    head, renamed = found
    kept = {key: data[key] for key in ("schema", "note") if key in data}
    return json.dumps({**kept, **head}), renamed


def _steps(given: Mapping[str, Any], tensors: Tensors) -> tuple[dict[str, Any], Tensors] | None:
    """Steps of learning: `steps` were those of Newton-Schulz, and momenta began at zero."""
    count = sum(name.startswith("out/loss") for name in tensors)
    config = {key: value for key, value in given.items() if key not in ("steps", "vectors")}
    config |= {"steps": count, "ns_iterations": given["steps"], "mlp": "gelu"}
    weights = {name: x for name, x in tensors.items() if name.startswith("in/param/")}
    named = {_of_step(name): x for name, x in tensors.items()}
    for name, x in weights.items():
        named.setdefault(name.replace("in/param/", "in/momentum/"), np.zeros_like(x))
    return {"rule": "ttl_steps", "config": config}, named


def _of_step(name: str) -> str:
    """out/loss2 as out/step2/loss."""
    number = name.removeprefix("out/loss")
    return f"out/step{number}/loss" if number != name else name


def _projection(
    given: Mapping[str, Any], tensors: Tensors
) -> tuple[dict[str, Any], Tensors] | None:
    """The causal projection of queries, of which one of the two forms was recorded.

    Its powers of the decay are those of the sequential form, rounded to float32.
    """
    query, window = tensors.get("in/q"), given["context_window"]
    counted = isinstance(window, int) and 0 < window <= 2**16
    if query is None or query.ndim != 4 or not counted or isinstance(window, bool):
        return None
    if not isinstance(given["decay_base"], float):
        return None
    heads, d_head = query.shape[1], query.shape[3]
    config = {
        **{key: given[key] for key in ("context_window", "decay_base")},
        **{"dim": heads * d_head, "n_heads": heads, "persistent_keys": 0, "gates": True},
        "chunk_size": 0,
    }
    named = {_LATER.get(name, name): x for name, x in tensors.items()}
    size = named.get("in/buffer/norm_persistent")
    if size is not None and size.shape == (1,):
        named["in/buffer/norm_persistent"] = size.reshape(())
    powers = given["decay_base"] ** np.arange(window)
    named["in/buffer/decay_weights"] = powers.astype(np.float32).astype(np.float64)
    return {"rule": "qk_projection", "config": config}, named


#: Tensor of the projection -> its later name.
_LATER = {
    "in/M_persistent": "in/buffer/m_persistent",
    "in/norm_persistent": "in/buffer/norm_persistent",
    "out/q_projected": "out/y_sequential",
}

_READERS: dict[str, Callable[..., tuple[dict[str, Any], Tensors] | None]] = {
    "ttl": _steps,
    "qk_projection": _projection,
}
