"""Malformed cases of a TNT: one line names the tensor, the parameter or the axis."""

import jsonschema
import pytest

import atlas_ref
from atlas_ref.oracle.cases.case import make
from atlas_ref.oracle.schema.schema import case_schema
from atlas_ref.oracle.tnt.parameters import FIELDS
from tests.support import tnt_cases
from tests.support.bad_tnt import PARAMETERS, TABLE, case_of, header_of
from tests.support.refusal import refused_everywhere

SCHEMA = case_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


@pytest.mark.clause("TNTCASE-2", "TNTCASE-3", "TNTCASE-4", "CASE-16", "CASE-17")
@pytest.mark.parametrize("name", TABLE)
def test_a_bad_case_of_a_tnt_is_refused_in_one_line(name, cli, tmp_path):
    refused_everywhere(case_of(TABLE[name], tmp_path), TABLE[name].message, cli, tmp_path)


@pytest.mark.clause("TNTCASE-2")
@pytest.mark.parametrize(
    "name", [name for name in TABLE if name.startswith(("header", "parameters"))]
)
def test_a_bad_header_does_not_validate_unless_json_schema_has_no_words(name):
    assert VALIDATOR.is_valid(header_of(TABLE[name])) != TABLE[name].schema


@pytest.mark.clause("TNTCASE-2", "TNTCASE-3", "CASE-1")
def test_valid_headers_validate_and_the_schema_has_every_tensor():
    listed = set(SCHEMA["x-tnt"]["inputs"])
    for request in ({}, tnt_cases.FULL):
        header, tensors = tnt_cases.some(**request)
        VALIDATOR.validate({**header, "level": "projected", "note": "x"})
        for name in tensors:
            parts = ["MEMORY" if p.startswith(("global", "local")) else p for p in name.split("/")]
            assert "/".join(parts) in listed, name
    assert {key for bad in PARAMETERS.values() for key in bad.parameters} >= set(FIELDS)


@pytest.mark.clause("CASE-17", "CASE-35")
def test_a_name_that_is_misspelt_is_answered_with_those_that_resemble_it():
    header, tensors = tnt_cases.some()
    with pytest.raises(atlas_ref.CaseError, match="did you mean in/momentum"):
        make(header, {**tensors, "in/momentun": tensors["in/momentum"]})


@pytest.mark.clause("TNTCASE-11")
def test_levels_takes_no_tnt_and_says_so_in_one_line(cli, tmp_path):
    case = tnt_cases.made()
    file = tmp_path / "case.safetensors"
    atlas_ref.save(file, case.header, case.inputs)
    ran = cli("levels", file, "-o", tmp_path / "levels")
    assert (ran.code, ran.out) == (2, "") or ran.code == 3
    assert ran.err.count("\n") == 1
    assert "rule tnt: has no levels; rule cms has levels" in ran.err
