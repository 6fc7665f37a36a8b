"""The command probe capacity: pairs that memories read back, beside what theory says (PROBE-15)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atlas_ref.cli import options, output

if TYPE_CHECKING:
    from atlas_ref.train.probes.capacity import Settings
    from atlas_ref.train.probes.curve import Point

    Curves = list[tuple[Settings, int, tuple[Point, ...]]]

#: Heads of the columns that stand beside memory and pairs.
COLUMNS = ("limit", "by angle", "expected", "by error", "error", "expected error")


def register(probe: typer.Typer) -> None:
    """Add the command to its group."""
    probe.command("capacity")(capacity)


def capacity(
    memories: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MEMORY]...",
            help="omega, titans_lmm, delta, hebbian, deep_memory or least_squares; without one "
            "hebbian, delta and least_squares",
        ),
    ] = None,
    pairs: Annotated[str, typer.Option(metavar="N,N,...", help="numbers of pairs")] = (
        "2,4,8,12,16,20,24,32"
    ),
    d_k: Annotated[int, typer.Option(min=1, help="length of keys")] = 16,
    d_v: Annotated[int, typer.Option(min=1, help="length of values")] = 16,
    keys: Annotated[
        str, typer.Option(metavar="KIND", help="unit, all of length 1; free, of any length")
    ] = "unit",
    feature_map: Annotated[
        str | None, typer.Option(metavar="KIND|JSON", help="identity, polynomial, monomials, ...")
    ] = None,
    features: Annotated[
        int | None, typer.Option(min=1, help="columns of the map, where it may have any")
    ] = None,
    passes: Annotated[int, typer.Option(min=1, help="times that all pairs are written")] = 1,
    period: Annotated[
        str, typer.Option(metavar="N|pairs", help="tokens between writes; pairs: one a pass")
    ] = "1",
    step_size: Annotated[
        float | None, typer.Option(help="of each write; by default the full step")
    ] = None,
    momentum: Annotated[float, typer.Option(help="where a rule has it")] = 0.0,
    retain: Annotated[float, typer.Option(help="share of the memory that a token keeps")] = 1.0,
    convention: Annotated[
        list[str] | None,
        options.convention("Of every rule; may be given several times."),
    ] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            "--parameter",
            metavar="NAME=VALUE",
            help="A setting of every rule, such as window=4, memory.kind=mlp; the value pairs "
            "stands for their number.",
        ),
    ] = None,
    bound: Annotated[float, typer.Option(help="error up to which a pair is recalled")] = 0.1,
    form: Annotated[
        str, typer.Option(metavar="FORM", help="Compute in this form: see atlas-ref forms.")
    ] = "sequential",
    seeds: Annotated[
        int, typer.Option(min=1, help="draws of the pairs, of seed, seed + 1, ...")
    ] = 8,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="PNG|SVG", help="Draw the curves into this file."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on standard output.")
    ] = False,
) -> int:
    """How many random pairs a memory reads back, without training, beside what theory says."""
    from atlas_ref.cli.models.files import bad_input, refuse_place
    from atlas_ref.cli.probe import figure
    from atlas_ref.train.probes.curve import curve

    chosen = {
        "d_k": d_k,
        "d_v": d_v,
        "keys": keys,
        "feature_map": options.kind("--feature-map", feature_map) or {"kind": "identity"},
        "features": features,
        "passes": passes,
        "period": int(period) if period.isdecimal() and period.isascii() else period,
        "step_size": step_size,
        "momentum": momentum,
        "retain": retain,
        "bound": bound,
        "form": form,
    }
    own = {
        "convention": options.convention_changes(convention),
        "parameters": options.parameters(parameter),
    }
    counts = options.numbers("--pairs", pairs)
    with bad_input():
        _refuse_counts(counts, seeds)
        if out is not None:
            figure.refuse(out)
            refuse_place(out)
        settings = [_settings(name, chosen, own) for name in memories or DEFAULT]
        curves: Curves = []
        words = {"pairs": "numbers of pairs"}
        with output.progress(words) as progress:
            for each in settings:
                points = curve(each, counts, range(seed, seed + seeds), progress=progress)
                curves.append((each, _limit(each), points))
        if out is not None:
            figure.draw(out, curves)
    if as_json:
        output.emit_json(_described(chosen, own, curves, out))
    else:
        _emit(curves, out)
    return 0


#: Memories measured where none is named.
DEFAULT = ("hebbian", "delta", "least_squares")


def _refuse_counts(counts: tuple[int, ...], seeds: int) -> None:
    """Refuse counts that no draw can have, before anything is drawn."""
    if not counts:
        raise ValueError("--pairs: at least one number is needed")
    if wrong := [count for count in counts if not 1 <= count <= MOST]:
        raise ValueError(f"--pairs: {wrong[0]}, expected 1 to {MOST}")
    if seeds > MOST:
        raise ValueError(f"--seeds: {seeds}, expected at most {MOST}")


#: Most pairs, and most draws, of one number.
MOST = 100_000


def _settings(name: str, chosen: dict[str, Any], own: dict[str, Any]) -> Settings:
    """The settings of one memory; convention and parameters are those of rules alone."""
    from atlas_ref.messages import in_one_line, no_such
    from atlas_ref.train.probes.capacity import LEAST_SQUARES, MEMORIES, Settings

    if name not in MEMORIES:
        raise ValueError(f"probe capacity: {no_such('kind', name, MEMORIES)}")
    of_rule = {} if name == LEAST_SQUARES else own
    with in_one_line(f"probe capacity {name}: "):
        return Settings.model_validate({"memory": name, **chosen, **of_rule})


def _limit(settings: Settings) -> int:
    from atlas_ref.train.probes.limits import limit

    return limit(settings)


def _described(
    chosen: dict[str, Any], own: dict[str, Any], curves: Curves, out: Path | None
) -> dict[str, Any]:
    return {
        "exit": 0,
        "settings": {**chosen, **own},
        "memories": [
            {
                "memory": settings.memory,
                "limit": limit,
                "points": [point._asdict() for point in points],
            }
            for settings, limit, points in curves
        ],
        "out": None if out is None else str(out),
    }


def _emit(curves: Curves, out: Path | None) -> None:
    """A table of all memories, and what its columns say."""
    from rich.table import Table

    table = Table(title="pairs that a memory reads back, means over draws")
    for name in ("memory", "pairs", *COLUMNS):
        table.add_column(name, justify="left" if name == "memory" else "right")
    for settings, limit, points in curves:
        for point in points:
            table.add_row(
                settings.memory,
                str(point.pairs),
                str(limit),
                f"{point.by_angle:.2f}",
                _shown(point.expected_by_angle, ".2f"),
                f"{point.by_error:.2f}",
                f"{point.error:.3g}",
                _shown(point.expected_error, ".3g"),
            )
        table.add_section()
    output.emit_rich(table)
    output.say(
        f"by angle: the nearest value is the right one; by error: at most {curves[0][0].bound:g} "
        "of the value; limit: of exact recall"
    )
    if out is not None:
        output.say(f"wrote {out}")


def _shown(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
