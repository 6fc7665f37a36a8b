"""The model of large/NAME.json, a larger case as a recipe, in which no key is unknown (VEC-13)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from atlas_ref.messages import first_problem
from atlas_ref.oracle.cases.case import Case, CaseError, make
from atlas_ref.oracle.cases.json_text import decode
from atlas_ref.storage.files import read_bytes
from atlas_ref.types import Frozen
from atlas_ref.vectors.inputs import large

#: Numbers that the tensors of a larger case have at most, all together (VEC-13).
NUMBERS = 10_000_000

Finite = Annotated[float, Field(allow_inf_nan=False)]
Size = Annotated[Finite, Field(ge=0)]
Seed = Annotated[int, Field(ge=0)]
Shape = Annotated[list[Annotated[int, Field(ge=0, le=NUMBERS)]], Field(max_length=16)]


class Listed(Frozen):
    """The recipe of a tensor with entries of a list."""

    shape: Shape
    seed: Seed
    values: Annotated[list[Finite], Field(min_length=1)]


class Drawn(Frozen):
    """The recipe of a tensor of whole numbers from -most to most, times unit."""

    shape: Shape
    seed: Seed
    most: Annotated[int, Field(ge=1, lt=2**31)]
    unit: Finite


class Result(Frozen):
    """What is recorded of a result: norms, and projections on vectors of signs."""

    shape: Shape
    max: Size
    rms: Size
    projections: Annotated[
        list[Finite], Field(min_length=large.PROJECTIONS, max_length=large.PROJECTIONS)
    ]


class Recipe(Frozen):
    """large/NAME.json.

    Attributes:
        header: the JSON object of the case.
        tensors, results: name -> what `Listed`, `Drawn` and `Result` hold.
        seed: of the projections.
    """

    name: str
    header: dict[str, Any]
    tensors: dict[str, dict[str, Any]]
    seed: Seed
    results: dict[str, dict[str, Any]]


def load_large(path: Path) -> tuple[Case, dict[str, Any]]:
    """The case that a recipe makes, and the recipe as JSON holds it.

    Raises:
        CaseError: the file cannot be read, has another key or lacks one, holds another kind of
            value, or makes no case.
    """
    try:
        recipe = decode(read_bytes(path))
        if not isinstance(recipe, dict) or recipe.keys() != Recipe.model_fields.keys():
            raise ValueError(f"keys must be {', '.join(sorted(Recipe.model_fields))}")
        _check(recipe)
    except ValueError as error:
        raise CaseError(f"{path}: {' '.join(str(error).split())}") from None
    case = large.from_recipes(recipe["header"], recipe["tensors"], str(path))
    return make(case.header.plain(), case.inputs, name=str(path)), recipe


def _check(recipe: dict[str, Any]) -> None:
    """Refuse what is no recipe, or makes more numbers than a larger case has."""
    _validate("", Recipe, recipe)
    for name, each in recipe["tensors"].items():
        _validate(f"{name}: ", Listed if "values" in each else Drawn, each)
    for name, each in recipe["results"].items():
        _validate(f"{name}: ", Result, each)
    count = sum(math.prod(each["shape"]) for each in recipe["tensors"].values())
    if count > NUMBERS:
        raise ValueError(f"tensors: {count} numbers, a larger case has at most {NUMBERS}")


def _validate(where: str, model: type[Frozen], value: Any) -> None:
    try:
        model.model_validate(value)
    except ValidationError as error:
        raise ValueError(f"{where}{first_problem(error)}") from None
