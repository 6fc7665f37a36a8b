"""NL_Hecate's TNT: local memories are clones of a global one, which learns from their reads alone.

    W = V at each chunk's start, then token by token          y_t = f(W_t, q_t)
    V <- 0.95 V + s s^T at each shard's end,                  s a summary of the shard's reads

No equation of the paper says so. Specified in specs/tnt.md (TNT-20 to TNT-22). Source: NL_Hecate
47466066, core/src/tnt.rs.
"""

from __future__ import annotations

import itertools
import math
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from atlas_ref import backend, forms
from atlas_ref.forms import support
from atlas_ref.forms.tnt import pieces
from atlas_ref.forms.tnt.config import PREFERRED, RuleConfig
from atlas_ref.rules import Rule, rule_of, sequence
from atlas_ref.rules.sequence import Tokens
from atlas_ref.types import Array, Count, Dims, Frozen
from tape import ops


class Config(Frozen):
    """Settings of a memory whose chunks start from clones (TNT-20).

    Attributes:
        config: of the rule of the clones; reference running and read after are set here.
        shard: C_G, tokens between two moves of the global memory.
        span: C_L, tokens of a clone.
        summary: s is the mean of a shard's reads, or their attention under a query from V; or V
            becomes the last clone as it stands.
        retention: factor of V at its move.
        clone_gradient: whether gradients pass through a clone to V.
        form, chunk: of the clones' runs, as in `atlas_ref.forms`.
    """

    config: RuleConfig
    shard: Count
    span: Count
    summary: Literal["mean", "attention", "last_state"] = "mean"
    retention: Annotated[float, Field(ge=0, le=1)] = 0.95
    clone_gradient: Literal["full", "stop"] = "full"
    form: str | None = None
    chunk: Count | None = None

    @model_validator(mode="after")
    def _possible(self) -> Self:
        rule = self.rule
        if not rule.in_family:
            raise ValueError(f"config: clones of a {rule.name} are not defined")
        sizes = self.config.d_out, rule.d_phi(self.config)
        if self.summary != "last_state" and sizes[0] != sizes[1]:
            raise ValueError(
                f"summary: {self.summary} adds s s^T, so that d_out must be d_phi, found {sizes}"
            )
        if self.form is not None:
            support.require(rule.name, self.run_config.convention, self.form, self.chunk)
        return self

    @property
    def rule(self) -> Rule:
        """The rule whose configuration this is."""
        return rule_of(self.config)

    @property
    def run_config(self) -> Any:
        """The rule's settings for the run of a clone."""
        axes = {"reference": "running", "read": "after"}
        return self.config.replaced(convention=self.config.convention.replaced(**axes))


#: What public code changes: fields of `Config` (TNT-22).
PRESETS: dict[str, dict[str, Any]] = {"nl-hecate": {"clone_gradient": "stop"}}


class Params(Frozen):
    """Parameters of the outer loop (TNT-20).

    Attributes:
        V (..., d_out, d_phi): the first global memory; None for zero.
        W_summary (d_out, d_phi): of the query of summary attention.
        phi: tensors of the feature map.
    """

    V: Annotated[Array, Dims("... d_out d_phi", optional=True)] = None
    W_summary: Annotated[Array, Dims("d_out d_phi", optional=True)] = None
    phi: dict[str, Any] = {}


class State(Frozen):
    """Everything that a split between two tokens must carry.

    Attributes:
        position: of the next token in its document.
        V (..., d_out, d_phi): the global memory.
        clone: the state of the rule inside the chunk.
        reads (..., n, d_out): of the shard so far.
    """

    position: Annotated[int, Field(ge=0)]
    V: Annotated[Array, Dims("... d_out d_phi")]
    clone: Any
    reads: Annotated[Array, Dims("... n d_out")]


def start(
    config: Config, params: Params, leading: tuple[int, ...] = (), *, dtype: Any = np.float64
) -> State:
    """The state before the first token of a document."""
    if (params.W_summary is not None) != (config.summary == "attention"):
        raise ValueError(
            f"W_summary: {'missing' if params.W_summary is None else 'given'}, but summary is "
            f"{config.summary}"
        )
    shape = (*leading, config.config.d_out, config.rule.d_phi(config.config))
    zeros = backend.current().zeros
    V = zeros(shape, dtype) if params.V is None else ops.broadcast_to(params.V, shape)
    reads = zeros((*leading, 0, config.config.d_out), dtype)
    return State.trusted(position=0, V=V, clone=_cloned(config, V), reads=reads)


def run(config: Config, params: Params, tokens: Tokens, state: State) -> tuple[State, Array]:
    """Clones over a sequence, and the global memory from shard to shard (TNT-20).

    Args:
        tokens: every one of them writes; a reset starts a document.
        state: from `start`, or from an earlier call, which this one then continues.

    Returns:
        state after the last token, y (..., T, d_out).

    Raises:
        ValueError: parameters or tokens that contradict the settings.

    Source: NL_Hecate 47466066; TNT-20.
    """
    sequence.check_tokens(tokens)
    if tokens.active is not None and not np.all(tokens.active):
        raise ValueError("active: every token of a TNT writes, found one that does not")
    T, reads = tokens.k.shape[-2], []
    reset = np.zeros(T, bool) if tokens.reset is None else np.asarray(tokens.reset)
    for first, last in itertools.pairwise([0, *(np.nonzero(reset[1:])[0] + 1).tolist(), T]):
        if reset[first]:
            state = start(config, params, tokens.k.shape[:-2], dtype=tokens.k.dtype)
        while first < last:
            stop = min(last, first + config.shard - state.position % config.shard)
            state, y = _shard(config, params, pieces.cut(tokens, first, stop), state)
            reads.append(y)
            first = stop
    return pieces.settled(state), pieces.joined(reads)


def flushed(config: Config, params: Params, state: State) -> Array:
    """V as it would be if the shard in progress ended here, as public code ends a call (TNT-21)."""
    return _moved(config, params, state) if state.position % config.shard else state.V


def _shard(config: Config, params: Params, tokens: Tokens, state: State) -> tuple[State, Array]:
    """Tokens of one shard: the clone in progress, whole chunks side by side, a begun one."""
    T, C = tokens.k.shape[-2], config.span
    place = state.position % config.shard
    done = min(T, -place % C)
    clone, reads = state.clone, []
    if done:
        clone, y = _run(config, params, pieces.cut(tokens, 0, done), clone)
        reads.append(y)
    whole = (T - done) // C
    if whole:
        part = pieces.folded(pieces.cut(tokens, done, done + whole * C), whole)
        V = ops.broadcast_to(
            ops.expand_dims(state.V, -3), (*part.k.shape[:-2], *state.V.shape[-2:])
        )
        clone, y = _run(config, params, part, _cloned(config, V))
        clone = pieces.last_of(clone, len(part.k.shape) - 3)
        reads.append(pieces.unfolded(y))
        done += whole * C
    if done < T:
        clone, y = _run(config, params, pieces.cut(tokens, done, T), _cloned(config, state.V))
        reads.append(y)
    y = pieces.joined(reads)
    kept = state.reads if config.summary == "last_state" else pieces.joined([state.reads, y])
    state = State.trusted(position=state.position + T, V=state.V, clone=clone, reads=kept)
    if state.position % config.shard == 0:
        V = _moved(config, params, state)
        state = state.replaced(V=V, clone=_cloned(config, V), reads=kept[..., :0, :])
    return state, y


def _cloned(config: Config, V: Array) -> Any:
    """A fresh memory at V: no momentum, an empty window (TNT-20)."""
    V = ops.stop_gradient(V) if config.clone_gradient == "stop" else V
    return config.rule.start(config.run_config, V.shape[:-2], dtype=V.dtype, M=V)


def _moved(config: Config, params: Params, state: State) -> Array:
    """V at the end of a shard: 0.95 V + s s^T, or the last clone (TNT-21).

    mean        s = sum_t y_t / n
    attention   s = sum_t a_t y_t,    a = softmax(y_t . W_summary mean_i V_i / sqrt(d_out))
    """
    if config.summary == "last_state":
        return state.clone.M
    if config.summary == "mean":
        s = ops.sum(state.reads, axis=-2) / state.reads.shape[-2]
    else:
        row = ops.sum(state.V, axis=-2) / state.V.shape[-2]  # (..., d_phi)
        query = (params.W_summary @ ops.expand_dims(row, -1))[..., 0]
        scores = (state.reads @ ops.expand_dims(query, -1))[..., 0]
        weights = ops.softmax(scores / math.sqrt(query.shape[-1]))
        s = ops.sum(ops.expand_dims(weights, -1) * state.reads, axis=-2)
    return config.retention * state.V + ops.outer(s, s)


def _run(config: Config, params: Params, tokens: Tokens, state: Any) -> tuple[Any, Array]:
    convention = config.run_config.convention
    form = config.form or next(
        each for each in PREFERRED if support.refusal(config.rule.name, convention, each) is None
    )
    found: tuple[Any, Array] = forms.run(
        config.rule,
        config.run_config,
        tokens,
        state,
        form=form,
        chunk=config.chunk,
        phi=params.phi,
    )
    return found
