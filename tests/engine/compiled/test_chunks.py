"""The compiled form in chunks under a reference that is known: the sequential rule's numbers, and the calls that are left to NumPy."""

from __future__ import annotations

import functools
import subprocess
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numba
import numpy as np
import pytest

import tape
from atlas_ref import forms as run
from atlas_ref.backend import compiled
from atlas_ref.backend.compiled import lanes
from atlas_ref.backend.threads import slices
from atlas_ref.engine import dispatch as engine_dispatch
from atlas_ref.engine import segment
from atlas_ref.engine.compiled import chunks
from atlas_ref.engine.compiled import group as compiled_group
from atlas_ref.forms import chunked, chunked_plain
from atlas_ref.rules.sequence import Tokens
from tests.engine.masked.test_masked import LAYOUTS
from tests.engine.masked.test_masked import drawn as drawn_group
from tests.support.close import ANALYTIC, EXACT, assert_close, reordered
from tests.support.compiled import agree, drawn, forget_what_imports_numba
from tests.support.compiled import results as results_of
from tests.support.sequences import MODULES, Arrays

pytestmark = pytest.mark.host("compiled forms take arrays of NumPy alone")


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """For each compiled group, whether its results were used, with no sequence too short."""
    taken: list[bool] = []

    def seen(*args: Any) -> Any:
        end = plain(*args)
        taken.append(end is not None)
        return end

    plain = compiled_group.run
    monkeypatch.setattr(compiled_group, "WORK", 0)
    monkeypatch.setattr(compiled_group, "run", seen)
    monkeypatch.delenv("ATLAS_REF_COMPILED", raising=False)
    return taken


def results(
    rule: str,
    tensors: Arrays,
    form: str = "chunkwise",
    chunk: int | None = None,
    *,
    reference: str | None = "call_start",
    **more: Any,
) -> tuple[Any, ...]:
    return results_of(rule, tensors, form, chunk, reference=reference, **more)


@pytest.mark.clause("CHUNK-4", "CHUNK-6", "CHUNK-7", "CHUNK-8", "CHUNK-9")
@pytest.mark.parametrize("read", ["after", "before"])
@pytest.mark.parametrize("boundary", ["recompute", "carry", "cut"])
@pytest.mark.parametrize("reference", ["chunk_start", "call_start", "zero"])
@pytest.mark.parametrize(
    "sizes",
    [(9, 4, 3), (1, None, 2), (16, 8, 5), (7, 3, 9), (70, None, 4), (37, 5, 1), (6, 1, 4)],
    ids=str,
)
def test_is_the_sequential_rule_under_a_reference_that_is_known(
    groups: list[bool], sizes: tuple[int, int | None, int], reference: str, boundary: str, read: str
) -> None:
    """Two calls, of which the second continues with the window, residuals and place in a span of
    the first.
    """
    T, chunk, window = sizes
    convention = {"reference": reference, "read": read} | (
        {} if reference == "zero" else {"window_at_boundary": boundary}
    )
    for d_in, d_out in ((4, 4), (7, 5)):
        tensors = drawn("omega", T=T, d_in=d_in, d_out=d_out, window=window, seed=T)
        got = results("omega", tensors, "chunkwise", chunk, calls=2, **convention)
        agree(got, results("omega", tensors, "sequential", calls=2, **convention), ANALYTIC)
    assert groups
    assert all(groups)


@pytest.mark.clause("CHUNK-6", "CHUNK-8")
@pytest.mark.parametrize("reference", ["chunk_start", "call_start", "zero"])
def test_titans_under_a_reference_that_is_known(groups: list[bool], reference: str) -> None:
    tensors = drawn("titans_lmm", T=23)
    agree(
        results("titans_lmm", tensors, "chunkwise", 8, calls=2, reference=reference),
        results("titans_lmm", tensors, "sequential", calls=2, reference=reference),
        ANALYTIC,
    )
    assert groups
    assert all(groups)


@pytest.mark.clause("CHUNK-7")
def test_hebbian(groups: list[bool]) -> None:
    tensors = drawn("hebbian", T=23)
    agree(
        results("hebbian", tensors, "chunkwise", 8, reference=None),
        results("hebbian", tensors, "sequential", reference=None),
        ANALYTIC,
    )
    assert groups
    assert all(groups)


@pytest.mark.clause("CHUNK-15")
@pytest.mark.parametrize("momentum", [True, False])
@pytest.mark.parametrize(
    "name", [name for name, layout in LAYOUTS.items() if layout.read in ("after", "before")]
)
def test_a_group_is_what_numpy_makes_of_it(
    groups: list[bool], name: str, momentum: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiled group against NumPy, also where a layout names refreshes without a reference to
    refresh.
    """
    layout = LAYOUTS[name]
    given = drawn_group(layout, momentum=momentum)
    y, end = segment.block([layout], chunked_plain.plain)(given)
    assert groups == ([] if layout.running else [True])
    monkeypatch.setenv("ATLAS_REF_COMPILED", "0")
    want, want_end = segment.block([layout], chunked_plain.plain)(given)
    assert_close("y", y, want, ANALYTIC)
    for part, value, true in zip(end._fields, end, want_end, strict=True):
        assert (value is None) == (true is None)
        if value is not None:
            assert_close(part, value, true, ANALYTIC)


@pytest.mark.slow  # it compiles for ten seconds; the loop over tokens shows float32 in `make test`
def test_float32_is_float64_up_to_rounding(groups: list[bool]) -> None:
    tensors = drawn("titans_lmm", T=64, d_in=16, d_out=16)
    low = {name: value.astype(np.float32) for name, value in tensors.items()}
    want = results(
        "titans_lmm", {name: value.astype(np.float64) for name, value in low.items()}, "sequential"
    )
    got = results("titans_lmm", low)
    assert {each.dtype for each in got} == {np.dtype(np.float32)}
    assert len(groups) == 1
    agree(got, want, reordered(64, dtype=np.float32))


def test_every_number_of_threads_and_every_group_gives_the_same_bits(
    groups: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = drawn("titans_lmm", T=40)
    want = results("titans_lmm", tensors, chunk=4)
    for threads in (1, 2, 3):
        monkeypatch.setattr(
            engine_dispatch,
            "thread_partition",
            lambda layout, inputs, threads=threads: slices(len(inputs.queries), threads),
        )
        agree(results("titans_lmm", tensors, chunk=4), want, EXACT)
    monkeypatch.setattr(chunked, "_limit", lambda flat, layout, chunk: 8)
    agree(results("titans_lmm", tensors, chunk=4), want, EXACT)
    assert groups == [True] * (4 + 5)


def test_arguments_in_any_order_of_memory_stay_as_they_are(groups: list[bool]) -> None:
    """Read-only arrays, passed on as they are in any order of memory."""
    tensors = drawn("delta", T=24)
    want = results("delta", tensors)
    turned = {name: np.moveaxis(value, 0, -1).copy() for name, value in tensors.items()}
    before = {name: value.copy() for name, value in turned.items()}
    for value in turned.values():
        value.flags.writeable = False
    agree(
        results("delta", {name: np.moveaxis(value, -1, 0) for name, value in turned.items()}),
        want,
        EXACT,
    )
    assert all(np.array_equal(before[name], turned[name]) for name in turned)
    assert groups == [True, True]


@pytest.mark.slow
@pytest.mark.clause("CHUNK-6", "CHUNK-8")
def test_the_code_that_is_compiled_says_the_same_in_python(
    groups: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = drawn("titans_lmm", T=12)
    want = results("titans_lmm", tensors, chunk=4)
    monkeypatch.setattr(compiled, "loop", lambda module, kind: chunks.inter_chunk_loop)
    agree(results("titans_lmm", tensors, chunk=4), want, ANALYTIC)
    assert groups == [True, True]


# -- what is not taken -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t | {"retain": np.repeat(t["retain"][..., None], 3, axis=-1)},
        lambda t: {name: value.astype(complex) for name, value in t.items()},
        lambda t: {name: value.astype(np.longdouble) for name, value in t.items()},
    ],
    ids=["gates per dimension", "complex", "longdouble"],
)
def test_other_arguments_go_to_numpy(
    groups: list[bool], change: Callable[[Arrays], Arrays]
) -> None:
    tensors = change(drawn("delta", T=9))
    if tensors["retain"].ndim == 3:
        module = MODULES["delta"]
        config = module.Config(
            d_in=4,
            d_out=3,
            span=4,
            per_dimension_gates=True,
            convention={"gate": "retain", "reference": "chunk_start"},
        )
        state = module.start(config, (3,), M=tensors["M0"])
        run.run(
            module.RULE,
            config,
            Tokens(**{k: v for k, v in tensors.items() if k != "M0"}),
            state,
            form="chunkwise",
        )
    else:
        results("delta", tensors)
    assert groups == []


def test_reads_of_another_memory_than_the_running_one_go_to_numpy(groups: list[bool]) -> None:
    tensors = drawn("titans_lmm", T=9)
    for read in ("chunk_start", "call_end"):
        agree(
            results("titans_lmm", tensors, read=read),
            results("titans_lmm", tensors, "sequential", read=read),
            ANALYTIC,
        )
    assert groups == []


def test_a_reference_that_decays_comes_as_two_that_do_not(groups: list[bool]) -> None:
    tensors, frozen = (
        drawn("titans_lmm", T=9),
        {"reference": "chunk_start", "decay": "before_error"},
    )
    agree(
        results("titans_lmm", tensors, "chunkwise", **frozen),
        results("titans_lmm", tensors, "sequential", **frozen),
        ANALYTIC,
    )
    assert groups
    assert all(groups)


def test_little_work_goes_to_numpy(groups: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_group, "WORK", 3 * 16 * 4 * (4 + 3))
    results("delta", drawn("delta", T=15), chunk=4)
    assert groups == []
    results("delta", drawn("delta", T=16), chunk=4)
    assert groups == [True]


def test_the_environment_and_what_is_installed_decide(
    groups: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = drawn("delta", T=9)
    for word in ("0", "off", "False", "no"):
        monkeypatch.setenv("ATLAS_REF_COMPILED", word)
        want = results("delta", tensors)
    monkeypatch.setenv("ATLAS_REF_COMPILED", "1")
    monkeypatch.setattr(compiled, "_installed", lambda: False)
    agree(results("delta", tensors), want, EXACT)
    assert groups == []
    monkeypatch.undo()
    assert compiled.wanted()


def test_what_lasts_for_a_sweep_back_goes_to_numpy(
    groups: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sequence whose last group is kept for backward; the others are not, and they are
    compiled.
    """
    tensors = drawn("delta", T=16)
    monkeypatch.setattr(chunked, "_limit", lambda flat, layout, chunk: 4)

    def pulled_back() -> Any:
        y, pullback = tape.vjp(
            lambda v: results("delta", {**tensors, "v": v}, chunk=4)[0], tensors["v"]
        )
        return y, pullback(y)[0]

    got = pulled_back()
    assert groups == [True] * 3
    monkeypatch.setenv("ATLAS_REF_COMPILED", "0")
    for name, value, want in zip(("y", "gradient"), got, pulled_back(), strict=True):
        assert_close(name, value, want, ANALYTIC)


@pytest.mark.parametrize("what", ["infinite", "nan"])
def test_numpy_says_what_overflows(
    groups: list[bool], monkeypatch: pytest.MonkeyPatch, what: str
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
        assert groups == [False, False]
        monkeypatch.setenv("ATLAS_REF_COMPILED", "0")
        want = results("delta", tensors)
    agree(got, want, EXACT)
    assert not np.isfinite(got[0]).all()


@pytest.mark.parametrize("broken", ["numba", "atlas_ref.engine.compiled.chunks"])
def test_a_numba_that_cannot_be_used_is_named_once(
    groups: list[bool], broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Numba that cannot be used, as one that is older than its NumPy."""
    tensors = drawn("delta", T=9)
    forget_what_imports_numba(monkeypatch)
    monkeypatch.setitem(sys.modules, broken, None)
    monkeypatch.setattr(compiled, "loop", functools.cache(compiled.loop.__wrapped__))
    with pytest.warns(RuntimeWarning, match="cannot be used, so NumPy computes"):
        got = results("delta", tensors)
    agree(got, results("delta", tensors), EXACT)
    assert groups == [False, False]


def test_what_stands_in_the_place_of_numba_is_not_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", types.ModuleType("numba"))
    assert not compiled._installed.__wrapped__()


def test_large_matrices_go_to_numpy(groups: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_group, "LARGEST", 8)
    results("delta", drawn("delta", T=16, d_in=8, d_out=8), chunk=8)
    assert groups == [True]
    for sizes, chunk in (({"d_in": 9}, 8), ({"d_out": 9}, 8), ({}, 9)):
        results("delta", drawn("delta", T=2 * chunk, **sizes), chunk=chunk)
    assert groups == [True]


# -- loading it ------------------------------------------------------------------------------------


def test_numba_is_loaded_when_it_is_needed() -> None:
    code = (
        "import sys, atlas_ref.forms, atlas_ref.engine.compiled.group; print('numba' in "
        "sys.modules)"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "False\n"
    )


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("no locator available"),
        EOFError("Ran out of input"),
        OSError(28, "No space left"),
    ],
    ids=repr,
)
def test_a_machine_that_cannot_keep_code_compiles_anew(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, asked = numba.njit, []

    def njit(*args: Any, cache: bool = False, **settings: Any) -> Any:
        asked.append(cache)
        if cache:
            raise error
        return plain(*args, **settings)

    monkeypatch.setattr(numba, "njit", njit)
    doubled = lanes.on_disk(_doubled, (numba.float64[:],))
    value = np.array([1.5])
    doubled(value)
    assert value == 3.0
    assert asked[:2] == [True, False]  # Numba's own functions may follow
    assert not any(asked[2:])


def _doubled(x: Any) -> None:
    x[0] *= 2.0
