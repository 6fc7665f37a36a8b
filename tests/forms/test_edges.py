"""Forms at the edges of their domain: shapes, precisions, memory layouts, silent tokens, threads,
interruptions.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import tape
from atlas_ref import forms as parallel
from atlas_ref.backend import threads as threads_module
from atlas_ref.backend.scratch import Scratch, scratch
from atlas_ref.engine import dispatch as engine_dispatch
from atlas_ref.engine.masked import backward as masked_backward
from atlas_ref.engine.masked import forward as masked_forward
from atlas_ref.forms import chunked, newton_schulz_blocks, scan
from atlas_ref.oracle.cases.case import Case, make
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.evaluate import results as evaluated
from atlas_ref.rules import FAMILY, delta
from atlas_ref.rules.sequence import Tokens
from tape import ops
from tests.support.close import ANALYTIC, EXACT, assert_close, relative_error
from tests.support.form_results import (
    assert_equal_the_loops,
    assert_gradients_equal_the_sequential,
    call_of,
    gradients,
    results,
)
from tests.support.strategies import header_of

NONE: dict[str, Any] = {"newton_schulz": "none"}
SPAN: dict[str, Any] = {**NONE, "reference": "chunk_start"}
CARRY: dict[str, Any] = {**SPAN, "window_at_boundary": "carry"}
FIRST = {"order": "momentum_then_window"}
STEPS: dict[str, Any] = {"newton_schulz": {"steps": 2}}

#: form and fields of a request: every way in which a form computes something on its own.
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "chunkwise": ("chunkwise", {"convention": SPAN}),
    "chunkwise-carry": ("chunkwise", {"convention": CARRY, "history": 2}),
    "chunkwise-before-error": ("chunkwise", {"convention": {**CARRY, "decay": "before_error"}}),
    "chunkwise-reads": (
        "chunkwise",
        {"convention": {**SPAN, "read": "chunk_start", "window_at_boundary": "cut"}},
    ),
    "chunkwise-zero": (
        "chunkwise",
        {"convention": {**NONE, "reference": "zero", "read": "before"}},
    ),
    "chunkwise-momentum-first": ("chunkwise", {"convention": {**SPAN, **FIRST}}),
    "chunkwise-ns": ("chunkwise", {"convention": {**STEPS, "reference": "chunk_start"}}),
    "chunkwise-hebbian": ("chunkwise", {"rule": "hebbian", "window": 1}),
    "exact": ("exact", {"convention": NONE, "history": 2}),
    "exact-titans": (
        "exact",
        {"rule": "titans_lmm", "window": 1, "convention": {"read": "before"}},
    ),
    "exact-delta": (
        "exact",
        {"rule": "delta", "window": 1, "convention": {"decay": "before_error"}},
    ),
    "exact-momentum-first": ("exact", {"convention": {**NONE, **FIRST}}),
    "scan": ("scan", {"convention": NONE, "history": 2}),
    "scan-delta": ("scan", {"rule": "delta", "window": 1}),
    "scan-hebbian": ("scan", {"rule": "hebbian", "window": 1}),
    "atlas_parallel": ("atlas_parallel", {"convention": {**STEPS, "reference": "chunk_start"}}),
    "atlas_parallel-carry": ("atlas_parallel", {"convention": CARRY, "history": 2}),
    "kernel": ("kernel", {"convention": STEPS, "history": 2}),
    "kernel-carry": ("kernel", {"convention": CARRY}),
}
every_way = pytest.mark.parametrize("way", WAYS)


def example(way: str, **fields: Any) -> tuple[str, Case]:
    """The form of `way`, and a case of it."""
    form, own = WAYS[way]
    sizes: dict[str, Any] = {
        "rule": "omega",
        "tokens": 7,
        "window": 3,
        "span": 4,
        "cotangent": True,
    }
    return form, new(Request(draw=1, **(sizes | own | fields)))


def with_inputs(case: Case, changed: dict[str, Any]) -> Case:
    return make(header_of(case), {**case.inputs, **changed})


def masked(case: Case, **masks: Any) -> Case:
    """The case with `active` or `reset`."""
    return with_inputs(
        case, {f"in/{name}": np.asarray(mask, np.uint8) for name, mask in masks.items()}
    )


# -- shapes ----------------------------------------------------------------------------------------


@pytest.mark.sample(45)
@pytest.mark.clause("CHUNK-1", "CHUNK-24", "WINDOW-1")
@pytest.mark.parametrize(
    "sizes",
    [
        {"d_in": 1, "d_out": 1},
        {"d_in": 1, "d_out": 3, "per_dimension_gates": True},
        {"d_in": 3, "d_out": 1, "per_dimension_gates": True},
        {"tokens": 1, "history": 0},
        {"tokens": 1, "d_in": 1, "d_out": 1, "heads": 1},
        {"tokens": 3, "window": 6},
        {"tokens": 3, "window": 6, "span": 1},
    ],
    ids=str,
)
@every_way
def test_the_smallest_shapes_equal_the_loops(way: str, sizes: dict[str, Any]) -> None:
    one_lag = WAYS[way][1].get("window") == 1
    form, case = example(
        way, **({**sizes, "window": 1} if one_lag and "window" in sizes else sizes)
    )
    for chunk in (None, 1, 2, 10**18):
        assert_equal_the_loops(case, form, chunk)
    assert_gradients_equal_the_sequential(case, form, 2)


#: Axes of an input after the leading ones; masks have none before theirs.
BEHIND = {
    "in/k": 2,
    "in/v": 2,
    "in/q": 2,
    "in/y_bar": 2,
    "in/window_weights": 2,
    "in/M0": 2,
    "in/S0": 2,
}
BEHIND |= {"in/window_k": 2, "in/window_v": 2, "in/window_residual": 2}


def leading(case: Case, lead: tuple[int, ...]) -> Case:
    """The case, which has two heads, with other leading axes; with none, its first head alone."""
    changed = {}
    for name, value in case.inputs.items():
        rest = value.shape[value.ndim - BEHIND.get(name, 1) :]
        changed[name] = value.reshape((*lead, *rest)) if lead else value[0]
    return with_inputs(case, changed)


@pytest.mark.clause("CHUNK-1", "CONV-27")
@pytest.mark.parametrize("lead", [(), (1, 2), (2, 1, 1, 1)], ids=str)
@every_way
def test_any_leading_axes(way: str, lead: tuple[int, ...]) -> None:
    form, case = example(way)
    case = leading(case, lead)
    assert_equal_the_loops(case, form, 2)
    assert_gradients_equal_the_sequential(case, form, 2)


@pytest.mark.parametrize("way", WAYS)
def test_no_sequence_at_all_has_results_of_no_sequence(way: str) -> None:
    """A leading axis of length 0, which the sequential form accepts."""
    form, case = example(way)
    config, tokens, state = call_of(case, case.inputs)
    rule = FAMILY[case.header.rule]
    tokens, state = (
        x.replaced(**{name: value[:0] for name, value in x.__dict__.items() if _floats(value)})
        for x in (tokens, state)
    )
    end, y = parallel.run(rule, config, tokens, state)
    for chunk in (None, 2):
        found_end, found_y = parallel.run(rule, config, tokens, state, form=form, chunk=chunk)
        assert found_y.shape == y.shape
        assert found_end.M.shape == end.M.shape


@pytest.mark.clause("CHUNK-15", "CHUNK-24")
@pytest.mark.parametrize("numbers", [1, 400])
@every_way
def test_groups_of_any_size_have_the_same_results(
    way: str, numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group for every chunk, and groups of a few: the state handed on is all that they share."""
    form, case = example(way, tokens=11, span=5)
    want, want_gradients = results(case, form, 2)[0], gradients(case, form, 2)
    monkeypatch.setattr(chunked, "GROUP_NUMBERS", numbers)
    monkeypatch.setattr(newton_schulz_blocks, "BLOCK_NUMBERS", numbers)
    monkeypatch.setattr(scan, "SCANNED_BYTES", numbers)
    for name, value in results(case, form, 2)[0].items():
        assert_close(name, value, want[name], ANALYTIC)
    for name, value in gradients(case, form, 2).items():
        assert_close(name, value, want_gradients[name], ANALYTIC)
    for name, value in results(case, form)[0].items():
        assert_close(f"{name}, default chunk", value, want[name], ANALYTIC)


# -- gates and masks -------------------------------------------------------------------------------


@pytest.mark.sample(35)
@pytest.mark.clause("CHUNK-2", "CHUNK-3", "CHUNK-5")
@pytest.mark.parametrize(
    "kind", ["gates 0", "gates 1", "no step", "none active", "reset at every token"]
)
@every_way
def test_silent_and_lonely_tokens_equal_the_loops(way: str, kind: str) -> None:
    form, case = example(way)
    edges: dict[str, tuple[str, ...]] = {
        "gates 0": ("in/retain", "in/momentum"),
        "gates 1": ("in/retain", "in/momentum"),
    }
    if kind == "none active":
        case = masked(case, active=np.zeros(7))
    elif kind == "reset at every token":
        case = masked(case, reset=np.ones(7))
    else:
        names = [name for name in edges.get(kind, ("in/step_size",)) if name in case.inputs]
        case = with_inputs(
            case, {name: np.full_like(case.inputs[name], kind == "gates 1") for name in names}
        )
    for chunk in (None, 2):
        assert_equal_the_loops(case, form, chunk)
    assert_gradients_equal_the_sequential(case, form, 2)


# -- precision and memory layout -------------------------------------------------------------------


def call(
    case: Case, form: str, change: Any, chunk: int | None = 2
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Outputs and gradients after `change` is applied to the arrays of tokens and state.

    Outputs are y and the arrays of the final state; gradients are those of all changed arrays.
    """
    config, tokens, state = call_of(case, case.inputs)
    rule = FAMILY[case.header.rule]
    inputs = {
        ("tokens", name): change(value) for name, value in tokens.__dict__.items() if _floats(value)
    }
    inputs |= {
        ("state", name): change(value) for name, value in state.__dict__.items() if _floats(value)
    }

    def run(arrays: dict[Any, Any]) -> dict[str, Any]:
        moved = {
            kind: {name: value for (of, name), value in arrays.items() if of == kind}
            for kind in ("tokens", "state")
        }
        end, y = parallel.run(
            rule,
            config,
            tokens.replaced(**moved["tokens"]),
            state.replaced(**moved["state"]),
            form=form,
            chunk=chunk,
        )
        return {"y": y} | {
            name: value
            for name, value in end.__dict__.items()
            if value is not None and not isinstance(value, int)
        }

    outputs, pullback = tape.vjp(run, inputs)
    draw = np.random.default_rng(3)
    bars = {
        name: draw.standard_normal(value.shape).astype(value.dtype)
        for name, value in sorted(outputs.items())
    }
    return outputs, {f"d {of} {name}": value for (of, name), value in pullback(bars)[0].items()}


def _floats(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "fc"


@pytest.mark.sample(35)
@pytest.mark.clause("CHUNK-1")
@pytest.mark.parametrize(
    "kind",
    [
        np.float16,
        np.float32,
        pytest.param(np.longdouble, marks=pytest.mark.host("CuPy has no longdouble")),
        np.complex64,
        np.complex128,
    ],
    ids=lambda kind: kind.__name__,
)
@every_way
def test_precision_is_that_of_the_tokens_everywhere(way: str, kind: Any) -> None:
    form, case = example(way, pulse=3, reset=5)
    # a complex call is analytic in its arrays: no part of it may be dropped
    if np.dtype(kind).kind == "c":
        rotation = np.exp(0.02j)
        outputs, pulled = call(case, form, lambda x: (rotation * x).astype(kind))
        want, want_pulled = call(case, "sequential", lambda x: (rotation * x).astype(kind))
    else:
        outputs, pulled = call(case, form, lambda x: x.astype(kind))
        want, want_pulled = call(case, "sequential", lambda x: x.astype(kind))
    assert {value.dtype for value in (*outputs.values(), *pulled.values())} == {np.dtype(kind)}
    bound = 1e5 * float(np.finfo(kind).eps) if kind is not np.float16 else 0.3
    largest = max(float(np.linalg.norm(value.astype(complex))) for value in want_pulled.values())
    for name, value in want.items():
        assert relative_error(outputs[name].astype(complex), value.astype(complex)) <= bound, name
    for name, value in want_pulled.items():
        assert float(np.linalg.norm((pulled[name] - value).astype(complex))) <= bound * largest, (
            name
        )


@pytest.mark.clause("CHUNK-16", "TAPE-13")
@every_way
def test_the_cotangent_alone_may_be_complex(way: str) -> None:
    """A complex step in a number after the memory.

    The gradient is linear in the cotangent, states included.
    """
    form, case = example(way)
    chosen = {name: case.inputs[name] for name in ("in/k", "in/retain", "in/M0")}
    outputs, pullback = tape.vjp(
        lambda moved: results(case, form, 2, {**case.inputs, **moved})[0], chosen
    )
    draw = np.random.default_rng(4)
    real, imaginary = (
        {name: draw.standard_normal(np.shape(value)) for name, value in sorted(outputs.items())}
        for _ in range(2)
    )
    gradient = pullback({name: real[name] + 1e-30j * imaginary[name] for name in real})[0]
    want = [pullback(bars)[0] for bars in (real, imaginary)]
    for name, value in gradient.items():
        assert_close(name, value.real, want[0][name], ANALYTIC)
        assert_close(f"{name}, imaginary", value.imag / 1e-30, want[1][name], ANALYTIC)


@pytest.mark.clause("CHUNK-16")
@every_way
def test_the_cotangent_may_be_real_where_a_complex_step_moved_an_input(way: str) -> None:
    """Real cotangents of reads and states together, and of states alone."""
    form, case = example(way)
    chosen = {name: case.inputs[name] for name in ("in/k", "in/retain", "in/M0")}
    moved = {**chosen, "in/k": chosen["in/k"] * np.exp(0.02j)}
    for states_alone in (False, True):
        cotangents = []
        for one in (form, "sequential"):
            outputs, pullback = tape.vjp(
                lambda arrays, one=one: results(case, one, 2, {**case.inputs, **arrays})[0], moved
            )
            draw = np.random.default_rng(4)
            bars = {
                name: draw.standard_normal(np.shape(value))
                for name, value in sorted(outputs.items())
            }
            cotangents.append(
                pullback(
                    {
                        name: bar * (not states_alone or name != "out/y")
                        for name, bar in bars.items()
                    }
                )[0]
            )
        for name, value in cotangents[1].items():
            assert_close(name, cotangents[0][name], value, ANALYTIC)


def strided(x: Any) -> Any:
    """The same entries, every second one of a read-only array that holds NaN between them."""
    wide = np.full(tuple(2 * n + 1 for n in x.shape), np.nan)
    every = tuple(slice(1, None, 2) for _ in x.shape)
    wide[every] = x
    wide.flags.writeable = False
    return wide[every]


def backwards(x: Any) -> Any:
    """The same entries in an array of negative strides."""
    mirror = x[tuple(slice(None, None, -1) for _ in x.shape)].copy()
    mirror.flags.writeable = False
    return mirror[tuple(slice(None, None, -1) for _ in x.shape)]


@pytest.mark.clause("CHUNK-1")
@pytest.mark.parametrize(
    "layout", [np.asfortranarray, strided, backwards], ids=["fortran", "strided", "backwards"]
)
@every_way
def test_arrays_may_lie_in_memory_as_they_like(way: str, layout: Any) -> None:
    form, case = example(way, window=6 if WAYS[way][1].get("window") != 1 else 1)
    outputs, pulled = call(case, form, layout)
    want, want_pulled = call(case, form, np.ascontiguousarray)
    for name, value in {**want, **want_pulled}.items():
        assert_close(name, {**outputs, **pulled}[name], value, ANALYTIC)


@pytest.mark.clause("CHUNK-1", "CONV-29")
@every_way
def test_a_state_is_read_only_and_what_is_returned_is_no_work_space(way: str) -> None:
    form, case = example(way)
    config, tokens, state = call_of(case, case.inputs)
    end, y = parallel.run(FAMILY[case.header.rule], config, tokens, state, form=form, chunk=2)
    arrays = {name: value for name, value in end.__dict__.items() if isinstance(value, np.ndarray)}
    assert not any(value.flags.writeable for value in arrays.values())
    outputs, pulled = call(case, form, np.ascontiguousarray)
    assert scratch.used == 0
    for name, value in {"y": y, **arrays, **outputs, **pulled}.items():
        assert not np.shares_memory(value, scratch.block), name


@every_way
def test_nothing_is_known_of_work_space(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    form, case = example(way)
    want, want_gradients = results(case, form, 2)[0], gradients(case, form, 2)
    empty = Scratch.empty

    def poisoned(self: Scratch, shape: tuple[int, ...], like: Any, kind: Any = None) -> Any:
        array = empty(self, shape, like, kind)
        array[...] = np.nan
        return array

    monkeypatch.setattr(Scratch, "empty", poisoned)
    for name, value in {**results(case, form, 2)[0], **gradients(case, form, 2)}.items():
        assert_close(name, value, {**want, **want_gradients}[name], ANALYTIC)


# -- derivatives of derivatives --------------------------------------------------------------------


@pytest.mark.clause("CHUNK-16", "TAPE-9")
@every_way
def test_second_derivatives_and_checkpoints_are_those_of_the_sequential_form(way: str) -> None:
    form, case = example(way, tokens=5, heads=1)
    draw = np.random.default_rng(5)
    point = {name: case.inputs[name] for name in ("in/k", "in/retain", "in/M0")}
    direction = {name: draw.standard_normal(value.shape) for name, value in point.items()}

    def loss(form: str) -> Any:
        def number(moved: dict[str, Any]) -> Any:
            outputs = results(case, form, 2, {**case.inputs, **moved})[0]
            return sum(ops.sum(ops.tanh(outputs[name])) for name in ("out/y", "out/M"))

        return number

    derivatives = (
        tape.hvp(loss(form))(point, direction),
        tape.grad(tape.checkpoint(loss(form)))(point),
    )
    want = tape.hvp(loss("sequential"))(point, direction), tape.grad(loss("sequential"))(point)
    largest = [max(float(np.linalg.norm(value)) for value in each.values()) for each in want]
    for i, name in ((i, name) for i in range(2) for name in point):
        assert float(np.linalg.norm(derivatives[i][name] - want[i][name])) <= 1e-10 * largest[i], (
            f"{('second', 'checkpointed')[i]} {name}"
        )


# -- work space under threads, interruptions and nested calls --------------------------------------


def both(case: Case, form: str) -> dict[str, bytes]:
    """Bytes of all results and gradients."""
    return {
        name: np.asarray(value).tobytes()
        for name, value in {**results(case, form, 2)[0], **gradients(case, form, 2)}.items()
    }


@pytest.mark.clause("CHUNK-15")
@pytest.mark.parametrize("threads", [1, 2])
def test_threads_of_a_caller_do_not_meet_in_work_space(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers in threads, with and without a partition of memories over further threads."""
    monkeypatch.setattr(engine_dispatch, "PARTITION_WORK", {True: 0, False: 0})
    monkeypatch.setattr(engine_dispatch, "processors", lambda: threads)
    jobs = [
        example(way, tokens=20 + i, d_in=5, seed=i)
        for i, way in enumerate(["chunkwise-carry", "exact", "exact-titans", "chunkwise"])
    ]
    want = [both(case, form) for form, case in jobs]
    differ: list[Any] = []
    gate = threading.Barrier(2 * len(jobs))

    def work(place: int) -> None:
        form, case = jobs[place]
        gate.wait()
        differ.extend(place for _ in range(5) if both(case, form) != want[place])

    callers = [
        threading.Thread(target=work, args=(place,))
        for place in (*range(len(jobs)), *range(len(jobs)))
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert differ == []


@pytest.mark.clause("CHUNK-15")
@pytest.mark.host("threads are the host's")
@pytest.mark.parametrize("way", ["exact", "exact-titans", "exact-delta"])
@pytest.mark.parametrize("threads", [2, 3, 4])
def test_how_many_threads_run_the_memories_of_a_group_changes_no_bit(
    way: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    form, case = example(way, heads=5)
    monkeypatch.setattr(engine_dispatch, "PARTITION_WORK", {True: 0, False: 0})
    monkeypatch.setattr(engine_dispatch, "processors", lambda: 1)
    want = both(case, form)
    monkeypatch.setattr(engine_dispatch, "processors", lambda: threads)
    parts: list[tuple[int, int]] = []
    callers: set[int] = set()
    run = masked_forward.forward

    def noted(layout: Any, inputs: Any, rows: Any) -> Any:
        parts.append((len(inputs.queries), threads_module._alone.callers))
        callers.add(threading.get_ident())
        return run(layout, inputs, rows)

    monkeypatch.setattr(masked_forward, "forward", noted)
    assert both(case, form) == want
    assert {count for count, _ in parts} == {
        each.stop - each.start for each in threads_module.slices(5, threads)
    }
    assert all(callers_of > 0 for _, callers_of in parts), (
        "the BLAS computes each product on the thread that asks for it"
    )
    assert len(callers) > 1


class Interrupted(Exception):
    pass


@pytest.mark.clause("CHUNK-15")
@pytest.mark.parametrize(
    ("way", "module", "name"),
    [
        ("chunkwise-carry", masked_forward, "left_factors"),
        ("chunkwise-carry", masked_forward, "pass_on"),
        ("chunkwise-carry", masked_backward, "_through_ends"),
        ("exact", masked_forward, "side_by_side"),
        ("exact", masked_forward, "scale_residuals"),
        ("exact", masked_backward, "through_rows"),
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.host("work space is the host's")
def test_an_interruption_in_a_group_leaves_the_work_space_as_it_was(
    threads: int, way: str, module: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    form, case = example(way)
    monkeypatch.setattr(engine_dispatch, "PARTITION_WORK", {True: 0, False: 0})
    monkeypatch.setattr(engine_dispatch, "processors", lambda: threads)
    want = both(case, form)

    def interrupts(*arrays: Any) -> Any:
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(module, name, interrupts)
        with pytest.raises(Interrupted):
            both(case, form)
    assert scratch.used == 0
    assert both(case, form) == want


@pytest.mark.host("work space is the host's")
def test_a_group_that_did_not_fit_does_not_break_those_after_it() -> None:
    space = Scratch()
    with pytest.raises(MemoryError), space.frame():
        space.empty((2**55,), np.zeros(()))
    for _ in range(2):
        with space.frame():
            space.empty((8,), np.zeros(()))[...] = 1.0
    assert space.used == 0


@pytest.mark.clause("CHUNK-15", "TAPE-9")
@pytest.mark.parametrize("way", ["chunkwise-carry", "exact"])
def test_a_form_may_run_while_another_group_holds_work_space(way: str) -> None:
    form, case = example(way)
    want = both(case, form)
    with scratch.frame():
        held = scratch.empty((1000,), np.zeros(()))
        held[...] = 7.0
        assert both(case, form) == want
        assert np.all(held == 7.0)
    assert scratch.used == 0


@pytest.mark.clause("TAPE-9")
@pytest.mark.parametrize("way", ["chunkwise-carry", "exact", "scan"])
def test_a_form_may_run_in_the_backward_of_another_block(way: str) -> None:
    form, case = example(way)

    def loss(k: Any) -> Any:
        return ops.sum(results(case, form, 2, {**case.inputs, "in/k": k})[0]["out/y"] ** 2)

    def backward(k: Any, g: Any) -> Any:
        return [g * tape.grad(loss)(k)]

    block = tape.opaque(loss, lambda k: (loss(k), k), backward)
    k = case.inputs["in/k"]
    assert_close(
        "k", tape.grad(lambda k: block(k) + loss(k))(k), 2.0 * tape.grad(loss)(k), ANALYTIC
    )


# -- large numbers ---------------------------------------------------------------------------------


@pytest.mark.clause("CHUNK-5", "EXACT-14")
@pytest.mark.parametrize("size", [1e-150, 1e150])
@pytest.mark.parametrize(
    "way",
    [
        way
        for way in WAYS
        if WAYS[way][1].get("convention", {}).get("newton_schulz") != STEPS["newton_schulz"]
    ],
)
def test_results_are_affine_in_values_and_states_of_any_size(way: str, size: float) -> None:
    form, case = example(way)
    large = {
        name: size * case.inputs[name]
        for name in ("in/v", "in/M0", "in/S0", "in/window_v", "in/window_residual")
        if name in case.inputs
    }
    one, other = results(case, form, 2)[0], results(with_inputs(case, large), form, 2)[0]
    for name in ("out/y", "out/M", "out/S"):
        if name in one:
            assert_close(name, other[name] / size, one[name], ANALYTIC)


def overflowing(kind: str, reference: str) -> tuple[Any, Tokens, Any]:
    """Tokens of Delta that overflow float64: the scores of the last key, or the memory of the last
    tokens.
    """
    convention = {"gate": "forget", "reference": reference}
    config = delta.Config(d_in=2, d_out=1, span=8, convention=convention)
    k, q, step_size = np.ones((8, 2)), np.ones((8, 2)), np.full(8, 0.1)
    if kind == "scores":
        k[-1], q[...] = 1e160, 1e160
    else:
        step_size[4:] = 1e120
    return (
        config,
        Tokens(k=k, v=np.ones((8, 1)), q=q, retain=np.full(8, 0.9), step_size=step_size),
        delta.start(config),
    )


@pytest.mark.clause("CHUNK-25")
@pytest.mark.parametrize(
    ("form", "reference", "kind", "chunk"),
    [
        # within a chunk, 0 times what overflows later is no number: there the token that overflows
        # gets a chunk of its own
        ("chunkwise", "chunk_start", "scores", 1),
        ("exact", "running", "scores", 1),
        ("exact", "running", "steps", 1),
        ("chunkwise", "chunk_start", "steps", None),
        ("scan", "running", "scores", None),
        ("scan", "running", "steps", None),
        ("atlas_parallel", "chunk_start", "scores", None),
        ("atlas_parallel", "chunk_start", "steps", None),
        ("kernel", "running", "scores", None),
        ("kernel", "running", "steps", None),
    ],
)
def test_what_overflows_later_leaves_earlier_reads_alone(
    form: str, reference: str, kind: str, chunk: int | None
) -> None:
    config, tokens, state = overflowing(kind, reference)
    with np.errstate(all="ignore"):
        want = parallel.run(delta.RULE, config, tokens, state)[1]
        reads = parallel.run(delta.RULE, config, tokens, state, form=form, chunk=chunk)[1]
    early = 7 if kind == "scores" else 5
    assert np.isfinite(want[:early]).all()
    assert_close("y", reads[:early], want[:early], ANALYTIC)


# -- the backward, more than once ------------------------------------------------------------------


@pytest.mark.clause("CHUNK-15")
@every_way
def test_a_pullback_gives_the_same_again_whatever_ran_and_was_written_in_between(way: str) -> None:
    """Groups kept for backward, which hold work space that neither a backward nor another call may
    touch.
    """
    form, case = example(way)
    names = [
        name
        for name, value in case.inputs.items()
        if value.dtype.kind == "f" and not name.endswith("_bar")
    ]

    def reads(chosen: dict[str, Any]) -> Any:
        return evaluated({**case.inputs, **chosen}, case, form=form, chunk=2)[0]["out/y"]

    inputs = {name: case.inputs[name] for name in names}
    _, pullback = tape.vjp(reads, inputs)
    bar = case.inputs["in/y_bar"]
    first = pullback(bar)[0]
    want = {name: value.copy() for name, value in first.items()}
    pullback(2.0 * bar)
    tape.vjp(reads, {name: 0.5 * value for name, value in inputs.items()})[1](bar)
    for value in first.values():
        value[...] = np.nan
    for name, value in pullback(bar)[0].items():
        assert_close(name, value, want[name], EXACT)
