"""Mistakes and habits that a program of rule dplr may have, as data (DPLRCASE-10)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from atlas_ref.oracle.dplr.readings import of_formulas
from atlas_ref.oracle.dplr.readings.reading import Inputs, Reading, Seen
from atlas_ref.types import Array
from tape import ops

Change = Callable[[Inputs], Inputs]


def habits(at: Seen) -> list[Reading]:
    """Mistakes that can be made in a case; those of the gradient where it has cotangents."""
    every = [*_of_gate(at), *_of_erase(at), *_of_rates(at), *_of_read(at), *_of_heads(at)]
    every += [
        *_of_norm(at),
        *_of_normaliser(at),
        *_of_preconditioner(at),
        *_of_momentum(at),
        *_of_state(at),
        *_of_events(at),
        *_of_tokens(at),
        *of_formulas.mistakes(at),
    ]
    graded = "in/y_bar" in at.inputs or "in/M_bar" in at.inputs
    return [*every, *(_of_gradients(at) if graded else [])]


def _mistake(name: str, words: str, inputs: Change | None = None, **program: Any) -> Reading:
    return Reading(name, words, program=program, inputs=inputs)


def _of_gate(at: Seen) -> Iterator[Reading]:
    """A gate at another place, of another axis, token or scale."""
    if at.gated:
        yield _mistake("gate after write", "the gate came after the write", gate_after="write")
        if at.erases and at.own.of.second != "S":
            words = "the gate came between the erase and the write"
            yield _mistake("gate after erase", words, gate_after="erase")
        if at.own.steps > 1:
            yield _mistake("gate at steps", "every step of a token decayed", gate_steps=True)
        if "in/active" in at.inputs:
            yield _mistake("gate when silent", "silent tokens decayed", gate_silent=True)
    if not (name := at.gate):
        return
    yield _mistake("gate forgotten", f"{at.gate_word} was absent", _without(name))
    squared = _changed(name, lambda x: 2 * x if name == "in/log_retain" else x * x)
    yield _mistake("gate twice", "a token decayed twice", squared)
    if at.by_channel:
        if at.square:
            yield _mistake("gate on rows", "the gate was on value channels", gate_rows=True)
        words = "all channels had the gate of the first"
        yield _mistake("gate of channel 0", words, _changed(name, _first_channel))
        words = f"all channels had the mean of their {'logs' if 'log' in name else 'gates'}"
        yield _mistake("mean gate", words, _changed(name, _mean_channel))
    axis = -2 if at.by_channel else -1
    if at.tokens > 1:
        words = "gates were one token late"
        yield _mistake("gate late", words, _changed(name, lambda x: _late(x, axis)))
        words = "gates were one token early"
        yield _mistake("gate early", words, _changed(name, lambda x: _early(x, axis)))
    if name == "in/retain":
        yield _mistake(
            "gate as log", "the gate was taken as its log", _moved(name, "in/log_retain")
        )
    else:
        yield _mistake("log as gate", "the log was taken as the gate", _moved(name, "in/retain"))
        words = "the log of the gate was to base 2"
        yield _mistake("log of base 2", words, _changed(name, lambda x: x * math.log(2.0)))
        words = "the gate was exp of its log to base 2"
        yield _mistake("exp of base 2", words, _changed(name, lambda x: x / math.log(2.0)))


def _of_erase(at: Seen) -> Iterator[Reading]:
    """An erase of another sign, key or memory."""
    if not at.erases:
        return
    kind = at.own.of.erase
    yield _mistake("no erase", "nothing was erased", erases="nothing")
    yield _mistake("erase adds", "the erase was added", erases="adds")
    if kind != "momentum":
        yield _mistake("late erase", "the erase read the memory after the write", erase_late=True)
    if kind in ("error", "gates") and at.own.norm("in/k") == "l2":
        words = "the erase read with the key without its norm"
        yield _mistake("erase of bare key", words, erase_of="bare key")
    if at.own.of.read == "in/erase_key":
        words = "the erase read with in/k in place of in/erase_key"
        yield _mistake("erase of key", words, erase_of="key")
    crossed = {
        "gates": "in/erase_gate was on the key along which the erase takes away",
        "kk": "in/a was on what the erase reads with",
    }
    if kind in crossed:
        yield _mistake("erase crossed", crossed[kind], erase_crossed=True)
    for one, other in (("in/erase_read", "in/erase_write"), ("in/alpha", "in/beta")):
        if one in at.inputs and other in at.inputs:
            words = f"{one} and {other} were exchanged"
            yield _mistake(f"{one} exchanged", words, _exchanged(one, other))


def _of_norm(at: Seen) -> Iterator[Reading]:
    normed = "l2" in (at.own.norm("in/q"), at.own.norm("in/k"))
    if normed and not at.own.of.floor:
        words = "the eps of a norm was added to the length in place of its square"
        yield _mistake("eps outside the root", words, bare_eps=True)


def _of_rates(at: Seen) -> Iterator[Reading]:
    """A rate that is left out of the erase, the write or both, or applied twice."""
    kind = at.own.of.erase
    if kind == "error":
        yield _mistake("erase without beta", "the erase had no in/beta", no_beta="erase")
        yield _mistake("write without beta", "the write had no in/beta", no_beta="write")
        if at.own.beta_formula != "sigmoid":  # which is another formula
            words = "in/beta was doubled"
            yield _mistake("beta doubled", words, _changed("in/beta", lambda x: 2 * x))
        yield from _of_rates_per_value(at)
    if "in/erase_scale" in at.inputs:
        words = "in/erase_scale was absent"
        yield _mistake("erase_scale forgotten", words, _without("in/erase_scale"))
    for each in RATES.get(kind, ()):
        name = f"in/{each}"
        yield _mistake(f"{each} forgotten", f"{name} was 1", _changed(name, _ones))
        words = f"{name} was applied twice"
        yield _mistake(f"{each} twice", words, _changed(name, lambda x: x * x))


#: Tensors that weigh an erase or a write, by the formula of the erase.
RATES = {
    "error": ("beta",),
    "gates": ("erase_gate", "write_gate"),
    "kk": ("a",),
    "momentum": ("beta", "eta"),
}


def _of_rates_per_value(at: Seen) -> Iterator[Reading]:
    """Step sizes that are of another axis than that of values."""
    if len(at.inputs["in/beta"].shape) == len(at.inputs["in/v"].shape):
        words = "all values had the mean of in/beta"
        yield _mistake("mean beta", words, _changed("in/beta", _mean_channel))
        if at.square:
            words = "in/beta was on key channels"
            yield _mistake("beta on keys", words, beta_on_keys=True)


def _of_read(at: Seen) -> Iterator[Reading]:
    """A read of another memory, or of another scale."""
    yield _mistake("read before", "queries read the memory before their token", reads="before")
    if at.gated:
        words = "queries read the decayed memory before its write"
        yield _mistake("read decayed", words, reads="decayed")
    if at.own.steps > 1:
        words = "queries read the memory after the first step of their token"
        yield _mistake("read of first step", words, reads="first step")
    if at.own.scale != 1 and at.own.of.second != "z":  # it cancels in a normalised read
        if at.erases and not at.own.of.second:
            words = "the scale was on keys in place of queries"
            yield _mistake("scale of keys", words, scale_of_keys=True, scales=0)
        yield _mistake("scale twice", "the scale of a query was applied twice", scales=2)
        if not at.square:
            words = "the scale of a query was 1/sqrt(d_out)"
            yield _mistake("scale of d_out", words, scale_of_rows=True)
    if "in/bonus" in at.inputs:
        name = "in/bonus"
        yield _mistake("bonus forgotten", f"{name} was absent", _without(name))
        yield _mistake("bonus of 0", f"{name} was 0", _changed(name, lambda x: ops.zeros_like(x)))
        yield _mistake("bonus of 1", f"{name} was 1", _changed(name, _ones))
        words = "the bonus was added to a read after the write"
        yield _mistake("bonus late", words, bonus_of="after")
        if at.gated:
            words = "the bonus was added to a read of the decayed memory"
            yield _mistake("bonus decayed", words, bonus_of="decayed")


def _of_normaliser(at: Seen) -> Iterator[Reading]:
    """A normalised read that is divided by something else."""
    if at.own.of.second != "z":
        return
    yield _mistake("not divided", "reads were not divided by anything", normaliser="absent")
    words = "reads were divided by the sum of keys of before their token"
    yield _mistake("sum of before", words, normaliser="before")
    if at.own.scale != 1:
        words = "the query of the normaliser had no scale"
        yield _mistake("normaliser without scale", words, normaliser="bare")
    words = "the normaliser was at least 1"
    yield _mistake("normaliser at least 1", words, normaliser="at least 1")
    if "in/z0" in at.inputs:
        yield _mistake("z0 ignored", "in/z0 was absent", sum_from_zero=True)


def _of_momentum(at: Seen) -> Iterator[Reading]:
    """A momentum of another gate, sign, rate or token."""
    if at.own.of.second != "S":
        return
    name = "in/log_momentum"
    yield _mistake("no momentum", "the momentum was 0", _changed(name, _logs_of_zero))
    words = "the momentum was 1"
    yield _mistake("momentum of 1", words, _changed(name, lambda x: ops.zeros_like(x)))
    words = "the log of the momentum was to base 2"
    yield _mistake("momentum of base 2", words, _changed(name, lambda x: x * math.log(2.0)))
    words = "the memory moved by the momentum of before its token"
    yield _mistake("momentum late", words, momentum="before")
    yield _mistake("momentum negative", "S had the other sign", momentum="negative")
    yield _mistake("momentum average", "S was a running average", momentum="average")
    words = "in/eta and in/beta were exchanged"
    yield _mistake("rates exchanged", words, _exchanged("in/eta", "in/beta"))
    if "in/S0" in at.inputs:
        yield _mistake("S0 ignored", "in/S0 was absent", _without("in/S0"))


def _logs_of_zero(x: Array) -> Array:
    return ops.zeros_like(x) + np.asarray(-np.inf, x.dtype)


def _of_preconditioner(at: Seen) -> Iterator[Reading]:
    """Keys that are preconditioned at another place, by another sum, or not at all."""
    if at.own.of.second != "A":
        return
    yield _mistake("key as it is", "pairs were written along keys as they are", precond="nothing")
    words = "the erase read with the key that is written"
    yield _mistake("erase of written key", words, erase_of="written key")
    words = "keys were preconditioned by the squares of before their token"
    yield _mistake("squares of before", words, precond="before")
    yield _mistake("no centre", "the log of A had no centre", precond="no centre")
    name = "in/log_retain_precond"
    words = "A did not decay"
    yield _mistake("A without decay", words, _changed(name, lambda x: ops.zeros_like(x)))
    yield _mistake("beta_precond forgotten", "in/beta_precond was 1", _changed(PRECOND, _ones))
    if "in/A0" in at.inputs:
        yield _mistake("A0 ignored", "in/A0 was absent", _without("in/A0"))


#: Weights of squares of keys.
PRECOND = "in/beta_precond"


def _of_heads(at: Seen) -> Iterator[Reading]:
    if at.own.groups > 1 and at.inputs["in/k"].shape[-3] > 1:
        words = "value heads took key heads round robin"
        yield _mistake("round robin", words, round_robin=True)


def _of_state(at: Seen) -> Iterator[Reading]:
    """A first or last memory that is passed over, early or transposed."""
    words = "out/M was the memory before the last token"
    yield _mistake("M early", words, last_early=True)
    if "in/M0" not in at.inputs:
        return
    yield _mistake("M0 ignored", "in/M0 was absent", _without("in/M0"))
    if at.square:
        yield _mistake("M0 transposed", "in/M0 was transposed", transposed="first")
    if at.square or "in/M_bar" not in at.inputs:  # a cotangent has one shape
        yield _mistake("M transposed", "out/M was transposed", transposed="last")


def _of_events(at: Seen) -> Iterator[Reading]:
    """Resets and silent tokens that are passed over, or come at another token."""
    if "in/active" in at.inputs:
        yield _mistake("active ignored", "in/active was absent", _without("in/active"))
    if "in/reset" not in at.inputs:
        return
    name = "in/reset"
    yield _mistake("reset ignored", f"{name} was absent", _without(name))
    words = "resets came one token late"
    yield _mistake("reset late", words, _changed(name, lambda x: _shifted(x, 1)))
    words = "resets came one token early"
    yield _mistake("reset early", words, _changed(name, lambda x: _shifted(x, -1)))
    if "in/M0" in at.inputs:
        words = "a reset returned to zero in place of in/M0"
        yield _mistake("reset to zero", words, reset_to_zero=True)


def _of_tokens(at: Seen) -> Iterator[Reading]:
    """Queries, keys and steps of another token."""
    n = at.own.steps
    if n > 1:
        names = [name for name in ROWS if name in at.inputs]
        words = "the steps of a token were taken in reverse"
        yield _mistake("steps reversed", words, lambda x: _reversed(at, names, x))
    if at.tokens > 1:
        for name, word in (("in/q", "queries"), ("in/k", "keys")):
            words = f"{word} were one row late"
            yield _mistake(f"{name} late", words, _changed(name, lambda x: _late(x, -2)))


#: Tensors with a row for each step.
ROWS = (
    "in/k", "in/v", "in/erase_read", "in/erase_write", "in/erase_scale", "in/beta", "in/erase_key",
    "in/alpha", "in/kk", "in/a", "in/erase_gate", "in/write_gate",
)  # fmt: skip


def _of_gradients(at: Seen) -> Iterator[Reading]:
    """Parts of the backward pass that are held fixed."""
    if name := at.gate:
        yield _held("gate", "no gradient went through the gate")
        if (
            at.own.gate_formula is None
            and name == "in/log_retain"
            and np.isfinite(at.inputs[name]).all()
        ):
            words = "the gradient of in/log_retain was that of the gate"
            yield _held("log", words)
    if at.erases:
        yield _held("erase", "no gradient went through what the erase found")
        yield _held("erase_read", "no gradient went to what the erase read with")
    if "l2" in (at.own.norm("in/q"), at.own.norm("in/k")):
        yield _held("norm", "the length in the norm of keys and queries was a constant")
    if at.tokens > 1:
        yield _held("memory", "no gradient went from a token to the memory before it")
    if at.own.of.second == "z":
        yield _held("normaliser", "no gradient went through what reads are divided by")
    if at.own.of.second == "S" and at.tokens > 1:
        yield _held("momentum", "no gradient went from a token to the momentum before it")
    if at.own.of.second == "A":
        yield _held("preconditioner", "no gradient went through what keys are preconditioned by")
    if at.own.groups > 1:
        yield _held("heads", "keys and queries had the gradient of the first value head of a group")
    yield from _of_dropped(at)


def _of_dropped(at: Seen) -> Iterator[Reading]:
    """Gradients that a tensor does not get, or that do not end where they should."""
    kind = at.own.of.erase
    names = ("alpha", "beta") if kind == "alpha" else RATES.get(kind, ())
    yield from of_formulas.held(at)
    for name in (*names, "erase_scale", "bonus", "M0"):
        if f"in/{name}" in at.inputs and not (name == "beta" and at.own.beta_formula):
            change = _changed(f"in/{name}", ops.stop_gradient)
            words = f"no gradient went to in/{name}"
            yield Reading(f"{name} held", words, grad=True, inputs=change)
    if "in/M_bar" in at.inputs:
        yield _held("last", "no gradient came from out/M")
    if "in/reset" in at.inputs:
        yield _held("reset", "gradients went through a reset to the tokens before it")
    if at.own.scale != 1 and at.own.of.second != "z":
        yield _held("scale", "the gradient of in/q lacked the scale")


def _held(part: str, words: str) -> Reading:
    return Reading(f"{part} held", words, grad=True, program={"held": part})


# -- inputs ----------------------------------------------------------------------------------------


def _without(name: str) -> Change:
    return lambda inputs: {each: x for each, x in inputs.items() if each != name}


def _changed(name: str, change: Callable[[Array], Array]) -> Change:
    return lambda inputs: {**inputs, name: change(inputs[name])}


def _moved(source: str, name: str) -> Change:
    """A tensor under another name, its own left out."""
    return lambda inputs: {**_without(source)(inputs), name: inputs[source]}


def _exchanged(one: str, other: str) -> Change:
    return lambda inputs: {**inputs, one: inputs[other], other: inputs[one]}


def _ones(x: Array) -> Array:
    return ops.zeros_like(x) + np.ones((), x.dtype)


def _first_channel(x: Array) -> Array:
    return ops.broadcast_to(x[..., :1], x.shape)


def _mean_channel(x: Array) -> Array:
    return ops.broadcast_to(ops.sum(x, axis=-1, keepdims=True) / x.shape[-1], x.shape)


def _late(x: Array, axis: int) -> Array:
    """Entries one place late, the first twice."""
    behind = (slice(None),) * (-axis - 1)
    first, rest = x[(..., slice(0, 1), *behind)], x[(..., slice(0, -1), *behind)]
    return ops.concatenate([first, rest], axis=axis)


def _early(x: Array, axis: int) -> Array:
    """Entries one place early, the last twice."""
    behind = (slice(None),) * (-axis - 1)
    rest, last = x[(..., slice(1, None), *behind)], x[(..., slice(-1, None), *behind)]
    return ops.concatenate([rest, last], axis=axis)


def _shifted(mask: Array, by: int) -> Array:
    """A mask whose marks come later by a number of tokens; those beyond the ends are lost."""
    moved = np.zeros_like(mask)
    count = len(mask)
    moved[max(by, 0) : count + min(by, 0)] = mask[max(-by, 0) : count - max(by, 0)]
    return moved


def _reversed(at: Seen, names: list[str], inputs: Inputs) -> Inputs:
    """The rows of each token in reverse."""
    n, count = at.own.steps, at.inputs["in/v"].shape[-2]
    order = np.arange(count).reshape(-1, n)[:, ::-1].ravel()
    changed = {}
    for name in names:
        number = len(inputs[name].shape) < len(inputs["in/v"].shape)  # one for each row
        changed[name] = inputs[name][..., order] if number else inputs[name][..., order, :]
    return {**inputs, **changed}
