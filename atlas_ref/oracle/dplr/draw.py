"""What cases of rule dplr are drawn from: members, settings, tensors and regimes (SWEEP-16)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from atlas_ref.oracle.dplr import cut, formulas, parameters, tensors
from atlas_ref.oracle.dplr.members import MEMBERS, POSITIVE, SECOND, Member, of
from atlas_ref.oracle.drawing import LONG, SIZES, Arrays, Drawing, Space
from atlas_ref.oracle.regimes import LINEAR, LINEAR_NAMED

#: Members in the order in which draw 2 was published: their places in the table of members, and rows
#: that come to it, move no case. Those rows are drawn where they are fixed (SWEEP-16).
DRAWN = (
    "linear_attn", "retention", "simple_gla", "gla", "rwkv6", "rwkv7", "delta", "gated_delta", "kda",
    "gdn2", "gated_delta_product", "comba_decay_after_erase", "comba_decay_before_erase", "iplr",
    "dplr", "qwen3_next", "kimi_linear",
)  # fmt: skip

#: Values that a case is drawn from, in the order of drawing; the first is the plainest.
SPACE: dict[str, tuple[Any, ...]] = {
    **SIZES,
    "member": (None, None, None, *DRAWN),
    "steps": (1, 1, 1, 2, 3),
    "groups": (1, 1, 2, 3),
    "decay": (None, None, "after_error", "before_error"),
    "query_scale": (None, None, 1, "1/sqrt(d_in)"),
    "q_norm": (None, None, "none", "l2"),
    "k_norm": (None, None, "none", "l2"),
    "norm_eps": (1e-6, 1e-6, 1e-2, 1e-12),
    "state_layout": ("(d_out, d_in)", "(d_in, d_out)"),
    "gate": ("token", "channel", "channel", "log_token", "log_channel", "log_channel", "absent"),
    "erase": ("absent", "pair", "pair"),
    "rates": ("row", "row", "value"),
    "bonus": ("absent", "absent", "channel", "head"),
    "state": ("absent", "memory", "memory"),
    "state_bar": (False, True),
    "pulse": (1, 1, 1, 2, 3),
    "reset": (0, 0, 0, 4, 5),
    "dtype": ("float64", "float32", "bfloat16", "float16"),
    # what a program does to its state and gates, drawn where it is fixed
    "state_dtype": (None,),
    "state_every": (1,),
    "log_chunk": (None,),
}

#: Names above that are fields of a request, and those that say which tensors a case has.
OF_REQUEST = ("tokens", "d_in", "d_out", "heads", "batch", "pulse", "reset", "dtype")
OF_TENSORS = ("gate", "erase", "rates", "bonus", "state", "state_bar")
OF_PARAMETERS = tuple(name for name in SPACE if name not in (*OF_REQUEST, *OF_TENSORS))

#: What the code of a member fixes, and what few kernels have: a case of a member has it in a share of
#: those in which it is drawn, so that a kernel can answer most cases (SWEEP-17).
RARE = ("decay", "query_scale", "q_norm", "k_norm", "norm_eps", "steps", "rates", "pulse")
SHARE = 1 / 16

#: Key of the numbers by which that share is drawn.
RARE_KEY = 2**32

#: Members whose code has several steps of a token.
STEPPED = ("gated_delta_product",)

#: Parameters that are drawn where they are fixed alone: they came after the draws.
LATER_PARAMETERS: tuple[str, ...] = (
    *("gate_formula", *formulas.SETTINGS, *formulas.DECLARED, "beta_formula"),
    *("group_order", "masked_read", "query_groups"),
)

#: Names of the space whose values are others in a long case (SWEEP-12).
LONG_SPACE = {"tokens": LONG}

#: Vectors that are brought to length one where they are longer, so that no erase makes a state grow.
_VECTORS = ("k", "erase_read", "erase_write", "erase_key", "alpha", "kk", "a", "erase_gate")


def request(fields: dict[str, Any], choices: Space, long: bool) -> dict[str, Any]:
    """Fields of a request from drawn ones, which are made to fit unless they are fixed."""
    drawn, name = dict(fields), fields["member"]
    named = isinstance(name, str) and name in MEMBERS
    member = of(name if named else None)
    idle = {"erase", "bonus"} if named else set()
    if member.gated is not True:
        idle.add("gate")
    drawn |= dict.fromkeys(idle - set(choices), "absent")
    if named:
        drawn |= _of_code(drawn, choices, member)
    if "rates" not in choices and not _erases(member.erase, drawn["erase"]):
        drawn["rates"] = "row"
    single = drawn["bonus"] != "absent" or (named and (member.bonus or member.second in ("A", "S")))
    if single and "steps" not in choices:
        drawn["steps"] = 1
    if drawn.get("gate_formula") is not None and "gate" not in choices and member.gated is True:
        drawn["gate"] = str(drawn["gate"]).removeprefix("log_").replace("absent", "channel")
    settings = {
        each: drawn.pop(each) for each in (*OF_PARAMETERS, *LATER_PARAMETERS) if each in drawn
    }
    own = {
        each: value
        for each, value in settings.items()
        if value is not None and (each in choices or value != SPACE[each][0])
    }
    return drawn | {"parameters": own}


def _of_code(drawn: Mapping[str, Any], choices: Space, member: Member) -> dict[str, Any]:
    """Fields of a case of a member that are as its code has them (SWEEP-17).

    They are drawn from the case's seed, so that fixing one name moves no other.
    """
    found: dict[str, Any] = {}
    own = np.random.Generator(np.random.Philox(key=(int(drawn["seed"]) << 64) | RARE_KEY))
    for name in RARE:
        other = own.uniform() < SHARE or (name == "steps" and drawn["member"] in STEPPED)
        if not other and name not in choices:
            found[name] = SPACE[name][0]
    if "gate" not in choices and member.gated is True:
        kind = str(drawn["gate"]).replace("absent", "log_channel")
        found["gate"] = kind.replace("channel", "token") if member.gate == "head" else kind
    return found


def _erases(kind: str, pair: Any) -> bool:
    """Whether an erase has rates, or a pair of vectors that may have some."""
    return kind == "error" or (kind == "given" and pair != "absent")


def dress(
    inputs: Arrays, fields: Mapping[str, Any], header: Any, generator: np.random.Generator
) -> None:
    """Bring the tensors to the kinds that were drawn: gates, erase, bonus and states.

    Raises:
        ValueError: a kind that is fixed and that the member does not have.
    """
    own = parameters.parse(header)
    shapes = tensors.shapes(own, inputs)
    for name in _VECTORS:
        if f"in/{name}" in inputs:
            inputs[f"in/{name}"] = _short(inputs[f"in/{name}"])
    if own.of.erase == "alpha":
        inputs["in/beta"] = _short(inputs["in/beta"])
    for name, rule in (("erase", own.of.erase == "given"), ("gate", own.of.gated is True)):
        if fields[name] != "absent" and not rule:
            raise ValueError(f"{name}: {fields[name]}, but member {own.member} has none")
    if own.of.erase == "given" and fields["erase"] == "absent":
        del inputs["in/erase_read"], inputs["in/erase_write"]
    if fields["rates"] != "row":
        _rates(own, inputs, fields["erase"], shapes, generator)
    if own.gate_formula is None:
        _gates(inputs, fields["gate"])
    elif fields["gate"] not in ("token", "channel"):
        raise ValueError(f"gate: {fields['gate']}, but gate_formula {own.gate_formula} makes it")
    elif fields["gate"] == "token":
        inputs |= formulas.of_tokens(inputs)
    if fields["bonus"] != "absent":
        if own.member is not None:
            raise ValueError(f"bonus: {fields['bonus']}, but member {own.member} is as it is")
        shape = shapes["in/bonus"][-1 if fields["bonus"] == "channel" else -2]
        inputs["in/bonus"] = generator.standard_normal(shape)
    for key, names, wanted in (
        ("state", ("in/M0", *SECOND[own.of.second][:1]), fields["state"] != "absent"),
        ("state_bar", ("in/M_bar", *SECOND[own.of.second][1:]), bool(fields["state_bar"])),
    ):
        for name in names if wanted else ():
            scale = 0.3 if key == "state" else 1.0
            drawn = scale * generator.standard_normal(shapes[name][0])
            inputs[name] = np.abs(drawn) if name in POSITIVE else drawn


def _rates(
    own: parameters.Parameters,
    inputs: Arrays,
    pair: Any,
    shapes: tensors.Shapes,
    generator: np.random.Generator,
) -> None:
    """A rate of each value in the place of that of a row.

    Raises:
        ValueError: an erase without rates.
    """
    if not _erases(own.of.erase, pair):
        raise ValueError("rates: value, but nothing is erased at a rate")
    if own.beta_formula is not None:
        inputs["in/beta_input"] = generator.standard_normal(shapes["in/beta_input"][-1])
        return
    name = "in/beta" if own.of.erase == "error" else "in/erase_scale"
    inputs[name] = generator.uniform(0.1, 0.9, shapes[name][-1])


def _gates(inputs: Arrays, kind: Any) -> None:
    """Gates of a token or of every channel, as they are or as their logs."""
    if "in/retain" not in inputs:
        return
    gates = inputs.pop("in/retain").astype(np.float64)
    if kind == "absent":
        return
    if str(kind).endswith("token"):
        gates = gates[..., 0]
    if str(kind).startswith("log"):
        inputs["in/log_retain"] = np.log(gates)
    else:
        inputs["in/retain"] = gates


def _short(x: Any) -> Any:
    """Vectors that are longer than one, brought to that length."""
    wide = x.astype(np.float64)
    length = np.sqrt(np.sum(wide * wide, axis=-1, keepdims=True))
    return wide / np.maximum(1.0, length)


#: What a sweep draws of this rule, and how a case of it becomes smaller.
DRAWING = Drawing(
    space=SPACE,
    request=request,
    tensors=dress,
    of_tensors=OF_TENSORS,
    closed=OF_TENSORS,
    later=LATER_PARAMETERS,
    regimes=LINEAR,
    long=LONG_SPACE,
    named=LINEAR_NAMED,
    moves=cut.MOVES,
)
