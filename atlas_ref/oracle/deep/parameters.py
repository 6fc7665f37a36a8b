"""The key `parameters` of a case of a deep memory, and the keys beside it (DEEPCASE-2)."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field, ValidationError, create_model

from atlas_ref.conventions import resolve
from atlas_ref.messages import first_problem
from atlas_ref.oracle.parameters import check_keys, check_names, validate
from atlas_ref.parts import memory_functions
from atlas_ref.parts.memory_functions import MemoryFunction
from atlas_ref.rules.deep_memory import Config
from atlas_ref.types import Count, Frozen

#: Keys of a header of this rule.
KEYS = ("schema", "rule", "level", "convention", "parameters", "note", "trace")

#: Fields of the settings that are no parameters: sizes, which the tensors tell, those of level
#: token, and momenta of several orders, which layers alone have.
OTHER = ("d_in", "d_out", "d_model", "heads", "per_dimension_gates", "convention", "momentum_order")

#: Keys of a case of the family that are parameters here.
MOVED = ("window", "span", "chunk", "window_weights")


class _Base(Frozen):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


#: Fields of another range in a case: a window may be left out, a chunk is a number of tokens.
_NARROWED: dict[str, Any] = {"window": (Count | None, Field(None)), "chunk": (Count, Field(1))}
_FIELDS: dict[str, Any] = {
    name: _NARROWED.get(name, (field.annotation, field))
    for name, field in Config.model_fields.items()
    if name not in OTHER
}
Parameters: Any = create_model(
    "Parameters", __base__=_Base, __doc__="Settings of a deep memory (DEEP-1).", **_FIELDS
)


def check_header(header: Any) -> None:
    """Refuse keys of other rules, and settings that do not exist or contradict each other.

    Source: DEEPCASE-2.

    Raises:
        ValueError: names the key or the parameter, what was found and what is needed.
    """
    check_keys(header, KEYS, {name: f"it is parameters.{name}" for name in MOVED})
    parameters = parse(header)
    momentum = parameters.deep_momentum
    functions = (parameters.memory, *(() if momentum is None else (momentum.function,)))
    # a size at which hidden units are left
    wide = max(int(1.0 / each.expansion) for each in functions) + 1
    config(header, wide, wide)


def parse(header: Any) -> Any:
    """The parameters of a case, validated one by one.

    Raises:
        ValueError: names the parameter, what was found and what is needed.
    """
    return validate(Parameters, check_names(header, Parameters.model_fields))


def config(header: Any, d_in: int, d_out: int) -> Config:
    """The settings of a case whose keys and values have these sizes.

    Raises:
        ValueError: settings that contradict each other or the sizes.
    """
    parameters = parse(header)
    chosen = {name: getattr(parameters, name) for name in Parameters.model_fields}
    window = parameters.window or parameters.chunk
    chosen["window"] = max(window, parameters.chunk)  # a shorter one is a case, not a warning
    convention = resolve(header.convention, rule=header.rule)
    try:
        made = Config(d_in=d_in, d_out=d_out, convention=convention, **chosen)
        return made.replaced(window=window)
    except ValidationError as error:
        text = first_problem(error)
        name = text.partition(":")[0]
        inside = "memory." if name in MemoryFunction.model_fields else ""
        where = "" if name == "convention" else f"parameters.{inside}"
        raise ValueError(f"{where}{text}") from None


def names(of: Config) -> tuple[str, ...]:
    """Tensors of the memory function, in their order (MEMFUN-2)."""
    return tuple(memory_functions.tensors(of.memory, of.d_in, of.d_out))


def network(of: Config) -> tuple[str, ...]:
    """Tensors of a network in the place of the momentum, in their order; none without (DEEP-37)."""
    return () if of.deep_momentum is None else tuple(of.momentum_shapes)
