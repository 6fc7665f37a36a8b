"""Mistakes and habits that a program of rule dplr may have, as data (DPLRCASE-10)."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from atlas_ref.oracle.dplr.context import DplrContext
from atlas_ref.oracle.dplr.members import RATES
from atlas_ref.oracle.dplr.readings import backward, of_formulas, wraps
from atlas_ref.oracle.program import changes
from atlas_ref.oracle.program.reading import Reading
from atlas_ref.types import Array
from tape import ops


def habits(context: DplrContext) -> list[Reading]:
    """Mistakes that can be made in a case; those of the gradient where it has cotangents."""
    graded = "in/y_bar" in context.inputs or "in/M_bar" in context.inputs
    return [*habits_of_values(context), *(backward.constants(context) if graded else [])]


def habits_of_values(context: DplrContext) -> list[Reading]:
    """Mistakes that values show."""
    return [
        *_of_gate(context),
        *_of_erase(context),
        *_of_rates(context),
        *_other_reads(context),
        *_of_heads(context),
        *_of_norm(context),
        *_of_normaliser(context),
        *_of_preconditioner(context),
        *_of_momentum(context),
        *_of_state(context),
        *_of_events(context),
        *_of_tokens(context),
        *of_formulas.mistakes(context),
    ]


def _mistake(name: str, words: str, inputs: changes.Change | None = None, of: str = "") -> Reading:
    """A change of inputs, or the ops that are wrapped, for a kind of erase where that matters."""
    return Reading(name, words, ops={} if inputs else wraps.VALUES[name + of], inputs=inputs)


def _of_gate(context: DplrContext) -> Iterator[Reading]:
    """A gate at another place, of another axis, token or scale."""
    if context.has_gates:
        yield _mistake("gate after write", "the gate came after the write")
        if context.erases and context.settings.of.second != "S":
            words = "the gate came between the erase and the write"
            yield _mistake("gate after erase", words)
        if context.settings.steps > 1:
            yield _mistake("gate at steps", "every step of a token decayed")
        if "in/active" in context.inputs:
            yield _mistake("gate when silent", "silent tokens decayed")
    if not (name := context.gate):
        return
    yield _mistake("gate forgotten", f"{context.gate_word} was absent", changes.without(name))
    squared = changes.change_tensor(name, lambda x: 2 * x if name == "in/log_retain" else x * x)
    yield _mistake("gate twice", "a token decayed twice", squared)
    if context.by_channel:
        if context.square:
            yield _mistake("gate on rows", "the gate was on value channels")
        words = "all channels had the gate of the first"
        yield _mistake(
            "gate of channel 0", words, changes.change_tensor(name, changes.first_channel)
        )
        words = f"all channels had the mean of their {'logs' if 'log' in name else 'gates'}"
        yield _mistake("mean gate", words, changes.change_tensor(name, changes.mean_channel))
    axis = -2 if context.by_channel else -1
    if context.tokens > 1:
        words = "gates were one token late"
        yield _mistake(
            "gate late", words, changes.change_tensor(name, lambda x: changes.late(x, axis))
        )
        words = "gates were one token early"
        yield _mistake(
            "gate early", words, changes.change_tensor(name, lambda x: changes.early(x, axis))
        )
    if name == "in/retain":
        yield _mistake(
            "gate as log",
            "the gate was taken as its log",
            changes.rename_tensor(name, "in/log_retain"),
        )
    else:
        yield _mistake(
            "log as gate", "the log was taken as the gate", changes.rename_tensor(name, "in/retain")
        )
        words = "the log of the gate was to base 2"
        yield _mistake(
            "log of base 2", words, changes.change_tensor(name, lambda x: x * math.log(2.0))
        )
        words = "the gate was exp of its log to base 2"
        yield _mistake(
            "exp of base 2", words, changes.change_tensor(name, lambda x: x / math.log(2.0))
        )


def _of_erase(context: DplrContext) -> Iterator[Reading]:
    """An erase of another sign, key or memory."""
    if not context.erases:
        return
    kind = context.settings.of.erase
    change = {"error": " of change", "momentum": " of momentum"}.get(kind, "")
    yield _mistake("no erase", "nothing was erased", of=change)
    yield _mistake("erase adds", "the erase was added", of=change and " of change")
    if kind != "momentum":
        words = "the erase read the memory after the write"
        yield _mistake("late erase", words)
    if kind in ("error", "gates") and context.settings.norm("in/k") == "l2":
        words = "the erase read with the key without its norm"
        yield _mistake("erase of bare key", words)
    if context.settings.of.read == "in/erase_key":
        words = "the erase read with in/k in place of in/erase_key"
        yield _mistake("erase of key", words)
    if kind == "gates":
        words = "in/erase_gate was on the key along which the erase takes away"
        yield _mistake("erase crossed", words)
    if kind == "kk":
        yield _mistake("erase crossed", "in/a was on what the erase reads with", of=" of kk")
    for one, other in (("in/erase_read", "in/erase_write"), ("in/alpha", "in/beta")):
        if one in context.inputs and other in context.inputs:
            words = f"{one} and {other} were exchanged"
            yield _mistake(f"{one} exchanged", words, changes.exchange_tensors(one, other))


def _of_norm(context: DplrContext) -> Iterator[Reading]:
    normed = "l2" in (context.settings.norm("in/q"), context.settings.norm("in/k"))
    if normed and not context.settings.of.floor:
        words = "the eps of a norm was added to the length in place of its square"
        yield _mistake("eps outside the root", words)


def _of_rates(context: DplrContext) -> Iterator[Reading]:
    """A rate that is left out of the erase, the write or both, or applied twice."""
    kind = context.settings.of.erase
    if kind == "error":
        yield _mistake("erase without beta", "the erase had no in/beta")
        yield _mistake("write without beta", "the write had no in/beta")
        if context.settings.beta_formula != "sigmoid":  # which is another formula
            words = "in/beta was doubled"
            yield _mistake("beta doubled", words, changes.change_tensor("in/beta", lambda x: 2 * x))
        yield from _of_rates_per_value(context)
    if "in/erase_scale" in context.inputs:
        words = "in/erase_scale was absent"
        yield _mistake("erase_scale forgotten", words, changes.without("in/erase_scale"))
    for each in RATES.get(kind, ()):
        name = f"in/{each}"
        yield _mistake(
            f"{each} forgotten", f"{name} was 1", changes.change_tensor(name, changes.ones)
        )
        words = f"{name} was applied twice"
        yield _mistake(f"{each} twice", words, changes.change_tensor(name, lambda x: x * x))


def _of_rates_per_value(context: DplrContext) -> Iterator[Reading]:
    """Step sizes that are of another axis than that of values."""
    if len(context.inputs["in/beta"].shape) == len(context.inputs["in/v"].shape):
        words = "all values had the mean of in/beta"
        yield _mistake("mean beta", words, changes.change_tensor("in/beta", changes.mean_channel))
        if context.square:
            words = "in/beta was on key channels"
            yield _mistake("beta on keys", words)


def _other_reads(context: DplrContext) -> Iterator[Reading]:
    """A read of another memory, or of another scale."""
    yield _mistake("read before", "queries read the memory before their token")
    if context.has_gates:
        words = "queries read the decayed memory before its write"
        yield _mistake("read decayed", words)
    if context.settings.steps > 1:
        words = "queries read the memory after the first step of their token"
        yield _mistake("read of first step", words)
    if (
        context.settings.scale != 1 and context.settings.of.second != "z"
    ):  # it cancels in a normalised read
        if context.erases and not context.settings.of.second:
            words = "the scale was on keys in place of queries"
            yield _mistake("scale of keys", words)
        yield _mistake("scale twice", "the scale of a query was applied twice")
        if not context.square:
            words = "the scale of a query was 1/sqrt(d_out)"
            yield _mistake("scale of d_out", words)
    if "in/bonus" in context.inputs:
        name = "in/bonus"
        yield _mistake("bonus forgotten", f"{name} was absent", changes.without(name))
        yield _mistake(
            "bonus of 0", f"{name} was 0", changes.change_tensor(name, lambda x: ops.zeros_like(x))
        )
        yield _mistake("bonus of 1", f"{name} was 1", changes.change_tensor(name, changes.ones))
        words = "the bonus was added to a read after the write"
        yield _mistake("bonus late", words)
        if context.has_gates:
            words = "the bonus was added to a read of the decayed memory"
            yield _mistake("bonus decayed", words)


def _of_normaliser(context: DplrContext) -> Iterator[Reading]:
    """A normalised read that is divided by something else."""
    if context.settings.of.second != "z":
        return
    yield _mistake("not divided", "reads were not divided by anything")
    words = "reads were divided by the sum of keys of before their token"
    yield _mistake("sum of before", words)
    if context.settings.scale != 1:
        words = "the query of the normaliser had no scale"
        yield _mistake("normaliser without scale", words)
    words = "the normaliser was at least 1"
    yield _mistake("normaliser at least 1", words)
    if "in/z0" in context.inputs:
        yield _mistake("z0 ignored", "in/z0 was absent", changes.without("in/z0"))


def _of_momentum(context: DplrContext) -> Iterator[Reading]:
    """A momentum of another gate, sign, rate or token."""
    if context.settings.of.second != "S":
        return
    name = "in/log_momentum"
    yield _mistake("no momentum", "the momentum was 0", changes.change_tensor(name, _logs_of_zero))
    words = "the momentum was 1"
    yield _mistake("momentum of 1", words, changes.change_tensor(name, lambda x: ops.zeros_like(x)))
    words = "the log of the momentum was to base 2"
    yield _mistake(
        "momentum of base 2", words, changes.change_tensor(name, lambda x: x * math.log(2.0))
    )
    words = "the memory moved by the momentum of before its token"
    yield _mistake("momentum late", words)
    yield _mistake("momentum negative", "S had the other sign")
    yield _mistake("momentum average", "S was a running average")
    words = "in/eta and in/beta were exchanged"
    yield _mistake("rates exchanged", words, changes.exchange_tensors("in/eta", "in/beta"))
    if "in/S0" in context.inputs:
        yield _mistake("S0 ignored", "in/S0 was absent", changes.without("in/S0"))


def _logs_of_zero(x: Array) -> Array:
    return ops.zeros_like(x) + np.asarray(-np.inf, x.dtype)


def _of_preconditioner(context: DplrContext) -> Iterator[Reading]:
    """Keys that are preconditioned at another place, by another sum, or not at all."""
    if context.settings.of.second != "A":
        return
    yield _mistake("key as it is", "pairs were written along keys as they are")
    words = "the erase read with the key that is written"
    yield _mistake("erase of written key", words)
    words = "keys were preconditioned by the squares of before their token"
    yield _mistake("squares of before", words)
    yield _mistake("no centre", "the log of A had no centre")
    name = "in/log_retain_precond"
    words = "A did not decay"
    yield _mistake(
        "A without decay", words, changes.change_tensor(name, lambda x: ops.zeros_like(x))
    )
    yield _mistake(
        "beta_precond forgotten",
        "in/beta_precond was 1",
        changes.change_tensor(PRECOND, changes.ones),
    )
    if "in/A0" in context.inputs:
        yield _mistake("A0 ignored", "in/A0 was absent", changes.without("in/A0"))


#: Weights of squares of keys.
PRECOND = "in/beta_precond"


def _of_heads(context: DplrContext) -> Iterator[Reading]:
    shared = context.settings.groups > 1 and context.inputs["in/k"].shape[-3] > 1
    if (
        shared and context.settings.group_order == "blocks"
    ):  # the other order is a setting (DPLRCASE-26)
        words = "value heads took key heads round robin"
        yield _mistake("round robin", words)


def _of_state(context: DplrContext) -> Iterator[Reading]:
    """A first or last memory that is passed over, early or transposed."""
    words = "out/M was the memory before the last token"
    yield _mistake("M early", words)
    if "in/M0" not in context.inputs:
        return
    yield _mistake("M0 ignored", "in/M0 was absent", changes.without("in/M0"))
    if context.square:
        yield _mistake("M0 transposed", "in/M0 was transposed")
    if context.square or "in/M_bar" not in context.inputs:  # a cotangent has one shape
        yield _mistake("M transposed", "out/M was transposed")


def _of_events(context: DplrContext) -> Iterator[Reading]:
    """Resets and silent tokens that are passed over, or come at another token."""
    if "in/active" in context.inputs:
        yield _mistake("active ignored", "in/active was absent", changes.without("in/active"))
    if "in/reset" not in context.inputs:
        return
    name = "in/reset"
    yield _mistake("reset ignored", f"{name} was absent", changes.without(name))
    words = "resets came one token late"
    yield _mistake(
        "reset late", words, changes.change_tensor(name, lambda x: changes.shift_marks(x, 1))
    )
    words = "resets came one token early"
    yield _mistake(
        "reset early", words, changes.change_tensor(name, lambda x: changes.shift_marks(x, -1))
    )
    if "in/M0" in context.inputs:
        words = "a reset returned to zero in place of in/M0"
        yield _mistake("reset to zero", words)


def _of_tokens(context: DplrContext) -> Iterator[Reading]:
    """Queries, keys and steps of another token."""
    n = context.settings.steps
    if n > 1:
        names = [name for name in ROWS if name in context.inputs]
        words = "the steps of a token were taken in reverse"
        yield _mistake("steps reversed", words, lambda x: _in_reverse(context, names, x))
    if context.tokens > 1:
        for name, word in (("in/q", "queries"), ("in/k", "keys")):
            words = f"{word} were one row late"
            yield _mistake(
                f"{name} late", words, changes.change_tensor(name, lambda x: changes.late(x, -2))
            )


#: Tensors with a row for each step.
ROWS = (
    "in/k", "in/v", "in/erase_read", "in/erase_write", "in/erase_scale", "in/beta", "in/erase_key",
    "in/alpha", "in/kk", "in/a", "in/erase_gate", "in/write_gate",
)  # fmt: skip


def _in_reverse(context: DplrContext, names: list[str], inputs: changes.Inputs) -> changes.Inputs:
    """The rows of each token in reverse."""
    n, count = context.settings.steps, context.inputs["in/v"].shape[-2]
    order = np.arange(count).reshape(-1, n)[:, ::-1].ravel()
    rows = {}
    for name in names:
        number = len(inputs[name].shape) < len(inputs["in/v"].shape)  # one for each row
        rows[name] = inputs[name][..., order] if number else inputs[name][..., order, :]
    return {**inputs, **rows}
