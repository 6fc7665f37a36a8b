"""Headers of recordings of public projects, read as those of layers, of rule dplr or recurrence.

Specified in specs/layer_cases.md (LAYER-17, LAYER-18, LAYER-23), specs/dplr_cases.md (DPLRCASE-8) and
specs/recurrences.md (RECUR-9).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from atlas_ref.messages import shown
from atlas_ref.oracle.cases.json_text import decode
from atlas_ref.oracle.cases.tensor_spec import CHARACTERS, LAYER
from atlas_ref.oracle.registry import LINEAR_FAMILY, RECORDED

#: Layer of a case -> word of the key `rule` in such a recording.
WORDS = {
    "atlas_mag_rms_norm": "rms_norm",
    "atlas_mag_rotary": "rotary",
    "atlas_mag_causal_conv": "causal_conv",
    "atlas_mag_swiglu": "swiglu",
    "atlas_mag_attention_block": "attention_block",
    "atlas_mag_gamma_gate": "gamma_gate",
    "atlas_mag_qkv": "qkv_projection",
    "atlas_mag_query_key": "qk_projection",
    "atlas_mag_memory": "deep_memory",
    "atlas_mag_omega_loss": "omega_loss",
    "atlas_mag_ttl": "ttl_steps",
    "atlas_mag_block": "mag_block",
    "atlas_mag_model": "mag_skeleton",
    "titans_neural_memory": "neural_memory",
}
NAMES = {word: layer for layer, word in WORDS.items()}

#: Public projects by what names of their layers begin with.
PROJECTS = {"atlas_mag": "Atlas-MAG", "titans": "titans-pytorch"}

#: Layers whose results may have been rounded to float32 on the way (LAYER-19).
ROUNDED = ("atlas_mag_rms_norm",)

#: Keys of such a recording that say where it is from.
ORIGIN = ("repo", "commit", "seed", "dtype")
KEYS = ("schema", "rule", "config", *ORIGIN, "float32_inside", "note")


def as_layer(data: dict[str, Any]) -> dict[str, Any]:
    """The header of a case in place of that of such a recording; any other as it is.

    Raises:
        ValueError: names a key that such a recording does not have, or a value.
    """
    rule = data.get("rule")
    if not isinstance(rule, str) or rule not in NAMES or "config" not in data:
        return data
    layer = NAMES[rule]
    for key in data:
        if key not in KEYS:
            project = next(each for start, each in PROJECTS.items() if layer.startswith(start))
            raise ValueError(f"{key}: unknown key of a recording of {project}: {', '.join(KEYS)}")
    if not isinstance(data["config"], dict):
        raise ValueError(f"config: must be an object, found {shown(data['config'])}")
    parameters, inside = data["config"], data.get("float32_inside", False)
    if inside is True and layer in ROUNDED:
        parameters = {**parameters, "float32_inside": True}
    elif inside is not False:
        raise ValueError(
            f"float32_inside: {shown(inside)}; results that were rounded to float32 on the way "
            f"have no tolerance but those of {', '.join(ROUNDED)}"
        )
    note = data.get("note", "")
    if not isinstance(note, str):
        raise ValueError(f"note: must be a string, found {shown(note)}")
    origin = " ".join(str(data[key]) for key in ORIGIN if isinstance(data.get(key), str | int))
    header = {key: data[key] for key in ("schema",) if key in data}
    return header | {
        "rule": LAYER,
        "layer": layer,
        "parameters": parameters,
        "note": "; ".join(each for each in (origin, note) if each),
    }


#: Recordings of gates alone, which are cases of a layer, and whether they have a lower bound.
GATES = {"gate_softplus": False, "gate_lower_bound": True}


def as_member(data: dict[str, Any]) -> dict[str, Any]:
    """The header of a case in place of a recording of a member of the linear family (DPLRCASE-8).

    That of gates alone is a case of their layer (LAYER-23).

    Raises:
        ValueError: a recording of a recurrence that no rule has.
    """
    if data.get("rule") != LINEAR_FAMILY:
        return data
    header: dict[str, Any] = RECORDED[LINEAR_FAMILY].as_member(data)
    return header


def as_schedule(data: dict[str, Any]) -> dict[str, Any]:
    """The header of a case in place of that of a recorded schedule; any other as it is (SCHED-7)."""
    if data.get("kind") != "schedule" or "rule" in data:
        return data
    own = {key: value for key, value in data.items() if key not in ("kind", "schema", "note")}
    kept = {key: data[key] for key in ("note",) if key in data}
    return {"schema": data.get("schema", 1), "rule": "schedule", "parameters": own, **kept}


def with_sizes(text: str, tensors: Mapping[str, Any]) -> str:
    """The header of a recording of gates with the heads and channels that its input has (LAYER-23).

    Any other as it is, and one whose input has no such axes too, to be refused.
    """
    x = tensors.get("in/x")
    named = len(text) <= CHARACTERS and any(name in text for name in GATES)
    if x is None or len(x.shape) < 2 or not named:
        return text
    try:
        data = decode(text)
    except ValueError:  # which the reader of headers refuses
        return text
    data = data if isinstance(data, dict) else {}
    given = data.get("parameters")
    if data.get("rule") != LINEAR_FAMILY or not isinstance(given, dict):
        return text
    heads, head_dim = x.shape[-2:]
    return json.dumps(data | {"parameters": given | {"heads": heads, "head_dim": head_dim}})


def in_words_of_a_case(text: str, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors of such a recording under the names of a case; of others as they are (DPLRCASE-8).

    Args:
        text: the header as it stands in the file, a JSON object.
    """
    data = decode(text)
    if data.get("rule") != LINEAR_FAMILY:
        return dict(tensors)
    named: dict[str, Any] = RECORDED[LINEAR_FAMILY].in_words_of_a_case(data, tensors)
    return named


# -- recordings of earlier days ---------------------------------------------------------------------

Tensors = Mapping[str, Any]

#: Parameters that a recording of Atlas-MAG of earlier days has, by its rule.
EARLIER = {
    "ttl": {
        *("alpha", "context_window", "dim", "eta", "expansion", "key_dim", "poly_degree"),
        *("poly_rank", "steps", "theta", "vectors"),
    },
    "qk_projection": {"context_window", "decay_base", "keys"},
}


def in_later_words(text: str, tensors: Tensors) -> tuple[str, dict[str, Any]]:
    """Header and tensors of an early recording of Atlas-MAG in the words of later ones (LAYER-17).

    Any other as they are.

    Args:
        text: the header as it stands in the file.
    """
    if len(text) > CHARACTERS or not any(rule in text for rule in EARLIER):
        return text, dict(tensors)
    try:
        data = decode(text)
    except ValueError:  # which the reader of headers refuses
        return text, dict(tensors)
    rule, given = (data.get("rule"), data.get("parameters")) if isinstance(data, dict) else ("", "")
    if not isinstance(given, dict) or rule not in EARLIER or set(given) != EARLIER[rule]:
        return text, dict(tensors)
    found = _READERS[rule](given, tensors)
    if found is None:
        return text, dict(tensors)
    head, renamed = found
    kept = {key: data[key] for key in ("schema", "note") if key in data}
    return json.dumps({**kept, **head}), dict(renamed)


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
