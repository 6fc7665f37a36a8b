"""Malformed cases of layers: one line names the tensor or the key, from Python and every command."""

import re

import jsonschema
import pytest

import atlas_ref
from atlas_ref.oracle.cases.case import make
from atlas_ref.oracle.schema.schema import case_schema
from atlas_ref.oracle.subjects.layer import ENTRIES
from tests.support.bad_layers import TABLE, case_of, header_of
from tests.support.layer_cases import ALL_MAG, FILES, GATES, MAG, TITANS
from tests.support.refusal import refused_everywhere

SCHEMA = case_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


@pytest.mark.clause("LAYER-2", "LAYER-3", "CASE-16", "CASE-17")
@pytest.mark.parametrize("name", TABLE)
def test_a_bad_case_of_a_layer_is_refused_in_one_line(name, cli, tmp_path):
    refused_everywhere(case_of(TABLE[name], tmp_path), TABLE[name].message, cli, tmp_path)


@pytest.mark.clause("LAYER-2")
@pytest.mark.parametrize("name", [name for name in TABLE if not name.startswith("tensors")])
def test_a_bad_header_of_a_layer_does_not_validate_unless_json_schema_has_no_words(name):
    assert VALIDATOR.is_valid(header_of(TABLE[name])) != TABLE[name].schema


@pytest.mark.clause("LAYER-2", "CASE-1")
@pytest.mark.parametrize("file", FILES + MAG + ALL_MAG + TITANS + GATES, ids=lambda file: file.stem)
def test_every_recorded_header_of_a_layer_validates(file):
    VALIDATOR.validate(atlas_ref.load(file).header.plain())


def any_number(name):
    """The name with N for the number of a layer, a call, or a tensor of a memory."""
    name = re.sub(r"/(layers|blocks)\.\d+\.", r"/\1.N.", name)
    return re.sub(r"/call\d+/|(?<=memory_model)(.*)\.\d+$", _numbered, name)


def _numbered(found):
    return "/callN/" if found[1] is None else f"{found[1]}.N"


@pytest.mark.clause("LAYER-2", "LAYER-3")
def test_the_schema_has_the_tensors_of_every_layer():
    tables = SCHEMA["x-layers"]
    assert set(tables) == set(ENTRIES)
    seen = {name: set() for name in tables}
    for file in FILES + MAG + ALL_MAG + TITANS + GATES:
        case = atlas_ref.load(file)
        seen[case.header.layer] |= {any_number(name) for name in case.inputs}
    for name, table in tables.items():
        own = {key for key in table["inputs"] if not key.startswith("in/cache/")}
        assert seen[name] <= own, name
        # no recorded file of some layers has these arguments
        assert all(re.search("phi.proj|omega_gate|_conv|w3", key) for key in own - seen[name]), name


@pytest.mark.clause("CASE-17")
def test_an_unknown_parameter_is_answered_with_those_that_resemble_it():
    for name, words in (
        ("parameters: unknown parameter", "; did you mean window_size?"),
        ("tensors: a name that is misspelt", "; did you mean in/param/1.weight"),
    ):
        bad = TABLE[name]
        with pytest.raises(atlas_ref.CaseError, match=words.replace("?", r"\?")):
            make(header_of(bad), _tensors(bad))


def _tensors(bad):
    from tests.support.bad_layers import tensors_of
    from tests.support.casefiles import changed

    return changed(*tensors_of(bad))
