"""Associative recall: sequences of pairs and of queries, and the model that learns to answer them.

    k_1 v_1 ... k_N v_N  then  k_j  for each j in any order:  the answer at k_j is v_j

Specified in specs/probes.md (PROBE-16 to PROBE-21). How a model learns it:
`atlas_ref.train.probes.lessons`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from atlas_ref import conventions
from atlas_ref.blocks import lmm
from atlas_ref.forms import support
from atlas_ref.layers import convention, memory
from atlas_ref.levels import block
from atlas_ref.levels.level import Biases, Level
from atlas_ref.messages import in_one_line, no_such
from atlas_ref.models import language_model
from atlas_ref.rules import RULES, delta, hebbian, omega, titans_lmm
from atlas_ref.train.models import FORMS, PRESETS
from atlas_ref.types import Array, Frozen
from tape import ops

Size = Annotated[int, Field(ge=1, le=4096)]
Count = Annotated[int, Field(ge=1, le=10**6)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]


class Kind(NamedTuple):
    """A memory that is probed: a rule, and what its convention has in place of the spec's own."""

    name: str
    rule: str
    changes: Mapping[str, Any] = {}


#: Name of a memory -> its rule under the convention of the specs, with changes (PROBE-18).
KINDS = {
    kind.name: kind
    for kind in (
        Kind("hebbian", hebbian.RULE.name),
        Kind("delta", delta.RULE.name, {"gate": "none"}),
        Kind("gated_delta", delta.RULE.name),
        Kind("titans_lmm", titans_lmm.RULE.name),
        Kind("omega", omega.RULE.name, {"newton_schulz": "none"}),
    )
}


class Settings(Frozen):
    """The task, the model, and how it learns (PROBE-16 to PROBE-20).

    Attributes:
        memory: of `KINDS`.
        keys, values: number of different keys and values.
        pairs: numbers of pairs of the lessons, in their order.
        length: tokens of a sequence; None for three times the pairs of its lesson.
        dim, layers, heads: sizes of the model.
        kernel: taps of the convolutions of queries, keys and values; 1 for none.
        window: of Omega.
        preset: readings of the layers, of `models.PRESETS`.
        batch, rate, warmup: sequences of a step, and AdamW's rate after so many steps.
        steps: most of all lessons together.
        every: steps between two examinations.
        enough: share of right answers that ends a lesson.
        examined: held-out sequences of an examination.
    """

    memory: str = "delta"
    keys: Size = 128
    values: Size = 128
    pairs: Annotated[tuple[Size, ...], Field(min_length=1)] = (4, 8, 16, 32)
    length: Size | None = None
    dim: Size = 64
    layers: Annotated[int, Field(ge=1, le=64)] = 2
    heads: Size = 1
    kernel: Annotated[int, Field(ge=1, le=64)] = 4
    window: Size = 2
    preset: str = "unit"
    batch: Size = 32
    rate: Positive = 1e-2
    warmup: Annotated[int, Field(ge=0, le=10**6)] = 10
    steps: Annotated[int, Field(ge=0, le=10**6)] = 1000
    every: Count = 25
    enough: Share = 0.95
    examined: Size = 64

    @field_validator("memory")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in KINDS:
            raise ValueError(no_such("kind", value, KINDS))
        return value

    @field_validator("preset")
    @classmethod
    def _reading(cls, value: str) -> str:
        if value not in PRESETS:
            raise ValueError(no_such("preset", value, PRESETS))
        return value

    @model_validator(mode="after")
    def _possible(self) -> Self:
        most = max(self.pairs)
        if most > self.keys:
            raise ValueError(f"pairs: {most}, but there are {self.keys} different keys")
        if self.length is not None and self.length < 3 * most:
            raise ValueError(
                f"length: {self.length}, {most} pairs and their queries need {3 * most}"
            )
        if self.dim % self.heads:
            raise ValueError(f"heads: {self.heads} do not divide dim {self.dim}")
        return self

    @property
    def vocabulary(self) -> int:
        """Keys, then values, then the blank where there is room for one (PROBE-16)."""
        return self.keys + self.values + (self.length is not None)


class Sequences(NamedTuple):
    """Sequences of one lesson (PROBE-16).

    Attributes:
        ids (B, T): tokens.
        places (B, N): where the queries stand.
        answers (B, N): the token due at each of them.
    """

    ids: np.ndarray[Any, Any]
    places: np.ndarray[Any, Any]
    answers: np.ndarray[Any, Any]


def sequences(settings: Settings, pairs: int, count: int, draw: np.random.Generator) -> Sequences:
    """Random sequences of some pairs and of a query for each (PROBE-16).

    Args:
        pairs: N, one of `settings.pairs` or another number that fits.
        count: B.
    """
    N, B, T = pairs, count, settings.length or 3 * pairs
    if not 1 <= N <= settings.keys or 3 * N > T:
        raise ValueError(f"pairs: {N}, expected 1 to {min(settings.keys, T // 3)}")

    def shuffled(size: int) -> np.ndarray[Any, Any]:
        return draw.permuted(np.tile(np.arange(size), (B, 1)), axis=1)

    keys = shuffled(settings.keys)[:, :N]
    values = settings.keys + draw.integers(settings.values, size=(B, N))
    order = shuffled(N)
    places = 2 * N + np.sort(shuffled(T - 2 * N)[:, :N], axis=1)
    ids = np.full((B, T), settings.keys + settings.values)  # blank where nothing stands
    ids[:, 0 : 2 * N : 2], ids[:, 1 : 2 * N : 2] = keys, values
    np.put_along_axis(ids, places, np.take_along_axis(keys, order, 1), 1)
    return Sequences(ids, places, np.take_along_axis(values, order, 1))


def model(settings: Settings) -> language_model.Config:
    """The language model: blocks of a memory alone (PROBE-18, PROBE-21).

    Raises:
        ValueError: names the setting that the rule or the preset refuses.
    """
    with in_one_line():
        return _model(settings)


def _model(s: Settings) -> language_model.Config:
    kind, readings = KINDS[s.memory], convention.resolve(PRESETS[s.preset])
    rule, d = RULES[kind.rule], s.dim // s.heads
    chosen = conventions.resolve({"preset": "spec", **kind.changes}, rule=rule.name, level="token")
    sizes: dict[str, Any] = {"window": s.window} if rule.has_window else {}
    config = rule.Config(d_in=d, d_out=d, d_model=s.dim, heads=s.heads, convention=chosen, **sizes)
    form = next(each for each in FORMS if support.refusal(rule.name, chosen, each) is None)
    biases = Biases(step_size=0.0 if "step_size" in rule.gates else None)
    level = Level(config=config, form=form, biases=biases)
    own = memory.configured(readings, block.Config(levels=(level,)), kernel=s.kernel)
    each = lmm.configured(readings, own, d_model=s.dim, d_inner=None)
    return language_model.configured(readings, [each] * s.layers, vocabulary=s.vocabulary)


def answered(config: language_model.Config, params: Any, asked: Sequences) -> Array:
    """Logits (B, N, V) at the queries, from memories that are empty (PROBE-17)."""
    B = len(asked.ids)
    begun = language_model.start(config, B, dtype=params.embedding.dtype)
    _, logits = language_model.apply(config, params, begun, asked.ids)
    return ops.index(logits, (np.arange(B)[:, None], asked.places))


def loss(config: language_model.Config, params: Any, asked: Sequences) -> Array:
    """Mean cross-entropy of the answers, in nats (PROBE-17)."""
    return language_model.cross_entropy(answered(config, params, asked), asked.answers)
