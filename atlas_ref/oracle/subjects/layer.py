"""The subject layer: a layer or a model around memories, by the names of public code.

Its cases hold constructor arguments and a state_dict; what each layer is stands in
`ENTRIES`. Specified in specs/layer_cases.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import ValidationError

from atlas_ref import backend
from atlas_ref.messages import first_problem, meant
from atlas_ref.models import atlas_rnn
from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.tensor_spec import LAYER, Tensor, of_call
from atlas_ref.oracle.cases.values import check_values, refuse_unknown
from atlas_ref.oracle.subjects.layers import (
    Call,
    Entry,
    mag_modules,
    mag_parts,
    mag_systems,
    parts,
    systems,
)
from atlas_ref.oracle.subjects.subject import Rounding, Subject
from atlas_ref.types import Array, bind_dims

#: Layers and models that cases know: name in the header -> layer or model (LAYER-2).
ENTRIES: dict[str, Entry] = {
    **parts.PARTS,
    **systems.SYSTEMS,
    **mag_parts.PARTS,
    **mag_modules.PARTS,
    **mag_systems.PARTS,
    **parts.MEMORIES,
}

#: Keys of a header of this rule.
KEYS = ("schema", "rule", "layer", "parameters", "note", "trace")

#: Error of a result in float64 that is allowed, and why (LAYER-10).
TOLERANCE = (1e-10, "fixed for layers in float64 (LAYER-10)")

#: Results of layers: what they return, the state after them, and gradients (LAYER-5 to LAYER-8).
RESULTS = re.compile(
    r"out/((call\d+/)?(y|seq_index|(last_update|last_momentum|weights|updates)/[\w.]+"
    r"|(omega_loss|effective_eta)(/\d+)?|state/(param|buffer)/[\w.]+|loss|logits)"
    r"|step\d+/(loss|\w+_(eta|norm|ratio)|(param|momentum|stat)/[\w.]+)"
    r"|gamma|mem_out|q_projected|read|y_(chunked|sequential)|y_prefix|[qkv]|attn(_projected)?|(state|cache)(_after_call\d+)?/\w+|loss|logits(_call\d+)?"
    r"|(greedy|sampled)_(un)?cached(_logits)?|(kept|token)_min_p_[\w.]+)"
    r"|grad/((call\d+/)?x|((chunked|sequential)/)?([qkv]|gamma)|keys|values|attn(_projected)?|(state|cache)/\w+|param/[\w.]+)"
)

PARAM = "in/param/"

#: What the names of inputs begin with that modules hold and nothing trains.
HELD = ("in/buffer/", "in/momentum/")

if TYPE_CHECKING:
    from typing import TypeAlias

    LayerName: TypeAlias = str
else:
    LayerName = Literal[tuple(ENTRIES)]


# -- the header ------------------------------------------------------------------------------------


def check_header(header: Any) -> None:
    """Refuse keys of other rules, and parameters that the layer does not have (LAYER-1, LAYER-2).

    Raises:
        ValueError: names the key or the parameter, what was found and what is needed.
    """
    for key in header.model_fields_set:
        if key.rstrip("_") not in KEYS:
            raise ValueError(f"{key}: the rule {LAYER} has none; it has {', '.join(KEYS)}")
    if header.layer is None:
        raise ValueError(f"layer: missing, rule {LAYER} needs it: {', '.join(ENTRIES)}")
    if header.parameters is None:
        raise ValueError(f"parameters: missing, layer {header.layer} needs them")
    _settings(header)


def _settings(header: Any) -> Any:
    """Constructor arguments, and tokens of calls where a layer takes them, validated."""
    kind = ENTRIES[header.layer].module.settings
    names = tuple(kind.model_fields)
    for key in header.parameters:
        if key not in names:
            raise ValueError(
                f"parameters.{key}: layer {header.layer} has none; it has {', '.join(names)}"
                f"{meant(key, names)}"
            )
    try:
        return kind.model_validate_json(json.dumps(header.parameters))
    except ValidationError as error:
        raise ValueError(f"parameters.{first_problem(error)}") from None


# -- its tensors -----------------------------------------------------------------------------------


def table(entry: Entry, settings: Any) -> dict[str, Tensor]:
    """Inputs of a case of this layer, in order (LAYER-3)."""
    own = dict(entry.tensors(settings))
    bars = {name: own.pop(name) for name in list(own) if name.endswith("_bar")}
    params = {
        PARAM + name: Tensor(each.axes, low=each.low)
        for name, each in entry.module.names(settings).items()
    }
    states = {}
    if entry.states is not None:
        prefix = entry.states.prefix
        its = entry.states.tensors(settings)
        states = {f"in/{prefix}/{name}": each for name, each in its.items()}
        if prefix == "state":
            bars |= {f"in/state_bar/{name}": each._replace(need="0") for name, each in its.items()}
    return {**own, **params, **states, **bars}


def check_inputs(header: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs in order; refuse a missing, misnamed or misshapen one (LAYER-3).

    Raises:
        ValueError: names the tensor, what was found and what is needed.
    """
    entry, settings = ENTRIES[header.layer], _settings(header)
    tensors = table(entry, settings)
    refuse_unknown(inputs, tensors, {}, f"layer {header.layer}; it has {', '.join(tensors)}")
    present = {name for name in inputs if entry.states and _of_state(entry, name)}
    for name, tensor in tensors.items():
        part = name not in inputs and present and _of_state(entry, name)
        if part or (tensor.need == "yes" and name not in inputs):
            raise ValueError(f"{name}: missing, axes ({', '.join(tensor.axes.split())}) are needed")
    ordered = {name: inputs[name] for name in tensors if name in inputs}
    sizes: dict[str, Any] = {
        axis: (size, "parameters") for axis, size in entry.module.sizes(settings).items()
    }
    for name, value in ordered.items():
        bind_dims(name, value.shape, tensors[name].axes, sizes)
        check_values(name, value, tensors[name])
    for axis, (size, by) in sizes.items():
        for each in size if isinstance(size, tuple) else (size,):
            if each < 1 and axis != "rows" and by in ordered:
                raise ValueError(f"{by}: axis {axis} has size 0, at least 1 is needed")
    entry.check(settings, sizes)
    entry.fits(settings, ordered)
    return ordered


def _of_state(entry: Entry, name: str) -> bool:
    return entry.states is not None and name.startswith(f"in/{entry.states.prefix}/")


def constants(header: Any) -> set[str]:
    """Inputs that nothing trains: constants, buffers and numbers to draw with (LAYER-8)."""
    entry, settings = ENTRIES[header.layer], _settings(header)
    names = entry.module.names(settings)
    fixed = {
        PARAM + name
        for name, each in names.items()
        if not (each.trained and (each.field or each.unread))
    }
    held = {name for name in entry.tensors(settings) if name.startswith(HELD)}
    return fixed | held | {"in/uniform", *entry.constants}


# -- evaluation ------------------------------------------------------------------------------------


def epsilon(inputs: Mapping[str, Any]) -> float:
    """The epsilon of the model's dtype: float64 where any parameter or token is, else float32
    (LAYER-9).
    """
    kinds = {value.dtype.name for name, value in inputs.items() if not name.endswith("_bar")}
    return float(np.finfo(np.float64 if "float64" in kinds else np.float32).eps)


def _evaluate(
    inputs: Mapping[str, Array], case: Case, form: str, chunk: int | None
) -> tuple[dict[str, Array], None]:
    of_file = constants(case.header) & case.inputs.keys()
    fixed = {name: case.inputs[name].astype(np.float64) for name in of_file}
    return _results(inputs, case, fixed), None


def _plain(inputs: Mapping[str, Array], case: Case, rounding: Rounding) -> dict[str, Array]:
    """The layer from inputs that are off by a rounding each (LAYER-11)."""
    moved = {
        name: value if value.dtype.kind in "biu" else rounding.touch(value)
        for name, value in inputs.items()
    }
    return _results(
        moved, case, {name: moved[name] for name in constants(case.header) & moved.keys()}
    )


def _results(
    inputs: Mapping[str, Array], case: Case, fixed: Mapping[str, Array]
) -> dict[str, Array]:
    header: Any = case.header  # with the key of this rule
    entry, settings = ENTRIES[header.layer], _settings(header)
    state_dict = {
        name.removeprefix(PARAM): value for name, value in inputs.items() if name.startswith(PARAM)
    }
    config = entry.module.config(
        settings,
        epsilon(case.inputs),
        {name.removeprefix(PARAM): value for name, value in fixed.items()},
    )
    params = atlas_rnn.parameters(entry.module, settings, config, state_dict)
    with backend.used(backend.of(*inputs.values()).name):  # where a first state is made
        return entry.run(Call(entry, settings, config, params, inputs))


# -- what is said of results -----------------------------------------------------------------------


def clause(header: Any, name: str) -> str:
    """The clause about a result: of its name, of what stands before its last part, of its kind."""
    clauses = ENTRIES[header.layer].clauses
    name = of_call(name)
    before = re.sub(r"_after_call\d+$", "", name.rpartition("/")[0])
    return next((clauses[key] for key in (name, before, name.split("/")[0]) if key in clauses), "")


def _main(header: Any) -> str:
    """The main result of a case."""
    result = ENTRIES[header.layer].result
    return result if isinstance(result, str) else result(_settings(header))


def _loss(header: Any) -> str:
    """The result that gradients are of without a cotangent, or nothing."""
    loss = ENTRIES[header.layer].loss
    return loss if isinstance(loss, str) else loss(_settings(header))


def _void(case: Case) -> dict[str, str]:
    header: Any = case.header  # with the key `layer`, which it has from this subject
    return ENTRIES[header.layer].void(_settings(header), case.inputs)


SUBJECT = Subject(
    name=LAYER,
    cotangent="in/y_bar",
    clauses={"out": "LAYER-1", "grad": "LAYER-8"},
    evaluate=_evaluate,
    plain=_plain,
    has_axes=False,
    keys={"layer": LayerName | None},
    instead="atlas-ref check, eval and tolerance take a layer, atlas-ref model replay and identify "
    "a recording of its modules",
    along=tuple(
        f"out/{name}"
        for name in ("y", "y_prefix", "logits", "q", "k", "v", "attn", "attn_projected")
    ),
    has_parameters=True,
    check_header=check_header,
    checked=check_inputs,
    constants=constants,
    result=_main,
    loss=_loss,
    no_loss=lambda header, inputs: ENTRIES[header.layer].no_loss(inputs),
    clause=clause,
    void=_void,
    numbers=lambda header, inputs: ENTRIES[header.layer].numbers(_settings(header), inputs),
    between=lambda header, inputs: ENTRIES[header.layer].between(_settings(header), inputs),
    results=RESULTS,
    states=None,
    tolerance=TOLERANCE,
    weighs=lambda header: ENTRIES[header.layer].weighs,
    tolerance_of=lambda header: ENTRIES[header.layer].tolerance(_settings(header)),
)
