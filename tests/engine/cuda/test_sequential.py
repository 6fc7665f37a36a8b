"""The sequential kernel against array operations, and those against the rules of the package."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from atlas_ref import forms
from atlas_ref.engine.cuda import launch, sequential
from atlas_ref.forms import recurrence
from atlas_ref.rules import delta, hebbian, omega, sequence, titans_lmm
from tests.engine.cuda.conftest import Place
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs, reordered

#: memories, tokens, d_phi, d_out, window, gates per output dimension: odd sizes; a window beyond
#: the sequence; every split of a row.
SIZES = [
    (1, 1, 1, 1, 1, False),
    (2, 7, 5, 3, 1, False),
    (2, 6, 13, 19, 3, True),
    (1, 4, 33, 17, 9, False),
    (1, 5, 70, 20, 2, True),
    (1, 3, 129, 9, 2, False),
    (1, 3, 300, 9, 1, False),
]


def drawn(
    size: tuple[Any, ...],
    dtype: Any = np.float64,
    *,
    momentum: bool = True,
    shared: bool = False,
    seed: int = 0,
) -> tuple[Any, ...]:
    """Arguments of `steps`, stable, with some gates exactly 0 and 1; weights shared by the memories
    or not.
    """
    B, T, d, o, c, per_dimension = size
    random = np.random.default_rng([seed, *map(int, size)])
    kind = np.float32 if np.dtype(dtype).itemsize == 2 else dtype

    def rows(*shape: int) -> Any:
        return (random.standard_normal(shape) / np.sqrt(d)).astype(dtype)

    def gate() -> Any:
        value = random.uniform(0.2, 0.95, (B, T, o if per_dimension else 1))
        value[:, 1::4], value[:, 2::5] = 0.0, 1.0
        return value.astype(kind)

    weights = random.uniform(0.0, 1.0 / c, (1 if shared else B, T, c)).astype(kind)
    M, S = (random.standard_normal((B, o, d)).astype(kind) for _ in range(2))
    keys, values, queries = rows(B, c - 1 + T, d), rows(B, c - 1 + T, o), rows(B, T, d)
    return (
        keys,
        values,
        queries,
        gate(),
        gate() if momentum else None,
        gate(),
        gate(),
        weights,
        M,
        S if momentum else None,
    )


def wide(given: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(None if x is None else x.astype(np.float64) for x in given)


def check(place: Place, given: tuple[Any, ...], tolerance: Any, **settings: Any) -> None:
    got = sequential.steps(*place.to(given), **settings, device=place.device)
    want = sequential.plain_steps(*wide(given), **settings)
    for name, mine, truth in zip(want._fields, map(place.back, got), want, strict=True):
        assert (mine is None) == (truth is None), name
        if truth is not None:
            assert_close(name, mine.astype(np.float64), truth, tolerance)


@pytest.mark.clause("CUDA-6")
@pytest.mark.parametrize("momentum", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_equals_array_operations(place: Place, size: tuple[Any, ...], momentum: bool) -> None:
    check(place, drawn(size, momentum=momentum), ANALYTIC)
    check(
        place,
        drawn(size, np.float32, momentum=momentum),
        reordered(size[1] * size[2] * size[4], dtype=np.float32),
    )


@pytest.mark.clause("CUDA-6")
@pytest.mark.parametrize("before_error", [False, True])
@pytest.mark.parametrize("reference", ["running", "zero"])
@pytest.mark.parametrize("read", ["after", "before", "none"])
def test_every_setting_equals_array_operations(
    place: Place, read: str, reference: str, before_error: bool
) -> None:
    given = drawn((2, 9, 13, 11, 4, False), shared=True)
    check(place, given, ANALYTIC, read=read, reference=reference, before_error=before_error)


@pytest.mark.clause("CUDA-7")
@pytest.mark.parametrize("kind", [ml_dtypes.bfloat16, np.float16])
def test_16_bit_storage_is_computed_with_in_float32(place: Place, kind: Any) -> None:
    """Storage of 16 bits: M and S are those of float32 on the same numbers, y is rounded once."""
    given = drawn((2, 6, 24, 9, 3, False), kind)
    if (
        place.cupy is not None
        and kind is ml_dtypes.bfloat16
        and not hasattr(place.cupy, "bfloat16")
    ):
        try:
            place.cupy.zeros(1, kind)
        except (TypeError, ValueError):
            pytest.skip("this CuPy has no bfloat16 arrays")
    found = sequential.steps(*place.to(given), device=place.device)
    in_32 = tuple(None if x is None else x.astype(np.float32) for x in given)
    same = sequential.steps(*place.to(in_32), device=place.device)
    assert_close("M", place.back(found.M), place.back(same.M), EXACT)
    assert_close("S", place.back(found.S), place.back(same.S), EXACT)
    assert_close("y", place.back(found.y), place.back(same.y).astype(kind), EXACT)


@pytest.mark.clause("CUDA-2", "CUDA-6")
def test_the_tile_of_a_block_changes_no_bit(place: Place) -> None:
    given = drawn((2, 5, 30, 21, 2, False))
    one = sequential.steps(*place.to(given), tile=4, device=place.device)
    for tile in (8, 16, 32):
        other = sequential.steps(*place.to(given), tile=tile, device=place.device)
        for name, got, want in zip(one._fields, other, one, strict=True):
            assert_close(name, place.back(got), place.back(want), EXACT)


@pytest.mark.clause("CUDA-6")
def test_two_calls_are_one(place: Place) -> None:
    """A second call that continues from M and S, with the keys of the window in front."""
    given = drawn((1, 9, 6, 5, 3, False))
    whole = sequential.steps(*place.to(given), device=place.device)
    keys, values, queries, *gates, weights, M, S = given
    state, reads = (M, S), []
    for first, last in ((0, 4), (4, 9)):
        cut = [x[:, first:last] for x in (queries, *gates, weights)]
        part = sequential.steps(
            *place.to((keys[:, first : last + 2], values[:, first : last + 2], *cut, *state)),
            device=place.device,
        )
        y, *state = place.back(tuple(part))
        reads.append(y)
    assert_close("y", np.concatenate(reads, axis=1), place.back(whole.y), EXACT)
    assert_close("M", state[0], place.back(whole.M), EXACT)
    assert_close("S", state[1], place.back(whole.S), EXACT)


CONVENTIONS = {
    "omega": (omega, {"window": 3}, {"newton_schulz": "none"}),
    "omega-before-error": (
        omega,
        {"window": 3},
        {"newton_schulz": "none", "decay": "before_error", "read": "before"},
    ),
    "titans_lmm": (titans_lmm, {}, {}),
    "delta": (delta, {}, {"decay": "before_error"}),
    "hebbian": (hebbian, {}, {}),
}


@pytest.mark.clause("CUDA-6")
@pytest.mark.parametrize("name", CONVENTIONS)
def test_array_operations_are_the_rules_token_by_token(name: str) -> None:
    """The plain twin on the packed recurrence of a rule, against the rule."""
    rule, sizes, convention = CONVENTIONS[name]
    random = np.random.default_rng(5)
    config = rule.Config(d_in=4, d_out=3, convention={"gate": "retain", **convention}, **sizes)
    lead, T = (2,), 7
    gates = {
        gate: random.uniform(0.1, 0.9, (*lead, T))
        for gate in ("retain", "momentum", "step_size")
        if gate in rule.RULE.gates
    }
    k, q = 0.4 * random.standard_normal((2, *lead, T, 4))
    tokens = sequence.Tokens(k=k, v=random.standard_normal((*lead, T, 3)), q=q, **gates)
    state = rule.start(config, leading=lead)
    want_state, want = forms.run(rule.RULE, config, tokens, state)
    ((_, packed),) = recurrence.packed(rule.RULE, config, tokens, state, None)
    one, before = packed.whole(), recurrence.memory(rule.RULE, config, state)
    arrays = (
        one.keys,
        one.values,
        one.queries,
        one.retain,
        one.momentum,
        one.rate_in,
        one.rate_out,
        one.weights,
    )
    arrays = tuple(
        None if x is None else np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in arrays
    )
    reference = {
        "reference": one.reference,
        "before_error": one.before_error,
        "read": config.convention.read,
    }
    found = sequential.plain_steps(*arrays, before.M, before.S, **reference)
    assert_close("y", found.y, want, ANALYTIC)
    assert_close("M", found.M, want_state.M, ANALYTIC)


@pytest.mark.clause("CUDA-6")
def test_the_sign_of_the_error_and_the_place_of_the_decay_matter() -> None:
    given = drawn((1, 5, 4, 3, 2, False))
    usual = sequential.plain_steps(*given)
    assert_differs("decay", sequential.plain_steps(*given, before_error=True).y, usual.y, 1e-3)
    assert_differs("read", sequential.plain_steps(*given, read="before").y, usual.y, 1e-3)


@pytest.mark.clause("CUDA-3")
def test_shapes_out_of_range_are_refused_with_the_number_that_is_too_large(host: Any) -> None:
    refused = {
        "d_phi 513": drawn((1, 2, 513, 3, 1, False)),
        "a window of 200 tokens": drawn((1, 2, 4, 3, 200, False)),
        "bytes of shared memory": drawn((1, 2, 300, 3, 100, False)),
    }
    for words, given in refused.items():
        with pytest.raises(launch.DoesNotFit, match=words):
            sequential.steps(*given, device=host)
    assert host.launches == []


@pytest.mark.clause("CUDA-3")
def test_types_that_do_not_go_together_are_refused(host: Any) -> None:
    given = drawn((1, 2, 4, 3, 1, False), np.float16)
    with pytest.raises(TypeError, match="keys: float16 with M in float64"):
        sequential.steps(*given[:-2], given[-2].astype(np.float64), given[-1], device=host)
    usual = drawn((1, 2, 4, 3, 1, False))
    with pytest.raises(TypeError, match="weights: float32, expected float64 as M"):
        sequential.steps(*usual[:7], usual[7].astype(np.float32), *usual[8:], device=host)
    with pytest.raises(TypeError, match="values: float32, expected float64 as keys"):
        sequential.steps(usual[0], usual[1].astype(np.float32), *usual[2:], device=host)
    with pytest.raises(TypeError, match="M: float16, expected float32 or float64"):
        sequential.steps(*given[:-2], given[-2].astype(np.float16), given[-1], device=host)


@pytest.mark.clause("CUDA-6")
def test_no_token_and_no_memory_are_no_launch(host: Any) -> None:
    nothing = sequential.steps(*drawn((2, 0, 4, 3, 2, False)), device=host)
    assert nothing.y.shape == (2, 0, 3)
    assert_close("M", nothing.M, drawn((2, 0, 4, 3, 2, False))[-2], EXACT)
    assert sequential.steps(*drawn((0, 3, 4, 3, 2, False)), device=host).M.shape == (0, 3, 4)
    assert host.launches == []


@pytest.mark.clause("CUDA-6")
def test_memories_beyond_the_second_axis_of_a_grid_are_taken() -> None:
    grids: list[tuple[int, ...]] = []

    class Recording:
        xp = np

        def shared_limit(self) -> int:
            return 100_000

        def launch(self, source: str, name: str, grid: Any, *_: Any) -> None:
            grids.append(grid)

    sequential.steps(
        *drawn((launch.MOST_BLOCKS_ACROSS + 1, 1, 2, 20, 1, False), np.float32), device=Recording()
    )
    assert grids == [(launch.MOST_BLOCKS_ACROSS + 1, 2)]
