"""Tensors of a case of a deep memory: names, axes, ranges, and when each is needed (DEEPCASE-3).

The reader enforces this table, `atlas-ref schema` prints it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from atlas_ref.oracle.cases.tensor_spec import Tensor
from atlas_ref.oracle.cases.values import check_front, check_sizes, check_values, refuse_unknown
from atlas_ref.oracle.deep import parameters
from atlas_ref.parts.deep_momentum import PREFIX
from atlas_ref.parts.window import tensors as learned
from atlas_ref.rules.deep_memory import Config
from atlas_ref.types import bind_dims

#: Inputs of any case, with the default where one is absent.
SEQUENCE: dict[str, Tensor] = {
    "in/k": Tensor("... T d_in"),
    "in/v": Tensor("... T d_out"),
    "in/q": Tensor("... T d_in"),
    "in/retain": Tensor("... T", low=0.0, high=1.0),
    "in/momentum": Tensor("... T", "0; then no momentum in the state", 0.0, 1.0),
    "in/step_size": Tensor("... T", low=0.0),
    "in/step_size_memory": Tensor("... T", "needed for rate split", 0.0),
    "in/window_weights": Tensor("... T c", "those of parameters.window_weights"),
    "in/window_gate": Tensor("... T", "1"),
    "in/threshold": Tensor("... T", "parameters.bias.threshold", low=0.0),
    "in/active": Tensor("T", "1", mask=True),
    "in/reset": Tensor("T", "0", mask=True),
    "in/state/position": Tensor("", "0", low=0, whole=True),
    "in/state/keys": Tensor("... n d_in", "no token before the first"),
    "in/state/values": Tensor("... n d_out", "no token before the first"),
    "in/state/token_gates": Tensor("... n", "1"),
    "in/state/thresholds": Tensor("... n", "parameters.bias.threshold", low=0.0),
    "in/y_bar": Tensor("... T d_out", "no gradients"),
}

MEMORY, STATE, BAR = "in/memory/", "in/state/", "in/state_bar/"

#: Tensors of the memory function: its fast ones in the state, and their cotangents.
KINDS = ("weights", "momentum", "reference")

#: Axes of a tensor of the memory in the schema.
OWN = "its own (MEMFUN-2); leading axes in front broadcast against those of in/k"
OF_ROWS = "leading axes of in/k (under coupling batch_shared 1 in place of the first), its own"


def table(config: Config, present: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Inputs that a case of these settings may hold, and the reasons against others."""
    allowed = dict(SEQUENCE)
    refused: dict[str, str] = {}
    c = config.convention

    def refuse(name: str, why: str) -> None:
        del allowed[name]
        refused[name] = why

    if c.gate == "none":
        refuse("in/retain", "gate none has no retain gate")
    if c.rate == "none":
        refuse("in/step_size", "rate none has no step size")
    if c.rate != "split":
        refuse("in/step_size_memory", f"rate {c.rate} has one rate; it belongs to rate split")
    else:
        allowed["in/step_size_memory"] = SEQUENCE["in/step_size_memory"]._replace(need="yes")
    if "in/window_gate" not in present:
        refuse("in/state/token_gates", "no token brings a weight here")
    if config.bias.kind != "huber":
        for name in ("in/threshold", "in/state/thresholds"):
            refuse(name, f"bias {config.bias.kind} has none; it belongs to bias huber")
    elif "in/threshold" not in present:
        refuse("in/state/thresholds", "no token brings a threshold here")
    kinds = _kinds(config, present)
    network = "" if config.deep_momentum is None else PREFIX
    if config.deep_momentum is not None:
        allowed["in/momentum"] = SEQUENCE["in/momentum"]._replace(need="yes")
    for name in config.tensors:
        allowed[MEMORY + name] = Tensor(name)
    for kind in KINDS:
        fast = config.momentum_shapes if kind == "momentum" else config.fast_shapes
        for name in dict.fromkeys((*parameters.names(config), *fast)):
            for prefix, need in ((STATE, "its beginning"), (BAR, "0")):
                key = f"{prefix}{kind}/{name}"
                if kinds[kind]:
                    refused[key] = kinds[kind]
                elif name not in fast:
                    refused[key] = "no write moves it"
                else:
                    own = network + name if kind == "momentum" else name
                    allowed[key] = Tensor(own, need)
    return allowed, refused


def _kinds(config: Config, present: Mapping[str, Any]) -> dict[str, str]:
    """Why a state has no tensors of a kind; "" where it has."""
    c = config.convention
    frozen = c.frozen_reference or c.read == "chunk_start"
    return {
        "weights": "",
        "momentum": "" if "in/momentum" in present else "it needs a momentum gate",
        "reference": ""
        if frozen
        else "the reference is not frozen and no read needs the start of a span",
    }


def check_inputs(header: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs in order; refuse a missing, misnamed or misshapen one (DEEPCASE-3, DEEPCASE-4).

    Raises:
        ValueError: names the tensor, what was found and what is needed.
    """
    sizes: dict[str, Any] = {}
    for name in ("in/k", "in/v"):
        if name not in inputs:
            raise ValueError(f"{name}: missing, axes {_words(SEQUENCE[name])} are needed")
        bind_dims(name, inputs[name].shape, SEQUENCE[name].axes, sizes)
    check_sizes(sizes, "n")
    config = parameters.config(header, sizes["d_in"][0], sizes["d_out"][0])
    tensors, refused = table(config, inputs)
    _check_names(header, inputs, tensors, refused)
    sizes["c"] = (config.window, "parameters.window")
    shapes = config.tensors
    ordered = {name: inputs[name] for name in tensors if name in inputs}
    for name, value in ordered.items():
        if name in SEQUENCE:
            bind_dims(name, value.shape, tensors[name].axes, sizes)
            check_values(name, value, tensors[name])
        else:
            own = tensors[name].axes  # which names the tensor of the memory
            _check_leading(config, name, value.shape, shapes[own], sizes["..."][0])
            check_values(name, value, Tensor("", low=_least(config, name)))
    check_sizes(sizes, "n")
    _check_window(config, ordered)
    _check_history(config, ordered, sizes)
    return ordered


def _words(tensor: Tensor) -> str:
    return f"({', '.join(tensor.axes.split())})"


def _check_names(
    header: Any,
    inputs: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    refused: Mapping[str, str],
) -> None:
    has = f"rule {header.rule}; it has {', '.join(tensors)}"
    refuse_unknown(inputs, tensors, refused, has)
    for name, tensor in tensors.items():
        if tensor.need == "yes" and name not in inputs:
            axes = _words(tensor) if name in SEQUENCE else "its own and perhaps leading ones"
            raise ValueError(f"{name}: missing, axes {axes} are needed")
    for prefix in (STATE + kind for kind in KINDS):
        _check_whole(prefix, inputs, tensors)
    if "in/state/keys" in inputs or "in/state/values" in inputs:
        for name in ("in/state/keys", "in/state/values"):
            if name not in inputs:
                raise ValueError(f"{name}: missing, axes {_words(SEQUENCE[name])} are needed")
    else:
        for name in ("in/state/token_gates", "in/state/thresholds"):
            if name in inputs:
                raise ValueError(f"{name}: needs in/state/keys, the tokens that brought them")


def _check_whole(prefix: str, inputs: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Refuse one fast tensor of a state without the others."""
    own = [name for name in tensors if name.startswith(f"{prefix}/")]
    some = [name for name in own if name in inputs]
    for name in own if some else ():
        if name not in inputs:
            raise ValueError(f"{name}: missing beside {some[0]}")


def _check_leading(
    config: Config,
    name: str,
    found: tuple[int, ...],
    own: tuple[int, ...],
    leading: tuple[int, ...],
) -> None:
    """Check a tensor of the memory: its own axes, and those of the rows in front."""
    shared = config.coupling == "batch_shared" and leading
    lead = (1, *leading[1:]) if shared else leading
    if name.startswith(MEMORY):
        check_front(name, found, own, lead if _fast(config, name) else leading)
    elif found != (*lead, *own):
        raise ValueError(f"{name}: shape {found}, expected {(*lead, *own)}")


def _least(config: Config, name: str) -> float | None:
    """The least entry of weights that have logarithms (DEEP-32); None for any other tensor."""
    tensor = name.removeprefix(MEMORY)
    for kind in ("weights", "reference") if config.retention.stays_positive else ():
        tensor = tensor.removeprefix(f"{STATE}{kind}/")
    matrix = len(config.fast_shapes.get(tensor, ())) == 2
    return 0.0 if config.retention.positive and matrix else None


def _fast(config: Config, name: str) -> bool:
    own = name.removeprefix(MEMORY)
    return own in config.fast_shapes or own.startswith(PREFIX)


def _check_window(config: Config, inputs: Mapping[str, Any]) -> None:
    """Refuse learned weights of a window that no tensor brings (DEEP-7)."""
    if "in/window_weights" in inputs:
        return
    needs = learned(config.window_weights)
    by_lag = [name for name in needs if name == "window_logits"]
    if by_lag or (needs and "in/window_gate" not in inputs):
        name = "in/window_weights" if by_lag else "in/window_gate"
        raise ValueError(
            f"{name}: missing, parameters.window_weights of kind {config.window_weights.kind} "
            "needs it"
        )


def _check_history(config: Config, inputs: Mapping[str, Any], sizes: Mapping[str, Any]) -> None:
    """Refuse tokens from before that are not those of the place in the document (DEEP-5)."""
    position = int(inputs.get("in/state/position", 0))
    held = sizes["n"][0] if "n" in sizes else 0
    due = position % int(config.chunk)
    most = min(position, config.window - 1 + due)
    least = min(due, most)
    if not least <= held <= most:
        what = "in/state/keys" if held or due else "in/state/position"
        raise ValueError(
            f"{what}: {held} tokens at position {position} of the document, {least} to {most} "
            f"are needed for chunk {config.chunk} and window {config.window}"
        )


def numbers(header: Any, inputs: Mapping[str, Any]) -> int:
    """Numbers of the largest array: tokens of a window, or a memory of each row (CASE-2)."""
    k, v = inputs["in/k"], inputs["in/v"]
    config = parameters.config(header, k.shape[-1], v.shape[-1])
    shapes = config.tensors
    rows, T = math.prod(k.shape[:-2]), k.shape[-2]
    widest = max(config.d_in, config.d_out, *(max(shape, default=1) for shape in shapes.values()))
    largest = max(math.prod(shape) for shape in shapes.values())
    held = min(config.window, T + config.window - 1)
    return int(rows * max((T + held) * widest, largest))
