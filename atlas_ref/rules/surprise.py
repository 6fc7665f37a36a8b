"""The surprise of each token: what the memory answers for its key before the token writes.

    e_t = M_{t-1}(phi(k_t)) - v_t,    surprise_t = |e_t|^2

Specified in specs/conventions.md, CONV-63. Source: Titans (2501.00663) Section 3.1, whose momentary
surprise is the gradient of this number; Atlas (2505.23735) Eq 9 for one token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from atlas_ref.rules import sequence
from atlas_ref.rules.rule import Rule
from atlas_ref.rules.sequence import Tokens
from atlas_ref.types import Array
from tape import ops


class Surprise(NamedTuple):
    """How wrong the memory is about each token before the token writes.

    Attributes:
        residual (..., T, d_out): e_t, answer less value; answer plus value under value_sign plus.
        value (..., T): |e_t|^2.
    """

    residual: Array
    value: Array


def surprise(
    rule: Rule, config: Any, tokens: Tokens, state: Any, *, phi: Mapping[str, Array] | None = None
) -> Surprise:
    """The residual of each token's pair against the memory before it, and its square (CONV-63).

    e_t = M_{t-1}(phi(k_t)) - v_t, where M_{t-1} is the memory that `read: before` reads at t: after
    the last write of the token's own packed sequence. A token that does not write has a surprise
    too. The queries of `tokens` count for nothing.

    Args:
        tokens, state, phi: as for `sequence.run`, which computes the same memories.

    Returns:
        residual (..., T, d_out) and value (..., T); both can be differentiated.

    Raises:
        ValueError: what `sequence.run` refuses.

    Source: CONV-63.
    """
    sequence.check_tokens(tokens)
    convention = config.convention
    asks_keys = convention.replaced(read="before", query_scale=1.0, q_norm=convention.k_norm)
    _, answers = sequence.run(
        rule, config.replaced(convention=asks_keys), tokens.replaced(q=tokens.k), state, phi=phi
    )
    residual = answers - tokens.v if convention.value_sign == "minus" else answers + tokens.v
    return Surprise(residual, ops.sum(residual * residual, axis=-1))
