"""A rule of memory as data: its facts and its functions.

Each rule module makes one `Rule`; `atlas_ref.rules.RULES` lists them. No other file compares names
of rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from atlas_ref.parts import feature_maps
from atlas_ref.parts.feature_maps import FeatureMap
from atlas_ref.parts.gates import Gates
from atlas_ref.types import Array
from tape import ops


def rows(config: Any, state: Any, keys: Array, values: Array) -> Iterable[tuple[Array, Array]]:
    """Key and value of each token alone, for rules without a window."""
    return zip(ops.moveaxis(keys, -2, 0), ops.moveaxis(values, -2, 0), strict=True)


def whole_chunks(*_: Any) -> Any:
    """Refuse the step of one token, for a rule that writes whole chunks.

    Raises:
        TypeError: what to call.
    """
    raise TypeError("the rule writes whole chunks: call rules.sequence.run")


def no_tensors(*_: Any) -> dict[str, Any]:
    """No tensors, for a rule whose memory takes none."""
    return {}


def first_reference(config: Any, state: Any) -> Any:
    """The state whose reference call_start is taken anew at the next token (CONV-31)."""
    return state.replaced(reference=None, position=0)


def by_name(names: Mapping[str, str]) -> dict[str, str]:
    """Clause of each name, from the names of each clause with spaces between them."""
    return {name: clause for clause, text in names.items() for name in text.split()}


class Rule(NamedTuple):
    """Facts and functions of one rule.

    Attributes:
        name: of the rule in cases, specs and tables.
        gates: names of its gates.
        clauses: clause of each op ("residual", "M", ...), of each result ("out/y", else "out"), of
            each gradient ("grad/k", else "grad") and of each adjoint of an op ("trace_grad/M", else
            "trace_grad").
        has_error: whether a residual is taken against a memory, at a step size.
        has_momentum: whether a second matrix S carries gradients on.
        has_window: whether a write looks at earlier tokens, and a feature map may lift the keys.
        has_newton_schulz: whether Newton-Schulz may orthogonalise its updates.
        structure, bias, retention: three of MIRAS's four knobs (DEEP-35): what a memory may be, what
            a write minimises, what it keeps; the fourth is `algorithm`.
        in_family: whether it is S_t = m S + a g, M_t = r M - b S of a linear residual (CHUNK-2),
            which the parallel forms, traces and tolerances compute; for another rule they refuse.
        memories: fields of the state that a document may start from, and `start` takes.
        like: field of the state that has its precision.
        Config, State: classes of its settings and of its state.
        start, restart: the state before the first token of a call; the same at the start of a
            packed sequence.
        write, rest, read: one token that writes, one that only enters the window, one query.
        enter: pairs that the tokens of one packed sequence bring to `write` and `rest`: their own
            key and value, or the window that they have entered.
        run: drives a whole sequence, as `rules.sequence.run` does, for a rule that writes chunks;
            `write`, `rest`, `read` and `enter` then do nothing.
        tensors: shapes of what a memory takes beside projections and gates, by name, from a
            configuration: of its feature map, or of its first weights. An axis that only the
            tensors tell is a word.
        draw: the same tensors drawn with a seed, for each of some heads or for all.
        next_document, renewed: the state at the start of a document, from the one from which
            documents start and the one before; the state whose reference call_start is taken anew.
    """

    name: str
    gates: tuple[str, ...]
    clauses: Mapping[str, str]
    has_error: bool
    has_momentum: bool
    has_window: bool
    has_newton_schulz: bool
    Config: Any
    State: Any
    start: Callable[..., Any]
    restart: Callable[[Any, Any], Any]
    write: Callable[[Any, Any, Array, Array, Gates], Any] = whole_chunks
    rest: Callable[..., Any] = whole_chunks
    read: Callable[[Any, Any, Array], Array] = whole_chunks
    enter: Callable[[Any, Any, Array, Array], Iterable[tuple[Array, Array]]] = rows
    structure: tuple[str, ...] = ("matrix",)
    bias: tuple[str, ...] = ("l2",)
    retention: tuple[str, ...] = ("l2",)
    in_family: bool = False
    memories: tuple[str, ...] = ("M",)
    like: str = "M"
    run: Callable[..., tuple[Any, Array]] | None = None
    tensors: Callable[[Any], Mapping[str, tuple[int | str, ...]]] = no_tensors
    draw: Callable[[Any, int], dict[str, Array]] = no_tensors
    next_document: Callable[[Any, Any, Any], Any] | None = None
    renewed: Callable[[Any, Any], Any] = first_reference

    @property
    def algorithm(self) -> tuple[str, ...]:
        """The fourth knob: how a write descends, each with or without those behind it (DEEP-35)."""
        momentum = ("momentum",) if self.has_momentum else ()
        orthogonal = ("newton_schulz",) if self.has_newton_schulz else ()
        return ("gradient_descent", *momentum, *orthogonal)

    def anew(self, config: Any, tokens: Any, state: Any) -> Any:
        """The state at the start of a packed sequence of a call that began in `state` (CONV-33).

        Without a momentum gate S_0 is 0: what stands in S is the window's last momentum, which the
        reset drops with the others (GATES-4, WINDOW-16).
        """
        first = self.restart(config, state)
        if tokens.momentum is None and self.averages_momenta(config):
            return first.replaced(S=ops.zeros_like(first.S))
        return first

    def document(self, config: Any, origin: Any, state: Any) -> Any:
        """The state where a document starts, `origin` being that from which documents start."""
        if self.next_document is None:
            return self.restart(config, origin)
        return self.next_document(config, origin, state)

    def window(self, config: Any) -> int:
        """Tokens that a write looks at; 1 for a rule without a window."""
        return int(config.window) if self.has_window else 1

    def d_phi(self, config: Any) -> int:
        """Columns of the memory."""
        return int(config.d_phi if self.has_window else config.d_in)

    def feature_map(self, config: Any) -> FeatureMap:
        """Map of keys and queries; the identity for a rule without one."""
        return config.feature_map if self.has_window else feature_maps.IDENTITY

    def averages_momenta(self, config: Any) -> bool:
        """Whether the window averages momenta instead of gradients (CONV-16)."""
        return self.has_window and config.convention.order == "momentum_then_window"

    def reads_nothing(self, config: Any) -> bool:
        """Whether residuals do not depend on the memory: no error, a zero reference or a surrogate."""
        return not self.has_error or config.convention.reference in ("zero", "surrogate")

    def learns_residual(self, config: Any) -> bool:
        """Whether a learned vector stands in the place of the residual (SURROGATE-1)."""
        return self.has_error and bool(config.convention.reference == "surrogate")
