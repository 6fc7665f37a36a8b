"""Faults of memories that learn at test time: a table of measurements, each of one number.

The packages are called as they are, without the adapter's columns in place of their projections,
but where a row says so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.cases.case import make
from atlas_ref.oracle.evaluate import evaluate
from benchmarks.survey import deep
from benchmarks.survey.catalogue import helper, version

WIDTH, TOKENS, CHUNK, SEED = 8, 8, 4, 3


class Fault(NamedTuple):
    """A fault of a package.

    Attributes:
        package: as the package index calls it.
        words: what it does.
        measured: what the number is.
        of: the number.
        right: what it would be otherwise, and the clause that says so.
    """

    package: str
    words: str
    measured: str
    of: Callable[[], str]
    right: str


def _torch() -> Any:
    return helper("torch_calls").pytorch()


def _drawn(module: Any, scale: float = 1.0) -> Any:
    """A module in float64 with parameters drawn, which must not need gradients."""
    torch, draw = _torch(), np.random.Generator(np.random.Philox(SEED))
    module = module.double()
    with torch.no_grad():
        for each in module.parameters():
            shape = tuple(each.shape)
            each.copy_(torch.tensor(scale * draw.standard_normal(shape) / WIDTH**0.5))
    return module


def _tokens(count: int = TOKENS) -> Any:
    draw = np.random.Generator(np.random.Philox(SEED + 1))
    return _torch().tensor(draw.standard_normal((1, count, WIDTH)))


def _percent(got: Any, want: Any) -> str:
    size = float((got - want).norm() / want.norm())
    return f"{100 * size:.0f} %" if size > 1e-12 else "0"


# -- titans-pytorch --------------------------------------------------------------------------------


def _titans(**settings: Any) -> Any:
    package = helper("torch_calls").imported("titans_pytorch")
    model = package.MemoryMLP(WIDTH, depth=2)
    return _drawn(package.NeuralMemory(WIDTH, chunk_size=CHUNK, model=model, **settings))


def masked_chunk(bound: float | None = 1.0) -> str:
    """Reads of 8 tokens that are nan where the first chunk is masked and gradients are bounded."""
    torch = _torch()
    mask = torch.arange(TOKENS)[None] >= CHUNK
    with torch.no_grad():
        y, _ = _titans(max_grad_norm=bound)(_tokens(), store_mask=mask)
    return f"{int(y.isnan().any(dim=-1).sum())} of {TOKENS}"


# -- titans-memory ---------------------------------------------------------------------------------


def _memory(**settings: Any) -> Any:
    module = helper("torch_calls").by_file("titans.memory.neural_memory")
    return _drawn(module.NeuralMemory(WIDTH, **settings))


def never_read() -> str:
    """Change of what `retrieve` returns when a call has written 8 tokens."""
    torch, memory, x = _torch(), _memory(chunk_size=CHUNK), _tokens()
    with torch.no_grad():
        before = memory.retrieve(x)
        memory(x)
        return _percent(memory.retrieve(x), before)


def last_layer_alone() -> str:
    """Reads of a memory of three layers, against those of one whose three layers learn."""
    torch, implementation = _torch(), helper(deep.ADAPTER).titans_memory
    asked = next(
        each for each in deep.ASKED if each.function == deep.TITANS_MEMORY and "three" in each.words
    )
    case = deep.drawn(asked, implementation)
    header = case.header.plain()
    parameters = {**header["parameters"], "fast": "matrices"}
    whole = evaluate(make({**header, "parameters": parameters}, dict(case.inputs), name="whole"))
    reads = (deep.answered(case, implementation)["out/y"], whole.tensors["out/y"])
    return _percent(*(torch.tensor(np.array(each)) for each in reads))


def untrained_start() -> str:
    """Layers of 3 whose first weights have a gradient."""
    memory = _memory(n_layers=3, chunk_size=CHUNK)
    memory(_tokens()).square().sum().backward()
    layers = [each for each in memory.memory.net if hasattr(each, "weight")]
    return f"{sum(each.weight.grad is not None for each in layers)} of {len(layers)}"


def reads_ahead(layer: str) -> str:
    """The first of 8 rows that the last token changes: of reads alone, or of the whole layer."""
    torch, memory = _torch(), _memory(chunk_size=TOKENS if layer == "reads" else 1)
    x = _tokens()
    other = x.clone()
    other[:, -1] += 1.0
    if layer == "reads":  # without its convolution
        for each in (memory.conv_k, memory.conv_v, memory.conv_q):
            with torch.no_grad():
                each.weight.zero_()
                each.weight[..., 1] = 1.0
    with torch.no_grad():
        change = (memory(other) - memory(x)).abs().amax(dim=(0, 2))
    return str(int(torch.nonzero(change)[0]))


def without_decay() -> str:
    """Reads with use_decay off against those of a forget gate of 0, in one chunk."""
    torch = _torch()
    x, reads = _tokens(), []
    for decay in (False, True):
        memory = _memory(chunk_size=TOKENS, use_decay=decay)
        with torch.no_grad():
            memory.gate_alpha.weight.zero_()
            memory.gate_alpha.bias.fill_(-1000.0)
            reads.append(memory(x))
    return _percent(reads[0], reads[1])


# -- fla-core --------------------------------------------------------------------------------------


def _ttt(q: Any, eta: Any) -> tuple[Any, Any]:
    torch, naive = _torch(), helper("torch_calls").by_file("fla.ops.ttt.naive")
    draw = np.random.Generator(np.random.Philox(SEED))
    k, v = (torch.tensor(draw.standard_normal(q.shape), dtype=q.dtype) for _ in range(2))
    w, b = torch.ones(1, WIDTH), torch.zeros(1, WIDTH)
    y, state, _ = naive.chunk_ttt_linear_ref(
        q, k, v, w, b, eta, mini_batch_size=CHUNK, output_final_state=True
    )
    return y, state


def _queries() -> Any:
    return _tokens().float()[:, :, None]


def scales_its_argument() -> str:
    """The length of the caller's queries after a call, over that before."""
    q = _queries()
    before = q.norm()
    _ttt(q, 0.1)
    return f"{float(q.norm() / before):.3f}"


def rate_of_the_reader() -> str:
    """Change of the last memory when the rates of all tokens but the last of each chunk change."""
    torch = _torch()
    one = torch.full((1, TOKENS, 1, 1), 0.1)
    other = one.clone()
    other[:, torch.arange(TOKENS) % CHUNK != CHUNK - 1] = 0.4
    (_, a), (_, b) = (_ttt(_queries(), each) for each in (one, other))
    return _percent(b, a)


FAULTS = (
    Fault(
        "titans-pytorch",
        "its soft bound divides a gradient of zero by its length, as a masked chunk has it",
        "reads that are nan, first of two chunks masked, max_grad_norm 1",
        masked_chunk,
        "0 of 8: a zero gradient stays zero (DEEP-9)",
    ),
    Fault(
        "titans-memory",
        "the last layer alone learns, whatever the depth",
        "its reads of the case of three layers above, against those where all three learn",
        last_layer_alone,
        "0 (DEEP-3); it is the reading fast W_3",
    ),
    Fault(
        "titans-memory",
        "the start of that layer is cut off from the graph",
        "layers of 3 whose first weights have a gradient",
        untrained_start,
        "3 of 3 (DEEP-18)",
    ),
    Fault(
        "titans-memory",
        "`retrieve`, which its MAC reads from, knows nothing of what was written",
        "its change after a call of 8 tokens",
        never_read,
        "that of the reads",
    ),
    Fault(
        "titans-memory",
        "every token of a chunk reads the weights after the whole chunk",
        "first of 8 rows that the last token changes, one chunk, without convolution",
        lambda: reads_ahead("reads"),
        "7 (DEEP-23); read call_end above",
    ),
    Fault(
        "titans-memory",
        "a convolution of 3 taps has zeros on both sides",
        "first of 8 rows that the last token changes, chunks of 1",
        lambda: reads_ahead("layer"),
        "7",
    ),
    Fault(
        "titans-memory",
        "without decay a chunk adds the last momentum alone, not that of each token",
        "its results with use_decay off, against a forget gate of 0",
        without_decay,
        "0 (DEEP-13)",
    ),
    Fault(
        "fla-core",
        "`chunk_ttt_linear_ref` scales the queries that it is given, in place",
        "their length after a call, over that before, 8 entries in float32",
        scales_its_argument,
        "1",
    ),
    Fault(
        "fla-core",
        "a write of `chunk_ttt_linear_ref` has the rate of the token that reads it",
        "change of the last memory when all rates but that of a chunk's last token change",
        rate_of_the_reader,
        "each write has its own rate (DEEP-7)",
    ),
)


def numbered(faults: Iterable[Fault]) -> list[dict[str, str]]:
    """The number of every fault, as JSON can hold them; of a package that is absent none."""
    rows = []
    for fault in faults:
        installed = version(fault.package)
        number = fault.of() if installed else ""
        said = {"package": fault.package, "version": installed, "fault": fault.words}
        rows.append({**said, "measured": fault.measured, "number": number, "right": fault.right})
    return rows


@functools.cache
def found() -> list[dict[str, str]]:
    """The numbers of this table."""
    return numbered(FAULTS)
