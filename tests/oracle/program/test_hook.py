"""The hook of a loop, the ops that one run of it yields, and the axes that its tensors have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from atlas_ref.oracle.cases.case import make
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.cases.tensor_spec import Tensor
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.family.arithmetic import PLAIN
from atlas_ref.oracle.program.context import Context
from atlas_ref.oracle.program.derive.axes import axes
from atlas_ref.oracle.program.derive.ops import graph, places_of_ops
from atlas_ref.oracle.program.derive.readings import others, search
from atlas_ref.oracle.program.derive.tensors import check_inputs, shapes, states
from atlas_ref.oracle.program.hook import Hook, behind, by, hook_of, same, within
from atlas_ref.oracle.program.program import Program, Results, Setting
from atlas_ref.oracle.program.reading import Reading
from atlas_ref.oracle.program.run import context_of, exact, run
from atlas_ref.oracle.recurrences.parameters import parse
from atlas_ref.oracle.subjects.subject import Rounding
from atlas_ref.oracle.sweep import split
from tape import ops, value_and_grad
from tests.support.close import ANALYTIC, assert_close
from tests.support.recurrence_cases import EVERY, case


class Settings:
    """Settings of the running sum."""

    def __init__(self, power: int = 1) -> None:
        self.power = power

    def replaced(self, **changed: Any) -> Settings:
        return Settings(**{"power": self.power, **changed})


def _added(s: Any, x: Any, power: int) -> Any:
    return s + x**power


def _loop(context: Context, hook: Hook) -> Results:
    total = first = context.first("s")
    reads = []
    for t in range(context.tokens):
        total = hook.start("s", t, total, first)
        x, power = context.row(t, "x"), context.settings.power
        writes = context.writes(t)
        total = hook("s", t, _added, total, x, power) if writes else hook.keep("s", t, total)
        reads.append(hook("y", t, lambda s: 2.0 * s, hook.read("s", total)))
    return {"y": ops.stack(reads, axis=-2), "s": total}


def _shapes(inputs: Mapping[str, Any], settings: Any) -> dict[str, tuple[int, ...]]:
    *lead, T, d = inputs["in/x"].shape
    return {"x": (*lead, T, d), "y": (*lead, T, d), "s": (*lead, d)}


#: A running sum, the smallest program.
SUM = Program(
    name="sum",
    tensors={
        "in/x": Tensor("... T d_out"),
        "in/s0": Tensor("... d_out", "0"),
        "in/s_bar": Tensor("... d_out", "0"),
        "in/active": Tensor("T", "1", mask=True),
        "in/reset": Tensor("T", "0", mask=True),
        "in/y_bar": Tensor("... T d_out", "no gradients"),
    },
    shapes=_shapes,
    states=("s",),
    matrices=(),
    settings=(Setting("power", (1, 2, 3), function=lambda context, value: min(value, 2)),),
    loop=_loop,
    rounding={"s": "store"},
    clause="PROG-1",
    draw=lambda request, settings, generator: {"in/x": generator.standard_normal((2, 4, 3))},
)

X = {"in/x": np.arange(24.0).reshape(2, 4, 3), "in/s0": np.ones((2, 3))}
MASKS = {
    "in/active": np.array([1, 1, 0, 1], np.uint8),
    "in/reset": np.array([0, 0, 0, 1], np.uint8),
}


class Case:
    """Inputs in the place of a case."""

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        self.inputs = inputs


@pytest.mark.clause("PROG-1", "PROG-2")
def test_a_run_is_the_loop_on_inputs_masks_and_settings() -> None:
    found = run(SUM, Settings(), X, exact(PLAIN))
    assert_close("y", found["out/y"], 2.0 * (1.0 + np.cumsum(X["in/x"], axis=-2)), ANALYTIC)
    masked = run(SUM, Settings(2), {**X, **MASKS}, exact(PLAIN))
    x = X["in/x"] ** 2
    assert_close("s", masked["out/s"], 1.0 + x[:, 3], ANALYTIC)
    assert_close("y", masked["out/y"][:, 2], 2.0 * (1.0 + x[:, 0] + x[:, 1]), ANALYTIC)


@pytest.mark.clause("PROG-2")
def test_the_hook_applies_readings_then_rounds_and_a_trace_sees_the_result() -> None:
    seen: dict[str, list[Any]] = {}

    def take(op: str, t: int, compute: Any, *arguments: Any) -> Any:
        value = compute(*arguments)
        seen.setdefault(op, []).append(value)
        return value

    kept = Rounding(PLAIN, lambda x: x, lambda x: x, np.floor)
    halved = Reading(
        "halved", "it were halved", ops={"s": within(lambda compute, *given: compute(*given) / 2)}
    )
    late = Reading("late", "late", ops={"read/s": lambda op, after, before: before})
    last = Reading("last", "last", ops={"out/s": lambda op, after, before: before})
    found = run(SUM, Settings(), {**X, **MASKS}, kept, (halved, late, last), take=take)
    s, before = X["in/s0"], []
    for t in range(4):
        s = X["in/s0"] if t == 3 else s
        before.append(s)
        s = s if t == 2 else np.floor((s + X["in/x"][:, t]) / 2)
        assert np.array_equal(seen["s"][t], s)
        assert np.array_equal(seen["y"][t], 2.0 * before[-1])
    assert np.array_equal(found["out/s"], before[-1])
    zero = Reading("zero", "zero", ops={"start/s": lambda op, first, before: 0.0 * first})
    assert np.array_equal(
        run(SUM, Settings(), {**X, **MASKS}, kept, (zero,))["out/s"], X["in/x"][:, 3]
    )
    twice = Reading(
        "around",
        "it ran twice",
        around=lambda compute, context, x: {"out/y": 2 * compute(x)["out/y"]},
    )
    whole = run(SUM, Settings(), X, exact(PLAIN))
    assert np.array_equal(run(SUM, Settings(), X, kept, (twice,))["out/y"], 2 * whole["out/y"])


@pytest.mark.clause("PROG-2", "PROG-4")
def test_what_an_op_is_called_with_is_traced_and_a_change_of_its_value_is_not() -> None:
    seen: dict[str, list[Any]] = {}

    def take(op: str, t: int, compute: Any, *arguments: Any) -> Any:
        seen.setdefault(op, []).append(compute(*arguments))
        return seen[op][-1]

    twice = {"s": lambda op, s, x, power: op(s, 2.0 * x, power)}
    other = {"s": by(lambda s, x, power: s - x)}
    behind_it = {"s": behind(lambda s: 10.0 * s)}
    one = {"in/x": X["in/x"][:, :1]}
    for wraps, traced, goes_on in ((twice, 2.0, 2.0), (other, -1.0, -1.0), (behind_it, 1.0, 10.0)):
        seen.clear()
        found = run(SUM, Settings(), one, exact(PLAIN), (Reading("", ops=wraps),), take=take)
        assert np.array_equal(seen["s"][0], traced * one["in/x"][:, 0])
        assert np.array_equal(found["out/s"], goes_on * one["in/x"][:, 0])


@pytest.mark.clause("PROG-4")
def test_a_reading_of_the_backward_pass_alone_leaves_values_as_they_are() -> None:
    doubled = Reading("doubled", inputs=lambda x: {**x, "in/x": 2.0 * x["in/x"]}, backward=True)
    wrong = doubled._replace(backward=False)
    for readings, value, slope in (((doubled,), 1.0, 2.0), ((wrong,), 2.0, 2.0), ((), 1.0, 1.0)):

        def total(x: Any, readings: Any = readings) -> Any:
            return ops.sum(run(SUM, Settings(), {"in/x": x}, exact(PLAIN), readings)["out/s"])

        found, got = value_and_grad(total)(X["in/x"])
        assert_close("value", found, value * X["in/x"].sum(), ANALYTIC)
        assert np.array_equal(got, np.full_like(X["in/x"], slope))


def _in_steps(context: Context, hook: Hook) -> Results:
    """A running sum whose tokens have two rows each, kept in rows that a mask names."""
    s, reads = context.first("s"), []
    for t in range(context.tokens):
        for j in (2 * t, 2 * t + 1):
            s = hook.write("s", j, s, lambda s, x: s + x, s, context.row(j, "x"))
        reads.append(hook("y", t, same, s))
    return {"y": ops.stack(reads, axis=-2), "s": s}


def _raw(hook: Hook) -> Context:
    """x is the square of a raw number."""
    context: Context = hook.context
    x = hook.point("formula/square", 0, np.square, context.inputs["in/root"])
    return context._replace(inputs={**context.inputs, "in/x": x}, sources={"in/x": ("in/root",)})


STEPS = SUM._replace(
    loop=_in_steps,
    shapes=lambda x, settings: {"y": (2, 2, 3), "s": (2, 3)},
    formulas=_raw,
    raw=("in/root",),
    steps=lambda settings: 2,
    step_ops=("s",),
)


@pytest.mark.clause("PROG-2", "PROG-3")
def test_steps_rows_of_a_mask_and_formulas_before_the_loop() -> None:
    rows = {"in/active": np.array([[1, 0], [1, 1]], np.uint8)}
    x = {**X, "in/root": X["in/x"], **rows}
    found = graph(STEPS, Settings(), Case(x))
    assert found.order() == ["step0/s", "step1/s", "y"]
    assert found.sources("step0/s") == ("step1/s[t-1]", "in/root")
    assert found.sources("step1/s") == ("step0/s", "in/root")
    assert found.sources("y") == ("step1/s",)
    square = X["in/x"] ** 2
    whole = run(STEPS, Settings(), x, exact(PLAIN))
    want = 1.0 + square.sum(axis=-2)
    want[0] -= square[0, 2:].sum(axis=-2)  # its second token is masked in the first row alone
    assert_close("s", whole["out/s"], want, ANALYTIC)
    cube = Reading("cube", ops={"formula/square": by(lambda x: x**3)})
    raw = Reading("raw", raw=lambda x: {**x, "in/root": 3.0 * x["in/root"]})
    late = Reading("late", inputs=lambda x: {**x, "in/x": 3.0 * x["in/x"]})
    for each, factor in ((raw, 9.0), (late, 3.0)):
        got = run(STEPS, Settings(), x, exact(PLAIN), (each,))["out/s"]
        assert_close(each.name, got, 1.0 + factor * (want - 1.0), ANALYTIC)
    got = run(STEPS, Settings(), x, exact(PLAIN), (cube,))["out/s"][1]
    assert_close("cube", got, 1.0 + (X["in/x"][1] ** 3).sum(axis=-2), ANALYTIC)


@pytest.mark.clause("PROG-2")
def test_a_state_in_steps_is_rounded_behind_the_last_one_also_where_nothing_is_written() -> None:
    kept = Rounding(PLAIN, lambda x: x, lambda x: x, np.floor)
    x = {**X, "in/s0": X["in/s0"] + 0.25, "in/root": np.full((2, 4, 3), np.sqrt(0.75))}
    found = run(STEPS, Settings(), x, kept)["out/y"]
    assert_close("y", found, np.array([2.0, 3.0])[:, None] * np.ones((2, 2, 3)), ANALYTIC)
    silent = run(STEPS, Settings(), {**x, "in/active": np.zeros(2, np.uint8)}, kept)["out/y"]
    assert_close("y", silent, np.ones((2, 2, 3)), ANALYTIC)


@pytest.mark.clause("PROG-2")
def test_an_op_once_more_apart_from_the_trace_leaves_no_mark() -> None:
    traced: list[str] = []

    def take(op: str, t: int, compute: Any, *arguments: Any) -> Any:
        traced.append(op)
        return compute(*arguments)

    context = context_of(SUM, Settings(), {**X, "in/active": np.zeros(4, np.uint8)}, exact(PLAIN))
    wraps = Reading("", ops={"s": lambda op, s, x: op(s, 2.0 * x)})
    hook = hook_of(context, {}, (wraps,), take)
    s, x = X["in/s0"], X["in/x"][:, 0]
    hook.start("s", 0, s, s)
    assert hook.write("s", 0, s, np.add, s, x) is s
    values = dict(hook.values)
    assert np.array_equal(hook.alone().write("s", 0, s, np.add, s, x), s + 2.0 * x)
    assert (traced, hook.values) == (["s"], values)
    assert hook.result("s", s) is s


@pytest.mark.clause("PROG-3")
def test_ops_with_their_inputs_and_tokens_are_read_off_one_run() -> None:
    found = graph(SUM, Settings(), Case({**X, **MASKS}))
    assert found.order() == ["s", "y"]
    assert (found.sources("s"), found.sources("y")) == (("s[t-1]", "in/x"), ("s",))
    assert found.tokens == {"s": [0, 1, 2, 3], "y": [0, 1, 2, 3]}

    def nameless(context: Context, hook: Hook) -> Results:
        total = context.first("s")
        y = hook("y", 0, lambda s, x: s + x, total, 2.0 * context.row(0, "x"))
        return {"y": y[..., None, :], "s": total}

    with pytest.raises(ValueError, match="op y at token 0: an argument that has no name"):
        graph(SUM._replace(loop=nameless), Settings(), Case(X))

    def unwritten(context: Context, hook: Hook) -> Results:
        total = context.first("s")
        y = hook("y", 0, lambda rows: rows[0] + rows[1], [total, context.row(0, "x")])
        return {"y": y[..., None, :], "s": total}

    assert graph(SUM._replace(loop=unwritten), Settings(), Case(X)).sources("y") == (
        "s[start]",
        "in/x",
    )


@pytest.mark.clause("PROG-3")
def test_arguments_that_are_computed_are_followed_to_the_values_that_have_names() -> None:
    def following(context: Context, hook: Hook) -> Results:
        total = context.label(ops.zeros_like(context.inputs["in/s0"]), ("s",), -1)
        first, x = (
            context.label(context.inputs[f"in/{n}"], (f"in/{n}",), None) for n in ("s0", "x")
        )
        square, rest, reads = x * x, first + ops.stop_gradient(3.0 * first), []
        for t in range(context.tokens):
            half = hook("half", t, lambda x: x / 2.0, square[..., t, :])
            both = [-half, ops.stack([rest, square[..., t, :]], axis=-1)[..., 0]]
            total = hook("s", t, lambda s, both, one: s + both[0] * both[1] + one, total, both, 1.0)
            start = context.label(total, ("s[start]",), None)
            reads.append(hook("y", t, ops.multiply, start, half + total))
        return {"y": ops.stack(reads, axis=-2), "s": total}

    found = graph(SUM._replace(loop=following, follows=True), Settings(), Case(X))
    assert found.order() == ["half", "s", "y"]
    assert found.sources("half") == ("in/x",)
    assert found.sources("s") == ("s[t-1]", "half", "in/s0", "in/x")
    assert found.sources("y") == ("s[start]", "s", "half")  # of one argument the latest op first


@pytest.mark.clause("PROG-2")
def test_a_hook_is_told_which_entries_have_an_influence() -> None:
    told: list[Any] = []

    def take(op: str, t: int, compute: Any, *arguments: Any, counts: Any = None) -> Any:
        told.append(counts)
        return compute(*arguments)

    context, some = context_of(SUM, Settings(), X, exact(PLAIN)), np.array([True, False])
    for readings in ((), (Reading("", ops={"y": lambda op, x: op(x)}),)):
        hook = hook_of(context, {}, readings, take)
        hook("y", 0, same, X["in/s0"], counts=some)
        hook("s", 0, same, X["in/s0"])
    assert [each is some for each in told] == [True, False, True, False]


@pytest.mark.clause("PROG-3", "PROG-5")
def test_ops_of_a_reading_are_listed_with_their_tokens() -> None:
    places = places_of_ops(lambda case: (SUM, Settings()))
    case = Case(X)
    assert places(case) == {"s": [0, 1, 2, 3], "y": [0, 1, 2, 3]}
    assert places(case) is places(case)
    fewer = Reading("", inputs=lambda x: {**x, "in/x": x["in/x"][..., :2, :]})
    assert places(case, (fewer,)) == {"s": [0, 1], "y": [0, 1]}


@pytest.mark.clause("PROG-5")
def test_a_setting_may_say_its_values_by_the_case_and_where_it_lies() -> None:
    context = context_of(SUM, Settings(2), X, exact(PLAIN))
    of_case = Setting(
        "power", lambda context: range(1, context.tokens), get=lambda s: s.power, stated="p"
    )
    found = list(others(of_case, context))
    assert [each.name for each in found] == ["p=1", "p=3"]
    assert (found[1].settings, found[1].change, found[1].before) == (
        {"power": 3},
        {"p": 3},
        {"p": 2},
    )
    whole = SUM._replace(presets=lambda context: {"cube": found[1:]})
    presets = search(lambda case: (whole, Settings(2)), "sum").presets(Case(X))
    assert presets == {"cube": found[1:]}


@pytest.mark.clause("PROG-5")
def test_settings_of_one_function_are_tried_once() -> None:
    context = context_of(SUM, Settings(1), X, exact(PLAIN))
    (each,) = others(SUM.settings[0], context)
    assert (each.name, each.change) == ("parameters.power=2", {"parameters.power": 2})
    assert each.before == {"parameters.power": 1}
    never = SUM.settings[0]._replace(matters=lambda context: False)
    assert list(others(never, context)) == []


@pytest.mark.clause("PROG-4", "PROG-5")
def test_mistakes_of_every_program_are_those_that_its_case_can_show() -> None:
    of = search(lambda case: (SUM, Settings()), "sum")

    def names(**inputs: Any) -> set[str]:
        return {each.name for each in of.departures(Case({**X, **inputs}))}

    bare = names()
    assert {"s0 ignored", "s early"} <= bare
    assert not {"active ignored", "reset late", "gate twice", "s transposed"} & bare
    found = {each.name for each in of.departures(Case({**X, **MASKS}))}
    assert found - bare == {
        *("active ignored", "reset ignored", "reset late", "reset early", "reset to zero"),
    }
    graded = {each.name for each in of.departures(Case({**X, **MASKS, "in/s_bar": X["in/s0"]}))}
    assert {each for each in graded - found if "gradient" in each} == graded - found
    assert "no gradient of first state at resets" in graded
    strict = SUM._replace(check=_refuse)
    refusing = search(lambda case: (strict, Settings()), "sum")
    assert "s0 ignored" not in {each.name for each in refusing.departures(Case(X))}


def _refuse(inputs: Mapping[str, Any], settings: Any) -> None:
    if "in/s0" not in inputs:
        raise ValueError("in/s0: missing")


@pytest.mark.clause("PROG-6")
@pytest.mark.parametrize(("member", "kind"), EVERY)
def test_every_axis_has_a_name_and_its_size(member: str, kind: str) -> None:
    of = case(member, kind)
    settings = parse(of.header)
    sizes: dict[str, int] = {}
    for name, words in axes(settings.program, settings, of.inputs).items():
        assert len(words) == of.inputs[name].ndim
        for word, size in zip(words, of.inputs[name].shape, strict=True):
            assert sizes.setdefault(word, size) == size, (name, word)
    assert sizes["T"] == of.inputs["in/y_bar"].shape[-2]
    assert sizes["V"] == 2 * (2 if member == "log_linear" else 1)
    assert ("B0" in sizes) == (kind == "batch")


@pytest.mark.clause("PROG-6", "RECUR-13")
@pytest.mark.parametrize(("member", "kind"), EVERY)
def test_a_call_that_is_cut_in_two_gives_what_one_gives(member: str, kind: str) -> None:
    of = case(member, kind)
    kept = {name: x for name, x in of.inputs.items() if not name.endswith("_bar")}
    of = make(of.header.plain(), {**kept, "in/y_bar": of.inputs["in/y_bar"]})
    whole = evaluate(of).tensors
    for place in split.places(of):
        first, second = split.in_two(of, place)
        found = split.join(evaluate(first).tensors, evaluate(second).tensors)
        for name, value in whole.items():
            assert_close(f"{name} at {place}", found[name], value, ANALYTIC)
    if member == "ttt_linear" and kind == "transposed":
        assert split.places(of) == [2, 4]  # between two mini-batches alone


@pytest.mark.clause("PROG-6")
def test_tensors_say_what_is_missing_and_draw_states() -> None:
    with pytest.raises(ValueError, match=r"in/x: missing, axes \(... T d_out\) are needed"):
        check_inputs(SUM, Settings(), {})
    with pytest.raises(ValueError, match=r"in/s0: shape \(3,\), expected \(2, 3\)"):
        check_inputs(SUM, Settings(), {**X, "in/s0": np.ones(3)})
    assert shapes(SUM, Settings(), X)["in/s_bar"] == (2, 3)
    drawn = states(SUM, Settings(), X, np.random.default_rng(0))
    assert {name: x.shape for name, x in drawn.items()} == {"in/s0": (2, 3), "in/s_bar": (2, 3)}
    assert axes(SUM, Settings(), X) == {"in/x": ("V", "T", "d_out"), "in/s0": ("V", "d_out")}
    alone = new(Request(rule="recurrence", parameters={"member": "mesa"}, heads=1, tokens=3))
    one = {name: x[0] if x.ndim > 1 else x for name, x in alone.inputs.items()}
    same = evaluate(make(alone.header.plain(), one)).tensors["out/y"]  # without leading axes
    assert_close("y", same, evaluate(alone).tensors["out/y"][0], ANALYTIC)
