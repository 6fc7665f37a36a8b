"""A kernel of the linear family as an answer to cases of rule dplr.

NumPy alone, and nothing of atlas_ref: copy this file and `kernel_tensors.py` beside your kernel. A
`Kernel` says how yours takes the tensors of a case, and is what `--impl` calls:

    mine = Kernel(kernel, KDA, member="kda")

    atlas-ref check kda.safetensors --impl module:mine

It converts what a case and a kernel have each their own way: the place of the head axis, packed
sequences (cu_seqlens), heads that share keys, logarithms of gates, states (K, V) or (V, K), silent
tokens, widths that a kernel knows alone. The gradients of your kernel go back through the same
conversions. What a case asks beyond what the kernel takes is NOT SUPPORTED, and never answered by
something else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING or __package__:
    from .kernel_tensors import GATES, OF_HEADS, Array, Arrays, Conversion
else:  # copied beside a kernel
    from kernel_tensors import GATES, OF_HEADS, Array, Arrays, Conversion

__all__ = ["GATES", "KDA", "KDA_WITH_GATE", "MEMBERS", "Conversion", "Defaults", "Kernel"]

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

COTANGENTS = ("y_bar", "M_bar")

#: Axes of a state behind (B, H), and what has a step size: a row, or each value of one.
LAYOUTS = ("(d_in, d_out)", "(d_out, d_in)")
RATES = ("row", "value")

#: Parameters of a case that are about layout alone, which `Conversion` converts.
CONVERTED = ("member", "groups", "state_layout")

#: Parameters of a case that change no result, but tolerances alone: what a program does to its
#: state and its gates.
TOLERATED = ("state_dtype", "state_every", "log_chunk", "gate_softplus", "gate_dtype")


class Defaults(NamedTuple):
    """What a member of specs/dplr_cases.md computes where a case says nothing.

    Attributes:
        decay, query_scale, norm: values of these parameters.
        erase: formula of what is erased: none; given by the case; error, or momentum, of a step
            size; gates; alpha; kk.
        gate: tensor, that of a case; heads, one fixed number a head; none.
        second: state beside the memory: z, A or S.
        floor: whether the norm has one in place of an epsilon.
    """

    decay: str = "after_error"
    query_scale: Any = "1/sqrt(d_in)"
    norm: str = "none"
    erase: str = "none"
    gate: str = "tensor"
    second: str = ""
    floor: bool = False


_DELTA = Defaults("before_error", erase="error")

#: Member -> its defaults; None is the rule without a member.
MEMBERS: dict[str | None, Defaults] = {
    None: Defaults(query_scale=1, erase="given"),
    "linear_attn": Defaults(gate="none"),
    "retention": Defaults(gate="heads"),
    **dict.fromkeys(("simple_gla", "gla", "rwkv6"), Defaults()),
    "rwkv7": Defaults(query_scale=1, erase="kk"),
    "delta": Defaults(erase="error", gate="none"),
    **dict.fromkeys(("gated_delta", "kda", "gated_delta_product"), _DELTA),
    "gdn2": _DELTA._replace(erase="gates"),
    "comba_decay_after_erase": Defaults(erase="error"),
    "comba_decay_before_erase": _DELTA,
    "iplr": Defaults(erase="alpha", gate="none"),
    "dplr": Defaults(erase="alpha"),
    **dict.fromkeys(("qwen3_next", "kimi_linear"), _DELTA._replace(norm="l2")),
    "linear_attn_normalized": Defaults(gate="none", second="z"),
    "precond_kda": _DELTA._replace(second="A"),
    "precond_gated_delta": _DELTA._replace(norm="l2", second="A", floor=True),
    "momentum_delta": Defaults(erase="momentum", second="S"),
}


class Kernel(NamedTuple):
    """A kernel, and how it takes the tensors of a case.

    Attributes:
        call: the kernel, of arrays by the names of `arguments`; returns o and the final state,
            which may be None, and behind it that of the second state, where there is `second`.
        arguments: argument -> tensor of a case without `in/`; `log_retain`, `log2_retain` and
            `retain` are the gate in whichever form the case has it, and 1 where it has none;
            `cu_seqlens` the starts of packed sequences and the end of the last,
            `has_initial_state` which of them have a first state, where zeros would do for the
            others; `steps` and `query_scale` parameters of the case. An argument whose tensor a case does not have is
            not passed.
        member: of specs/dplr_cases.md, what the kernel computes.
        gradients: (arguments, cotangent of o, cotangent of the final state or None) -> gradient by
            argument, in the layout of the kernel; None where there is no backward. Where there is
            `second`, its cotangent or None follows.
        head_axis: 2 for (B, T, H, D), 1 for (B, H, T, D).
        state: axes of a state behind (B, H): "(d_in, d_out)", (K, V), or "(d_out, d_in)".
        options: further arguments, the same in every call, as chunk_size; a tensor of the case has
            precedence.
        settings: parameters that the kernel computes where they are not the member's own, as
            {"k_norm": "l2"}, and what a case has to declare of its tolerance, as {"log_chunk": 64}.
        grouped: whether q and k have fewer heads than v where a case shares them; otherwise the
            rows of each are repeated for the value heads before the call.
        channels: whether a gate has one number for each key channel. Where it has, one of a whole
            head is repeated.
        returns_state: whether there is a final state.
        second: whether it returns the second state of its member too: the sum of keys z (N, H, K)
            of linear_attn_normalized, A (N, H, K) of preconditioned keys, where H is key heads if
            `grouped`, the momentum S, which lies as `state` says. First ones are arguments
            for z0, A0, S0.
        chunk: what the number of tokens has to be a multiple of.
        rates: "row" where beta is one number a head, "value" where it is one for each value. There
            one of a head is repeated.
        pad: multiples that d_in and d_out are filled up to before the call: one number for both,
            (d_in, d_out), or (d_in, d_out, tokens). Keys, queries, erases and values are 0 there
            and gates 1, reads and gradients are cut, and reads scaled as the case has them.
    """

    call: Callable[..., tuple[Array | None, ...]]
    arguments: Mapping[str, str]
    member: str | None
    gradients: Callable[..., Mapping[str, Any]] | None = None
    head_axis: int = 2
    state: str = "(d_in, d_out)"
    options: Mapping[str, Any] = {}
    settings: Mapping[str, Any] = {}
    grouped: bool = False
    channels: bool = True
    returns_state: bool = True
    second: bool = False
    chunk: int = 1
    rates: str = "row"
    pad: int | tuple[int, ...] = 1

    def __call__(self, case: Mapping[str, Any], inputs: Mapping[str, Array]) -> Arrays:
        """Results of a case, for `--impl`.

        Raises:
            NotImplementedError: the case asks for what the kernel does not compute.
        """
        self.check()
        if why := self.refusal(case, inputs):
            raise NotImplementedError(why)
        call = Conversion.of(self, case, inputs)
        arguments = call.arguments()
        y, *last = self.call(**{**self.options, **arguments})
        if len(last) != len(self.states):
            needed = " and ".join(("o", *self.states))
            raise ValueError(f"Kernel.call: {1 + len(last)} results, needed are {needed}")
        results = {"y": call.from_kernel("y", np.asarray(y))}
        for state, x in zip(self.states, last, strict=True):
            if x is not None:
                results[state] = call.last_state(state, np.asarray(x))
        if self.gradients is None or "y_bar" not in inputs:
            return results
        names = ["y_bar", *(f"{state}_bar" for state in self.states)]
        bars = [call.to_kernel(n, inputs[n]) if n in inputs else None for n in names]
        gradients = self.gradients({**self.options, **arguments}, *bars)
        return results | call.gradients(gradients)

    def check(self) -> None:
        """Refuse a field that no kernel has, by name.

        Raises:
            ValueError: says the field, what was found and what is needed.
        """
        pads = self.pad if isinstance(self.pad, tuple) else (self.pad, self.pad)
        chunk, *sizes = (type(size) is int and size > 0 for size in (self.chunk, *pads))
        legal = {
            "member": (self.member in MEMBERS, f"one of {', '.join(map(str, MEMBERS))}"),
            "state": (self.state in LAYOUTS, f"one of {', '.join(map(repr, LAYOUTS))}"),
            "rates": (self.rates in RATES, f"one of {', '.join(map(repr, RATES))}"),
            "head_axis": (self.head_axis in (1, 2), "1 or 2"),
            "chunk": (chunk, "a whole number from 1"),
            "second": (
                not self.second or bool(self.member in MEMBERS and self.defaults.second),
                "False for a member with one state",
            ),
            "pad": (all(sizes) and len(pads) in (2, 3), "one, two or three whole numbers from 1"),
        }
        for name, (holds, needed) in legal.items():
            if not holds:
                raise ValueError(f"Kernel.{name}: {getattr(self, name)!r}, needed is {needed}")

    @property
    def tensors(self) -> set[str]:
        """Tensors and parameters of a case that the kernel has an argument for."""
        return set(self.arguments.values())

    @property
    def takes_gate(self) -> bool:
        """Whether it takes the gate itself, or its log."""
        return bool(self.tensors & {"retain", "log_retain", "log2_retain"})

    @property
    def states(self) -> tuple[str, ...]:
        """States that the kernel returns behind its reads, in order."""
        return ("M", self.defaults.second) if self.second else ("M",)

    @property
    def defaults(self) -> Defaults:
        return MEMBERS[self.member]

    @property
    def parameters(self) -> dict[str, Any]:
        """Every parameter of what the kernel computes."""
        return in_force(self.defaults, self.settings)

    @property
    def has_vector_beta(self) -> bool:
        """Whether beta is a vector of keys, and no step size."""
        return self.defaults.erase == "alpha"

    @property
    def divides_reads(self) -> bool:
        """Whether reads are divided by what their query finds in a sum of keys."""
        return self.defaults.second == "z"

    @property
    def multiples(self) -> tuple[int, int, int]:
        """What d_in, d_out and tokens are filled up to multiples of."""
        pad = self.pad if isinstance(self.pad, tuple) else (self.pad, self.pad)
        d_in, d_out, tokens = (*pad, 1)[:3]
        return d_in, d_out, tokens

    def refusal(self, case: Mapping[str, Any], inputs: Mapping[str, Array]) -> str:
        """What the case asks beyond the kernel; empty where it asks nothing.

        A parameter that says what the kernel computes anyway, or that has no effect, asks nothing.
        """
        own = case.get("parameters") or {}
        if case["rule"] != "dplr" or own.get("member") != self.member:
            return f"{case['rule']} {own.get('member', '')}: it computes {self.member} of rule dplr"
        asked, computed = in_force(self.defaults, own), self.parameters
        free = {*CONVERTED, *self.tensors, *self._void(asked, inputs)}
        free |= set(TOLERATED) - set(self.settings)
        for name in sorted((asked.keys() | computed.keys()) - free):
            wanted, has = (each.get(name, "none") for each in (asked, computed))
            if _number(wanted, inputs) != _number(has, inputs):
                return f"parameters.{name} {wanted}: it computes {has}"
        return self._beyond(inputs)

    def _void(self, asked: Mapping[str, Any], inputs: Mapping[str, Array]) -> set[str]:
        """Parameters without effect on the case (DPLRCASE-5)."""
        erases = self.defaults.erase not in ("none", "given") or "erase_read" in inputs
        given = {"retain", "log_retain", "gate_input"} & inputs.keys()
        void = set() if erases and (given or self.defaults.gate == "heads") else {"decay"}
        void |= set() if "active" in inputs else {"masked_read"}
        normed = "l2" in (asked["q_norm"], asked["k_norm"])
        return void if normed and not self.defaults.floor else void | {"norm_eps"}

    def _beyond(self, inputs: Mapping[str, Array]) -> str:
        taken = self.tensors | ({"retain", "log_retain"} if self.takes_gate else set())
        packed = {"reset", "sequences", "has_initial_state"}
        taken |= packed if "cu_seqlens" in taken else set()
        taken |= {"active"} if self._stills(inputs) else set()
        taken |= {*COTANGENTS, *(f"{state}_bar" for state in self.states)}
        for name in inputs:
            if name not in taken:
                return f"in/{name}: it takes none"
        if "M_bar" in inputs and not self.returns_state:
            return "in/M_bar: it returns no final state"
        if why := self._other_ranks(inputs):
            return why
        tokens = inputs["q"].shape[-2]
        if tokens % self.multiples[2] and not self._stills(inputs):
            return (
                f"{tokens} tokens: it takes multiples of {self.multiples[2]}, and none stands still"
            )
        tokens += -tokens % self.multiples[2]
        return f"{tokens} tokens: it takes multiples of {self.chunk}" if tokens % self.chunk else ""

    def _stills(self, inputs: Mapping[str, Array]) -> bool:
        """Whether a token can leave all states as they are: with a gate of 1 and no write.

        Not where gates are fixed or made of raw numbers, nor where a momentum goes on.
        """
        able = self.defaults.gate == "none" or (self.defaults.gate == "tensor" and self.takes_gate)
        return able and self.defaults.second != "S"

    def _other_ranks(self, inputs: Mapping[str, Array]) -> str:
        """A tensor with more axes than the kernel takes of it."""
        rank = inputs["v"].ndim
        if "reset" in inputs and inputs["reset"].ndim > 1:
            return "in/reset for each row of the batch: it takes one"
        for name in ("retain", "log_retain"):
            if name in inputs and inputs[name].ndim == rank and not self.channels:
                return f"in/{name} for each key channel: it takes one gate a head"
        for name in () if self.has_vector_beta or self.rates == "value" else ("beta", "beta_input"):
            if name in inputs and inputs[name].ndim == rank:
                return f"in/{name} for each value: it takes one a head"
        raw = inputs.get("gate_input")
        if raw is not None and (raw.ndim == rank) != self.channels:
            kind = "each key channel" if self.channels else "a head"
            return f"in/gate_input of shape {raw.shape}: it takes one for {kind}"
        for name in OF_HEADS:
            if name in inputs and inputs[name].ndim > 1 + (self.channels and "rate" not in name):
                return f"in/{name} for each row of the batch: it takes one"
        if "bonus" in inputs and inputs["bonus"].ndim > 2 and len(inputs["bonus"]) > 1:
            return "in/bonus for each row of the batch: it takes one"
        return ""

    def sweep_settings(self) -> dict[str, tuple[Any, ...]]:
        """Names of a sweep's space -> values that the kernel answers; others may be anything.

        `atlas-ref sweep dplr --for module:mine` draws from them (SWEEP-16).
        """
        self.check()
        own, taken, computed = self.defaults, self.tensors, self.parameters
        fixed: dict[str, tuple[Any, ...]] = {"member": (self.member,)}
        for name in ("decay", "query_scale", "q_norm", "k_norm"):
            if name not in taken and not (name == "decay" and own.erase == "none"):
                said = name in self.settings
                fixed[name] = (computed[name],) if said else (None, computed[name])
        fixed |= {"steps": (computed["steps"],)} if "steps" not in taken else {}
        if "l2" in (computed["q_norm"], computed["k_norm"]) and not own.floor:
            fixed["norm_eps"] = (computed["norm_eps"],)
        fixed |= {name: (value,) for name, value in self.settings.items() if name not in fixed}
        return fixed | self._drawn_tensors()

    def _drawn_tensors(self) -> dict[str, tuple[Any, ...]]:
        """What of a sweep's space says which tensors a case has."""
        own, taken = self.defaults, self.tensors
        fixed: dict[str, tuple[Any, ...]] = {}
        raw = "gate_input" in taken
        if own.gate == "tensor" and (raw or not self.takes_gate or not self.channels):
            kind = "channel" if self.channels else "token"
            gated = (kind, *(() if raw else (f"log_{kind}", "absent")))
            fixed["gate"] = gated if raw or self.takes_gate else ("absent",)
        if self.member is None:
            fixed |= {"erase": ("absent",)} if "erase_read" not in taken else {}
            fixed |= {"bonus": ("absent",)} if "bonus" not in taken else {}
        scaled = {"erase_scale"} & taken if self.member is None else self.rates == "value"
        fixed |= {} if scaled else {"rates": ("row",)}
        states = {"M0", *({f"{own.second}0"} if own.second else ())}
        fixed |= {} if states <= taken else {"state": ("absent",)}
        returns = self.returns_state and self.second == bool(own.second)
        fixed |= {} if returns else {"state_bar": (False,)}
        fixed |= {} if self._stills({}) else {"pulse": (1,)}
        fixed |= {} if "cu_seqlens" in taken else {"reset": (0,)}
        if self.chunk > 1 and self.multiples[2] % self.chunk:
            fixed["tokens"] = tuple(n * self.chunk for n in (1, 2, 3))
        return fixed


def in_force(own: Defaults, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters in force: those that are stated, and the defaults of the member."""
    left_out = {
        "decay": own.decay,
        "query_scale": own.query_scale,
        "q_norm": own.norm,
        "k_norm": own.norm,
        "norm_eps": 1e-6,
        "steps": 1,
        "query_groups": 1,
        "group_order": "blocks",
        "masked_read": "memory",
        "gate_normalizer": 1,
    }
    return left_out | {name: value for name, value in stated.items() if value is not None}


def _number(value: Any, inputs: Mapping[str, Array]) -> Any:
    """A scale as a number, so that that of one channel is 1."""
    return inputs["q"].shape[-1] ** -0.5 if value == "1/sqrt(d_in)" else value
