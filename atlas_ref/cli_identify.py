"""The commands identify and tolerance: which convention is behind somebody's results, and how far they may be from ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from atlas_ref import cli_options as options
from atlas_ref import cli_output as output

Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Dtype = Annotated[str | None, typer.Option(metavar="DTYPE", help="float64, float32, bfloat16 or float16.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command()(identify)
    app.command()(tolerance)


def identify(
    file: Annotated[Path, typer.Argument(metavar="CASE")],
    out: Annotated[Path, typer.Option("--out", metavar="MINE", help="Your results: out/y, out/M, grad/k, ..., any of them.")],
    depth: Annotated[int, typer.Option(min=0, max=2, help="Changes from a preset that are searched.")] = 2,
    dtype: Annotated[str | None, typer.Option(metavar="DTYPE", help="What your code works in; else the dtype of your results.")] = None,
    decide: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where several settings fit, write the smallest case that decides.")
    ] = None,
    backend: options.Backend = None,
    as_json: Json = False,
) -> int:
    """Search the convention behind your results: the match, the runner-up, and what this case cannot tell apart."""
    from atlas_ref import cli_identify_words as words
    from atlas_ref.oracle.case import load, save
    from atlas_ref.oracle.deciding import deciding_case
    from atlas_ref.oracle.identify import identify as search
    from atlas_ref.oracle.identify_files import results_of
    from atlas_ref.oracle.identify_words import plain

    case = load(file)
    if decide is not None:
        options.refuse_same(decide, file)
        options.refuse_same(decide, out, what="file of results")
    mine = results_of(case, out)
    found = search(case, mine, depth=depth, dtype=dtype)
    decided = ""
    if decide is not None and found.verdict == "UNDECIDABLE":
        made = deciding_case(case, found.fits, dtype=found.dtype)
        decided = "none of the cases tried decides"
        if made is not None:
            save(decide, made.header, made.inputs)
            decided = str(decide)
    if as_json:
        output.emit_json(plain(found, str(out), decided))
        return found.exit_code
    output.emit_rich(*words.identification(found))
    if decide is not None:
        output.say(words.about_deciding(found, decided))
    return found.exit_code


def tolerance(
    what: Annotated[str, typer.Argument(metavar="CASE:TENSOR", help="Such as case.safetensors:y, or :grad/k.")],
    dtype: Annotated[str, typer.Option(metavar="DTYPE", help="What results are in: float64, float32, bfloat16, float16.")] = "float32",
    state_dtype: Annotated[str | None, typer.Option(metavar="DTYPE", help="What M and S are kept in.")] = None,
    backend: options.Backend = None,
    as_json: Json = False,
) -> int:
    """Where the tolerance of a result comes from: every member of the ensemble, the floor and the amplification."""
    from atlas_ref import cli_identify_words as words
    from atlas_ref.oracle.case import CaseError, load
    from atlas_ref.oracle.compare import chosen
    from atlas_ref.oracle.tolerance import tolerances
    from atlas_ref.oracle.tolerance_words import plain

    path, colon, name = what.rpartition(":")
    if not colon or not path or not name:
        raise CaseError(f"{what}: CASE:TENSOR is needed, such as case.safetensors:y")
    (full,) = chosen([name])
    found = tolerances(load(path), dtype=dtype, state_dtype=state_dtype, only=[full])[full]
    if as_json:
        output.emit_json(plain(found, path))
    else:
        output.emit_rich(*words.derivation(found, path))
    return 0
