"""The memories whose parallel forms are timed: conventions, inputs, our call, and the truth in
float64.

All have 8 heads and d = 64, unless asked for otherwise (`sized`, `sequence`). Those named after a
public implementation compute what it computes, to the factor of the query, so that both sides do
the same work. The truth is the sequential rule in float64 on the same float32 numbers.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

import tape
from atlas_ref import forms as parallel
from atlas_ref.conventions import Convention, resolve
from atlas_ref.rules import delta, omega, titans_lmm
from atlas_ref.rules import sequence as run
from benchmarks.measure import relative_error
from tape import ops

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]

HEADS, D, WINDOW, SPAN = 8, 64, 16, 64
TOKENS, TOKENS_OF_GRADIENTS = 1024, 256


class Memory(NamedTuple):
    """A rule under a convention, and the form that is timed.

    Attributes:
        name: as the table shows it.
        rule: module of the rule.
        config: its configuration.
        gates: what a token brings beside key, value and query.
        form: a parallel form.
    """

    name: str
    rule: Any
    config: Any
    gates: tuple[str, ...]
    form: str


def _omega(name: str, gates: tuple[str, ...], form: str = "chunkwise", **axes: Any) -> Memory:
    convention = resolve(axes, rule="omega")
    config = omega.Config(
        d_in=D, d_out=D, window=WINDOW, span=_span(convention), convention=convention
    )
    return Memory(name, omega, config, gates, form)


def _delta(name: str, gates: tuple[str, ...], **axes: Any) -> Memory:
    return Memory(
        name,
        delta,
        delta.Config(d_in=D, d_out=D, convention=resolve(axes, rule="delta")),
        gates,
        "exact",
    )


def _titans(name: str, gates: tuple[str, ...], form: str = "exact", **axes: Any) -> Memory:
    convention = resolve(axes, rule="titans_lmm")
    return Memory(
        name,
        titans_lmm,
        titans_lmm.Config(d_in=D, d_out=D, span=_span(convention), convention=convention),
        gates,
        form,
    )


def _span(convention: Convention) -> int | None:
    return SPAN if convention.reference == "chunk_start" else None


MOVING = ("retain", "momentum", "step_size")

#: Frozen at the call's start, one weight per token: the public cell's rule.
FROZEN = _omega("frozen Omega", (*MOVING, "window_gate"), preset="atlas-rnn")
FROZEN_SPANS = _omega("frozen Omega", MOVING, reference="chunk_start", newton_schulz="none")
FROZEN_NEWTON_SCHULZ = _omega("frozen Omega with Newton-Schulz", MOVING, reference="chunk_start")
RUNNING_OMEGA = _omega("Omega", MOVING, "exact", newton_schulz="none")
SEQUENTIAL_OMEGA = RUNNING_OMEGA._replace(form="sequential")
SEQUENTIAL_OMEGA_NEWTON_SCHULZ = _omega("Omega with Newton-Schulz", MOVING, "sequential")
DELTA = _delta("Delta", ("retain", "step_size"))
TITANS = _titans("Titans", MOVING)
FROZEN_TITANS = _titans("frozen Titans", MOVING, "chunkwise", reference="chunk_start")
FLA_DELTA = _delta("delta", ("step_size",), preset="fla-delta", gate="none")
FLA_GATED_DELTA = _delta("gated delta", ("retain", "step_size"), preset="fla-gated-delta")
FLA_MOMENTUM_DELTA = _titans(
    "Titans as momentum delta", (*MOVING, "step_size_memory"), preset="fla-momentum-delta"
)


def sized(memory: Memory, d: int) -> Memory:
    """The same memory with keys and values of another size."""
    return memory._replace(config=memory.config.model_copy(update={"d_in": d, "d_out": d}))


def title(memory: Memory, kind: str, tokens: int = TOKENS) -> str:
    """What a row measures, with its sizes."""
    sizes = [f"{HEADS} heads, d = {D}"]
    for word, field in (("c", "window"), ("span", "span")):
        if getattr(memory.config, field, None) is not None:
            sizes.append(f"{word} = {getattr(memory.config, field)}")
    return (
        f"{memory.name} {'forward' if kind == 'forward' else 'forward and backward'}, "
        f"{', '.join(sizes)}, T = {tokens}"
    )


def sequence(memory: Memory, tokens: int, dtype: Any = np.float32, heads: int = HEADS) -> Arrays:
    """Keys and queries of length one; retain about sigmoid(3), momentum and memory rate sigmoid(2),
    step size softplus(-3).

    The arrays are read-only, so our calls take them without a copy, as PyTorch takes tensors of
    them. Writable arrays are copied (`benchmarks.parallel` has a row for that).
    """
    draw = np.random.default_rng(0)

    def normal(*shape: int) -> Array:
        return draw.standard_normal(shape, np.float32)

    k, v, q = (normal(heads, tokens, memory.config.d_in) for _ in range(3))
    for rows in (k, q):
        rows /= np.linalg.norm(rows, axis=-1, keepdims=True)
    gates = {
        "retain": _sigmoid(3 + normal(heads, tokens)),
        "momentum": _sigmoid(2 + normal(heads, tokens)),
        "step_size": np.log1p(np.exp(normal(heads, tokens) - 3)),
        "step_size_memory": _sigmoid(2 + normal(heads, tokens)),
        "window_gate": _sigmoid(normal(heads, tokens)),
    }
    arrays = {"k": k, "v": v, "q": q} | {name: gates[name] for name in memory.gates}
    arrays = {name: array.astype(dtype, copy=False) for name, array in arrays.items()}
    for array in arrays.values():
        array.flags.writeable = False
    return arrays


def _sigmoid(x: Array) -> Array:
    sigmoid: Array = 1 / (1 + np.exp(-x))
    return sigmoid


def cotangent(tokens: int, dtype: Any = np.float32, *, heads: int = HEADS, d: int = D) -> Array:
    """The cotangent of the reads that gradients start from."""
    bar: Array = (np.random.default_rng(1).standard_normal((heads, tokens, d), np.float32)).astype(
        dtype, copy=False
    )
    return bar


def started(memory: Memory, arrays: Mapping[str, Any]) -> Any:
    """The state before the first token, zero, where the arrays are."""
    heads, _, d = arrays["k"].shape
    return memory.rule.start(
        memory.config, (heads,), M=ops.zeros_like(arrays["k"], shape=(heads, d, d))
    )


def forward(
    memory: Memory,
    arrays: Mapping[str, Any],
    form: str | None = None,
    chunk: int | None = None,
    start: Any = None,
) -> tuple[Any, ...]:
    """The arrays of the state after the last token, then the reads: what a user's call returns, its
    checks included. The form "rule" is the rule token by token, never compiled.

    With a state to start from, which `started` made, the arrays are taken as checked.
    """
    tokens = (
        run.Tokens(**arrays)
        if start is None
        else run.Tokens.trusted(**{name: arrays.get(name) for name in run.Tokens.model_fields})
    )
    start = started(memory, arrays) if start is None else start
    form = memory.form if form is None else form
    if form == "rule":
        state, y = run.run(memory.rule.RULE, memory.config, tokens, start)
    else:
        state, y = parallel.run(
            memory.rule.RULE, memory.config, tokens, start, form=form, chunk=chunk
        )
    return (*(getattr(state, name) for name in ("M", "S") if hasattr(state, name)), y)


def both(
    memory: Memory,
    arrays: Mapping[str, Any],
    bar: Any,
    form: str | None = None,
    chunk: int | None = None,
    start: Any = None,
) -> tuple[Any, dict[str, Any]]:
    """The reads and the gradient of their product with `bar` by every input: forward and
    backward.
    """
    y, pullback = tape.vjp(lambda inputs: forward(memory, inputs, form, chunk, start)[-1], arrays)
    (gradient,) = pullback(bar)
    return y, gradient


@functools.cache
def truth(memory: Memory, tokens: int = TOKENS) -> tuple[Array, ...]:
    """State and reads of the sequential rule in float64."""
    return forward(memory, sequence(memory, tokens, np.float64), "rule")


@functools.cache
def true_gradient(memory: Memory) -> Arrays:
    """Gradients of the sequential rule in float64."""
    tokens = TOKENS_OF_GRADIENTS
    return both(
        memory, sequence(memory, tokens, np.float64), cotangent(tokens, np.float64), "rule"
    )[1]


@functools.cache
def errors(
    memory: Memory, form: str | None = None, chunk: int | None = None
) -> tuple[float, float]:
    """Relative error in float32 of state and reads at `TOKENS`, and of the gradients at
    `TOKENS_OF_GRADIENTS`.

    Raises:
        AssertionError: the form computes something else, seen in float64, where rounding hides
            nothing.
    """
    few = TOKENS_OF_GRADIENTS
    exact = sequence(memory, few, np.float64)
    y, gradient = both(memory, exact, cotangent(few, np.float64), form, chunk)
    apart = max(
        relative_error(y, truth(memory, few)[-1]), gradient_error(gradient, true_gradient(memory))
    )
    if not apart <= 1e-9:
        raise AssertionError(
            f"{memory.name}: the form {form or memory.form} computes something else, "
            f"{apart:.1e} off in float64"
        )
    low = forward(memory, sequence(memory, TOKENS), form, chunk)
    return relative_error(low, truth(memory)), gradient_error(
        both(memory, sequence(memory, few), cotangent(few), form, chunk)[1], true_gradient(memory)
    )


def gradient_error(got: Mapping[str, Any], true: Mapping[str, Any]) -> float:
    """The largest relative error of one gradient."""
    return relative_error([got[name] for name in true], list(true.values()))


def work(
    memory: Memory, kind: str, arrays: Arrays, form: str | None = None, chunk: int | None = None
) -> Callable[[], Any]:
    """The call that is timed: kind "forward" or "both"."""
    if kind == "forward":
        return lambda: forward(memory, arrays, form, chunk)
    heads, tokens, d = arrays["v"].shape
    bar = cotangent(tokens, heads=heads, d=d)
    return lambda: both(memory, arrays, bar, form, chunk)


def size_of(outputs: Any) -> int:
    """Bytes of what `forward` or `both` returned."""
    leaves = itertools.chain.from_iterable(
        each.values() if isinstance(each, dict) else [each] for each in outputs
    )
    return sum(int(leaf.nbytes) for leaf in leaves)
