"""Settings of a case of rule dplr with the values that are tried (DPLRCASE-9)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from atlas_ref.oracle.dplr import formulas, tensors
from atlas_ref.oracle.dplr.context import DplrContext
from atlas_ref.oracle.dplr.members import MEMBERS
from atlas_ref.oracle.dplr.parameters import Order, Parameters
from atlas_ref.oracle.dplr.readings import of_formulas
from atlas_ref.oracle.program.reading import Reading, of_settings

#: Values of eps in the norm of a key or query, those of public code among them.
EPS = (1e-15, 1e-12, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)

#: Orders of value heads in groups.
ORDERS = Parameters.model_fields["group_order"].annotation

#: What a masked token reads.
MASKED = Parameters.model_fields["masked_read"].annotation

LAYOUTS = ("(d_out, d_in)", "(d_in, d_out)")


def settings(context: DplrContext) -> Iterator[Reading]:
    """Every other value of every setting, each function once (DPLRCASE-9).

    A member stands for the settings that it brings along; in a case without a member the
    settings stand for themselves.
    """
    seen, names = {_function(context.settings, context)}, list(_parameters(context))
    parts = [_members(context), names] if context.settings.member else [names, _members(context)]
    for each in (one for part in parts for one in part):
        other = context.settings.replaced(**each)
        if (key := _function(other, context)) not in seen:
            seen.add(key)
            before = {name: _in_force(context.settings, name) for name in each}
            yield of_settings(each, before)


def _in_force(params: Parameters, name: str) -> Any:
    if name in ("q_norm", "k_norm"):
        return params.norm(f"in/{name[0]}")
    return {"decay": params.order, "query_scale": params.scale}.get(name, getattr(params, name))


def _parameters(context: DplrContext) -> Iterator[dict[str, Any]]:
    """One parameter with another value, where it can matter."""
    yield from of_formulas.settings(context)
    if context.erases and context.has_gates:
        yield from ({"decay": value} for value in get_args(Order))
    scaled = context.settings.of.second != "z"  # the length of a query cancels in a normalised read
    yield from ({"query_scale": value} for value in (1, "1/sqrt(d_in)") if scaled)
    for name in ("q_norm", "k_norm") if scaled else ("k_norm",):
        yield from ({name: value} for value in ("none", "l2"))
    if (
        "l2" in (context.settings.norm("in/q"), context.settings.norm("in/k"))
        and not context.settings.of.floor
    ):
        yield from ({"norm_eps": value} for value in EPS)
    if context.has_mask:  # so that the read of a masked token matters (DPLRCASE-28)
        yield from ({"masked_read": value} for value in get_args(MASKED))
    if context.settings.has_order(context.inputs):
        yield from ({"group_order": value} for value in get_args(ORDERS))
    if context.square or "in/M0" not in context.inputs:  # the given memory has one layout alone
        yield from ({"state_layout": value} for value in LAYOUTS)


def _members(context: DplrContext) -> Iterator[dict[str, Any]]:
    """Members that have the tensors of the case, of the same shapes."""
    given = {name for name in context.inputs if name.startswith("in/")}
    for name in MEMBERS:
        other = formulas.without(context.settings.replaced(member=name))
        needed, free = tensors.names(other)
        if needed <= given <= needed | free:
            shapes = tensors.shapes(other, context.inputs)
            if all(tuple(context.inputs[each].shape) in shapes[each] for each in given):
                yield {"member": name}


def _function(params: Parameters, context: DplrContext) -> tuple[Any, ...]:
    """What decides the results: two settings of one function have the same."""
    of, norms = params.of, (params.norm("in/q"), params.norm("in/k"))
    length = (norms[0], params.scale) if of.second != "z" else ()
    gate = of.gated if of.gated == "heads" else bool(context.gate)
    given = "in/erase_read" in context.inputs or of.erase not in ("none", "given")
    erase = (of.erase, of.read) if given else None
    order = params.order if given and gate else None
    eps = (of.floor or params.norm_eps) if "l2" in norms else None
    made = of_formulas.function(params, context)
    heads = params.group_order if context.settings.has_order(context.inputs) else ""
    events = (heads, params.masked_read if context.has_mask else "")
    return (order, length, norms[1], eps, params.state_layout, gate, erase, of.second, made, events)
