"""Coefficient rows block by block: against the recurrence in tape ops, inside a form, and where
refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tape
from atlas_ref import forms as parallel
from atlas_ref.backend.scratch import ALIGNMENT, PAGE, scratch
from atlas_ref.conventions import resolve
from atlas_ref.engine.group import coefficient_blocks
from atlas_ref.engine.group.coefficients import (
    GateRows,
    coefficient_rows,
    coefficient_rows_backward,
    plain_coefficient_rows,
)
from atlas_ref.engine.masked import forward as masked_forward
from atlas_ref.rules import omega
from atlas_ref.rules.sequence import Tokens
from tests.support.close import ANALYTIC, assert_close


@pytest.fixture(autouse=True)
def frame() -> Iterator[None]:
    """A frame of work space, where rows live."""
    with scratch.frame():
        yield


def drawn(
    chunk: int,
    window: int,
    *,
    chunks: int = 2,
    memories: int = 3,
    momentum: bool = True,
    shared: bool = False,
) -> GateRows:
    """Gates of some memories; one in five decays forgets all and one in seven momenta keeps all."""
    random = np.random.default_rng(chunk)
    shape = (chunk, memories, chunks, 1)
    retain, speed, rate_in, rate_out = (random.uniform(0.1, 1.0, shape) for _ in range(4))
    retain[2::5], speed[1::7] = 0.0, 1.0
    weights = random.standard_normal((chunk, 1 if shared else memories, chunks, 1, window))
    return GateRows(retain, speed if momentum else None, rate_in, rate_out, weights)


@pytest.mark.clause("CHUNK-5", "CHUNK-29")
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("chunk", "window", "stride", "block"),
    [(64, 16, 1, 8), (60, 5, 1, 6), (16, 4, 4, 8), (14, 1, 1, 7), (10, 12, 1, 5)],
)
def test_rows_by_block_are_those_token_by_token(
    chunk: int, window: int, stride: int, block: int, shared: bool
) -> None:
    gates = drawn(chunk, window, shared=shared)
    columns = stride * (chunk - 1) + window
    D, X = coefficient_rows(gates, columns, stride)
    found_D, found_X = coefficient_blocks.rows_by_block(gates, columns, stride, block)
    assert_close("D", found_D, D, ANALYTIC)
    assert_close("X", found_X, X[::block], ANALYTIC)
    random = np.random.default_rng(1)
    bar_D, bar_X = random.standard_normal(D.shape), random.standard_normal(X[-1].shape)
    want = coefficient_rows_backward(gates, D, X, bar_D.copy(), bar_X, stride)
    got = coefficient_blocks.rows_by_block_backward(
        gates, found_D, found_X, bar_D.copy(), bar_X, stride
    )
    for name, value in want._asdict().items():
        assert_close(name, getattr(got, name), value, ANALYTIC)


@pytest.mark.clause("CHUNK-5")
@pytest.mark.parametrize("momentum", [False, True])
@pytest.mark.parametrize(("memories", "apart"), [(15, 15 * 32 * 8), (16, PAGE + ALIGNMENT)])
def test_columns_that_would_begin_at_one_place_of_a_page_stand_apart(
    memories: int, apart: int, momentum: bool
) -> None:
    """A check of strides for rows laid out on the host, and of their values everywhere.

    16 x 32 entries of 8 bytes are a page.
    """
    gates = drawn(6, 3, chunks=32, memories=memories, momentum=momentum)
    found, want = coefficient_rows(gates, 8, 1), plain_coefficient_rows(gates, 8, 1)
    assert found[0].strides[-1] == apart
    for name, got, value in zip("DX", found, want, strict=True):
        if value is not None:
            assert_close(name, got, value, ANALYTIC)


@pytest.mark.clause("CHUNK-25", "CHUNK-29")
def test_a_column_that_no_token_reached_is_exactly_zero() -> None:
    """Exact zeros, so that a read depends on no later token."""
    gates = drawn(32, 3)
    D, _ = coefficient_blocks.rows_by_block(gates, 34, 1, 8)
    for t in range(33):
        assert not D[t, ..., 2 + t + 2 :].any()


@pytest.mark.clause("CHUNK-29")
def test_blocks_are_taken_where_they_pay() -> None:
    gates = drawn(64, 16)
    assert coefficient_blocks.block_length(gates, 79) == 8
    assert coefficient_blocks.block_length(drawn(60, 16), 75) == 6
    assert coefficient_blocks.block_length(drawn(61, 16), 76) == 1  # a prime number of tokens
    assert coefficient_blocks.block_length(drawn(8, 57), 64) == 4  # a chunk is not one block
    assert coefficient_blocks.block_length(gates, 32) == 1
    assert coefficient_blocks.block_length(drawn(64, 16, momentum=False), 79) == 1
    assert coefficient_blocks.block_length(gates._replace(retain=np.ones((64, 3, 2, 4))), 79) == 1


@pytest.mark.clause("CHUNK-1", "CHUNK-29")
@pytest.mark.parametrize("reference", ["chunk_start", "running"])
@pytest.mark.host("a device has a kernel for coefficient rows")
def test_a_form_with_blocks_computes_the_rule(
    reference: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and gradients of a long chunk in blocks of the usual size, against the sequential
    run.
    """
    convention = resolve({"reference": reference, "newton_schulz": "none"}, rule="omega")
    config = omega.Config(d_in=2, d_out=3, window=16, span=128, convention=convention)
    random = np.random.default_rng(2)
    arrays = {
        name: random.standard_normal((2, 128, d)) for name, d in (("k", 2), ("v", 3), ("q", 2))
    }
    ranges = {"retain": (0.5, 1.0), "momentum": (0.2, 1.0), "step_size": (0.0, 0.02)}
    arrays |= {name: random.uniform(*bounds, (2, 128)) for name, bounds in ranges.items()}
    bar, seen = random.standard_normal((2, 128, 3)), []
    by_block = masked_forward.rows_by_block
    monkeypatch.setattr(
        masked_forward, "rows_by_block", lambda *given: seen.append(given[-1]) or by_block(*given)
    )

    def both(form: str, chunk: int | None) -> tuple[Any, dict[str, Any]]:
        def reads(given: dict[str, Any]) -> Any:
            start = omega.start(config, (2,), M=np.full((2, 3, 2), 0.3))
            return parallel.run(omega.RULE, config, Tokens(**given), start, form=form, chunk=chunk)[
                1
            ]

        y, pullback = tape.vjp(reads, arrays)
        return y, pullback(bar)[0]

    form = "exact" if reference == "running" else "chunkwise"
    got, want = both(form, 16 if form == "exact" else 64), both("sequential", None)
    assert seen
    assert_close("y", got[0], want[0], ANALYTIC)
    for name, value in want[1].items():
        assert_close(name, got[1][name], value, ANALYTIC)
