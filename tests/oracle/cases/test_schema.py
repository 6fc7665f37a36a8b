"""The published JSON Schema against the reader: accepted cases validate, expressible refusals do
not.
"""

import json

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atlas_ref
from atlas_ref.conventions import PRESETS
from atlas_ref.oracle.cases.header import Header, parse
from atlas_ref.oracle.schema.schema import case_schema, result_names, tensor_table
from tests.support.bad_headers import TABLE
from tests.support.casefiles import PEERS, changed, some
from tests.support.strategies import cases, repeatable

SCHEMA = case_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

#: Bad headers that one file with tensors must show, or that JSON Schema has no words for.
BEYOND_SCHEMA = {
    "header: window as a fraction": "JSON Schema counts 3.0 as an integer",
    "header: phase not below the span": "it compares no two values",
    "header: too few coefficients": "nor a length with a value",
    "convention: read chunk_start without a span": "presets may set the axis too",
    "convention: reference chunk_start without a span": "presets may set the axis too",
    "convention: split without its rate": "a tensor is missing",
    "convention: split at level token": "presets may set the axis too",
    "convention: written_back with momenta": "presets may set the axes too",
    "levels: a level too high": "it compares no two values",
    "levels: another mask than the schedule": "a tensor is wrong",
    "levels: a period too few": "nor two lengths",
    "levels: split in a level": "presets may set the axis too",
}


def test_the_schema_is_a_valid_schema_and_one_json_object():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert json.loads(json.dumps(SCHEMA, allow_nan=False)) == SCHEMA


@pytest.mark.clause("CASE-1", "CASE-2")
@pytest.mark.parametrize("file", sorted(PEERS.glob("*.safetensors")), ids=lambda file: file.stem)
def test_every_recorded_header_validates(file):
    VALIDATOR.validate(atlas_ref.load(file).header.plain())


@pytest.mark.clause("CASE-2", "CASE-3", "CASE-9")
@settings(repeatable, max_examples=200)
@given(data=st.data())
def test_every_header_that_is_read_validates(data):
    case = data.draw(cases())
    VALIDATOR.validate(case.header.plain())
    VALIDATOR.validate(atlas_ref.evaluate(case).header)


@pytest.mark.parametrize(
    "rule", ["omega", "titans_lmm", "delta", "hebbian", "newton_schulz", "feature_map", "ttl"]
)
@pytest.mark.parametrize(
    "convention", ["spec", "titans-paper", {}, {"preset": "atlas-mag"}, {"gate": "forget"}], ids=str
)
def test_a_convention_that_any_rule_may_have_validates_for_every_rule(rule, convention):
    header = {"schema": 1, "rule": rule, "convention": convention}
    parse(json.dumps(header))
    VALIDATOR.validate(header)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_validates_by_name_and_written_out(preset):
    VALIDATOR.validate({"schema": 1, "rule": "omega", "convention": preset})
    VALIDATOR.validate(
        {"schema": 1, "rule": "omega", "convention": {"preset": preset, **PRESETS[preset]}}
    )


@pytest.mark.clause("CASE-2", "CASE-3", "CASE-16")
@pytest.mark.parametrize("name", TABLE)
def test_a_bad_header_does_not_validate_unless_json_schema_has_no_words_for_it(name):
    header = changed(some(**TABLE[name].base)[0], TABLE[name].header)
    assert VALIDATOR.is_valid(header) == (name in BEYOND_SCHEMA)


@pytest.mark.clause("CASE-2")
def test_the_schema_has_every_key_with_its_default():
    assert SCHEMA["properties"].keys() == {
        field.alias or name for name, field in Header.model_fields.items()
    }
    assert set(SCHEMA["required"]) == {"schema", "rule"}
    assert SCHEMA["additionalProperties"] is False
    made = Header.model_validate({"schema": 1, "rule": "omega"}).model_dump(
        mode="json", by_alias=True
    )
    for key, field in SCHEMA["properties"].items():
        if key not in SCHEMA["required"]:
            assert made[key] == field["default"], key


@pytest.mark.clause("CASE-6", "CASE-8", "CASE-10", "CASE-11")
def test_the_table_of_tensors_gives_axes_need_dtype_and_range():
    table = SCHEMA["x-tensors"]
    assert table == tensor_table()
    for name, entry in table.items():
        assert name.startswith("in/")
        assert {"axes", "need", "dtype", "rules"} <= entry.keys(), name
    assert table["in/retain"] == {
        "dtype": "float64, float32, bfloat16 or float16", "level": "projected", "rules": "all", "axes": "... T, or ... T d_out",
        "need": "yes", "least": 0.0, "greatest": 1.0,
    }  # fmt: skip


@pytest.mark.clause("CASE-12", "CASE-14")
@settings(repeatable, max_examples=30)
@given(data=st.data())
def test_every_result_has_a_published_name(data):
    assert set(atlas_ref.evaluate(data.draw(cases()), grad=True).tensors) <= result_names()
