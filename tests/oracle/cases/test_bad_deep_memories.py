"""Malformed cases of deep memories: one line names the tensor, the parameter or the axis."""

import jsonschema
import pytest

import atlas_ref
from atlas_ref.oracle.cases.case import make
from atlas_ref.oracle.deep.parameters import KEYS, Parameters
from atlas_ref.oracle.schema.schema import case_schema
from tests.support import deep_cases
from tests.support.bad_deep_memories import (
    CONVENTIONS,
    HEADER,
    PARAMETERS,
    TABLE,
    case_of,
    header_of,
)
from tests.support.refusal import refused_everywhere

SCHEMA = case_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


@pytest.mark.clause("DEEPCASE-2", "DEEPCASE-3", "DEEPCASE-5", "CASE-16", "CASE-17")
@pytest.mark.parametrize("name", TABLE)
def test_a_bad_case_of_a_deep_memory_is_refused_in_one_line(name, cli, tmp_path):
    refused_everywhere(case_of(TABLE[name], tmp_path), TABLE[name].message, cli, tmp_path)


@pytest.mark.clause("DEEPCASE-2")
@pytest.mark.parametrize(
    "name", [name for name in TABLE if not name.startswith(("tensors", "states"))]
)
def test_a_bad_header_does_not_validate_unless_json_schema_has_no_words(name):
    assert VALIDATOR.is_valid(header_of(TABLE[name])) != TABLE[name].schema


@pytest.mark.clause("DEEPCASE-2", "CASE-1")
def test_valid_headers_validate_and_every_key_and_parameter_has_a_bad_value():
    for request in ({}, deep_cases.FULL):
        header, _ = deep_cases.some(**request)
        VALIDATOR.validate(header)
        VALIDATOR.validate({**header, "level": "projected", "note": "x"})
    VALIDATOR.validate({"schema": 1, "rule": "deep_memory"})
    VALIDATOR.validate({"schema": 1, "rule": "deep_memory", "parameters": None})
    broken = {key for bad in PARAMETERS.values() for key in bad.parameters}
    assert broken >= set(Parameters.model_fields)
    keys = {key for bad in HEADER.values() for key in bad.header}
    assert keys >= {"level", "note", "parameters"}
    assert {"schema", "rule", "convention", "trace"} == set(KEYS) - keys
    assert CONVENTIONS


@pytest.mark.clause("DEEPCASE-3")
def test_the_schema_has_every_tensor_of_a_case():
    listed = set(SCHEMA["x-deep-memory"]["inputs"])
    _, tensors = deep_cases.some(**deep_cases.FULL)
    kinds = ("in/memory/", "in/state/weights/", "in/state/momentum/", "in/state/reference/")
    for name in tensors:
        own = next((f"{kind}NAME" for kind in kinds if name.startswith(kind)), name)
        assert own in listed, name


@pytest.mark.clause("CASE-17", "CASE-35")
def test_a_name_that_is_misspelt_is_answered_with_those_that_resemble_it():
    header, tensors = deep_cases.some()
    with pytest.raises(atlas_ref.CaseError, match=r"did you mean window\?"):
        make({**header, "parameters": {"windw": 3}}, tensors)
    with pytest.raises(atlas_ref.CaseError, match="did you mean in/momentum"):
        make(header, {**tensors, "in/momentun": tensors["in/momentum"]})
