"""The command try: a function by the name that its kind of kernel has. Specified in specs/sources.md."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from atlas_ref.adapters import names
from atlas_ref.cli import options, output

#: Name and its aliases, for the help.
NAMES = "; ".join(" = ".join([name, *names.ALIASES.get(name, ())]) for name in names.SIGNATURES)


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("try")(attempt)


def attempt(
    name: Annotated[str, typer.Argument(metavar="NAME", help=NAMES, show_default=False)],
    function: Annotated[str, typer.Argument(metavar="FILE.py:FUNCTION|PKG.MODULE:FUNCTION")],
    like: Annotated[
        Literal["fla", "transformers", "onnx", "ggml", "mlx", "rwkv"] | None,
        typer.Option(
            metavar="fla|transformers|onnx|ggml|mlx|rwkv",
            help="Names of arguments and layout; else what its arguments tell.",
        ),
    ] = None,
    arrays: Annotated[
        Literal["torch", "jax", "mlx", "numpy"] | None,
        typer.Option(
            "--with", metavar="torch|jax|mlx|numpy", help="Its arrays; else what its file imports."
        ),
    ] = None,
    heads_first: Annotated[
        bool, typer.Option("--heads-first", help="It takes (B, H, T, D), not (B, T, H, D).")
    ] = False,
    state_vk: Annotated[
        bool, typer.Option("--state-vk", help="Its states are (B, H, V, K), not (B, H, K, V).")
    ] = False,
    grouped: Annotated[
        bool,
        typer.Option("--grouped", help="It is meant to take fewer heads of q and k than of v."),
    ] = False,
    grad: Annotated[bool, typer.Option("--grad/--no-grad", help="Ask its gradients too.")] = True,
    dtype: Annotated[
        str | None,
        typer.Option(metavar="DTYPE", help="What it works in; else float64 of NumPy, float32."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    timeout: options.Timeout = 60.0,
    nearest: Annotated[
        bool, typer.Option(help="Search for the nearest convention where a case fails.")
    ] = True,
    keep: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Save cases and adapter here; else in try_NAME, where something is wrong.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on standard output.")
    ] = False,
) -> int:
    """Ask a kernel by its name, such as kda: what passes, what is wrong, and what it supports."""
    from atlas_ref.cli.front import trials

    own = trials.check_names(name, function)
    if dtype is not None:
        from atlas_ref.oracle.cases.inputs import check_dtype

        check_dtype("--dtype", dtype)
    folder = Path(f"try_{own}") if keep is None else keep
    trials.check_free(folder)
    taken = trials.ask_signature(own, function, like or "", arrays or "")
    how: dict[str, Any] = {"head_axis": 1} if heads_first else {}
    how |= {"state": "(d_out, d_in)"} if state_vk else {}
    with output.importing():
        from atlas_ref.cli.front import asking, screen

    asked = asking.Asked(
        name=own,
        function=function,
        taken=taken,
        how=how,
        dtype=dtype or (None if taken["arrays"] == "numpy" else "float32"),
        timeout=timeout,
        seed=seed,
        grad=grad,
        grouped=grouped,
        nearest=nearest,
        folder=folder,
    )
    with output.progress({"cases": "asking"} | options.SEARCH) as progress:
        outcome = asking.ask(asked, progress)
    kept = keep is not None or outcome.report.exit == 1
    if kept:
        asking.keep(asked, outcome)
    if as_json:
        output.emit_json(screen.plain(asked, outcome, kept))
    else:
        output.emit_rich(*screen.parts(asked, outcome, kept))
    return outcome.report.exit
