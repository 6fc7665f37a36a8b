"""A group of chunks by hand against its twin in tape ops and the complex step.

Values, first and second derivatives.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tape
from atlas_ref.backend.scratch import scratch
from atlas_ref.engine import segment
from atlas_ref.engine.group import coefficients
from atlas_ref.engine.group.layout import Arrays, Layout
from atlas_ref.forms import chunked_plain
from tape import check, ops
from tests.support.close import ANALYTIC, assert_close

LAYOUTS = {
    "frozen": Layout(3, 1, (True, False), "frozen", False, "after", False, 0),
    "frozen-window": Layout(2, 4, (False, True), "frozen", False, "before", False, 5),
    "frozen-carry": Layout(2, 4, (False, True, False), "frozen", False, "after", True, 2),
    "frozen-reference-read": Layout(2, 2, (False, True), "frozen", False, "reference", False, 0),
    "zero": Layout(3, 2, (True,), "zero", False, "after", False, 0),
    "running": Layout(4, 1, (False, False), "running", False, "after", False, 0),
    "running-before-error": Layout(3, 1, (True, False), "running", True, "before", False, 0),
    "running-window": Layout(2, 3, (False, False), "running", False, "after", False, 0),
    "running-window-before-error": Layout(3, 2, (False,), "running", True, "reference", False, 0),
    "nothing-read": Layout(2, 2, (True, False), "frozen", False, "none", False, 0),
}


def drawn(
    layout: Layout, *, per_dimension: bool = False, momentum: bool = True, seed: int = 0
) -> Arrays:
    """A group of two heads with two dimensions in and three out; some gates are exactly 0 and 1."""
    random = np.random.default_rng(seed)
    B, d, o = 2, 2, 3
    n, h = layout.chunk * len(layout.refresh), layout.window - 1

    def gate(low: float, high: float) -> Any:
        value = random.uniform(low, high, (B, n, o if per_dimension else 1))
        value[:, 1::4] = 0.0
        value[:, 2::5] = 1.0
        return value

    return Arrays(
        keys=random.standard_normal((B, h + n, d)),
        values=random.standard_normal((B, h + n, o)),
        queries=random.standard_normal((B, n, d)),
        retain=gate(0.2, 0.9),
        momentum=gate(0.2, 0.9) if momentum else None,
        rate_in=0.2 * gate(0.1, 0.9),
        rate_out=gate(0.1, 0.9),
        weights=random.uniform(0.2, 1.0, (B, n, layout.window)),
        M=random.standard_normal((B, o, d)),
        S=random.standard_normal((B, o, d)) if momentum else None,
        reference=random.standard_normal((B, o, d)) if layout.keeps_reference else None,
        residuals=random.standard_normal((B, h, o)) if layout.carry else None,
    )


def by_hand(layout: Layout) -> Any:
    """The one group as a segment, as a function of arrays that returns arrays."""
    block = segment.block([layout], chunked_plain.plain)
    return lambda *arrays: segment.outputs(*block(Arrays(*arrays)))


def weighed(layout: Layout, given: Arrays, block: Any) -> tuple[Any, dict[str, Any]]:
    """A number of all outputs and the arguments it depends on, by name."""
    random = np.random.default_rng(9)
    bars = [random.standard_normal(np.shape(value)) for value in chunked_plain.plain(layout, given)]
    present = {name: value for name, value in given._asdict().items() if value is not None}

    def number(chosen: dict[str, Any]) -> Any:
        outputs = block(*given._replace(**chosen))
        return sum(ops.sum(ops.tanh(value) * bar) for value, bar in zip(outputs, bars, strict=True))

    return number, present


@pytest.mark.clause(
    "CHUNK-6",
    "CHUNK-7",
    "CHUNK-8",
    "CHUNK-9",
    "CHUNK-12",
    "EXACT-2",
    "EXACT-3",
    "EXACT-6",
    "EXACT-7",
)
@pytest.mark.parametrize("per_dimension", [False, True])
@pytest.mark.parametrize("momentum", [False, True])
@pytest.mark.parametrize("name", LAYOUTS)
def test_values_are_those_of_the_twin_in_tape_ops(
    name: str, momentum: bool, per_dimension: bool
) -> None:
    layout = LAYOUTS[name]
    given = drawn(layout, per_dimension=per_dimension, momentum=momentum)
    with_scratch = by_hand(layout)(*given)
    for got, want in zip(with_scratch, chunked_plain.plain(layout, given), strict=True):
        assert_close(name, got, want, ANALYTIC)


@pytest.mark.sample(8)
@pytest.mark.clause("CHUNK-16", "CHUNK-17", "EXACT-8", "EXACT-9", "EXACT-10")
@pytest.mark.parametrize("per_dimension", [False, True])
@pytest.mark.parametrize("momentum", [False, True])
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_gradient_by_hand_is_that_of_the_twin_and_the_complex_step(
    name: str, momentum: bool, per_dimension: bool
) -> None:
    layout = LAYOUTS[name]
    given = drawn(layout, per_dimension=per_dimension, momentum=momentum)
    mine, present = weighed(layout, given, by_hand(layout))
    plain, _ = weighed(layout, given, lambda *arrays: chunked_plain.plain(layout, Arrays(*arrays)))
    check.check_gradient(mine, present)
    got, want = tape.grad(mine)(present), tape.grad(plain)(present)
    for argument, value in want.items():
        assert_close(argument, got[argument], value, ANALYTIC)


@pytest.mark.clause("CHUNK-15", "TAPE-9")
@pytest.mark.parametrize(("groups", "read"), [(1, True), (1, False), (3, True), (3, False)])
@pytest.mark.parametrize("per_dimension", [False, True])
@pytest.mark.parametrize("momentum", [False, True])
@pytest.mark.parametrize("name", LAYOUTS)
def test_gradients_have_memory_of_their_own_although_none_is_copied(
    name: str, momentum: bool, per_dimension: bool, groups: int, read: bool
) -> None:
    """Separate memory of gradients.

    Else a change of one would change another, an array of the caller, or an input of the next call.

    Where nobody asks for the gradient of the reads, that of a reference may come through as it was.
    """
    layout = LAYOUTS[name]
    skipped = 0 if read or layout.read == "none" else 1
    layouts = [layout] * groups
    given = drawn(
        layout._replace(refresh=layout.refresh * groups),
        per_dimension=per_dimension,
        momentum=momentum,
    )
    present = {key: value for key, value in given._asdict().items() if value is not None}
    block = segment.block(layouts, chunked_plain.plain)
    outputs, pullback = tape.vjp(
        lambda chosen: segment.outputs(*block(given._replace(**chosen)))[skipped:], present
    )
    bars = tuple(np.full_like(value, 1.5) for value in outputs)
    (first,) = pullback(bars)
    before = {key: value.copy() for key, value in first.items()}
    everything = [*first.values(), *present.values(), *bars, *outputs, scratch.block]
    for i, (key, gradient) in enumerate(first.items()):
        assert not any(
            np.may_share_memory(gradient, other) for j, other in enumerate(everything) if j != i
        ), key
        gradient[...] = np.nan
    for key, gradient in pullback(bars)[0].items():
        assert_close(key, gradient, before[key], ANALYTIC)


@pytest.mark.clause("CHUNK-16", "EXACT-8", "TAPE-9")
@pytest.mark.parametrize("name", ["frozen-window", "running-before-error"])
def test_second_derivatives_see_inside(name: str) -> None:
    layout = LAYOUTS[name]
    given = drawn(layout)
    number, present = weighed(layout, given, by_hand(layout))
    random = np.random.default_rng(4)
    check.check_second(
        number,
        present,
        {key: random.standard_normal(value.shape) for key, value in present.items()},
        tolerance=1e-10,
    )


@pytest.mark.clause("CHUNK-16")
@pytest.mark.parametrize("output", [0, 1, 2])
def test_the_gradient_of_one_output_alone_needs_no_other(output: int) -> None:
    """Absent cotangents, which count as zero."""
    layout = LAYOUTS["running-before-error"]
    given = drawn(layout)
    present = {name: value for name, value in given._asdict().items() if value is not None}
    got, want = (
        tape.grad(
            lambda chosen, block=block: ops.sum(block(*given._replace(**chosen))[output] ** 2)
        )(present)
        for block in (by_hand(layout), lambda *arrays: chunked_plain.plain(layout, Arrays(*arrays)))
    )
    for argument, value in want.items():
        assert_close(argument, got[argument], value, ANALYTIC)


@pytest.mark.clause("CHUNK-4", "CHUNK-5")
@pytest.mark.parametrize("momentum", [False, True])
def test_coefficient_rows_are_the_sums_over_paths(momentum: bool) -> None:
    """D[t,i] as plain loops, and X likewise.

    D[t,i] is the sum over s <= t of the products of retain after s, times rate_out_s times X[s,i].
    """
    layout = Layout(6, 3, (False,), "frozen", False, "after", False, 0)
    given = drawn(layout, momentum=momentum)
    gates = coefficients.gate_rows(
        6, given.retain, given.momentum, given.rate_in, given.rate_out, given.weights
    )
    with scratch.frame():
        D, X = (
            None if rows is None else rows.copy()
            for rows in coefficients.coefficient_rows(gates, 8, 1)
        )
    r, a, b = given.retain[0, :, 0], given.rate_in[0, :, 0], given.rate_out[0, :, 0]
    m = given.momentum[0, :, 0] if momentum else np.zeros(6)
    for t in range(6):
        for i in range(8):
            total = 0.0
            for s in range(t + 1):
                inside = sum(
                    np.prod(m[u + 1 : s + 1]) * a[u] * given.weights[0, u, u + 2 - i]
                    for u in range(s + 1)
                    if 0 <= u + 2 - i <= 2
                )
                total += np.prod(r[s + 1 : t + 1]) * b[s] * inside
            assert_close(f"D[{t},{i}]", D[t + 1, 0, 0, 0, gates.bases + i], total, ANALYTIC)
        assert_close("c", D[t + 1, 0, 0, 0, 0], np.prod(r[: t + 1]), ANALYTIC)
        if momentum:
            assert_close("n", X[t + 1, 0, 0, 0, 1], np.prod(m[: t + 1]), ANALYTIC)


@pytest.mark.clause("CHUNK-15")
def test_results_are_not_work_space() -> None:
    """Returned arrays, which stay as they are when the next group runs."""
    layout = LAYOUTS["running"]
    block = by_hand(layout)

    def both(seed: int) -> tuple[Any, Any]:
        given = drawn(layout, seed=seed)
        present = {name: value for name, value in given._asdict().items() if value is not None}
        values, pulled = tape.vjp(lambda chosen: block(*given._replace(**chosen)), present)
        return values, pulled(tuple(np.ones_like(value) for value in values))[0]

    values, bars = both(1)
    found = [*values, *bars.values()]
    copies = [value.copy() for value in found]
    both(2)
    for value, copy in zip(found, copies, strict=True):
        assert value.tobytes() == copy.tobytes()
