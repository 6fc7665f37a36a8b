"""The sequential form of a rule on a GPU: all tokens in one launch, where a kernel computes the rule (CUDA-6, CUDA-14).

Without a GPU, and with tape variables, a rule is driven token by token instead (`rules.run`): that is the truth.
"""

from __future__ import annotations

from typing import Any

from atlas_ref import cuda
from atlas_ref.cuda import sequential
from atlas_ref.parallel.recurrence import Memory, Recurrence, reads_nothing
from atlas_ref.parallel.walk import READS, apart, joined
from atlas_ref.rules.run import Tokens
from atlas_ref.types import Array
from tape import ops


def computes(rule: Any, config: Any, tokens: Tokens, state: Any) -> bool:
    """Whether the kernel computes this rule under its convention on these arrays (CUDA-14)."""
    convention = config.convention
    running = reads_nothing(rule, config) or not convention.frozen_reference
    window_first = convention.order == "window_then_momentum" or not hasattr(config, "window")
    if not running or not window_first or convention.has_newton_schulz or convention.read == "chunk_start":
        return False
    gates = (tokens.retain, tokens.momentum, tokens.step_size, tokens.step_size_memory, tokens.window_weights)
    arrays = (tokens.k, tokens.v, tokens.q, *gates, state.M, getattr(state, "S", None))
    return cuda.available_for(*arrays) and sequential.fits(state.M, getattr(config, "window", 1))


def run(config: Any, sequence: Recurrence, memory: Memory, chunk: int | None) -> tuple[Memory, Array]:
    """Run a packed sequence with the running or the zero reference, without Newton-Schulz (CUDA-6).

    Args:
        chunk: accepted as in every form; tokens are taken one by one.

    Returns:
        memory after the sequence, y (..., T, d_out).
    """
    flat = joined(sequence.whole(), memory, reference=False, residuals=False)
    made = sequential.steps(
        *(flat.keys, flat.values, flat.queries, flat.retain, flat.momentum, flat.rate_in, flat.rate_out, flat.weights, flat.M, flat.S),
        read=READS[config.convention.read],
        reference=sequence.reference,
        before_error=sequence.before_error,
    )
    y = ops.matmul(flat.queries, ops.transpose(made.M)) if made.y is None else made.y
    return apart(memory, Memory(M=made.M, S=made.S), y)
