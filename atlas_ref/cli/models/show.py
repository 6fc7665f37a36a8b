"""The command model show: sizes, blocks, rules and readings of a model."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated, Any

import typer

from atlas_ref.cli import output
from atlas_ref.cli.models.files import bad_input, parameters


def register(model: typer.Typer) -> None:
    """Add the command to its group."""
    model.command()(show)


def show(
    file: Annotated[Path, typer.Argument(metavar="MODEL", help="a model, as import writes it")],
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on standard output.")
    ] = False,
) -> int:
    """What a model is: sizes, blocks, rules, and readings that are no preset's. Exit code 2 if the
    file is none.
    """
    from atlas_ref.models import checkpoint

    with bad_input():
        found = checkpoint.read(file)
    about = summary(str(file), found)
    if as_json:
        output.emit_json(about)
    else:
        emit(about)
    return 0


def summary(file: str, found: Any) -> dict[str, Any]:
    """A model as JSON has it."""
    from atlas_ref.models import checkpoint

    config, params = found.config, found.params
    return {
        "file": file,
        "model": checkpoint.MODEL,
        "vocabulary": config.vocabulary,
        "d_model": config.d_model,
        "tied": config.tied,
        "causal": config.causal,
        "parameters": parameters(params),
        "dtype": params.embedding.dtype.name,
        "blocks": [
            _block(config, block, own)
            for block, own in zip(config.blocks, params.blocks, strict=True)
        ],
        "source": found.source,
        "config": checkpoint.described(config),
    }


def _block(config: Any, block: Any, params: Any) -> dict[str, Any]:
    from atlas_ref.blocks import BLOCKS, module_of
    from atlas_ref.models import readings

    plain = block.model_dump(mode="json")
    attention = plain.get("attention")
    ff = plain.get("ff_post") or plain.get("feed_forward")
    near = readings.of_block(config, block)
    return {
        "kind": next(name for name, module in BLOCKS.items() if module is module_of(block)),
        "levels": [] if block.memory is None else _levels(block.memory),
        "heads": attention["heads"] if attention else None,
        "d_head": attention["d_head"] if attention else None,
        "window": attention["window"] if attention else None,
        "d_inner": ff["d_inner"] if ff else None,
        "parameters": parameters(params),
        "preset": near.preset,
        "changes": near.changes,
    }


def _levels(memory: Any) -> list[dict[str, Any]]:
    """Every level of a memory; one that shares attention has the reading of the whole layer."""
    from atlas_ref.models import readings

    near = readings.of_shared(memory)
    return [_level(each, near) for each in memory.levels.levels]


def _level(level: Any, near: Any = None) -> dict[str, Any]:
    from atlas_ref.models import readings

    near = near or readings.of_rule(level.config, level.rule.name)
    plain = level.config.model_dump(mode="json")
    return {
        "rule": level.rule.name,
        "heads": plain["heads"],
        "d_in": plain["d_in"],
        "d_out": plain["d_out"],
        "window": plain.get("window"),
        "feature_map": plain.get("feature_map"),
        "period": level.period,
        "form": level.form,
        "preset": near.preset,
        "changes": near.changes,
    }


def emit(about: dict[str, Any]) -> None:
    """Write it for a reader: equal blocks that follow each other have one line."""
    words = "tied" if about["tied"] else "not tied"
    causal = "causal" if about["causal"] else "not causal"
    head = (
        f"{about['file']}  {about['model']}: {about['vocabulary']} ids, d_model {about['d_model']}, "
        f"{len(about['blocks'])} blocks, {about['parameters']} parameters, {about['dtype']}, "
        f"head {words}, {causal}"
    )
    came = [f"from {about['source']['from']}"] if about["source"].get("from") else []
    blocks, levels = [], []
    for place, block in _grouped(about["blocks"]):
        sizes = {name: block[name] for name in ("heads", "d_head", "window") if block[name]}
        blocks.append(
            (
                place,
                block["kind"],
                output.words(sizes),
                block["d_inner"] or "",
                block["parameters"],
                _reading(block),
            )
        )
        for number, level in enumerate(block["levels"]):
            levels.append((place, number, level["rule"], *_level_cells(level), _reading(level)))
    output.emit_rich(
        head,
        *came,
        output.table(
            "blocks", ("block", "kind", "attention", "hidden", "parameters", "readings"), blocks
        ),
        output.table(
            "memories", ("block", "level", "rule", "sizes", "period", "convention"), levels
        ),
    )


def _grouped(blocks: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    rows, first = [], 0
    for _, group in itertools.groupby(blocks):
        equal = list(group)
        last = first + len(equal) - 1
        rows.append((f"{first}" if first == last else f"{first} to {last}", equal[0]))
        first = last + 1
    return rows


def _level_cells(level: dict[str, Any]) -> tuple[str, str]:
    sizes = {"heads": level["heads"], "d_in": level["d_in"], "d_out": level["d_out"]}
    if level["window"] is not None:
        sizes["window"] = level["window"]
    if (level["feature_map"] or {}).get("kind", "identity") != "identity":
        sizes["map"] = level["feature_map"]["kind"]
    return output.words(sizes), f"{level['period']}"


def _reading(each: dict[str, Any]) -> str:
    changed = output.words(each["changes"])
    return f"{each['preset']}, but {changed}" if changed else str(each["preset"])
