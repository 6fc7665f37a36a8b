"""The reduction table: settings of the rules that are the same function, their conditions, and
twins that break them.

A row states that two sides agree in y, M and S, and in the gradients of the inputs they share.
Conditions are maps of the shared inputs (`given`), so the gradient of a shared input is taken along
the condition: where the step size must be constant in time, the shared input is one number that the
map spreads over time. Each row has twins, the same row with one condition broken, in which the two
sides must differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tape import ops
from tests.support.strategies import AXES

Inputs = dict[str, Any]
Map = Callable[[Inputs], Inputs]

# -- maps of inputs --------------------------------------------------------------------------------


def same(x: Any) -> Any:
    return x


def negated(x: Any) -> Any:
    return 0.0 - x  # 0 keeps its sign, which a comparison of bits sees


def without(*names: str) -> Map:
    """The inputs but these: a missing state is zero, a missing momentum is 0."""
    return lambda x: {name: value for name, value in x.items() if name not in names}


def put(changes: Inputs | None = None, **more: Any) -> Map:
    """The inputs with some replaced: by a number at every entry, or by a function of all inputs."""
    changed = {**(changes or {}), **more}

    def apply(x: Inputs) -> Inputs:
        return {
            **x,
            **{
                name: value(x) if callable(value) else filled(x[name], value)
                for name, value in changed.items()
            },
        }

    return apply


def both(*maps: Map) -> Map:
    """One map after the other."""

    def apply(x: Inputs) -> Inputs:
        for each in maps:
            x = each(x)
        return x

    return apply


def filled(like: Any, value: float) -> Any:
    return np.full(like.shape, float(value))


def constant(name: str) -> Map:
    """The input at the first token, at every token."""
    return put({name: lambda x: x[name][..., :1] + np.zeros(x[name].shape)})


def per_row(name: str, *factors: float) -> Map:
    """One gate per output dimension: the scalar gate in every row, times `factors` in turn (none:
    equal rows).
    """

    def rows(x: Inputs) -> Any:
        d_out = x["v"].shape[-1]
        ratio = np.resize(factors or (1.0,), d_out)
        return ops.expand_dims(x[name], -1) * ratio

    return put({name: rows})


def times(name: str, factor: Any) -> Map:
    return put({name: lambda x: (factor(x) if callable(factor) else factor) * x[name]})


def complement(name: str) -> Map:
    return put({name: lambda x: 1.0 - x[name]})


def minus(*names: str) -> Map:
    return put({name: (lambda x, name=name: -x[name]) for name in names})


def copied(name: str, source: str) -> Map:
    return put({name: lambda x: x[source]})


def wavy(x: Inputs) -> Any:
    """Positive factors that vary from token to token."""
    return 1.5 + np.sin(2.0 * np.arange(x["k"].shape[-2]))


def at(token: int, **values: float) -> Map:
    """The inputs with some set to a number at one token."""

    def apply(x: Inputs) -> Inputs:
        here = np.arange(x["k"].shape[-2]) == token
        return {**x, **{name: ops.where(here, value, x[name]) for name, value in values.items()}}

    return apply


def one_hot(lag: int) -> Map:
    """Weight 1 on the token of this lag (negative: from the oldest), 0 on the others."""

    def weights(x: Inputs) -> Any:
        made = np.zeros(x["window_weights"].shape)
        made[..., lag] = 1.0
        return made

    return put(window_weights=weights)


def weights(*row: float) -> Map:
    """The same weights by lag at every token."""
    return put(
        window_weights=lambda x: np.broadcast_to(np.array(row), x["window_weights"].shape).copy()
    )


def lagged_gate(x: Inputs) -> Any:
    """gamma[t, j] = u[t - j], 0 before the first token, from window_gate."""
    gate, c = x["window_gate"], x["window_weights"].shape[-1]
    T = gate.shape[-1]
    columns = []
    for j in range(c):
        before = np.zeros((*gate.shape[:-1], min(j, T)))
        columns.append(ops.concatenate([before, gate[..., : T - min(j, T)]], axis=-1))
    return ops.stack(columns, axis=-1)


def eye(x: Inputs) -> Any:
    return np.eye(x["k"].shape[-1])


def sketch_matrix(x: Inputs, squares: float) -> Any:
    """[I; squares]: the features x_i, and the same share of every square in each."""
    d = x["k"].shape[-1]
    return np.concatenate([np.eye(d), np.full((d * d, d), squares)])


def unhashed_matrix(x: Inputs, constant: float) -> Any:
    """[constant; I; 0]: the features x_i of a tensor sketch of one bucket, and its constant."""
    d = x["k"].shape[-1]
    return np.concatenate([np.full((1, d), constant), np.eye(d), np.zeros((1, d))])


def waves(W: float = 1.0, b: float = 1.0) -> Map:
    """As many frequencies and phases of random Fourier features as inputs, times a factor each."""

    def frequencies(x: Inputs) -> Any:
        d = x["k"].shape[-1]
        return W * (1.0 + np.cos(np.arange(float(d * d)))).reshape(d, d)

    return put(
        {"phi/W": frequencies, "phi/b": lambda x: b * np.arange(1.0, 1.0 + x["k"].shape[-1])}
    )


def symmetric(name: str) -> Map:
    return put({name: lambda x: x[name] + ops.transpose(x[name])})


def projected(x: Inputs) -> Inputs:
    """Level projected from level token: k, v, q, and gates from [k; v]."""
    token = ops.expand_dims(x["x"], 1)
    k, v, q = (token @ ops.transpose(x[f"param/W_{name}"]) for name in "KVQ")
    kv = ops.concatenate([k, v], axis=-1)

    def gate(name: str) -> Any:
        return (
            kv @ ops.transpose(x[f"param/W_{name}"]) + ops.expand_dims(x[f"param/b_{name}"], -2)
        )[..., 0]

    made = {"retain": ops.sigmoid(gate("retain")), "momentum": ops.sigmoid(gate("momentum"))}
    rate = {"step_size": ops.log(1.0 + ops.exp(gate("step_size")))}
    kept = {name: value for name, value in x.items() if name in ("M0", "S0")}
    return {**kept, "k": k, "v": v, "q": q, **made, **rate}


# -- sides -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Side:
    """One side of a row: a rule under a convention or a closed form, and its use of the inputs.

    Attributes:
        rule: omega, titans_lmm, delta, hebbian; or "form".
        convention: axes that differ from preset spec (or a preset under "preset").
        header: other keys of the case: window, span, phase, feature_map, level, window_weights.
        takes: map of the shared inputs for this side alone.
        form: closed form: inputs -> {"y", "M"}, in ops.
        inactive: tokens at which this side alone does not write.
    """

    rule: str
    convention: dict[str, Any] = field(default_factory=dict)
    header: dict[str, Any] = field(default_factory=dict)
    takes: Map = same
    form: Callable[[Inputs], Inputs] | None = None
    inactive: tuple[int, ...] = ()

    def but(
        self, takes: Map | None = None, header: dict[str, Any] | None = None, **axes: Any
    ) -> Side:
        """The same with some axes, header keys or the map changed."""
        return replace(
            self,
            convention={**self.convention, **axes},
            header={**self.header, **(header or {})},
            takes=takes or self.takes,
        )

    @property
    def full_header(self) -> dict[str, Any]:
        return {"schema": 1, "rule": self.rule, "convention": self.convention, **self.header}


def omega(takes: Map = same, *, header: dict[str, Any] | None = None, **axes: Any) -> Side:
    """Omega without Newton-Schulz unless stated."""
    return Side("omega", {"newton_schulz": "none", **axes}, header or {}, takes)


def titans(takes: Map = same, *, header: dict[str, Any] | None = None, **axes: Any) -> Side:
    return Side("titans_lmm", axes, header or {}, takes)


def delta(takes: Map = same, *, header: dict[str, Any] | None = None, **axes: Any) -> Side:
    return Side("delta", axes, header or {}, takes)


def hebbian(takes: Map = same, *, header: dict[str, Any] | None = None, **axes: Any) -> Side:
    return Side("hebbian", axes, header or {}, takes)


def form(function: Callable[[Inputs], Inputs], takes: Map = same) -> Side:
    return Side("form", takes=takes, form=function)


def ns(**keys: Any) -> dict[str, Any]:
    """Settings of Newton-Schulz without its epsilon, so that a scale is invisible exactly."""
    return {"eps": 0.0, **keys}


#: What Muon's five steps make of the singular value 1.
MUON_OF_ONE = 1.0
for _ in range(5):
    MUON_OF_ONE = 3.4445 * MUON_OF_ONE - 4.7750 * MUON_OF_ONE**3 + 2.0315 * MUON_OF_ONE**5


FOURIER = {"feature_map": {"kind": "random_fourier"}}


def _column(gate: Any, t: int) -> Any:
    return ops.expand_dims(ops.expand_dims(gate[..., t], -1), -1)


def omeganet(x: Inputs, sign: float = 1.0) -> Inputs:
    """The OmegaNet recurrence in its closed form.

    M_t = r_t M_{t-1} - h_t (M_{t-1} A_t - B_t), A_t = sum_j gamma k k^T, B_t = sum_j gamma v k^T.
    """
    k, v, M, reads = x["k"], x["v"], x["M0"], []
    c = x["window_weights"].shape[-1]
    for t in range(k.shape[-2]):
        A: Any = 0.0
        B: Any = 0.0
        for j in range(min(c, t + 1)):
            weight = _column(x["window_weights"][..., j], t)
            A = A + weight * ops.outer(k[..., t - j, :], k[..., t - j, :])
            B = B + weight * ops.outer(v[..., t - j, :], k[..., t - j, :])
        M = _column(x["retain"], t) * M - _column(x["step_size"], t) * (M @ A - sign * B)
        reads.append((M @ ops.expand_dims(x["q"][..., t, :], -1))[..., 0])
    return {"y": ops.stack(reads, axis=-2), "M": M}


def omeganet_as_printed(x: Inputs) -> Inputs:
    """The same with the printed sign of B."""
    return omeganet(x, sign=-1.0)


def gated_deltanet(x: Inputs) -> Inputs:
    """M_t = M_{t-1} (r_t (I - h_t k_t k_t^T)) + h_t v_t k_t^T."""
    k, v, M, reads = x["k"], x["v"], x["M0"], []
    one = np.eye(k.shape[-1])
    for t in range(k.shape[-2]):
        r, h = _column(x["retain"], t), _column(x["step_size"], t)
        M = M @ (r * (one - h * ops.outer(k[..., t, :], k[..., t, :]))) + h * ops.outer(
            v[..., t, :], k[..., t, :]
        )
        reads.append((M @ ops.expand_dims(x["q"][..., t, :], -1))[..., 0])
    return {"y": ops.stack(reads, axis=-2), "M": M}


# -- rows ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """Two sides that agree under `given`.

    Attributes:
        id, statement: what the row says.
        clauses: where the specs say it.
        left, right: the two sides.
        given: the conditions, a map of the shared inputs that both sides then take.
        twins: what is broken -> the fields of this row that change.
        window: c of the drawn window weights, and of each side whose header names no other.
        span: of each side whose header names no other.
        level: token draws tokens and parameters instead of keys, values, queries and gates.
        history: whether the window starts with tokens.
        tokens, d_in, d_out: sizes that a row needs; else those of the shapes in turn.
        masks: whether the rows hold with inactive tokens and packed sequences too, which is then
            tried.
        S: what of the right side's S equals the left's; None where the row says nothing about it.
        exact: whether the two agree bit by bit.
        fixes_window: whether the row holds for its own window alone.
        breaks: values of axes that the row says nothing of, under which the sides differ where both
            take them; under all other values the row holds too.
    """

    id: str
    statement: str
    clauses: tuple[str, ...]
    left: Side
    right: Side
    given: Map = same
    twins: dict[str, dict[str, Any]] = field(default_factory=dict)
    window: int = 1
    span: int | None = None
    level: str = "projected"
    history: bool = False
    tokens: int | None = None
    d_in: int | None = None
    d_out: int | None = None
    masks: bool = True
    S: Callable[[Any], Any] | None = same
    exact: bool = False
    fixes_window: bool = False
    breaks: tuple[dict[str, tuple[Any, ...]], ...] = ()

    def twin(self, broken: str) -> Row:
        return replace(self, twins={}, exact=False, **self.twins[broken])

    @property
    def window_is_free(self) -> bool:
        """Whether the row holds for any window; one of other rules than Omega has none."""
        return not self.fixes_window and "omega" in (self.left.rule, self.right.rule)


@dataclass(frozen=True)
class Limit:
    """Two sides whose distance halves when h does: the left side as a function of h.

    Attributes:
        steps: h, to be halved once.
        twins: what is broken -> the left side that then does not approach the right one.
    """

    id: str
    statement: str
    clauses: tuple[str, ...]
    left: Callable[[float], Side]
    right: Side
    given: Map
    twins: dict[str, Callable[[float], Side]]
    step: float = 1e-5


STILL = without("momentum", "S0")  # momentum 0, which leaves no S
ZERO_S = without("S0")
ONE = put(window_weights=1.0)

_REST = {"retain": 1.0, "momentum": 1.0, "step_size": 0.0, "step_size_memory": 0.0}
_TITANS = omega()
_SAME_AXES = {
    "gate": "forget",
    "decay": "before_error",
    "gradient_scale": 2.0,
    "momentum_sign": "minus",
    "read": "before",
    "reference": "chunk_start",
    "query_scale": "1/sqrt(d_in)",
    "q_norm": "l2",
    "k_norm": "rms",
    "layout": "transposed",
}
_LEFT_BREAKS = {
    "a weight of 1/2": {"given": put(window_weights=0.5)},
    "two window tokens": {"window": 2, "given": put(window_weights=1.0)},
    "rate memory": {"left": _TITANS.but(rate="memory")},
    "rate both": {"left": _TITANS.but(rate="both")},
    "Newton-Schulz": {"left": _TITANS.but(newton_schulz={}, rate="momentum")},
    "another feature map": {
        "left": _TITANS.but(header={"feature_map": {"kind": "elementwise", "degree": 2}})
    },
    "another gradient scale": {"left": _TITANS.but(gradient_scale=2.0)},
    "another multiplier of M": {"left": _TITANS.but(gate="forget")},
    "another decay": {"left": _TITANS.but(decay="before_error")},
    "another reference": {"left": _TITANS.but(reference="call_start")},
    "another read": {"left": _TITANS.but(read="before")},
}

_OF_HEBBIAN: tuple[dict[str, tuple[Any, ...]], ...] = (
    {"rate": ("split",)},  # the second step size is not 1
    {"gradient_scale": (2, "2/d_out", 0.7)},
    {"direction": ("ascent",)},
    {"value_sign": ("plus",)},
)
#: A gate that is a given number, or that one side alone changes, is another one between bounds.
_RETAIN_BOUNDED = ({"retain_bounds": tuple(AXES["retain_bounds"][1:])},)
_STEP_BOUNDED = ({"step_bounds": tuple(AXES["step_bounds"][1:])},)
_MOMENTUM_FIRST: tuple[dict[str, tuple[Any, ...]], ...] = ({"order": ("momentum_then_window",)},)
#: The factor of delta momentum is no number of the case, but comes from each gradient.
_DELTA_MOMENTUM: tuple[dict[str, tuple[Any, ...]], ...] = ({"momentum_kind": ("delta_momentum",)},)
#: A read of the span's start shows spans that the reference alone would hide.
_READS_SPANS: tuple[dict[str, tuple[Any, ...]], ...] = ({"read": ("chunk_start",)},)

RULES: list[Row] = [
    Row(
        "omega-titans",
        (
            "Omega with window 1, weight 1, identity map, no Newton-Schulz, rate momentum is "
            "Titans LMM, for any step sizes and S_0"
        ),
        ("OMEGA-19", "TITANS-13", "E-A24"),
        left=_TITANS,
        right=titans(),
        given=ONE,
        twins=_LEFT_BREAKS,
        fixes_window=True,
    ),
    Row(
        "omega-titans-per-dimension",
        (
            "Omega is Titans LMM under the same conditions with one retain, momentum and step "
            "size per output dimension"
        ),
        ("OMEGA-19", "TITANS-13"),
        left=omega(),
        right=titans(),
        given=both(
            ONE,
            per_row("retain", 1.0, 0.8),
            per_row("momentum", 1.0, 0.5),
            per_row("step_size", 1.0, 2.0, 0.5),
        ),
        twins={
            "scalar step sizes on one side": {
                "right": titans(put(step_size=lambda x: x["step_size"][..., 0]))
            }
        },
        fixes_window=True,
    ),
    Row(
        "omega-titans-other-axes",
        (
            "Omega is Titans LMM with gate, decay, s, signs, read, reference, norms, query scale "
            "and layout that both share"
        ),
        ("OMEGA-19", "TITANS-13"),
        left=omega(**_SAME_AXES),
        right=titans(**_SAME_AXES),
        given=both(
            ONE, put(M0=lambda x: ops.transpose(x["M0"]), S0=lambda x: ops.transpose(x["S0"]))
        ),
        span=3,
        twins={
            f"{axis} on one side": {
                "right": titans(
                    **{name: value for name, value in _SAME_AXES.items() if name != axis}
                )
            }
            for axis in (
                "gate",
                "decay",
                "gradient_scale",
                "momentum_sign",
                "read",
                "reference",
                "query_scale",
                "q_norm",
                "k_norm",
            )
        },
        fixes_window=True,
    ),
    Row(
        "omega-titans-paper",
        "Omega with retain and s = 2 is Titans as printed with forget = 1 - retain and S = -S",
        ("OMEGA-19", "E-A06"),
        left=omega(gradient_scale=2.0),
        right=Side(
            "titans_lmm", {"preset": "titans-paper"}, takes=both(complement("retain"), minus("S0"))
        ),
        given=ONE,
        S=negated,
        twins={
            "the same number as retain and forget": {
                "right": Side("titans_lmm", {"preset": "titans-paper"}, takes=minus("S0"))
            },
            "S_0 of the same sign": {
                "right": Side("titans_lmm", {"preset": "titans-paper"}, takes=complement("retain"))
            },
            "s = 1": {"left": omega()},
        },
        fixes_window=True,
        breaks=_RETAIN_BOUNDED,
    ),
    Row(
        "omega-titans-token",
        (
            "Omega is Titans LMM at level token under preset spec with (W, b) of retain and (-W, "
            "-b) of forget"
        ),
        ("OMEGA-19", "CONV-59", "E-A06"),
        left=omega(header={"level": "token"}),
        right=titans(minus("param/W_retain", "param/b_retain"), header={"level": "token"}),
        level="token",
        twins={"the same (W, b)": {"right": titans(header={"level": "token"})}},
        fixes_window=True,
        breaks=({"gate": ("retain", "forget")}, *_RETAIN_BOUNDED),
    ),
    Row(
        "omega-delta",
        "Omega under the same conditions and momentum 0 is the Delta rule",
        ("OMEGA-20", "DELTA-11", "E-A25"),
        left=omega(),
        right=delta(),
        given=both(STILL, ONE),
        twins={
            "a small momentum": {"given": both(ZERO_S, ONE, put(momentum=0.05))},
            "rate both": {"left": omega(rate="both")},
            "a weight of 1/2": {"given": both(STILL, put(window_weights=0.5))},
            "Newton-Schulz": {"left": omega(newton_schulz={}, rate="momentum")},
        },
        fixes_window=True,
    ),
    *[
        Row(
            f"titans-delta-{rate}",
            f"Titans LMM with momentum 0 is the Delta rule, rate {rate}",
            ("TITANS-12", "DELTA-11", "E-A25"),
            left=titans(rate=rate),
            right=delta(rate=rate),
            given=STILL,
            twins={
                "a small momentum": {"given": both(ZERO_S, put(momentum=0.05))},
                "another gradient scale": {"right": delta(rate=rate, gradient_scale=2.0)},
            },
        )
        for rate in ("momentum", "memory", "both", "split", "none")
    ],
    Row(
        "window-newest-delta",
        (
            "a window of 3 with weights (1, 0, 0) by lag, newest first, and momentum 0 is the "
            "Delta rule"
        ),
        ("OMEGA-20", "WINDOW-20", "E-A27"),
        left=omega(),
        right=delta(),
        given=both(STILL, one_hot(0)),
        window=3,
        twins={
            "uniform weights": {"given": both(STILL, weights(1 / 3, 1 / 3, 1 / 3))},
            "weight on the oldest": {"given": both(STILL, one_hot(-1))},
            "a small weight on the second": {"given": both(STILL, weights(1.0, 0.05, 0.0))},
        },
    ),
    Row(
        "window-newest-one",
        "a window of 3 with weights (1, 0, 0) is a window of 1, under Newton-Schulz too",
        ("WINDOW-20", "E-A27"),
        left=omega(newton_schulz={}),
        right=omega(
            put(window_weights=lambda x: x["window_weights"][..., :1]),
            newton_schulz={},
            header={"window": 1},
        ),
        given=one_hot(0),
        window=3,
        twins={
            "weight on the oldest": {"given": one_hot(-1)},
            "a weight on the second": {"given": weights(1.0, 0.5, 0.0)},
        },
    ),
    Row(
        "omega-hebbian",
        (
            "Omega with window 1, weight 1, zero reference, momentum 0, step size 1 is the "
            "Hebbian rule"
        ),
        ("OMEGA-21", "E-A26"),
        left=omega(reference="zero"),
        right=hebbian(),
        given=both(STILL, ONE, put(step_size=1.0)),
        twins={
            "running reference": {"left": omega()},
            "call_start from M_0 != 0": {"left": omega(reference="call_start")},
            "step size 1/2": {"given": both(STILL, ONE, put(step_size=0.5))},
            "momentum 0.3": {"given": both(ZERO_S, ONE, put(step_size=1.0, momentum=0.3))},
            "gradient scale 2": {"left": omega(reference="zero", gradient_scale=2.0)},
            "value_sign plus": {"left": omega(reference="zero", value_sign="plus")},
        },
        fixes_window=True,
        breaks=(*_OF_HEBBIAN, *_STEP_BOUNDED),
    ),
    Row(
        "titans-hebbian",
        "Titans LMM with zero reference, momentum 0, step size 1 is the Hebbian rule",
        ("HEBBIAN-9", "E-A26"),
        left=titans(reference="zero"),
        right=hebbian(),
        given=both(STILL, put(step_size=1.0)),
        twins={
            "running reference": {"left": titans()},
            "momentum 0.3": {"given": both(ZERO_S, put(step_size=1.0, momentum=0.3))},
        },
        breaks=(*_OF_HEBBIAN, *_STEP_BOUNDED),
    ),
    Row(
        "delta-hebbian",
        "Delta with zero reference and rate none is the Hebbian rule",
        ("HEBBIAN-9", "E-A26"),
        left=delta(reference="zero", rate="none"),
        right=hebbian(),
        twins={
            "running reference": {"left": delta(rate="none")},
            "a step size": {"left": delta(reference="zero")},
        },
        breaks=_OF_HEBBIAN[1:],
    ),
    Row(
        "omeganet",
        (
            "Omega without momentum and Newton-Schulz is M <- r M - h (M A - B) with A = sum "
            "gamma k k^T, B = sum gamma v k^T"
        ),
        ("OMEGA-22", "E-A09", "E-A30"),
        left=omega(),
        right=form(omeganet),
        given=STILL,
        window=3,
        masks=False,
        twins={
            "the printed sign of B": {"right": form(omeganet_as_printed)},
            "momentum": {"given": ZERO_S},
            "Newton-Schulz": {"left": omega(newton_schulz={}, rate="momentum")},
            "decay before the error": {"left": omega(decay="before_error")},
            "frozen reference": {"left": omega(reference="call_start")},
        },
    ),
    Row(
        "gated-deltanet",
        "Delta with decay before_error is gated DeltaNet, M <- M r (I - h k k^T) + h v k^T",
        ("DELTA-12",),
        left=delta(decay="before_error"),
        right=form(gated_deltanet),
        masks=False,
        twins={"decay after the error": {"left": delta()}},
    ),
    Row(
        "deltanet",
        "Delta with retain 1 is DeltaNet, M <- M (I - h k k^T) + h v k^T, under either decay",
        ("DELTA-12", "E-P10"),
        left=delta(gate="none"),
        right=form(gated_deltanet),
        given=put(retain=1.0),
        masks=False,
        twins={"retain 0.9": {"left": delta(), "given": put(retain=0.9)}},
    ),
    *[
        Row(
            f"per-dimension-{gate}",
            f"one {gate} gate per output dimension with equal entries is the scalar gate",
            ("GATES-3", "E-A07"),
            left=omega(newton_schulz={}),
            right=omega(per_row(gate), newton_schulz={}),
            window=3,
            twins={"unequal entries": {"right": omega(per_row(gate, 1.0, 0.7), newton_schulz={})}},
        )
        for gate in ("retain", "momentum", "step_size")
    ],
    *[
        Row(
            f"identity-{name}",
            f"the {kind['kind']} map with {words} is the identity map",
            ("PHI-14",),
            left=omega(header={"feature_map": kind}, takes=put(tensors)),
            right=omega(),
            window=2,
            twins={broken: {"left": omega(header={"feature_map": other}, takes=put(wrong))}},
        )
        for name, kind, words, tensors, broken, other, wrong in (
            (
                "linear",
                {"kind": "linear"},
                "W = I",
                {"phi/W": eye},
                "W = 1.1 I",
                {"kind": "linear"},
                {"phi/W": lambda x: 1.1 * eye(x)},
            ),
            (
                "elementwise",
                {"kind": "elementwise", "degree": 1},
                "degree 1",
                {},
                "degree 2",
                {"kind": "elementwise", "degree": 2},
                {},
            ),
            (
                "polynomial",
                {"kind": "polynomial", "degree": 1, "coefficients": [0, 1]},
                "degree 1, coefficients (0, 1)",
                {},
                "coefficients (0, 2)",
                {"kind": "polynomial", "degree": 1, "coefficients": [0, 2]},
                {},
            ),
            (
                "residual",
                {"kind": "residual_mlp"},
                "W2 = 0",
                {
                    "phi/W1": lambda x: np.ones((2, x["k"].shape[-1])),
                    "phi/W2": lambda x: np.zeros((x["k"].shape[-1], 2)),
                },
                "W2 = 1/2",
                {"kind": "residual_mlp"},
                {
                    "phi/W1": lambda x: np.ones((2, x["k"].shape[-1])),
                    "phi/W2": lambda x: np.full((x["k"].shape[-1], 2), 0.5),
                },
            ),
            (
                "sketch",
                {"kind": "sketch"},
                "proj = [I; 0]",
                {"proj": lambda x: sketch_matrix(x, 0.0)},
                "proj = [I; 1/2]",
                {"kind": "sketch"},
                {"proj": lambda x: sketch_matrix(x, 0.5)},
            ),
            (
                "tensor-sketch",
                {"kind": "tensor_sketch"},
                "proj = [0; I; 0]",
                {
                    "phi/c": lambda x: np.array([1.0, 1.0, 0.5]),
                    "phi/H": lambda x: np.ones((2, 1, x["k"].shape[-1])),
                    "proj": lambda x: unhashed_matrix(x, 0.0),
                },
                "proj = [1/2; I; 0]",
                {"kind": "tensor_sketch"},
                {
                    "phi/c": lambda x: np.array([1.0, 1.0, 0.5]),
                    "phi/H": lambda x: np.ones((2, 1, x["k"].shape[-1])),
                    "proj": lambda x: unhashed_matrix(x, 0.5),
                },
            ),
        )
    ],
    Row(
        "fourier-even",
        "random Fourier features of -W and -b are those of W and b, as the cosine is even",
        ("PHI-4",),
        left=omega(waves(), header=FOURIER),
        right=omega(waves(W=-1.0, b=-1.0), header=FOURIER),
        window=2,
        twins={"-b with W": {"right": omega(waves(b=-1.0), header=FOURIER)}},
    ),
    Row(
        "fourier-frozen",
        "frozen random Fourier features are learned ones, in results and in all other gradients",
        ("PHI-20",),
        left=omega(waves(), header={"feature_map": {"kind": "random_fourier", "learned": False}}),
        right=omega(waves(), header=FOURIER),
        window=2,
        twins={"another W": {"right": omega(waves(W=1.1), header=FOURIER)}},
        exact=True,
    ),
    Row(
        "window-absent",
        "no window weights are weights 1/c",
        ("WINDOW-2", "E-A28"),
        left=omega(without("window_weights")),
        right=omega(),
        given=weights(1 / 3, 1 / 3, 1 / 3),
        window=3,
        twins={
            "weights 1": {"given": put(window_weights=1.0)},
            "1/c of the tokens so far": {"left": omega(window_edge="renormalise")},
        },
        fixes_window=True,
    ),
    Row(
        "window-gate",
        "one gate per token is the table gamma[t, j] = u[t - j]",
        ("WINDOW-6", "E-R04"),
        left=omega(without("window_weights")),
        right=omega(both(put(window_weights=lagged_gate), without("window_gate"))),
        given=put(window_gate=lambda x: x["window_weights"][..., 0]),
        window=3,
        twins={
            "the gate of time t instead": {
                "right": omega(
                    both(
                        put(window_weights=lambda x: ops.stack([x["window_gate"]] * 3, axis=-1)),
                        without("window_gate"),
                    )
                )
            }
        },
        breaks=({"window_edge": ("renormalise",)},),
    ),
    Row(
        "token-projected",
        (
            "level token is level projected on k = W_K x, v = W_V x, q = W_Q x, sigmoid and "
            "softplus gates of [k; v]"
        ),
        ("CONV-28", "GATES-6", "GATES-7"),
        left=omega(newton_schulz={}, header={"level": "token"}),
        right=omega(projected, newton_schulz={}),
        level="token",
        window=2,
        twins={
            "W_K and W_Q exchanged": {
                "right": omega(
                    both(put({"param/W_K": lambda x: x["param/W_Q"]}), projected), newton_schulz={}
                ),
            },
            "forget": {"right": omega(projected, newton_schulz={}, gate="forget")},
        },
        breaks=({"k_norm": ("l2", "rms")},),
    ),
    *[
        Row(
            f"token-weights-{name}",
            f"window weights {words}",
            clauses,
            left=omega(put(tensors), header={"level": "token", "window_weights": left}),
            right=omega(header={"level": "token", "window_weights": {"kind": right}}),
            level="token",
            window=3,
            fixes_window=name == "softmax",
            twins={
                broken: {
                    "left": omega(put(wrong), header={"level": "token", "window_weights": other})
                }
            },
        )
        for name, words, clauses, left, right, tensors, broken, other, wrong in (
            (
                "softmax",
                "softmax of equal logits are uniform",
                ("WINDOW-5", "WINDOW-3"),
                {"kind": "softmax"},
                "uniform",
                {"param/window_logits": lambda x: np.full((x["M0"].shape[-3], 3), 0.7)},
                "unequal logits",
                {"kind": "softmax"},
                {"param/window_logits": lambda x: np.tile([0.7, 0.0, 0.7], (x["M0"].shape[-3], 1))},
            ),
            (
                "decay",
                "decay with base 1 are ones",
                ("WINDOW-4", "WINDOW-3"),
                {"kind": "decay", "base": 1.0},
                "ones",
                {},
                "base 0.9",
                {"kind": "decay", "base": 0.9},
                {},
            ),
            (
                "product",
                "product of uniform and ones are uniform",
                ("WINDOW-7", "WINDOW-3"),
                {"kind": "product", "of": [{"kind": "uniform"}, {"kind": "ones"}]},
                "uniform",
                {},
                "uniform twice",
                {"kind": "product", "of": [{"kind": "uniform"}, {"kind": "uniform"}]},
                {},
            ),
        )
    ],
    Row(
        "window-permuted",
        "the order of window tokens of equal weight is invisible",
        ("WINDOW-18",),
        left=omega(),
        right=omega(
            put(
                window_k=lambda x: ops.flip(x["window_k"], -2),
                window_v=lambda x: ops.flip(x["window_v"], -2),
            )
        ),
        given=weights(0.4, 0.4, 0.4),
        window=3,
        history=True,
        tokens=1,
        masks=False,
        breaks=({"reference": ("chunk_start", "call_start"), "window_at_boundary": ("carry",)},),
        twins={"unequal weights": {"given": weights(0.4, 0.4, 0.3)}, "two tokens": {"tokens": 2}},
        fixes_window=True,
    ),
    Row(
        "inactive",
        (
            "an inactive token is one with r = 1, m = 1, a = 0 and b = 0, which enters the window "
            "all the same"
        ),
        ("OMEGA-13", "CONV-32", "WINDOW-17", "E-A29"),
        left=replace(omega(newton_schulz={}, rate="split"), inactive=(2,)),
        right=omega(at(2, **_REST), newton_schulz={}, rate="split"),
        window=3,
        masks=False,
        twins={
            f"{name} as it is": {
                "right": omega(
                    at(2, **{gate: value for gate, value in _REST.items() if gate != name}),
                    newton_schulz={},
                    rate="split",
                )
            }
            for name in _REST
        },
        breaks=({"gate": ("forget",)}, *_DELTA_MOMENTUM, *_RETAIN_BOUNDED, *_STEP_BOUNDED),
    ),
    Row(
        "momentum-zero",
        "a momentum gate of 0 is no momentum, whatever S_0",
        ("OMEGA-1", "GATES-4", "E-A25", "E-R12"),
        left=omega(put(momentum=0.0), momentum_kind="sum"),
        right=omega(STILL, momentum_kind="sum"),
        window=2,
        # an average is the same too; delta momentum has no factor below 1e-6, which shows S_0
        # where the first token is inactive, S_0 is the first momentum in the window of momenta
        breaks=_MOMENTUM_FIRST,
        twins={
            "0.05": {"left": omega(put(momentum=0.05))},
            "1": {"left": omega(put(momentum=1.0))},
        },
    ),
    Row(
        "nesterov-no-momentum",
        "nesterov with momentum 0 and rate memory is argument S",
        ("OMEGA-8",),
        left=omega(newton_schulz={"argument": "nesterov"}, rate="memory"),
        right=omega(newton_schulz={}, rate="memory"),
        given=STILL,
        window=2,
        twins={"momentum": {"given": ZERO_S}},
        breaks=_MOMENTUM_FIRST,
    ),
]

_NS = {"newton_schulz": ns()}

CLASSES: list[Row] = [
    Row(
        "forget-retain-half",
        "gate forget = retain at 1/2",
        ("CONV-40",),
        left=omega(gate="forget"),
        right=omega(),
        given=put(retain=0.5),
        exact=True,
        twins={"0.6": {"given": put(retain=0.6)}},
    ),
    Row(
        "forget-retain-complement",
        "gate forget with 1 - r = retain with r",
        ("CONV-4", "E-A06"),
        left=omega(gate="forget", takes=complement("retain"), newton_schulz={}),
        right=omega(newton_schulz={}),
        window=3,
        twins={"the same number": {"left": omega(gate="forget", newton_schulz={})}},
        breaks=_RETAIN_BOUNDED,
    ),
    Row(
        "gate-none",
        "gate none = retain at 1",
        ("CONV-40",),
        left=omega(gate="none"),
        right=omega(),
        given=put(retain=1.0),
        exact=True,
        twins={"0.95": {"given": put(retain=0.95)}},
        breaks=_RETAIN_BOUNDED,
    ),
    Row(
        "log-gates",
        "log_retain and log_momentum stand for their exponentials",
        ("CONV-36", "GATES-5"),
        left=omega(
            both(
                put(
                    log_retain=lambda x: ops.log(x["retain"]),
                    log_momentum=lambda x: ops.log(x["momentum"]),
                ),
                without("retain", "momentum"),
            )
        ),
        right=omega(),
        twins={
            "a base of 2": {
                "left": omega(
                    both(
                        put(
                            log_retain=lambda x: ops.log(x["retain"]) / math.log(2.0),
                            log_momentum=lambda x: ops.log(x["momentum"]),
                        ),
                        without("retain", "momentum"),
                    )
                )
            }
        },
    ),
    Row(
        "decay-retain-one",
        "decay is void at retain 1",
        ("CONV-41",),
        left=omega(decay="before_error", newton_schulz={}),
        right=omega(newton_schulz={}),
        given=put(retain=1.0),
        window=3,
        exact=True,
        twins={"0.95": {"given": put(retain=0.95)}},
        breaks=({"gate": ("forget",)}, *_RETAIN_BOUNDED),
    ),
    Row(
        "decay-zero-reference",
        "decay is void for a zero reference",
        ("CONV-41",),
        left=omega(decay="before_error", reference="zero"),
        right=omega(reference="zero"),
        window=3,
        exact=True,
        twins={"running reference": {"left": omega(decay="before_error"), "right": omega()}},
    ),
    Row(
        "decay-zero-start",
        "decay is void for call_start from M_0 = 0",
        ("CONV-41",),
        left=omega(decay="before_error", reference="call_start"),
        right=omega(reference="call_start"),
        given=without("M0"),
        window=3,
        exact=True,
        twins={
            "M_0 != 0": {"given": same},
            "running reference": {"left": omega(decay="before_error"), "right": omega()},
        },
    ),
    Row(
        "rate-no-momentum",
        "momentum 0, no Newton-Schulz, window_then_momentum: rate momentum = memory",
        ("CONV-42", "TITANS-14", "E-M01"),
        left=omega(rate="momentum"),
        right=omega(rate="memory"),
        given=STILL,
        window=3,
        twins={
            "momentum": {"given": ZERO_S},
            "momentum_then_window": {
                "left": omega(rate="momentum", order="momentum_then_window"),
                "right": omega(rate="memory", order="momentum_then_window"),
            },
            "Newton-Schulz": {
                "left": omega(rate="momentum", newton_schulz={}),
                "right": omega(rate="memory", newton_schulz={}),
            },
        },
        breaks=_MOMENTUM_FIRST,
    ),
    *[
        Row(
            f"rate-constant-{order}",
            (
                f"step size constant in time, S_0 = 0, no Newton-Schulz, {order}: rate momentum = "
                "memory (S differs by h)"
            ),
            ("CONV-42", "TITANS-14", "E-A03"),
            left=omega(rate="momentum", order=order),
            right=omega(rate="memory", order=order),
            given=both(ZERO_S, constant("step_size")),
            window=3,
            S=None,
            twins={
                "varying step size": {"given": ZERO_S},
                "S_0 != 0": {"given": constant("step_size")},
            },
        )
        for order in ("window_then_momentum", "momentum_then_window")
    ],
    Row(
        "rate-constant-per-dimension",
        "rate momentum = memory for constant step sizes per output dimension too",
        ("CONV-42",),
        left=omega(rate="momentum"),
        right=omega(rate="memory"),
        given=both(
            ZERO_S,
            constant("step_size"),
            per_row("step_size", 1.0, 0.5),
            per_row("momentum", 1.0, 0.7, 0.4),
        ),
        window=3,
        S=None,
        twins={"varying step size": {"given": both(ZERO_S, per_row("step_size", 1.0, 0.5))}},
    ),
    Row(
        "titans-rate-constant",
        "Titans LMM: rate momentum = memory for a constant step size and S_0 = 0",
        ("TITANS-14", "E-A03"),
        left=titans(rate="momentum"),
        right=titans(rate="memory"),
        given=both(ZERO_S, constant("step_size")),
        S=None,
        twins={
            "varying step size": {"given": ZERO_S},
            "S_0 != 0": {"given": constant("step_size")},
        },
    ),
    *[
        Row(
            f"rate-split-{rate}",
            f"rate split = {rate} for {words}",
            ("CONV-43",),
            left=omega(rate="split", newton_schulz={}),
            right=omega(rate=rate, newton_schulz={}),
            given=given,
            window=2,
            twins={broken: {"given": wrong}},
            breaks=_STEP_BOUNDED if rate != "momentum" else (),
        )
        for rate, words, given, broken, wrong in (
            ("both", "h' = h", copied("step_size_memory", "step_size"), "h' != h", same),
            (
                "momentum",
                "h' = 1",
                put(step_size_memory=1.0),
                "h' = 1.1",
                put(step_size_memory=1.1),
            ),
            (
                "none",
                "h = h' = 1",
                put(step_size=1.0, step_size_memory=1.0),
                "h' = 1.1",
                put(step_size=1.0, step_size_memory=1.1),
            ),
        )
    ],
    Row(
        "rate-split-memory",
        "rate split with h = 1 = memory with rate h'",
        ("CONV-43",),
        left=omega(put(step_size=1.0), rate="split"),
        right=omega(copied("step_size", "step_size_memory"), rate="memory"),
        window=2,
        twins={"h = 1.1": {"left": omega(put(step_size=1.1), rate="split")}},
        breaks=_STEP_BOUNDED,
    ),
    *[
        Row(
            f"momentum-sign-{name}",
            f"momentum_sign is invisible in y and M for S_0 = 0 ({words}); S changes sign",
            ("CONV-44",),
            left=omega(momentum_sign="plus", **axes),
            right=omega(momentum_sign="minus", **axes),
            given=ZERO_S,
            window=3,
            S=negated,
            exact=True,
            twins={"S_0 != 0": {"given": same}},
        )
        for name, words, axes in (
            ("plain", "no Newton-Schulz", {}),
            ("S", "argument S", {"newton_schulz": {}}),
            ("nesterov", "nesterov", {"newton_schulz": {"argument": "nesterov"}}),
            ("written-back", "written_back", {"newton_schulz": {"argument": "written_back"}}),
            ("accumulated", "accumulated", {"newton_schulz": {"argument": "accumulated"}}),
            (
                "order",
                "momentum_then_window",
                {"order": "momentum_then_window", "newton_schulz": {}},
            ),
        )
    ],
    Row(
        "momentum-sign-negated",
        "momentum_sign minus with -S_0 is plus with S_0: Titans' S is -S",
        ("CONV-44", "OMEGA-6"),
        left=titans(momentum_sign="plus"),
        right=titans(minus("S0"), momentum_sign="minus"),
        S=negated,
        exact=True,
        twins={"S_0 of the same sign": {"right": titans(momentum_sign="minus")}},
    ),
    Row(
        "call-start-zero",
        "M_0 = 0: reference call_start = zero",
        ("CONV-45", "E-M02", "E-R08"),
        left=omega(reference="call_start", newton_schulz={}),
        right=omega(reference="zero", newton_schulz={}),
        given=without("M0"),
        window=3,
        exact=True,
        twins={
            "M_0 != 0": {"given": same},
            "initial window and carry": {
                "left": omega(reference="call_start", window_at_boundary="carry", newton_schulz={}),
                "history": True,
            },
            "initial window and cut": {
                "left": omega(reference="call_start", window_at_boundary="cut", newton_schulz={}),
                "history": True,
            },
            "read chunk_start": {
                "left": omega(reference="call_start", read="chunk_start", newton_schulz={}),
                "right": omega(reference="zero", read="chunk_start", newton_schulz={}),
                "span": 3,
            },
            "running": {"right": omega(newton_schulz={})},
        },
        breaks=_READS_SPANS,
    ),
    Row(
        "call-start-zero-history",
        "M_0 = 0: call_start = zero with initial window tokens under recompute",
        ("CONV-45", "E-M02"),
        left=omega(reference="call_start"),
        right=omega(reference="zero"),
        given=without("M0", "window_residual"),
        window=3,
        history=True,
        twins={"M_0 != 0": {"given": without("window_residual")}},
        breaks=(*_READS_SPANS, {"window_at_boundary": ("cut",)}),
    ),
    Row(
        "span-one",
        "reference chunk_start with span 1 and recompute = running",
        ("CONV-46", "E-A14"),
        left=omega(reference="chunk_start", header={"span": 1}, newton_schulz={}),
        right=omega(newton_schulz={}),
        window=3,
        exact=True,
        twins={
            "span 2": {
                "left": omega(reference="chunk_start", header={"span": 2}, newton_schulz={})
            },
            "carry": {
                "left": omega(
                    reference="chunk_start",
                    header={"span": 1},
                    window_at_boundary="carry",
                    newton_schulz={},
                )
            },
            "cut": {
                "left": omega(
                    reference="chunk_start",
                    header={"span": 1},
                    window_at_boundary="cut",
                    newton_schulz={},
                )
            },
        },
        breaks=(*_READS_SPANS, {"window_at_boundary": ("carry", "cut")}),
    ),
    Row(
        "span-one-single-token",
        "span 1 = running for c = 1, whatever window_at_boundary",
        ("CONV-46", "WINDOW-14"),
        left=omega(reference="chunk_start", header={"span": 1}, window_at_boundary="cut"),
        right=omega(),
        exact=True,
        twins={"two window tokens": {"window": 2}},
        fixes_window=True,
        breaks=_READS_SPANS,
    ),
    Row(
        "span-one-momentum-first",
        "span 1 = running under momentum_then_window, whatever window_at_boundary",
        ("CONV-46", "WINDOW-14"),
        left=omega(
            reference="chunk_start",
            header={"span": 1},
            window_at_boundary="carry",
            order="momentum_then_window",
        ),
        right=omega(order="momentum_then_window"),
        window=3,
        exact=True,
        twins={
            "window_then_momentum": {
                "left": omega(
                    reference="chunk_start", header={"span": 1}, window_at_boundary="carry"
                ),
                "right": omega(),
            }
        },
        breaks=_READS_SPANS,
    ),
    Row(
        "span-covers-call",
        "span >= T: chunk_start = call_start, and window_at_boundary is void",
        ("CONV-47", "WINDOW-14", "E-M03"),
        left=omega(reference="chunk_start", header={"span": 7}, window_at_boundary="carry"),
        right=omega(reference="call_start"),
        tokens=7,
        window=3,
        exact=True,
        masks=False,
        twins={
            "span T - 1": {"left": omega(reference="chunk_start", header={"span": 6})},
            "span T counted from 1": {
                "left": omega(reference="chunk_start", header={"span": 7}, span_origin="multiple")
            },
            "phase 1": {"left": omega(reference="chunk_start", header={"span": 7, "phase": 1})},
        },
        breaks=({"span_origin": ("multiple",)},),
    ),
    Row(
        "span-covers-call-from-one",
        "span >= T + 1: chunk_start counted from multiples = call_start",
        ("CONV-47", "E-M03"),
        left=omega(reference="chunk_start", header={"span": 8}, span_origin="multiple"),
        right=omega(reference="call_start"),
        tokens=7,
        window=3,
        exact=True,
        masks=False,
        twins={
            "span T": {
                "left": omega(reference="chunk_start", header={"span": 7}, span_origin="multiple")
            },
            "initial window and carry": {
                "left": omega(
                    reference="chunk_start",
                    header={"span": 8},
                    span_origin="multiple",
                    window_at_boundary="carry",
                ),
                "right": omega(reference="call_start", window_at_boundary="carry"),
                "history": True,
            },
        },
    ),
    Row(
        "span-origin",
        "span_origin multiple = first with phase 1",
        ("CONV-47", "CONV-30"),
        left=omega(reference="chunk_start", span_origin="multiple"),
        right=omega(reference="chunk_start", header={"phase": 1}),
        window=3,
        span=3,
        exact=True,
        masks=False,
        twins={"phase 0": {"right": omega(reference="chunk_start")}},
    ),
    Row(
        "order-one-token",
        "order is void for c = 1 and weight 1",
        ("CONV-48",),
        left=omega(order="momentum_then_window", newton_schulz={}),
        right=omega(newton_schulz={}),
        given=ONE,
        twins={
            "varying weights": {"given": same},
            "two window tokens": {"window": 2, "given": same},
        },
        fixes_window=True,
    ),
    Row(
        "order-one-token-no-momentum",
        "order is void for c = 1 and any weight at momentum 0",
        ("CONV-48",),
        left=omega(order="momentum_then_window"),
        right=omega(),
        given=STILL,
        twins={"momentum": {"given": ZERO_S}, "two window tokens": {"window": 2}},
        fixes_window=True,
    ),
    Row(
        "order-constant-weight",
        (
            "order is void for c = 1, a constant weight, S_0 = 0, no Newton-Schulz (S differs by "
            "the weight)"
        ),
        ("CONV-48",),
        left=omega(order="momentum_then_window"),
        right=omega(),
        given=both(ZERO_S, put(window_weights=0.4)),
        S=None,
        twins={"S_0 != 0": {"given": put(window_weights=0.4)}, "varying weight": {"given": ZERO_S}},
        fixes_window=True,
        breaks=_DELTA_MOMENTUM,
    ),
    Row(
        "written-back-no-momentum",
        "momentum 0: written_back = S",
        ("CONV-49",),
        left=omega(newton_schulz={"argument": "written_back"}),
        right=omega(newton_schulz={}),
        given=STILL,
        window=3,
        exact=True,
        twins={"momentum": {"given": same}},
    ),
    Row(
        "scale-two-over-two",
        "d_out = 2: gradient_scale 2/d_out = 1",
        ("CONV-50",),
        left=omega(gradient_scale="2/d_out"),
        right=omega(),
        d_out=2,
        window=2,
        exact=True,
        twins={"d_out = 3": {"d_out": 3}},
    ),
    Row(
        "sqrt-wide",
        "d_out <= d_phi: Newton-Schulz scale sqrt = 1",
        ("CONV-50", "NS-9", "NS-19"),
        left=omega(newton_schulz={"scale": "sqrt"}),
        right=omega(newton_schulz={}),
        d_in=4,
        d_out=3,
        window=2,
        exact=True,
        twins={"d_out > d_phi": {"d_in": 3, "d_out": 4}},
    ),
    Row(
        "transpose",
        "Newton-Schulz on the transpose is the same function",
        ("CONV-50", "NS-8", "NS-19"),
        left=omega(newton_schulz={"transpose": "tall"}),
        right=omega(newton_schulz={"transpose": "never"}),
        d_in=3,
        d_out=5,
        window=2,
        twins={
            "one step fewer": {"right": omega(newton_schulz={"transpose": "never", "steps": 4})},
            "other coefficients": {
                "right": omega(newton_schulz={"transpose": "never", "coefficients": "cubic"})
            },
        },
    ),
    Row(
        "guard-clamp",
        "eps = 0: guard clamp = add",
        ("NS-6", "NS-19"),
        left=omega(newton_schulz=ns(guard="clamp")),
        right=omega(newton_schulz=ns()),
        window=2,
        exact=True,
        twins={
            "eps = 0.1": {
                "left": omega(newton_schulz=ns(guard="clamp", eps=0.1)),
                "right": omega(newton_schulz=ns(eps=0.1)),
            }
        },
    ),
    Row(
        "guard-return",
        "||S|| >= eps: guard return = add",
        ("NS-6", "NS-19"),
        left=omega(newton_schulz={"guard": "return", "eps": 1e-6}),
        right=omega(newton_schulz={"eps": 1e-6}),
        window=2,
        exact=True,
        twins={
            "||S|| < eps": {
                "left": omega(newton_schulz={"guard": "return", "eps": 50.0}),
                "right": omega(newton_schulz={"eps": 50.0}),
            }
        },
    ),
    Row(
        "coefficients-one-row",
        "explicit coefficients of one row = the named row at every step",
        ("NS-4", "NS-19"),
        left=omega(newton_schulz={"coefficients": [[3.4445, -4.7750, 2.0315]]}),
        right=omega(newton_schulz={"coefficients": "muon"}),
        window=2,
        exact=True,
        twins={
            "another second row": {
                "left": omega(
                    newton_schulz={"coefficients": [[3.4445, -4.7750, 2.0315], [1.5, -0.5, 0]]}
                )
            }
        },
    ),
    Row(
        "layout-zero",
        "layout is invisible in y when M_0 = S_0 = 0; M and S are transposed",
        ("CONV-51",),
        left=omega(layout="plain", newton_schulz={}),
        right=omega(layout="transposed", newton_schulz={}),
        given=without("M0", "S0"),
        window=3,
        exact=True,
        twins={"M_0 != 0, square": {"given": without("S0"), "d_in": 4, "d_out": 4}},
    ),
    Row(
        "layout-symmetric",
        "layout is invisible in y when M_0 and S_0 are symmetric",
        ("CONV-51",),
        left=omega(layout="plain"),
        right=omega(layout="transposed"),
        given=both(symmetric("M0"), symmetric("S0")),
        d_in=4,
        d_out=4,
        twins={
            "M_0 not symmetric": {"given": symmetric("S0")},
            "S_0 not symmetric": {"given": symmetric("M0")},
        },
    ),
    Row(
        "layout-transposed",
        "layout transposed with M_0^T and S_0^T = plain; y is not transposed",
        ("CONV-25",),
        left=omega(layout="plain"),
        right=omega(
            put(M0=lambda x: ops.transpose(x["M0"]), S0=lambda x: ops.transpose(x["S0"])),
            layout="transposed",
        ),
        twins={
            "M_0 as it is, square": {"right": omega(layout="transposed"), "d_in": 4, "d_out": 4}
        },
    ),
    Row(
        "rank-one-cubic",
        "S of rank one, eps = 0: cubic steps are invisible",
        ("CONV-52", "NS-18", "E-M08"),
        left=omega(newton_schulz=ns(coefficients="cubic", steps=1)),
        right=omega(newton_schulz=ns(coefficients="cubic", steps=7)),
        given=STILL,
        twins={
            "momentum": {"given": ZERO_S},
            "two window tokens": {"window": 2},
            "an eps of 1": {
                "left": omega(newton_schulz=ns(coefficients="cubic", steps=1, eps=1.0)),
                "right": omega(newton_schulz=ns(coefficients="cubic", steps=7, eps=1.0)),
            },
        },
        fixes_window=True,
    ),
    Row(
        "rank-one-muon",
        "S of rank one, eps = 0: five Muon steps are the cubic times 0.69644",
        ("CONV-52", "NS-18", "E-M08"),
        left=omega(newton_schulz=ns(), rate="memory"),
        right=omega(
            times("step_size", MUON_OF_ONE), newton_schulz=ns(coefficients="cubic"), rate="memory"
        ),
        given=STILL,
        twins={
            "momentum": {"given": ZERO_S},
            "another factor": {
                "right": omega(
                    times("step_size", 0.7), newton_schulz=ns(coefficients="cubic"), rate="memory"
                )
            },
        },
        fixes_window=True,
        breaks=_STEP_BOUNDED,
    ),
]

_ARGUMENTS = ("S", "nesterov", "written_back", "accumulated")


def _scaled(argument: str = "S", s: float = 3.0, **keys: Any) -> dict[str, Any]:
    settings = ns(argument=argument, **keys)
    return {
        "left": omega(newton_schulz=settings, gradient_scale=s),
        "right": omega(newton_schulz=settings),
    }


UNDER_NEWTON_SCHULZ: list[Row] = [
    *[
        Row(
            f"ns-gradient-scale-{argument}",
            f"Newton-Schulz, eps = 0, S_0 = 0, argument {argument}: gradient_scale is invisible",
            ("CONV-53", "NS-12", "E-A18", "E-M04"),
            **_scaled(argument),
            given=ZERO_S,
            window=3,
            S=None,
            twins={
                "S_0 != 0": {"given": same},
                "eps = 0.1": _scaled(argument, eps=0.1),
                "s = -1": _scaled(argument, -1.0),
                "scale norm": _scaled(argument, scale="norm"),
                "written_back": _scaled("written_back"),
                "accumulated": _scaled("accumulated"),
                "no Newton-Schulz": {"left": omega(gradient_scale=3.0), "right": omega()},
            },
            breaks=_DELTA_MOMENTUM if argument == "S" else (),
        )
        for argument in ("S", "nesterov")
    ],
    *[
        Row(
            f"ns-gradient-scale-no-momentum-{argument}",
            f"Newton-Schulz, eps = 0, momentum 0, argument {argument}: gradient_scale is invisible",
            ("CONV-53", "E-M04"),
            **_scaled(argument),
            given=STILL,
            window=3,
            twins={"s = -1": _scaled(argument, -1.0), "accumulated": _scaled("accumulated")}
            | ({"momentum and S_0": {"given": same, "S": None}}),
        )
        for argument in ("S", "nesterov", "written_back")
    ],
    Row(
        "ns-uniform-ones",
        "Newton-Schulz, eps = 0, S_0 = 0: uniform weights 1/c = ones",
        ("CONV-53", "NS-12", "E-A18"),
        left=omega(weights(1 / 3, 1 / 3, 1 / 3), **_NS),
        right=omega(weights(1.0, 1.0, 1.0), **_NS),
        given=ZERO_S,
        window=3,
        S=None,
        twins={
            "S_0 != 0": {"given": same},
            "unequal weights": {"left": omega(weights(1.0, 0.5, 0.25), **_NS)},
            "no Newton-Schulz": {
                "left": omega(weights(1 / 3, 1 / 3, 1 / 3)),
                "right": omega(weights(1.0, 1.0, 1.0)),
            },
        },
        fixes_window=True,
        breaks=_DELTA_MOMENTUM,
    ),
    Row(
        "ns-step-factor",
        (
            "Newton-Schulz, eps = 0, S_0 = 0, rate momentum: a constant factor of the step size "
            "is invisible"
        ),
        ("CONV-53", "E-A03", "E-M04"),
        left=omega(times("step_size", 3.0), rate="momentum", **_NS),
        right=omega(rate="momentum", **_NS),
        given=ZERO_S,
        window=3,
        S=None,
        twins={
            "rate both": {
                "left": omega(times("step_size", 3.0), rate="both", **_NS),
                "right": omega(rate="both", **_NS),
            },
            "nesterov": {
                "left": omega(
                    times("step_size", 3.0), rate="momentum", newton_schulz=ns(argument="nesterov")
                ),
                "right": omega(rate="momentum", newton_schulz=ns(argument="nesterov")),
            },
            "a factor that varies": {
                "left": omega(times("step_size", wavy), rate="momentum", **_NS)
            },
            "S_0 != 0": {"given": same},
        },
        breaks=_STEP_BOUNDED,
    ),
    Row(
        "ns-step-invisible",
        (
            "Newton-Schulz, eps = 0, momentum 0: the step size inside is invisible, rate momentum "
            "= none"
        ),
        ("CONV-53", "E-A03"),
        left=omega(rate="momentum", **_NS),
        right=omega(rate="none", **_NS),
        given=STILL,
        window=3,
        twins={
            "momentum": {"given": ZERO_S, "S": None},
            "one step size per output dimension": {
                "left": omega(per_row("step_size", 1.0, 0.3), rate="momentum", **_NS)
            },
            "momentum_then_window": {
                "left": omega(rate="momentum", order="momentum_then_window", **_NS),
                "right": omega(rate="none", order="momentum_then_window", **_NS),
            },
        },
        breaks=_MOMENTUM_FIRST,
    ),
    Row(
        "ns-rate-constant",
        (
            "Newton-Schulz, eps = 0, constant scalar step size, S_0 = 0, argument S: rate memory "
            "= both"
        ),
        ("CONV-54", "E-M05"),
        left=omega(rate="memory", **_NS),
        right=omega(rate="both", **_NS),
        given=both(ZERO_S, constant("step_size")),
        window=3,
        S=None,
        twins={
            "varying step size": {"given": ZERO_S},
            "S_0 != 0": {"given": constant("step_size")},
            "one step size per output dimension": {
                "given": both(ZERO_S, constant("step_size"), per_row("step_size", 1.0, 0.3))
            },
            "nesterov": {
                "left": omega(rate="memory", newton_schulz=ns(argument="nesterov")),
                "right": omega(rate="both", newton_schulz=ns(argument="nesterov")),
            },
            "written_back": {
                "left": omega(rate="memory", newton_schulz=ns(argument="written_back")),
                "right": omega(rate="both", newton_schulz=ns(argument="written_back")),
            },
        },
    ),
    Row(
        "ns-rate-constant-order",
        (
            "Newton-Schulz, eps = 0, constant scalar step size, S_0 = 0, momentum_then_window: "
            "rate memory = both"
        ),
        ("CONV-54", "E-M05"),
        left=omega(rate="memory", order="momentum_then_window", **_NS),
        right=omega(rate="both", order="momentum_then_window", **_NS),
        given=both(ZERO_S, constant("step_size")),
        window=3,
        S=None,
        twins={"varying step size": {"given": ZERO_S}},
    ),
    *[
        Row(
            f"ns-rate-no-momentum-{argument}",
            (
                f"Newton-Schulz, eps = 0, momentum 0, argument {argument}: rate memory = both for "
                "any scalar step sizes"
            ),
            ("CONV-54", "E-M05"),
            left=omega(rate="memory", newton_schulz=ns(argument=argument)),
            right=omega(rate="both", newton_schulz=ns(argument=argument)),
            given=STILL,
            window=3,
            twins={"momentum": {"given": ZERO_S, "S": None}}
            | (
                {
                    "one step size per output dimension": {
                        "given": both(STILL, per_row("step_size", 1.0, 0.3))
                    }
                }
                if argument != "nesterov"
                else {}
            ),
            breaks=_MOMENTUM_FIRST if argument == "S" else (),
        )
        for argument in ("S", "nesterov", "written_back")
    ],
    Row(
        "ns-edge",
        "Newton-Schulz, eps = 0, momentum 0, positive weights: window_edge is invisible",
        ("CONV-55", "WINDOW-21", "E-M06"),
        left=omega(window_edge="renormalise", **_NS),
        right=omega(**_NS),
        given=STILL,
        window=3,
        twins={
            "momentum": {"given": ZERO_S},
            "weights of both signs": {"given": both(STILL, weights(1.0, -2.0, 0.5))},
            "no Newton-Schulz": {"left": omega(window_edge="renormalise"), "right": omega()},
            "scale norm": {
                "left": omega(window_edge="renormalise", newton_schulz=ns(scale="norm")),
                "right": omega(newton_schulz=ns(scale="norm")),
            },
        },
    ),
]

_BLANK = without("M0", "S0")


def _first(name: str, words: str, left: Side, right: Side, **more: Any) -> Row:
    """Tokens after the first, since a first token from zero state hides the difference of the
    sides.
    """
    row: dict[str, Any] = {
        "given": _BLANK,
        "tokens": 1,
        "masks": False,
        "window": 3,
        "S": None,
        **more,
    }
    return Row(
        f"first-token-{name}",
        f"the first token from zero state hides {words}",
        ("CONV-56",),
        left=left,
        right=right,
        twins={"a second token": {"tokens": 2}},
        **row,
    )


FIRST_TOKEN: list[Row] = [
    _first("retain", "retain", omega(**_NS), omega(times("retain", 0.5), **_NS)),
    _first("momentum", "momentum", omega(**_NS), omega(times("momentum", 0.5), **_NS)),
    _first("decay", "decay", omega(**_NS), omega(decay="before_error", **_NS)),
    _first("reference", "the reference", omega(**_NS), omega(reference="call_start", **_NS)),
    _first("zero", "a zero reference", omega(**_NS), omega(reference="zero", **_NS)),
    _first(
        "written-back",
        "written_back",
        omega(**_NS),
        omega(newton_schulz=ns(argument="written_back")),
    ),
    _first(
        "boundary",
        "window_at_boundary",
        omega(reference="chunk_start", **_NS),
        omega(reference="chunk_start", window_at_boundary="carry", **_NS),
        span=1,
    ),
    Row(
        "first-token-read",
        "the first token from zero state does not hide read: before is 0",
        ("CONV-56",),
        left=omega(read="before"),
        right=omega(read="before", takes=times("q", 0.0)),
        given=_BLANK,
        tokens=1,
        masks=False,
        exact=True,
        twins={
            "read after": {
                "left": omega(read="after"),
                "right": omega(read="after", takes=times("q", 0.0)),
            }
        },
    ),
]

READS_AND_NORMS: list[Row] = [
    Row(
        "read-span-one",
        "read chunk_start with span 1 = before",
        ("CONV-57",),
        left=omega(read="chunk_start", header={"span": 1}),
        right=omega(read="before"),
        window=2,
        exact=True,
        twins={
            "span 2": {"left": omega(read="chunk_start", header={"span": 2})},
            "reference call_start": {
                "left": omega(read="chunk_start", header={"span": 1}, reference="call_start"),
                "right": omega(read="before", reference="call_start"),
            },
        },
        breaks=({"reference": ("chunk_start", "call_start")},),
    ),
    Row(
        "read-one-token",
        "read call_end = after in a call of one token",
        ("CONV-57",),
        left=omega(read="call_end"),
        right=omega(),
        tokens=1,
        masks=False,
        exact=True,
        twins={"two tokens": {"tokens": 2}},
    ),
    Row(
        "norm-place",
        "norm_place is invisible for the identity map",
        ("CONV-58",),
        left=omega(q_norm="l2", k_norm="rms"),
        right=omega(q_norm="l2", k_norm="rms", norm_place="after_phi"),
        window=2,
        exact=True,
        twins={
            "another map": {
                "left": omega(
                    q_norm="l2",
                    k_norm="rms",
                    header={"feature_map": {"kind": "elementwise", "degree": 2}},
                ),
                "right": omega(
                    q_norm="l2",
                    k_norm="rms",
                    norm_place="after_phi",
                    header={"feature_map": {"kind": "elementwise", "degree": 2}},
                ),
            },
        },
    ),
    Row(
        "norm-place-token",
        "at level token norm_place is invisible for the identity map and k_norm none",
        ("CONV-58",),
        left=omega(q_norm="l2", header={"level": "token"}),
        right=omega(q_norm="l2", norm_place="after_phi", header={"level": "token"}),
        level="token",
        exact=True,
        twins={
            "k_norm l2, which gates read": {
                "left": omega(k_norm="l2", header={"level": "token"}),
                "right": omega(k_norm="l2", norm_place="after_phi", header={"level": "token"}),
            }
        },
        breaks=({"k_norm": ("l2", "rms")},),
    ),
]


def _halved_targets(x: Inputs) -> Any:
    return x["v"] / ops.expand_dims(x["retain"], -1)


_BEFORE = put(step_size=lambda x: x["retain"] * x["step_size"], v=_halved_targets)

REPARAMETRISATIONS: list[Row] = [
    Row(
        "retain-forget-parameters",
        "at level token retain with (W, b) = forget with (-W, -b)",
        ("CONV-59", "GATES-11", "E-A06"),
        left=omega(gate="retain", header={"level": "token"}),
        right=omega(
            minus("param/W_retain", "param/b_retain"), gate="forget", header={"level": "token"}
        ),
        level="token",
        twins={
            "b not negated": {
                "right": omega(minus("param/W_retain"), gate="forget", header={"level": "token"})
            },
            "W not negated": {
                "right": omega(minus("param/b_retain"), gate="forget", header={"level": "token"})
            },
        },
        breaks=_RETAIN_BOUNDED,
    ),
    Row(
        "decay-delta",
        "Delta: before_error with (h, v) = after_error with (r h, v / r)",
        ("CONV-60", "DELTA-12"),
        left=delta(decay="before_error"),
        right=delta(_BEFORE),
        twins={
            "v not divided": {"right": delta(times("step_size", lambda x: x["retain"]))},
            "h not multiplied": {"right": delta(put(v=_halved_targets))},
        },
        breaks=(
            {"gate": ("forget", "none")},
            {"rate": ("both", "none")},
            *_RETAIN_BOUNDED,
            *_STEP_BOUNDED,
        ),
    ),
    Row(
        "decay-momentum",
        (
            "Titans: before_error with (h, v) = after_error with (r h, v / r), rate momentum, any "
            "momentum"
        ),
        ("CONV-60", "E-M07"),
        left=titans(decay="before_error"),
        right=titans(_BEFORE),
        twins={
            "rate memory": {
                "left": titans(decay="before_error", rate="memory"),
                "right": titans(_BEFORE, rate="memory"),
            },
            "rate both": {
                "left": titans(decay="before_error", rate="both"),
                "right": titans(_BEFORE, rate="both"),
            },
        },
        breaks=(
            {"gate": ("forget", "none")},
            {"rate": ("memory", "both", "none")},
            *_DELTA_MOMENTUM,
            *_RETAIN_BOUNDED,
            *_STEP_BOUNDED,
        ),
    ),
    Row(
        "decay-memory",
        "Titans: before_error with (h, v) = after_error with (r h, v / r), rate memory, momentum 0",
        ("CONV-60", "E-M07"),
        left=titans(decay="before_error", rate="memory"),
        right=titans(_BEFORE, rate="memory"),
        given=STILL,
        twins={
            "momentum": {"given": ZERO_S, "S": None},
            "rate both": {
                "left": titans(decay="before_error", rate="both"),
                "right": titans(_BEFORE, rate="both"),
            },
        },
        breaks=(
            {"gate": ("forget", "none")},
            *_RETAIN_BOUNDED,
            *_STEP_BOUNDED,
        ),
    ),
    Row(
        "decay-window",
        "Omega: before_error with (h, v) = after_error with (r h, v / r) if retain is constant",
        ("CONV-60", "E-M07"),
        left=omega(decay="before_error"),
        right=omega(_BEFORE),
        given=constant("retain"),
        window=3,
        twins={
            "varying retain": {"given": same},
            "Newton-Schulz outside": {
                "left": omega(decay="before_error", rate="memory", newton_schulz={}),
                "right": omega(_BEFORE, rate="memory", newton_schulz={}),
            },
        },
        breaks=(
            {"gate": ("forget", "none")},
            {"rate": ("memory", "both", "none")},
            *_DELTA_MOMENTUM,
            *_RETAIN_BOUNDED,
            *_STEP_BOUNDED,
        ),
    ),
    Row(
        "scale-momentum",
        "no Newton-Schulz, rate momentum: s with h = 1 with s h",
        ("CONV-61", "E-A05"),
        left=omega(gradient_scale=3.0),
        right=omega(times("step_size", 3.0)),
        window=2,
        twins={
            "h not multiplied": {"right": omega()},
            "Newton-Schulz": {
                "left": omega(gradient_scale=3.0, newton_schulz={}, rate="both"),
                "right": omega(times("step_size", 3.0), newton_schulz={}, rate="both"),
            },
        },
        breaks=({"rate": ("memory", "both", "none")}, *_DELTA_MOMENTUM, *_STEP_BOUNDED),
    ),
    Row(
        "scale-memory",
        "no Newton-Schulz, rate memory: s with h and S_0 = 1 with s h and S_0 / s",
        ("CONV-61", "E-A05"),
        left=omega(gradient_scale=3.0, rate="memory"),
        right=omega(both(times("step_size", 3.0), times("S0", 1 / 3)), rate="memory"),
        window=2,
        S=None,
        twins={"S_0 not divided": {"right": omega(times("step_size", 3.0), rate="memory")}},
        breaks=(*_DELTA_MOMENTUM, *_STEP_BOUNDED),
    ),
    Row(
        "scale-both",
        "no Newton-Schulz, rate both: s with h and S_0 = 1 with sqrt(s) h and S_0 / sqrt(s)",
        ("CONV-61", "E-A05"),
        left=omega(gradient_scale=3.0, rate="both"),
        right=omega(
            both(times("step_size", math.sqrt(3.0)), times("S0", 1 / math.sqrt(3.0))), rate="both"
        ),
        window=2,
        S=None,
        twins={
            "s h instead": {
                "right": omega(both(times("step_size", 3.0), times("S0", 1 / 3.0)), rate="both")
            }
        },
        breaks=(*_DELTA_MOMENTUM, *_STEP_BOUNDED),
    ),
]

ROWS: tuple[Row, ...] = (
    *RULES,
    *CLASSES,
    *UNDER_NEWTON_SCHULZ,
    *FIRST_TOKEN,
    *READS_AND_NORMS,
    *REPARAMETRISATIONS,
)


def _delta_with(h: float, divided: bool) -> Side:
    return delta(
        put(
            step_size=lambda x: np.full(x["k"].shape[:-1], h),
            v=(lambda x: x["v"] / h) if divided else (lambda x: x["v"]),
        )
    )


LIMITS: tuple[Limit, ...] = (
    Limit(
        "delta-hebbian-limit",
        (
            "Delta with step size h and values v / h tends to the Hebbian rule, to first order: "
            "half of h, half of the distance"
        ),
        ("HEBBIAN-8", "DELTA-13", "E-A26"),
        left=lambda h: _delta_with(h, True),
        right=hebbian(),
        given=without("step_size"),
        twins={"v not divided": lambda h: _delta_with(h, False)},
    ),
    Limit(
        "titans-hebbian-limit",
        (
            "Titans LMM with momentum 0, step size h and values v / h tends to the Hebbian rule, "
            "to first order"
        ),
        ("HEBBIAN-8", "TITANS-12", "E-A26"),
        left=lambda h: replace(_delta_with(h, True), rule="titans_lmm"),
        right=hebbian(),
        given=without("step_size", "momentum", "S0"),
        twins={
            "momentum": lambda h: replace(
                _delta_with(h, True),
                rule="titans_lmm",
                takes=both(
                    _delta_with(h, True).takes,
                    put(momentum=lambda x: np.full(x["k"].shape[:-1], 0.5)),
                ),
            )
        },
    ),
)
