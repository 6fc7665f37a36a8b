"""The tensors of a case in the layout of a kernel, and results and gradients back.

The second file of `kernels`, which lies beside it: NumPy alone, and nothing of atlas_ref.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from .kernels import Kernel

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]

#: Tensors of heads, which all tokens share.
OF_HEADS = ("gate_log_rate", "gate_bias", "gate_floor")

#: States that lie as matrices, and those of one axis of keys; the last is of key heads.
MATRICES, VECTORS = ("M", "S"), ("z", "A")

#: First states and cotangents of the last, by the state.
STATES = {f"{state}{end}": state for state in MATRICES + VECTORS for end in ("0", "_bar")}

#: Parameters of a case that a kernel may take as an argument.
NUMBERS = ("steps", "query_scale")

#: Tensors that are read with, or that a read is weighed by: a silent token has them too.
READ = ("q", "y", "y_bar")

#: Tensors that have the heads of keys, which value heads share.
OF_KEYS = ("q", "k", "log_retain_precond", "beta_precond", "A", "A0", "A_bar")

#: Tensors whose last axis is that of values, where they have one behind the tokens.
OF_VALUES = ("v", "y", "y_bar", "write_gate", "erase_scale")

#: How a kernel takes a gate -> its value and its derivative, from the gate of a case or from its log.
GATES: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "retain of retain": (lambda w: w, np.ones_like),
    "log_retain of retain": (np.log, lambda w: 1 / w),
    "log2_retain of retain": (np.log2, lambda w: 1 / (w * np.log(2.0))),
    "retain of log_retain": (np.exp, np.exp),
    "log_retain of log_retain": (lambda g: g, np.ones_like),
    "log2_retain of log_retain": (lambda g: g / np.log(2.0), lambda g: 0 * g + 1 / np.log(2.0)),
}


#: A gate that quarters a memory.
QUARTER = {"retain": 0.25, "log_retain": math.log(0.25), "log2_retain": -2.0}


class Conversion(NamedTuple):
    """The tensors of one case in the layout of a kernel, and results back.

    Attributes:
        axes: leading axes of v; the last are heads, those before them are folded into the batch.
        starts: first tokens of the packed sequences, where the case packs any.
        sizes, full: d_in, d_out and tokens of the case, and of the kernel, which are the same
            where nothing is filled up.
    """

    kernel: Kernel
    inputs: Mapping[str, Array]
    parameters: Mapping[str, Any]
    axes: tuple[int, ...]
    starts: tuple[int, ...]
    sizes: tuple[int, int, int]
    full: tuple[int, int, int]

    @classmethod
    def of(cls, kernel: Kernel, case: Mapping[str, Any], inputs: Mapping[str, Array]) -> Conversion:
        """The conversion for a case."""
        reset, q, v = inputs.get("reset"), inputs["q"], inputs["v"]
        starts = () if reset is None else (0, *(int(t) for t in np.flatnonzero(reset) if t))
        if "sequences" in inputs:
            starts = tuple(int(t) for t in inputs["sequences"][:-1])
        own = case.get("parameters") or {}
        sizes = (int(q.shape[-1]), int(v.shape[-1]), int(q.shape[-2]))
        d_in, d_out, tokens = (
            -(-n // to) * to for n, to in zip(sizes, kernel.multiples, strict=True)
        )
        return cls(kernel, inputs, own, tuple(v.shape[:-2]), starts, sizes, (d_in, d_out, tokens))

    @property
    def batch(self) -> int:
        return int(np.prod(self.axes[:-1], dtype=int))

    @property
    def groups(self) -> int:
        return int(self.parameters.get("groups", 1))

    @property
    def guards(self) -> int:
        """Rows of a batch in front of the case's, whose results are dropped.

        All packed sequences of in/reset start from one memory. So one row alone gets another in front
        of it, which starts from four times that memory, a factor that no kernel has by mistake, and
        quarters it at its first token: a kernel that takes the first state of another sequence is
        wrong by that factor, and one that goes on from the last state of the sequence before is
        wrong as if there were no resets.
        """
        given = "M0" in self.inputs and "M0" in self.kernel.arguments.values()
        return int(bool(self.starts) and self.batch == 1 and given and not self.own_states)

    @property
    def own_states(self) -> bool:
        """Whether each packed sequence has states of its own, in front of the axes of a state."""
        return "sequences" in self.inputs

    @property
    def rows(self) -> int:
        return self.guards + self.batch

    def _scaled(self, name: str, x: Array) -> Array:
        """Reads under the scale of the case, where that of the kernel is of the filled-up width.

        Queries where reads are divided, since it cancels there but for an epsilon.
        """
        if self.sizes[0] == self.full[0] or "query_scale" in self.kernel.arguments.values():
            return x
        if name not in (("q",) if self.kernel.divides_reads else ("y", "y_bar")):
            return x
        if self.kernel.parameters["query_scale"] != "1/sqrt(d_in)":
            return x
        return (_wide(x) * math.sqrt(self.full[0] / self.sizes[0])).astype(x.dtype)

    def arguments(self) -> dict[str, Any]:
        """What the kernel is called with, but for its options."""
        found: dict[str, Any] = {}
        for argument, name in self.kernel.arguments.items():
            if name == "cu_seqlens":
                if self.starts:
                    found[argument] = self.cu_seqlens()
            elif name in NUMBERS:
                found |= self._number(argument, name)
            elif name == "has_initial_state" and name in self.inputs:
                found[argument] = np.tile(self.inputs[name].astype(bool), self.batch)
            elif (given := self._given(name)) is not None:
                found[argument] = self.to_kernel(name, given[1])
        return found

    def cu_seqlens(self) -> Array:
        """Starts of all sequences of all rows of the batch, one behind the other, and the end."""
        tokens = self.full[2]
        starts = [b * tokens + t for b in range(self.rows) for t in self.starts]
        return np.array([*starts, self.rows * tokens], np.int64)

    def _number(self, argument: str, name: str) -> dict[str, Any]:
        if name == "steps":
            return {argument: self.parameters.get("steps", 1)}
        value = self.parameters.get(name)
        if value is None and self.full[0] != self.sizes[0]:  # its default is of the wrong width
            value = self.kernel.parameters[name]
        if value == "1/sqrt(d_in)":
            value = self.sizes[0] ** -0.5
        return {} if value is None else {argument: float(value)}

    def _given(self, name: str) -> tuple[str, Array] | None:
        """The tensor of the case behind an argument: its name there, and its value here.

        A gate that the case leaves out is 1, and has no name there.
        """
        if not name.endswith("retain"):
            return (name, self.inputs[name]) if name in self.inputs else None
        for given in ("retain", "log_retain"):
            if given in self.inputs:
                value, _ = GATES[f"{name} of {given}"]
                with np.errstate(divide="ignore"):  # the log of a gate of 0 is -inf
                    return given, value(_wide(self.inputs[given]))
        shape = (*self.axes, self.sizes[2])
        return "", _wide(np.full(shape, float(name == "retain"), self.inputs["v"].dtype))

    # -- to the kernel -----------------------------------------------------------------------------

    def to_kernel(self, name: str, x: Array) -> Array:
        """A tensor of the case in the layout of the kernel."""
        if name in STATES:
            return self._state(name, x)
        if name == "bonus":
            heads = self.axes[-1] if self.axes else 1
            x = self._filled(name, x[0] if x.ndim > 2 else x)
            return np.broadcast_to(x, (heads, x.shape[-1])).copy()
        if name in OF_HEADS:
            return np.broadcast_to(self._filled(name, x), self._of_heads(name, x)).copy()
        x = self._filled(name, self._silenced(name, self._scaled(name, x)))
        x = self._repeated(name, x)
        x = x.reshape(self.batch, -1, *x.shape[len(self.axes) :])  # (B, H, T, ...)
        if self.starts:
            x = self._guarded(name, x)
            x = np.swapaxes(x, 0, 1).reshape(1, x.shape[1], -1, *x.shape[3:])
        return np.ascontiguousarray(np.swapaxes(x, 1, 2) if self.kernel.head_axis == 2 else x)

    def _guarded(self, name: str, x: Array) -> Array:
        """Rows of a batch (B, H, ...) behind those of the guards."""
        before = np.full((self.guards, *x.shape[1:]), _still(name), x.dtype)
        if name in QUARTER:
            before[:, :, :1] = QUARTER[name]
        return np.concatenate([4 * x[: self.guards] if name == "M0" else before, x])

    def _silenced(self, name: str, x: Array) -> Array:
        """A silent token with a gate of 1, which writes and erases nothing."""
        if "active" not in self.inputs or name in READ:
            return x
        return np.where(self._active(x), x, np.full((), _still(name), x.dtype))

    def _active(self, x: Array) -> Array:
        """Whether the token of an entry is active."""
        tokens = np.asarray(self.inputs["active"]).astype(bool)
        behind = (1,) * (x.ndim - len(self.axes) - 1)
        return np.repeat(tokens, x.shape[len(self.axes)] // len(tokens)).reshape(-1, *behind)

    def _filled(self, name: str, x: Array) -> Array:
        """Widths and tokens up to those of the kernel, with what changes no result."""
        if self.sizes == self.full:
            return x
        wanted, axis = list(x.shape), len(self.axes)
        if name == "bonus" or name in OF_HEADS:
            if self._has_channels(name, x):
                wanted[-1] = self.full[0]
        else:
            wanted[axis] = x.shape[axis] // self.sizes[2] * self.full[2]
            if x.ndim > axis + 1:
                wanted[-1] = self.full[self._width(name, x)]
        changes = [(0, to - n) for n, to in zip(x.shape, wanted, strict=True)]
        return np.pad(x, changes, constant_values=np.full((), _still(name), x.dtype))

    def _width(self, name: str, x: Array) -> int:
        """Whether the last axis of a tensor of tokens is of keys, 0, or of values, 1."""
        rates = name in ("beta", "beta_input") and not self.kernel.has_vector_beta
        return int(name in OF_VALUES or rates)

    def _has_channels(self, name: str, x: Array) -> bool:
        return name == "bonus" or (self.kernel.channels and "rate" not in name)

    def _of_heads(self, name: str, x: Array) -> tuple[int, ...]:
        """The shape of a tensor of heads, with channels where the gates have them."""
        channels = (self.full[0],) if self._has_channels(name, x) else ()
        return (self.axes[-1] if self.axes else 1, *channels)

    def _repeated(self, name: str, x: Array) -> Array:
        """Keys and queries for value heads, a gate or a rate of a head for its channels."""
        if self._repeats(name):
            return np.repeat(x, self.groups, axis=len(self.axes) - 1)
        if width := self._spread(name, x.ndim):
            return np.repeat(x[..., None], width, axis=-1)
        return x

    def _spread(self, name: str, rank: int) -> int:
        """The channels that one number of a token is repeated for; 0 where it is not."""
        if rank != len(self.axes) + 1:
            return 0
        if name.endswith("retain") and self.kernel.channels:
            return self.full[0]
        rates = name in ("beta", "beta_input") and not self.kernel.has_vector_beta
        return self.full[1] if rates and self.kernel.rates == "value" else 0

    def _state(self, name: str, x: Array) -> Array:
        """A state for each sequence, row by row; the cotangent of a last one for the last of each."""
        if self.own_states:
            firsts = self._of_initial(name, x)
            each = np.stack([self._of_rows(name, one) for one in firsts], axis=1)
            return np.ascontiguousarray(each.reshape(-1, *each.shape[2:]))
        x = self._of_rows(name, x)
        if not self.starts:
            return np.ascontiguousarray(x)
        x = np.repeat(self._guarded(name, x), len(self.starts), axis=0)
        if name.endswith("_bar"):
            last = np.arange(len(x)) % len(self.starts) == len(self.starts) - 1
            x = np.where(last.reshape(-1, *(1,) * (x.ndim - 1)), x, np.zeros_like(x))
        return x

    def _of_rows(self, name: str, x: Array) -> Array:
        """A state of the case for each row of the batch: (B, H, ...)."""
        if self._repeats(name):
            x = np.repeat(x, self.groups, axis=len(self.axes) - 1)
            if name.endswith("_bar"):  # the copies are one state, of which `last_state` takes one
                copy = np.arange(x.shape[len(self.axes) - 1]) % self.groups
                x = np.where(copy[:, None] == 0, x, np.zeros_like(x))
        x = x.reshape(self.batch, -1, *x.shape[len(self.axes) :])
        x = self._turned(x) if STATES[name] in MATRICES else x
        sizes = self._state_sizes(STATES[name], self.full)
        behind = [(0, to - n) for n, to in zip(x.shape[2:], sizes, strict=True)]
        return np.pad(x, [(0, 0), (0, 0), *behind])

    def _of_initial(self, name: str, x: Array) -> Array:
        """Zeros in the place of a first state, or its gradient, that a sequence has not."""
        if "has_initial_state" not in self.inputs or name.endswith("_bar"):
            return x
        has = np.asarray(self.inputs["has_initial_state"], bool)
        return np.where(has.reshape(-1, *(1,) * (x.ndim - 1)), x, np.zeros_like(x))

    def _repeats(self, name: str) -> bool:
        """Whether a tensor of key heads is handed over for each value head."""
        return name in OF_KEYS and self.groups > 1 and not self.kernel.grouped

    def _turned(self, x: Array) -> Array:
        """A state from the layout of the case to that of the kernel, or back."""
        same = self.parameters.get("state_layout", "(d_out, d_in)") == self.kernel.state
        return x if same else np.swapaxes(x, -1, -2)

    def _state_sizes(self, state: str, sizes: tuple[int, int, int]) -> tuple[int, ...]:
        """The axes of a state of the kernel."""
        d_in, d_out, _ = sizes
        if state in VECTORS:
            return (d_in,)
        return (d_in, d_out) if self.kernel.state == "(d_in, d_out)" else (d_out, d_in)

    # -- from the kernel ---------------------------------------------------------------------------

    def from_kernel(self, name: str, x: Array) -> Array:
        """A result or the gradient by a tensor, in the layout of the case."""
        if name in STATES:
            x = x.reshape(self.rows, -1, *x.shape[1:])[self.guards :]
            # over packed sequences, where all have one
            each = np.moveaxis(x, 1, 0) if self.own_states else [x.sum(axis=1)]
            own = [self._summed(name, self._cut_state(STATES[name], one)) for one in each]
            return self._of_initial(name, np.stack(own).reshape(self.inputs[name].shape))
        if name == "bonus" or name in OF_HEADS:
            own = self.inputs[name].shape
            x = x.reshape(self._of_heads(name, self.inputs[name]))
            x = x[..., : own[-1]] if self._has_channels(name, x) else x
            return x.sum(axis=0) if len(own) < x.ndim else x.reshape(own)
        x = np.swapaxes(x, 1, 2) if self.kernel.head_axis == 2 else x  # (B, H, T, ...)
        if self.starts:
            x = x.reshape(x.shape[1], self.rows, -1, *x.shape[3:]).swapaxes(0, 1)[self.guards :]
        x = self._summed(name, self._cut(name, x))
        x = np.ascontiguousarray(x.reshape(*self.axes[:-1], *self._heads(x), *x.shape[2:]))
        if "active" in self.inputs and name not in READ:
            return np.where(self._active(x), x, np.zeros_like(x))
        return self._scaled(name, x)

    def _cut(self, name: str, x: Array) -> Array:
        """A tensor (B, H, T, ...) without what was filled up."""
        x = x[:, :, : x.shape[2] // self.full[2] * self.sizes[2]]
        return x[..., : self.sizes[self._width(name, x)]] if x.ndim > 3 else x

    def _cut_state(self, state: str, x: Array) -> Array:
        """A state in the layout of the case, without what was filled up."""
        sizes = self._state_sizes(state, self.sizes)
        parts: tuple[Any, ...] = (..., *(slice(0, size) for size in sizes))
        x = x[parts]
        return self._turned(x) if state in MATRICES else x

    def _heads(self, x: Array) -> tuple[int, ...]:
        return (x.shape[1],) if self.axes else ()

    def _summed(self, name: str, x: Array) -> Array:
        """The gradient by what was repeated."""
        if self._repeats(name):
            x = x.reshape(x.shape[0], -1, self.groups, *x.shape[2:])
            return np.asarray(x.sum(axis=2))
        if (given := self._given(name)) is not None and self._spread(name, given[1].ndim):
            return np.asarray(x.sum(axis=-1))
        return x

    def last_state(self, state: str, x: Array) -> Array:
        """A state after the last token of each row of the batch, or each of its sequences."""
        count = len(self.starts)
        if self.own_states:
            return np.stack([self._last(state, x[n::count]) for n in range(count)])
        return self._last(state, x[count - 1 :: count] if count else x)

    def _last(self, state: str, x: Array) -> Array:
        x = self._cut_state(state, x[self.guards :])
        x = x[:, :: self.groups] if self._repeats(state) else x
        return np.ascontiguousarray(x.reshape(*self.axes[:-1], *self._heads(x), *x.shape[2:]))

    def gradients(self, found: Mapping[str, Any]) -> Arrays:
        """Gradients by the tensors of the case, from those by arguments of the kernel.

        That by a gate of 0 is left out where the kernel takes logarithms: there is none.
        """
        results: Arrays = {}
        for argument, gradient in found.items():
            name = self.kernel.arguments.get(argument, "")
            given = self._given(name) if name and gradient is not None else None
            if given is None or given[0] not in self.inputs:
                continue
            x = self.from_kernel(name, np.asarray(gradient))
            if name.endswith("retain"):
                own = _wide(self.inputs[given[0]])
                if given[0] == "retain" and name != "retain" and (own == 0).any():
                    continue
                x = x * GATES[f"{name} of {given[0]}"][1](own)
            results[f"grad/{given[0]}"] = x
        return results


def _still(name: str) -> float:
    """What a tensor is where nothing fades, is written or is erased: a gate 1, all else 0."""
    return float(name in ("retain", "gate_floor"))


def _wide(x: Array) -> Array:
    """Gates of 16 bits in float32, in which kernels take their logarithms."""
    return x.astype(np.float32) if x.dtype.itemsize == 2 else x
