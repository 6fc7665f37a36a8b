"""A rule over a sequence in a chosen form; the support matrix lists which form computes which rule.

Specified in specs/chunkwise.md (CHUNK-1, CHUNK-3, CHUNK-20).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from atlas_ref.forms.recurrence import Memory, Recurrence, memory, packed, state_after
from atlas_ref.forms.support import require
from atlas_ref.on_demand import OnDemand
from atlas_ref.parts import rows
from atlas_ref.rules import Rule
from atlas_ref.rules import sequence as in_turn
from atlas_ref.rules.checks import check_call, check_rule, check_state
from atlas_ref.types import Array
from tape import ops

#: (configuration, one packed sequence, memory before it, chunk or None) -> (memory after it, y
#: (..., T, d_out)).
Form = Callable[[Any, Recurrence, Memory, int | None], tuple[Memory, Array]]


def _form(module: Any, name: str) -> Form:
    form: Form = module.run
    return form


#: Each form as a function, imported when it is asked for; `support` lists the rules that it
#: computes.
FORMS: OnDemand[Form] = OnDemand(
    {
        name: f"atlas_ref.forms.{name}"
        for name in ("chunkwise", "exact", "scan", "atlas_parallel", "kernel", "sequential")
    },
    _form,
)


def run(
    rule: Rule,
    config: Any,
    tokens: in_turn.Tokens,
    state: Any,
    *,
    form: str = "sequential",
    chunk: int | None = None,
    phi: Mapping[str, Array] | None = None,
) -> tuple[Any, Array]:
    """Drive a rule over a sequence in one of its forms (CHUNK-1).

    Args:
        rule, config: as in `rules.sequence.run`, such as `omega.RULE` and an `omega.Config`.
        tokens: keys k (..., T, d_in), values v (..., T, d_out), queries q (..., T, d_in), gates
            (..., T) or (..., T, d_out).
        state: from the rule's `start`, or from an earlier call in any form, which this one then
            continues.
        form: sequential, or a parallel form that computes the same numbers up to rounding.
        chunk: tokens that the form takes at once; it never changes results. None for the fastest.
        phi: tensors of the feature map, by name.

    Returns:
        state after the last token, y (..., T, d_out).

    Raises:
        ValueError: a form that does not compute this rule under this convention, a chunk below 1,
            no rule, or a configuration, tokens or a state that contradict the rule, its convention
            or each other.

    Source: CHUNK-1, CHUNK-3, CHUNK-20 to CHUNK-22.
    """
    from atlas_ref.forms import sequential as one_launch  # the engine

    check_rule(rule, config)
    check_state(rule, state)
    require(rule.name, config.convention, form, chunk)
    if parts := in_turn.groups(rule, tokens):
        check_call(rule, config, tokens, state)
        own = partial(run, rule, config, form=form, chunk=chunk, phi=phi)
        after, y = rows.run(parts, own, tokens, state)
        return in_turn.read_only_state(after), y
    in_turn.check_tokens(tokens)
    if rule.run is not None:
        return rule.run(rule, config, tokens, state, phi=phi)
    by_matrix = rule.has_window and state.gradients is not None
    if by_matrix and form != "sequential":
        raise ValueError(
            f"form {form}: the window holds gradient matrices (OMEGA-29); use form sequential"
        )
    by_token = form == "sequential" and (
        by_matrix or not one_launch.computes(rule, config, tokens, state)
    )
    if by_token or 0 in tokens.k.shape[:-2]:  # no memory at all is the same in every form
        return in_turn.run(rule, config, tokens, state, phi=phi)
    check_call(rule, config, tokens, state)
    reads = []
    after = state
    for anew, sequence in packed(rule, config, tokens, state, phi):
        before = rule.anew(config, tokens, state) if anew else state
        last, y = FORMS[form](config, sequence, memory(rule, config, before), chunk)
        after = state_after(rule, config, before, sequence, last)
        reads.append(y)
    joined = reads[0] if len(reads) == 1 else ops.concatenate(reads, axis=-2)
    return in_turn.read_only_state(in_turn.with_token_gates(config, tokens, after)), joined
