"""Recordings of members of the linear family, read as cases of rule dplr, recurrence or a layer.

Specified in specs/dplr_cases.md (DPLRCASE-8), specs/recurrences.md (RECUR-9) and
specs/layer_cases.md (LAYER-23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atlas_ref.messages import shown
from atlas_ref.oracle.cases.recorded_headers import GATES
from atlas_ref.oracle.cases.tensor_spec import LAYER
from atlas_ref.oracle.dplr.members import MEMBERS
from atlas_ref.oracle.recurrences.members import MEMBERS as RECURRENCES

#: Rules of the cases that such recordings are.
DPLR, RECURRENCE = "dplr", "recurrence"

#: Words of their tensors for those of a case.
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

#: Tensors of such a recording that are vectors, kept as matrices of one row.
OF_ONE_ROW = ("z0", "z_bar", "z")

#: Parameters of such a recording that say how many steps or heads there are.
COUNTS = {"num_householder": "steps", "value_heads_per_key_head": "groups"}


def as_member(data: dict[str, Any]) -> dict[str, Any]:
    """The header of a case in place of such a recording (DPLRCASE-8).

    That of gates alone is a case of their layer (LAYER-23).

    Raises:
        ValueError: a recording of a recurrence that no rule has.
    """
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
    return _as_case(data, DPLR, chosen)


def _as_recurrence(data: dict[str, Any], given: dict[str, Any], member: str) -> dict[str, Any]:
    """The header of a case of rule recurrence in place of such a recording (RECUR-9)."""
    own = RECURRENCES[member]
    chosen = {"member": member} | {
        name: given[key] for key, name in own.counts.items() if key in given
    }
    if own.program.matrices:
        chosen["state_layout"] = "(d_in, d_out)"
    return _as_case(data, RECURRENCE, chosen)


def _as_case(data: dict[str, Any], rule: str, parameters: dict[str, Any]) -> dict[str, Any]:
    header = {key: data[key] for key in ("schema", "note") if key in data}
    return header | {"rule": rule, "parameters": parameters}


def in_words_of_a_case(data: Mapping[str, Any], tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors of such a recording under the names of a case (DPLRCASE-8).

    Args:
        data: the header as it stands in the file.
    """
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
