"""The commands conventions, forms and schema: what there is to choose from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from atlas_ref.cli import options, output

Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    for command in (conventions, forms, schema):
        app.command()(command)


def conventions(
    preset: Annotated[
        str | None,
        typer.Argument(
            help="a preset, for what it sets on every axis", autocompletion=options.presets
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Every axis with its values, and what each preset changes."""
    from atlas_ref.conventions import PRESETS, SOURCES, Convention, resolve
    from atlas_ref.messages import no_such
    from atlas_ref.oracle.cases.case import CaseError
    from atlas_ref.oracle.schema.schema import axis_values
    from atlas_ref.rules import RULES

    if preset is not None and preset not in PRESETS:
        raise CaseError(no_such("preset", preset, PRESETS))
    axes: dict[str, dict[str, Any]] = {
        axis: {"values": axis_values(axis), "meaning": field.description}
        for axis, field in Convention.model_fields.items()
    }
    presets = {
        name: {"source": SOURCES[name], "changes": PRESETS[name]}
        for name in ([preset] if preset else PRESETS)
    }
    content: dict[str, Any] = {"axes": axes, "presets": presets}
    if preset is not None:
        resolved = {rule: resolve(preset, rule=rule).model_dump(mode="json") for rule in RULES}
        content = {"preset": preset, **presets[preset], "resolved": resolved}
    if as_json:
        output.emit_json(content)
        return 0
    rows = [(name, output.words(each["changes"]), each["source"]) for name, each in presets.items()]
    tables = [output.table("presets", ("preset", "changes in spec", "source"), rows)]
    if preset is None:
        rows = [(axis, ", ".join(each["values"]), each["meaning"]) for axis, each in axes.items()]
        tables.insert(
            0, output.table("axes", ("axis", "values, the default first", "meaning"), rows)
        )
    else:
        in_force = [
            (axis, *(output.words(each[axis]) for each in resolved.values())) for axis in axes
        ]
        tables.append(output.table("in force, per rule", ("axis", *resolved), in_force))
    output.emit_rich(*tables)
    return 0


def forms(as_json: Json = False) -> int:
    """Which form computes which rule, and under which conventions it does not."""
    from atlas_ref.forms.support import CONDITIONS, FORMS, SUPPORT
    from atlas_ref.rules import RULES

    refused = {form: [each.reason for each in CONDITIONS if form in each.forms] for form in FORMS}
    if as_json:
        output.emit_json({"support": SUPPORT, "refused": refused})
        return 0
    rows = [(form, *(SUPPORT[form][rule] for rule in RULES)) for form in FORMS]
    reasons = [(form, reason) for form in FORMS for reason in refused[form]]
    meanings = [
        ("exact", "the rule itself"),
        ("frozen", "the rule under a frozen or a zero reference"),
        ("apart", "several memories, with a function of their own"),
    ]
    output.emit_rich(
        output.table("support", ("form", *RULES), rows),
        output.table("", ("word", "what the form computes"), meanings),
        output.table("refused, whatever the rule", ("form", "where"), reasons),
    )
    return 0


def schema(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND", help="A command, for what it prints with --json; else the header."
        ),
    ] = None,
    as_json: Json = True,
) -> int:
    """The JSON Schema of the header, with the table of tensors under `x-tensors`; or of what a
    command prints with --json.
    """
    if command:
        from atlas_ref.cli import formats

        output.emit_document(formats.schema(" ".join(command)))
        return 0
    from atlas_ref.oracle.schema.schema import case_schema

    output.emit_document(case_schema())
    return 0


def rule_with(member: str) -> str:
    """The rule that has a member; empty where none has it."""
    from atlas_ref.oracle.dplr.members import MEMBERS
    from atlas_ref.oracle.recurrences.members import MEMBERS as RECURRENCES

    found: dict[str, Mapping[str, Any]] = {"dplr": MEMBERS, "recurrence": RECURRENCES}
    return next((rule for rule, members in found.items() if member in members), "")


def rule_of(name: str, chosen: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A rule and its parameters, from its name or from that of a member (DPLRCASE-30).

    Args:
        chosen: parameters that options name.

    Raises:
        CaseError: another member among them, or a name that people use for a member.
    """
    from atlas_ref.oracle.registry import SUBJECTS

    if name in SUBJECTS:
        return name, chosen
    from atlas_ref.adapters import names
    from atlas_ref.oracle.cases.case import CaseError

    own = names.plain(name)
    if own in names.ELSEWHERE:
        raise CaseError(f"rule {name}: {names.ELSEWHERE[own]}")
    member = names.SIGNATURES[own][0].member if own in names.SIGNATURES else own
    rule = rule_with(member)
    if not rule:
        return name, chosen
    if chosen.get("member", member) != member:
        raise CaseError(
            f"rule {name}: is member {member}, found --parameter member={chosen['member']}"
        )
    output.say(f"{name}: member {member} of rule {rule}")
    return rule, {"member": member, **chosen}
