"""Targets of the rule dplr: the rule itself, and every member of its family (VEC-24)."""

from __future__ import annotations

from typing import Any

from atlas_ref.oracle.dplr.members import MEMBERS, Member
from atlas_ref.vectors.inputs.target import Target
from atlas_ref.vectors.inputs.topics import SQUARE, Topic

RULE = "dplr"

#: Shapes; calls that have an initial memory, and one that starts from zero.
TALL = {"tokens": 6, "d_in": 2, "d_out": 4, "heads": 2}
WIDE = {"tokens": 7, "d_in": 4, "d_out": 3, "heads": 1}
LONG = {"tokens": 65, "d_in": 3, "d_out": 2, "heads": 1}

START = "first memory"

#: Topics of every target.
TOPICS = (
    Topic("tall", TALL, (START,)),
    Topic("wide", WIDE, (START,)),
    Topic("square", SQUARE, (START,)),
    Topic("start", {**SQUARE, "heads": 1}),
    Topic("packed", {**WIDE, "tokens": 8, "pulse": 2, "reset": 3}, (START,)),
    Topic("65", LONG, (START, "long")),
    Topic("gradient", {**SQUARE, "tokens": 6, "heads": 1}, (START,), grad=True),
)

#: Topics of which every target that has them has a vector: what an implementation without groups,
#: steps and logs can compute, one without M0, and logs of gates of 0.
ALWAYS = ("square", "start", "gradient", "extreme-log")

#: Topics of targets with a gate, or with gates that are fixed and near 1: writes that nearly cancel
#: the first memory, so that one gate too many is a large error.
CANCELLING = (
    Topic("cancelling", {**TALL, "tokens": 5, "heads": 1}, (START, "cancelling")),
    Topic(
        "cancelling-packed",
        {**WIDE, "d_in": 3, "tokens": 8, "pulse": 2, "reset": 3},
        (START, "cancelling"),
    ),
    Topic("65-cancelling", LONG, (START, "long", "cancelling")),
)

#: Topics of targets with a gate.
GATED = (
    Topic("gate", {**SQUARE, "heads": 1}, (START, "one gate")),
    Topic("log", {**WIDE, "tokens": 6}, (START, "log gate")),
    Topic("extreme", {**SQUARE, "heads": 1}, (START, "extreme gates")),
    Topic("extreme-log", {**SQUARE, "heads": 1}, (START, "log gate", "extreme gates")),
    Topic("gradient-log", {**TALL, "tokens": 5, "heads": 1}, (START, "log gate"), grad=True),
)

#: Topics of targets whose erase may have a factor for each value.
RATES = (
    Topic("rates", {**SQUARE, "heads": 1}, (START, "value rates")),
    Topic("gradient-rates", {**SQUARE, "tokens": 5, "heads": 1}, (START, "value rates"), grad=True),
)

#: Topics of targets that norm keys and queries: lengths near the root of eps.
NORMED = (
    Topic("tiny", {**SQUARE, "heads": 1}, (START, "tiny keys")),
    Topic("gradient-tiny", {**SQUARE, "tokens": 5, "heads": 1}, (START, "tiny keys"), grad=True),
)

#: Long topics of the targets whose kernels work in chunks of tokens or of steps.
LONGER = (
    Topic("130-packed", {**LONG, "tokens": 130, "pulse": 2, "reset": 50}, (START, "long")),
    Topic("65-gradient", LONG, (START, "long"), grad=True),
)

LONGER_OF = ("", "gated_delta", "kda")


#: Members whose kernels have one gate a head (VEC-27); momentum_delta has topics of its own.
OF_HEADS = tuple(
    name for name, each in MEMBERS.items() if each.gate == "head" and each.second != "S"
)

ONE = "one gate"

#: Topics of these members: what a kernel computes that has one gate a head, and neither silent tokens,
#: nor rates of values, nor steps. Most are square, as some kernels are.
HEADS = (
    Topic("head", SQUARE, (START, ONE)),
    Topic("head-start", SQUARE, (ONE,)),
    Topic("head-log", {**TALL, "tokens": 7}, (START, ONE, "log gate")),
    Topic("head-extreme", SQUARE, (START, ONE, "log gate", "strong logs")),
    Topic("head-packed", {**SQUARE, "tokens": 8, "reset": 3}, (START, ONE, "log gate")),
    Topic("head-batch", {**SQUARE, "heads": 6}, (START, ONE, "log gate", "batch")),
    Topic("head-gradient", {**SQUARE, "tokens": 6}, (START, ONE, "log gate"), grad=True),
    Topic(
        "head-gradient-batch",
        {**SQUARE, "tokens": 5, "reset": 3, "heads": 6},
        (START, ONE, "log gate", "batch"),
        grad=True,
    ),
    Topic("head-65", {**LONG, "d_out": 3, "heads": 2}, (START, "long", ONE)),
    Topic("head-130", {**LONG, "d_out": 3, "heads": 2, "tokens": 130}, (START, "long", ONE)),
    Topic(
        "head-130-packed",
        {**LONG, "d_out": 3, "tokens": 130, "reset": 50},
        (START, "long", ONE),
    ),
)

#: The topic of those whose keys may be of fewer heads (DPLR-6).
HEADS_GROUPS = Topic("head-groups", {**SQUARE, "tokens": 5, "heads": 4}, (START, ONE, "log gate"))

#: The long call of members with a gate for each channel and several heads (VEC-28).
SEVERAL = Topic("65-heads", {**LONG, "heads": 2}, (START, "long"))

#: Topics of members whose kernels know vectors of 64 and 128 channels alone, or no longer ones (VEC-28).
CHANNELS = (
    Topic("wide-64", {"tokens": 6, "d_in": 64, "d_out": 64, "heads": 1}, (START, "wide keys")),
    Topic("wide-128", {"tokens": 5, "d_in": 128, "d_out": 128, "heads": 1}, ("wide keys",)),
    Topic(
        "65-wide",
        {"tokens": 65, "d_in": 64, "d_out": 64, "heads": 1},
        ("long", "wide keys"),
    ),
    Topic("wide-192", {"tokens": 5, "d_in": 192, "d_out": 64, "heads": 1}, ("wide keys",)),
)

CHANNELS_OF = ("kda", "gated_delta")


def _channels(name: str) -> tuple[Topic, ...]:
    """The topics of many channels that a member has, with the gate of its kernels."""
    listed = CHANNELS if name in CHANNELS_OF else ()
    if name not in OF_HEADS:
        return (*listed, SEVERAL) if listed else ()
    return tuple(each._replace(regimes=(*each.regimes, ONE)) for each in listed)


def _with(topics: tuple[Topic, ...], **parameters: Any) -> tuple[Topic, ...]:
    return tuple(topic._replace(parameters=parameters) for topic in topics)


def _topics(name: str, member: Member | None) -> tuple[Topic, ...]:
    """Topics that a member has tensors for."""
    found: tuple[Topic, ...] = TOPICS
    found += _with((Topic("layout", {**TALL, "heads": 1}, (START,)),), state_layout="(d_in, d_out)")
    heads = Topic("groups", {**TALL, "tokens": 5}, (START,))
    of_heads = heads._replace(name="gradient-groups", grad=True)
    found += _with((heads, of_heads), groups=2)
    if member is None or not member.bonus:
        steps = Topic("steps", {**WIDE, "tokens": 4}, (START,))
        long = Topic("65-steps", LONG, (START, "long"))
        found += _with((steps, *((long,) if name == "gated_delta_product" else ())), steps=2)
    if member is None:
        found += (
            Topic("bonus", {**SQUARE, "heads": 1}, (START, "bonus")),
            Topic("gradient-bonus", {**SQUARE, "tokens": 5}, (START, "bonus"), grad=True),
        )
    if member is None or member.erase == "error":
        found += RATES
    if member is not None and member.erase == "gates":
        found += (Topic("65-strong", LONG, (START, "long", "strong erase", "cancelling")),)
    if member is None or member.gated is True:
        found += GATED
    if member is None or member.gated:
        found += CANCELLING
    if member is not None and member.norm == "l2":
        found += NORMED
    found += LONGER if name in LONGER_OF else ()
    found += _channels(name)
    return found + ((*HEADS, *_with((HEADS_GROUPS,), groups=2)) if name in OF_HEADS else ())


def _target(name: str, member: Member | None) -> Target:
    parameters = {} if member is None else {"member": name}
    word = f"-{name}" if name else ""
    fields = {"rule": RULE, "parameters": parameters}
    return Target(
        f"dplr{word}",
        fields,
        _topics(name, member),
        longer=(),
        later=True,
        always=ALWAYS if name else (*ALWAYS, "layout"),
    )


#: Settings of which other values are mutants. A setting that is younger has none (VEC-24).
SETTINGS = ("member", "decay", "query_scale", "q_norm", "k_norm", "norm_eps", "state_layout")

#: Members that are targets, and mutants of others. A member that is younger is neither (VEC-24).
NAMES = (
    "linear_attn", "retention", "simple_gla", "gla", "rwkv6", "rwkv7", "delta", "gated_delta", "kda",
    "gdn2", "gated_delta_product", "comba_decay_after_erase", "comba_decay_before_erase", "iplr",
    "dplr", "qwen3_next", "kimi_linear",
)  # fmt: skip

DPLR = (_target("", None), *(_target(name, MEMBERS[name]) for name in NAMES))
