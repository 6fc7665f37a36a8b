"""The command line: atlas-ref new, show, conventions, schema, eval, check.

Words and progress go to standard error, results to standard output; every command takes --json. Exit codes:
2 for bad input, else 1 if a compared tensor is not PASS, else 3 if nothing could be compared, else 0.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from atlas_ref.oracle.case import Case
    from atlas_ref.oracle.compare import Comparison

app = typer.Typer(
    name="atlas-ref",
    help="Reference rules for neural memories that learn at test time, and an oracle for implementations of them.",
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Changes = Annotated[
    list[str] | None,
    typer.Option("--convention", metavar="PRESET|AXIS=VALUE", help="A preset, or one axis; may be given several times."),
]


def main() -> None:
    """Run the command line; every error a user can cause is one line on standard error and exit code 2."""
    from atlas_ref.oracle.case import CaseError

    try:
        code = app(standalone_mode=False)
    except CaseError as error:
        _fail(str(error))
    except typer.TyperException as error:
        _fail(f"{error.format_message()} (see atlas-ref --help)")
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str) -> None:
    print(f"atlas-ref: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


def _out(value: dict[str, Any]) -> None:
    print(json.dumps(value, indent=2, allow_nan=False, default=_jsonable))


def _jsonable(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)


# -- new ----------------------------------------------------------------------------------------------


@app.command()
def new(
    rule: Annotated[str, typer.Argument(help="omega, titans_lmm, delta, hebbian, newton_schulz or feature_map")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="CASE", help="File to write.")],
    level: Annotated[str, typer.Option(help="projected: keys, values, queries and gates; token: tokens and parameters")] = "projected",
    tokens: Annotated[int, typer.Option(min=1)] = 8,
    d_in: Annotated[int, typer.Option(min=1, help="length of keys and queries")] = 4,
    d_out: Annotated[int, typer.Option(min=1, help="length of values")] = 3,
    heads: Annotated[int, typer.Option(min=1)] = 2,
    batch: Annotated[int, typer.Option(min=1, help="level token")] = 1,
    d_model: Annotated[int, typer.Option(min=1, help="level token: length of a token")] = 6,
    window: Annotated[int, typer.Option(min=1, help="tokens that Omega looks at")] = 1,
    span: Annotated[int | None, typer.Option(min=1, help="tokens between refreshes of a frozen reference")] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    history: Annotated[int, typer.Option(min=0, help="initial window tokens")] = 0,
    pulse: Annotated[int, typer.Option(min=1, help="write at every N-th token")] = 1,
    reset: Annotated[int, typer.Option(min=0, help="a packed sequence starts at every N-th token")] = 0,
    cotangent: Annotated[bool, typer.Option("--cotangent", help="add the cotangent that gradients need")] = False,
    per_dimension: Annotated[bool, typer.Option("--per-dimension", help="one gate per output dimension")] = False,
    window_gate: Annotated[bool, typer.Option("--window-gate", help="one weight per token")] = False,
    window_weights: Annotated[
        str | None, typer.Option(metavar="KIND|JSON", help="level token: uniform, ones, decay, softmax, gate")
    ] = None,
    feature_map: Annotated[str | None, typer.Option(metavar="KIND|JSON", help="identity, linear, polynomial, ...")] = None,
    features: Annotated[int | None, typer.Option(min=1, help="d_phi of maps that leave it open")] = None,
    dtype: Annotated[str, typer.Option(help="dtype of the tensors")] = "float64",
    convention: Changes = None,
    as_json: Json = False,
) -> int:
    """Make a case with random inputs."""
    from atlas_ref.oracle.new import Request
    from atlas_ref.oracle.new import new as make_new

    case = make_new(
        Request(
            rule=rule,
            level=level,
            tokens=tokens,
            d_in=d_in,
            d_out=d_out,
            heads=heads,
            d_model=d_model,
            batch=batch,
            window=window,
            span=span,
            seed=seed,
            history=history,
            pulse=pulse,
            reset=reset,
            cotangent=cotangent,
            per_dimension_gates=per_dimension,
            window_gate=window_gate,
            features=features,
            dtype=dtype,
            convention=_changes(convention) or "spec",
            feature_map=_kind("--feature-map", feature_map),
            window_weights=_kind("--window-weights", window_weights),
        ),
        name=str(out),
    )
    _write(out, case.header.model_dump(mode="json", by_alias=True, exclude_unset=True), case.inputs)
    if as_json:
        _out({"case": str(out), **_described(case)})
    else:
        _say(f"wrote {out}")
    return 0


# -- show, conventions, schema ------------------------------------------------------------------------


@app.command()
def show(file: Annotated[Path, typer.Argument(help="a case, or results")], as_json: Json = False) -> int:
    """What a file holds: header, convention in force, settings without effect, tensors."""
    from atlas_ref.oracle.case import load

    case = load(file)
    if as_json:
        _out({"case": str(file), **_described(case)})
        return 0
    from rich.table import Table

    console = _console()
    console.print(f"[bold]{file}[/]  rule {case.header.rule}, level {case.header.level}, form {case.header.form}", highlight=False)
    if case.header.note:
        console.print(case.header.note, markup=False, highlight=False)
    described = _described(case)
    console.print_json(json.dumps(described["header"]))
    if case.supported:
        changed = ", ".join(f"{axis} {value}" for axis, value in described["convention"].items())
        console.print(f"convention in force: {changed}", markup=False, highlight=False)
    for axis, why in case.void.items():
        console.print(f"void: {axis}: {why}", markup=False, highlight=False)
    table = Table("tensor", "dtype", "shape", "least", "greatest")
    for name, tensor in described["tensors"].items():
        table.add_row(name, tensor["dtype"], str(tuple(tensor["shape"])), _number(tensor["least"]), _number(tensor["greatest"]))
    console.print(table)
    return 0


@app.command()
def conventions(
    preset: Annotated[str | None, typer.Argument(help="a preset, for what it sets on every axis")] = None, as_json: Json = False
) -> int:
    """Every axis with its values, and what each preset changes."""
    from atlas_ref.conventions import PRESETS, SOURCES, Convention
    from atlas_ref.oracle.case import CaseError

    if preset is not None and preset not in PRESETS:
        raise CaseError(f"preset {preset!r} does not exist; presets are {', '.join(PRESETS)}")
    axes = {axis: (_values(axis), field.description or "") for axis, field in Convention.model_fields.items()}
    names = [preset] if preset else list(PRESETS)
    presets = {name: {"source": SOURCES[name], "changes": PRESETS[name]} for name in names}
    if as_json:
        described = {axis: {"values": values, "meaning": meaning} for axis, (values, meaning) in axes.items()}
        _out(
            {"axes": described, "presets": presets}
            if preset is None
            else {"preset": preset, **presets[preset], "resolved": _resolved(preset)}
        )
        return 0
    from rich.table import Table

    console = _console()
    if preset is None:
        table = Table("axis", "values, the default first", "meaning", title="axes", title_justify="left")
        for axis, (values, meaning) in axes.items():
            table.add_row(axis, ", ".join(values), meaning)
        console.print(table)
    table = Table("preset", "changes in spec", "source", title="presets", title_justify="left")
    for name in names:
        table.add_row(name, _words(PRESETS[name]), SOURCES[name])
    console.print(table)
    if preset is not None:
        table = Table("axis", *_resolved(preset), title="in force, per rule", title_justify="left")
        for axis in Convention.model_fields:
            table.add_row(axis, *[_words(each[axis]) for each in _resolved(preset).values()])
        console.print(table)
    return 0


@app.command()
def schema(as_json: Json = True) -> int:
    """The JSON Schema of the header, with the table of tensors under `x-tensors`."""
    from atlas_ref.oracle.schema import case_schema

    _out(case_schema())
    return 0


# -- eval, check --------------------------------------------------------------------------------------


@app.command("eval")
def evaluate(
    file: Annotated[Path, typer.Argument(metavar="CASE")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="OUT", help="File for the results.")],
    grad: Annotated[bool, typer.Option("--grad", help="Also write gradients by every floating input.")] = False,
    dtype: Annotated[str, typer.Option(help="Arithmetic: float64 or float32.")] = "float64",
    convention: Changes = None,
    as_json: Json = False,
) -> int:
    """Compute what the spec says a case's results are."""
    from atlas_ref.oracle.case import CaseError, load
    from atlas_ref.oracle.evaluate import evaluate as run

    if out.exists() and file.exists() and out.samefile(file):
        raise CaseError(f"{out}: is the case itself; results need a file of their own")
    results = run(load(file), grad=grad, dtype=dtype, convention=_changes(convention))
    _write(out, results.header, results.tensors)
    if as_json:
        tensors = {name: {"dtype": str(t.dtype), "shape": list(t.shape)} for name, t in results.tensors.items()}
        _out({"case": str(file), "out": str(out), "tensors": tensors, "void": results.void})
    else:
        for axis, why in results.void.items():
            _say(f"void: {axis}: {why}")
        _say(f"wrote {out}: {', '.join(results.tensors)}")
    return 0


@app.command()
def check(
    files: Annotated[list[Path], typer.Argument(metavar="CASE...", help="Cases, or folders of them.")],
    only: Annotated[str | None, typer.Option(metavar="y,M,grad/k", help="Compare these results alone.")] = None,
    as_json: Json = False,
) -> int:
    """Compare the results recorded in cases with ours: a verdict per tensor."""
    from atlas_ref.oracle.compare import exit_code

    paths = _expanded(files)
    names = _only(only)
    rows: list[Comparison] = []
    failures: list[str] = []
    for path in _progress(paths):
        _check_one(path, names, rows, failures)
    code = 2 if failures else exit_code(rows)
    if as_json:
        _out({"exit": code, "bad_input": failures, "results": [row._asdict() for row in rows]})
    else:
        _print_comparisons(rows)
    for failure in failures:
        print(f"atlas-ref: {failure}", file=sys.stderr)
    return code


def _check_one(path: Path, only: list[str] | None, rows: list[Comparison], failures: list[str]) -> None:
    from atlas_ref.oracle.case import CaseError, load
    from atlas_ref.oracle.compare import check as compare

    try:
        rows.extend(compare(load(path), only=only))
    except CaseError as error:
        failures.append(str(error))


def _only(text: str | None) -> list[str] | None:
    from atlas_ref.oracle.case import CaseError

    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise CaseError("--only: names of results are needed, as in y,M,grad/k")
    return names


def _expanded(files: list[Path]) -> list[Path]:
    """Folders stand for the case files in them."""
    from atlas_ref.oracle.case import CaseError

    found: list[Path] = []
    for file in files:
        inside = sorted(file.glob("*.safetensors")) if file.is_dir() else [file]
        if not inside:
            raise CaseError(f"{file}: no .safetensors file in this folder")
        found += inside
    return found


def _progress(paths: list[Path]) -> Iterable[Path]:
    if len(paths) < 2 or not sys.stderr.isatty():
        return paths
    from rich.console import Console
    from rich.progress import track

    return track(paths, "checking", console=Console(stderr=True), transient=True)


COLOURS = {"PASS": "green", "WRONG": "bold red", "MISSING": "red", "UNDECIDABLE": "yellow", "NOT SUPPORTED": "dim"}


def _print_comparisons(rows: list[Comparison]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table("case", "tensor", "verdict", "error", "tolerance", "where it is worst: got, expected")
    previous = ""
    for row in rows:
        name = Path(row.case).stem
        detail = row.why or ("" if row.verdict == "PASS" or row.place is None else f"{list(row.place)}: {row.got!r}, {row.want!r}")
        table.add_row(
            "" if name == previous else name,
            row.tensor,
            Text(row.verdict, style=COLOURS[row.verdict]),
            _number(row.error),
            _number(row.tolerance),
            detail,
        )
        previous = name
    console = _console()
    console.print(table)
    counts = {verdict: sum(row.verdict == verdict for row in rows) for verdict in COLOURS}
    console.print(", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count), highlight=False)


# -- helpers ------------------------------------------------------------------------------------------


def _console() -> Any:
    from rich.console import Console

    # A pipe has no width of its own: never cut what somebody may grep.
    return Console() if sys.stdout.isatty() else Console(width=200)


def _say(message: str) -> None:
    print(message, file=sys.stderr)


def _write(path: Path, header: dict[str, Any], tensors: dict[str, Any]) -> None:
    from atlas_ref.oracle.case import save

    save(path, header, tensors)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _changes(options: list[str] | None) -> dict[str, Any] | None:
    """A convention from options such as `atlas-paper`, `read=before`, `newton_schulz.steps=3`."""
    from atlas_ref.oracle.case import CaseError

    if not options:
        return None
    chosen: dict[str, Any] = {}
    for option in options:
        axis, equals, text = option.partition("=")
        if not equals:
            if "preset" in chosen:
                raise CaseError(f"--convention: two presets, {chosen['preset']} and {option}")
            chosen["preset"] = option
            continue
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = text
        if axis.startswith("newton_schulz."):
            inner = chosen.setdefault("newton_schulz", {})
            if not isinstance(inner, dict):
                raise CaseError(f"--convention: newton_schulz is {inner!r} and cannot have {axis}")
            inner[axis.removeprefix("newton_schulz.")] = value
        else:
            chosen[axis] = value
    return chosen


def _kind(option: str, text: str | None) -> dict[str, Any]:
    """A settings object from a kind's name or from JSON."""
    from atlas_ref.oracle.case import CaseError

    if text is None:
        return {}
    if not text.lstrip().startswith("{"):
        return {"kind": text}
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise CaseError(f"{option}: not JSON: {error}") from None
    return dict(value)


def _described(case: Case) -> dict[str, Any]:
    """Header, convention, void settings and tensors of a case, as JSON can hold them."""
    import numpy as np

    tensors = {}
    for name, value in {**case.inputs, **case.recorded}.items():
        numbers = value.astype(np.float64)
        finite = numbers[np.isfinite(numbers)]
        tensors[name] = {
            "dtype": str(value.dtype),
            "shape": list(value.shape),
            "least": float(finite.min()) if finite.size else None,
            "greatest": float(finite.max()) if finite.size else None,
        }
    return {
        "header": case.header.model_dump(mode="json", by_alias=True, exclude_unset=True),
        "convention": case.convention.model_dump(mode="json") if case.supported else {},
        "void": case.void if case.supported else {},
        "tensors": tensors,
    }


def _values(axis: str) -> list[str]:
    from atlas_ref.oracle.schema import axis_values

    return axis_values(axis)


def _resolved(preset: str) -> dict[str, dict[str, Any]]:
    from atlas_ref.conventions import RULES, resolve

    return {rule: resolve(preset, rule=rule).model_dump(mode="json") for rule in RULES}


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_words(each) if not isinstance(each, dict) else '(' + _words(each) + ')'}" for key, each in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
