"""A second call of titans-pytorch's NeuralMemory, against one call of the same tokens.

Its state holds the tokens of an unfinished chunk, so a sequence may be cut; this module cuts one
everywhere, and counts which second calls return what one call returns. Our layer of the same
parameters, cut the same way, is compared with its one call.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.layers import neural_memory
from atlas_ref.models import atlas_rnn
from atlas_ref.models.public import titans_pytorch
from benchmarks.survey.catalogue import helper, version

PACKAGE = "titans-pytorch"
WIDTH, CHUNK, LENGTHS, SEED = 8, 4, range(1, 9), 0
#: A difference below this is that of rounding, in float64.
ROUNDING = 1e-12
#: Depth of a memory, in words; its result is normed and its argument added.
MEMORIES = {1: "one matrix", 2: "an MLP of two"}


class Kind(NamedTuple):
    """A memory that is cut.

    Attributes:
        depth: matrices of it.
        batch: its batch_size, tokens after which weights are renewed; None, its default, for never.
    """

    depth: int
    batch: int | None


def module(kind: Kind) -> Any:
    """The package's module, with parameters drawn, in float64."""
    calls = helper("torch_calls")
    torch, package = calls.pytorch(), calls.imported("titans_pytorch")
    memory = package.NeuralMemory(
        WIDTH,
        chunk_size=CHUNK,
        batch_size=kind.batch,
        model=package.MemoryMLP(WIDTH, depth=kind.depth),
    ).double()
    draw = np.random.Generator(np.random.Philox(SEED))
    with torch.no_grad():
        for each in memory.parameters():
            each.copy_(torch.tensor(draw.standard_normal(tuple(each.shape)) / WIDTH**0.5))
    return memory


def tokens(count: int) -> np.ndarray[Any, Any]:
    return np.random.Generator(np.random.Philox(SEED + 1)).standard_normal((1, count, WIDTH))


def outcome(memory: Any, first: int, second: int) -> float | str:
    """The relative difference of the second call's results from one call's, or its error.

    Args:
        memory: of `module`.
        first, second: tokens of the calls.
    """
    torch = helper("torch_calls").pytorch()
    with torch.no_grad():
        x = torch.tensor(tokens(first + second))
        whole = memory(x)[0][:, first:]
        _, state = memory(x[:, :first])
        try:
            y, _ = memory(x[:, first:], state=state)
        except RuntimeError as error:
            return type(error).__name__
    return float((y - whole).norm() / whole.norm())


def ours_apart(memory: Any, kind: Kind, first: int, second: int) -> float:
    """The relative difference of our second call's results from the package's one call."""
    torch = helper("torch_calls").pytorch()
    settings = titans_pytorch.NeuralMemory(
        dim=WIDTH,
        chunk_size=CHUNK,
        batch_size=kind.batch,
        depth=kind.depth,
        expansion_factor=2.0,
    )
    config = titans_pytorch.config(settings, float(np.finfo(np.float64).eps), {})
    own = {name: each.numpy() for name, each in memory.state_dict().items()}
    params = atlas_rnn.parameters(titans_pytorch.MODULE, settings, config, own)
    x = tokens(first + second)
    state = neural_memory.start(config, 1, dtype=x.dtype)
    state, _ = neural_memory.apply(config, params, state, x[:, :first])
    _, y = neural_memory.apply(config, params, state, x[:, first:])
    with torch.no_grad():
        whole = memory(torch.tensor(x))[0][:, first:].numpy()
    return float(np.linalg.norm(y - whole) / np.linalg.norm(whole))


@functools.cache
def found() -> dict[str, Any]:
    """Counts over all pairs of lengths, as JSON can hold them."""
    if not version(PACKAGE):
        return {"missing": f"{PACKAGE} is not installed (extra bench)"}
    rows = [_row(Kind(depth, batch)) for depth in MEMORIES for batch in (None, CHUNK)]
    sizes = {"chunk": CHUNK, "longest": LENGTHS[-1], "pairs": len(LENGTHS) ** 2}
    return {"version": version(PACKAGE), **sizes, "rows": rows}


def _row(kind: Kind) -> dict[str, Any]:
    pairs, memory = [*itertools.product(LENGTHS, LENGTHS)], module(kind)
    outcomes = {pair: outcome(memory, *pair) for pair in pairs}
    ours = max(ours_apart(memory, kind, *pair) for pair in pairs)
    raised = [pair for pair, each in outcomes.items() if isinstance(each, str)]
    sizes = {pair: each for pair, each in outcomes.items() if not isinstance(each, str)}
    same = [pair for pair, each in sizes.items() if each < ROUNDING]
    apart = {pair: each for pair, each in sizes.items() if each >= ROUNDING}
    words = "never" if kind.batch is None else f"every {kind.batch} tokens"
    row: dict[str, Any] = {"memory": MEMORIES[kind.depth], "batch": words, "same": len(same)}
    for name, belongs in (("one token", _one_token), ("whole chunks", _whole_chunks)):
        row |= {name: sum(map(belongs, same)), f"all of {name}": sum(map(belongs, outcomes))}
    for name, pairs in (("raised", raised), ("apart", [*apart])):
        row |= {name: len(pairs), f"first {name}": list(pairs[0])}
    between = [f"{100 * pick(apart.values()):.0f} %" for pick in (min, max)]
    return {**row, "between": between, "ours": f"1e{math.floor(math.log10(ours)) + 1}"}


def _one_token(pair: tuple[int, int]) -> bool:
    return pair[1] == 1


def _whole_chunks(pair: tuple[int, int]) -> bool:
    return pair[0] % CHUNK == 0
