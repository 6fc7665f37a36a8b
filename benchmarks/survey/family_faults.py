"""Faults of references of the linear family: a table of measurements, each of one number.

The functions are called as they are, in float32 as they compute, on numbers drawn from one seed.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from benchmarks.survey.catalogue import helper
from benchmarks.survey.deep_faults import Fault, numbered

HEADS, WIDTH, CHUNK, SEED = 2, 8, 64, 11
#: A log gate at which a chunk of 64 tokens reaches exp of more than float32 holds.
STEEP = -4.0


class Chunked(NamedTuple):
    """A reference in chunks whose backward is looked at.

    Attributes:
        load: the function of tensors.
        drawn: names of its tensors -> last axis, None for one number a token.
        gate: the log gate among them.
        head_axis: 2 for (B, T, H, D), 1 for (B, H, T, D).
        options: further arguments.
        per_head: tensors (H, D), drawn or made from a generator.
    """

    load: Callable[[], Callable[..., Any]]
    drawn: Mapping[str, int | None]
    gate: str = "g"
    head_axis: int = 2
    options: Mapping[str, Any] = {}
    per_head: Mapping[str, Callable[[np.random.Generator], Any]] = {}


def _calls() -> Any:
    return helper("torch_calls")


def _fla(place: str, function: str) -> Callable[[], Callable[..., Any]]:
    return lambda: getattr(_calls().by_file(f"fla.ops.{place}"), function)


def _transformers(model: str, function: str) -> Callable[[], Callable[..., Any]]:
    place = f"transformers.models.{model}.modeling_{model}"
    return lambda: getattr(_calls().imported(place), function)


_KEYS = {"q": WIDTH, "k": WIDTH, "v": WIDTH}
_KDA = {**_KEYS, "g": WIDTH, "beta": None}
_COMBA = {**_KEYS, "p": WIDTH, "g": None, "beta": None}
_GDN2 = {**_KEYS, "g": WIDTH, "b": WIDTH, "w": WIDTH}
_QWEN = {"query": WIDTH, "key": WIDTH, "value": WIDTH, "g": None, "beta": None}

KDA = Chunked(_fla("kda.naive", "naive_chunk_kda"), _KDA)
GDN2 = Chunked(_fla("gdn2.naive", "naive_chunk_gdn2"), _GDN2)
COMBA = Chunked(_fla("comba.naive", "naive_chunk_comba"), _COMBA)
GATED_DELTA = Chunked(
    _fla("gated_delta_rule.naive", "naive_chunk_gated_delta_rule"),
    {**_KEYS, "g": None, "beta": None},
)
RWKV6 = Chunked(
    _fla("rwkv6.chunk_naive", "naive_chunk_rwkv6"),
    {**_KEYS, "w": WIDTH},
    gate="w",
    head_axis=1,
    options={"chunk_size": CHUNK},
    per_head={"u": lambda draw: draw.standard_normal((HEADS, WIDTH))},
)
MESA = Chunked(
    _fla("mesa_net.naive", "naive_mesa_net_CG"),
    {**_KEYS, "g": None, "beta": None},
    options={"chunk_size": CHUNK},
    per_head={"lamb": lambda draw: np.ones((HEADS, WIDTH))},
)
KIMI = Chunked(
    _transformers("kimi_linear", "chunk_kimi_delta_attention"),
    {**_QWEN, "g": WIDTH},
)
QWEN = Chunked(_transformers("qwen3_next", "torch_chunk_gated_delta_rule"), _QWEN)


def inputs(one: Chunked, *, tokens: int = CHUNK, log_gate: float | None = None) -> dict[str, Any]:
    """Drawn tensors; log gates of -softplus of a normal, or one number for all."""
    torch, draw = _calls().pytorch(), np.random.Generator(np.random.Philox(SEED))
    shape = (1, tokens, HEADS) if one.head_axis == 2 else (1, HEADS, tokens)
    found = {}
    for name, width in one.drawn.items():
        x = draw.standard_normal(shape if width is None else (*shape, width))
        if name in ("k", "p", "key"):
            x /= np.linalg.norm(x, axis=-1, keepdims=True)
        if name in ("beta", "b"):
            x = 1 / (1 + np.exp(-x))
        if name == one.gate:
            x = -np.logaddexp(0, x) if log_gate is None else np.full_like(x, log_gate)
        found[name] = torch.tensor(x, dtype=torch.float32)
    for name, made in one.per_head.items():
        found[name] = torch.tensor(made(draw), dtype=torch.float32)
    return found


def reads(one: Chunked, x: dict[str, Any]) -> Any:
    """The reads of a call."""
    result = one.load()(**x, **one.options)
    return result[0] if isinstance(result, tuple) else result


def nan_gradients(one: Chunked, *, single: bool = False) -> str:
    """Gradients that hold a NaN, of all: every log gate -4, or a single one -100.

    Raises:
        ValueError: the reads are not finite either, so that the fault would be another.
    """
    torch = _calls().pytorch()
    x = inputs(one, log_gate=None if single else STEEP)
    if single:
        x[one.gate][:, CHUNK // 2] = -100.0
    for each in x.values():
        each.requires_grad_()
    y = reads(one, x)
    if not bool(y.isfinite().all()):
        raise ValueError("the reads are not finite")
    found = torch.autograd.grad(y.square().sum(), list(x.values()), allow_unused=True)
    wrong = [each is not None and bool(each.isnan().any()) for each in found]
    return f"{sum(wrong)} of {len(found)}"


def gate_of_zero(one: Chunked) -> str:
    """Reads of 64 that are not finite where the gate of one token is 0, its log -inf."""
    torch = _calls().pytorch()
    x = inputs(one)
    x[one.gate][:, CHUNK // 2] = -torch.inf
    with torch.no_grad():
        y = reads(one, x)
    return f"{int((~y.isfinite()).any(dim=-1).any(dim=-1).sum())} of {CHUNK}"


def two_combas() -> str:
    """Reads of comba's recurrent reference, against those of its chunk form."""
    x = inputs(COMBA)
    recurrent = COMBA._replace(load=_fla("comba.naive", "naive_recurrent_comba"))
    return percent(reads(recurrent, x), reads(COMBA, x))


def two_chunks_of_rwkv6() -> str:
    """The error of a backward through two chunks."""
    torch = _calls().pytorch()
    x = inputs(RWKV6, tokens=2 * CHUNK)
    for each in x.values():
        each.requires_grad_()
    try:
        torch.autograd.grad(reads(RWKV6, x).sum(), list(x.values()))
    except RuntimeError as error:
        return type(error).__name__
    return "none"


def backward_of_rwkv6(scale: float | None = None) -> str:
    """The written backward's gradient by v, against autograd's of the forward."""
    torch = _calls().pytorch()
    naive = _calls().by_file("fla.ops.rwkv6.recurrent_naive")
    x = inputs(RWKV6)
    leaf = x["v"].clone().requires_grad_()
    y, _ = naive.naive_recurrent_rwkv6(**{**x, "v": leaf}, scale=scale)
    bar = torch.tensor(
        np.random.Generator(np.random.Philox(SEED + 1)).standard_normal(tuple(y.shape)),
        dtype=torch.float32,
    )
    (right,) = torch.autograd.grad(y, [leaf], bar)
    written = naive.naive_recurrent_rwkv6_bwd(**x, o=y.detach(), do=bar)[2]
    return percent(written, right)


def hgrn_of_two_chunks() -> str:
    """The error of HGRN's chunk form on two chunks."""
    torch, naive = _calls().pytorch(), _calls().by_file("fla.ops.hgrn.naive")
    x = torch.ones(1, 2 * CHUNK, WIDTH)
    try:
        naive.naive_chunk_hgrn(x, -x, chunk_size=CHUNK)
    except RuntimeError as error:
        return type(error).__name__
    return "none"


def mesa_by_conjugate_gradients(size: float = 1e-3) -> str:
    """Reads after 30 iterations for queries of a given size, against those of the exact solution."""
    naive = _calls().by_file("fla.ops.mesa_net.naive")
    x = inputs(MESA)
    x["q"] = size * x["q"]
    return percent(reads(MESA, x), naive.naive_mesa_net_exact(**x)[0])


def gate_of_kimi(x: float) -> str:
    """The module's log gate where its argument is x, over -log(1 + e^x)."""
    torch = _calls().pytorch()
    model = _calls().imported("transformers.models.kimi_linear.modeling_kimi_linear")
    config = types.SimpleNamespace(hidden_size=WIDTH, linear_head_dim=WIDTH, linear_num_heads=1)
    gate = model.KimiLinearForgetGate(config)
    with torch.no_grad():
        gate.dt_bias.fill_(x)
        gate.A_log.zero_()
        found = float(gate(torch.zeros(1, 1, WIDTH))[0, 0, 0, 0])
    return f"{found / -np.log1p(np.exp(x)):.2f}"


def percent(got: Any, want: Any) -> str:
    """A relative difference in the Frobenius norm; 0 for one that is rounding in float32."""
    size = float((got.double() - want.double()).norm() / want.double().norm())
    return f"{100 * size:.0f} %" if size > 1e-4 else "0"


_MASKED = "0 (DPLR-15)"
_ZERO = "reads of 64 that are not finite where one token has a gate of 0"
_STEEP = f"gradients that hold a NaN where every log gate is {STEEP:g}, one chunk of 64"

FAULTS = (
    Fault(
        "fla-core",
        "`naive_recurrent_comba` decays, then erases; `naive_chunk_comba` erases from the memory before the decay, as its op does",
        "reads of one against the other, the same tensors",
        two_combas,
        "0: they are two members (DPLRCASE-3)",
    ),
    Fault(
        "fla-core",
        "`naive_chunk_kda` takes exp of positive differences before it masks",
        _STEEP,
        lambda: nan_gradients(KDA),
        _MASKED,
    ),
    Fault(
        "fla-core",
        "`naive_chunk_gdn2` does so too",
        _STEEP,
        lambda: nan_gradients(GDN2),
        _MASKED,
    ),
    Fault(
        "fla-core",
        "`naive_chunk_rwkv6` does so too",
        _STEEP,
        lambda: nan_gradients(RWKV6),
        _MASKED,
    ),
    Fault(
        "fla-core",
        "`naive_mesa_net_CG` does so too",
        _STEEP,
        lambda: nan_gradients(MESA),
        _MASKED,
    ),
    Fault(
        "fla-core",
        "`naive_chunk_comba` does so on the diagonal, where one gate is enough",
        "gradients that hold a NaN where one log gate of 64 is -100",
        lambda: nan_gradients(COMBA, single=True),
        _MASKED,
    ),
    Fault(
        "fla-core",
        "`naive_chunk_rwkv6` changes in place what its backward needs",
        "the error of a backward through two chunks",
        two_chunks_of_rwkv6,
        "none",
    ),
    Fault(
        "fla-core",
        "`naive_recurrent_rwkv6_bwd` knows no scale, which its forward has",
        "its gradient by v against autograd's of the forward, width 8",
        backward_of_rwkv6,
        "0, as at scale 1",
    ),
    Fault(
        "fla-core",
        "`naive_chunk_hgrn` computes one chunk alone",
        "the error of a call of two",
        hgrn_of_two_chunks,
        "none",
    ),
    Fault(
        "fla-core",
        "`naive_mesa_net_CG` adds 1e-5 to both denominators, whatever the size of the query",
        "reads against `naive_mesa_net_exact`, queries a thousandth as long",
        mesa_by_conjugate_gradients,
        "0",
    ),
    Fault(
        "fla-core",
        "`naive_chunk_kda` subtracts cumulated logs, which a gate of 0 makes -inf",
        _ZERO,
        lambda: gate_of_zero(KDA),
        "0 of 64 (DPLR-15)",
    ),
    Fault(
        "fla-core",
        "`naive_chunk_gated_delta_rule` does so too",
        _ZERO,
        lambda: gate_of_zero(GATED_DELTA),
        "0 of 64 (DPLR-15)",
    ),
    Fault(
        "transformers",
        "Qwen3-Next in chunks does so too",
        _ZERO,
        lambda: gate_of_zero(QWEN),
        "0 of 64 (DPLR-15)",
    ),
    Fault(
        "transformers",
        "Kimi-Linear in chunks does so too",
        _ZERO,
        lambda: gate_of_zero(KIMI),
        "0 of 64 (DPLR-15)",
    ),
    Fault(
        "transformers",
        "the gate of Kimi-Linear is log(1 + exp(x)) in float32, rounded where exp(x) is small",
        "its log gate over the right one, x = -15",
        lambda: gate_of_kimi(-15.0),
        "1.00, by log1p",
    ),
    Fault(
        "transformers",
        "from an x of about -17 down that gate is lost, and nothing is forgotten",
        "its log gate over the right one, x = -18",
        lambda: gate_of_kimi(-18.0),
        "1.00, by log1p",
    ),
)


@functools.cache
def found() -> list[dict[str, str]]:
    """The numbers of this table."""
    return numbered(FAULTS)
