"""The commands new, show and eval: make a case, tell what a file holds, compute results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from atlas_ref.cli import options, output, reference

if TYPE_CHECKING:
    from atlas_ref.oracle.cases.case import Case

Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Changes = Annotated[
    list[str] | None,
    options.convention("A preset, or one axis; may be given several times."),
]
Form = Annotated[
    str, typer.Option(metavar="FORM", help="Compute in this form: see atlas-ref forms.")
]
Chunk = Annotated[
    int | None,
    typer.Option(min=1, help="Tokens that the form takes at once; never changes results."),
]


def register(app: typer.Typer) -> None:
    """Add the commands to the program, and between them those of what there is to choose from."""
    app.command()(new)
    app.command()(show)
    reference.register(app)
    app.command("eval")(evaluate)


def new(
    rule: Annotated[
        str,
        typer.Argument(
            help="omega, titans_lmm, delta, hebbian, deep_memory, tnt, dplr, recurrence, schedule, "
            "newton_schulz, feature_map or cms; kda, gdn, gla, ...: members of dplr, by the names "
            "of atlas-ref try",
            autocompletion=options.rules,
        ),
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
    batch: Annotated[int, typer.Option(min=1, help="rows beside heads")] = 1,
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
    packed: Annotated[
        bool,
        typer.Option("--packed", help="sequences of unequal lengths start, no token is silent"),
    ] = False,
    padded: Annotated[
        Literal["left", "right"] | None,
        typer.Option(metavar="left|right", help="rows of a batch have unequal lengths"),
    ] = None,
    sequences: Annotated[
        str | None,
        typer.Option(metavar="N,N,...", help="tokens of sequences with states of their own"),
    ] = None,
    states: Annotated[
        int, typer.Option(min=0, metavar="K", help="ask for the states behind the last K tokens")
    ] = 0,
    cotangent: Annotated[
        bool, typer.Option("--cotangent", help="add the cotangents that gradients need")
    ] = False,
    state: Annotated[
        bool, typer.Option("--state/--no-state", help="states before the first token")
    ] = True,
    gate: Annotated[
        Literal["head", "channel"] | None,
        typer.Option(metavar="head|channel", help="dplr: in place of the member's"),
    ] = None,
    log: Annotated[
        bool | None, typer.Option("--log/--no-log", help="dplr: logs of gates", show_default=False)
    ] = None,
    groups: Annotated[int, typer.Option(min=1, help="dplr: value heads of a key head")] = 1,
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
    nested: Annotated[
        bool, typer.Option("--nested", help="cms: levels begin from the next slower one")
    ] = False,
    learned: Annotated[
        bool, typer.Option("--learned", help="cms: gates of the tokens decide who writes")
    ] = False,
    regime: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="inputs where kernels break: edges, fading, trained, ... (SWEEP-4)",
            show_default=False,
        ),
    ] = "",
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            "--parameter",
            metavar="NAME=VALUE",
            help="deep_memory, tnt: chunk=4, memory.kind=mlp, global.span=4, preset=moneta, ...; may be given "
            "several times.",
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="dtype of the tensors")] = "float64",
    convention: Changes = None,
    as_json: Json = False,
) -> int:
    """Make a case with random inputs."""
    with output.importing():
        from atlas_ref.oracle.cases.case import CaseError, save
        from atlas_ref.oracle.cases.new import Request, without_effect
        from atlas_ref.oracle.cases.new import new as make_new

    rule, chosen = reference.rule_of(rule, options.parameters(parameter))
    request = Request(
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
        packed=packed,
        padded=padded,
        sequences=options.numbers("--sequences", sequences),
        states=states,
        cotangent=cotangent,
        state=state,
        gate=gate,
        log=log,
        groups=groups,
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
        nested=nested,
        regime=regime,
        learned=learned,
        parameters=chosen,
    )
    case = make_new(request, name=str(out))
    if idle := without_effect(request, case):
        raise CaseError(f"{out}: {idle[0]}: has no effect on a case of rule {rule}")
    save(out, case.header.plain(), case.inputs)
    if as_json:
        output.emit_json(_described(case))
    else:
        output.say(f"wrote {out}")
    return 0


def show(
    file: Annotated[Path, typer.Argument(help="a case, or results")], as_json: Json = False
) -> int:
    """What a file holds: header, convention in force, settings without effect, tensors."""
    with output.importing():
        from atlas_ref.oracle.cases.case import load_results, make

    file = options.case_file(file)
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
    with output.importing():
        from atlas_ref.oracle.cases.case import load, save
        from atlas_ref.oracle.evaluate import evaluate as run

    file = options.case_file(file)
    options.refuse_same(out, file)
    changes = options.convention_changes(convention)
    case = load(file)
    results = run(case, grad=grad, dtype=dtype, convention=changes, form=form, chunk=chunk)
    if trace:
        from atlas_ref.oracle.replay.trace import add_trace

        results = add_trace(case, results, grad=grad, dtype=dtype, convention=changes)
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
        output.say(f"{name}: not finite: the rule itself gives no finite number on this case")
    output.say(f"wrote {out}: {', '.join(results.tensors)}")
    return 0


def _described(case: Case, tensors: dict[str, Any] | None = None) -> dict[str, Any]:
    return output.described(
        case.name,
        case.header,
        tensors or case.inputs,
        case.in_force,
        case.void if case.supported else {},
    )
