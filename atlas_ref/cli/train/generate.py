"""The command generate: a trained model goes on with a text, token by token.

Specified in specs/evaluate.md (EVAL-8).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from atlas_ref.cli import options, output
from atlas_ref.cli.models.files import bad_input
from atlas_ref.cli.train import flags


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(generate)


def generate(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="a model, a checkpoint, or the folder of a run")
    ],
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", "-p", metavar="TEXT", help="Text that it goes on with."),
    ] = None,
    prompt_file: Annotated[
        Path | None, typer.Option("--prompt-file", metavar="FILE", help="File of that text.")
    ] = None,
    tokens: Annotated[
        int, typer.Option("--tokens", "--max-tokens", min=0, max=2**31, help="Most new tokens.")
    ] = 100,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 1.0,
    top_k: Annotated[
        int | None, typer.Option("--top-k", min=0, help="Likeliest tokens to draw from; 0 for all.")
    ] = None,
    top_p: Annotated[
        float, typer.Option("--top-p", help="Probability that they have together.")
    ] = 1.0,
    min_p: Annotated[
        float, typer.Option("--min-p", help="Least probability, as a part of the largest.")
    ] = 0.0,
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", metavar="TEXT", help="Token that ends the text; several times."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1)] = 0,
    samples: Annotated[
        int, typer.Option("--samples", "--num-samples", min=1, help="Texts, of seed, seed + 1, ...")
    ] = 1,
    tokenizer: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Of the library tokenizers; else the run's, or bytes."),
    ] = None,
    echo: Annotated[bool, typer.Option("--echo", help="Print the prompt before the text.")] = False,
    folder: Annotated[str | None, flags.one("--checkpoint-dir")] = None,
    file: Annotated[str | None, flags.one("--checkpoint")] = None,
    device: Annotated[str | None, flags.one("--device")] = None,
    backend: options.Backend = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on standard output.")
    ] = False,
) -> int:
    """Go on with a text by a trained model, printed as it is drawn."""
    how = {"steps": tokens, "temperature": temperature, "top_k": top_k or None}
    how |= {"top_p": top_p, "min_p": min_p}
    with bad_input():
        from atlas_ref.train import trained
        from atlas_ref.train.use import generate as library

        text = _prompt(prompt, prompt_file)
        own = trained.load(model, tokenizer=tokenizer)
        words = own.vocabulary
        ids = library.ids_of(words, text)
        ends = library.stop_ids(words, stop or ())
        found = []
        for i in range(samples):
            pieces = library.stream(own, ids, stop=ends, seed=seed + i, **how)
            found.append(_sample(pieces, seed + i, text if echo else "", as_json))
    if as_json:
        output.emit_json({"exit": 0, "model": str(model), "prompt": text, "samples": found})
    return 0


def _prompt(text: str | None, path: Path | None) -> str:
    """The prompt of either option.

    Raises:
        ValueError: both or none, or a file that cannot be read.
    """
    from atlas_ref.storage import files

    if (text is None) == (path is None):
        raise ValueError("generate: --prompt TEXT or --prompt-file FILE is needed, one of them")
    if path is None:
        return text or ""
    try:
        return files.read_bytes(path).decode("utf-8", "surrogateescape")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _sample(pieces: Any, seed: int, before: str, silent: bool) -> dict[str, Any]:
    """One text, printed piece by piece unless it becomes a part of an object."""
    begun, ids, parts, stopped = time.perf_counter(), [], [], False
    if before and not silent:
        output.emit(output.readable(before))
    for piece in pieces:
        ids += [] if piece.id is None else [piece.id]
        stopped = stopped or piece.stopped
        parts.append(piece.text)
        if piece.text and not silent:
            output.emit(output.readable(piece.text))
    if not silent:
        output.emit("\n")
        speed = len(ids) / (time.perf_counter() - begun)
        output.say(
            f"seed {seed}: {len(ids)} tokens{', stopped' if stopped else ''}, {speed:,.0f} a second"
        )
    return {"seed": seed, "text": "".join(parts), "tokens": ids, "stopped": stopped}
