"""Subjects of the oracle as data: one `Subject` holds all that the rest of the oracle uses.

A new subject is one file of this folder and one row of `registry.ENTRIES`: cases of it are then read,
made, evaluated, checked and swept, and their tolerances measured.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from atlas_ref.oracle.cases.tensor_spec import Legal, Position, Tensor
from atlas_ref.oracle.drawing import Drawing
from atlas_ref.oracle.family.arithmetic import Arithmetic
from atlas_ref.rules import Rule
from atlas_ref.types import Array

#: A rounding of the ensemble: value -> value.
Touch = Callable[[Array], Array]


class Rounding(NamedTuple):
    """The rounding of a plain evaluation (TOL-3).

    Attributes:
        way: the arithmetic of sums and products.
        touch: of mapped keys and queries and of computed gates.
        argument: of every argument of Newton-Schulz.
        store: of the state between tokens; None where it keeps the arithmetic's precision.
    """

    way: Arithmetic
    touch: Touch
    argument: Touch
    store: Touch | None


class Traced(NamedTuple):
    """The loop of a subject with a hook at every op, in place of the family's (DEEPCASE-12).

    Attributes:
        ops: (case) -> name, inputs and clause of each op, in the order of the loop.
        run: (case, inputs, hook, arithmetic, readings) -> results, the hook called as
            `oracle.replay.loop.run_ops` calls it.
        tokens: (case, op) -> tokens that compute it; None for all of them.
    """

    ops: Callable[[Any], list[tuple[str, tuple[str, ...], str]]]
    run: Callable[..., dict[str, Array]]
    tokens: Callable[[Any, str], tuple[int, ...] | None]


class Searched(NamedTuple):
    """Other readings of a subject, in place of the conventions of the family (DEEPCASE-14).

    Attributes:
        settings: (case, readings) -> readings with another value of one setting beside those; each
            has a name, a `change`, the setting with its value, and `before`, its own.
        departures: (case, readings) -> mistakes and habits that can be made in it beside those;
            each has `words`.
        presets: (case) -> name of a whole reading -> the settings that it changes.
        run: (inputs, case, rounding, readings) -> results under all of them.
        keeps: (case, reading) -> whether its ops have the tokens and shapes of the case's.
        named: name of a mistake -> the words that follow on "as if".
        word: what stands before the name of a mistake beside those of other subjects (VEC-16).
        narrow: (departure) -> whether it sums in a narrower format than the case's (DEEPCASE-15).
        further: (case) -> mistakes that are tried last, where nothing else explains results; they
            are no mutants (IDENT-17).
        overflow: (case, results, ours, dtype) -> what overflows just where results are not finite.
    """

    settings: Callable[..., list[Any]]
    departures: Callable[..., list[Any]]
    presets: Callable[[Any], Mapping[str, list[Any]]]
    run: Callable[[Mapping[str, Array], Any, Rounding, Any], dict[str, Array]]
    keeps: Callable[[Any, Any], bool]
    named: Mapping[str, str]
    word: str
    narrow: Callable[[Any], bool] = lambda departure: False
    further: Callable[[Any], list[Any]] = lambda case: []
    overflow: Callable[..., str] = lambda case, results, ours, dtype: ""


class Preset(NamedTuple):
    """Settings of a new case by one name, each of which may be changed (DEEPCASE-10).

    Attributes:
        parameters, convention: what a header states.
        without: parameters of a case -> inputs that it does not have.
    """

    parameters: Mapping[str, Any]
    convention: Mapping[str, Any]
    without: Callable[[Mapping[str, Any]], tuple[str, ...]] = lambda stated: ()


class Calls(NamedTuple):
    """How a call of a subject is cut into two that give what one gives (CONV-37).

    Attributes:
        axes: (case) -> axes of each input that has tokens, as words; T is that of the tokens, R that
            of their steps, some for each token.
        left: (name of a result) -> the input that it is in the next call; "" for none.
        returns: whether a reset goes back to the first state of its own call (CONV-33).
    """

    axes: Callable[[Any], Mapping[str, str]]
    left: Callable[[str], str]
    returns: bool = False


def state_left(name: str) -> str:
    """The input that a result is in the next call, where out/state/X is in/state/X there."""
    return name.replace("out/", "in/", 1) if name.startswith("out/state/") else ""


class Own(NamedTuple):
    """What a subject has for itself that is no convention and no table of all rules (LAYER-1).

    Attributes:
        check_header: refuses keys and parameters.
        checked: (header, inputs) -> the inputs in order; refuses them as CASE-16.
        clause: (header, name of a result) -> its clause.
        void: (header, inputs) -> values without effect, each with the reason.
        numbers: (header, inputs) -> numbers of the largest array that an evaluation makes.
        results: names of results that some case has.
        tolerance: relative error allowed in float64, and the clause that says so.
        constants: (header) -> inputs that nothing trains.
        result: (header) -> the main result.
        loss: (header) -> a result that gradients are of, without a cotangent; "" for none.
        no_loss: (header, inputs) -> why this case has no such result, so that it has no gradients;
            "" where it has one.
        between: (header, inputs) -> shapes of results between, q or attn, that have a gradient.
        measured: whether a result in float64 beyond that is judged by the case too (CASE-22).
        has_convention: whether the header has a convention all the same.
        states: names of results that are the state of a memory (TOL-8); None without one.
        state_dtype: (header) -> the format that a case declares for its state (TOL-8), None for none.
        undeclared: (case) -> parameters that a case may state of a correct program, which widen
            tolerances alone, the widest last.
        features: (case) -> names of features that it has beside gradients (SRC-21).
        weighs: (header) -> of a cotangent that weighs other results than the one of its name, these.
        tolerance_of: (header) -> another such error and clause for this case; None for the same.
        traced: its loop, op by op; None where it has none.
        searched: its other readings; None where it has none.
        convention: (header) -> the convention in force, where it is that of another rule.
        check_form: (case, form, chunk) -> None; refuses a form that does not compute it. None
            where the rule says which do.
        sample: parameters of a new case that leaves them open.
        drawn: settings of a new case that other rules do not have.
        presets: settings of new cases by a name.
        drawing: what a sweep draws of it; None where it draws no case.
        calls: how a call of it is cut; None where that is not done.
        continued: (case) -> parameters that another call after this one needs otherwise (CASE-13).
    """

    check_header: Callable[[Any], None]
    checked: Callable[[Any, Mapping[str, Any]], dict[str, Any]]
    clause: Callable[[Any, str], str]
    void: Callable[[Any, Mapping[str, Any]], dict[str, str]]
    numbers: Callable[[Any, Mapping[str, Any]], int]
    results: re.Pattern[str]
    tolerance: tuple[float, str]
    constants: Callable[[Any], set[str]] = lambda header: set()
    result: Callable[[Any], str] = lambda header: "out/y"
    loss: Callable[[Any], str] = lambda header: ""
    no_loss: Callable[[Any, Mapping[str, Any]], str] = lambda header, inputs: ""
    between: Callable[[Any, Mapping[str, Any]], dict[str, tuple[int, ...]]] = (
        lambda header, inputs: {}
    )
    measured: bool = False
    has_convention: bool = False
    states: re.Pattern[str] | None = None
    state_dtype: Callable[[Any], str | None] = lambda header: None
    undeclared: Callable[[Any], list[dict[str, Any]]] = lambda case: []
    features: Callable[[Any], set[str]] = lambda case: set()
    weighs: Callable[[Any], Mapping[str, tuple[str, ...]]] = lambda header: {}
    tolerance_of: Callable[[Any], tuple[float, str] | None] = lambda header: None
    traced: Traced | None = None
    searched: Searched | None = None
    convention: Callable[[Any], Any] | None = None
    check_form: Callable[[Any, str, int | None], None] | None = None
    sample: Mapping[str, Any] = {}
    drawn: tuple[str, ...] = ()
    presets: Mapping[str, Preset] = {}
    drawing: Drawing | None = None
    calls: Calls | None = None
    continued: Callable[[Any], Mapping[str, Any]] = lambda case: {}


def _no_table(header: Any, convention: Any, names: set[str]) -> Legal:
    raise ValueError(f"rule {header.rule}: its tensors are those of its parameters")


class Subject(NamedTuple):
    """One value of the header key `rule`, and everything that the oracle knows of it.

    Attributes:
        name: of the header key `rule`.
        result: the main one, whose absence is a verdict.
        cotangent: input that gradients need.
        clauses: clause of each result and gradient, by name or by "out" and "grad", and of adjoints
            ("trace_grad").
        evaluate: (inputs, case, form, chunk) -> results and the position in the span after them
            (CASE-12, CASE-13).
        plain: (inputs, case, rounding) -> the same results in a legal arithmetic, by a program of
            its own.
        legal: tensors of a case, from (header, convention in force, names present).
        draw: (request, header, generator, d_phi) -> random inputs, and the shape of the cotangent.
        states: (request, header, inputs, generator) -> first states that `draw` leaves out, and
            cotangents of the last; None where there is no state.
        rule: the rule, where the subject is a memory.
        argument: the only input of a subject without tokens; "" for a sequence.
        tensors: of a subject without tokens, beside those of its feature map.
        has_axes: whether a convention of its own can change its results; a block has one per level.
        has_newton_schulz: whether its convention may set Newton-Schulz.
        has_feature_map: whether the header may choose one.
        keys: header keys of its own, name -> type; `registry.ENTRIES` describes them.
        instead: what to use where a tool looks into one memory; "" where this is one that every
            such tool takes.
        why_nothing: (header) -> why nothing can be used instead; "" where it can.
        undecided: (case, dtype) -> why results in a format have no verdict; "" where they have.
        is_memory: whether `instead` is of one memory that these tools do not take.
        along: results with tokens on the last axis but one.
        own: what it has in place of a convention and a table of tensors.
        check_levels: (header) -> None; of a block, refuses levels that do not fit together.
        checked_levels: (header, inputs, build) -> of a block, its inputs in order (CASE-32).
        form_refused: (header, form, chunk) -> why a block has no such form; "" where it may.
    """

    name: str
    result: str
    cotangent: str
    clauses: Mapping[str, str]
    evaluate: Callable[
        [Mapping[str, Array], Any, str, int | None], tuple[dict[str, Array], Position]
    ]
    plain: Callable[[Mapping[str, Array], Any, Rounding], dict[str, Array]]
    legal: Callable[[Any, Any, set[str]], Legal] = _no_table
    draw: Callable[[Any, Any, Any, int], tuple[dict[str, Array], tuple[int, ...]]] | None = None
    states: Callable[[Any, Any, Mapping[str, Array], Any], dict[str, Array]] | None = None
    rule: Rule | None = None
    argument: str = ""
    tensors: Mapping[str, Tensor] = {}
    has_axes: bool = True
    has_newton_schulz: bool = False
    has_feature_map: bool = False
    keys: Mapping[str, Any] = {}
    instead: str = ""
    why_nothing: Callable[[Any], str] = lambda header: ""
    undecided: Callable[[Any, str], str] = lambda case, dtype: ""
    is_memory: bool = False
    along: tuple[str, ...] = ("out/y",)
    own: Own | None = None
    check_levels: Callable[[Any], None] = lambda header: None
    checked_levels: Callable[..., dict[str, Any]] = lambda header, inputs, build: dict(inputs)
    form_refused: Callable[[Any, str, int | None], str] = lambda header, form, chunk: ""

    def title(self, header: Any) -> str:
        """The rule, and of a layer its name, in messages."""
        return " ".join([self.name, *(getattr(header, key) for key in self.keys)])

    @property
    def traced(self) -> Traced | None:
        """Its own loop, op by op, in place of the family's."""
        return None if self.own is None else self.own.traced

    @property
    def has_tokens(self) -> bool:
        """Whether its input is a sequence of tokens."""
        return not self.argument

    @property
    def needs_newton_schulz(self) -> bool:
        """Whether it is Newton-Schulz alone, so that no convention is without."""
        return self.has_newton_schulz and not self.has_tokens
