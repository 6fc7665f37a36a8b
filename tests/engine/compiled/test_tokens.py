"""The compiled loop over tokens and its backward: the sequential rule's numbers, its derivatives, and
the calls that are left to NumPy.
"""

from __future__ import annotations

import functools
import sys
import warnings
from typing import Any

import numpy as np
import pytest

import tape
from atlas_ref import forms
from atlas_ref.backend import compiled
from atlas_ref.engine import segment
from atlas_ref.engine.compiled import tokens as compiled_tokens
from atlas_ref.engine.group.layout import Arrays as GroupArrays
from atlas_ref.engine.group.layout import Layout
from atlas_ref.forms import chunked_plain
from atlas_ref.rules import sequence
from atlas_ref.rules.sequence import Tokens
from tape import ops
from tests.engine.masked.test_masked import LAYOUTS
from tests.engine.masked.test_masked import drawn as drawn_group
from tests.support.close import ANALYTIC, EXACT, assert_close, reordered
from tests.support.compiled import (
    agree,
    drawn,
    forget_what_imports_numba,
    in_python,
    results,
    watched,
)
from tests.support.sequences import MODULES, Arrays

pytestmark = pytest.mark.host("compiled forms take arrays of NumPy alone")

Taken = list[bool]
CONVENTION: dict[str, Any] = {
    "titans_lmm": {"gate": "retain"},
    "delta": {"gate": "retain"},
    "omega": {"newton_schulz": "none", "reference": "running"},
}
#: Layouts that the loop takes; one chunk of 19 tokens, which is three segments of eight.
BY_TOKEN = {
    f"{reference}-{read}{'-decayed' * before_error}{'-window' * (window > 1)}": Layout(
        19, window, (True,), reference, before_error, read, False, 0
    )
    for reference, before_error in (("running", False), ("running", True), ("zero", False))
    for read in ("after", "before", "none")
    for window in (1, 3)
}


@pytest.fixture
def sequences(monkeypatch: pytest.MonkeyPatch) -> Taken:
    """For each compiled sequence and backward, whether its results were used; none is too short."""
    return watched(monkeypatch, compiled_tokens, "run", "backward")


@pytest.mark.clause("EXACT-21", "EXACT-12")
@pytest.mark.parametrize("read", ["after", "before", "call_end"])
@pytest.mark.parametrize("decay", ["after_error", "before_error"])
@pytest.mark.parametrize("rule", ["titans_lmm", "delta", "omega"])
@pytest.mark.parametrize(
    "sizes", [(9, 4), (1, None), (16, 8), (7, 3), (64, None), (37, 5), (6, 1)], ids=str
)
def test_is_the_sequential_rule(
    sequences: Taken, sizes: tuple[int, int | None], rule: str, decay: str, read: str
) -> None:
    T, chunk = sizes
    for d_in, d_out in ((4, 4), (1, 6), (7, 1), (9, 5)):
        window = {"window": 3} if rule == "omega" else {}
        tensors = drawn(rule, T=T, d_in=d_in, d_out=d_out, seed=T, **window)
        got = results(rule, tensors, chunk=chunk, decay=decay, read=read)
        agree(got, results(rule, tensors, "sequential", decay=decay, read=read), ANALYTIC)
    assert sequences
    assert all(sequences)


@pytest.mark.clause("EXACT-21", "EXACT-12")
@pytest.mark.parametrize(
    "convention",
    [{"rate": "split"}, {"direction": "ascent", "value_sign": "plus"}, {"gradient_scale": 2}],
    ids=str,
)
def test_whatever_a_convention_says_of_rates_and_signs(
    sequences: Taken, convention: dict[str, Any]
) -> None:
    tensors = drawn("titans_lmm", T=21, split="split" in convention.values())
    tensors["step_size"] *= 0.2
    agree(
        results("titans_lmm", tensors, chunk=8, **convention),
        results("titans_lmm", tensors, "sequential", **convention),
        ANALYTIC,
    )
    assert sequences
    assert all(sequences)


@pytest.mark.clause("EXACT-21", "EXACT-12")
def test_resets_and_tokens_that_do_not_write(sequences: Taken) -> None:
    tensors = drawn("titans_lmm", T=20)
    tensors["active"] = np.arange(20) % 3 > 0
    tensors["reset"] = np.arange(20) == 11
    agree(
        results("titans_lmm", tensors, chunk=4),
        results("titans_lmm", tensors, "sequential"),
        ANALYTIC,
    )
    assert len(sequences) > 1
    assert all(sequences)


@pytest.mark.clause("EXACT-21")
@pytest.mark.parametrize("rule", ["titans_lmm", "delta", "omega"])
def test_a_long_sequential_run_is_the_loop_too(sequences: Taken, rule: str) -> None:
    window = {"window": 5} if rule == "omega" else {}
    tensors = drawn(rule, T=23, **window)
    config = MODULES[rule].Config(d_in=4, d_out=3, **window, convention=CONVENTION[rule])
    state = MODULES[rule].start(config, (3,), M=tensors["M0"])
    tokens = Tokens(**{name: value for name, value in tensors.items() if not name.endswith("0")})
    given = (MODULES[rule].RULE, config, tokens, state)
    got, want = forms.run(*given), sequence.run(*given)
    assert_close("y", got[1], want[1], ANALYTIC)
    assert_close("M", got[0].M, want[0].M, ANALYTIC)
    assert sequences == [True]


@pytest.mark.clause("EXACT-21")
@pytest.mark.parametrize("rule", ["titans_lmm", "delta", "omega"])
def test_two_calls_continue_each_other(sequences: Taken, rule: str) -> None:
    tensors = drawn(rule, T=23, **({"window": 4} if rule == "omega" else {}))
    agree(results(rule, tensors, calls=2), results(rule, tensors, "sequential", calls=2), ANALYTIC)
    assert sequences == [True, True]


@pytest.mark.clause("EXACT-21")
def test_the_zero_reference_and_hebbian(sequences: Taken) -> None:
    for rule, reference in (("hebbian", None), ("titans_lmm", "zero")):
        tensors = drawn(rule, T=23)
        agree(
            results(rule, tensors, "chunkwise", 8, reference=reference),
            results(rule, tensors, "sequential", reference=reference),
            ANALYTIC,
        )
    assert sequences == [True, True]


# -- derivatives -----------------------------------------------------------------------------------


def pulled_back(layout: Layout, inputs: GroupArrays) -> tuple[Any, Any]:
    """Outputs of a segment, and gradients of every argument for cotangents that are drawn."""
    run = segment.block([layout], chunked_plain.plain)
    names = [name for name, x in inputs._asdict().items() if x is not None]

    def function(*arrays: Any) -> Any:
        y, end = run(inputs._replace(**dict(zip(names, arrays, strict=True))))
        outputs = [x for x in (y, *end) if x is not None]
        random = np.random.default_rng(3)
        return sum(ops.sum(x * random.standard_normal(x.shape)) for x in outputs)

    value, gradients = tape.value_and_grad(function, argnums=tuple(range(len(names))))(
        *(getattr(inputs, name) for name in names)
    )
    return value, dict(zip(names, gradients, strict=True))


def plain_value(layout: Layout, inputs: GroupArrays) -> Any:
    """The same sum in tape ops, also for complex arrays."""
    outputs = [x for x in chunked_plain.plain(layout, inputs) if x is not None]
    random = np.random.default_rng(3)
    return sum(ops.sum(x * random.standard_normal(x.shape)) for x in outputs)


def of_layout(layout: Layout, *, momentum: bool, per_dimension: bool) -> GroupArrays:
    inputs = drawn_group(layout, momentum=momentum, per_dimension=per_dimension)
    return inputs._replace(reference=None, residuals=None)


@pytest.mark.clause("EXACT-21")
@pytest.mark.parametrize("per_dimension", [False, True])
@pytest.mark.parametrize("momentum", [False, True])
@pytest.mark.parametrize("name", BY_TOKEN)
def test_gradients_are_those_of_numpy_and_of_the_complex_step(
    sequences: Taken,
    name: str,
    momentum: bool,
    per_dimension: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layout = BY_TOKEN[name]
    inputs = of_layout(layout, momentum=momentum, per_dimension=per_dimension)
    value, gradients = pulled_back(layout, inputs)
    assert sequences == [True, True]
    monkeypatch.setenv("ATLAS_REF_COMPILED", "0")
    want, numpys = pulled_back(layout, inputs)
    assert_close("value", value, want, ANALYTIC)
    random = np.random.default_rng(5)
    for argument, gradient in gradients.items():
        assert_close(argument, gradient, numpys[argument], ANALYTIC)
        x = getattr(inputs, argument)
        step = random.standard_normal(x.shape)
        stepped = inputs._replace(**{argument: x + 1e-30j * step})
        along = np.imag(plain_value(layout, stepped)) / 1e-30
        assert_close(argument, np.sum(gradient * step), along, ANALYTIC)
    assert len(sequences) == 2


@pytest.mark.clause("EXACT-21")
@pytest.mark.parametrize("momentum", [False, True])
@pytest.mark.parametrize(
    "name", ["running-after-decayed", "running-before", "zero-none", "running-after-window"]
)
def test_the_code_that_is_compiled_says_the_same_in_python(
    sequences: Taken, name: str, momentum: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = of_layout(BY_TOKEN[name], momentum=momentum, per_dimension=momentum)
    value, gradients = pulled_back(BY_TOKEN[name], inputs)
    in_python(monkeypatch)
    same, again = pulled_back(BY_TOKEN[name], inputs)
    assert_close("value", value, same, ANALYTIC)
    for argument, gradient in gradients.items():
        assert_close(argument, gradient, again[argument], ANALYTIC)
    assert sequences == [True] * 4


@pytest.mark.clause("EXACT-21")
def test_second_derivatives(sequences: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = drawn("delta", T=9)

    def loss(v: Any) -> Any:
        y = results("delta", {**tensors, "v": v})[0]
        return ops.sum(y * y)

    product = tape.hvp(loss)(tensors["v"], tensors["v"])
    monkeypatch.setenv("ATLAS_REF_COMPILED", "0")
    assert_close("hvp", product, tape.hvp(loss)(tensors["v"], tensors["v"]), ANALYTIC)


def gradient_of_v(tensors: Arrays) -> Any:
    y, pullback = tape.vjp(lambda v: results("delta", {**tensors, "v": v})[0], tensors["v"])
    return pullback(np.ones_like(y))[0]


# -- precision, threads, arguments -----------------------------------------------------------------


@pytest.mark.slow
def test_float32_is_float64_up_to_rounding(sequences: Taken) -> None:
    tensors = drawn("delta", T=64, d_in=16, d_out=16)
    low = {name: value.astype(np.float32) for name, value in tensors.items()}
    high = {name: value.astype(np.float64) for name, value in low.items()}
    got = results("delta", low)
    assert {each.dtype for each in got} == {np.dtype(np.float32)}
    agree(got, results("delta", high, "sequential"), reordered(64, dtype=np.float32))
    gradient = gradient_of_v(low)
    assert gradient.dtype == np.float32
    assert_close("v", gradient, gradient_of_v(high), reordered(64, dtype=np.float32))
    assert sequences == [True] * 5


def test_every_number_of_threads_gives_the_same_bits(
    sequences: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = drawn("titans_lmm", T=40)
    want, gradient = results("titans_lmm", tensors), gradient_of_v(drawn("delta", T=40))
    monkeypatch.setattr(compiled_tokens, "THREAD_WORK", 0)
    for threads in (1, 2, 3):
        monkeypatch.setattr(compiled_tokens, "processors", lambda threads=threads: threads)
        agree(results("titans_lmm", tensors), want, EXACT)
        assert_close("v", gradient_of_v(drawn("delta", T=40)), gradient, EXACT)
    assert sequences == [True] * 12


def test_arguments_in_any_order_of_memory_stay_as_they_are(sequences: Taken) -> None:
    """Read-only arrays, passed on as they are in any order of memory."""
    tensors = drawn("delta", T=24)
    want, gradient = results("delta", tensors), gradient_of_v(tensors)
    turned = {name: np.moveaxis(value, 0, -1).copy() for name, value in tensors.items()}
    before = {name: value.copy() for name, value in turned.items()}
    for value in turned.values():
        value.flags.writeable = False
    views = {name: np.moveaxis(value, -1, 0) for name, value in turned.items()}
    agree(results("delta", views), want, EXACT)
    assert_close("v", gradient_of_v(views), gradient, EXACT)
    assert all(np.array_equal(before[name], turned[name]) for name in turned)
    assert sequences == [True] * 6


# -- what is not taken -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [complex, np.longdouble])
def test_other_numbers_go_to_numpy(sequences: Taken, kind: Any) -> None:
    results("delta", {name: value.astype(kind) for name, value in drawn("delta", T=9).items()})
    assert sequences == []


@pytest.mark.parametrize("name", [name for name in LAYOUTS if "frozen" in name])
def test_references_that_are_frozen_go_to_numpy(sequences: Taken, name: str) -> None:
    layout = LAYOUTS[name]
    segment.block([layout], chunked_plain.plain)(drawn_group(layout))
    assert sequences == []


def test_reads_of_the_memory_at_the_start_of_a_span_go_to_numpy(sequences: Taken) -> None:
    tensors = drawn("titans_lmm", T=9)
    agree(
        results("titans_lmm", tensors, read="chunk_start"),
        results("titans_lmm", tensors, "sequential", read="chunk_start"),
        ANALYTIC,
    )
    assert sequences == []


def test_little_work_goes_to_numpy(sequences: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_tokens, "WORK", 3 * 16 * 4 * 3)
    results("delta", drawn("delta", T=15))
    assert sequences == []
    results("delta", drawn("delta", T=16))
    assert sequences == [True]


def test_a_backward_of_a_large_state_without_momentum_goes_to_chunks(
    sequences: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    def total(rule: str, k: Any) -> Any:
        return ops.sum(results(rule, {**tensors, "k": k})[0])

    for rule, used in (("delta", []), ("titans_lmm", [True, True])):
        sequences.clear()
        tensors = drawn(rule, T=9)
        monkeypatch.setattr(compiled_tokens, "LARGE", tensors["k"].shape[-1])
        tape.grad(functools.partial(total, rule))(tensors["k"])
        assert sequences == used
    results("delta", drawn("delta", T=9))
    assert sequences == [True, True, True]


@pytest.mark.parametrize("what", ["infinite", "nan"])
def test_numpy_says_what_overflows(
    sequences: Taken, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    tensors = drawn("delta", T=9)
    tensors["v"][...] = 1e308
    tensors["M0"][...] = -1e308 if what == "infinite" else 1e308
    tensors["k"][:, 1::2] *= 1.0 if what == "infinite" else -9.0
    with np.errstate(all="raise"), pytest.raises(FloatingPointError, match=r"overflow|invalid"):
        results("delta", tensors)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        got = results("delta", tensors)
        assert sequences == [False, False]
        monkeypatch.setenv("ATLAS_REF_COMPILED", "0")
        want = results("delta", tensors)
    agree(got, want, EXACT)
    assert not np.isfinite(got[0]).all()


def test_numpy_says_what_overflows_in_a_gradient(
    sequences: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = drawn("delta", T=9)

    def pulled() -> Any:
        y, pullback = tape.vjp(lambda q: results("delta", {**tensors, "q": q})[0], tensors["q"])
        return pullback(np.full_like(y, 1e308))[0]

    with np.errstate(all="raise"), pytest.raises(FloatingPointError, match=r"overflow|invalid"):
        pulled()
    assert sequences == [True, False]
    with np.errstate(all="ignore"):
        got = pulled()
        monkeypatch.setenv("ATLAS_REF_COMPILED", "0")
        assert_close("q", got, pulled(), EXACT)


@pytest.mark.parametrize("broken", ["numba", "atlas_ref.engine.compiled.token_loop"])
def test_a_numba_that_cannot_be_used_is_named(
    sequences: Taken, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Numba that cannot be used, as one that is older than its NumPy."""
    tensors = drawn("delta", T=9)
    forget_what_imports_numba(monkeypatch)
    monkeypatch.setitem(sys.modules, broken, None)
    monkeypatch.setattr(compiled, "loop", functools.cache(compiled.loop.__wrapped__))
    with pytest.warns(RuntimeWarning, match="cannot be used, so NumPy computes"):
        got = results("delta", tensors)
    agree(got, results("delta", tensors), EXACT)
    assert sequences == [False, False]


@pytest.mark.clause("EXACT-21")
def test_a_backward_for_which_numba_fails_is_that_of_numpy(
    sequences: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors, loop = drawn("delta", T=9), compiled.loop
    want = gradient_of_v(tensors)
    monkeypatch.setattr(
        compiled,
        "loop",
        lambda name, *rest: None if name.endswith("backward") else loop(name, *rest),
    )
    assert_close("v", gradient_of_v(tensors), want, ANALYTIC)
    assert sequences == [True, True, True, False]
