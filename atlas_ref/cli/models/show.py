"""The command model show: sizes, blocks, rules and readings of a model."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated, Any

import typer

from atlas_ref.cli import output
from atlas_ref.cli.models.files import bad_input, named, parameters


def register(model: typer.Typer) -> None:
    """Add the command to its group."""
    model.command()(show)


def show(
    file: Annotated[Path, typer.Argument(metavar="MODEL", help="a model, as import writes it")],
    on: Annotated[
        Path | None,
        typer.Option(
            "--on",
            metavar="FILE",
            help="Also what memories that share attention do on ids: a safetensors file with a "
            "tensor ids or in/ids, (batch, tokens).",
        ),
    ] = None,
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
        if on is not None:
            about["memories"] = memories(found, on)
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
    """Every level of a memory, or memory of a TNT; one that shares attention has the reading of the
    whole layer.
    """
    from atlas_ref.forms.tnt.config import form_of
    from atlas_ref.layers import memory_tnt
    from atlas_ref.levels.level import Level
    from atlas_ref.models import readings

    if isinstance(memory.levels, memory_tnt.Config):
        return [
            _level(Level(config=each.config))
            | {
                "form": form_of(each),
                "tnt": {"span": each.span, "shard": getattr(each, "shard", None)},
            }
            for each in memory.levels.tnt.memories
        ]
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
        "tnt": None,
        "preset": near.preset,
        "changes": near.changes,
    }


def memories(found: Any, on: Path) -> dict[str, Any]:
    """What shared memories do on the ids of a file (MAG-8 to MAG-10)."""
    from atlas_ref.models import audit, language_model

    with named(on):
        ids = ids_of(on)
        config, params = found.config, found.params
        kind = params.embedding.dtype
        state = language_model.start(config, len(ids), dtype=kind, initial=found.initial)
        contribution = audit.contribution(config, params, state, ids)
    return {
        "ids": list(ids.shape),
        **contribution._asdict(),
        "blocks": [
            {
                "block": each.block,
                "gate": None if each.gate is None else each.gate._asdict(),
                "mix": None if each.mix is None else each.mix._asdict(),
                "attention": each.attention,
                "memory": each.memory,
                "ratio": each.ratio,
            }
            for each in audit.layers(config, params, state, ids[:, :-1])
        ],
    }


def ids_of(path: Path) -> Any:
    """The ids of a file.

    Raises:
        ValueError: no such tensor, or too few ids to predict one.
    """
    from atlas_ref.storage import files

    _, tensors = files.read(path, "is a folder, a file of ids is needed")
    for name in ("ids", "in/ids"):
        if name in tensors:
            ids = tensors[name]
            if ids.ndim != 2 or ids.shape[0] < 1 or ids.shape[1] < 2:
                raise ValueError(f"{name}: shape {ids.shape}, expected (batch, at least 2 tokens)")
            return ids
    raise ValueError(f"no tensor ids or in/ids, found {', '.join(tensors) or 'none'}")


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
        *(_of_memories(about["memories"]) if "memories" in about else ()),
    )


def _of_memories(about: dict[str, Any]) -> list[Any]:
    """The lines and the table of what memories do."""
    from atlas_ref.models.audit import MISMATCH

    B, T = about["ids"]
    line = (
        f"on {B} x {T} ids: loss {about['loss']:.6g}, with memories that return 0 "
        f"{about['neutral']:.6g}, without memories {about['disabled']:.6g}; logits change by up to "
        f"{about['change']:.3g}"
    )
    rows, apart = [], []
    for each in about["blocks"]:
        rows.append(
            (
                each["block"],
                *(_statistics(each[name]) for name in ("gate", "mix")),
                f"{each['attention']:.3g}",
                f"{each['memory']:.3g}",
                "" if each["ratio"] is None else f"{each['ratio']:.3g}",
            )
        )
        if each["ratio"] is None or not 1 / MISMATCH <= each["ratio"] <= MISMATCH:
            apart.append(str(each["block"]))
    columns = ("block", "gate", "sigmoid(m)", "rms attention", "rms memory", "memory / attention")
    found = [line, output.table("shared memories: mean, deviation, least, largest", columns, rows)]
    if apart:
        found.append(f"sizes apart by more than {MISMATCH:g} times in block {', '.join(apart)}")
    return found


def _statistics(each: dict[str, float] | None) -> str:
    names = ("mean", "std", "min", "max")
    return "" if each is None else ", ".join(f"{each[name]:.3g}" for name in names)


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
    if (of := level["tnt"]) is not None:
        local = of["shard"] is not None
        sizes |= {"span": of["span"], **({"shard": of["shard"]} if local else {})}
    return output.words(sizes), f"{level['period']}"


def _reading(each: dict[str, Any]) -> str:
    changed = output.words(each["changes"])
    return f"{each['preset']}, but {changed}" if changed else str(each["preset"])
