"""The JSON object of a case: its keys and their values.

Specified in specs/case.md, CASE-2 and CASE-3.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    ConfigDict,
    Field,
    TypeAdapter,
    create_model,
    model_validator,
)
from pydantic_core import core_schema

from atlas_ref.forms import FORMS
from atlas_ref.forms.support import SUPPORT
from atlas_ref.messages import shown
from atlas_ref.oracle.cases.files import KEY
from atlas_ref.oracle.cases.json_text import decode
from atlas_ref.oracle.cases.recorded_headers import as_layer, as_member, as_schedule
from atlas_ref.oracle.cases.tensor_spec import CHARACTERS, LEVELS
from atlas_ref.oracle.registry import ENTRIES, SUBJECTS
from atlas_ref.parts.feature_maps import IDENTITY, FeatureMap
from atlas_ref.parts.window import WindowWeights
from atlas_ref.rules import FAMILY
from atlas_ref.types import Count, Frozen

#: Rules that the format reserves for later versions.
RESERVED = ("ttl", "qk_projection")

#: Forms of rules that have none of their own.
SHARED_FORMS = tuple(form for form in SUPPORT if form in FORMS)


def form_names(rule: str) -> tuple[str, ...]:
    """Forms that a header of a rule may state; of a reserved rule those of most (DPLRCASE-13)."""
    own = ENTRIES[rule].forms if rule in ENTRIES else None
    return SHARED_FORMS if own is None else own


if TYPE_CHECKING:
    from typing import TypeAlias

    RuleName: TypeAlias = str
    SubjectName: TypeAlias = str
    FormName: TypeAlias = str
else:
    RuleName = Literal[tuple(FAMILY)]
    SubjectName = Literal[(*SUBJECTS, *RESERVED)]
    FormName = Literal[tuple(dict.fromkeys(form for rule in ENTRIES for form in form_names(rule)))]


class OwnKey(NamedTuple):
    """A header key that one subject brings with it: its values are asked of that subject.

    So a header that leaves the key out is read without an import of the subject.
    """

    rule: str
    key: str

    def adapter(self) -> TypeAdapter[Any]:
        """What validates a value, or None for a header of another rule."""
        return TypeAdapter(SUBJECTS[self.rule].keys[self.key])

    def _check(self, value: Any) -> Any:
        return None if value is None else self.adapter().validate_python(value, strict=True)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return self.adapter().json_schema()


class Learned(Frozen):
    """Gates of the tokens that decide which levels write, in place of periods."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    threshold: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.5, description="a level writes where its gate is above it"
    )
    until: Annotated[int, Field(ge=0)] = Field(
        0, description="number of the first step at which gates decide"
    )


class Schedule(Frozen):
    """When levels write (CASE-30)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    periods: Annotated[
        tuple[Count, ...], Field(min_length=1, max_length=LEVELS, description="of the levels")
    ]
    level: Annotated[int, Field(ge=0)] | None = Field(
        None, description="which of them this memory is, from 0; not for rule cms"
    )
    first_step: Annotated[int, Field(ge=0)] = Field(
        0, description="number of the first token's step"
    )
    learned: Learned | None = Field(None, description="rule cms: gates decide who writes")


class LevelHeader(Frozen):
    """One level of a block: the keys of a case at level token that it has for itself (CASE-31)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    rule: RuleName = Field(description="of the level")
    window: Count = Field(1, description="c, tokens that the gradient looks at")
    span: Count | None = Field(None, description="tokens between refreshes of a frozen reference")
    phase: Annotated[int, Field(ge=0)] | None = Field(
        None, description="position of the first token in its span"
    )
    convention: str | dict[str, Any] = Field(
        "spec", description="a preset, or axes with values and optionally a preset that they change"
    )
    feature_map: FeatureMap = Field(IDENTITY, description="phi")
    window_weights: WindowWeights | None = Field(None, description="how window tokens are weighed")


class Header(Frozen):
    """The JSON object of a case (CASE-2)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    schema_: Literal[1] = Field(alias="schema", description="version of the format")
    rule: SubjectName = Field(description="what is computed; ttl and qk_projection are reserved")
    level: Literal["projected", "token"] = Field(
        "projected", description="whether keys, values, queries and gates are given, or tokens"
    )
    window: Count = Field(1, description="c, tokens that the gradient looks at")
    span: Count | None = Field(None, description="tokens between refreshes of a frozen reference")
    phase: Annotated[int, Field(ge=0)] | None = Field(
        None, description="position of the first token in its span"
    )
    form: FormName = Field("sequential", description="how it was computed")
    chunk: Count | None = Field(None, description="chunk of the form; never changes results")
    convention: str | dict[str, Any] = Field(
        "spec", description="a preset, or axes with values and optionally a preset that they change"
    )
    feature_map: FeatureMap = Field(IDENTITY, description="phi")
    window_weights: WindowWeights | None = Field(
        None, description="level token: how window tokens are weighed"
    )
    gate_axis: Literal["d_out", "d_in"] | None = Field(
        None,
        description="level projected: axis of gates that have one; needed where d_out = d_phi",
    )
    schedule: Schedule | None = Field(
        None, description="in/active, by the period of a frequency level"
    )
    levels: Annotated[tuple[LevelHeader, ...], Field(min_length=1, max_length=LEVELS)] | None = (
        Field(None, description="rule cms: its levels")
    )
    combine: Literal["softmax", "masked"] = Field(
        "softmax", description="rule cms: over which levels the weights of reads are normalised"
    )
    nested: bool = Field(
        False, description="rule cms: contexts of a level begin from the next slower one"
    )
    parameters: dict[str, Any] | None = Field(
        None,
        description="rule layer: arguments of its constructor; rules deep_memory, tnt, dplr and "
        "recurrence: their settings; reserved rules: free",
    )
    trace: list[Any] | None = Field(None, description="written by eval")
    note: str = Field("", description="free text")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        known = form_names(self.rule)
        if self.form not in known:
            raise ValueError(
                f"form: the rule {self.rule} has {', '.join(known)}, found {self.form}"
            )
        if self.rule in RESERVED:
            return self
        subject = SUBJECTS[self.rule]
        if self.parameters is not None and not subject.has_parameters:
            names = [name for name, each in SUBJECTS.items() if each.has_parameters]
            raise ValueError(
                f"parameters: only rules {', '.join(names)} and the reserved rules "
                f"{' and '.join(RESERVED)} have them, this is {self.rule}"
            )
        subject.check_header(self)
        return self

    @property
    def foreign_keys(self) -> list[str]:
        """Keys that the file sets and another subject brings with it."""
        own = ENTRIES[self.rule].keys
        return [key for key in OWN_KEYS if key not in own and key in self.model_fields_set]

    def of_level(self, number: int) -> Header:
        """The header that one level of a block would have as a case of its own (CASE-31).

        Without a schedule where gates decide.
        """
        assert self.levels is not None
        assert self.schedule is not None
        own = self.levels[number].model_dump(mode="json", exclude_unset=True)
        plain = self.schedule.model_dump(mode="json", exclude={"learned"})
        periods = {} if self.schedule.learned else {"schedule": {**plain, "level": number}}
        return Header.model_validate_json(
            json.dumps({"schema": 1, "level": "token", **own, **periods})
        )

    def plain(self) -> dict[str, Any]:
        """The JSON object with the keys that the file sets."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def keys(self) -> Iterable[str]:
        """The keys that the file sets, so that `dict(header)` and `{**header}` are the object.

        Source: CASE-2.
        """
        return self.plain().keys()

    def __getitem__(self, key: str) -> Any:
        return self.plain()[key]

    def __contains__(self, key: object) -> bool:
        """Whether the file sets a key (CASE-42)."""
        return key in self.plain()

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key that the file sets, as a kernel's `case` has it; else the default.

        Source: CASE-42.
        """
        return self.plain().get(key, default)


#: Keys that subjects bring with them.
OWN_KEYS: dict[str, Any] = {
    key: (Annotated[Any, OwnKey(rule, key)], Field(None, description=words))
    for rule, entry in ENTRIES.items()
    for key, words in entry.keys.items()
}
if OWN_KEYS and not TYPE_CHECKING:
    Header = create_model("Header", __base__=Header, __doc__=Header.__doc__, **OWN_KEYS)


def title(header: Header) -> str:
    """The rule of a header, and of a layer its name."""
    return SUBJECTS[header.rule].title(header) if header.rule in SUBJECTS else header.rule


def reserved_words(header: Header) -> str:
    """What a header asks for and this version does not compute, in words; "" for nothing."""
    return f"rule {header.rule}" if header.rule in RESERVED else ""


def parse(text: str) -> Header:
    """The JSON object of a case, validated.

    Raises:
        ValueError: not JSON, an unknown key, a value that does not exist or that the rule does not
            have.
    """
    if len(text) > CHARACTERS:
        raise ValueError(f"{KEY}: has {len(text)} characters, at most {CHARACTERS} are read")
    try:
        data = decode(text)
    except ValueError as error:
        raise ValueError(f"{KEY}: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(f"{KEY}: must be a JSON object, found {json.dumps(data)[:40]}")
    data = as_schedule(as_member(as_layer(data)))
    keys = [field.alias or name for name, field in Header.model_fields.items()]
    for key in data:
        if key not in keys:
            raise ValueError(f"{key}: unknown key; keys are {', '.join(keys)}")
    if "schema" in data and (data["schema"] != 1 or isinstance(data["schema"], bool)):
        raise ValueError(f"schema: this version reads 1, found {shown(data['schema'])}")
    if not isinstance(data.get("convention", ""), str | dict):
        raise ValueError(
            "convention: must be the name of a preset or an object of axes, found "
            f"{shown(data['convention'])}"
        )
    return Header.model_validate_json(_unicode(json.dumps(data, ensure_ascii=False)))


def _unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{KEY}: not JSON: half of a surrogate pair stands alone") from None
    return text
