"""Headers of recordings of public projects, read as those of layers, of rule dplr or recurrence.

Specified in specs/layer_cases.md (LAYER-17, LAYER-18, LAYER-23), specs/dplr_cases.md (DPLRCASE-8) and
specs/recurrences.md (RECUR-9).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from atlas_ref.messages import shown
from atlas_ref.oracle.cases.json_text import decoded
from atlas_ref.oracle.dplr.members import MEMBERS
from atlas_ref.oracle.recurrences.members import MEMBERS as RECURRENCES
from atlas_ref.oracle.subjects import dplr, recurrence
from atlas_ref.oracle.subjects.subject import CHARACTERS, LAYER

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


#: Rule of recordings of the linear family, and the words of their tensors for those of a case.
LINEAR_FAMILY = "family"
OF_FAMILY = {
    "state0": "M0",
    "state_bar": "M_bar",
    "state": "M",
    "log_decay": "log_retain",
    "log_decay_precond": "log_retain_precond",
    "momentum0": "S0",
    "momentum_bar": "S_bar",
    "momentum": "S",
    "A_log": "param/A_log",
    "dt_bias": "param/dt_bias",
}

#: Recordings of gates alone, which are cases of a layer, and whether they have a lower bound.
GATES = {"gate_softplus": False, "gate_lower_bound": True}

#: Tensors of such a recording that are vectors, kept as matrices of one row.
OF_ONE_ROW = ("z0", "z_bar", "z")

#: Parameters of such a recording that say how many steps or heads there are.
COUNTS = {"num_householder": "steps", "value_heads_per_key_head": "groups"}


def as_member(data: dict[str, Any]) -> dict[str, Any]:
    """The header of a case in place of a recording of a member of the linear family (DPLRCASE-8).

    That of gates alone is a case of their layer (LAYER-23).

    Raises:
        ValueError: a recording of a recurrence that no rule has.
    """
    if data.get("rule") != LINEAR_FAMILY:
        return data
    given = data.get("parameters")
    given = given if isinstance(given, dict) else {}
    member = given.get("member")
    if isinstance(member, str) and member in GATES:
        own = {key: given[key] for key in ("heads", "head_dim") if key in given}
        own |= {"lower_bound": given.get("lower_bound")} if GATES[member] else {}
        return _as_case(data, LAYER, own) | {"layer": "kda_gate"}
    if isinstance(member, str) and member in RECURRENCES:
        return _as_recurrence(data, given, member)
    if not isinstance(member, str) or member not in MEMBERS:
        raise ValueError(
            f"parameters.member: {shown(member)} is no member of rule dplr or recurrence; "
            f"{', '.join((*MEMBERS, *RECURRENCES))} are"
        )
    counts = {name: given[key] for key, name in COUNTS.items() if key in given}
    chosen = {"member": member, "state_layout": "(d_in, d_out)", **counts}
    return _as_case(data, dplr.SUBJECT.name, chosen)


def _as_recurrence(data: dict[str, Any], given: dict[str, Any], member: str) -> dict[str, Any]:
    """The header of a case of rule recurrence in place of such a recording (RECUR-9)."""
    own = RECURRENCES[member]
    chosen = {"member": member} | {
        name: given[key] for key, name in own.counts.items() if key in given
    }
    if own.program.matrices:
        chosen["state_layout"] = "(d_in, d_out)"
    return _as_case(data, recurrence.SUBJECT.name, chosen)


def _as_case(data: dict[str, Any], rule: str, parameters: dict[str, Any]) -> dict[str, Any]:
    header = {key: data[key] for key in ("schema", "note") if key in data}
    return header | {"rule": rule, "parameters": parameters}


def sized(text: str, tensors: Mapping[str, Any]) -> str:
    """The header of a recording of gates with the heads and channels that its input has (LAYER-23).

    Any other as it is, and one whose input has no such axes too, to be refused.
    """
    x = tensors.get("in/x")
    named = len(text) <= CHARACTERS and any(name in text for name in GATES)
    if x is None or len(x.shape) < 2 or not named:
        return text
    try:
        data = decoded(text)
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
    data = decoded(text)
    if data.get("rule") != LINEAR_FAMILY:
        return dict(tensors)
    parameters = data.get("parameters")
    member = parameters.get("member") if isinstance(parameters, dict) else None
    words: Mapping[str, str] = OF_FAMILY
    flat: Mapping[str, int] = dict.fromkeys((OF_FAMILY.get(name, name) for name in OF_ONE_ROW), -2)
    if isinstance(member, str) and member in RECURRENCES:
        words, flat = _words(member), RECURRENCES[member].flat
    parts = ((*key.partition("/"), value) for key, value in tensors.items())
    named = ((kind, words.get(name, name), value) for kind, _, name, value in parts)
    return {
        f"{kind}/{name}": _without(value, flat[name]) if name in flat else value
        for kind, name, value in named
    }


def _words(member: str) -> dict[str, str]:
    """Words of the recorded tensors of a member -> names of a case (RECUR-9)."""
    of, words = RECURRENCES[member], {"log_decay": "log_retain"}
    for word, name in of.words.items():
        words[word] = name
        if name in of.program.states:
            words |= {f"{word}0": f"{name}0", f"{word}_bar": f"{name}_bar"}
    return words


def _without(value: Any, axis: int) -> Any:
    """An array without an axis of one; anything else as it is, to be refused by its shape."""
    single = value.ndim >= -axis and value.ndim > 1 and value.shape[axis] == 1
    return value.squeeze(axis) if single else value
