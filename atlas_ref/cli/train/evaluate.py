"""The command evaluate: what text costs a model, once or for each checkpoint of a run.

Specified in specs/evaluate.md (EVAL-6).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atlas_ref.cli import options, output
from atlas_ref.cli.models.files import bad_input
from atlas_ref.cli.train import flags, progress

if TYPE_CHECKING:
    from atlas_ref.train.use.measure import Found, Loss, Settings

Words = list[str] | None


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(evaluate)


def evaluate(
    model: Annotated[
        Path | None,
        typer.Argument(metavar="[MODEL]", help="a model, a checkpoint, or the folder of a run"),
    ] = None,
    data: Annotated[
        Words,
        typer.Option(
            "--data", metavar="PATH", help="File or folder of text; else what the run held out."
        ),
    ] = None,
    only: Annotated[
        Words, typer.Option("--only", help="Pattern of names of files in folders; several times.")
    ] = None,
    skip_files: Annotated[
        Words, typer.Option("--skip", help="Pattern of names that are left out; several times.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--data-bytes", min=1, help="Bytes that are read.")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Of the library tokenizers; else the run's, or bytes."),
    ] = None,
    rows: Annotated[int, typer.Option("--batch-size", min=1, help="Rows of a batch.")] = 8,
    tokens: Annotated[int, typer.Option("--seq-len", min=1, help="Predictions of a row.")] = 256,
    batches: Annotated[int, typer.Option("--batches", min=1, help="Most batches.")] = 16,
    state: Annotated[
        str, typer.Option(help="row: each row from a start; document: goes on to its end")
    ] = "row",
    skip: Annotated[
        int,
        typer.Option(
            "--skip-tokens", min=0, help="First predictions of rows or documents without a count."
        ),
    ] = 0,
    without: Annotated[
        str,
        typer.Option(
            metavar="WORD,WORD", help="Measure without them too: writes, memory; none for nothing."
        ),
    ] = "writes,memory",
    watch: Annotated[
        Path | None,
        typer.Option("--watch", metavar="DIR", help="Evaluate each checkpoint of this folder."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Of --watch: lines of JSON; in DIR."),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Of --watch: end where no checkpoint is left.")
    ] = False,
    poll: Annotated[float, typer.Option(min=0, help="Of --watch: seconds between looks.")] = 30.0,
    folder: Annotated[str | None, flags.one("--checkpoint-dir")] = None,
    file: Annotated[str | None, flags.one("--checkpoint")] = None,
    device: Annotated[str | None, flags.one("--device")] = None,
    backend: options.Backend = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on standard output.")
    ] = False,
) -> int:
    """What text costs a model: loss, perplexity, bits per byte, and the same without its memory."""
    with bad_input():
        if (model is None) == (watch is None):
            raise ValueError("evaluate: a MODEL or --watch DIR is needed, one of them")
        if watch is None and (out is not None or once):
            raise ValueError(f"{'--out' if out else '--once'}: belongs to --watch")
        if not math.isfinite(poll):
            raise ValueError(f"--poll: {poll}, a finite number is needed")
        how = _settings(rows, tokens, batches, state, skip, without)
        work = _Work(how, data or (), only or ("*",), skip_files or (), limit, tokenizer)
        if watch is None:
            assert model is not None
            return _one(work, model, as_json)
        return _watched(work, watch, out, once, poll, as_json)


def _settings(
    rows: int, tokens: int, batches: int, state: str, skip: int, without: str
) -> Settings:
    """Settings from options.

    Raises:
        ValueError: names the option that is wrong.
    """
    from atlas_ref.messages import in_one_line
    from atlas_ref.train.use.measure import Settings

    names = () if without == "none" else tuple(without.split(","))
    if len(set(names)) < len(names):
        raise ValueError(f"--without: {without!r} names one twice")
    given: dict[str, Any] = {"rows": rows, "tokens": tokens, "batches": batches, "skip": skip}
    with in_one_line("evaluate: "):
        return Settings.model_validate({**given, "state": state, "without": names})


class _Work:
    """Evaluates files with the same text, which is read once."""

    def __init__(self, how: Settings, data: Any, only: Any, skip: Any, limit: Any, words: Any):
        self.how, self.data, self.tokenizer = how, data, words
        self.options: dict[str, Any] = {"only": only, "skip": skip, "limit": limit}
        self.held: tuple[Any, Any] | None = None

    def __call__(self, path: Path) -> dict[str, Any]:
        """What a model costs, as JSON has it."""
        from atlas_ref.train import trained
        from atlas_ref.train.use import held, measure

        try:
            own = trained.load(path, tokenizer=self.tokenizer)
        except trained.WrongVocabulary as error:
            raise measure.Unfit(str(error)) from None
        key = (own.settings, own.config.vocabulary)
        if self.held is None or self.held[0] != key:
            try:
                self.held = (key, held.corpus(own, self.data, **self.options))
            except ValueError as error:
                raise measure.Unfit(str(error)) from None
        with output.progress({"calls": "calls"}) as told:
            found = measure.evaluate(own, self.held[1], self.how, progress=told)
        return {"causal": own.config.causal, **described(found)}


def described(found: Found) -> dict[str, Any]:
    """Numbers of an evaluation as JSON has them."""
    return {
        **_numbers(found.loss),
        "anew": None if found.anew is None else _numbers(found.anew),
        "without": [
            {
                "what": each.what,
                "loss": None if each.loss is None else _numbers(each.loss),
                "contribution": each.contribution,
                "why": each.why,
            }
            for each in found.without
        ],
    }


def _numbers(loss: Loss) -> dict[str, Any]:
    numbers = loss._asdict()
    return numbers | ({} if math.isfinite(loss.perplexity) else {"perplexity": "inf"})


def _one(work: _Work, model: Path, as_json: bool) -> int:
    about = work(model)
    if as_json:
        output.emit_json({"exit": 0, "model": str(model), "state": work.how.state, **about})
        return 0
    if not about["causal"]:
        output.say(f"{model}: is not causal, its loss sees what it predicts")
    output.emit_rich(f"{model}: {words(about)}")
    if about["anew"] is not None:
        output.emit_rich(f"each call from a start: {words(about['anew'])}")
    for each in about["without"]:
        name = f"without {each['what']}"
        if each["loss"] is None:
            output.emit_rich(f"{name}: {each['why']}")
        else:
            text = f"contribution {each['contribution']:+.2f} % of perplexity"
            output.emit_rich(f"{name}: {words(each['loss'])}, {text}")
    return 0


def words(numbers: dict[str, Any]) -> str:
    """A loss in words."""
    return (
        f"loss {numbers['loss']:.4f} nats, perplexity {float(numbers['perplexity']):.4g}, "
        f"{numbers['bits_per_byte']:.4f} bits/byte, {numbers['tokens']} tokens"
    )


def _watched(
    work: _Work, folder: Path, out: Path | None, once: bool, poll: float, as_json: bool
) -> int:
    from atlas_ref.train.use import watch

    results = out or folder / watch.RESULTS

    def tell(line: dict[str, Any]) -> None:
        problem = line.get("error")
        output.say(f"{line['checkpoint']}: {words(line) if problem is None else problem}")

    with progress.stopping() as stopped:
        new = watch.watch(folder, results, work, told=tell, stopped=stopped, once=once, poll=poll)
    if as_json:
        output.emit_json(
            {"exit": 0, "watched": str(folder), "out": str(results), "evaluations": new}
        )
    else:
        output.say(f"{len(new)} checkpoints evaluated, in {results}")
    return 0
