"""The command probe recall: how soon a small model learns to recall pairs (PROBE-22)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from atlas_ref.cli import options, output

if TYPE_CHECKING:
    from atlas_ref.train.probes.lessons import Lesson
    from atlas_ref.train.probes.recall import Settings

    Runs = list[tuple[Settings, int, tuple[Lesson, ...]]]

#: Memories probed where none is named.
DEFAULT = ("delta", "gated_delta", "titans_lmm", "hebbian")
COLUMNS = ("memory", "seed", "pairs", "steps", "accuracy", "reached", "seconds", "tokens/s")


def register(probe: typer.Typer) -> None:
    """Add the command to its group."""
    probe.command("recall")(recall)


def recall(
    memories: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MEMORY]...",
            help="hebbian, delta, gated_delta, titans_lmm or omega; without one all but omega",
        ),
    ] = None,
    pairs: Annotated[
        str, typer.Option(metavar="N,N,...", help="numbers of pairs, one lesson each")
    ] = "4,8,16,32",
    length: Annotated[
        int | None, typer.Option(min=1, help="tokens of a sequence; by default 3 for each pair")
    ] = None,
    keys: Annotated[int, typer.Option(min=1, help="number of different keys")] = 128,
    values: Annotated[int, typer.Option(min=1, help="number of different values")] = 128,
    dim: Annotated[int, typer.Option(min=1, help="of the model")] = 64,
    layers: Annotated[int, typer.Option(min=1, help="of the model")] = 2,
    heads: Annotated[int, typer.Option(min=1, help="of each memory")] = 1,
    kernel: Annotated[int, typer.Option(min=1, help="taps of the convolutions")] = 4,
    no_convolution: Annotated[
        bool, typer.Option("--no-convolution", help="The same as --kernel 1.")
    ] = False,
    window: Annotated[int, typer.Option(min=1, help="of omega")] = 2,
    preset: Annotated[
        str, typer.Option(metavar="NAME", help="readings of the layers: unit, causal, titans, ...")
    ] = "unit",
    batch: Annotated[int, typer.Option(min=1, help="sequences of a step")] = 32,
    rate: Annotated[float, typer.Option(help="of AdamW")] = 1e-2,
    steps: Annotated[int, typer.Option(min=0, help="most of all lessons together")] = 1000,
    every: Annotated[int, typer.Option(min=1, help="steps between two examinations")] = 25,
    enough: Annotated[float, typer.Option(help="share of right answers that ends a lesson")] = 0.95,
    seeds: Annotated[int, typer.Option(min=1, help="models, of seed, seed + 1, ...")] = 1,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on standard output.")
    ] = False,
) -> int:
    """How soon a small model learns to recall pairs of its context, lesson by lesson."""
    from atlas_ref.cli.models.files import bad_input
    from atlas_ref.train.probes.lessons import learn

    chosen = {
        "pairs": options.numbers("--pairs", pairs),
        "length": length,
        "keys": keys,
        "values": values,
        "dim": dim,
        "layers": layers,
        "heads": heads,
        "kernel": 1 if no_convolution else kernel,
        "window": window,
        "preset": preset,
        "batch": batch,
        "rate": rate,
        "steps": steps,
        "every": every,
        "enough": enough,
    }
    with bad_input():
        settings = [_settings(name, chosen) for name in memories or DEFAULT]
        if seeds > MOST:
            raise ValueError(f"--seeds: {seeds}, expected at most {MOST}")
        runs: Runs = []
        for each in settings:
            for own in range(seed, seed + seeds):
                kind = f"{each.memory}, seed {own}: steps"
                with output.progress({"steps": kind}) as progress:
                    runs.append((each, own, learn(each, own, progress=progress)))
    if as_json:
        output.emit_json(_described(chosen, runs))
    else:
        _emit(runs)
    return 0


#: Most models of one memory.
MOST = 1000


def _settings(name: str, chosen: dict[str, Any]) -> Settings:
    """The settings of one memory, which its model takes."""
    from atlas_ref.messages import in_one_line, no_such
    from atlas_ref.train.models import PRESETS
    from atlas_ref.train.probes.recall import KINDS, Settings, model

    if name not in KINDS:
        raise ValueError(f"probe recall: {no_such('kind', name, KINDS)}")
    if chosen["preset"] not in PRESETS:
        raise ValueError(f"--preset: {no_such('preset', chosen['preset'], PRESETS)}")
    with in_one_line(f"probe recall {name}: "):
        settings = Settings.model_validate({"memory": name, **chosen})
        model(settings)
    return settings


def _described(chosen: dict[str, Any], runs: Runs) -> dict[str, Any]:
    return {
        "exit": 0,
        "settings": chosen,
        "runs": [
            {
                "memory": settings.memory,
                "seed": seed,
                "lessons": [lesson._asdict() for lesson in lessons],
            }
            for settings, seed, lessons in runs
        ],
    }


def _emit(runs: Runs) -> None:
    """A table of all lessons, and what its columns say."""
    from rich.table import Table

    table = Table(title="associative recall, lesson by lesson")
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "memory" else "right")
    for settings, seed, lessons in runs:
        for lesson in lessons:
            table.add_row(
                settings.memory,
                str(seed),
                str(lesson.pairs),
                str(lesson.steps),
                f"{lesson.accuracy:.3f}",
                "yes" if lesson.reached else "no",
                f"{lesson.seconds:.1f}",
                "" if lesson.rate is None else f"{lesson.rate:.0f}",
            )
        table.add_section()
    output.emit_rich(table)
    first = runs[0][0]
    output.say(
        f"a lesson ends at {first.enough:g} right answers, examined every {first.every} steps; "
        "steps and seconds of the processor are those of all lessons so far"
    )
