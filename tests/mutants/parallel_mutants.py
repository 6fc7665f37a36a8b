"""Mutants of the parallel forms, and other ways to compute the same; `mutants.py` joins them to its
lists.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from atlas_ref.engine import segment
from tests.mutants.mutant import Change, Edited, Mutant, constant

_TARGETS = "tests/mutants/test_parallel_targets.py"


def values(*names: str) -> tuple[str, ...]:
    return tuple(f"{_TARGETS}::test_values[{name}]" for name in names)


def gradients(*names: str) -> tuple[str, ...]:
    return tuple(f"{_TARGETS}::test_gradient[{name}]" for name in names)


def target(*names: str) -> tuple[str, ...]:
    return tuple(f"{_TARGETS}::test_{name}" for name in names)


# -- replacements that are not an edit -------------------------------------------------------------


def _columns_not_shifted(rows: Any) -> Any:
    return lambda gates, columns, stride: rows(gates, columns, 0)


def _window_of_the_sequence_before(packed: Any) -> Any:
    """Keys, values and weights as if the call were one sequence; states start anew."""

    def mutated(rule: Any, config: Any, tokens: Any, state: Any, phi: Any) -> Any:
        (_, whole), first = next(packed(rule, config, tokens.replaced(reset=None), state, phi)), 0
        whole = whole.whole()
        for anew, one in packed(rule, config, tokens, state, phi):
            one = one.whole()
            own, seen = (
                slice(first, first + one.length),
                slice(first, first + one.length + one.window - 1),
            )
            yield (
                anew,
                one._replace(
                    keys=whole.keys[..., seen, :],
                    values=whole.values[..., seen, :],
                    weights=whole.weights[..., own, :],
                ),
            )
            first += one.length

    return mutated


def _last_of_odd_lengths_lost(fill: Any) -> Any:
    """A scan in which a step without a partner changes nothing."""

    def mutated(kind: Any, a: Any, b: Any, initial: Any, y: Any) -> None:
        fill(kind, a, b, initial, y)
        if len(b) % 2 and len(b) > 1:
            y[-1] = y[-2]

    return mutated


def _newton_schulz_first(block: Any) -> Any:
    """Momenta of orthogonalised gradients."""
    module = importlib.import_module(block.__module__)
    running, orthogonal = module._running, module.newton_schulz

    def mutated(config: Any, *more: Any) -> Any:
        settings = config.convention.newton_schulz_settings
        module._running = lambda S, momentum, rate_in, g: running(
            S, momentum, rate_in, orthogonal(g, settings)
        )
        module.newton_schulz = lambda S, settings: S
        return block(config, *more)

    return mutated


def _any_chunk(chunk: int | None) -> Change:
    """Evaluation in chunks of this length in place of the requested one."""
    return lambda results: (
        lambda inputs, case, *, form="sequential", chunk_=chunk, **asked: results(
            inputs, case, form=form, chunk=chunk_
        )
    )


def _twin(block: Any) -> Any:
    """A segment of groups in tape ops, without a backward by hand."""
    return lambda layouts, plain: (
        lambda inputs: segment._named(layouts[0], segment._plain(layouts, plain)(*inputs))
    )


def _one_memory_a_part(partition: Any) -> Any:
    return lambda layout, inputs: [slice(i, i + 1) for i in range(len(inputs.queries))]


def _one_memory_a_part_of_blocks(partition: Any) -> Any:
    return lambda M, tokens: [slice(i, i + 1) for i in range(len(M))]


def _poisoned(empty: Any) -> Any:
    """Work space full of NaN, since its contents are undefined."""

    def mutated(self: Any, shape: tuple[int, ...], like: Any, kind: Any = None) -> Any:
        made = empty(self, shape, like, kind)
        made[...] = np.nan
        return made

    return mutated


def _no_work_space(empty: Any) -> Any:
    return lambda self, shape, like, kind=None: np.empty(
        shape, like.dtype if kind is None else kind
    )


def _by_substitution(inverse: Any) -> Any:
    """(I + N)^{-1} row after row."""

    def mutated(strict: Any) -> Any:
        n = strict.shape[-1]
        found = np.zeros_like(strict)
        for i in range(n):
            found[..., i, i] = 1.0
            found[..., i, :i] = -(strict[..., i, None, :i] @ found[..., :i, :i])[..., 0, :]
        return found

    return mutated


def _one_after_the_other(values: Any) -> Any:
    """A scan as a loop."""

    def mutated(kind: Any, a: Any, b: Any, initial: Any) -> Any:
        y = [initial]
        for t in range(len(b)):
            y.append(kind.act(y[-1], a[t]) + b[t])
        return np.stack(y[1:])

    return mutated


# -- the list --------------------------------------------------------------------------------------

_COEFFICIENTS, _MASKED, _MASKED_BACKWARD = (
    "atlas_ref.engine.group.coefficients",
    "atlas_ref.engine.masked.forward",
    "atlas_ref.engine.masked.backward",
)
_MASKED_ROWS, _GATES_BACKWARD, _ASSOCIATIVE = (
    "atlas_ref.engine.masked.rows",
    "atlas_ref.engine.masked.gates_backward",
    "atlas_ref.engine.associative_scan",
)
_ROWS, _ROWS_BACK = (
    f"{_COEFFICIENTS}:coefficient_rows",
    f"{_COEFFICIENTS}:coefficient_rows_backward",
)
_NS, _FIRST = "atlas_ref.forms.newton_schulz_blocks", "atlas_ref.forms.momentum_then_window"
_SCAN, _ATLAS, _KERNEL = (
    "atlas_ref.forms.scan",
    "atlas_ref.forms.atlas_parallel",
    "atlas_ref.forms.kernel_steps",
)

COEFFICIENTS: tuple[Mutant, ...] = (
    Mutant(
        "newest-column-decays",
        "a write decays in the step that makes it",
        _ROWS,
        Edited("D_now += np.multiply", "D_now += r[t] * np.multiply"),
        values("frozen", "exact-titans", "exact-window"),
    ),
    Mutant(
        "newest-column-decays-plain",
        "the same without momentum",
        _ROWS,
        Edited(
            "own = D_now[..., first:]\n            own += enter[t]",
            "own = D_now[..., first:]\n            own += r[t] * enter[t]",
        ),
        values("frozen-delta", "hebbian", "exact-delta"),
    ),
    Mutant(
        "rate-out-missing",
        "the second rate is left out",
        _ROWS,
        Edited("np.multiply(X_now, b[t], out=part)", "X_now"),
        values("frozen", "exact-titans"),
    ),
    Mutant(
        "rate-out-missing-plain",
        "the same without momentum",
        f"{_COEFFICIENTS}:_entering",
        Edited("else gates.rate_in * gates.rate_out", "else gates.rate_in"),
        values("frozen-delta", "exact-delta"),
    ),
    Mutant(
        "rate-in-twice",
        "the first rate is applied twice",
        f"{_COEFFICIENTS}:_entering",
        Edited("rate = gates.rate_in if", "rate = gates.rate_in * gates.rate_in if"),
        values("frozen", "exact-titans"),
    ),
    Mutant(
        "momentum-not-carried",
        "momentum holds the newest gradient alone",
        _ROWS,
        Edited("np.multiply(X[t, ..., :seen], m[t], out", "np.multiply(X[t, ..., :seen], 0.0, out"),
        values("frozen", "zero", "exact-titans"),
    ),
    Mutant(
        "momentum-of-the-token-before",
        "the momentum gate is one token late",
        _ROWS,
        Edited(
            "np.multiply(X[t, ..., :seen], m[t], out",
            "np.multiply(X[t, ..., :seen], m[max(t - 1, 0)], out",
        ),
        values("frozen", "exact-titans"),
    ),
    Mutant(
        "retain-of-the-token-before",
        "the retain gate is one token late",
        _ROWS,
        Edited(
            "np.multiply(D[t, ..., :seen], r[t], out",
            "np.multiply(D[t, ..., :seen], r[max(t - 1, 0)], out",
        ),
        values("frozen", "exact-titans"),
    ),
    Mutant(
        "columns-not-shifted",
        "every token of a chunk writes into the first window's columns",
        f"{_MASKED}:coefficient_rows",
        _columns_not_shifted,
        values("frozen", "hebbian", "exact-window"),
    ),
    Mutant(
        "weights-by-age",
        "weights by lag are read from the oldest",
        f"{_COEFFICIENTS}:gate_rows",
        Edited("ops.flip(weights, -1)", "weights"),
        values("frozen", "exact-window"),
    ),
    Mutant(
        "gates-of-another-chunk",
        "gates of the chunks of a group are swapped",
        f"{_COEFFICIENTS}:gate_rows",
        Edited(
            "if value is None else rows(value, (most,))",
            "if value is None else ops.flip(rows(value, (most,)), 2)",
        ),
        values("frozen", "frozen-delta", "exact-titans", "exact-window"),
    ),
    Mutant(
        "gates-of-rows-averaged",
        "gates per output dimension are read as their mean",
        f"{_COEFFICIENTS}:gate_rows",
        Edited(
            "    def gate(value: Array) -> Array:\n",
            "    def gate(value: Array) -> Array:\n"
            "        value = None if value is None else 0.0 * value + ops.sum(value, axis=-1, "
            "keepdims=True) / value.shape[-1]\n",
        ),
        values("frozen-rows", "frozen-mixed", "exact-rows"),
    ),
    Mutant(
        "dD-not-carried",
        "no gradient through retain to the rows before",
        _ROWS_BACK,
        Edited(
            "out=into[t][seen])\n                dD[t][seen] += r[t] * dD[t + 1][seen]",
            "out=into[t][seen])",
        ),
        gradients(
            "frozen-retain",
            "frozen-step_size",
            "exact-titans-retain",
            "exact-window-window_weights",
        ),
    ),
    Mutant(
        "dD-not-carried-plain",
        "the same without momentum",
        _ROWS_BACK,
        Edited(
            "dD[t][seen] += r[t] * dD[t + 1][seen]\n        into = dD", "pass\n        into = dD"
        ),
        gradients("frozen-delta-retain", "exact-delta-step_size"),
    ),
    Mutant(
        "dX-not-carried",
        "no gradient through momentum to the rows before",
        _ROWS_BACK,
        Edited("np.multiply(into[t + 1][seen], m[t], out=into[t][seen])", "into[t][seen] = 0.0"),
        gradients("frozen-momentum", "frozen-window_weights", "exact-titans-step_size"),
    ),
    Mutant(
        "dX-last-ignored",
        "no gradient from the momentum at the end of a chunk to its coefficients",
        _ROWS_BACK,
        Edited("into[C] = dX_last", "into[C] = 0.0"),
        gradients("frozen-momentum", "exact-titans-momentum"),
    ),
    Mutant(
        "dX-misses-rate-out",
        "the memory's coefficients ask of the momentum's without the second rate",
        _ROWS_BACK,
        Edited("+= b[t] * dD[t + 1][now]", "+= dD[t + 1][now]"),
        gradients("frozen-step_size", "exact-titans-step_size"),
    ),
    Mutant(
        "dw-not-scaled",
        "the weights' gradient without the rate",
        _ROWS_BACK,
        Edited("d_enter * gates.rate_in[..., None]", "d_enter"),
        gradients("frozen-window_weights", "exact-window-window_weights"),
    ),
    Mutant(
        "dw-of-the-first-row",
        "the weights' gradient is not summed over output dimensions",
        _ROWS_BACK,
        Edited(
            "np.sum(d_enter * gates.rate_in[..., None], axis=-2, keepdims=True)",
            "(d_enter * gates.rate_in[..., None])[..., :1, :]",
        ),
        gradients("frozen-rows-window_weights"),
    ),
    Mutant(
        "dw-plain-not-scaled",
        "the weights' gradient without the rates, without momentum",
        _ROWS_BACK,
        Edited("d_enter * rate[..., None]", "d_enter"),
        target("a_block_of_shared_weights_has_their_gradient[None]"),
    ),
    Mutant(
        "dw-not-summed",
        "weights shared by all leading axes get the gradient of the first",
        f"{_GATES_BACKWARD}:_weights",
        Edited("flat.sum(axis=0, keepdims=True)", "flat[:1]"),
        target(
            "a_block_of_shared_weights_has_their_gradient[None]",
            "a_block_of_shared_weights_has_their_gradient[0.5]",
        ),
    ),
    Mutant(
        "dw-by-age",
        "the weights' gradient in the order of columns",
        f"{_GATES_BACKWARD}:_weights",
        Edited("[..., ::-1]", "[..., :]"),
        gradients("frozen-window_weights", "exact-window-window_weights"),
    ),
    Mutant(
        "db-from-the-row-before",
        "the second rate's gradient meets the momentum before its token",
        _ROWS_BACK,
        Edited(
            "_row_dots(dD[1:], X[1:], stride, c, nb, 1)",
            "_row_dots(dD[1:], X[:-1], stride, c, nb, 0)",
        ),
        gradients("frozen-step_size_memory", "frozen-titans-step_size_memory"),
    ),
    Mutant(
        "dr-from-the-row-after",
        "retain's gradient meets the memory after its token",
        _ROWS_BACK,
        Edited(
            "_row_dots(dD[1:], D[:-1], stride, c, nb, 0)",
            "_row_dots(dD[1:], D[1:], stride, c, nb, 1)",
        ),
        gradients("frozen-retain", "frozen-delta-retain", "exact-titans-retain"),
    ),
    Mutant(
        "dr-of-the-first-row",
        "a gate for all rows gets the gradient of the first",
        f"{_GATES_BACKWARD}:_per_token",
        Edited("flat.sum(axis=-1, keepdims=True)", "flat[..., :1]"),
        gradients("frozen-mixed-momentum"),
    ),
)

DUAL: tuple[Mutant, ...] = (
    Mutant(
        "read-one-row-late",
        "every token reads the memory before its write",
        f"{_MASKED_ROWS}:read_rows",
        Edited('D[1:] if layout.read == "after" else D[:-1]', "D[:-1]"),
        values("frozen", "zero", "exact-titans"),
    ),
    Mutant(
        "read-one-row-early",
        "read before sees the write of its token",
        f"{_MASKED_ROWS}:read_rows",
        Edited('D[1:] if layout.read == "after" else D[:-1]', "D[1:]"),
        values("frozen-groups", "exact-window-decay"),
    ),
    Mutant(
        "scores-transposed",
        "queries and keys change places",
        f"{_MASKED}:forward",
        Edited(
            "np.matmul(queries, phi_T, out=scores)",
            "np.matmul(phi, queries.swapaxes(-1, -2), out=scores)",
        ),
        values("frozen-titans-in-rows", "hebbian-in-rows"),
    ),
    Mutant(
        "mask-missing",
        "scores are read without their coefficients",
        f"{_MASKED}:forward",
        Edited(
            "read_rows(layout, rows.D)[..., nb:], scores",
            "(read_rows(layout, rows.D)[..., nb:] != 0.0), scores",
        ),
        values("frozen-in-rows"),
    ),
    Mutant(
        "end-memory-not-decayed",
        "the memory at the end of a chunk without c_C",
        f"{_MASKED}:kept",
        Edited("wide(D[-1, ..., 0]), wide(X", "wide(np.ones_like(D[-1, ..., 0])), wide(X"),
        values("frozen-in-rows"),
    ),
    Mutant(
        "end-memory-not-decayed-plain",
        "the same without momentum",
        f"{_MASKED}:kept",
        Edited("Kept(wide(D[-1, ..., 0]), None)", "Kept(wide(np.ones_like(D[-1, ..., 0])), None)"),
        values("frozen-delta-in-rows", "hebbian-in-rows"),
    ),
    Mutant(
        "end-momentum-dropped",
        "the momentum before a chunk does not reach that after it: n_C",
        f"{_MASKED}:kept",
        Edited("wide(X[-1, ..., 1])", "wide(0.0 * X[-1, ..., 1])"),
        values("frozen-in-rows", "zero-in-rows"),
    ),
    Mutant(
        "end-memory-misses-momentum",
        "the momentum before a chunk does not reach the memory after it: f_C",
        f"{_MASKED}:pass_on",
        Edited("if keep.across is not None:", "if False:"),
        values("frozen-in-rows", "zero-in-rows"),
    ),
    Mutant(
        "reads-miss-momentum",
        "reads do not see the momentum before the chunk: f_t",
        f"{_MASKED}:_read",
        Edited(
            "combined(group.asked, factors, out=y)",
            "combined(group.asked, factors * (np.arange(group.gates.bases) == 0), out=y)",
        ),
        values("frozen-in-rows", "zero-in-rows"),
    ),
    Mutant(
        "X-for-D",
        "the memory at the end is left what the momentum is",
        f"{_MASKED}:left_factors",
        Edited("[-group.D[-1, ..., nb:], group.X[-1", "[-group.X[-1, ..., nb:], group.X[-1"),
        values("frozen-in-rows"),
    ),
    Mutant(
        "reference-not-refreshed",
        "every span is judged under the memory at the start of the group",
        f"{_MASKED}:_frozen",
        Edited(
            "if layout.refresh[first] else reference",
            "if layout.refresh[first] and first == 0 else reference",
        ),
        values("frozen-in-rows", "frozen-reads-in-rows"),
    ),
    Mutant(
        "reference-refreshed-at-every-chunk",
        "a chunk starts a span",
        "atlas_ref.forms.chunks:grouped",
        Edited("begins, *[False] * (taken - 1)", "*[True] * taken"),
        values("frozen", "frozen-groups", "frozen-momentum-first", "ns"),
    ),
    Mutant(
        "chunk-crosses-span",
        "a span may start inside a chunk",
        "atlas_ref.forms.chunks:grouped",
        Edited("np.union1d(0, np.flatnonzero(refresh))", "np.array([0])"),
        values("frozen-groups", "frozen-titans", "ns", "exact-reads"),
    ),
    Mutant(
        "reference-lost-between-groups",
        "a group in the middle of a span takes the memory before it for reference",
        "atlas_ref.engine.segment:_run",
        Edited(
            "_part(layout, inputs, tokens, end, _behind",
            "_part(layout, inputs, tokens, end._replace(reference=end.M), _behind",
        ),
        values("frozen-groups"),
    ),
    Mutant(
        "chunk-recomputes-for-carry",
        "old window tokens are judged under the new reference",
        f"{_MASKED}:_frozen",
        Edited("E[:, k, :count] = arrivals[:, k * C : k * C + count]", "pass"),
        values("frozen-carry-in-rows", "frozen-carry-groups-in-rows"),
    ),
    Mutant(
        "chunk-carries-for-recompute",
        "old window tokens keep the residual of their arrival",
        f"{_MASKED}:_frozen",
        Edited(
            "    if layout.carry:\n        arrivals = np.concatenate(\n            [inputs.residuals,",
            (
                "    if layout.keeps_reference:\n        arrivals = np.concatenate(\n"
                "            [0.0 * inputs.values[:, :h],"
            ),
        ),
        values("frozen-in-rows", "frozen-long-in-rows"),
    ),
    Mutant(
        "arrival-one-row-off",
        "an old window token gets the residual of its neighbour",
        f"{_MASKED}:_frozen",
        Edited(
            "= arrivals[:, k * C : k * C + count]", "= arrivals[:, k * C + 1 : k * C + count + 1]"
        ),
        values("frozen-carry-in-rows", "frozen-carry-groups-in-rows"),
    ),
    Mutant(
        "arrivals-handed-on-one-off",
        "the residuals that a group hands on are one token old",
        f"{_MASKED}:end",
        Edited(
            "group.arrivals[:, -layout.window :]",
            "np.roll(group.arrivals, 1, axis=1)[:, -layout.window :]",
        ),
        values("frozen-carry-in-rows", "frozen-carry-groups-in-rows"),
    ),
    Mutant(
        "arrivals-lost-between-groups",
        "a group gets the residuals of the first",
        "atlas_ref.engine.segment:_run",
        Edited(
            "_part(layout, inputs, tokens, end, _behind",
            "_part(layout, inputs, tokens, end._replace(residuals=inputs.residuals), _behind",
        ),
        values("frozen-carry-groups"),
    ),
    Mutant(
        "history-behind-its-tokens",
        "the tokens of a group stand in front of their history",
        "atlas_ref.engine.segment:_behind",
        Edited("[earlier, own]", "[own, earlier]"),
        values("frozen", "frozen-in-rows"),
    ),
    Mutant(
        "group-without-history",
        "the windows of a group do not see the tokens of the group before",
        "atlas_ref.engine.segment:_part",
        Edited(
            "own[:, tokens.start - h : tokens.stop]\n",
            "own[:, np.r_[[-1] * h, tokens]]\n",
        ),
        values("frozen-groups"),
    ),
    Mutant(
        "history-without-gradient",
        "tokens before the call get no gradient from windows that reach back to them",
        "atlas_ref.engine.segment:_add_history",
        Edited("earlier[:, tokens.start :] += room[:, :h]", "pass"),
        gradients("frozen-long-window_k"),
    ),
    Mutant(
        "first-group-without-gradient",
        "the tokens of a group behind the history get no gradient for their keys and values",
        "atlas_ref.engine.segment:_add_history",
        Edited("own[:, : tokens.stop] += room[:, h:]", "pass"),
        gradients("frozen-carry-k", "frozen-v"),
    ),
    Mutant(
        "threads-swap-memories",
        "the ends that threads reached are put together in another order",
        "atlas_ref.engine.dispatch:_rejoined",
        Edited("zip(*ends, strict=True)", "zip(*ends[::-1], strict=True)"),
        target("memories_shared_out_over_threads_change_no_bit[2]"),
    ),
    Mutant(
        "group-starts-a-span",
        "a group counts all tokens before it as those of older spans",
        "atlas_ref.forms.chunked:run",
        Edited("position=int(sequence.position[group.first])", "position=0"),
        values("frozen-carry-resumed", "frozen-before-error-resumed"),
    ),
    Mutant(
        "decayed-rate-undecayed",
        "a frozen reference does not decay where predictions enter",
        "atlas_ref.forms.before_error:_span",
        Edited("rate_in=inputs.rate_in * inputs.retain", "rate_in=inputs.rate_in"),
        values("frozen-before-error"),
    ),
    Mutant(
        "decayed-values-at-decayed-rate",
        "values decay with the reference",
        "atlas_ref.forms.before_error:_span",
        Edited(
            "own = inputs._replace(",
            "own = inputs._replace(rate_in=inputs.rate_in * inputs.retain, ",
        ),
        values("frozen-before-error"),
    ),
    Mutant(
        "decayed-start-counted-twice",
        "both recurrences begin with the memory before the span",
        "atlas_ref.forms.before_error:_span",
        Edited("M=nothing, ", ""),
        values("frozen-before-error"),
    ),
    Mutant(
        "decayed-residual-predicted-again",
        "a column that carries its residual is predicted as well",
        "atlas_ref.forms.before_error:_beside_predictions",
        Edited("inside, inputs.weights, 0.0", "True, inputs.weights, 0.0"),
        values("frozen-before-error"),
    ),
    Mutant(
        "decayed-residual-sign",
        "a residual of an older span counts with the other sign",
        "atlas_ref.forms.before_error:_beside_predictions",
        Edited("-inputs.residuals", "inputs.residuals"),
        values("frozen-before-error"),
    ),
    Mutant(
        "decayed-arrival-undecayed",
        "the residual of arrival is taken under the reference as it is",
        "atlas_ref.forms.before_error:_arrived",
        Edited("inputs.retain * ops.matmul(", "ops.matmul("),
        values("frozen-before-error"),
    ),
    Mutant(
        "decayed-span-goes-on",
        "the next span of a group keeps the reference",
        "atlas_ref.forms.before_error:_spans",
        Edited("if part.refresh[0] and spans[-1]:", "if False:"),
        values("frozen-before-error"),
    ),
    Mutant(
        "chunks-of-keys-shifted",
        "a chunk begins one token early",
        f"{_MASKED_ROWS}:spread",
        Edited("(across, C * down, down, right)", "(across, (C - 1) * down, down, right)"),
        values("frozen", "hebbian", "zero"),
    ),
    Mutant(
        "no-system",
        "residuals of a chunk do not see each other",
        f"{_MASKED}:_running",
        Edited("mix(group.inverse[:, k], rest, out=E[:, k])", "E[:, k] = rest"),
        values("exact-rows"),
    ),
    Mutant(
        "system-without-decay",
        "writes reach later residuals of the chunk undecayed",
        f"{_MASKED}:forward",
        Edited(
            "before_rows(layout, rows.gates, rows.D)",
            (
                "before_rows(layout, rows.gates, rows_of(layout, "
                "inputs._replace(retain=np.ones_like(inputs.retain))).D)"
            ),
        ),
        values("exact-rows"),
    ),
    Mutant(
        "system-one-row-late",
        "a residual sees its own write",
        f"{_MASKED_ROWS}:before_rows",
        Edited("else D[:-1]\n", "else D[1:]\n"),
        values("exact-titans", "exact-window"),
    ),
    Mutant(
        "before-error-missing",
        "the memory does not decay before the error",
        f"{_MASKED_ROWS}:before_rows",
        Edited("if layout.before_error else", "if False else"),
        values("exact-decay", "exact-window-decay", "exact-rows"),
    ),
    Mutant(
        "residual-misses-momentum",
        "the momentum before the chunk is left out of residuals",
        f"{_MASKED}:_running",
        Edited(
            "out=answered[:, k]), before[:, k])",
            "out=answered[:, k]), before[:, k] * (np.arange(before.shape[-1]) == 0))",
        ),
        values("exact-rows"),
    ),
    Mutant(
        "residual-misses-value",
        "a running residual without its value",
        f"{_MASKED}:_running",
        Edited("rest -= values[:, k]", "rest -= 0.0 * values[:, k]"),
        values("exact-rows"),
    ),
    Mutant(
        "reference-read-not-refreshed",
        "reads of every span meet the memory at the start of the call",
        f"{_MASKED}:_running",
        Edited(
            "if layout.refresh[k] else reference", "if layout.refresh[k] and k == 0 else reference"
        ),
        values("exact-rows-reads"),
    ),
    Mutant(
        "level-skipped",
        "the inverse joins halves but not quarters",
        "atlas_ref.engine.group.triangular:invert_unit_lower",
        Edited("half *= 2", "half *= 4"),
        target("an_inverse_by_halves_is_that_by_substitution[40]"),
    ),
    Mutant(
        "halves-added",
        "the lower block of an inverse has the wrong sign",
        "atlas_ref.engine.group.triangular:invert_unit_lower",
        Edited("negated(np.matmul(second,", "np.positive(np.matmul(second,"),
        values("exact-long") + target("an_inverse_by_halves_is_that_by_substitution[20]"),
    ),
    Mutant(
        "halves-swapped",
        "the halves of an inverse change places",
        "atlas_ref.engine.group.triangular:invert_unit_lower",
        Edited(
            "np.matmul(second, np.matmul(below, first))",
            "np.matmul(first, np.matmul(below, second))",
        ),
        values("exact-long") + target("an_inverse_by_halves_is_that_by_substitution[20]"),
    ),
    Mutant(
        "substitution-adds",
        "a row adds what those before it say",
        "atlas_ref.engine.group.triangular:_substituted",
        Edited("-= blocks", "+= blocks"),
        values("exact-titans", "exact-delta")
        + target("an_inverse_by_halves_is_that_by_substitution[3]"),
    ),
    Mutant(
        "substitution-misses-the-first-row",
        "rows do not see the first",
        "atlas_ref.engine.group.triangular:_substituted",
        Edited("blocks[j + 1 :, j, None] *", "blocks[j + 1 :, j, None] * (j > 0) *"),
        values("exact-titans", "exact-window")
        + target("an_inverse_by_halves_is_that_by_substitution[3]"),
    ),
)

#: Where all columns of a memory share a gate, one matrix and one number stand for those of each.
SHARED: tuple[Mutant, ...] = (
    Mutant(
        "shared-reads-reversed",
        "tokens read the writes that others of the chunk see",
        f"{_MASKED_ROWS}:mix",
        Edited(
            "scratch.product(A[..., 0, :, :], E)\n            if",
            "scratch.product(A[..., 0, ::-1, :], E)\n            if",
        ),
        values("frozen", "exact-titans"),
    ),
    Mutant(
        "shared-system-without-gradient",
        "scores and the system get no gradient",
        f"{_MASKED_ROWS}:against",
        Edited(
            "scratch.product(g, scratch.transposed(E))[..., None, :, :]",
            "0.0 * scratch.product(g, scratch.transposed(E))[..., None, :, :]",
        ),
        gradients("exact-titans-k", "frozen-k"),
    ),
    Mutant(
        "shared-factors-without-gradient",
        "c and f get nothing from reads and predictions",
        f"{_MASKED_ROWS}:factor_cotangents",
        Edited("row_dots(g, part)[..., None]", "0.0 * row_dots(g, part)[..., None]"),
        gradients("exact-titans-retain", "frozen-retain"),
    ),
    Mutant(
        "shared-gate-of-one-column",
        "a gate gets the gradient of one column of the state after the chunk",
        f"{_MASKED_BACKWARD}:_through_ends",
        Edited("found.sum(axis=-1, keepdims=True)", "found[..., :1]"),
        gradients("exact-titans-retain", "exact-delta-retain"),
    ),
    Mutant(
        "shared-writes-miss-the-end",
        "coefficients get nothing from the state after their chunk",
        f"{_MASKED_BACKWARD}:_through_ends",
        Edited("row_dots(a, b)[..., None, :]", "0.0 * row_dots(a, b)[..., None, :]"),
        gradients("exact-titans-step_size", "frozen-step_size"),
    ),
)

DUAL_BACKWARD: tuple[Mutant, ...] = (
    Mutant(
        "inverse-not-transposed",
        "the backward solves the system of the forward",
        f"{_MASKED_BACKWARD}:_through_running",
        Edited("group.inverse.swapaxes(-1, -2)", "group.inverse"),
        gradients("exact-rows-M0", "exact-rows-k", "exact-rows-v"),
    ),
    Mutant(
        "R-bar-not-to-values",
        "values get nothing from running residuals",
        f"{_GATES_BACKWARD}:through_rows",
        Edited("gathered(layout, -dR, into.values)", "pass"),
        gradients("exact-rows-v"),
    ),
    Mutant(
        "R-bar-not-to-keys",
        "keys get nothing from the predictions of the state",
        f"{_GATES_BACKWARD}:through_rows",
        Edited(
            "sums.phi[...] += scratch.product(out, scratch.transposed(group.states[:, :-1]))",
            "pass",
        ),
        gradients("exact-rows-k"),
    ),
    Mutant(
        "R-bar-not-to-state",
        "the state before a chunk gets nothing from its residuals",
        f"{_MASKED_BACKWARD}:_through_running",
        Edited(
            (
                "dZ += scratch.product(group.phi[:, k].swapaxes(-1, -2), spread_out(dR, "
                "before[:, k]))"
            ),
            "pass",
        ),
        gradients("exact-rows-M0", "exact-rows-S0"),
    ),
    Mutant(
        "half-of-the-products-of-keys",
        "a product of two keys has a gradient for one",
        f"{_GATES_BACKWARD}:through_rows",
        Edited("d_keyed + d_keyed.swapaxes(-1, -2)", "d_keyed"),
        gradients("exact-rows-k"),
    ),
    Mutant(
        "dN-not-to-coefficients",
        "coefficients get nothing from the system",
        f"{_GATES_BACKWARD}:through_rows",
        Edited("np.multiply(dN, group.keyed[:, :, None], out=d_before[..., nb:])", "pass"),
        gradients("exact-rows-retain", "exact-rows-step_size"),
    ),
    Mutant(
        "before-error-no-gradient",
        "the decay before the error has no gradient of its own",
        f"{_GATES_BACKWARD}:through_before",
        Edited("(d_before * rows.D[:-1]).sum(axis=-1)", "0.0"),
        gradients("exact-decay-retain", "exact-rows-retain"),
    ),
    Mutant(
        "one-lag-of-the-system",
        "coefficients get the system's gradient of the oldest lag",
        f"{_GATES_BACKWARD}:through_before",
        Edited(".sum(\n            axis=-2\n        )", "[..., 0, :]"),
        gradients("exact-window-retain", "exact-window-window_weights"),
    ),
    Mutant(
        "dM-not-carried-between-chunks",
        "no gradient from the memory after a chunk to that before it",
        f"{_MASKED_BACKWARD}:_hand_back",
        Edited(
            "into += scratch.times(dZ, keep.own[:, k])",
            (
                "into[..., keep.own.shape[-1] // 2 :] += scratch.times(dZ, keep.own[:, k])[..., "
                "keep.own.shape[-1] // 2 :]"
            ),
        ),
        gradients("frozen-in-rows-M0"),
    ),
    Mutant(
        "dS-not-carried-between-chunks",
        "no gradient from the momentum after a chunk to that before it",
        f"{_MASKED_BACKWARD}:_hand_back",
        Edited(
            "into += scratch.times(dZ, keep.own[:, k])",
            (
                "into[..., : keep.own.shape[-1] // 2] += scratch.times(dZ, keep.own[:, k])[..., : "
                "keep.own.shape[-1] // 2]"
            ),
        ),
        gradients("frozen-in-rows-S0"),
    ),
    Mutant(
        "dS-misses-the-memory",
        "no gradient from the memory after a chunk to the momentum before it",
        f"{_MASKED_BACKWARD}:_hand_back",
        Edited("if keep.across is not None:", "if False:"),
        gradients("frozen-in-rows-S0"),
    ),
    Mutant(
        "dM-ref-not-handed-back",
        "the reference's gradient does not reach the memory at the span's start",
        f"{_MASKED_BACKWARD}:_through_frozen",
        Edited("dZ[..., :o] += d_reference", "pass"),
        gradients("frozen-in-rows-M0", "frozen-in-rows-k", "frozen-reads-in-rows-M0"),
    ),
    Mutant(
        "dM-ref-of-every-span",
        "the reference's gradient is handed on to the spans before",
        f"{_MASKED_BACKWARD}:_through_frozen",
        Edited("d_reference = np.zeros_like(d_reference)", "pass"),
        gradients("frozen-in-rows-M0", "frozen-in-rows-k"),
    ),
    Mutant(
        "dM-ref-read-dropped",
        "reads of the reference give it no gradient",
        f"{_MASKED_BACKWARD}:_through_frozen",
        Edited("if sums.references is not None:", "if False:"),
        gradients("frozen-reads-in-rows-M0"),
    ),
    Mutant(
        "dM-ref-read-dropped-running",
        "the same under the running reference",
        f"{_MASKED_BACKWARD}:_through_running",
        Edited("if sums.references is not None:", "if False:"),
        gradients("exact-rows-reads-M0"),
    ),
    Mutant(
        "reference-not-to-keys",
        "keys get nothing from the reference's predictions",
        f"{_MASKED_BACKWARD}:_through_frozen",
        Edited(
            (
                "sums.phi[:, chunks] += scratch.product(\n"
                "                    dE, scratch.transposed(group.references[:, first])[:, None]\n"
                "                )"
            ),
            "pass",
        ),
        gradients("frozen-in-rows-k", "frozen-titans-in-rows-k"),
    ),
    Mutant(
        "E-bar-misses-the-end",
        "residuals get nothing from the states after their chunk",
        f"{_MASKED_BACKWARD}:_through_frozen",
        Edited("_add_from_ends(F[:, chunks], left[:, chunks], sums.E[:, chunks])", "pass"),
        gradients("frozen-in-rows-v", "frozen-in-rows-k", "frozen-titans-in-rows-k"),
    ),
    Mutant(
        "E-bar-misses-the-end-running",
        "the same under the running reference",
        f"{_MASKED_BACKWARD}:_through_running",
        Edited("_add_from_ends(F[:, k], left[:, k], dR)", "pass"),
        gradients("exact-rows-v"),
    ),
    Mutant(
        "E-bar-misses-the-reads",
        "residuals get nothing from the reads of their chunk",
        f"{_MASKED_BACKWARD}:_through_scores",
        Edited("negated(_mixed_back(group.A, g), out=sums.E)", "pass"),
        gradients("frozen-in-rows-v"),
    ),
    Mutant(
        "coefficients-miss-the-end",
        "coefficients get nothing from the memory after their chunk",
        f"{_MASKED_BACKWARD}:_through_ends",
        Edited("last[..., nb:] -= by_column(group.E, F[..., :o])", "pass"),
        gradients("frozen-in-rows-retain", "frozen-in-rows-step_size"),
    ),
    Mutant(
        "c-misses-the-end",
        "c_C gets nothing from the memory after the chunk",
        f"{_MASKED_BACKWARD}:_through_ends",
        Edited("last[..., 0] += by_gate(ends[..., :o], states[..., :o])", "pass"),
        gradients("frozen-in-rows-retain", "frozen-delta-in-rows-retain"),
    ),
    Mutant(
        "f-misses-the-end",
        "f_C gets nothing from the memory after the chunk",
        f"{_MASKED_BACKWARD}:_through_ends",
        Edited("last[..., 1] -= by_gate(ends[..., :o], states[..., o:])", "pass"),
        gradients("frozen-in-rows-momentum"),
    ),
    Mutant(
        "keys-miss-the-end",
        "keys get nothing from the states after their chunk",
        f"{_MASKED_BACKWARD}:_through_ends",
        Edited("sums.phi[...] += scratch.product(group.scaled, scratch.transposed(ends))", "pass"),
        gradients("frozen-in-rows-k"),
    ),
    Mutant(
        "scores-miss-their-mask",
        "scores get a gradient without their coefficients",
        f"{_MASKED_BACKWARD}:_through_scores",
        Edited("dA *= coefficients[..., nb:]", "pass"),
        gradients("frozen-in-rows-q", "frozen-in-rows-k"),
    ),
    Mutant(
        "c-misses-the-reads",
        "c_t and f_t get nothing from reads",
        f"{_MASKED_BACKWARD}:_through_scores",
        Edited("factor_cotangents(g, group.asked, np.moveaxis(rows[..., :nb], -3, -2))", "pass"),
        gradients("frozen-in-rows-retain", "frozen-delta-in-rows-retain"),
    ),
    Mutant(
        "residual-of-arrival-dropped",
        "stored residuals get no gradient from old window tokens",
        f"{_MASKED_BACKWARD}:_through_frozen",
        Edited("arrivals[:, k * C : k * C + count] += sums.E[:, k, :count]", "pass"),
        gradients(
            "frozen-carry-in-rows-k",
            "frozen-carry-in-rows-window_residual",
            "frozen-carry-groups-in-rows-window_residual",
        ),
    ),
    Mutant(
        "residual-of-arrival-twice",
        "old window tokens give their gradient to the reference too",
        f"{_MASKED_BACKWARD}:_through_frozen",
        Edited("sums.E[:, k, :count] = 0.0", "pass"),
        gradients("frozen-carry-in-rows-k", "frozen-carry-in-rows-M0"),
    ),
    Mutant(
        "arrivals-handed-on-no-gradient",
        "residuals that a group hands on give it no gradient",
        f"{_MASKED_BACKWARD}:_through_frozen",
        Edited("arrivals[:, -layout.window :] += cotangents.residuals", "pass"),
        gradients("frozen-carry-groups-in-rows-v"),
    ),
    Mutant(
        "gather-one-chunk",
        "a window longer than a chunk gathers the columns of one chunk",
        f"{_MASKED_ROWS}:gathered",
        Edited(
            "rows[:, k * C : k * C + h] += columns[:, k, :h]",
            "rows[:, k * C + h - C : k * C + h] += columns[:, k, h - C : h]",
        ),
        gradients("frozen-long-k", "frozen-long-v", "frozen-long-window_k"),
    ),
    Mutant(
        "gather-overwrites",
        "a token in two chunks' windows gets the gradient of the later",
        f"{_MASKED_ROWS}:gathered",
        Edited(
            "rows[:, k * C : k * C + h] += columns[:, k, :h]",
            "rows[:, k * C : k * C + h] = columns[:, k, :h]",
        ),
        gradients("frozen-long-k", "frozen-long-v"),
    ),
    Mutant(
        "gather-backwards",
        "a token gets the gradients of its places in the order of another",
        f"{_MASKED_ROWS}:gathered",
        Edited("each[:, :, place]", "each[:, :, c - 1 - place]"),
        gradients("exact-window-k", "exact-window-v", "exact-window-decay-window_k"),
    ),
    Mutant(
        "gather-misses-history",
        "tokens before a chunk get nothing from its windows",
        f"{_MASKED_ROWS}:gathered",
        Edited("[:, :, :h] += columns[:, :, :h]", "[:, :, :h] += 0.0"),
        gradients("frozen-k", "frozen-v"),
    ),
)

MOMENTUM_FIRST: tuple[Mutant, ...] = (
    Mutant(
        "NW-for-WN",
        "the window sums the newest momentum",
        f"{_FIRST}:_rows",
        Edited("summed[:, :, h - lag : h - lag + C]", "summed[:, :, h:]"),
        values("frozen-momentum-first", "exact-momentum-first"),
    ),
    Mutant(
        "older-momenta-left-out",
        "the window sums momenta of the chunk alone",
        f"{_FIRST}:_rows",
        Edited(
            "[_units(rate_in, (B, G, h, 2 + h + C), 2)",
            "[0.0 * _units(rate_in, (B, G, h, 2 + h + C), 2)",
        ),
        values("frozen-momentum-first", "exact-momentum-first"),
    ),
    Mutant(
        "momenta-one-token-old",
        "the next chunk gets the momenta of one token earlier",
        f"{_FIRST}:run",
        Edited("momenta[:, momenta.shape[1] - h :]", "momenta[:, :h]"),
        values("frozen-momentum-first", "exact-momentum-first"),
    ),
    Mutant(
        "momentum-first-before-error-missing",
        "the memory does not decay before the error, momenta before the window",
        f"{_FIRST}:_running",
        Edited("if retain is not None:", "if False:"),
        values("exact-momentum-first"),
    ),
)

NEWTON_SCHULZ: tuple[Mutant, ...] = (
    Mutant(
        "ns-before-momentum",
        "gradients are orthogonalised, momenta are not",
        f"{_NS}:_block",
        _newton_schulz_first,
        values("ns-momentum-first") + gradients("ns-k"),
    ),
    Mutant(
        "ns-momentum-not-carried",
        "every block starts from the momentum at the start",
        f"{_NS}:_block",
        Edited("S = own[-1]", "pass"),
        values("ns-momentum-first") + gradients("ns-momentum"),
    ),
    Mutant(
        "ns-of-the-block",
        "every token of a block moves along the sum of its momenta",
        f"{_NS}:_block",
        Edited(
            "newton_schulz(stacked, settings)",
            (
                "newton_schulz(ops.sum(stacked, axis=1, keepdims=True) + ops.zeros_like(stacked), "
                "settings)"
            ),
        ),
        values("ns-carry") + gradients("ns-k"),
    ),
    Mutant(
        "ns-left-out",
        "a block without Newton-Schulz",
        f"{_NS}:_block",
        Edited("newton_schulz(stacked, settings)", "stacked"),
        values("ns", "ns-before", "ns-nesterov", "ns-momentum-first") + gradients("ns-S0"),
    ),
    Mutant(
        "ns-nesterov-plain",
        "nesterov without the momentum's factor",
        f"{_NS}:_block",
        Edited("ops.expand_dims(momentum, -1) * stacked", "stacked"),
        values("ns-nesterov"),
    ),
    Mutant(
        "ns-boundary-off-by-one",
        "the first token of a span counts as old",
        f"{_NS}:_gradients",
        Edited("[::-1] > np", "[::-1] >= np"),
        values("ns-carry"),
    ),
    Mutant(
        "ns-momenta-of-one-token",
        "the window sums the newest momentum",
        f"{_NS}:_averaged",
        Edited("momenta.shape[1] - n - lag", "momenta.shape[1] - n"),
        values("ns-momentum-first"),
    ),
    Mutant(
        "ns-rate-out-missing",
        "the second rate is left out after Newton-Schulz",
        f"{_NS}:_reads",
        Edited("ops.expand_dims(rate_out, -1) * updates", "updates"),
        values("ns", "ns-before", "ns-nesterov") + gradients("ns-momentum"),
    ),
    Mutant(
        "ns-momentum-of-a-token-not-carried",
        "every momentum follows the one before the block",
        f"{_NS}:_running",
        Edited(
            "        S = momentum[:, t] * S + steps[:, t]\n        momenta.append(S)",
            "        momenta.append(momentum[:, t] * S + steps[:, t])",
        ),
        values("ns", "ns-before"),
    ),
    Mutant(
        "ns-rate-in-missing",
        "the first rate is left out",
        f"{_NS}:_running",
        Edited("ops.expand_dims(rate_in, -1) * gradients", "gradients"),
        values("ns", "ns-before"),
    ),
    Mutant(
        "ns-reads-after",
        "reads before a write see it",
        f"{_NS}:_reads",
        Edited('M if read == "after" else before, columns', "M, columns"),
        values("ns-before"),
    ),
    Mutant(
        "ns-memory-not-decayed",
        "every write of a block leaves out the decay",
        f"{_NS}:_reads",
        Edited("retain[:, t] * M", "M"),
        values("ns", "ns-before"),
    ),
    Mutant(
        "ns-weights-turned",
        "the weight of the newest token goes to the oldest",
        f"{_NS}:_gradients",
        Edited("ops.flip(weights, -1)", "weights"),
        values("ns-before"),
    ),
)

SCAN: tuple[Mutant, ...] = (
    Mutant(
        "scan-exclusive",
        "the scan has not seen its token",
        f"{_ASSOCIATIVE}:_scalar_forward",
        Edited("return y, (a", "return _before(y, initial), (a"),
        values("scan-hebbian", "atlas") + target("a_scan_is_its_loop[scalar-5]"),
    ),
    Mutant(
        "affine-scan-exclusive",
        "the affine scan has not seen its token",
        f"{_ASSOCIATIVE}:_affine_forward",
        Edited("return X, (A", "return _before(X, initial), (A"),
        values("scan", "scan-delta") + target("a_scan_is_its_loop[affine-5]"),
    ),
    Mutant(
        "combine-swapped",
        "the later map is applied first",
        f"{_ASSOCIATIVE}:_pairs",
        Edited("kind.act(a[first], a[then])", "kind.act(a[then], a[first])"),
        values("scan", "scan-delta", "scan-decay") + target("a_scan_is_its_loop[affine-5]"),
    ),
    Mutant(
        "combine-keeps-first",
        "what the earlier step adds is not carried through the later",
        f"{_ASSOCIATIVE}:_pairs",
        Edited("both = kind.act(b[first], a[then])", "both = b[first].copy()"),
        values("scan-delta")
        + target("a_scan_is_its_loop[scalar-5]", "a_scan_is_its_loop[affine-5]"),
    ),
    Mutant(
        "odd-length-drops-last",
        "a step without a partner is dropped",
        f"{_ASSOCIATIVE}:_fill",
        _last_of_odd_lengths_lost,
        values("scan-hebbian", "scan-delta")
        + target("a_scan_is_its_loop[scalar-5]", "a_scan_is_its_loop[affine-7]"),
    ),
    Mutant(
        "scan-from-zero",
        "the initial value is ignored",
        f"{_ASSOCIATIVE}:_values",
        Edited("_fill(kind, a, b, initial, y)", "_fill(kind, a, b, 0.0 * initial, y)"),
        values("scan", "scan-hebbian", "atlas") + target("a_scan_is_its_loop[scalar-2]"),
    ),
    Mutant(
        "backward-scan-not-shifted",
        "the backward scan takes the coefficient of its own step",
        f"{_ASSOCIATIVE}:_adjoint_values",
        Edited("kind.adjoint(a[:0:-1])", "kind.adjoint(a[-2::-1])"),
        gradients("scan-k", "scan-hebbian-retain", "atlas-k")
        + target("the_gradient_of_a_scan_is_that_of_its_loop[scalar]"),
    ),
    Mutant(
        "backward-scan-not-transposed",
        "the backward scan applies the maps of the forward",
        f"{_ASSOCIATIVE}:_adjoint_values",
        Edited("kind.adjoint(a[:0:-1])", "a[:0:-1]"),
        gradients("scan-k") + target("the_gradient_of_a_scan_is_that_of_its_loop[affine]"),
    ),
    Mutant(
        "da-from-the-step-after",
        "a coefficient's gradient meets the value after its step",
        f"{_ASSOCIATIVE}:_scalar_backward",
        Edited("adjoints * _before(y, initial)", "adjoints * y"),
        gradients("scan-hebbian-retain")
        + target("the_gradient_of_a_scan_is_that_of_its_loop[scalar]"),
    ),
    Mutant(
        "scan-momentum-not-in-memory",
        "the carried momentum does not move the memory",
        f"{_SCAN}:affine_maps",
        Edited("[-b * m * one, m * one]", "[0.0 * b * m * one, m * one]"),
        values("scan", "scan-rows"),
    ),
    Mutant(
        "scan-before-error-missing",
        "the memory does not decay before the error",
        f"{_SCAN}:affine_maps",
        Edited("r * Q if part.before_error else Q", "Q"),
        values("scan-decay"),
    ),
    Mutant(
        "scan-momentum-lost-between-chunks",
        "every chunk starts from the momentum at the start",
        f"{_SCAN}:run",
        Edited("S = None if momenta is None else momenta[..., -1, :, :]", "pass"),
        values("scan", "scan-decay", "scan-rows"),
    ),
    Mutant(
        "scan-reads-first-of-span",
        "a span reads the memory after its first token",
        f"{_SCAN}:run",
        Edited("memories[..., start - 1, :, :] if start else M", "memories[..., start, :, :]"),
        values("scan-reads"),
    ),
    Mutant(
        "windows-from-the-oldest",
        "lags are counted from the oldest token",
        f"{_SCAN}:windowed",
        Edited("rows[..., h - j : h - j + T, :]", "rows[..., j : j + T, :]"),
        values("scan", "atlas-plain"),
    ),
    Mutant(
        "scan-gates-of-rows-averaged",
        "gates per output dimension are read as their mean",
        f"{_SCAN}:affine_maps",
        Edited("ops.broadcast_to(value,", "ops.broadcast_to(value.mean(axis=-1, keepdims=True),"),
        values("scan-rows"),
    ),
)

ATLAS_PARALLEL: tuple[Mutant, ...] = (
    Mutant(
        "atlas-no-newton-schulz",
        "step 2b is left out, as printed",
        f"{_ATLAS}:directions",
        Edited("return newton_schulz(S, convention.newton_schulz_settings)", "return S"),
        values("atlas", "atlas-momentum-first"),
    ),
    Mutant(
        "atlas-no-rate",
        "step 3 without the second rate, as printed",
        f"{_ATLAS}:moved",
        Edited("-column(part.rate_out) * U", "-U"),
        values("atlas", "atlas-plain"),
    ),
    Mutant(
        "atlas-no-momentum",
        "step 2a without its scan",
        f"{_ATLAS}:accumulated",
        Edited("if part.momentum is None else scan", "if True else scan"),
        values("atlas", "atlas-plain", "atlas-momentum-first"),
    ),
    Mutant(
        "atlas-orthogonal-memory",
        "Newton-Schulz after step 3",
        f"{_ATLAS}:segment",
        Edited(
            "moved(part, directions(config, part, g, S), memory.M)",
            "directions(config, part, g, moved(part, S, memory.M))",
        ),
        values("atlas", "atlas-momentum-first"),
    ),
    Mutant(
        "atlas-cuts-windows",
        "windows end at the start of the span",
        f"{_ATLAS}:window_gradients",
        Edited(
            "ops.expand_dims(part.weights, -1) * e",
            (
                "ops.expand_dims(part.weights * (np.arange(part.window) <= part.position[:, "
                "None]), -1) * e"
            ),
        ),
        values("atlas-plain", "atlas", "atlas-carry"),
    ),
    Mutant(
        "atlas-recomputes",
        "old window tokens are judged under the new reference",
        f"{_ATLAS}:window_gradients",
        Edited("e = ops.where(older[..., None], windowed(arrived, part), e)", "pass"),
        values("atlas-carry"),
    ),
    Mutant(
        "atlas-boundary-off-by-one",
        "the first token of a span counts as old",
        f"{_ATLAS}:window_gradients",
        Edited("> part.position[:, None]", ">= part.position[:, None]"),
        values("atlas-carry"),
    ),
    Mutant(
        "atlas-reference-not-refreshed",
        "every span is judged under the memory at the start of the call",
        f"{_ATLAS}:run",
        Edited("if part.refresh[0]:", "if part.refresh[0] and first == 0:"),
        values("atlas", "atlas-plain", "atlas-delta"),
    ),
    Mutant(
        "atlas-reads-the-end-first",
        "the first token of a segment reads its last memory",
        f"{_ATLAS}:run",
        Edited("shifted(memories, before)", "shifted(memories, memory.M)"),
        values("atlas-plain"),
    ),
    Mutant(
        "atlas-momenta-reversed",
        "the window sums momenta from the oldest",
        f"{_ATLAS}:summed",
        Edited("Z[..., c - 1 - j : c - 1 - j + T, :, :]", "Z[..., j : j + T, :, :]"),
        values("atlas-momentum-first"),
    ),
    Mutant(
        "atlas-momentum-lost",
        "every segment starts from the momentum at the start",
        f"{_ATLAS}:segment",
        Edited("S=None if part.momentum is None else S[..., -1, :, :], residuals", "residuals"),
        values("atlas", "atlas-plain"),
    ),
)

KERNEL: tuple[Mutant, ...] = (
    Mutant(
        "kernel-norm-of-coefficients",
        "the norm by tr(Z Z^T) instead of tr(Z K Z^T)",
        f"{_KERNEL}:_norm",
        Edited("(Z @ gram) * Z", "Z * Z"),
        values("kernel", "kernel-accumulated"),
    ),
    Mutant(
        "kernel-steps-of-coefficients",
        "Newton-Schulz on Z Z^T instead of Z K Z^T",
        f"{_KERNEL}:orthogonalised",
        Edited("Y @ gram @ ops.transpose(Y)", "Y @ ops.transpose(Y)"),
        values("kernel", "kernel-written-back"),
    ),
    Mutant(
        "kernel-no-eps",
        "the norm without eps",
        f"{_KERNEL}:orthogonalised",
        Edited("else size + settings.eps", "else size"),
        values("kernel-near-eps"),
    ),
    Mutant(
        "kernel-window-one-off",
        "the residuals' predictions are those of one token earlier",
        f"{_KERNEL}:_residuals",
        Edited("reference.shape[-1], -count:]", "reference.shape[-1], -count - 1 : -1]"),
        values("kernel", "kernel-carry"),
    ),
    Mutant(
        "kernel-columns-reversed",
        "the newest weight goes to the oldest key",
        f"{_KERNEL}:_written",
        Edited(
            "ops.flip(weights, -1)[..., c - errors.shape[-1] :] * errors",
            "weights[..., : errors.shape[-1]] * errors",
        ),
        values("kernel", "kernel-carry"),
    ),
    Mutant(
        "kernel-recomputes",
        "old window tokens are judged under the new reference",
        f"{_KERNEL}:_residuals",
        Edited(
            "return ops.where(older, ops.transpose(arrived[..., -count:, :]), errors), arrived",
            "return errors, arrived",
        ),
        values("kernel-carry"),
    ),
    Mutant(
        "kernel-not-written-back",
        "the stored momentum is not replaced",
        f"{_KERNEL}:_written",
        Edited('settings.argument == "written_back":', "settings is None:"),
        values("kernel-written-back"),
    ),
    Mutant(
        "kernel-momenta-reversed",
        "the window sums momenta from the oldest",
        f"{_KERNEL}:_written",
        Edited("enumerate(reversed(momenta))", "enumerate(momenta)"),
        values("kernel-momentum-first"),
    ),
    Mutant(
        "kernel-inactive-writes",
        "an inactive token is written back",
        f"{_KERNEL}:_written",
        Edited("if not sequence.active[t]:", "if False:"),
        values("kernel-written-back"),
    ),
)

SEQUENCE: tuple[Mutant, ...] = (
    Mutant(
        "inactive-loses-momentum",
        "an inactive token has momentum 0",
        "atlas_ref.forms.recurrence:_gates",
        Edited("ops.where(active, momentum, 1.0)", "ops.where(active, momentum, 0.0)"),
        values("frozen-pulse"),
    ),
    Mutant(
        "inactive-forgets",
        "an inactive token decays the memory",
        "atlas_ref.forms.recurrence:_gates",
        Edited("(retain, 1.0)", "(retain, 0.9)"),
        values("frozen-pulse"),
    ),
    Mutant(
        "inactive-accumulates",
        "an inactive token enters the momentum",
        "atlas_ref.forms.recurrence:_gates",
        Edited("(rate_in, 0.0)", "(rate_in, 0.1)"),
        values("frozen-pulse"),
    ),
    Mutant(
        "inactive-moves",
        "an inactive token lets the momentum move the memory",
        "atlas_ref.forms.recurrence:_gates",
        Edited("(rate_out, 0.0)", "(rate_out, 0.1)"),
        values("frozen-pulse"),
    ),
    Mutant(
        "history-dropped",
        "windows begin with the call",
        "atlas_ref.forms.recurrence:_one",
        Edited('"earlier_keys": before.keys', '"earlier_keys": 0.0 * before.keys'),
        values("frozen-carry", "exact-window-decay", "ns-carry", "kernel-carry"),
    ),
    Mutant(
        "history-of-the-other-sign",
        "values before the call keep their sign under value_sign plus",
        "atlas_ref.forms.recurrence:_one",
        Edited("held if _subtracts(rule, config) else -held", "held"),
        values("exact-plus"),
    ),
    Mutant(
        "scale-missing",
        "the gradient scale is left out",
        "atlas_ref.forms.recurrence:_weights",
        Edited("if s == 1.0 else s * weights", ""),
        values("exact-reset"),
    ),
    Mutant(
        "momentum-sign-ignored",
        "forms hold the momentum in the sign of the convention",
        "atlas_ref.forms.recurrence:_signed",
        Edited('config.convention.momentum_sign == "plus"', "True"),
        values("exact-titans"),
    ),
    Mutant(
        "packed-keeps-memory",
        "a packed sequence starts from the memory of the one before",
        "atlas_ref.forms:run",
        Edited("memory(rule, config, before), chunk", "memory(rule, config, after), chunk"),
        values("exact-reset", "frozen-call-end"),
    ),
    Mutant(
        "packed-keeps-window",
        "a packed sequence looks back into the one before",
        "atlas_ref.forms:packed",
        _window_of_the_sequence_before,
        values("exact-reset", "frozen-call-end"),
    ),
    Mutant(
        "phase-not-kept",
        "the position after a call is counted from its start",
        "atlas_ref.forms.recurrence:state_after",
        Edited("else after % config.span", "else after"),
        values("frozen-carry"),
    ),
    Mutant(
        "cut-missing",
        "window tokens of older spans stay",
        "atlas_ref.forms.recurrence:_one",
        Edited("np.arange(c) <= position[:, None]", "np.arange(c) < c + position[:, None]"),
        values("frozen-cut"),
    ),
)

PARALLEL: tuple[Mutant, ...] = (
    *COEFFICIENTS,
    *DUAL,
    *SHARED,
    *DUAL_BACKWARD,
    *MOMENTUM_FIRST,
    *NEWTON_SCHULZ,
    *SCAN,
    *ATLAS_PARALLEL,
    *KERNEL,
    *SEQUENCE,
)


# -- legal variants --------------------------------------------------------------------------------

_FORMS = values(
    "frozen",
    "frozen-groups",
    "frozen-long",
    "frozen-carry-groups",
    "frozen-momentum-first",
    "ns-carry",
    "exact-titans",
)
_FORMS += values(
    "exact-window", "exact-momentum-first", "scan", "scan-rows", "atlas", "atlas-carry"
)
_BLOCKS = values(
    "frozen",
    "frozen-long",
    "frozen-carry-groups",
    "frozen-rows",
    "frozen-reads",
    "zero",
    "hebbian",
    "exact-titans",
    "exact-window",
)
_BLOCKS += gradients(
    "frozen-k",
    "frozen-M0",
    "frozen-long-k",
    "frozen-carry-window_residual",
    "frozen-rows-window_weights",
    "frozen-reads-M0",
)
_BLOCKS += gradients(
    "exact-titans-k", "exact-decay-retain", "exact-window-k", "exact-rows-retain", "exact-reads-M0"
)
_NS_BLOCKS = values("ns", "ns-before", "ns-nesterov", "ns-carry", "ns-momentum-first") + gradients(
    "ns-k", "ns-before-k", "ns-before-M0"
)

PARALLEL_LEGAL: tuple[Mutant, ...] = (
    Mutant(
        "one-token-chunks",
        "chunks of one token",
        "atlas_ref.oracle.evaluate:results",
        _any_chunk(1),
        _FORMS + gradients("frozen-k", "ns-k"),
    ),
    Mutant(
        "long-chunks",
        "chunks longer than any case",
        "atlas_ref.oracle.evaluate:results",
        _any_chunk(100),
        _FORMS + gradients("exact-window-k"),
    ),
    Mutant(
        "default-chunks",
        "the chunk that a form chooses",
        "atlas_ref.oracle.evaluate:results",
        _any_chunk(None),
        _FORMS + gradients("scan-k"),
    ),
    Mutant(
        "one-chunk-groups",
        "every chunk is a group",
        "atlas_ref.forms.chunked:GROUP_NUMBERS",
        constant(1),
        _BLOCKS,
    ),
    Mutant(
        "plain-twin",
        "a group in tape ops, without a backward by hand",
        "atlas_ref.engine.segment:block",
        _twin,
        _BLOCKS,
    ),
    Mutant(
        "threads-for-all",
        "every memory is a part for a thread",
        "atlas_ref.engine.dispatch:thread_partition",
        _one_memory_a_part,
        _BLOCKS,
    ),
    Mutant(
        "newton-schulz-threads-for-all",
        "every memory is a part for a thread",
        f"{_NS}:_partition",
        _one_memory_a_part_of_blocks,
        _NS_BLOCKS,
    ),
    Mutant(
        "no-work-space",
        "every array of a group is a new one",
        "atlas_ref.backend.scratch:Scratch.empty",
        _no_work_space,
        _BLOCKS,
    ),
    Mutant(
        "poisoned-work-space",
        "work space is not empty",
        "atlas_ref.backend.scratch:Scratch.empty",
        _poisoned,
        _BLOCKS,
    ),
    Mutant(
        "inverse-by-substitution",
        "the system's inverse row after row",
        f"{_MASKED}:inverse_unit_lower",
        _by_substitution,
        values("exact-titans", "exact-delta", "exact-window", "exact-rows")
        + gradients("exact-window-k", "exact-rows-retain"),
    ),
    Mutant(
        "scan-as-a-loop",
        "scans step by step",
        f"{_ASSOCIATIVE}:_values",
        _one_after_the_other,
        values("scan", "scan-hebbian", "atlas")
        + gradients("scan-k", "scan-hebbian-retain", "atlas-k"),
    ),
)
