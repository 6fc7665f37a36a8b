"""The sequential form of a long sequence: all tokens in one launch of a kernel on a GPU (CUDA-6,
CUDA-14), or in one compiled loop (EXACT-21).

Elsewhere a rule is driven token by token (`rules.sequence.run`), the plain twin.
"""

from __future__ import annotations

import math
from typing import Any

from atlas_ref.engine import cuda
from atlas_ref.engine.compiled import tokens as compiled_tokens
from atlas_ref.forms.recurrence import Memory, Recurrence
from atlas_ref.rules import Rule
from atlas_ref.rules.sequence import Tokens
from atlas_ref.types import Array
from tape import ops, plain


def computes(rule: Rule, config: Any, tokens: Tokens, state: Any) -> bool:
    """Whether a kernel or a compiled loop computes this rule under its convention on these arrays
    (CUDA-14, EXACT-21).
    """
    convention = config.convention
    running = rule.reads_nothing(config) or not convention.frozen_reference
    window_first = not rule.averages_momenta(config)
    if (
        not running
        or not window_first
        or convention.has_newton_schulz
        or convention.momentum_kind == "delta_momentum"
        or convention.memory_ceiling != "none"
        or convention.read == "chunk_start"
    ):
        return False
    gates = (
        tokens.retain,
        tokens.momentum,
        tokens.step_size,
        tokens.step_size_memory,
        tokens.window_weights,
    )
    values = tokens.v if tokens.surrogate is None else tokens.surrogate
    arrays = (tokens.k, values, tokens.q, *gates, state.M, state.S if rule.has_momentum else None)
    window = rule.window(config)
    if cuda.available_for(*arrays):
        from atlas_ref.engine.cuda import sequential

        return sequential.fits(state.M, window)
    count = math.prod(tokens.k.shape[:-1])
    return compiled_tokens.fits(*arrays, work=count * window * math.prod(state.M.shape[-2:]))


def run(
    config: Any, sequence: Recurrence, memory: Memory, chunk: int | None
) -> tuple[Memory, Array]:
    """Run a packed sequence with the running or the zero reference, without Newton-Schulz (CUDA-6,
    EXACT-21).

    Args:
        chunk: accepted as in every form; tokens are taken one by one.

    Returns:
        memory after the sequence, y (..., T, d_out).
    """
    from atlas_ref.engine.cuda import sequential  # all of the engine, which few sequences ask for
    from atlas_ref.forms import exact
    from atlas_ref.forms.chunked import READS, apart, joined

    if not cuda.available_for(plain(memory.M)):
        return exact.run(config, sequence, memory, chunk)
    flat = joined(sequence.whole(), memory, reference=False, residuals=False)
    made = sequential.steps(
        *(
            flat.keys,
            flat.values,
            flat.queries,
            flat.retain,
            flat.momentum,
            flat.rate_in,
            flat.rate_out,
            flat.weights,
            flat.M,
            flat.S,
        ),
        read=READS[config.convention.read],
        reference=sequence.reference,
        before_error=sequence.before_error,
    )
    y = ops.matmul(flat.queries, ops.transpose(made.M)) if made.y is None else made.y
    return apart(memory, Memory(M=made.M, S=made.S), y)
