"""The JSON object of a case: which keys it has and which values they take. Specified in specs/case.md, CASE-2 and CASE-3."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from atlas_ref.conventions import RULES, shown
from atlas_ref.feature_maps import IDENTITY, FeatureMap
from atlas_ref.oracle.files import KEY, unique
from atlas_ref.types import Frozen
from atlas_ref.window import WindowWeights

#: Rules that the format reserves for later versions.
RESERVED = ("ttl", "qk_projection")

#: Levels of objects and arrays inside each other, and digits of an integer: what any JSON reader can take.
DEEPEST, LONGEST = 100, 18

Count = Annotated[int, Field(ge=1)]


class Header(Frozen):
    """The JSON object of a case (CASE-2)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    schema_: Literal[1] = Field(alias="schema", description="version of the format")
    rule: Literal["omega", "titans_lmm", "delta", "hebbian", "newton_schulz", "feature_map", "ttl", "qk_projection"] = Field(
        description="what is computed; ttl and qk_projection are reserved"
    )
    level: Literal["projected", "token"] = Field("projected", description="whether keys, values, queries and gates are given, or tokens")
    window: Count = Field(1, description="c, tokens that the gradient looks at")
    span: Count | None = Field(None, description="tokens between refreshes of a frozen reference")
    phase: Annotated[int, Field(ge=0)] | None = Field(None, description="position of the first token in its span")
    form: Literal["sequential", "chunkwise", "exact", "scan", "atlas_parallel", "kernel"] = Field(
        "sequential", description="how it was computed"
    )
    chunk: Count | None = Field(None, description="chunk of the form; never changes results")
    convention: str | dict[str, Any] = Field("spec", description="a preset, or axes with values and optionally a preset that they change")
    feature_map: FeatureMap = Field(IDENTITY, description="phi")
    window_weights: WindowWeights | None = Field(None, description="level token: how window tokens are weighed")
    parameters: dict[str, Any] | None = Field(None, description="reserved rules only")
    trace: list[Any] | None = Field(None, description="written by eval")
    note: str = Field("", description="free text")

    @model_validator(mode="after")
    def _possible(self) -> Header:
        if self.parameters is not None and self.rule not in RESERVED:
            raise ValueError(f"parameters: only the reserved rules {' and '.join(RESERVED)} have them, this is {self.rule}")
        if self.rule in RESERVED:
            return self
        if self.rule not in RULES:
            for key in ("level", "window", "span", "phase", "chunk", "window_weights"):
                if key in self.model_fields_set:
                    raise ValueError(f"{key}: the rule {self.rule} has no sequence")
        if self.rule in ("titans_lmm", "delta", "hebbian") and self.window != 1:
            raise ValueError(f"window: {self.rule} looks at one token, found {self.window}")
        if self.rule not in ("omega", "feature_map") and self.feature_map.kind != "identity":
            raise ValueError(f"feature_map: {self.rule} has none, found {self.feature_map.kind}")
        if self.window_weights is not None and (self.rule != "omega" or self.level != "token"):
            raise ValueError("window_weights: belongs to rule omega at level token")
        return self

    def plain(self) -> dict[str, Any]:
        """The JSON object as it was given."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


def parse(text: str) -> Header:
    """The JSON object of a case, validated.

    Raises:
        ValueError: not JSON, an unknown key, a value that does not exist or that the rule does not have.
    """
    try:
        data = json.loads(text, object_pairs_hook=unique, parse_constant=_refuse, parse_float=_finite, parse_int=_integer)
        if _depth(data) > DEEPEST:
            raise RecursionError
    except RecursionError:
        raise ValueError(f"{KEY}: nested more than {DEEPEST} levels deep") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{KEY}: not JSON: {error}") from None
    except ValueError as error:
        raise ValueError(f"{KEY}: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(f"{KEY}: must be a JSON object, found {json.dumps(data)[:40]}")
    keys = [field.alias or name for name, field in Header.model_fields.items()]
    for key in data:
        if key not in keys:
            raise ValueError(f"{key}: unknown key; keys are {', '.join(keys)}")
    if "schema" in data and (data["schema"] != 1 or isinstance(data["schema"], bool)):
        raise ValueError(f"schema: this version reads 1, found {shown(data['schema'])}")
    if not isinstance(data.get("convention", ""), str | dict):
        raise ValueError(f"convention: must be the name of a preset or an object of axes, found {shown(data['convention'])}")
    return Header.model_validate_json(_unicode(json.dumps(data, ensure_ascii=False)))


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _finite(text: str) -> float:
    if not math.isfinite(float(text)):
        raise ValueError(f"the number {_short(text)} is beyond float64")
    return float(text)


def _integer(text: str) -> int:
    if len(text) > LONGEST:
        raise ValueError(f"the integer {_short(text)} has more than {LONGEST} digits")
    return int(text)


def _short(text: str) -> str:
    return text if len(text) <= 24 else f"{text[:20]}..."


def _depth(value: Any) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, inside), default=0)


def _unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{KEY}: not JSON: half of a surrogate pair stands alone") from None
    return text
