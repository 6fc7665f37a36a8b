"""A kernel of the linear family as an answer to cases of rule dplr.

NumPy alone, and nothing of atlas_ref: copy this file beside your kernel. A `Kernel` says how yours
takes the tensors of a case, and is what `--impl` calls:

    mine = Kernel(kernel, KDA, member="kda")

    atlas-ref check kda.safetensors --impl module:mine

It converts what a case and a kernel have each their own way: the place of the head axis, packed
sequences (cu_seqlens), heads that share keys, logarithms of gates, states (K, V) or (V, K). The
gradients of your kernel go back through the same conversions. What a case asks beyond what the
kernel takes is NOT SUPPORTED, and never answered by something else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]

#: Argument of a kernel -> tensor of a case: Kimi Delta Attention with the names of fla.
KDA = {
    "q": "q",
    "k": "k",
    "v": "v",
    "g": "log_retain",
    "beta": "beta",
    "initial_state": "M0",
    "cu_seqlens": "cu_seqlens",
}

#: The same with the gate inside, as fla has it under use_gate_in_kernel: raw numbers, and tensors of
#: heads (H,) and (H, K). Its settings are {"gate_formula": "softplus"}.
KDA_WITH_GATE = {**KDA, "g": "gate_input", "A_log": "gate_log_rate", "dt_bias": "gate_bias"}

#: Tensors of heads, which all tokens share.
OF_HEADS = ("gate_log_rate", "gate_bias", "gate_floor")

STATES = ("M0", "M_bar")
COTANGENTS = {"y_bar", "M_bar"}

#: Parameters of a case that are about layout alone, which this file converts.
CONVERTED = ("member", "groups", "state_layout")

#: Parameters of a case that a kernel may take as an argument.
NUMBERS = ("steps", "query_scale")

#: How a kernel takes a gate -> its value and its derivative, from the gate of a case or from its log.
GATES: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "retain of retain": (lambda w: w, np.ones_like),
    "log_retain of retain": (np.log, lambda w: 1 / w),
    "log2_retain of retain": (np.log2, lambda w: 1 / (w * np.log(2.0))),
    "retain of log_retain": (np.exp, np.exp),
    "log_retain of log_retain": (lambda g: g, np.ones_like),
    "log2_retain of log_retain": (lambda g: g / np.log(2.0), lambda g: 0 * g + 1 / np.log(2.0)),
}


class Kernel(NamedTuple):
    """A kernel, and how it takes the tensors of a case.

    Attributes:
        call: the kernel, of arrays by the names of `arguments`; returns o and the final state,
            which may be None.
        arguments: argument -> tensor of a case without `in/`; `log_retain`, `log2_retain` and
            `retain` are the gate in whichever form the case has it, `cu_seqlens` the starts of packed
            sequences and the end of the last, `steps` and `query_scale` parameters of the case.
            An argument whose tensor a case does not have is not passed.
        member: of specs/dplr_cases.md, what the kernel computes.
        gradients: (arguments, cotangent of o, cotangent of the final state or None) -> gradient by
            argument, in the layout of the kernel; None where there is no backward.
        head_axis: 2 for (B, T, H, D), 1 for (B, H, T, D).
        state: axes of a state behind (B, H): "(d_in, d_out)", (K, V), or "(d_out, d_in)".
        options: further arguments, the same in every call, as chunk_size; a tensor of the case has
            precedence.
        settings: further parameters that a case has to state, as {"k_norm": "l2"}.
        grouped: whether q and k have fewer heads than v where a case shares them; otherwise the
            rows of each are repeated for the value heads before the call.
        channels: whether a gate has one number for each key channel. Where it has, one of a whole
            head is repeated.
        returns_state: whether there is a final state.
        chunk: what the number of tokens has to be a multiple of.
    """

    call: Callable[..., tuple[Array, Array | None]]
    arguments: Mapping[str, str]
    member: str
    gradients: Callable[[dict[str, Any], Array, Array | None], Mapping[str, Any]] | None = None
    head_axis: int = 2
    state: str = "(d_in, d_out)"
    options: Mapping[str, Any] = {}
    settings: Mapping[str, Any] = {}
    grouped: bool = False
    channels: bool = True
    returns_state: bool = True
    chunk: int = 1

    def __call__(self, case: Mapping[str, Any], inputs: Mapping[str, Array]) -> Arrays:
        """Results of a case, for `--impl`.

        Raises:
            NotImplementedError: the case asks for what the kernel does not compute.
        """
        if why := self.refusal(case, inputs):
            raise NotImplementedError(why)
        call = Conversion.of(self, case, inputs)
        arguments = call.arguments()
        y, M = self.call(**{**self.options, **arguments})
        results = {"y": call.from_kernel("y", np.asarray(y))}
        if M is not None:
            results["M"] = call.last_state(np.asarray(M))
        if self.gradients is None or "y_bar" not in inputs:
            return results
        bars = [call.to_kernel(n, inputs[n]) if n in inputs else None for n in ("y_bar", "M_bar")]
        gradients = self.gradients({**self.options, **arguments}, *bars)
        return results | call.gradients(gradients)

    def refusal(self, case: Mapping[str, Any], inputs: Mapping[str, Array]) -> str:
        """What the case asks beyond the kernel; empty where it asks nothing."""
        own = case.get("parameters") or {}
        if case["rule"] != "dplr" or own.get("member") != self.member:
            return f"{case['rule']} {own.get('member', '')}: it computes {self.member} of rule dplr"
        taken = set(self.arguments.values())
        for name, value in own.items():
            free = name in CONVERTED or name in taken or (name, value) == ("steps", 1)
            if not free and (name not in self.settings or self.settings[name] != value):
                return (
                    f"parameters.{name} {value}: it computes {self.settings.get(name, 'its own')}"
                )
        if wanting := [name for name in self.settings if name not in own]:
            return f"parameters.{wanting[0]}: it computes {self.settings[wanting[0]]}"
        return self._beyond(inputs, taken)

    def _beyond(self, inputs: Mapping[str, Array], taken: set[str]) -> str:
        if taken & {"retain", "log_retain", "log2_retain"}:
            taken = taken | {"retain", "log_retain"}
        if "cu_seqlens" in taken:
            taken = taken | {"reset"}
        for name in inputs:
            if name not in taken | COTANGENTS:
                return f"in/{name}: it takes none"
        if "M_bar" in inputs and not self.returns_state:
            return "in/M_bar: it returns no final state"
        for name in ("retain", "log_retain"):
            if name in inputs and inputs[name].ndim == inputs["v"].ndim and not self.channels:
                return f"in/{name} for each key channel: it takes one gate a head"
        raw = inputs.get("gate_input")
        if raw is not None and (raw.ndim == inputs["v"].ndim) != self.channels:
            kind = "each key channel" if self.channels else "a head"
            return f"in/gate_input of shape {raw.shape}: it takes one for {kind}"
        for name in OF_HEADS:
            if name in inputs and inputs[name].ndim > 1 + (self.channels and "rate" not in name):
                return f"in/{name} for each row of the batch: it takes one"
        if "bonus" in inputs and inputs["bonus"].ndim > 2 and len(inputs["bonus"]) > 1:
            return "in/bonus for each row of the batch: it takes one"
        tokens = inputs["q"].shape[-2]
        return f"{tokens} tokens: it takes multiples of {self.chunk}" if tokens % self.chunk else ""


class Conversion(NamedTuple):
    """The tensors of one case in the layout of a kernel, and results back.

    Attributes:
        axes: leading axes of v; the last are heads, those before them are folded into the batch.
        starts: first tokens of the packed sequences, where the case packs any.
    """

    kernel: Kernel
    inputs: Mapping[str, Array]
    parameters: Mapping[str, Any]
    axes: tuple[int, ...]
    starts: tuple[int, ...]

    @classmethod
    def of(cls, kernel: Kernel, case: Mapping[str, Any], inputs: Mapping[str, Array]) -> Conversion:
        """The conversion for a case."""
        reset = inputs.get("reset")
        starts = () if reset is None else (0, *(int(t) for t in np.flatnonzero(reset) if t))
        own = case.get("parameters") or {}
        return cls(kernel, inputs, own, tuple(inputs["v"].shape[:-2]), starts)

    @property
    def batch(self) -> int:
        return int(np.prod(self.axes[:-1], dtype=int))

    @property
    def groups(self) -> int:
        return int(self.parameters.get("groups", 1))

    def arguments(self) -> dict[str, Any]:
        """What the kernel is called with, but for its options."""
        found: dict[str, Any] = {}
        for argument, name in self.kernel.arguments.items():
            if name == "cu_seqlens":
                if self.starts:
                    found[argument] = self.cu_seqlens()
            elif name in NUMBERS:
                found |= self._number(argument, name)
            elif (given := self._given(name)) is not None:
                found[argument] = self.to_kernel(name, given[1])
        return found

    def cu_seqlens(self) -> Array:
        """Starts of all sequences of all rows of the batch, one behind the other, and the end."""
        tokens = self.inputs["q"].shape[-2]
        starts = [b * tokens + t for b in range(self.batch) for t in self.starts]
        return np.array([*starts, self.batch * tokens], np.int64)

    def _number(self, argument: str, name: str) -> dict[str, Any]:
        if name == "steps":
            return {argument: self.parameters.get("steps", 1)}
        value = self.parameters.get(name)
        if value == "1/sqrt(d_in)":
            value = self.inputs["q"].shape[-1] ** -0.5
        return {} if value is None else {argument: float(value)}

    def _given(self, name: str) -> tuple[str, Array] | None:
        """The tensor of the case behind an argument: its name there, and its value here."""
        if not name.endswith("retain"):
            return (name, self.inputs[name]) if name in self.inputs else None
        for given in ("retain", "log_retain"):
            if given in self.inputs:
                value, _ = GATES[f"{name} of {given}"]
                with np.errstate(divide="ignore"):  # the log of a gate of 0 is -inf
                    return given, value(_wide(self.inputs[given]))
        return None

    # -- to the kernel -----------------------------------------------------------------------------

    def to_kernel(self, name: str, x: Array) -> Array:
        """A tensor of the case in the layout of the kernel."""
        if name in STATES:
            return self._state(name, x)
        if name == "bonus":
            heads = self.axes[-1] if self.axes else 1
            return np.broadcast_to(x[0] if x.ndim > 2 else x, (heads, x.shape[-1])).copy()
        if name in OF_HEADS:
            return np.broadcast_to(x, self._of_heads(name, x)).copy()
        x = self._repeated(name, x)
        x = x.reshape(self.batch, -1, *x.shape[len(self.axes) :])  # (B, H, T, ...)
        if self.starts:
            x = np.swapaxes(x, 0, 1).reshape(1, x.shape[1], -1, *x.shape[3:])
        return np.ascontiguousarray(np.swapaxes(x, 1, 2) if self.kernel.head_axis == 2 else x)

    def _of_heads(self, name: str, x: Array) -> tuple[int, ...]:
        """The shape of a tensor of heads, with channels where the gates have them."""
        channels = x.shape[-1:] if self.kernel.channels and "rate" not in name else ()
        return (self.axes[-1] if self.axes else 1, *channels)

    def _repeated(self, name: str, x: Array) -> Array:
        """Keys and queries for value heads, a gate of a head for its channels."""
        if name in ("q", "k") and self.groups > 1 and not self.kernel.grouped:
            return np.repeat(x, self.groups, axis=-3)
        if name.endswith("retain") and self.kernel.channels and x.ndim < self.inputs["v"].ndim:
            return np.repeat(x[..., None], self.inputs["k"].shape[-1], axis=-1)
        return x

    def _state(self, name: str, x: Array) -> Array:
        """A state for each sequence; the cotangent of the last memory for the last of each row."""
        x = x.reshape(self.batch, -1, *x.shape[-2:])
        x = x if self._same_layout() else np.swapaxes(x, -1, -2)
        if not self.starts:
            return np.ascontiguousarray(x)
        x = np.repeat(x, len(self.starts), axis=0)
        if name == "M_bar":
            last = np.arange(len(x)) % len(self.starts) == len(self.starts) - 1
            x = np.where(last[:, None, None, None], x, np.zeros_like(x))
        return x

    def _same_layout(self) -> bool:
        return bool(self.parameters.get("state_layout", "(d_out, d_in)") == self.kernel.state)

    # -- from the kernel ---------------------------------------------------------------------------

    def from_kernel(self, name: str, x: Array) -> Array:
        """A result or the gradient by a tensor, in the layout of the case."""
        if name == "M0":
            x = x.reshape(self.batch, -1, *x.shape[1:]).sum(axis=1)  # over packed sequences
            x = x if self._same_layout() else np.swapaxes(x, -1, -2)
            return x.reshape(self.inputs["M0"].shape)
        if name == "bonus":
            own = self.inputs["bonus"].shape
            return x.sum(axis=0) if len(own) < x.ndim else x.reshape(own)
        if name in OF_HEADS:
            own = self.inputs[name].shape
            x = x.reshape(self._of_heads(name, self.inputs[name]))
            return x.sum(axis=0) if len(own) < x.ndim else x.reshape(own)
        x = np.swapaxes(x, 1, 2) if self.kernel.head_axis == 2 else x  # (B, H, T, ...)
        if self.starts:
            x = x.reshape(x.shape[1], self.batch, -1, *x.shape[3:]).swapaxes(0, 1)
        x = self._summed(name, x)
        return np.ascontiguousarray(x.reshape(*self.axes[:-1], *self._heads(x), *x.shape[2:]))

    def _heads(self, x: Array) -> tuple[int, ...]:
        return (x.shape[1],) if self.axes else ()

    def _summed(self, name: str, x: Array) -> Array:
        """The gradient by what was repeated."""
        if name in ("q", "k") and self.groups > 1 and not self.kernel.grouped:
            return x.reshape(x.shape[0], -1, self.groups, *x.shape[2:]).sum(axis=2)
        if name.endswith("retain") and self.kernel.channels:
            given = self.inputs.get("retain", self.inputs.get("log_retain"))
            if given is not None and given.ndim < self.inputs["v"].ndim:
                return x.sum(axis=-1)
        return x

    def last_state(self, M: Array) -> Array:
        """The memory after the last token of each row of the batch."""
        M = M[len(self.starts) - 1 :: len(self.starts)] if self.starts else M
        M = M if self._same_layout() else np.swapaxes(M, -1, -2)
        return np.ascontiguousarray(M.reshape(*self.axes, *M.shape[-2:]))

    def gradients(self, found: Mapping[str, Any]) -> Arrays:
        """Gradients by the tensors of the case, from those by arguments of the kernel.

        That by a gate of 0 is left out where the kernel takes logarithms: there is none.
        """
        results: Arrays = {}
        for argument, gradient in found.items():
            name = self.kernel.arguments.get(argument, "")
            given = self._given(name) if gradient is not None else None
            if given is None:
                continue
            x = self.from_kernel(name, np.asarray(gradient))
            if name.endswith("retain"):
                own = _wide(self.inputs[given[0]])
                if given[0] == "retain" and name != "retain" and (own == 0).any():
                    continue
                x = x * GATES[f"{name} of {given[0]}"][1](own)
            results[f"grad/{given[0]}"] = x
        return results


def _wide(x: Array) -> Array:
    """Gates of 16 bits in float32, in which kernels take their logarithms."""
    return x.astype(np.float32) if x.dtype.itemsize == 2 else x
