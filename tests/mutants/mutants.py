"""Mutants: one module attribute with a replacement, or one convention value, and the tests that
must reject it.

A replacement is the same function with one piece of its text edited, a function of the original, or
a constant. Legal variants are the counterpart: other ways to compute the same, which no test may
reject.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tape import ops, plain
from tests.mutants.deep_memory_mutants import DEEP_MEMORY_MUTANTS
from tests.mutants.level_mutants import LEVEL_MUTANTS
from tests.mutants.loop_mutants import LOOP_MUTANTS
from tests.mutants.mutant import Change, Edited, Mutant, constant
from tests.mutants.parallel_mutants import PARALLEL, PARALLEL_LEGAL
from tests.mutants.tnt_mutants import TNT_LEGAL, TNT_MUTANTS


def forced(**axes: Any) -> Change:
    """Evaluation under these convention values in place of the case's; newton_schulz takes single
    keys.
    """

    def change(results: Any) -> Any:
        def mutated(inputs: Any, case: Any, **form: Any) -> Any:
            values = dict(axes)
            if isinstance(values.get("newton_schulz"), dict):
                values["newton_schulz"] = case.convention.newton_schulz.replaced(
                    **values["newton_schulz"]
                )
            return results(
                inputs, case.replaced(convention=case.convention.replaced(**values)), **form
            )

        return mutated

    return change


def convention(name: str, what: str, tests: tuple[str, ...], **axes: Any) -> Mutant:
    return Mutant(name, what, "atlas_ref.oracle.evaluate:results", forced(**axes), tests)


def rule_part(rule: str, **parts: Callable[[Any], Any]) -> Change:
    """The table of rules with some functions of one rule replaced by functions of the original
    ones.
    """

    def change(rules: Any) -> Any:
        rules[rule] = rules[rule]._replace(
            **{name: make(getattr(rules[rule], name)) for name, make in parts.items()}
        )
        return dict(rules)  # modules hold the table itself, which has changed too

    return change


def pullback(position: int, rule: Callable[..., Any]) -> Change:
    """The rules of an op with one argument's pullback replaced."""
    return lambda rules: {**rules, position: rule}


def no_gradient(*fields: str) -> Change:
    """`update` whose result has the same value, but passes no gradient to these fields of the
    state.
    """

    def change(update: Any) -> Any:
        def mutated(config: Any, state: Any, *args: Any) -> Any:
            cut = {name: plain(getattr(state, name)) for name in fields}
            return update(config, state.replaced(**cut), *args)

        return mutated

    return change


# -- tests by name ---------------------------------------------------------------------------------

_TARGETS = "tests/mutants/test_targets.py"
_REDUCTIONS = "tests/reductions/test_reductions.py"


def values(*names: str) -> tuple[str, ...]:
    return tuple(f"{_TARGETS}::test_values[{name}]" for name in names)


def gradients(*names: str) -> tuple[str, ...]:
    return tuple(f"{_TARGETS}::test_gradient[{name}]" for name in names)


def reductions(*names: str) -> tuple[str, ...]:
    return tuple(f"{_REDUCTIONS}::test_reduction[{name}]" for name in names)


def recorded(*names: str) -> tuple[str, ...]:
    return tuple(f"{_TARGETS}::test_recorded[{name}_11]" for name in names)


def split(*names: str) -> tuple[str, ...]:
    return tuple(f"{_TARGETS}::test_split_and_resume[{name}]" for name in names)


def target(*names: str) -> tuple[str, ...]:
    return tuple(f"{_TARGETS}::test_{name}" for name in names)


# -- replacements that are not an edit -------------------------------------------------------------


def _gelu_erf(x: Any) -> Any:
    """x Phi(x), the other gelu."""
    return x * 0.5 * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))


def _transposed_cotangent(backward: Any) -> Any:
    return lambda S, g, settings: backward(
        S, g.swapaxes(-1, -2) if g.shape[-1] == g.shape[-2] else g, settings
    )


def _straight_through(backward: Any) -> Any:
    return lambda S, g, settings: g


def _no_transposed_left(y: Any, a: Any, b: Any) -> Any:
    return lambda g: g @ b


def _nothing(y: Any, a: Any, b: Any) -> Any:
    return lambda g: 0.0 * b


def _reversed_weights(made: Any) -> Any:
    return lambda config, tokens, state: [
        None if each is None else each[..., ::-1, :] for each in made(config, tokens, state)
    ]


def _without_phase(initial: Any) -> Any:
    return lambda module, config, inputs, case, tokens: initial(
        module, config, inputs, case.replaced(header=case.header.replaced(phase=None)), tokens
    )


def _without_reference(initial: Any) -> Any:
    def mutated(module: Any, config: Any, inputs: Any, case: Any, tokens: Any) -> Any:
        return initial(
            module,
            config,
            {name: value for name, value in inputs.items() if name != "in/M_ref"},
            case,
            tokens,
        )

    return mutated


def _untransposed_states(outputs: Any) -> Any:
    def mutated(config: Any, inputs: Any, case: Any, tokens: Any, state: Any, y: Any) -> Any:
        made, position = outputs(config, inputs, case, tokens, state, y)
        swap = case.convention.layout == "transposed"
        return {
            name: value.swapaxes(-1, -2) if swap and name in ("out/M", "out/S") else value
            for name, value in made.items()
        }, position

    return mutated


def _ascent(moved: Any) -> Any:
    return lambda config, M, change, gates: moved(config, M, -change, gates)


def _decays_after(moved: Any) -> Any:
    return lambda config, M, change, gates: moved(config, M, gates.retain * change, gates)


def _empty_places(run: Any) -> Any:
    def mutated(rule: Any, config: Any, tokens: Any, state: Any, **phi: Any) -> Any:
        if tokens.active is not None:
            present = tokens.active[:, None].astype(float)
            tokens = tokens.replaced(k=tokens.k * present, v=tokens.v * present)
        return run(rule, config, tokens, state, **phi)

    return mutated


def _without_history(with_window: Any) -> Any:
    def mutated(config: Any, inputs: Any, *more: Any) -> Any:
        return with_window(
            config,
            {name: value for name, value in inputs.items() if not name.startswith("in/window_")},
            *more,
        )

    return mutated


def _older_keys_cut(update: Any) -> Any:
    def mutated(config: Any, state: Any, keys: Any, *more: Any) -> Any:
        keys = ops.concatenate([plain(keys[..., :-1, :]), keys[..., -1:, :]], axis=-2)
        return update(config, state, keys, *more)

    return mutated


def _associated(X: Any, table: Any) -> None:
    for a, b, c in table:
        A = X @ X.swapaxes(-1, -2)
        X[...] = a * X + A @ (b * X + c * (A @ X))


def _einsum(a: Any, b: Any) -> Any:
    left = "...ij" if a.ndim > 1 else "j"
    right = "...jk" if b.ndim > 1 else "j"
    return np.einsum(
        f"{left},{right}->...{'i' if a.ndim > 1 else ''}{'k' if b.ndim > 1 else ''}", a, b
    )


def forced_transpose(kind: str) -> Change:
    """Newton-Schulz settings with this transpose, where there are any."""

    def change(results: Any) -> Any:
        def mutated(inputs: Any, case: Any, **form: Any) -> Any:
            if not case.convention.has_newton_schulz:
                return results(inputs, case, **form)
            return forced(newton_schulz={"transpose": kind})(results)(inputs, case, **form)

        return mutated

    return change


# -- the list --------------------------------------------------------------------------------------

_OMEGA, _RUN, _NS = (
    "atlas_ref.rules.omega",
    "atlas_ref.rules.sequence",
    "atlas_ref.parts.newton_schulz",
)

CONVENTIONS: tuple[Mutant, ...] = (
    convention(
        "forget-for-retain",
        "the retain gate's value is forgotten",
        values("omega", "delta"),
        gate="forget",
    ),
    convention(
        "retain-for-forget", "the forget gate's value is kept", values("forget"), gate="retain"
    ),
    convention(
        "rate-inside-only",
        "the rate in the momentum alone, under Newton-Schulz",
        values("omega"),
        rate="momentum",
    ),
    convention(
        "rate-outside",
        "the rate at the memory instead of the momentum",
        values("titans"),
        rate="memory",
    ),
    convention(
        "rate-twice",
        "the rate squared: in the momentum and at the memory",
        values("omega-plain", "titans"),
        rate="both",
    ),
    convention(
        "factor-two",
        "the gradient of |e|^2 instead of |e|^2 / 2",
        values("omega-plain", "delta") + recorded("fla_delta"),
        gradient_scale=2.0,
    ),
    convention(
        "order-swapped",
        "the window sums momenta",
        values("omega-plain", "omega"),
        order="momentum_then_window",
    ),
    convention("read-before-write", "y_t reads M_(t-1)", values("omega", "hebbian"), read="before"),
    convention(
        "frozen-for-running",
        "errors under the memory at the start of the call",
        values("omega", "delta"),
        reference="call_start",
    ),
    convention("no-error", "errors under a zero memory", values("omega-plain"), reference="zero"),
    convention(
        "decay-before-error",
        "the error under the decayed memory",
        values("omega-plain", "delta"),
        decay="before_error",
    ),
    convention(
        "decay-after-error",
        "the error under the memory before its decay",
        values("before-error") + recorded("fla_gated_delta"),
        decay="after_error",
    ),
    convention("value-plus", "the residual M phi + v", values("omega", "delta"), value_sign="plus"),
    convention(
        "momentum-sign-flip",
        "S holds the negative gradient",
        values("omega-plain", "titans"),
        momentum_sign="minus",
    ),
    convention("ascent", "M moves up the gradient", values("omega", "delta"), direction="ascent"),
    convention(
        "carry-for-recompute",
        "old window tokens keep their residual",
        values("recompute"),
        window_at_boundary="carry",
    ),
    convention(
        "cut-for-recompute",
        "old window tokens are dropped",
        values("recompute"),
        window_at_boundary="cut",
    ),
    convention(
        "recompute-for-cut", "old window tokens stay", values("cut"), window_at_boundary="recompute"
    ),
    convention(
        "spans-from-multiples", "spans counted from 1", values("recompute"), span_origin="multiple"
    ),
    convention(
        "spans-from-first",
        "spans counted from the first token",
        values("multiple"),
        span_origin="first",
    ),
    convention(
        "edge-renormalised",
        "weights grow at the edge",
        values("omega-plain"),
        window_edge="renormalise",
    ),
    convention(
        "query-scale-missing", "phi(q) without 1/sqrt(d_in)", values("query-scale"), query_scale=1.0
    ),
    convention(
        "norm-before-for-after",
        "the norm before the feature map",
        values("norm-after"),
        norm_place="before_phi",
    ),
    convention(
        "written-back",
        "S is replaced by its Newton-Schulz image",
        values("omega"),
        newton_schulz={"argument": "written_back"},
    ),
    convention("ns-four-steps", "four steps of five", values("omega"), newton_schulz={"steps": 4}),
    convention(
        "ns-no-eps",
        "the norm without eps",
        values("ns-near-eps") + recorded("mag_ns_6x10_5"),
        newton_schulz={"eps": 0.0},
    ),
)

FORWARD: tuple[Mutant, ...] = (
    Mutant(
        "cubic-for-quintic",
        "the cubic's coefficients for Muon's",
        f"{_NS}:MUON",
        constant((1.5, -0.5, 0.0)),
        values("ns", "omega") + recorded("mag_ns_6x10_5"),
    ),
    Mutant(
        "ns-last-row-not-repeated",
        "explicit coefficients start over",
        f"{_NS}:coefficient_table",
        Edited("rows[min(i, len(rows) - 1)]", "rows[i % len(rows)]"),
        values("ns-rows"),
    ),
    Mutant(
        "ns-clamp-adds",
        "guard clamp adds eps",
        f"{_NS}:_normalised",
        Edited('settings.guard == "clamp"', 'settings.guard == "none"'),
        values("ns-clamp"),
    ),
    Mutant(
        "ns-sqrt-upside-down",
        "scale sqrt of columns over rows",
        f"{_NS}:_scale",
        Edited("S.shape[-2] / S.shape[-1]", "S.shape[-1] / S.shape[-2]"),
        values("ns-tall"),
    ),
    Mutant(
        "ns-norm-of-rows",
        "the largest row norm for the Frobenius norm",
        f"{_NS}:_frobenius",
        Edited("axis=(-2, -1)", "axis=-1"),
        values("ns"),
    ),
    Mutant(
        "polar-with-safety",
        "polar_express on an interval two percent longer",
        f"{_NS}.minimax:polar_express",
        Edited("Decimal(1)\n", 'Decimal("1.02")\n'),
        values("ns-polar"),
    ),
    Mutant(
        "window-off-by-one",
        "the oldest token of the window is left out",
        f"{_OMEGA}:_weights",
        Edited(
            "s = matrices.scale(config)",
            (
                "s = matrices.scale(config); weights = ops.where(np.arange(config.window)[:, None] > 0, "
                "weights, 0.0)"
            ),
        ),
        values("omega", "omega-plain"),
    ),
    Mutant(
        "window-order-swapped",
        "weights by lag read from the oldest",
        f"{_RUN}:_window_weights",
        _reversed_weights,
        values("omega", "token-decay") + reductions("window-newest-delta"),
    ),
    Mutant(
        "gamma-squared",
        "the window weight is applied twice",
        f"{_OMEGA}:_weights",
        lambda made: lambda *args: made(*args) ** 2,
        values("omega-plain"),
    ),
    Mutant(
        "momentum-absent-is-one",
        "without a momentum gate momentum is 1",
        "atlas_ref.parts.momentum:accumulated",
        Edited("return signed", "return S + signed"),
        values("omega-still", "titans-still") + reductions("omega-delta", "titans-delta-momentum"),
    ),
    Mutant(
        "titans-second-rate",
        "rate split uses the first rate twice",
        "atlas_ref.rules.titans_lmm:update",
        Edited("to_memory = h_memory * S", "to_memory = h * S"),
        values("titans-split") + recorded("fla_momentum_delta"),
    ),
    Mutant(
        "decay-after-step",
        "the new memory decays, not the old one",
        f"{_OMEGA}:_moved",
        _decays_after,
        values("omega-plain") + reductions("omega-titans"),
    ),
    Mutant(
        "omega-ascends",
        "the update is added",
        f"{_OMEGA}:_moved",
        _ascent,
        values("omega") + reductions("omega-titans"),
    ),
    Mutant(
        "delta-adds",
        "the Delta rule adds its gradient",
        "atlas_ref.rules.delta:update",
        Edited("else memory - change", "else memory + change"),
        values("delta") + recorded("fla_delta"),
    ),
    Mutant(
        "hebbian-corrects",
        "the Hebbian rule subtracts what it predicts",
        "atlas_ref.rules.hebbian:write",
        Edited(
            "memory + ops.outer(v, k)",
            "memory + ops.outer(v - (state.M @ ops.expand_dims(k, -1))[..., 0], k)",
        ),
        values("hebbian") + reductions("delta-hebbian"),
    ),
    Mutant(
        "nesterov-plain",
        "nesterov without the momentum's factor",
        f"{_OMEGA}:_orthogonalised",
        Edited("g + gates.momentum * S", "g + S"),
        values("nesterov"),
    ),
    Mutant(
        "accumulated-read-raw",
        "the accumulated memory is read without Newton-Schulz",
        f"{_OMEGA}:read",
        Edited('== "accumulated"', '== "none"'),
        values("accumulated"),
    ),
    Mutant(
        "momentum-first-keeps-sum",
        "the momentum runs over window sums",
        f"{_OMEGA}:_update_momentum_first",
        Edited("M=M, S=Z", "M=M, S=S"),
        values("momentum-first"),
    ),
    Mutant(
        "inactive-decays",
        "an inactive token decays the memory",
        "atlas_ref.rules:FAMILY",
        rule_part(
            "omega",
            rest=lambda rest: (
                lambda config, state, *token: rest(config, state.replaced(M=0.9 * state.M), *token)
            ),
        ),
        values("pulse"),
    ),
    Mutant(
        "inactive-not-in-window",
        "an inactive token leaves an empty place in the window",
        f"{_RUN}:run",
        _empty_places,
        values("pulse"),
    ),
    Mutant(
        "reset-keeps-window",
        "a reset does not empty the window",
        f"{_RUN}:_entering",
        Edited("starts = sorted({0, *np.nonzero(reset)[0].tolist()})", "starts = [0]"),
        values("reset"),
    ),
    Mutant(
        "reset-keeps-momentum",
        "a reset restores M alone",
        f"{_RUN}:_each_token",
        Edited("waiting, state = [], fresh", "waiting, state = [], fresh.replaced(S=state.S)"),
        values("reset"),
    ),
    Mutant(
        "call-end-of-call",
        "call_end reads the end of the call, not of the packed sequence",
        f"{_RUN}:_each_token",
        Edited(
            "reads.add(state, *waiting)\n            waiting, state = [], fresh", "state = fresh"
        ),
        values("call-end"),
    ),
    Mutant(
        "span-off-by-one",
        "a span is one token longer",
        f"{_RUN}:_next_position",
        Edited("% config.span", "% (config.span + 1)"),
        values("recompute"),
    ),
    Mutant(
        "boundary-off-by-one",
        "the first token of a span counts as old",
        "atlas_ref.rules.boundaries:older",
        Edited("lags > state.position", "lags >= state.position"),
        values("cut"),
    ),
    Mutant(
        "carry-recomputes",
        "stored residuals are not used",
        "atlas_ref.rules.boundaries:carried",
        Edited(
            "return ops.where(older(config, state), stored, residual), stored",
            "return residual, stored",
        ),
        values("carry"),
    ),
    Mutant(
        "phase-ignored",
        "a resumed call starts its span anew",
        "atlas_ref.oracle.subjects.memory:initial_state",
        _without_phase,
        values("resumed"),
    ),
    Mutant(
        "reference-not-resumed",
        "a resumed call freezes M_0",
        "atlas_ref.oracle.subjects.memory:initial_state",
        _without_reference,
        values("resumed"),
    ),
    Mutant(
        "history-ignored",
        "initial window tokens are dropped",
        "atlas_ref.oracle.subjects.memory:_with_window",
        _without_history,
        values("history") + split("omega-plain"),
    ),
    Mutant(
        "gate-of-the-time",
        "the gate of time t weighs every token of the window",
        "atlas_ref.parts.window:_lags",
        Edited(
            "as_strided(padded, (*padded.shape[:-1], T, window), (*padded.strides, right))",
            "padded[..., window - 1 :, None] + [0] * window",
        ),
        values("window-gate", "token-gate") + reductions("window-gate"),
    ),
    Mutant(
        "gate-pulled-to-the-time",
        "the sweep gives the gate of time t what every token of its window is due",
        "atlas_ref.parts.window:_lags",
        Edited(
            "padded_bar[..., window - 1 - j : window - 1 - j + T]",
            "padded_bar[..., window - 1 : window - 1 + T]",
        ),
        gradients("window-gate-window_gate"),
    ),
    Mutant(
        "renormalised-by-count",
        "the edge counts tokens instead of their weights",
        "atlas_ref.parts.window:renormalised",
        Edited(
            "ops.where(exists, weights, 0.0)",
            (
                "ops.where(exists, ops.ones_like(weights) * ops.sum(weights, axis=-1, "
                "keepdims=True) / weights.shape[-1], 0.0)"
            ),
        ),
        values("renormalise"),
    ),
    Mutant(
        "gate-scales-columns",
        "a gate per output dimension scales columns",
        "atlas_ref.parts.gates:as_column",
        Edited("(*value.shape, 1) if", "(*value.shape[:-1], 1, value.shape[-1]) if"),
        values("per-dimension"),
    ),
    Mutant(
        "sigmoid-for-softplus",
        "the rate by sigmoid",
        "atlas_ref.parts.gates:from_tokens",
        Edited('step_size(pre) if name == "step_size" else ops.sigmoid(pre)', "ops.sigmoid(pre)"),
        values("token", "token-titans") + reductions("token-projected"),
    ),
    Mutant(
        "gate-reads-features",
        "gates read phi(k)",
        "atlas_ref.layers.projection:project",
        Edited(
            "key_of_gates(k, convention)",
            "sequence.mapped(config, params.phi, k, 'none')",
        ),
        values("token-norm"),
    ),
    Mutant(
        "gate-reads-raw-key",
        "gates read the key before its norm",
        "atlas_ref.layers.projection:project",
        Edited("key_of_gates(k, convention)", "k"),
        values("token-norm"),
    ),
    Mutant(
        "gates-start-by-forgetting",
        "the forget gate starts at +3",
        "atlas_ref.parts.gates:INITIAL_BIAS",
        lambda biases: {**biases, "forget": 3.0},
        target("gates_start_by_keeping"),
    ),
    Mutant(
        "softmax-over-heads",
        "window weights sum to 1 over heads",
        "atlas_ref.parts.window:by_lag",
        Edited('parameters["window_logits"])', 'parameters["window_logits"], axis=0)'),
        values("token-softmax"),
    ),
    Mutant(
        "norms-without-eps",
        "norms divide by the bare length",
        "atlas_ref.parts.norms:normalised",
        Edited("squares + eps * s * s", "squares"),
        values("norms"),
    ),
    Mutant(
        "rms-is-l2",
        "rms divides by the length",
        "atlas_ref.parts.norms:normalised",
        Edited("total * (1.0 / x.shape[-1])", "total"),
        values("norms"),
    ),
    Mutant(
        "average-is-sum",
        "an average of gradients is their sum",
        "atlas_ref.parts.momentum:accumulated",
        Edited('kind == "average"', "False"),
        values("average"),
    ),
    Mutant(
        "delta-forgets-alike",
        "a delta momentum forgets no more where a gradient is large",
        "atlas_ref.parts.momentum:accumulated",
        Edited('kind == "delta_momentum"', "False"),
        values("faded"),
    ),
    Mutant(
        "gate-bounds-ignored",
        "gates leave their bounds",
        "atlas_ref.parts.gates:bounded",
        Edited('bounds == "none"', "True"),
        values("bounded"),
    ),
    Mutant(
        "memory-ceiling-ignored",
        "the memory leaves its ceiling",
        "atlas_ref.parts.ceiling:held",
        Edited('ceiling == "none"', "True"),
        values("ceiling"),
    ),
    Mutant(
        "memory-ceiling-of-one",
        "a memory below its ceiling is drawn out to it",
        "atlas_ref.parts.ceiling:factor",
        Edited("length > ceiling", "length > 0.0"),
        values("ceiling-high"),
    ),
    Mutant(
        "norm-eps-ignored",
        "norms of keys have the default eps",
        "atlas_ref.parts.norms:keys_normalised",
        Edited("eps=convention.norm_eps, ", ""),
        values("norm-add", "norm-clamp"),
    ),
    Mutant(
        "norm-guard-ignored",
        "norms of keys add their eps inside the root",
        "atlas_ref.parts.norms:keys_normalised",
        Edited(", guard=convention.norm_guard", ""),
        values("norm-add", "norm-clamp"),
    ),
    Mutant(
        "queries-not-mapped",
        "queries meet the memory without phi",
        f"{_RUN}:features",
        Edited(
            "mapped(config, phi, tokens.q, convention.q_norm)",
            "tokens.q @ np.eye(tokens.q.shape[-1], config.d_phi)",
        ),
        values("mapped"),
    ),
    Mutant(
        "layout-not-transposed-back",
        "final states leave in the plain layout",
        "atlas_ref.oracle.subjects.memory:_outputs",
        _untransposed_states,
        values("layout"),
    ),
    Mutant(
        "resume-keeps-oldest",
        "a resumed window holds the oldest tokens",
        "atlas_ref.oracle.subjects.memory:_window_outputs",
        Edited("axis=-2)[..., -n:, :]", "axis=-2)[..., :n, :]"),
        values("omega-plain") + split("omega-plain"),
    ),
    Mutant(
        "gelu-erf",
        "gelu with erf for its tanh form",
        "tape.ops:gelu",
        constant(_gelu_erf),
        values("map-residual_mlp"),
    ),
    Mutant(
        "polynomial-unweighted",
        "monomials without their multinomial",
        "atlas_ref.parts.feature_maps:_monomial_blocks",
        Edited(
            "math.factorial(degree) // math.prod(math.factorial(t.count(i)) for i in set(t))", "1"
        ),
        values("map-polynomial"),
    ),
    Mutant(
        "polynomial-no-factorial",
        "a_i = 1 for 1 / i!",
        "atlas_ref.parts.feature_maps:Polynomial.weights",
        Edited("1 / math.factorial(i)", "1.0"),
        values("map-polynomial"),
    ),
    Mutant(
        "monomials-both-halves",
        "x_i x_j for i < j only",
        "atlas_ref.parts.feature_maps:_monomials",
        Edited(
            "ops.index(x, (..., i)) * ops.index(x, (..., j))",
            "ops.index(x, (..., i)) * ops.index(x, (..., j)) * (i != j)",
        ),
        values("map-monomials"),
    ),
    Mutant(
        "elementwise-highest-only",
        "x^g for x + ... + x^g",
        "atlas_ref.parts.feature_maps:_elementwise",
        Edited("y = x + x * y", "y = x * y"),
        values("map-elementwise"),
    ),
    Mutant(
        "tensor-sketch-not-around",
        "a convolution that drops what passes the last bucket",
        "atlas_ref.parts.feature_maps.tensor_sketch:circular",
        Edited(
            "ops.index(b, (..., shifts))",
            "(ops.index(b, (..., shifts)) * np.tril(np.ones((m, m))))",
        ),
        values("map-tensor_sketch"),
    ),
    Mutant(
        "fourier-unscaled",
        "random features without sqrt(2 / d_phi)",
        "atlas_ref.parts.feature_maps:_MAPS",
        lambda maps: {**maps, "random_fourier": lambda f, p, x: np.cos(x @ p["W"].T + p["b"])},
        values("map-random_fourier"),
    ),
)

BACKWARD: tuple[Mutant, ...] = (
    Mutant(
        "ns-spurious-transpose",
        "the backward transposes its cotangent",
        f"{_NS}:_backward",
        _transposed_cotangent,
        gradients("ns-square-G", "omega-square-k"),
    ),
    Mutant(
        "memory-ceiling-shortens-its-cotangent",
        "the backward of a shortened memory multiplies by the factor that shortened it",
        "atlas_ref.parts.ceiling:held",
        Edited(
            "return straight(", "return factor(bare, ceiling) * M if M is not value else straight("
        ),
        gradients("ceiling-M0"),
    ),
    Mutant(
        "ns-half-of-dA",
        "dA without its transpose",
        f"{_NS}.numpy_steps:backward",
        Edited("np.add(dA, dA.swapaxes(-1, -2), out=other)", "np.add(dA, 0.0, out=other)"),
        gradients("ns-G", "omega-k"),
    ),
    Mutant(
        "ns-straight-through",
        "the backward passes the cotangent on",
        f"{_NS}:_backward",
        _straight_through,
        gradients("ns-G", "omega-S0"),
    ),
    Mutant(
        "ns-no-norm-jacobian",
        "the backward takes the norm for a constant",
        f"{_NS}:_normalised_backward",
        Edited("(D - (f * along / size) * (S / safe)) / size", "D / size"),
        gradients("ns-G", "omega-k"),
    ),
    Mutant(
        "ns-backward-no-eps",
        "the backward's norm without eps",
        f"{_NS}:_normalised_backward",
        Edited("f * norm + settings.eps", "f * norm"),
        gradients("ns-near-eps-G"),
    ),
    Mutant(
        "matmul-spurious-transpose",
        "the left pullback of a product does not transpose",
        "tape.ops:matmul.rules",
        pullback(0, _no_transposed_left),
        target("matmul_pulls_back_as_its_sum"),
    ),
    Mutant(
        "matmul-right-dropped",
        "the right factor of a product gets nothing",
        "tape.ops:matmul.rules",
        pullback(1, _nothing),
        target("matmul_pulls_back_as_its_sum") + gradients("omega-k"),
    ),
    Mutant(
        "multiply-first-dropped",
        "the first factor of a product of numbers gets nothing",
        "tape.ops:multiply.rules",
        pullback(0, lambda y, a, b: lambda g: 0.0 * a),
        target("multiply_pulls_back_to_both_factors") + gradients("titans-retain"),
    ),
    Mutant(
        "multiply-second-dropped",
        "the second factor gets nothing: the carry of dM through retain",
        "tape.ops:multiply.rules",
        pullback(1, _nothing),
        target("multiply_pulls_back_to_both_factors") + gradients("titans-M0", "titans-S0"),
    ),
    Mutant(
        "divide-square-missing",
        "the denominator's pullback divides once",
        "tape.ops:divide.rules",
        pullback(1, lambda y, a, b: lambda g: -(g * y)),
        target("divide_pulls_back_to_both_sides"),
    ),
    Mutant(
        "unbroadcast-averages",
        "a repeated argument gets the mean of its cotangents",
        "tape.shapes:unbroadcast",
        Edited("sum(g, axis=axes)", "sum(g, axis=axes) / np.prod([full[i] for i in axes])"),
        target("multiply_pulls_back_to_both_factors") + gradients("titans-step_size"),
    ),
    Mutant(
        "unbroadcast-missing",
        "a repeated argument gets the cotangent of its repetition",
        "tape.shapes:unbroadcast",
        Edited("if full == target:", "if True:"),
        target("multiply_pulls_back_to_both_factors"),
    ),
    Mutant(
        "sweep-overwrites",
        "the last use of a variable replaces the others",
        "tape.core:sweep",
        Edited(
            "cotangent[parent] = part if have is None else have + part", "cotangent[parent] = part"
        ),
        target("uses_of_a_variable_add_up") + gradients("titans-k"),
    ),
    Mutant(
        "index-overwrites",
        "a repeated index counts once",
        "tape.scatter:add_at",
        Edited("np.add.at(buffer, key, g)", "buffer[key] += g"),
        target("a_repeated_index_counts_twice"),
    ),
    Mutant(
        "slide-unshifted",
        "the window's cotangent keeps its place",
        "tape.ops:slide.joint",
        lambda joint: lambda y, window, row: lambda g: (g, g[..., -1, :]),
        target("slide_pulls_back_to_the_rows_it_keeps") + gradients("carry-window_residual"),
    ),
    Mutant(
        "concatenation-from-the-start",
        "every part gets the first columns",
        "tape.shapes:_concatenated",
        Edited("slice(start, end)", "slice(0, end - start)"),
        target("a_concatenation_pulls_back_to_its_parts"),
    ),
    Mutant(
        "where-both",
        "what was not chosen gets the cotangent too",
        "tape.ops:where.rules",
        pullback(2, lambda y, c, a, b: lambda g: g),
        target("where_pulls_back_to_what_was_chosen") + gradients("carry-window_residual"),
    ),
    Mutant(
        "checkpoint-captures",
        "checkpoint lets a captured variable through",
        "tape.transforms:checkpoint",
        Edited(
            "with sealed(reason):\n                value = flat(*arrays)",
            "value = ops.stop_gradient(flat(*arrays))",
        ),
        target("a_checkpoint_refuses_what_it_would_lose"),
    ),
    Mutant(
        "leaks-allowed",
        "a variable may leave its function",
        "tape.core:_finished",
        constant(lambda name, args, value: None),
        target("a_variable_that_left_its_function_is_refused"),
    ),
    Mutant(
        "dM-not-carried",
        "no gradient from one token's memory to the next",
        f"{_OMEGA}:_update",
        no_gradient("M"),
        gradients("omega-M0", "omega-plain-M0", "omega-k"),
    ),
    Mutant(
        "dS-not-carried",
        "no gradient from one token's momentum to the next",
        f"{_OMEGA}:_update",
        no_gradient("S"),
        gradients("omega-S0", "omega-plain-S0", "omega-k"),
    ),
    Mutant(
        "titans-dS-not-carried",
        "the same in Titans",
        "atlas_ref.rules.titans_lmm:update",
        no_gradient("S"),
        gradients("titans-S0", "titans-k"),
    ),
    Mutant(
        "reference-not-carried",
        "no gradient to the frozen memory",
        f"{_OMEGA}:_update",
        no_gradient("reference"),
        gradients("resumed-M_ref", "call-start-M0"),
    ),
    Mutant(
        "older-keys-cut",
        "no gradient to the window's older keys",
        f"{_OMEGA}:_update",
        _older_keys_cut,
        gradients("omega-plain-k", "carry-window_k"),
    ),
    Mutant(
        "residual-not-carried",
        "no gradient to stored residuals",
        f"{_OMEGA}:_update",
        no_gradient("residuals"),
        gradients("carry-window_residual", "carry-k"),
    ),
    Mutant(
        "gamma-twice-backward",
        "the weight enters dL/dM twice through the residuals",
        f"{_OMEGA}:_update",
        Edited(
            "(weights * residual)",
            (
                "(weights * (ops.stop_gradient(residual) + ops.stop_gradient(weights) * (residual "
                "- ops.stop_gradient(residual))))"
            ),
        ),
        gradients("omega-plain-M0", "omega-plain-v"),
    ),
    Mutant(
        "frozen-map-learns",
        "tensors of a map that is not learned have a gradient",
        "atlas_ref.parts.feature_maps:frozen",
        constant(lambda feature_map: ()),
        (f"{_TARGETS}::test_frozen_tensors_have_no_gradient",),
    ),
    Mutant(
        "frozen-map-holds-keys",
        "no gradient to keys through a map that is not learned",
        "atlas_ref.parts.feature_maps:of_checked",
        Edited("(feature_map, parameters, x)", "(feature_map, parameters, ops.stop_gradient(x))"),
        gradients("map-frozen-x"),
    ),
    Mutant(
        "gamma-no-gradient",
        "the weights get no gradient",
        f"{_OMEGA}:_weights",
        lambda made: lambda *args: plain(made(*args)),
        gradients("omega-plain-window_weights"),
    ),
    Mutant(
        "rate-misses-memory",
        "the rate's gradient misses the memory update",
        f"{_OMEGA}:_rates",
        lambda made: lambda *args: (made(*args)[0], plain(made(*args)[1])),
        gradients("omega-step_size"),
    ),
    Mutant(
        "gates-no-gradient",
        "gates pass no gradient to keys and values",
        "atlas_ref.parts.gates:compute",
        Edited(
            "params, ops.concatenate([k, v], axis=-1)",
            "params, ops.stop_gradient(ops.concatenate([k, v], axis=-1))",
        ),
        gradients("token-x", "token-param/W_K", "token-param/W_V"),
    ),
)

MUTANTS: tuple[Mutant, ...] = (
    *CONVENTIONS,
    *FORWARD,
    *BACKWARD,
    *PARALLEL,
    *LOOP_MUTANTS,
    *LEVEL_MUTANTS,
    *TNT_MUTANTS,
    *DEEP_MEMORY_MUTANTS,
)


# -- legal variants --------------------------------------------------------------------------------

LEGAL: tuple[Mutant, ...] = (
    *TNT_LEGAL,
    Mutant(
        "ns-never-transposed",
        "tall matrices are not transposed",
        "atlas_ref.oracle.evaluate:results",
        forced_transpose("never"),
        values("ns", "ns-tall", "omega", "nesterov", "accumulated")
        + gradients("ns-tall-G", "omega-k"),
    ),
    Mutant(
        "ns-other-association",
        "a X + A (b X + c A X) for a X + (b A + c A^2) X",
        f"{_NS}.numpy_steps:forward",
        lambda steps: _associated,
        values("ns", "ns-tall", "omega", "written-back") + recorded("mag_ns_6x10_5"),
    ),
    Mutant(
        "matmul-by-einsum",
        "products by einsum",
        "tape.ops:matmul.function",
        lambda matmul: _einsum,
        values("omega-plain", "titans", "token") + gradients("omega-plain-k", "titans-k"),
    ),
    Mutant(
        "sums-from-the-end",
        "sums in the other order",
        "tape.ops:sum.function",
        lambda total: (
            lambda x, axis=None, keepdims=False: (
                total(x[::-1], axis=axis, keepdims=keepdims)
                if np.ndim(x) and axis is None
                else total(x, axis=axis, keepdims=keepdims)
            )
        ),
        values("omega", "norms") + gradients("omega-k"),
    ),
    Mutant(
        "window-sum-newest-first",
        "the window's gradient summed from the newest token",
        f"{_OMEGA}:_update",
        Edited(
            "(weights * residual).swapaxes(-1, -2) @ keys",
            "ops.flip(weights * residual, -2).swapaxes(-1, -2) @ ops.flip(keys, -2)",
        ),
        values("omega-plain", "omega", "carry")
        + gradients("omega-plain-k", "omega-plain-window_weights"),
    ),
    *PARALLEL_LEGAL,
)

#: Breaks instead of being wrong, so that the runner's verdict on a crash can be tested.
CRASH = Mutant(
    "crash",
    "the update divides by a name",
    "atlas_ref.rules.titans_lmm:update",
    lambda update: lambda *args: update(*args) / "zero",
    values("titans"),
)
