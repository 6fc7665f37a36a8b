"""The command train: a model, on text, in a folder.

Specified in specs/train.md (TRAIN-16).
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from atlas_ref.cli import options, output
from atlas_ref.cli.models.files import bad_input
from atlas_ref.cli.train import flags, progress
from atlas_ref.cli.train import settings as of_options
from atlas_ref.cli.train import weights as weights_of_sources
from atlas_ref.optim import DEFAULT, OF_MATRICES, OF_RUNS


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(train)


def _one(*names: str, text: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, show_default=False, **more)


def _either(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


Words = list[str] | None


def train(
    out: Annotated[Path, _one("--out", "--output-dir", "--save-path", "-o", text="Folder of the run.", metavar="DIR")],
    data: Annotated[Words, _one("--data", "--data-path", text="File or folder of text, or Parquet shards.", metavar="PATH")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run of --out.")] = False,
    rollback: Annotated[int | None, _one("--rollback", text="With --resume: go back to this step; later checkpoints go.", min=0)] = None,
    model: Annotated[str | None, _one("--model", text="mag, mal, mac, lmm, omega, atlas-mag; titans, omeganet. mag.")] = None,
    config: Annotated[str | None, _one("--config", text="atlas-mag: small or base, the sizes that its text counts.")] = None,
    defaults: Annotated[str | None, _one("--defaults", text="Of the public script atlas-mag or atlas-rnn, in place of ours.")] = None,
    arch: Annotated[str | None, _one("--arch", text="mag, mal, mac or lmm, beside --model titans or omeganet.")] = None,
    rule: Annotated[str | None, _one("--rule", text="titans_lmm, omega, delta or hebbian.", autocompletion=options.rules)] = None,
    preset: Annotated[str | None, _one("--preset", text="unit, causal, atlas-rnn or titans; of atlas-mag: atlas-mag or causal.")] = None,
    dim: Annotated[int | None, _one("--dim", text="Length of a token. 128.", min=1)] = None,
    layers: Annotated[int | None, _one("--layers", "--depth", text="Blocks. 4.", min=1)] = None,
    heads: Annotated[int | None, _one("--heads", text="Heads. 4.", min=1)] = None,
    d_head: Annotated[int | None, _one("--dim-head", text="Length of a head. dim / heads.", min=1)] = None,
    window: Annotated[int | None, _one("--window", "--window-size", text="Keys of attention. 64.", min=1)] = None,
    persistent: Annotated[int | None, _one("--persist-mem", text="Persistent rows of attention. 0.", min=0)] = None,
    segment: Annotated[int | None, _one("--segment", text="Tokens of a segment of MAC. 16.", min=1)] = None,
    kernel: Annotated[int | None, _one("--kernel", text="Taps of convolutions; 1 for none. 4.", min=1)] = None,
    omega_window: Annotated[int | None, _one("--omega-window", text="Tokens that Omega looks at. 2.", min=1)] = None,
    omega_gate: Annotated[bool, _one("--use-omega-gate", text="A learnt weight for each token of it.")] = False,
    poly_mode: Annotated[str | None, _one("--poly-mode", text="off, elementwise or tensor.")] = None,
    poly_degree: Annotated[int | None, _one("--poly-degree", text="Degree of features.", min=1)] = None,
    poly_rank: Annotated[int | None, _one("--poly-rank", text="atlas-mag: numbers that features are compressed to.", min=0)] = None,
    expansion: Annotated[int | None, _one("--expansion", text="Of feed-forwards and memories. 4.", min=1)] = None,
    no_memory: Annotated[bool, _one("--disable-memory", text="Blocks without memory.")] = False,
    ns_steps: Annotated[int | None, _one("--ns-iterations", text="atlas-mag: steps of Newton-Schulz.", min=1)] = None,
    ttl_step: Annotated[float | None, _one("--ttl-eta", text="atlas-mag: step size of writes.", min=0)] = None,
    ttl_adaptive: Annotated[bool | None, _one("--ttl-adaptive-eta/--no-ttl-adaptive-eta", text="atlas-mag: steps over 1 + |g|.")] = None,
    no_ttl: Annotated[bool, _one("--no-ttl", text="atlas-mag: memories that do not learn from text.")] = False,
    ttl_momentum: Annotated[float | None, _one("--ttl-theta", text="atlas-mag: momentum of writes. 0.9.", min=0)] = None,
    ttl_retain: Annotated[float | None, _one("--ttl-alpha", text="atlas-mag: share of a memory that a write keeps. 0.999.", min=0)] = None,
    context_window: Annotated[int | None, _one("--omega-context-window", text="atlas-mag: tokens that writes look at. 256.", min=1)] = None,
    memory_mlp: Annotated[str | None, _one("--memory-mlp", text="atlas-mag: gelu, two matrices, or geglu, three. gelu.")] = None,
    tnt_global_span: Annotated[int | None, _one("--tnt-global-span", text="TNT: tokens of a chunk of the global memory.", min=1)] = None,
    tnt_local_spans: Annotated[str | None, _one("--tnt-local-spans", text="TNT: of each local memory, with commas.")] = None,
    tnt_shards: Annotated[str | None, _one("--tnt-shards", text="TNT: tokens between resets of each, or of all.")] = None,
    tnt_params: Annotated[str | None, _one("--tnt-params", text="TNT: shared or per_memory projections. shared.")] = None,
    tnt_preset: Annotated[str | None, _one("--tnt-preset", text="TNT: reading of the paper. paper.")] = None,
    periods: Annotated[str | None, _one("--periods", text="Tokens between two writes of each level, with commas.")] = None,
    by_level: Annotated[bool, _one("--by-level", text="Move each level once in its period, by its summed gradients.")] = False,
    begins_from: Annotated[str | None, _one("--from", text="Begin with the parameters and settings of this run.", metavar="RUN")] = None,
    learns: Annotated[str | None, _one("--learns", text="all, or the parameters of locals alone. all.")] = None,
    only: Annotated[Words, _one("--only", text="Pattern of names of files in folders, such as '*.py'; several times.")] = None,
    skip: Annotated[Words, _one("--skip", text="Pattern of names in folders that are left out; several times.")] = None,
    limit: Annotated[int | None, _one("--data-bytes", text="Bytes that are read.", min=1)] = None,
    held_out: Annotated[Words, _one("--held-out", text="File or folder that is held out; several times.", metavar="PATH")] = None,
    share: Annotated[float | None, _one("--held-out-share", text="Else: share of the text, drawn. 0.05.", min=0)] = None,
    split_seed: Annotated[int | None, _one("--held-out-seed", text="Seed of that. 0.", min=0)] = None,
    tokenizer: Annotated[str | None, _one("--tokenizer", text="File of the library tokenizers; else bytes.", metavar="FILE")] = None,
    mixture: Annotated[str | None, _one("--mixture", text="smollm-corpus: its subsets below --data.")] = None,
    subsets: Annotated[str | None, _one("--subsets", text="Those that are taken, with commas.")] = None,
    weights: Annotated[str | None, _one("--weights", "--subset-weights", text="Of each --data or subset: 1,2 or a:1,b:2.")] = None,
    optimiser: Annotated[str | None, _one("--optimiser", text=f"{_either(OF_RUNS)}. {DEFAULT}.")] = None,
    rate: Annotated[float | None, _one("--lr", text="Rate. 0.001.", min=0)] = None,
    hidden_rate: Annotated[float | None, _one("--matrix-lr", text=f"Of {', '.join(OF_MATRICES)}. 0.02.", min=0)] = None,
    decay: Annotated[float | None, _one("--weight-decay", text="0.01; of atlas-mag 0.1.", min=0)] = None,
    clip: Annotated[float | None, _one("--grad-clip", text="Largest norm of gradients, 0 for any. 1.", min=0)] = None,
    schedule: Annotated[str | None, _one("--schedule", text="cosine, linear or constant. cosine.")] = None,
    warmup: Annotated[int | None, _one("--warmup", text="Steps. 1 %, at most 100.", min=0)] = None,
    floor: Annotated[float | None, _one("--floor", text="Last factor of the schedule. 0.1.", min=0)] = None,
    rows: Annotated[int | None, _one("--batch-size", text="Rows. 8.", min=1)] = None,
    tokens: Annotated[int | None, _one("--seq-len", text="Tokens of a row. 256.", min=1)] = None,
    accumulation: Annotated[int | None, _one("--gradient-accumulation-steps", text="Batches to a step. 1.", min=1)] = None,
    steps: Annotated[int | None, _one("--steps", "--max-steps", text="Steps of the run; more of them with --resume. 1000.", min=1)] = None,
    seed: Annotated[int | None, _one("--seed", text="Of parameters and rows. 0.", min=0)] = None,
    state: Annotated[str | None, _one("--state", text="fresh, or carried from batch to batch.")] = None,
    documents: Annotated[bool | None, _one("--documents/--no-documents", text="Memories start anew with documents.")] = None,
    evaluate_every: Annotated[int | None, _one("--eval-every", text="Steps; 0 for never. 100.", min=0)] = None,
    evaluate_batches: Annotated[int | None, _one("--eval-batches", text="Batches of an evaluation. 16.", min=1)] = None,
    save_every: Annotated[int | None, _one("--save-every", text="Steps between checkpoints. 100.", min=1)] = None,
    keep: Annotated[int | None, _one("--keep", text="Checkpoints that stay. 5.", min=1)] = None,
    log_every: Annotated[int | None, _one("--log-every", "--log-interval", text="Steps. 1.", min=1)] = None,
    workers: Annotated[int | None, _one("--workers", "--jobs", text="Processes that share the batches of a step.", min=1)] = None,
    scheduler: Annotated[str | None, _one("--scheduler", text="A Dask scheduler, in place of --workers.", metavar="ADDRESS")] = None,
    epochs: Annotated[str | None, typer.Option("--epochs", hidden=True)] = None,
    device: Annotated[str | None, typer.Option("--device", hidden=True)] = None,
    num_workers: Annotated[str | None, typer.Option("--num-workers", hidden=True)] = None,
    frozen: Annotated[str | None, typer.Option("--frozen-m0-ratio", hidden=True)] = None,
    use_momentum: Annotated[bool | None, typer.Option("--use-momentum", hidden=True)] = None,
    use_cuda: Annotated[bool | None, typer.Option("--use-cuda", hidden=True)] = None,
    log_file: Annotated[str | None, typer.Option("--log-file", hidden=True)] = None,
    tensorboard: Annotated[Path | None, _one("--tensorboard", text="Folder of events for TensorBoard.", metavar="DIR")] = None,
    backend: options.Backend = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> int:  # fmt: skip
    """Train a model on text: checkpoints, a log of JSON lines and the model, in one folder."""
    given = dict(locals())
    public = {
        "--epochs": epochs,
        "--device": device,
        "--num-workers": num_workers,
        "--frozen-m0-ratio": frozen,
        "--use-momentum": use_momentum,
        "--use-cuda": use_cuda,
        "--log-file": log_file,
    }
    with bad_input():
        if (message := flags.refused(public)) is not None:
            raise ValueError(message)
        chosen = _chosen(given)
        how = _How(resume, rollback, workers, scheduler, tensorboard, as_json)
        return _run(out, chosen, how)


def _chosen(given: dict[str, Any]) -> dict[str, Any]:
    """Settings that options gave, by their names (TRAIN-16)."""
    found = {
        name: given[name]
        for name in of_options.PLACES
        if given.get(name) is not None and given[name] is not False
    }
    for name in ("documents", "ttl_adaptive"):
        if given[name] is not None:
            found[name] = given[name]
    if given["model"] is not None or given["arch"] is not None:
        kind, rule, window = flags.kind_and_rule(
            given["model"] or "mag", given["arch"], given["rule"], given["omega_window"]
        )
        found |= {"model": kind, "rule": rule, "omega_window": window}
        found = {name: value for name, value in found.items() if value is not None}
    if given["no_memory"]:
        found["memory"] = False
    if given.get("no_ttl"):
        found["ttl"] = False
    for name, source in (
        ("paths", "data"),
        ("only", "only"),
        ("skip", "skip"),
        ("held_out", "held_out"),
    ):
        if given[source]:
            found[name] = list(given[source])
    if given["subsets"] is not None:
        found["subsets"] = options.names("--subsets", given["subsets"], "of subsets are needed")
    for name in ("tnt_local_spans", "tnt_shards", "periods"):
        if given[name] is not None:
            found[name] = _sizes(f"--{name.replace('_', '-')}", given[name])
    if given["weights"] is not None:
        found["weights"] = weights_of_sources.parsed(given["weights"])
    stated = of_options.defaults(given.get("defaults"), given["steps"])
    return {**stated, **of_options.configuration(given.get("config")), **found}


def _sizes(option: str, text: str) -> list[int]:
    """Numbers of tokens between commas."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(
            f"{option}: numbers of tokens between commas are needed, as in 8,16, found {text!r}"
        ) from None


class _How(NamedTuple):
    """How a run is made, which changes nothing that it learns."""

    resume: bool
    rollback: int | None
    workers: int | None
    scheduler: str | None
    events: Path | None
    as_json: bool


def _run(out: Path, chosen: dict[str, Any], how: _How) -> int:
    from atlas_ref.backend import compiled
    from atlas_ref.train import checkpoint, run, stages, workers

    if how.rollback is not None and not how.resume:
        raise ValueError("--rollback: belongs to --resume")
    drawn = _board(how.events)
    before = run.settings_of(out) if how.resume else None
    from_run = None if how.resume else chosen.get("begins_from")
    base = None if from_run is None else stages.settings_of(from_run)
    if "weights" in chosen:
        chosen["weights"] = weights_of_sources.of_sources(chosen, before or base)
    settings = of_options.settings(chosen, before, base)
    with workers.opened(settings, count=how.workers, scheduler=how.scheduler) as elsewhere:
        own, moment = run.prepare(out, settings, resume=how.resume, at_most=how.rollback)
        with drawn(moment.step) as written:  # which may refuse its folder, before a word is said
            if how.rollback is not None:  # now that the run can go on
                checkpoint.roll_back(out, moment.step)
            output.say(
                f"{own.data.about}; {_size(moment)} parameters, from step {moment.step}"
                f"{_shared(settings.accumulation, elsewhere)}"
            )
            if moment.step < settings.steps and compiled.wanted():
                output.say("the first step compiles its loops, which can take half a minute")
            with (
                progress.stopping() as stopped,
                progress.bar(settings.steps, moment.step) as shown,
            ):
                told = run.Watcher(progress.both(shown, written), stopped)
                ended = run.run(out, own, moment, told, elsewhere=elsewhere)
    return _told(out, settings.steps, ended, how.as_json)


def _shared(batches: int, elsewhere: Any) -> str:
    """How many batches a step has, for how many threads of workers (TRAIN-20)."""
    if elsewhere is None:
        return ""
    count = elsewhere.threads
    return f"; {batches} batches of a step on {count} threads of workers"


def _told(out: Path, steps: int, ended: Any, as_json: bool) -> int:
    from atlas_ref.train import run

    about = {
        "exit": 0 if ended.finished else 130,
        "out": str(out),
        "step": ended.step,
        "steps": steps,
        "loss": ended.loss,
        "held_out": None if ended.held_out is None else ended.held_out._asdict(),
        "checkpoint": str(ended.path),
        "model": str(out / run.MODEL) if ended.finished else None,
    }
    if as_json:
        output.emit_json(about)
        return int(about["exit"])
    if not ended.finished:
        output.say(f"stopped after step {ended.step}; --resume goes on")
        return 130
    output.emit_rich(_words(ended))
    return 0


def _board(events: Path | None) -> Any:
    """What writes events of TensorBoard from a step on, where they are asked for (TRAIN-19)."""
    if events is None:
        return lambda step: contextlib.nullcontext(lambda line: None)
    from atlas_ref.train.shown import board

    board.writers()
    return lambda step: board.board(events, step)


def _size(moment: Any) -> str:
    from atlas_ref.cli.models.files import parameters

    return f"{parameters(moment.params):,}"


def _words(ended: Any) -> str:
    text = f"step {ended.step}"
    if ended.loss is not None:
        text += f": loss {ended.loss:.4f} nats"
    if ended.held_out is not None:
        held = ended.held_out
        text += f", held out {held.loss:.4f} nats, {held.bits_per_byte:.4f} bits/byte"
    return text
