"""The opaque block of Newton-Schulz: bits, batches, groups, threads, precision (NS-1, NS-8,
NS-20).
"""

from __future__ import annotations

import itertools
import threading
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from atlas_ref.parts.newton_schulz import (
    NewtonSchulz,
    newton_schulz,
    numpy_steps,
    plain_newton_schulz,
)
from tape import TapeError, check, ops, vjp
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs, reordered
from tests.truth import spectral

SHAPES = [(1, 1), (1, 6), (6, 1), (5, 5), (3, 8), (8, 3), (16, 16), (33, 17)]
CHOICES: list[dict[str, Any]] = [
    {},
    {"coefficients": "cubic", "scale": "norm"},
    {"guard": "return", "transpose": "never"},
    {"guard": "clamp"},
]


def gaussian(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


def value_and_pullback(settings: NewtonSchulz, S: Any, G: Any) -> tuple[Any, Any]:
    value, pullback = vjp(lambda x: newton_schulz(x, settings), S)
    return value, pullback(G)[0]


# -- batches ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.float64, np.float32])
@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.clause("NS-1", "NS-20")
def test_a_batch_has_the_bits_of_its_matrices_alone(choice: dict[str, Any], kind: Any) -> None:
    settings = NewtonSchulz(**choice)
    for shape in SHAPES:
        S, G = (gaussian(2, 9, *shape, seed=seed).astype(kind) for seed in (0, 1))
        S[1, 4] = 0
        value, pulled = value_and_pullback(settings, S, G)
        for index in np.ndindex(2, 9):
            alone = value_and_pullback(settings, S[index].copy(), G[index].copy())
            assert_close(f"value {shape} {index}", value[index], alone[0], EXACT)
            assert_close(f"pullback {shape} {index}", pulled[index], alone[1], EXACT)


@pytest.mark.clause("NS-1", "NS-20")
def test_the_same_program_gives_the_same_bits_twice() -> None:
    S, G = gaussian(40, 24, 24), gaussian(40, 24, 24, seed=1)
    first, second = (value_and_pullback(NewtonSchulz(), S, G) for _ in range(2))
    assert_close("value", first[0], second[0], EXACT)
    assert_close("pullback", first[1], second[1], EXACT)


@pytest.fixture
def grouped(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Set bytes of a group and number of processors, and let threads pay from the first
    multiply-add.
    """

    def force(group_bytes: int, processors: int) -> None:
        monkeypatch.setattr(numpy_steps, "GROUP_BYTES", group_bytes)
        monkeypatch.setattr(numpy_steps, "THREAD_WORK", 0)
        monkeypatch.setattr(numpy_steps, "processors", lambda: processors)

    return force


@pytest.mark.clause("NS-1", "NS-20")
@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4)])
def test_groups_and_threads_change_no_bit(
    grouped: Callable[[int, int], None], shape: tuple[int, int]
) -> None:
    S, G = gaussian(53, *shape), gaussian(53, *shape, seed=1)
    want = None
    for group_bytes, processors in itertools.product((1, 5 * 8 * 36, 10**9), (1, 2, 7)):
        grouped(group_bytes, processors)
        got = value_and_pullback(NewtonSchulz(), S, G)
        want = want or got
        for name, a, b in zip(("value", "pullback"), got, want, strict=True):
            assert_close(
                f"{name}, groups of {group_bytes} bytes, {processors} processors", a, b, EXACT
            )
    assert want is not None
    alone = np.stack([newton_schulz(each, NewtonSchulz()) for each in S])
    assert_close("matrix by matrix", want[0], alone, EXACT)


@pytest.mark.clause("NS-1", "NS-20")
def test_groups_and_threads_change_no_bit_of_matrices_in_any_order_in_memory(
    grouped: Callable[[int, int], None],
) -> None:
    """Norms that are summed in the same order for any number of matrices beside."""
    # the matrices' own entries lie apart
    S, G = (np.moveaxis(gaussian(33, 40, 65, seed=seed), -1, 0) for seed in (0, 1))
    grouped(10**9, 1)
    want = value_and_pullback(NewtonSchulz(), S, G)
    for group_bytes, processors in itertools.product((1, 3 * 8 * 33 * 40, 10**9), (1, 2, 4)):
        grouped(group_bytes, processors)
        for name, a, b in zip(
            ("value", "pullback"), value_and_pullback(NewtonSchulz(), S, G), want, strict=True
        ):
            assert_close(
                f"{name}, groups of {group_bytes} bytes, {processors} processors", a, b, EXACT
            )


@pytest.mark.clause("NS-1", "NS-20")
@pytest.mark.parametrize("shape", [(128, 128), (100, 130)])
def test_matrices_whose_products_the_blas_shares_out_are_computed_as_small_ones(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    S, G = gaussian(2, *shape), gaussian(2, *shape, seed=1)
    assert shape[0] ** 2 * shape[1] > numpy_steps.BLAS_WORK
    large = value_and_pullback(NewtonSchulz(), S, G)
    monkeypatch.setattr(numpy_steps, "BLAS_WORK", 2**40)
    for name, a, b in zip(
        ("value", "pullback"), large, value_and_pullback(NewtonSchulz(), S, G), strict=True
    ):
        assert_close(name, a, b, ANALYTIC)
    assert_close("written out", large[0], plain_newton_schulz(S, NewtonSchulz()), ANALYTIC)


@pytest.mark.clause("NS-20")
@pytest.mark.host("memory of the host")
def test_memory_of_the_way_back_does_not_grow_with_the_steps_of_many_matrices() -> None:
    """A group that keeps an iterate a step: more steps, smaller groups."""
    S = gaussian(256, 32, 32)

    def peak(steps: int) -> float:
        tracemalloc.start()
        value_and_pullback(NewtonSchulz(coefficients="cubic", steps=steps), S, S)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found / S.nbytes

    assert peak(100) < peak(5) + 6


@pytest.mark.clause("NS-1")
@pytest.mark.host("threads are the host's")
def test_the_threaded_path_is_taken_where_it_pays(
    grouped: Callable[[int, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    used: set[int] = set()
    steps = numpy_steps.forward

    def noted(*args: Any) -> None:
        used.add(threading.get_ident())
        steps(*args)

    monkeypatch.setattr(numpy_steps, "forward", noted)
    S = gaussian(64, 16, 16)
    grouped(8 * 16 * 16, 1)
    newton_schulz(S, NewtonSchulz())
    assert used == {threading.get_ident()}
    used.clear()
    grouped(8 * 16 * 16, 4)
    newton_schulz(S, NewtonSchulz())
    assert len(used) > 1


@pytest.mark.clause("NS-1")
def test_callers_in_several_threads_get_their_own_results() -> None:
    settings = NewtonSchulz()
    arguments = [gaussian(30, 12, 12, seed=seed) for seed in range(8)]
    want = [value_and_pullback(settings, S, S) for S in arguments]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda S: value_and_pullback(settings, S, S), arguments))
    for a, b in zip(got, want, strict=True):
        assert_close("value", a[0], b[0], EXACT)
        assert_close("pullback", a[1], b[1], EXACT)


# -- one block, two forms --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "choice", [*CHOICES, {"coefficients": "polar_express", "scale": "sqrt"}], ids=str
)
@pytest.mark.clause("NS-1", "NS-20", "NS-21")
def test_the_block_equals_its_plain_form(choice: dict[str, Any]) -> None:
    settings = NewtonSchulz(**choice)
    for shape in SHAPES[1:]:
        S, G = gaussian(3, *shape), gaussian(3, *shape, seed=1)
        pulled = vjp(lambda x: newton_schulz(x, settings), S)[1](G)[0]
        plain, pullback = vjp(lambda x: plain_newton_schulz(x, settings), S)
        assert_close(
            f"value {shape}",
            newton_schulz(S, settings),
            plain,
            reordered(max(shape), amplification=1e3),
        )
        assert_close(
            f"pullback {shape}", pulled, pullback(G)[0], reordered(max(shape), amplification=1e4)
        )


@pytest.mark.clause("NS-20", "NS-21")
@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_the_pullback_is_linear(choice: dict[str, Any]) -> None:
    check.check_linear(lambda x: newton_schulz(x, NewtonSchulz(**choice)), gaussian(2, 4, 3))


@pytest.mark.clause("NS-1", "NS-20")
@pytest.mark.parametrize(
    "choice",
    [*CHOICES, {"guard": "return", "eps": 100.0}, {"eps": 0.0, "coefficients": [[1, 0, 0]]}],
    ids=str,
)
def test_argument_and_cotangent_are_left_alone(choice: dict[str, Any]) -> None:
    S, G = gaussian(2, 3, 3), gaussian(2, 3, 3, seed=1)
    before = S.copy(), G.copy()
    value, pulled = value_and_pullback(NewtonSchulz(**choice), S, G)
    assert_close("S", S, before[0], EXACT)
    assert_close("G", G, before[1], EXACT)
    value = newton_schulz(S, NewtonSchulz(**choice))
    value[...] = 7.0  # what a caller does with the result touches neither
    pulled[...] = 7.0
    assert_close("S afterwards", S, before[0], EXACT)
    assert_close("G afterwards", G, before[1], EXACT)


@pytest.mark.clause("NS-1", "NS-8")
def test_read_only_strided_and_broadcast_arguments() -> None:
    settings = NewtonSchulz()
    base = gaussian(6, 8)
    base.flags.writeable = False
    want = newton_schulz(base.copy(), settings)
    wide = np.empty((6, 16))
    wide[:, ::2] = base
    for name, S in {
        "read-only": base,
        "strided": wide[:, ::2],
        "column-major": np.asfortranarray(base),
    }.items():
        assert_close(name, newton_schulz(S, settings), want, reordered(8, amplification=500))
    repeated = newton_schulz(np.broadcast_to(base, (3, 6, 8)), settings)
    assert_close("broadcast", repeated, np.stack([want] * 3), reordered(8, amplification=500))


@pytest.mark.clause("NS-1")
def test_whole_numbers_are_taken_as_the_reals_they_are() -> None:
    S = np.array([[3, -1, 2], [0, 4, 1]])
    assert_close(
        "int64",
        newton_schulz(S, NewtonSchulz()),
        newton_schulz(S.astype(float), NewtonSchulz()),
        EXACT,
    )
    with pytest.raises(TapeError, match="int64"):
        vjp(lambda x: newton_schulz(x, NewtonSchulz()), S)


# -- precision -------------------------------------------------------------------------------------


@pytest.mark.clause("NS-1", "NS-10", "NS-20")
@pytest.mark.parametrize(
    "choice", [*CHOICES, {"coefficients": "polar_express"}, {"scale": "sqrt", "eps": 1e-3}], ids=str
)
def test_float32_stays_float32_and_accurate(choice: dict[str, Any]) -> None:
    settings = NewtonSchulz(**choice)
    for shape in ((16, 16), (8, 24), (24, 8)):
        S, G = (
            gaussian(4, *shape).astype(np.float32),
            gaussian(4, *shape, seed=1).astype(np.float32),
        )
        value, pulled = value_and_pullback(settings, S, G)
        assert (value.dtype, pulled.dtype) == (np.float32, np.float32)
        assert plain_newton_schulz(S, settings).dtype == np.float32
        exact, exact_pulled = value_and_pullback(settings, S.astype(float), G.astype(float))
        for name, got, want in (("value", value, exact), ("pullback", pulled, exact_pulled)):
            m = spectral.map_of(choice)
            worst = max(spectral.gain(m, each.astype(float)) for each in S)
            assert_close(
                f"{name} {shape}",
                got.astype(float),
                want,
                reordered(1, dtype=np.float32, amplification=worst),
            )


@pytest.mark.clause("NS-1")
def test_float32_holds_the_band_at_the_sizes_of_a_memory() -> None:
    S = gaussian(2, 64, 64).astype(np.float32)
    got, want = newton_schulz(S, NewtonSchulz()), newton_schulz(S.astype(float), NewtonSchulz())
    assert_close("64x64", got.astype(float), want, reordered(1, dtype=np.float32, amplification=50))
    assert_differs("and is not float64", got.astype(float), want, 1e-8)


@pytest.mark.clause("NS-20")
def test_a_second_derivative_records_the_plain_form() -> None:
    S, V = gaussian(3, 4), gaussian(3, 4, seed=1)
    settings = NewtonSchulz(coefficients="cubic", steps=2)
    check.check_second(lambda x: ops.sum(newton_schulz(x, settings) ** 2), S, V, tolerance=1e-12)
    check.check_gradient(lambda x: ops.sum(newton_schulz(x, settings) ** 3), S)
