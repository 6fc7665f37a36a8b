"""A second call of titans-pytorch's NeuralMemory, against one call of the same tokens.

Its state holds the tokens of an unfinished chunk, so a sequence may be cut; this module cuts one
everywhere, and counts which second calls return what one call returns.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np

from benchmarks.survey.catalogue import helper, version

PACKAGE = "titans-pytorch"
WIDTH, CHUNK, LENGTHS, SEED = 8, 4, range(1, 9), 0
#: A difference below this is that of rounding, in float64.
ROUNDING = 1e-12


def outcome(first: int, second: int, *, batch: int | None) -> float | str:
    """The relative difference of the second call's results from one call's, or its error.

    Args:
        first, second: tokens of the calls.
        batch: its batch_size, tokens after which weights are renewed; None, its default, for
            never.
    """
    calls = helper("torch_calls")
    torch, package = calls.pytorch(), calls.imported("titans_pytorch")
    memory = package.NeuralMemory(
        WIDTH, chunk_size=CHUNK, batch_size=batch, model=package.MemoryMLP(WIDTH, depth=1)
    ).double()
    draw = np.random.Generator(np.random.Philox(SEED))
    with torch.no_grad():
        for each in memory.parameters():
            each.copy_(torch.tensor(draw.standard_normal(tuple(each.shape)) / WIDTH**0.5))
        x = torch.tensor(draw.standard_normal((1, first + second, WIDTH)))
        whole = memory(x)[0][:, first:]
        _, state = memory(x[:, :first])
        try:
            y, _ = memory(x[:, first:], state=state)
        except RuntimeError as error:
            return type(error).__name__
    return float((y - whole).norm() / whole.norm())


@functools.cache
def found() -> dict[str, Any]:
    """Counts over all pairs of lengths, as JSON can hold them."""
    if not version(PACKAGE):
        return {"missing": f"{PACKAGE} is not installed (extra bench)"}
    rows = [_row(batch) for batch in (None, CHUNK)]
    sizes = {"chunk": CHUNK, "longest": LENGTHS[-1], "pairs": len(LENGTHS) ** 2}
    return {"version": version(PACKAGE), **sizes, "rows": rows}


def _row(batch: int | None) -> dict[str, Any]:
    outcomes = {pair: outcome(*pair, batch=batch) for pair in itertools.product(LENGTHS, LENGTHS)}
    raised = [pair for pair, each in outcomes.items() if isinstance(each, str)]
    sizes = {pair: each for pair, each in outcomes.items() if not isinstance(each, str)}
    same = [pair for pair, each in sizes.items() if each < ROUNDING]
    apart = {pair: each for pair, each in sizes.items() if each >= ROUNDING}
    words = "never" if batch is None else f"every {batch} tokens"
    row: dict[str, Any] = {"batch": words, "same": len(same)}
    for name, belongs in (("one token", _one_token), ("whole chunks", _whole_chunks)):
        row |= {name: sum(map(belongs, same)), f"all of {name}": sum(map(belongs, outcomes))}
    for name, pairs in (("raised", raised), ("apart", [*apart])):
        row |= {name: len(pairs), f"first {name}": list(pairs[0])}
    between = [f"{100 * pick(apart.values()):.0f} %" for pick in (min, max)]
    return {**row, "between": between}


def _one_token(pair: tuple[int, int]) -> bool:
    return pair[1] == 1


def _whole_chunks(pair: tuple[int, int]) -> bool:
    return pair[0] % CHUNK == 0
