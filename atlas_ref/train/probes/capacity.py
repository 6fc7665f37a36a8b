"""Capacity without training: how many of the pairs that a memory was written it reads back.

    y_i = M_T(phi(k_i)),      recalled by angle if <y_i, v_i> > <y_i, v_j> for all j != i,
                              by error if |y_i - v_i| <= bound |v_i|

Specified in specs/probes.md (PROBE-1 to PROBE-7). What theory says of the numbers:
`atlas_ref.train.probes.limits`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from atlas_ref import backend, forms
from atlas_ref.conventions import Convention, resolve
from atlas_ref.messages import no_such
from atlas_ref.parts import feature_maps
from atlas_ref.parts.feature_maps import IDENTITY, FeatureMap
from atlas_ref.rules import RULES, Rule
from atlas_ref.rules.checks import check_count
from atlas_ref.rules.sequence import Tokens
from atlas_ref.types import Array, Frozen

Count = Annotated[int, Field(ge=1, le=10**6)]
Length = Annotated[int, Field(ge=1, le=4096)]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

#: Numbers of the largest array that is made.
LARGEST = 2**28

#: The best matrix for the pairs, which no rule with a matrix can pass (PROBE-4).
LEAST_SQUARES = "least_squares"
#: What is written and read back: each rule, and the ceiling.
MEMORIES = (*RULES, LEAST_SQUARES)
#: Stands for the number of pairs where a setting is a number of tokens (PROBE-2).
PAIRS = "pairs"


class Settings(Frozen):
    """What is written, and by which rule (PROBE-1, PROBE-2).

    Attributes:
        memory: a rule of `RULES`, or least_squares.
        d_k, d_v: length of keys and of values.
        keys: unit, of length 1; free, of any length.
        feature_map, features: phi of keys before the rule, and its columns where it may have any.
        passes: times that all pairs are written, in the same order.
        period: tokens between two writes, or "pairs": one write at the end of each pass.
        step_size: of each write; None for the full step of PROBE-3, where there is one.
        momentum, retain: gates of each token, where the rule has them.
        convention: a preset's name, axes with values, or a `Convention`; that of the rule by
            default.
        parameters: further settings of the rule's `Config`, such as window, chunk, memory. The word
            "pairs" stands for the number of pairs.
        bound: error of a read, relative to its value, up to which a pair counts as recalled.
        form: in which the rule is computed.
    """

    memory: str = "delta"
    d_k: Length = 16
    d_v: Length = 16
    keys: Literal["unit", "free"] = "unit"
    feature_map: FeatureMap = IDENTITY
    features: Length | None = None
    passes: Count = 1
    period: Count | Literal["pairs"] = 1
    step_size: Positive | None = None
    momentum: Share = 0.0
    retain: Share = 1.0
    convention: Any = None
    parameters: Mapping[str, Any] = {}
    bound: Positive = 0.1
    form: str = "sequential"

    @field_validator("memory")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in MEMORIES:
            raise ValueError(no_such("kind", value, MEMORIES))
        return value

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.memory == LEAST_SQUARES:
            if self.convention is not None or self.parameters:
                raise ValueError("least_squares: it has neither a convention nor parameters")
            return self
        config = self.config(1)
        if self.step_size is None and self.rule.has_error and not self.rule.in_family:
            raise ValueError(f"step_size: missing, {self.memory} has no full step (PROBE-3)")
        if self.step_size is None and self.momentum == 1.0:
            raise ValueError("step_size: missing, momentum 1 has no full step (PROBE-3)")
        if config.convention.rate == "none" and self.step_size is not None:
            raise ValueError("step_size: given, but rate none has none")
        return self

    @property
    def rule(self) -> Rule:
        """The rule, where the memory is one.

        Raises:
            KeyError: least_squares, which is no rule.
        """
        return RULES[self.memory]

    @property
    def chosen_convention(self) -> Convention:
        """The convention in force; given gates have the rule's own meaning (CONV-4)."""
        value = "spec" if self.convention is None else self.convention
        return resolve(value, rule=self.rule.name)

    def width(self) -> int:
        """Columns of phi, which are the rule's d_in."""
        open_width = self.feature_map.kind in feature_maps.OF_ANY_WIDTH
        if open_width:
            return self.features or self.d_k
        return feature_maps.d_phi(self.feature_map, self.d_k)

    def config(self, count: int) -> Any:
        """The rule's configuration for so many pairs (PROBE-2)."""
        own = {name: count if each == PAIRS else each for name, each in self.parameters.items()}
        sizes = {"d_in": self.width(), "d_out": self.d_v, "convention": self.chosen_convention}
        if clash := sorted(own.keys() & {*sizes, "heads", "d_model"}):
            raise ValueError(f"parameters: {clash[0]}: stated by the probe itself")
        if self.rule.in_family and self.rule.has_window:
            own.setdefault("window", 1)
        return self.rule.Config.model_validate({**own, **sizes})


class Recall(NamedTuple):
    """What was read back of S draws of N pairs (PROBE-5).

    Attributes:
        by_angle, by_error (S, N): plain booleans.
        error (S, N): |y_i - v_i| / |v_i|.
    """

    by_angle: Array
    by_error: Array
    error: Array


def pairs(settings: Settings, count: int, seeds: Iterable[int]) -> tuple[Array, Array]:
    """Random keys (S, count, d_k) and values (S, count, d_v) of some seeds (PROBE-1).

    Directions are uniform; free keys have entries of variance 1 / d_k. The first pairs of a longer
    list are those of a shorter one.

    Raises:
        ValueError: a count below 1, or a seed that is not a whole number of at least 0.
    """
    check_count("count", count)
    if count == 0:
        raise ValueError("count: 0, at least one pair is needed")
    draws = []
    for seed in seeds:
        check_count("seed", seed)
        bits = np.random.Philox(seed)
        draw = np.random.Generator(bits.jumped(2))  # not the streams of maps and weights
        keys = draw.standard_normal((count, settings.d_k))
        values = np.random.Generator(bits.jumped(3)).standard_normal((count, settings.d_v))
        draws.append((_unit(keys), _unit(values), keys / math.sqrt(settings.d_k)))
    if not draws:
        raise ValueError("seeds: at least one is needed")
    unit, values, free = map(np.stack, zip(*draws, strict=True))
    return (unit if settings.keys == "unit" else free), values


def check_size(settings: Settings, count: int, draws: int) -> None:
    """Refuse what no memory holds, before anything is drawn (PROBE-2).

    Raises:
        ValueError: an array would be too large, of all keys, scores or memories.
    """
    check_count("count", count)
    width, window = settings.width(), 1
    if settings.memory != LEAST_SQUARES and settings.rule.in_family:
        window = settings.rule.window(settings.config(max(count, 1)))
    numbers = draws * max(count * max(window * width, settings.d_v, count), width * settings.d_v)
    if numbers > LARGEST:
        raise ValueError(
            f"pairs: {count} of {draws} draws, with keys of {width} columns and a window of "
            f"{window}, need an array of {numbers} numbers, at most {LARGEST} are made"
        )


def lifted(settings: Settings, keys: Array, *, seed: int = 0) -> Array:
    """phi of keys, of length 1 where keys are (PROBE-1, PHI-1): (S, N, d_phi)."""
    tensors = feature_maps.init(
        settings.feature_map, settings.d_k, seed, features=settings.features
    )
    phi = feature_maps.apply(settings.feature_map, tensors, keys)
    return _unit(phi) if settings.keys == "unit" else phi


def recalled(reads: Array, values: Array, *, bound: float) -> Recall:
    """Pairs whose value is read back, by angle and by error (PROBE-5).

    Args:
        reads, values (S, N, d_v): y_i and v_i.
        bound: of the relative error.

    A read that is zero or not finite recalls nothing.
    """
    length = np.linalg.norm(values, axis=-1)
    finite = np.isfinite(reads).all(axis=-1)
    own_read = np.where(finite[..., None], reads, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):  # reads of a memory that grew without end
        scores = own_read @ (values / length[..., None]).swapaxes(-1, -2)  # (S, N, N)
        error = np.linalg.norm(own_read - values, axis=-1) / length
        own = np.diagonal(scores, axis1=-2, axis2=-1)
        others = np.where(np.eye(values.shape[-2], dtype=bool), -np.inf, scores).max(axis=-1)
    error = np.where(finite, error, np.inf)
    return Recall((own_read != 0).any(axis=-1) & (own > others), error <= bound, error)


def measure(settings: Settings, count: int, seeds: Iterable[int] = (0,)) -> Recall:
    """Write `count` random pairs once or several times, and read them back (PROBE-1 to PROBE-5).

    Args:
        settings: the memory and what is written.
        count: number of pairs N.
        seeds: one draw of pairs for each; the tensors of a feature map and the first weights are
            those of the first seed.

    Raises:
        ValueError: settings, a count or seeds that contradict the rule or each other.
    """
    seeds = tuple(seeds)
    check_size(settings, count, len(seeds))
    keys, values = pairs(settings, count, seeds)
    phi = lifted(settings, keys, seed=seeds[0])
    return recalled(_reads(settings, phi, values, seeds[0]), values, bound=settings.bound)


def _reads(settings: Settings, phi: Array, values: Array, seed: int) -> Array:
    if settings.memory == LEAST_SQUARES:
        return least_squares(phi, values)
    return written(settings, phi, values, seed=seed)


def least_squares(phi: Array, values: Array) -> Array:
    """Reads (S, N, d_v) of the matrix of least error for each draw of pairs (PROBE-4).

    M = argmin_M sum_i |M phi_i - v_i|^2, the shortest of several.
    """
    return np.stack(
        [f @ np.linalg.lstsq(f, v, rcond=None)[0] for f, v in zip(phi, values, strict=True)]
    )


def written(settings: Settings, phi: Array, values: Array, *, seed: int = 0) -> Array:
    """Reads (S, N, d_v) of the memory at every key after all passes (PROBE-2, PROBE-3, PROBE-14).

    Args:
        phi (S, N, d_phi): keys of the rule. values (S, N, d_v): what it writes to them.
        seed: of the first weights of a deep memory.

    Each pass is one call, on the current backend; the reads are one more call whose tokens are all
    inactive.
    """
    rule, count = settings.rule, phi.shape[-2]
    config = settings.config(count)
    drawn = {} if rule.in_family else rule.draw(config, seed)  # maps are applied already
    tensors = backend.device(drawn)
    k, v = phi[:, None], values[:, None]  # (S, heads 1, N, ...)
    tokens = _tokens(settings, config, k, v)
    state = rule.start(config, k.shape[:-2])
    with np.errstate(over="ignore", invalid="ignore"):  # a step may be too large
        for _ in range(settings.passes):
            state, _y = forms.run(rule, config, tokens, state, form=settings.form, phi=tensors)
        silent = tokens.replaced(active=np.zeros(count, bool))
        _state, reads = forms.run(rule, config, silent, state, phi=tensors)
    return np.asarray(backend.host(reads))[:, 0]


def _tokens(settings: Settings, config: Any, k: Array, v: Array) -> Tokens:
    """Pairs as tokens with constant gates, of which every `period`-th is active (PROBE-2)."""
    rule, (S, _, N, _) = settings.rule, k.shape
    period = N if settings.period == PAIRS else settings.period
    ones = np.ones((S, 1, N))
    gates: dict[str, Array] = {}
    kept = {"retain": settings.retain, "forget": 1.0 - settings.retain}
    if config.convention.gate in kept:
        gates["retain"] = kept[config.convention.gate] * ones
    if "momentum" in rule.gates:
        gates["momentum"] = settings.momentum * ones
    if rule.has_error and config.convention.rate != "none":
        gates |= {name: rate * ones for name, rate in _rates(settings, config, k[:, 0]).items()}
    if rule.in_family and rule.has_window:
        gates["window_weights"] = np.ones((S, 1, N, config.window))
    own = backend.device({"k": k, "v": v, "q": k} | gates)
    return Tokens(active=np.arange(1, N + 1) % period == 0, **own)


def _rates(settings: Settings, config: Any, phi: Array) -> dict[str, float]:
    """The step-size gates whose product is the step of PROBE-3."""
    step = settings.step_size
    axis = config.convention.rate
    if step is None:
        step = full_step(settings, phi)
        if axis == "both":
            step = math.sqrt(step)
    return {"step_size": step, "step_size_memory": 1.0} if axis == "split" else {"step_size": step}


def full_step(settings: Settings, phi: Array) -> float:
    """The step that takes away the whole error along the direction written most (PROBE-3).

    step = (1 - momentum) / (s lambda),
    lambda = max over windows, largest eigenvalue of sum_j phi_j phi_j^T

    s lambda is 1 under Newton-Schulz, whose updates have one length.

    Args:
        phi (S, N, d_phi): keys of the rule, in the order in which they are written.
    """
    rule, N = settings.rule, phi.shape[-2]
    config = settings.config(N)
    if config.convention.has_newton_schulz:
        return 1.0 - settings.momentum
    c = rule.window(config)
    tokens = N * min(settings.passes, 1 + -(-c // N))
    order = np.arange(tokens)[:, None] - np.arange(c)  # (tokens, c): the window of each token
    held = phi[:, np.maximum(order, 0) % N] * (order >= 0)[..., None]
    turned = held.swapaxes(-1, -2)
    gram = held @ turned if c < phi.shape[-1] else turned @ held  # the smaller of the two
    largest = float(np.linalg.eigvalsh(gram).max())
    scale = config.convention.gradient_scale
    s = 2.0 / settings.d_v if isinstance(scale, str) else abs(scale)
    return (1.0 - settings.momentum) / (s * largest)


def _unit(x: Array) -> Array:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)
