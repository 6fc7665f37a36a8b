"""The exact form: the running-reference rule, chunk by chunk, through a unit lower triangular
system.

    (I + N) E = diag(c) Phi M_0^T + diag(f) Phi S_0^T - V,      N[i,j] = D[i-1,j] <phi_i, phi_j>

for c = 1: the residual of token i follows from those of the tokens before it. With a window the
unknowns are e[t,i], one per token and window place. Reads and end states are those of the masked
form.

Computes Delta, Titans, Omega without Newton-Schulz and Hebbian, exactly. Specified in
specs/exact.md. Source: the WY form of gated DeltaNet is the case of no momentum and decay before
the error.

That it equals the rule, its cost, its special cases and its backward: EXACT-12 to EXACT-15,
EXACT-17 to EXACT-19.
"""

from __future__ import annotations

from typing import Any

from atlas_ref.forms import chunked, momentum_then_window
from atlas_ref.forms.recurrence import Memory, Recurrence
from atlas_ref.types import Array

CHUNK = 32  # tokens, where a token looks at itself alone
COLUMNS = 64  # and with a window: so many unknowns, the fastest measured


def run(
    config: Any, sequence: Recurrence, memory: Memory, chunk: int | None
) -> tuple[Memory, Array]:
    """The rule over one packed sequence (EXACT-1 to EXACT-7, EXACT-11).

    Args:
        config: the rule's configuration; its convention names the memory that is read.
        sequence: one packed sequence without Newton-Schulz; its reference is running, or zero for
            Hebbian.
        memory: start of the sequence.
        chunk: tokens of a chunk; None for 32, fewer with a window.

    Returns:
        memory after the last token, y (..., T, d_out).

    Source: EXACT-1 to EXACT-7, EXACT-11; gated DeltaNet (2412.06464) for the WY form.
    """
    averages_momenta = memory.momenta is not None
    places = 1 if averages_momenta else sequence.window
    chunk = chunk or (CHUNK if places == 1 else max(1, COLUMNS // places))
    run_chunks = momentum_then_window.run if averages_momenta else chunked.run
    return run_chunks(config, sequence, memory, chunk)
