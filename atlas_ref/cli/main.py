"""The command line: new, show, conventions, forms, schema and eval here, the others in a file each.

Words and progress go to standard error, results to standard output; every command takes --json.
Exit codes: 2 for bad input, else 1 if a compared tensor is not PASS, else 3 if nothing could be
compared, else 0.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

import atlas_ref
from atlas_ref.cli import certify as cli_certify
from atlas_ref.cli import check as cli_check
from atlas_ref.cli import identify as cli_identify
from atlas_ref.cli import levels as cli_levels
from atlas_ref.cli import options, output, streams
from atlas_ref.cli import replay as cli_replay
from atlas_ref.cli import sweep as cli_sweep
from atlas_ref.cli import trace_spec as cli_trace_spec
from atlas_ref.cli import vectors as cli_vectors
from atlas_ref.oracle.sources import ending

if TYPE_CHECKING:
    from atlas_ref.oracle.cases.case import Case

app = typer.Typer(
    name="atlas-ref",
    help="Reference rules for neural memories that learn at test time, and an oracle for "
    "implementations of them.",
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--convention",
        metavar="PRESET|AXIS=VALUE",
        help="A preset, or one axis; may be given several times.",
    ),
]
Form = Annotated[
    str, typer.Option(metavar="FORM", help="Compute in this form: see atlas-ref forms.")
]
Chunk = Annotated[
    int | None,
    typer.Option(min=1, help="Tokens that the form takes at once; never changes results."),
]


def main() -> None:
    """Run the command line: every error of a user is one line on standard error and exit code 2."""
    streams.complete()
    with ending.in_order():
        code = _run()
    sys.exit(code if isinstance(code, int) else 0)


def _run() -> Any:
    try:
        return app(standalone_mode=False)
    except typer.TyperException as error:
        _fail(f"{error.format_message().rstrip('.')} (see atlas-ref --help)")
    except MemoryError as error:
        _fail(f"needs more memory than there is: {error}")
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    except (
        atlas_ref.CaseError
    ) as error:  # looked up in this case alone, since it brings every array library
        from atlas_ref.oracle.cases.case import Unsupported

        _fail(str(error), 3 if isinstance(error, Unsupported) else 2)
    except atlas_ref.BackendError as error:
        _fail(str(error))
    except OSError as error:  # files say it themselves; this is a help text
        streams.discard(sys.stdout)
        _fail(f"{error.filename or 'standard output'}: cannot be written: {error.strerror}")


def _fail(message: str, code: int = 2) -> NoReturn:
    output.say(f"atlas-ref: {message}")
    if "--json" in sys.argv:
        with contextlib.suppress(atlas_ref.CaseError):  # the line above is all that can be told
            output.emit_json(
                {"exit": code, "bad_input": [message]}
                if code == 2
                else {"exit": code, "not_supported": message}
            )
    sys.exit(code)


@app.command()
def new(
    rule: Annotated[
        str,
        typer.Argument(help="omega, titans_lmm, delta, hebbian, newton_schulz, feature_map or cms"),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="CASE", help="File to write.")],
    level: Annotated[
        str,
        typer.Option(
            help="projected: keys, values, queries and gates; token: tokens and parameters"
        ),
    ] = "projected",
    tokens: Annotated[int, typer.Option(min=1)] = 8,
    d_in: Annotated[int, typer.Option(min=1, help="length of keys and queries")] = 4,
    d_out: Annotated[int, typer.Option(min=1, help="length of values")] = 3,
    heads: Annotated[int, typer.Option(min=1)] = 2,
    batch: Annotated[int, typer.Option(min=1, help="level token")] = 1,
    d_model: Annotated[int, typer.Option(min=1, help="level token: length of a token")] = 6,
    window: Annotated[int, typer.Option(min=1, help="tokens that Omega looks at")] = 1,
    span: Annotated[
        int | None, typer.Option(min=1, help="tokens between refreshes of a frozen reference")
    ] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    history: Annotated[int, typer.Option(min=0, help="initial window tokens")] = 0,
    pulse: Annotated[int, typer.Option(min=1, help="write at every N-th token")] = 1,
    reset: Annotated[
        int, typer.Option(min=0, help="a packed sequence starts at every N-th token")
    ] = 0,
    cotangent: Annotated[
        bool, typer.Option("--cotangent", help="add the cotangent that gradients need")
    ] = False,
    per_dimension: Annotated[
        bool, typer.Option("--per-dimension", help="one gate per output dimension")
    ] = False,
    window_gate: Annotated[
        bool, typer.Option("--window-gate", help="one weight per token")
    ] = False,
    window_weights: Annotated[
        str | None,
        typer.Option(metavar="KIND|JSON", help="level token: uniform, ones, decay, softmax, gate"),
    ] = None,
    feature_map: Annotated[
        str | None, typer.Option(metavar="KIND|JSON", help="identity, linear, polynomial, ...")
    ] = None,
    features: Annotated[
        int | None, typer.Option(min=1, help="d_phi of maps that leave it open")
    ] = None,
    periods: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...", help="write by a schedule: periods of the frequency levels"
        ),
    ] = None,
    schedule_level: Annotated[
        int, typer.Option(min=0, help="which of these levels this memory is")
    ] = 0,
    first_step: Annotated[int, typer.Option(min=0, help="number of the first token's step")] = 0,
    levels: Annotated[
        str | None, typer.Option(metavar="RULE,RULE,...|JSON", help="cms: the rule of each level")
    ] = None,
    combine: Annotated[str, typer.Option(help="cms: softmax or masked")] = "softmax",
    dtype: Annotated[str, typer.Option(help="dtype of the tensors")] = "float64",
    convention: Changes = None,
    as_json: Json = False,
) -> int:
    """Make a case with random inputs."""
    from atlas_ref.oracle.cases.case import save
    from atlas_ref.oracle.cases.new import Request
    from atlas_ref.oracle.cases.new import new as make_new

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
            convention=options.convention_changes(convention) or "spec",
            feature_map=options.kind("--feature-map", feature_map),
            window_weights=options.kind("--window-weights", window_weights),
            periods=options.numbers("--periods", periods),
            schedule_level=schedule_level,
            first_step=first_step,
            levels=options.levels("--levels", levels),
            combine=combine,
        ),
        name=str(out),
    )
    save(out, case.header.plain(), case.inputs)
    if as_json:
        output.emit_json(_described(case))
    else:
        output.say(f"wrote {out}")
    return 0


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="a case, or results")], as_json: Json = False
) -> int:
    """What a file holds: header, convention in force, settings without effect, tensors."""
    from atlas_ref.oracle.cases.case import load_results, make

    header, tensors = load_results(file)
    results_alone = tensors and not any(name.startswith("in/") for name in tensors)
    if results_alone:
        description = output.described(str(file), header, tensors, {}, {})
    else:
        description = _described(make(header.plain(), tensors, name=str(file)), tensors)
    if as_json:
        output.emit_json(description)
    else:
        output.emit_description(description)
    return 0


@app.command()
def conventions(
    preset: Annotated[
        str | None, typer.Argument(help="a preset, for what it sets on every axis")
    ] = None,
    as_json: Json = False,
) -> int:
    """Every axis with its values, and what each preset changes."""
    from atlas_ref.conventions import PRESETS, SOURCES, Convention, resolve
    from atlas_ref.oracle.cases.case import CaseError
    from atlas_ref.oracle.cases.schema import axis_values
    from atlas_ref.rules import RULES

    if preset is not None and preset not in PRESETS:
        raise CaseError(f"preset {preset!r} does not exist; presets are {', '.join(PRESETS)}")
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


@app.command()
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
        ("later", "not yet supported"),
    ]
    output.emit_rich(
        output.table("support", ("form", *RULES), rows),
        output.table("", ("word", "what the form computes"), meanings),
        output.table("refused, whatever the rule", ("form", "where"), reasons),
    )
    return 0


@app.command()
def schema(as_json: Json = True) -> int:
    """The JSON Schema of the header, with the table of tensors under `x-tensors`."""
    from atlas_ref.oracle.cases.schema import case_schema

    output.emit_json(case_schema())
    return 0


@app.command("eval")
def evaluate(
    file: Annotated[Path, typer.Argument(metavar="CASE")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="OUT", help="File for the results.")],
    grad: Annotated[
        bool, typer.Option("--grad", help="Also write gradients by every floating input.")
    ] = False,
    trace: Annotated[
        bool,
        typer.Option(
            "--trace",
            help="Also write every quantity of the loop; with --grad their gradients too.",
        ),
    ] = False,
    dtype: Annotated[
        str,
        typer.Option(
            help="Arithmetic: float64 or float32; bfloat16 and float16 round what goes in and out "
            "around float32."
        ),
    ] = "float64",
    convention: Changes = None,
    form: Form = "sequential",
    chunk: Chunk = None,
    backend: options.Backend = None,
    as_json: Json = False,
) -> int:
    """Compute what the spec says a case's results are."""
    from atlas_ref.oracle.cases.case import load, save
    from atlas_ref.oracle.evaluate import evaluate as run

    options.refuse_same(out, file)
    changes = options.convention_changes(convention)
    case = load(file)
    results = run(case, grad=grad, dtype=dtype, convention=changes, form=form, chunk=chunk)
    if trace:
        from atlas_ref.oracle.replay.trace import traced

        results = traced(case, results, grad=grad, dtype=dtype, convention=changes)
    save(out, results.header, results.tensors)
    if as_json:
        tensors = {
            name: {"dtype": str(t.dtype), "shape": list(t.shape)}
            for name, t in results.tensors.items()
        }
        summary = {
            "case": str(file),
            "out": str(out),
            "tensors": tensors,
            "void": results.void,
            "not_finite": results.not_finite,
        }
        output.emit_json(summary)
        return 0
    for axis, why in results.void.items():
        output.say(f"void: {axis}: {why}")
    for name in results.not_finite:
        output.say(f"{name}: not finite: the rule itself overflows on this case")
    output.say(f"wrote {out}: {', '.join(results.tensors)}")
    return 0


for topic in (
    cli_check,
    cli_identify,
    cli_levels,
    cli_replay,
    cli_sweep,
    cli_certify,
    cli_vectors,
    cli_trace_spec,
):
    topic.register(app)
options.list_in_one_line(app)


def _described(case: Case, tensors: dict[str, Any] | None = None) -> dict[str, Any]:
    return output.described(
        case.name,
        case.header,
        tensors or case.inputs,
        case.in_force,
        case.void if case.supported else {},
    )
