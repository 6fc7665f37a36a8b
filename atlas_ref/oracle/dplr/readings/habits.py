"""Mistakes and habits that a program of rule dplr may have, as data (DPLRCASE-10)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from atlas_ref.oracle.dplr.readings import backward, of_formulas
from atlas_ref.oracle.dplr.readings.reading import RATES, Reading, Seen
from atlas_ref.oracle.program import changes
from atlas_ref.types import Array
from tape import ops


def habits(at: Seen) -> list[Reading]:
    """Mistakes that can be made in a case; those of the gradient where it has cotangents."""
    graded = "in/y_bar" in at.inputs or "in/M_bar" in at.inputs
    return [*habits_of_values(at), *(backward.held(at) if graded else [])]


def habits_of_values(at: Seen) -> list[Reading]:
    """Mistakes that values show."""
    return [
        *_of_gate(at),
        *_of_erase(at),
        *_of_rates(at),
        *_of_read(at),
        *_of_heads(at),
        *_of_norm(at),
        *_of_normaliser(at),
        *_of_preconditioner(at),
        *_of_momentum(at),
        *_of_state(at),
        *_of_events(at),
        *_of_tokens(at),
        *of_formulas.mistakes(at),
    ]


def _mistake(
    name: str, words: str, inputs: changes.Change | None = None, **program: Any
) -> Reading:
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
    yield _mistake("gate forgotten", f"{at.gate_word} was absent", changes.without(name))
    squared = changes.changed(name, lambda x: 2 * x if name == "in/log_retain" else x * x)
    yield _mistake("gate twice", "a token decayed twice", squared)
    if at.by_channel:
        if at.square:
            yield _mistake("gate on rows", "the gate was on value channels", gate_rows=True)
        words = "all channels had the gate of the first"
        yield _mistake("gate of channel 0", words, changes.changed(name, changes.first_channel))
        words = f"all channels had the mean of their {'logs' if 'log' in name else 'gates'}"
        yield _mistake("mean gate", words, changes.changed(name, changes.mean_channel))
    axis = -2 if at.by_channel else -1
    if at.tokens > 1:
        words = "gates were one token late"
        yield _mistake("gate late", words, changes.changed(name, lambda x: changes.late(x, axis)))
        words = "gates were one token early"
        yield _mistake("gate early", words, changes.changed(name, lambda x: changes.early(x, axis)))
    if name == "in/retain":
        yield _mistake(
            "gate as log", "the gate was taken as its log", changes.moved(name, "in/log_retain")
        )
    else:
        yield _mistake(
            "log as gate", "the log was taken as the gate", changes.moved(name, "in/retain")
        )
        words = "the log of the gate was to base 2"
        yield _mistake("log of base 2", words, changes.changed(name, lambda x: x * math.log(2.0)))
        words = "the gate was exp of its log to base 2"
        yield _mistake("exp of base 2", words, changes.changed(name, lambda x: x / math.log(2.0)))


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
            yield _mistake(f"{one} exchanged", words, changes.exchanged(one, other))


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
            yield _mistake("beta doubled", words, changes.changed("in/beta", lambda x: 2 * x))
        yield from _of_rates_per_value(at)
    if "in/erase_scale" in at.inputs:
        words = "in/erase_scale was absent"
        yield _mistake("erase_scale forgotten", words, changes.without("in/erase_scale"))
    for each in RATES.get(kind, ()):
        name = f"in/{each}"
        yield _mistake(f"{each} forgotten", f"{name} was 1", changes.changed(name, changes.ones))
        words = f"{name} was applied twice"
        yield _mistake(f"{each} twice", words, changes.changed(name, lambda x: x * x))


def _of_rates_per_value(at: Seen) -> Iterator[Reading]:
    """Step sizes that are of another axis than that of values."""
    if len(at.inputs["in/beta"].shape) == len(at.inputs["in/v"].shape):
        words = "all values had the mean of in/beta"
        yield _mistake("mean beta", words, changes.changed("in/beta", changes.mean_channel))
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
        yield _mistake("bonus forgotten", f"{name} was absent", changes.without(name))
        yield _mistake(
            "bonus of 0", f"{name} was 0", changes.changed(name, lambda x: ops.zeros_like(x))
        )
        yield _mistake("bonus of 1", f"{name} was 1", changes.changed(name, changes.ones))
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
    yield _mistake("no momentum", "the momentum was 0", changes.changed(name, _logs_of_zero))
    words = "the momentum was 1"
    yield _mistake("momentum of 1", words, changes.changed(name, lambda x: ops.zeros_like(x)))
    words = "the log of the momentum was to base 2"
    yield _mistake("momentum of base 2", words, changes.changed(name, lambda x: x * math.log(2.0)))
    words = "the memory moved by the momentum of before its token"
    yield _mistake("momentum late", words, momentum="before")
    yield _mistake("momentum negative", "S had the other sign", momentum="negative")
    yield _mistake("momentum average", "S was a running average", momentum="average")
    words = "in/eta and in/beta were exchanged"
    yield _mistake("rates exchanged", words, changes.exchanged("in/eta", "in/beta"))
    if "in/S0" in at.inputs:
        yield _mistake("S0 ignored", "in/S0 was absent", changes.without("in/S0"))


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
    yield _mistake("A without decay", words, changes.changed(name, lambda x: ops.zeros_like(x)))
    yield _mistake(
        "beta_precond forgotten", "in/beta_precond was 1", changes.changed(PRECOND, changes.ones)
    )
    if "in/A0" in at.inputs:
        yield _mistake("A0 ignored", "in/A0 was absent", changes.without("in/A0"))


#: Weights of squares of keys.
PRECOND = "in/beta_precond"


def _of_heads(at: Seen) -> Iterator[Reading]:
    shared = at.own.groups > 1 and at.inputs["in/k"].shape[-3] > 1
    if shared and at.own.group_order == "blocks":  # the other order is a setting (DPLRCASE-26)
        words = "value heads took key heads round robin"
        yield _mistake("round robin", words, round_robin=True)


def _of_state(at: Seen) -> Iterator[Reading]:
    """A first or last memory that is passed over, early or transposed."""
    words = "out/M was the memory before the last token"
    yield _mistake("M early", words, last_early=True)
    if "in/M0" not in at.inputs:
        return
    yield _mistake("M0 ignored", "in/M0 was absent", changes.without("in/M0"))
    if at.square:
        yield _mistake("M0 transposed", "in/M0 was transposed", transposed="first")
    if at.square or "in/M_bar" not in at.inputs:  # a cotangent has one shape
        yield _mistake("M transposed", "out/M was transposed", transposed="last")


def _of_events(at: Seen) -> Iterator[Reading]:
    """Resets and silent tokens that are passed over, or come at another token."""
    if "in/active" in at.inputs:
        yield _mistake("active ignored", "in/active was absent", changes.without("in/active"))
    if "in/reset" not in at.inputs:
        return
    name = "in/reset"
    yield _mistake("reset ignored", f"{name} was absent", changes.without(name))
    words = "resets came one token late"
    yield _mistake("reset late", words, changes.changed(name, lambda x: changes.shifted(x, 1)))
    words = "resets came one token early"
    yield _mistake("reset early", words, changes.changed(name, lambda x: changes.shifted(x, -1)))
    if "in/M0" in at.inputs:
        words = "a reset returned to zero in place of in/M0"
        yield _mistake("reset to zero", words, reset_to_zero=True)


def _of_tokens(at: Seen) -> Iterator[Reading]:
    """Queries, keys and steps of another token."""
    n = at.own.steps
    if n > 1:
        names = [name for name in ROWS if name in at.inputs]
        words = "the steps of a token were taken in reverse"
        yield _mistake("steps reversed", words, lambda x: _in_reverse(at, names, x))
    if at.tokens > 1:
        for name, word in (("in/q", "queries"), ("in/k", "keys")):
            words = f"{word} were one row late"
            yield _mistake(
                f"{name} late", words, changes.changed(name, lambda x: changes.late(x, -2))
            )


def _in_reverse(at: Seen, names: list[str], inputs: changes.Inputs) -> changes.Inputs:
    """The rows of each token in reverse."""
    n, count = at.own.steps, at.inputs["in/v"].shape[-2]
    order = np.arange(count).reshape(-1, n)[:, ::-1].ravel()
    rows = {}
    for name in names:
        number = len(inputs[name].shape) < len(inputs["in/v"].shape)  # one for each row
        rows[name] = inputs[name][..., order] if number else inputs[name][..., order, :]
    return {**inputs, **rows}


#: Tensors with a row for each step.
ROWS = (
    "in/k", "in/v", "in/erase_read", "in/erase_write", "in/erase_scale", "in/beta", "in/erase_key",
    "in/alpha", "in/kk", "in/a", "in/erase_gate", "in/write_gate",
)  # fmt: skip
