"""Memory of a forward and backward pass: only inputs, outputs and a few rows a token grow."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import tape
from atlas_ref import forms as run
from atlas_ref.backend import scratch
from atlas_ref.forms import chunked, newton_schulz_blocks
from atlas_ref.rules import delta, omega, titans_lmm
from atlas_ref.rules.sequence import Tokens

pytestmark = pytest.mark.host("measures the memory of this process")

FROZEN = {"newton_schulz": "none", "reference": "call_start"}
D = 64  # dimensions in and out
CASES: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "frozen": (omega, "chunkwise", {"window": 8, "convention": FROZEN}),
    "frozen-spans": (
        omega,
        "chunkwise",
        {"window": 8, "span": 32, "convention": FROZEN | {"reference": "chunk_start"}},
    ),
    "frozen-decayed": (
        omega,
        "chunkwise",
        {"window": 8, "convention": FROZEN | {"decay": "before_error"}},
    ),
    "frozen-momentum-first": (
        omega,
        "chunkwise",
        {"window": 8, "convention": FROZEN | {"order": "momentum_then_window"}},
    ),
    "delta": (delta, "exact", {"convention": {"gate": "retain"}}),
    "titans": (titans_lmm, "exact", {"convention": {"gate": "retain"}}),
    "omega": (omega, "exact", {"window": 2, "convention": {"newton_schulz": "none"}}),
}


def peak(module: Any, form: str, settings: dict[str, Any], T: int) -> float:
    """Most bytes at once of a forward and backward pass, work space included, beyond inputs,
    outputs and gradients.
    """
    random = np.random.default_rng(0)
    gates = {name: random.uniform(0.1, 0.9, T) for name in module.RULE.gates}
    tensors = {name: random.standard_normal((T, D)) / 8 for name in "kvq"} | gates
    config = module.Config(d_in=D, d_out=D, **settings)
    tokens, state, bar = Tokens(**tensors), module.start(config), np.ones((T, D))

    def reads(chosen: dict[str, Any]) -> Any:
        return run.run(module.RULE, config, tokens.replaced(**chosen), state, form=form)[1]

    def both() -> Any:
        y, pulled = tape.vjp(reads, tensors)
        return y, pulled(bar)

    both()  # work space finds its size
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    results = both()
    end, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(results) == 2
    return most - before - (end - before) + scratch.scratch.block.nbytes


@pytest.mark.sample(1)
@pytest.mark.clause("CHUNK-15")
@pytest.mark.parametrize("name", CASES)
def test_a_pass_takes_at_most_forty_numbers_a_token_and_channel(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty numbers a token and channel: an array of T d d numbers alone would be 64 of them."""
    monkeypatch.setattr(chunked, "GROUP_NUMBERS", 2**17)
    module, form, settings = CASES[name]
    short, long = (peak(module, form, settings, T) for T in (512, 2048))
    numbers = (long - short) / 8 / (2048 - 512) / D
    assert numbers <= 40, f"{numbers:.1f} numbers a token and channel"


@pytest.mark.sample(1)
@pytest.mark.clause("CHUNK-15")
@pytest.mark.parametrize("span", [1, 2, 5, 64])
def test_the_work_space_of_a_group_does_not_depend_on_the_span(
    span: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spans shorter than the chunk, which cut it into pieces with states of their own."""
    monkeypatch.setattr(chunked, "GROUP_NUMBERS", 2**17)
    monkeypatch.setattr(scratch.scratch, "block", np.empty(0, np.uint8))
    settings = {"window": 8, "span": span, "convention": FROZEN | {"reference": "chunk_start"}}
    peak(omega, "chunkwise", settings, 512)
    assert 0 < scratch.scratch.block.nbytes <= 6 * 8 * 2**17


@pytest.mark.clause("CHUNK-15", "CHUNK-18")
def test_newton_schulz_holds_the_matrices_of_a_block_of_tokens_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(newton_schulz_blocks, "BLOCK_NUMBERS", 8 * D * D)
    settings = {"window": 4, "convention": {"reference": "call_start"}}
    short, long = (peak(omega, "chunkwise", settings, T) for T in (64, 256))
    numbers = (long - short) / 8 / (256 - 64) / D
    assert numbers <= 40, f"{numbers:.1f} numbers a token and channel"
