"""Versions and schemas of the JSON that commands print."""

from __future__ import annotations

import json

import jsonschema
import pytest
import typer

import atlas_ref
from atlas_ref.cli.formats import REPLIES, schema
from atlas_ref.cli.main import program
from atlas_ref.messages import FORMAT
from docs import command_line
from tests.support.casefiles import PEERS

PEER = PEERS / "fla_delta_11.safetensors"


@pytest.mark.clause("CASE-28")
def test_every_object_begins_with_the_versions_of_the_tool_and_of_the_object(cli, tmp_path):
    for arguments in (["check", PEER], ["show", PEER], ["forms"], ["show", tmp_path / "absent"]):
        value = json.loads(cli(*arguments, "--json").out)
        assert list(value.items())[:2] == [
            ("atlas_ref", atlas_ref.__version__),
            ("format", FORMAT),
        ]
    cli("check", PEER, "--report", tmp_path / "out.json")
    report = json.loads((tmp_path / "out.json").read_text())
    assert (report["atlas_ref"], report["format"]) == (atlas_ref.__version__, FORMAT)
    jsonschema.validate(report, cli("schema", "check").json)


@pytest.mark.clause("CASE-28")
def test_every_command_that_takes_json_has_a_schema(cli):
    taking = {
        name
        for name, command in command_line.commands(typer.main.get_command(program()))
        if any("--json" in each.opts for each in command.params)
    }
    assert set(REPLIES) == taking - {"schema"}
    for name in REPLIES:
        published = cli("schema", *name.split()).json
        jsonschema.Draft202012Validator.check_schema(published)
        assert published == schema(name)
        assert name in published["title"]


@pytest.mark.clause("CASE-28")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", 2),
        ("exit", 5),
        ("results", [{}]),
        ("failures", None),
        ("bad_input", "one line"),
        ("void", {"case": {"axis": 1}}),
    ],
)
def test_a_schema_refuses_what_a_command_does_not_print(key, value, cli):
    good = json.loads(cli("check", PEER, "--json").out)
    jsonschema.validate(good, schema("check"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**good, key: value}, schema("check"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({k: v for k, v in good.items() if k != key}, schema("check"))


def test_a_schema_that_does_not_exist_is_one_line(cli):
    ran = cli("schema", "vectors", "lists")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("atlas-ref: schema: command 'vectors lists' has none; new, show, ")
    assert ran.err.endswith("; did you mean vectors list or vectors diff or vectors verify?\n")
