"""A deep memory as a plain loop over its events, in any legal arithmetic (TOL-3).

It shares no code with the rule and agrees with it in float64. Every value passes through a hook,
which records it, or puts what somebody recorded in its place. Written from specs/deep_memory.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from atlas_ref.oracle.cases.tensor_spec import under
from atlas_ref.oracle.deep import functions, retentions, steps
from atlas_ref.oracle.deep.context import DeepContext
from atlas_ref.oracle.deep.functions import Function
from atlas_ref.oracle.deep.schedule import Begin, Plan, Read, Refresh, Write
from atlas_ref.oracle.deep.settings import rank
from atlas_ref.oracle.deep.write import Tensors, Tokens, Writer
from atlas_ref.oracle.program.context import Reads
from atlas_ref.oracle.program.hook import Hook, same
from atlas_ref.oracle.program.program import Results
from atlas_ref.parts.deep_momentum import PREFIX
from atlas_ref.types import Array
from tape import opaque, ops

#: Gates of a write.
GATES = ("retain", "momentum", "step_size", "step_size_memory")

#: When the weights are what a query reads.
READ = {"after": "t", "before": "t-1", "chunk_start": "start", "call_end": "end"}


def results(context: DeepContext, hook: Hook) -> Results:
    """The results of a call (DEEPCASE-6)."""
    rounding = context.rounding
    m = Function(context.settings.function, rounding.way, rounding.touch, hook.part)
    plan: Plan = hook.part("events", same, context.plan)
    return _Loop(Writer(m, hook), context.inputs, plan).results()


class _Loop:
    """One call: its tokens, its memory W, S and reference, and its reads."""

    def __init__(self, writer: Writer, inputs: Tensors, events: Plan) -> None:
        self.writer, self.inputs, self.plan = writer, inputs, events
        self.hook = writer.hook
        self.s, self.rounding = s, rounding = writer.s, writer.rounding
        k = inputs["in/k"]
        self.lead = k.shape[:-2]
        self.keys = self._with_history(
            "keys", steps.normalise(k, s.c.k_norm, s.c, rounding.touch), -2
        )
        self.values = self._with_history("values", inputs["in/v"], -2)
        self.queries = steps.normalise(inputs["in/q"], s.c.q_norm, s.c, rounding.touch)
        if s.c.query_scale != 1.0:
            self.queries = self.queries * (1.0 / np.sqrt(k.shape[-1]).item())
        self.before = self.keys.shape[-2] - k.shape[-2]
        self.gates = inputs.get("in/window_gate")
        if self.gates is not None:
            self.gates = self._with_history("token_gates", self.gates, -1)
        self.thresholds = inputs.get("in/threshold")
        if self.thresholds is not None:
            number = s.bias.threshold
            self.thresholds = self._with_history("thresholds", self.thresholds, -1, number)
        memory = under(inputs, "in/memory/")
        own = {name: x for name, x in memory.items() if not name.startswith(PREFIX)}
        self.slow = {name: x for name, x in own.items() if name not in s.fast}
        self.first = {name: self._of_rows(memory[name], rank(name)) for name in s.fast}
        before, reference = (
            under(inputs, f"in/state/{each}/") for each in ("weights", "reference")
        )
        self.W = {name: before.get(name, x) for name, x in self.first.items()}
        self.document = self.W
        self.network = {
            name: self._of_rows(memory[PREFIX + name], rank(name)) for name in s.network
        }
        self.S: dict[str, Any] = under(inputs, "in/state/momentum/") or self.network
        self.reference = {name: reference.get(name, x) for name, x in self.W.items()}
        self.reads: list[Array] = []

    def _with_history(self, name: str, own: Array, axis: int, number: float = 1.0) -> Array:
        """Tokens of the call behind those from before it; what these did not bring is the number."""
        held = self.inputs.get(f"in/state/{name}")
        if held is None and (keys := self.inputs.get("in/state/keys")) is not None:
            held = number * ops.ones_like(own, shape=(*self.lead, keys.shape[-2]))
        return own if held is None else ops.concatenate([held, own], axis=axis)

    def _of_rows(self, tensor: Array, axes: int) -> Array:
        """W_0 of each memory: of each row, or of all that share one (DEEP-6)."""
        own = tensor.shape[len(tensor.shape) - axes :]
        lead = (1, *self.lead[1:]) if self.s.shares_memory and self.lead else self.lead
        return ops.broadcast_to(tensor, (*lead, *own))

    # -- events ------------------------------------------------------------------------------------

    def results(self) -> Results:
        """Every result, after all events."""
        for event in self.plan.events:
            if isinstance(event, Begin):
                self.W = self.first if event.memory else self._weights_for_reads(self.W)
                self.S = self.network if event.momentum else self.S
                self.document = self.W
            elif isinstance(event, Refresh):
                self.reference = self.W
            elif isinstance(event, Write):
                reference = self.reference if self.s.c.reference != "running" else self.W
                self.W, self.S = self.writer.write(
                    event, self.W, self.S, reference, self._rows(event)
                )
            else:
                self._read(event)
        y = ops.concatenate(self.reads, axis=-2) if self.reads[1:] else self.reads[0]
        return {"y": y, **self._state()}

    def _read(self, event: Read) -> None:
        seen = self._weights_for_reads(self.W if event.of == "weights" else self.reference)
        part, kind, touch = self.hook.part, self.s.retention, self.rounding.touch

        def link(kind: Any, touch: Any, weights: Tensors) -> Any:
            return part("retention/seen", retentions.weights_of_function, kind, touch, weights)

        seen = part("retention/read", link, kind, touch, seen)
        when, note = READ[self.s.c.read], self.hook.context.note
        seen = {name: note(x, event.first, f"W/{name}[{when}]") for name, x in seen.items()}
        place = Reads(event.first, event.last)
        queries = self.queries[..., event.first : event.last, :]
        queries = note(queries, event.first, "in/q")
        values = functions.apply(
            self.writer.m,
            {**self._slow(event.first), **seen},
            queries,
            lambda name, compute, *args: self.hook(
                "y" if name == "y" else f"read/{name}", place, compute, *args
            ),
        )
        self.reads.append(values["y"])

    def _rows(self, event: Write) -> Tokens:
        """What a write looks at."""
        first, last = event.rows[-1] + self.before, event.rows[0] + self.before
        place = slice(first, last + 1)
        gates = {name: self._gate(name, event.token) for name in GATES}
        gates["retain"] = steps.share_of_weights(self.s.c, gates["retain"])
        context, t = self.hook.context, event.token
        weights = context.present("in/window_weights", "in/window_gate")
        thresholds = None if self.thresholds is None else self.thresholds[..., place]
        return Tokens(
            keys=context.note(self.keys[..., place, :], t, "in/k[t-j]"),
            values=context.note(self.values[..., place, :], t, "in/v[t-j]"),
            weights=context.note(self._weights(event, place), t, *weights),
            slow=self._slow(t),
            gates={name: context.note(x, t, f"in/{name}") for name, x in gates.items()},
            thresholds=context.note(thresholds, t, "in/threshold"),
        )

    def _slow(self, t: int) -> Tensors:
        """Tensors of the function that no write moves."""
        note = self.hook.context.note
        return {name: note(x, t, f"in/memory/{name}") for name, x in self.slow.items()}

    def _gate(self, name: str, token: int) -> Any:
        """A gate of a write, the mean of the rows that share a memory (DEEP-13)."""
        gate = self.inputs.get(f"in/{name}")
        if gate is None:
            return None
        own = gate[..., token]
        if not self.s.shares_memory or not own.shape:
            return own
        return steps.over_rows(self.rounding.way, own) / own.shape[0]

    def _weights(self, event: Write, place: slice) -> Array:
        """Weights of the tokens of a write, oldest first (DEEP-7)."""
        n, like = len(event.rows), self.keys
        lags = self.inputs.get("in/window_weights")
        if lags is None:
            count = self.s.window if self.s.c.window_edge == "renormalise" else n
            numbers = self.hook.part("lags", self.s.first_lags, count)
            lags = ops.ones_like(like, shape=(count,)) * np.asarray(numbers, np.dtype(like.dtype))
        else:
            lags = lags[..., event.token, :]
        if self.s.c.window_edge == "renormalise" and self.gates is None and n < self.s.window:
            whole, present = (
                ops.sum(each, axis=-1, keepdims=True) for each in (lags, lags[..., :n])
            )
            empty = ops.equal(present, 0.0)
            lags = lags * ops.where(empty, 1.0, whole / ops.where(empty, 1.0, present))
        weights = ops.flip(lags[..., :n], -1)
        return weights if self.gates is None else weights * self.gates[..., place]

    def _weights_for_reads(self, weights: dict[str, Array]) -> dict[str, Array]:
        """Weights as reads see them, by the outer gradient (DEEP-20, DEEP-21)."""
        kind = self.s.outer_gradient
        if kind == "none":
            return {name: ops.stop_gradient(x) for name, x in weights.items()}
        if kind == "straight_through":
            return {name: _straight(self.document[name], x) for name, x in weights.items()}
        return weights

    # -- results -----------------------------------------------------------------------------------

    def _state(self) -> dict[str, Array]:
        """What a next call starts from (DEEPCASE-6)."""
        out: dict[str, Any] = {}
        cut = self.s.outer_gradient in ("straight_through", "none")
        kinds = {"weights": self._weights_for_reads(self.W)}
        if "in/momentum" in self.inputs:
            kinds["momentum"] = self.S or {
                name: ops.zeros_like(x) for name, x in self.first.items()
            }
        if self.s.uses_reference:
            kinds["reference"] = self.reference
        for kind, tensors in kinds.items():
            for name, x in tensors.items():
                stopped = cut and kind != "weights"
                out[f"state/{kind}/{name}"] = ops.stop_gradient(x) if stopped else x
        held = [each + self.before for each in self.plan.held]
        if held:
            place = slice(held[0], held[-1] + 1)
            out["state/keys"] = self.keys[..., place, :]
            out["state/values"] = self.values[..., place, :]
            if self.gates is not None:
                out["state/token_gates"] = self.gates[..., place]
            if self.thresholds is not None:
                out["state/thresholds"] = self.thresholds[..., place]
        return out | {"state/position": np.asarray(self.plan.position, np.int64)}


def _straight(source: Array, value: Array) -> Array:
    if source is value:
        return value
    return pass_through(ops.broadcast_to(source, value.shape), ops.stop_gradient(value))


#: A value, whose cotangent goes to its source as it is: (source, value) -> value.
pass_through = opaque(
    lambda source, value: source + ops.stop_gradient(value - source),
    lambda source, value: (value, None),
    lambda kept, g: (g, None),
    value=lambda source, value: value,
)
