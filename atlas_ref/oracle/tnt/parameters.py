"""The key `parameters` of a case of a TNT, and the keys beside it (TNTCASE-2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from pydantic import ConfigDict, Field, ValidationError, create_model

from atlas_ref.conventions import Convention, resolve
from atlas_ref.forms import tnt
from atlas_ref.forms.tnt.config import LATE, Origin
from atlas_ref.messages import first_problem
from atlas_ref.oracle.cases.tensor_spec import LEVELS
from atlas_ref.oracle.parameters import check_keys, check_names, validate
from atlas_ref.rules import FAMILY, RULES
from atlas_ref.types import Count, Frozen

#: The value of the key `rule`.
NAME = "tnt"

#: Keys of a header of this rule.
KEYS = ("schema", "rule", "level", "form", "chunk", "convention", "parameters", "note", "trace")

#: Where a key of an ordinary case stands here.
_MOVED = {"window": "it is parameters.window", "span": "every memory has one in parameters"}

#: Axes of the convention that TNT sets for each memory (TNT-13).
SET = ("reference", "read", "span_origin")

#: Fields of a memory that say which rule it is, and how it is computed.
OTHER = ("config", "form", "chunk")


class _Base(Frozen):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)


def _settings(name: str, of: type[Frozen], words: str, **changed: Any) -> Any:
    """The settings of a memory that stand in a case: those of the paper, not of TNT-24 to TNT-26.

    Args:
        changed: annotations of fields, None for a field that no case has.
    """
    fields: dict[str, Any] = {
        field: (changed.get(field, each.annotation), each)
        for field, each in of.model_fields.items()
        if field not in OTHER and changed.get(field, each) is not None
    }
    # a late read depends on the call, and a case is one
    reads = get_args(of.model_fields["read"].annotation)
    fields["read"] = (Literal[tuple(r for r in reads if r not in LATE)], reads[0])
    # pydantic keeps the range of a count beside its annotation
    fields |= {field: (Count, ...) for field in ("span", "shard") if field in fields}
    return create_model(name, __base__=_Base, __doc__=words, **fields)


if TYPE_CHECKING:
    from typing import TypeAlias

    GlobalMemory: TypeAlias = Any
    LocalMemory: TypeAlias = Any
else:

    class Projection(tnt.Projection):
        """Axes of the matrix by which a local memory moves its queries (TNT-7 to TNT-10)."""

        gate: ClassVar[str] = "none"  # no tensor of a case is one

    words = "Settings of the global memory (TNT-3)."
    GlobalMemory = _settings("GlobalMemory", tnt.Global, words, projection=None)
    words = "Settings of a local memory (TNT-4)."
    LocalMemory = _settings("LocalMemory", tnt.Local, words, projection=Projection)

#: Rules that a memory may have.
Name: Any = Literal[tuple(FAMILY)]
#: Readings of the paper whose settings stand where a case leaves them open.
PresetName: Any = Literal[tuple(tnt.PRESETS)]


class Parameters(_Base):
    """Settings of a TNT, every memory under the same rule (TNT-1, TNT-12)."""

    rule: Name = Field("titans_lmm", description="of every memory")
    window: Count = Field(1, description="c of rule omega, tokens that the gradient looks at")
    preset: PresetName = Field("paper", description="whose settings stand where none is stated")
    origin: Origin = Field(0, description="number of the first token")
    global_: GlobalMemory | None = Field(None, alias="global", description="null for none")
    locals_: Annotated[tuple[LocalMemory, ...], Field(max_length=LEVELS)] = Field(
        (), alias="locals", description="local memories"
    )


#: Names of the parameters, as a case has them.
FIELDS = tuple(each.alias or name for name, each in Parameters.model_fields.items())


def check_header(header: Any) -> None:
    """Refuse keys of other rules, and settings that do not exist or contradict each other.

    Source: TNTCASE-2.

    Raises:
        ValueError: names the key or the parameter, what was found and what is needed.
    """
    check_keys(header, KEYS, _MOVED)
    if isinstance(header.convention, Mapping):
        for axis in SET:
            if axis in header.convention:
                raise ValueError(
                    f"convention: {axis}: TNT sets it for each memory, in parameters.global and "
                    "parameters.locals"
                )
    config(header, 2, 2)


def parse(header: Any) -> Parameters:
    """The parameters of a case, with those of their preset, validated one by one.

    Raises:
        ValueError: names the parameter, what was found and what is needed.
    """
    given = check_names(header, FIELDS)
    rule = given.get("rule")
    if isinstance(rule, str) and rule in RULES and not RULES[rule].in_family:
        raise ValueError(
            f"parameters.rule: {rule} is no rule of the linear family; memories of a case of a "
            f"TNT have {', '.join(FAMILY)}"
        )
    made: Parameters = validate(Parameters, _with_preset(given))
    if made.global_ is None and not made.locals_:
        raise ValueError("parameters: no global memory and no locals; at least one is needed")
    if made.window > 1 and not FAMILY[made.rule].has_window:
        raise ValueError(f"parameters.window: {made.rule} looks at one token, found {made.window}")
    return made


def _with_preset(given: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters in which a preset has filled what they leave open (TNT-12)."""
    name = given.get("preset", "paper")
    changes = tnt.PRESETS.get(name, {}) if isinstance(name, str) else {}
    filled = dict(given)
    if isinstance(given.get("global"), dict):
        filled["global"] = {**changes.get("global", {}), **given["global"]}
    if isinstance(given.get("locals"), list):
        filled["locals"] = [_local(each, changes) for each in given["locals"]]
    return filled


def _local(given: Any, changes: Mapping[str, Any]) -> Any:
    if not isinstance(given, dict):
        return given
    own = given.get("projection", {})
    moved = {**changes.get("projection", {}), **own} if isinstance(own, dict) else own
    return {**changes.get("local", {}), **given, **({"projection": moved} if moved != {} else {})}


def rule_of(header: Any) -> str:
    """The rule of the memories, whose convention the header has."""
    return str(parse(header).rule)


def convention(header: Any) -> Convention:
    """The convention of every memory."""
    return resolve(header.convention, rule=rule_of(header))


def names(parameters: Parameters) -> tuple[str, ...]:
    """Names of the memories: global, local0, local1, ..."""
    count = range(len(parameters.locals_))
    first = ("global",) if parameters.global_ is not None else ()
    return (*first, *(f"local{i}" for i in count))


def config(
    header: Any,
    d_in: int,
    d_out: int,
    *,
    form: str | None = "sequential",
    chunk: int | None = None,
    own: Convention | None = None,
) -> tnt.Config:
    """The settings of a case whose keys and values have these sizes.

    Args:
        form, chunk: of every memory's run.
        own: the convention in force; that of the header when None.

    Raises:
        ValueError: settings that contradict each other.
    """
    parameters = parse(header)
    rule = FAMILY[parameters.rule]
    sizes: dict[str, Any] = {"window": parameters.window} if rule.has_window else {}
    made = rule.Config(d_in=d_in, d_out=d_out, convention=own or convention(header), **sizes)
    shared = {"config": made, "form": form, "chunk": chunk}

    def memory(kind: Any, given: Any, where: str) -> Any:
        try:
            return kind(
                **shared, **{field: getattr(given, field) for field in type(given).model_fields}
            )
        except ValidationError as error:
            raise ValueError(f"parameters.{where}.{first_problem(error)}") from None

    given = parameters.global_
    return tnt.Config(
        global_memory=None if given is None else memory(tnt.Global, given, "global"),
        local_memories=tuple(
            memory(tnt.Local, each, f"locals.{i}") for i, each in enumerate(parameters.locals_)
        ),
        origin=parameters.origin,
    )
