"""Subjects of the oracle as data: one `Subject` holds all that the rest of the oracle uses.

A new subject is one file of this folder and one row of `registry.ENTRIES`: cases of it are then read,
made, evaluated, checked and swept, and their tolerances measured.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from atlas_ref.conventions import Convention
from atlas_ref.oracle.cases.tensor_spec import Legal, Position, Tensor, frozen_tensors, phi_of
from atlas_ref.oracle.drawing import Drawing
from atlas_ref.oracle.family.arithmetic import Arithmetic
from atlas_ref.oracle.subjects.base.calls import Calls
from atlas_ref.oracle.subjects.base.search import Search
from atlas_ref.parts import feature_maps
from atlas_ref.rules import Rule
from atlas_ref.types import Array

if TYPE_CHECKING:
    from atlas_ref.oracle.cases.case import Case

#: Results that are the state of a memory, or were it at an earlier token.
STATES = re.compile("out/(M|S|M_ref|window_momentum)")


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
    """The loop of a subject with a hook at every op (DEEPCASE-12).

    Attributes:
        ops: (case) -> name, inputs and clause of each op, in the order of the loop.
        run: (case, inputs, hook, arithmetic, readings) -> results, the hook called as
            `oracle.replay.loop.run_ops` calls it.
        tokens: (case, op) -> tokens that compute it; None for all of them.
        leading: (case) -> leading axes of its tensors.
        given: (case) -> ops whose value is a tensor of the case as it is.
        has_chunks: whether its trace may be one of chunks; `run` then takes `begin` too, which is
            called before each token with the state that it finds (REPLAY-19).
    """

    ops: Callable[[Any], list[tuple[str, tuple[str, ...], str]]]
    run: Callable[..., dict[str, Array]]
    tokens: Callable[[Any, str], tuple[int, ...] | None] = lambda case, op: None
    leading: Callable[[Any], int] = lambda case: int(case.inputs["in/k"].ndim) - 2
    given: Callable[[Any], set[str]] = lambda case: set()
    has_chunks: bool = False


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


def _no_table(header: Any, convention: Any, names: set[str]) -> Legal:
    raise ValueError(f"rule {header.rule}: its tensors stand in no table of all rules")


def _no_form(case: Case, form: str, chunk: int | None) -> None:
    if form != "sequential" or chunk is not None:
        raise ValueError(f"form: the rule {case.header.rule} has no sequence")


def memory_shape(header: Any, inputs: Mapping[str, Any]) -> tuple[int, int]:
    """Rows and columns of the memory: (d_out, d_phi); (0, 0) of what has no keys."""
    k, v, axis = (
        ("in/k", "in/v", -1)
        if header.level == "projected"
        else ("in/param/W_K", "in/param/W_V", -2)
    )
    if k not in inputs:  # of hgrn, whose state is no matrix (RECUR-3)
        return 0, 0
    d_phi = feature_maps.d_phi(header.feature_map, inputs[k].shape[axis], phi_of(inputs))
    return int(inputs[v].shape[axis]), d_phi


class Subject(NamedTuple):
    """One value of the header key `rule`, and everything that the oracle knows of it.

    Attributes:
        name: of the header key `rule`.
        cotangent: input that gradients need.
        clauses: clause of each result and gradient, by name or by "out" and "grad", and of adjoints
            ("trace_grad").
        evaluate: (inputs, case, form, chunk) -> results and the position in the span after them
            (CASE-12, CASE-13).
        plain: (inputs, case, rounding) -> the same results in a legal arithmetic, by a program of
            its own.
        check_header: refuses keys and parameters.
        checked: (header, inputs) -> the inputs in order; refuses them as CASE-16.
        clause: (header, name of a result) -> its clause.
        numbers: (header, inputs) -> numbers of the largest array that an evaluation makes.
        needs: (case) -> what needs that array, in words with their verb.
        void: (case) -> settings without effect, each with the reason (CASE-18).
        result: (header) -> the main result, whose absence is a verdict.
        results: names of results that some case has; None where they are those of the table of all
            rules.
        legal: tensors of a case, from (header, convention in force, names present).
        draw: (request, header, generator, d_phi) -> random inputs, and the shape of the cotangent;
            None where cases are recorded alone, or drawn level by level.
        draw_states: (request, header, inputs, generator) -> first states that `draw` leaves out,
            and cotangents of the last; None where there is no state.
        sample: parameters of a new case that leaves them open.
        drawn: settings of a new case that other rules do not have.
        presets: settings of new cases by a name.
        rule: the rule, where the subject is a memory.
        argument: the only input of a subject without tokens; "" for a sequence.
        tensors: of a subject without tokens, beside those of its feature map.
        shape: (header, inputs) -> rows and columns of the memory, or of the argument of
            Newton-Schulz; 0, 0 of neither.
        keys: header keys of its own, name -> type; `registry.ENTRIES` describes them.
        has_axes: whether a convention of its own can change its results; a block has one per level.
        has_newton_schulz: whether its convention may set Newton-Schulz.
        has_feature_map: whether the header may choose one.
        has_gate_axis: whether the header may state the axis of its gates (GATES-15).
        has_parameters: whether its settings stand in the header key `parameters`.
        has_convention: whether its header has one convention.
        has_levels: whether `parts` are levels, each with a name in front of its tensors.
        convention: (header) -> the convention in force.
        parts: (case) -> the cases that it is made of.
        instead: what to use where a tool looks into one memory; "" where this is one that every
            such tool takes.
        why_nothing: (header) -> why nothing can be used instead; "" where it can.
        undecided: (case, dtype) -> why results in a format have no verdict; "" where they have.
        is_memory: whether `instead` is of one memory that these tools do not take.
        along: results with tokens on `axis`, counted from the end.
        in_time: (case, verdicts) -> these with the place in time of what is wrong first.
        constants: (header) -> inputs that nothing trains.
        loss: (header) -> a result that gradients are of, without a cotangent; "" for none.
        no_loss: (header, inputs) -> why this case has no such result, so that it has no gradients;
            "" where it has one.
        complete: whether an answer has to have all results, and not the main one alone.
        between: (header, inputs) -> shapes of results between, q or attn, that have a gradient.
        weighs: (header) -> of a cotangent that weighs other results than the one of its name, these.
        continued: (case) -> parameters that another call after this one needs otherwise (CASE-13).
        tolerance: relative error allowed in float64, and the clause that says so.
        tolerance_of: (header) -> another such error and clause for this case; None for the same.
        measured: whether a result in float64 beyond that is judged by the case too (CASE-22).
        states: names of results that are the state of a memory (TOL-8); None without one.
        state_dtype: (header) -> the format that a case declares for its state (TOL-8), None for none.
        undeclared: (case) -> parameters that a case may state of a correct program, which widen
            tolerances alone, the widest last.
        features: (case) -> names of features that it has beside gradients (SRC-21).
        missed: (case) -> what kernels tend to miss of it, in words (CASE-27).
        check_form: (case, form, chunk) -> None; refuses a form that does not compute it.
        tried_forms: names of forms in which its vectors are computed too.
        traced: its loop, op by op; None where it has none.
        search: how identify explains its results; None where there is nothing to search.
        searched: readings of its own, where `search` is over these.
        drawing: what a sweep draws of it; None where it draws no case.
        calls: how a call of it is cut; None where that is not done.
    """

    name: str
    cotangent: str
    clauses: Mapping[str, str]
    evaluate: Callable[
        [Mapping[str, Array], Any, str, int | None], tuple[dict[str, Array], Position]
    ]
    plain: Callable[[Mapping[str, Array], Any, Rounding], dict[str, Array]]
    check_header: Callable[[Any], None]
    checked: Callable[[Any, Mapping[str, Any]], dict[str, Any]]
    clause: Callable[[Any, str], str]
    numbers: Callable[[Any, Mapping[str, Any]], int]
    needs: Callable[[Any], str] = lambda case: f"{case.title} needs"
    void: Callable[[Any], dict[str, str]] = lambda case: {}
    result: Callable[[Any], str] = lambda header: "out/y"
    results: re.Pattern[str] | None = None
    legal: Callable[[Any, Any, set[str]], Legal] = _no_table
    draw: Callable[[Any, Any, Any, int], tuple[dict[str, Array], tuple[int, ...]]] | None = None
    draw_states: Callable[[Any, Any, Mapping[str, Array], Any], dict[str, Array]] | None = None
    sample: Mapping[str, Any] = {}
    drawn: tuple[str, ...] = ()
    presets: Mapping[str, Preset] = {}
    rule: Rule | None = None
    argument: str = ""
    tensors: Mapping[str, Tensor] = {}
    shape: Callable[[Any, Mapping[str, Any]], tuple[int, int]] = memory_shape
    keys: Mapping[str, Any] = {}
    has_axes: bool = False
    has_newton_schulz: bool = False
    has_feature_map: bool = False
    has_gate_axis: bool = False
    has_parameters: bool = False
    has_convention: bool = False
    has_levels: bool = False
    convention: Callable[[Any], Convention] = lambda header: Convention()
    parts: Callable[[Any], list[Any]] = lambda case: [case]
    instead: str = ""
    why_nothing: Callable[[Any], str] = lambda header: ""
    undecided: Callable[[Any, str], str] = lambda case, dtype: ""
    is_memory: bool = False
    along: tuple[str, ...] = ("out/y",)
    axis: int = -2
    in_time: Callable[[Any, Any], list[Any]] = lambda case, rows: list(rows)
    constants: Callable[[Any], set[str]] = lambda header: frozen_tensors(header)
    loss: Callable[[Any], str] = lambda header: ""
    no_loss: Callable[[Any, Mapping[str, Any]], str] = lambda header, inputs: ""
    complete: bool = False
    between: Callable[[Any, Mapping[str, Any]], dict[str, tuple[int, ...]]] = (
        lambda header, inputs: {}
    )
    weighs: Callable[[Any], Mapping[str, tuple[str, ...]]] = lambda header: {}
    continued: Callable[[Any], Mapping[str, Any]] = lambda case: {}
    tolerance: tuple[float, str] = (1e-12, "fixed for float64 (CASE-20)")
    tolerance_of: Callable[[Any], tuple[float, str] | None] = lambda header: None
    measured: bool = False
    states: re.Pattern[str] | None = STATES
    state_dtype: Callable[[Any], str | None] = lambda header: None
    undeclared: Callable[[Any], list[dict[str, Any]]] = lambda case: []
    features: Callable[[Any], set[str]] = lambda case: set()
    missed: Callable[[Any], tuple[str, ...]] = lambda case: ()
    check_form: Callable[[Any, str, int | None], None] = _no_form
    tried_forms: tuple[str, ...] = ()
    traced: Traced | None = None
    search: Search | None = None
    searched: Searched | None = None
    drawing: Drawing | None = None
    calls: Calls | None = None

    def title(self, header: Any) -> str:
        """The rule, and of a layer its name, in messages."""
        return " ".join([self.name, *(getattr(header, key) for key in self.keys)])

    @property
    def has_tokens(self) -> bool:
        """Whether its input is a sequence of tokens."""
        return not self.argument

    @property
    def has_sequence(self) -> bool:
        """Whether its convention says what is done with a sequence of tokens."""
        return self.has_axes and self.has_tokens

    @property
    def needs_newton_schulz(self) -> bool:
        """Whether it is Newton-Schulz alone, so that no convention is without."""
        return self.has_newton_schulz and not self.has_tokens
