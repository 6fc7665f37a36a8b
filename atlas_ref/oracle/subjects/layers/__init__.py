"""A layer or model of cases as data, and what evaluates it call by call.

A further one is an entry of `layer.ENTRIES` and one of `atlas_ref.models.MODULES`. Specified in
specs/layer_cases.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from atlas_ref.models import atlas_rnn
from atlas_ref.oracle.cases.tensor_spec import Tensor, under
from atlas_ref.types import Array
from tape import ops

#: The clause of gradients, of most layers.
GRADIENTS = {"grad": "LAYER-8"}


class Call(NamedTuple):
    """What one evaluation of a module has at hand.

    Attributes:
        settings: constructor arguments, a model of `atlas_rnn`.
        config, params: ours.
        inputs: in/..., arrays or variables.
    """

    entry: Entry
    settings: Any
    config: Any
    params: Any
    inputs: Mapping[str, Array]


def nothing(*_: Any) -> dict[str, Any]:
    """No tensors, or no values without effect."""
    return {}


class States(NamedTuple):
    """The state between calls, by its names in files (LAYER-7).

    Attributes:
        prefix: cache in in/cache/k and out/cache/k.
        finish: (config, state) -> tensors by name.
        tensors: (settings) -> name -> tensor; all of them are in a case, or none. A layer that
            public code only starts from nothing has none.
        start: (config, tensors by name) -> state.
        each: whether the states after each call but the last are results too,
            out/state_after_call0/...
    """

    prefix: str
    finish: Callable[[Any, Any], dict[str, Array]]
    tensors: Callable[[Any], dict[str, Tensor]] = nothing
    start: Callable[[Any, Mapping[str, Array]], Any] = nothing
    each: bool = False


def few(settings: Any, inputs: Mapping[str, Any]) -> int:
    """The numbers of the largest input, of a module that makes no larger array."""
    return max(int(value.size) for value in inputs.values())


class Entry(NamedTuple):
    """A layer or model of cases.

    Attributes:
        module: its settings, and its parameters by public names.
        tensors: (settings) -> inputs beside in/param/... and the state, in order.
        run: (call) -> results by their full names.
        clauses: of each result by its full name or by the part before its last "/", and of
            "grad".
        states: None for a module without state.
        result: the main result, or (settings) -> its name.
        loss: a result that gradients are of, without a cotangent, or (settings) -> its name.
        no_loss: (inputs) -> why there is no such result; "" where there is one.
        check: (settings, lengths of axes with what they come from), refuses what does not fit.
        void: (settings, inputs) -> parameters without effect, each with the reason.
        numbers: (settings, inputs) -> numbers of the largest array that it makes.
        between: (settings, inputs) -> shapes of results between, whose gradients are results too.
        constants: inputs without a gradient of their own, beside buffers and momenta.
        weighs: of a cotangent that weighs other results than the one of its name, these.
        fits: (settings, inputs), refuses values that contradict each other.
        tolerance: (settings) -> relative error allowed in float64 and why, where it is another one.
    """

    module: atlas_rnn.Module
    tensors: Callable[[Any], dict[str, Tensor]]
    run: Callable[[Call], dict[str, Array]]
    clauses: Mapping[str, str]
    states: States | None = None
    result: str | Callable[[Any], str] = "out/y"
    loss: str | Callable[[Any], str] = ""
    no_loss: Callable[[Mapping[str, Any]], str] = lambda inputs: ""
    check: Callable[[Any, Mapping[str, Any]], object] = nothing
    void: Callable[[Any, Mapping[str, Any]], dict[str, str]] = nothing
    numbers: Callable[[Any, Mapping[str, Any]], int] = few
    between: Callable[[Any, Mapping[str, Any]], dict[str, tuple[int, ...]]] = nothing
    constants: tuple[str, ...] = ()
    weighs: Mapping[str, tuple[str, ...]] = {}
    fits: Callable[[Any, Mapping[str, Any]], object] = nothing
    tolerance: Callable[[Any], tuple[float, str] | None] = lambda settings: None


def idle(settings: Any, reasons: Mapping[str, str]) -> dict[str, str]:
    """Arguments that are set and change nothing, each with the reason (LAYER-12)."""
    fields = type(settings).model_fields
    return {
        f"parameters.{name}": why
        for name, why in reasons.items()
        if why and getattr(settings, name) != fields[name].default
    }


def sequence(axes: str) -> Callable[[Any], dict[str, Tensor]]:
    """Tokens in/x, and the cotangent of as many results."""
    return lambda settings: {"in/x": Tensor(axes), "in/y_bar": Tensor(axes, "no gradients")}


def with_zero(call: Call, name: str, value: Array) -> Array:
    """A value between, and the zero of its name where its gradient is asked for (LAYER-17)."""
    zero = call.inputs.get(f"in/{name}")
    return value if zero is None else value + zero


def in_calls(call: Call) -> dict[str, Array]:
    """Results of one call after another, each with the state after the one before (LAYER-7)."""
    x, layer, states = call.inputs["in/x"], call.entry.module.layer, call.entry.states
    state, rows, first = first_state(call), [], 0
    after: dict[str, Array] = {}
    calls = getattr(call.settings, "calls", None) or [x.shape[-2]]
    for number, tokens in enumerate(calls):
        state, y = layer.apply(call.config, call.params, state, x[..., first : first + tokens, :])
        rows.append(y)
        first += tokens
        last = number == len(calls) - 1
        if states is not None and (last or states.each):
            place = states.prefix if last else f"{states.prefix}_after_call{number}"
            after |= {
                f"out/{place}/{name}": each
                for name, each in states.finish(call.config, state).items()
            }
    return {"out/y": rows[0] if len(rows) == 1 else ops.concatenate(rows, axis=-2), **after}


def check_calls(settings: Any, sizes: Mapping[str, Any]) -> None:
    """Refuse calls that are not all tokens (LAYER-7)."""
    calls = getattr(settings, "calls", None)
    if calls is not None and sum(calls) != sizes["T"][0]:
        size, by = sizes["T"]
        raise ValueError(f"parameters.calls: {sum(calls)} tokens in all, but {by} has {size}")


def first_state(call: Call) -> Any:
    """The state that a case starts with: that of its tensors, or nothing."""
    states = call.entry.states
    own = {} if states is None else of_state(states, call.inputs)
    if states is not None and own:
        return states.start(call.config, own)
    x = call.inputs["in/x"]
    return call.entry.module.layer.start(call.config, x.shape[0], dtype=x.dtype)


def of_state(states: States, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Tensors of the initial state by name."""
    return under(inputs, f"in/{states.prefix}/")
