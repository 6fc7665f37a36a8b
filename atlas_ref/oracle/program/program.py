"""A program as data: tensors, settings, a longhand loop with a hook at every op, mistakes.

Every tool of the oracle is a function of a `Program`: what it does is in `derive`. Specified in
specs/program.md (PROG-1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

from atlas_ref.oracle.cases.tensor_spec import Tensor
from atlas_ref.oracle.program.context import Context, Inputs
from atlas_ref.oracle.program.hook import Hook
from atlas_ref.oracle.program.reading import Reading
from atlas_ref.types import Array

Shapes = Mapping[str, tuple[int, ...]]

#: Readings of what a loop runs on.
Readings = Callable[[Any], Iterable[Reading]]

#: What a loop returns: reads as "y", and states by their names, in the layout of the rule.
Results = dict[str, Array]


def refuse_nothing(inputs: Inputs, settings: Any) -> None:
    """Refuse nothing beside what shapes and ranges say."""


class Setting(NamedTuple):
    """A parameter of a case with the values that tools try (PROG-5).

    Attributes:
        values: those that a search tries, or (context) -> these; none for one that shapes decide.
        drawn: those of a sweep, the plainest first; none where `new` decides.
        matters: (context) -> whether another value can change results.
        function: (context, value) -> what decides results: values of one are one function.
        heads: whether it counts value heads of a key head, which are cut with it.
        stated: its name in a case; `parameters.NAME` where left out.
        get, put: (settings) -> its value, and (settings, value) -> settings, where it is no field.
        said: a value as a case states it.
    """

    name: str
    values: tuple[Any, ...] | Callable[[Any], Iterable[Any]] = ()
    drawn: tuple[Any, ...] = ()
    matters: Callable[[Context], bool] = lambda context: True
    function: Callable[[Context, Any], Any] = lambda context, value: value
    heads: bool = False
    stated: str = ""
    get: Callable[[Any], Any] | None = None
    put: Callable[[Any, Any], Any] | None = None
    said: Callable[[Any], Any] = lambda value: value

    @property
    def key(self) -> str:
        """Its name in a case."""
        return self.stated or f"parameters.{self.name}"

    def own(self, settings: Any) -> Any:
        """Its value in some settings."""
        return getattr(settings, self.name) if self.get is None else self.get(settings)

    def candidates(self, context: Context) -> Iterable[Any]:
        """The values that a search tries in a case, its own among them or not."""
        return self.values(context) if callable(self.values) else self.values

    def change(self, settings: Any, value: Any) -> Any:
        """Settings with another value of it."""
        if self.put is None:
            return settings.replaced(**{self.name: value})
        return self.put(settings, value)


class Program(NamedTuple):
    """A rule of the oracle, from which traces, searches, sweeps and calls are derived (PROG-1).

    Attributes:
        tensors: inputs in order, masks and cotangents among them.
        shapes: (inputs, settings) -> shapes of inputs and states in the layout of the rule, by the name
            without `in/`; "y" of its reads.
        states: names of what a token leaves to the next, each an op with a first value in/NAME0, a
            cotangent in/NAME_bar and a result out/NAME.
        matrices: ops that lie in the layout of the case, without the number behind a name; states too.
        settings: parameters of its cases.
        loop: (context, hook) -> results, longhand, clause by clause.
        rounding: op -> what rounds it beside the arithmetic: "touch" of computed gates, "store" of a
            state; a number behind a name is left out.
        clause: of results and ops but those of `clauses`.
        clauses: (settings, inputs) -> op -> its clause; without a step or a number of a level it is that of all, and
            as PART/ that of all ops with this part in front.
        listing: ops in the order of a trace, by their whole names or without a step, where steps of ops
            that stand side by side stand together; none for the order of the loop. Of ops with a part in
            front, the part; others come first.
        behind: inputs that are listed behind the other inputs of an op.
        sparse: whether an op has the tokens alone that compute it, where others do not too.
        follows: whether arguments of ops may be computed of values that have names, without one of their
            own: these are then found as a derivative is.
        tokens_of_ops: (inputs) -> those of some tokens, which compute all ops between them; None where
            that takes all tokens.
        mistakes: readings that are wrong, beside those that every program may have; or (context) -> all
            mistakes of a case.
        others: (context) -> readings of settings that depend on one another, beside `settings`.
        further: (context) -> mistakes that are tried last (IDENT-17).
        presets: (context) -> name of a whole reading -> the settings that it changes.
        draw: (request, settings, generator) -> inputs where nothing grows; None where a subject draws.
        first: (name of a state, numbers, settings) -> one that it can have before the first token;
            None where that is zero.
        check: (inputs, settings) -> refuse what no shape and no range says, by ValueError.
        continued: (inputs, settings) -> parameters of the call that follows.
        cuts: (inputs, settings, token) -> whether a call may be cut before a token.
        resets_to_zero: (settings) -> whether a reset starts from zero, not from the first state.
        formulas: (hook) -> the context of the loop, where formulas make inputs of raw numbers, through
            points that a reading may wrap; None without any.
        raw: these numbers.
        context: what the loop runs on, with questions of its own.
        steps: (settings) -> steps of a token, each with a row of inputs.
        step_ops: ops that each step computes.
        later: whether it came after a published draw: a sweep draws it and its settings where it is
            fixed alone (SWEEP-14).
    """

    name: str
    tensors: Mapping[str, Tensor]
    shapes: Callable[[Inputs, Any], Shapes]
    states: tuple[str, ...]
    matrices: tuple[str, ...]
    settings: tuple[Setting, ...]
    loop: Callable[[Any, Hook], Results]
    rounding: Mapping[str, Literal["touch", "store"]]
    clause: str
    draw: Callable[[Any, Any, Any], dict[str, Array]] | None = None
    clauses: Callable[[Any, Inputs], Mapping[str, str]] = lambda settings, x: {}
    listing: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    sparse: bool = False
    follows: bool = False
    tokens_of_ops: Callable[[Inputs], Inputs] | None = None
    mistakes: tuple[Reading, ...] | Readings = ()
    others: Readings = lambda context: ()
    further: Readings = lambda context: ()
    presets: Callable[[Any], Mapping[str, list[Reading]]] = lambda context: {}
    first: Callable[[str, Any, Any], Any] = lambda name, x, settings: x
    check: Callable[[Inputs, Any], None] = refuse_nothing
    continued: Callable[[Inputs, Any], Mapping[str, Any]] = lambda x, settings: {}
    cuts: Callable[[Inputs, Any, int], bool] = lambda x, settings, t: True
    resets_to_zero: Callable[[Any], bool] = lambda settings: False
    formulas: Callable[[Hook], Context] | None = None
    raw: tuple[str, ...] = ()
    context: type[Context] = Context
    steps: Callable[[Any], int] = lambda settings: 1
    step_ops: tuple[str, ...] = ()
    later: bool = False
