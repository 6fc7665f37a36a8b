"""The rule dplr over a sequence in a chosen form: token by token, compiled, or in exact chunks.

Specified in specs/dplr.md (DPLR-12).
"""

from __future__ import annotations

from collections.abc import Callable

from atlas_ref.forms.dplr import chunk as chunks
from atlas_ref.forms.dplr import scan
from atlas_ref.parts import rows
from atlas_ref.rules import dplr
from atlas_ref.types import Array

#: (configuration, tokens, state before them, chunk or None) -> (state after them, y (L, T, d_out)).
Form = Callable[[dplr.Config, dplr.Tokens, dplr.State, int | None], tuple[dplr.State, Array]]

#: Each form as a function.
FORMS: dict[str, Form] = {
    "sequential": lambda config, tokens, state, chunk: dplr.run(config, tokens, state),
    "scan": scan.run,
    "chunk": chunks.run,
}


def run(
    form: str,
    config: dplr.Config,
    tokens: dplr.Tokens,
    state: dplr.State,
    chunk: int | None = None,
) -> tuple[dplr.State, Array]:
    """Drive the rule over a sequence in one of its forms, which differ by rounding alone (DPLR-12).

    Args:
        form: sequential, the rule itself; scan, compiled; chunk.
        config, tokens, state: as in `rules.dplr.run`; another form may continue from the state.
        chunk: tokens that the form takes at once, at least 1; None for the fastest measured.

    Returns:
        state after the last token, y (L, T, d_out).

    Raises:
        ValueError: a form of another name or one that does not compute the tokens, a chunk below 1,
            or what the rule refuses.
    """
    check(form, chunk, by_row=tokens.erase_scale is not None)
    dplr.check_call(config, tokens, state)
    if parts := rows.of_tokens(tokens):
        own = FORMS[form]
        return dplr.run_rows(parts, lambda x, M: own(config, x, M, chunk), tokens, state)
    return FORMS[form](config, tokens, state, chunk)


def check(form: str, chunk: int | None, *, by_row: bool) -> None:
    """Refuse a form that does not compute a call (DPLR-12, DPLR-18).

    Args:
        by_row: whether the erase has a factor for each row of M.

    Raises:
        ValueError: names the form or the chunk, what was found and what is needed.
    """
    if form not in FORMS:
        raise ValueError(f"form: {form!r}, expected one of {', '.join(FORMS)}")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk: {chunk}, expected at least 1")
    if form != "sequential" and by_row:
        raise ValueError(
            f"form: {form} has one erase for all rows of M, and a factor for each row needs a "
            "system of its own for each; use sequential"
        )
