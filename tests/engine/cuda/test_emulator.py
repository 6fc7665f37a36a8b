"""Mistakes that a GPU may hide, planted into kernel sources: the emulating host must report
each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from atlas_ref.backend.scratch import scratch
from atlas_ref.engine.cuda import coefficients, exact, sequential, triangular
from atlas_ref.engine.group import coefficients as plain
from atlas_ref.engine.group.triangular import inverse_unit_lower
from atlas_ref.engine.masked import forward as masked_forward
from tests.engine.cuda import test_coefficients, test_exact, test_sequential
from tests.engine.cuda.emulated import BACKWARDS, FORWARDS, SHUFFLED, Broken, Emulated


def of_sequential(device: Emulated) -> float:
    given = test_sequential.drawn((2, 5, 13, 19, 3, False))
    got, want = sequential.steps(*given, device=device), sequential.plain_steps(*given)
    return max(worst(a, b) for a, b in zip(got, want, strict=True))


def of_coefficients(device: Emulated) -> float:
    gates, random = test_coefficients.drawn((13, 11, 1, 2, 1), True, np.float64, shared=False)
    D, X = plain.coefficient_rows(gates, 13 * 11, 11)
    dD, dX = random.standard_normal(D.shape), random.standard_normal(D.shape[1:])
    got = coefficients.coefficient_rows_backward(gates, D, X, dD, dX, 11, device=device)
    want = plain.coefficient_rows_backward(gates, D, X, dD.copy(), dX, 11)
    return max(worst(a, b) for a, b in zip(got, want, strict=True))


def of_exact(device: Emulated, *, per_dimension: bool = False) -> float:
    with scratch.frame():
        case = test_exact.drawn(
            (5, 2, 2, 70, 9),
            np.float64,
            momentum=True,
            per_dimension=per_dimension,
            before_error=False,
        )
        got = exact.inter_chunk_loop(
            case.loop, masked_forward.side_by_side(case.given), device=device
        )
        return max(worst(value, getattr(case.made, name)) for name, value in got._asdict().items())


def of_exact_per_dimension(device: Emulated) -> float:
    return of_exact(device, per_dimension=True)


def of_triangular(device: Emulated) -> float:
    strict = np.tril(np.random.default_rng(0).standard_normal((2, 40, 40)), -1) / 6
    return worst(triangular.inverse_unit_lower(strict, device=device), inverse_unit_lower(strict))


def worst(got: Any, want: Any) -> float:
    """The largest difference, or infinity where an entry is no number."""
    gap = np.abs(got - want)
    return float(np.max(np.where(np.isfinite(gap), gap, np.inf)))


class Mistake(NamedTuple):
    """A planted mistake: what it replaces in a source, what runs, and the message of the host.

    The message is there where the outcome is more than a wrong result.
    """

    run: Callable[[Emulated], float]
    old: str
    new: str
    says: str | None = None


BARRIER = "__syncthreads();"
SYSTEM = """        for (int row = 0; row < places; row += TILE) {
            T sums[ROWS][1] = {};
            solve<T, false>"""
OUTSIDE = "a touch of memory outside"
MISTAKES = {
    "sequential-no-barrier": Mistake(
        of_sequential,
        f"{BARRIER}\n\n        // What the next token",
        "\n\n        // What the next token",
    ),
    "sequential-ring-too-short": Mistake(of_sequential, "ring = window + 1", "ring = window"),
    "sequential-one-query-for-two": Mistake(of_sequential, "then = 1 - now", "then = now"),
    "sequential-reads-beyond-a-row": Mistake(
        of_sequential,
        "const bool there = more && column < features;",
        "const bool there = true;",
        OUTSIDE,
    ),
    "sequential-writes-beyond-the-rows": Mistake(
        of_sequential, "if (mine && lane == 0) store", "if (lane == 0) store"
    ),
    "sequential-too-little-shared-memory": Mistake(
        of_sequential, "query_pair + 2 * WIDE", "query_pair + 3 * WIDE", OUTSIDE
    ),
    "sequential-shuffle-in-a-branch": Mistake(
        of_sequential,
        "if (read == READ_AFTER) found",
        "if (read == READ_AFTER && mine) found",
        "a shuffle that not all threads of a warp meet",
    ),
    "coefficients-no-barrier": Mistake(
        of_coefficients, f"{BARRIER}\n    for (int64 t = threadIdx.x", "for (int64 t = threadIdx.x"
    ),
    "coefficients-a-column-too-many": Mistake(
        of_coefficients, "i < now; i += blockDim.x", "i <= now; i += blockDim.x"
    ),
    "exact-no-barrier-before-a-tile": Mistake(
        of_exact, f"int columns) {{\n    {BARRIER}", "int columns) {"
    ),
    "exact-no-barrier-behind-a-tile": Mistake(
        of_exact, f"    {BARRIER}\n}}\n\n// sums", "}\n\n// sums"
    ),
    "exact-no-barrier-before-the-system": Mistake(
        of_exact_per_dimension, f"{BARRIER}\n{SYSTEM}", SYSTEM
    ),
    "exact-barrier-in-a-branch": Mistake(
        of_exact,
        f"int columns) {{\n    {BARRIER}",
        f"int columns) {{\n    if (threadIdx.x) {BARRIER}",
        "a barrier that not all threads of a block meet",
    ),
    "exact-reads-beyond-a-matrix": Mistake(
        of_exact, "y < rows && x < columns ?", "y <= rows && x <= columns ?", OUTSIDE
    ),
    "triangular-no-barrier": Mistake(of_triangular, BARRIER, ""),
}


@functools.cache
def unplanted(run: Callable[[Emulated], float], order: int) -> float:
    """What the sources as they are give, which many mistakes share."""
    return run(Emulated(order))


@pytest.mark.sample(6)
@pytest.mark.clause("CUDA-2")
@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_seen(host: Any, name: str) -> None:
    mistake = MISTAKES[name]
    seen = []
    for order in (FORWARDS, BACKWARDS, SHUFFLED):
        assert unplanted(mistake.run, order) < 1e-12
        try:
            error = mistake.run(Emulated(order, {mistake.old: mistake.new}))
        except Broken as broken:
            seen.append(str(broken))
        else:
            seen += [f"off by {error}"] if error > 1e-9 else []
    assert seen, f"{name}: no order of threads shows it"
    assert mistake.says is None or any(mistake.says in each for each in seen), seen


CONVERSIONS = """
template <class V>
__global__ void widen(float* to, const V* from, int64 count) {
    const int64 i = static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < count) to[i] = widened(from[i]);
}

template <class V>
__global__ void narrow(V* to, const float* from, int64 count) {
    const int64 i = static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < count) store(to + i, from[i]);
}
"""


@pytest.mark.sample(1)
@pytest.mark.clause("CUDA-7")
@pytest.mark.parametrize(("kind", "name"), [(np.float16, "f16"), (ml_dtypes.bfloat16, "bf16")])
def test_numbers_of_16_bits_are_widened_and_rounded_as_numpy_does(
    host: Any, kind: Any, name: str
) -> None:
    """All numbers of 16 bits; midpoints, their neighbours and drawn bits of 32."""
    first = "template <class T>\n__global__ void inverse_unit_lower("
    device = Emulated(planted={first: CONVERSIONS + first})
    every = np.arange(2**16, dtype=np.uint32).astype(np.uint16).view(kind)

    def run(what: str, to: Any, given: Any) -> Any:
        blocks = -(-len(given) // 1024)
        device.launch(
            "triangular", f"{what}<{name}>", (blocks,), (1024,), 0, (to, given, len(given))
        )
        return to

    widened = run("widen", np.empty(2**16, np.float32), every)
    assert np.array_equal(widened, every.astype(np.float32), equal_nan=True)
    low = every[np.isfinite(widened) & (every.view(np.uint16) & 0x7FFF < 0x7F7F)]
    drawn = np.random.default_rng(0).integers(0, 2**32, 20_000, dtype=np.uint32).view(np.float32)
    extremes = np.array(
        [
            65519.996,
            65520.0,
            3.4e38,
            -3.4e38,
            np.inf,
            -np.inf,
            np.nan,
            2**-24,
            2**-25,
            2**-26,
            1e-45,
            -0.0,
        ],
        np.float32,
    )
    with np.errstate(all="ignore"):
        between = (
            low.astype(np.float32)
            + (low.view(np.uint16) + np.uint16(1)).view(kind).astype(np.float32)
        ) / np.float32(2)
        values = np.concatenate(
            [
                between,
                np.nextafter(between, np.float32(9e9)),
                np.nextafter(between, -np.float32(9e9)),
                drawn,
                extremes,
            ]
        )
        want = values.astype(kind)
    got = run("narrow", np.empty(len(values), kind), values)
    numbers = ~np.isnan(values)
    assert np.array_equal(got.view(np.uint16)[numbers], want.view(np.uint16)[numbers])
    assert np.isnan(got[~numbers].astype(np.float32)).all()
