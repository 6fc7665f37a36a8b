"""The chunkwise form: all tokens of a span at once, with residuals under a frozen reference.

    E = Phi M_ref^T - V
    Y = diag(c) Psi M_0^T + diag(f) Psi S_0^T - (D * (Psi Phi^T)) E

"masked attention": scores between queries and keys under a mask that gates and window weights make.
With Newton-Schulz the momenta of a block of tokens are formed and orthogonalised together.
Specified in specs/chunkwise.md. Source: Atlas (2505.23735) Eq 15; Titans (2501.00663) section 3.2.

Invariants of every chunk, its cost and its special cases: CHUNK-19, CHUNK-24 to CHUNK-28.
"""

from __future__ import annotations

from typing import Any

from atlas_ref.forms import chunked, momentum_then_window, newton_schulz_blocks
from atlas_ref.forms.recurrence import Memory, Recurrence
from atlas_ref.types import Array

CHUNK = 64  # tokens, the fastest measured


def run(
    config: Any, sequence: Recurrence, memory: Memory, chunk: int | None
) -> tuple[Memory, Array]:
    """The rule with a frozen or zero reference over one packed sequence (CHUNK-6 to CHUNK-15).

    Args:
        config: the rule's configuration; its convention names the memory that is read, and
            Newton-Schulz.
        sequence: one packed sequence; its reference is frozen or zero.
        memory: start of the sequence.
        chunk: tokens of a chunk; None for 64, with Newton-Schulz for the most that its memory bound
            allows.

    Returns:
        memory after the last token, y (..., T, d_out).

    Source: Atlas (2505.23735) Eq 15; CHUNK-6 to CHUNK-18.
    """
    if config.convention.has_newton_schulz:
        return newton_schulz_blocks.run(config, sequence, memory, chunk)
    run_chunks = chunked.run if memory.momenta is None else momentum_then_window.run
    return run_chunks(config, sequence, memory, chunk or CHUNK)
