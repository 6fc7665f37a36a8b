"""Flags of public training scripts: those that mean something here, and why others do not.

Specified in specs/train.md (TRAIN-16).
"""

from __future__ import annotations

from typing import Any

#: Words of --model of a public script -> rule and least window; its kind of blocks is --arch.
RULE_WORDS: dict[str, tuple[str, int]] = {"titans": ("titans_lmm", 1), "omeganet": ("omega", 2)}

#: Public flag that has no meaning here -> why.
REFUSED: dict[str, str] = {
    "--epochs": "a run is so many --steps; rows are drawn without an end",
    "--device": "--backend cupy computes on a GPU",
    "--num-workers": "rows are read in the loop; --workers shares batches",
    "--frozen-m0-ratio": "memories are no parameters of the outer optimiser in any step",
    "--use-momentum": "a rule has momentum or has none: --rule titans_lmm or delta",
    "--use-cuda": "--backend cupy computes on a GPU",
    "--log-file": "the log is log.jsonl in --out",
}

#: Such flags of evaluate and generate.
OF_MODELS: dict[str, str] = {
    "--device": REFUSED["--device"],
    "--checkpoint-dir": "the folder, or a checkpoint in it, is the argument MODEL",
    "--checkpoint": "the file, or its folder, is the argument MODEL",
}


def one(flag: str) -> Any:
    """The hidden option of a public flag, whose value is refused with why."""
    import typer

    def refuse(value: str | None) -> None:
        from atlas_ref.cli.models.files import bad_input

        if value is not None:
            with bad_input():
                raise ValueError(_words(flag, OF_MODELS[flag]))

    return typer.Option(flag, hidden=True, callback=refuse)


def refused(given: dict[str, Any]) -> str | None:
    """The message about the first flag that has no meaning here; None where there is none."""
    for flag, why in REFUSED.items():
        if given.get(flag) is not None:
            return _words(flag, why)
    return None


def _words(flag: str, why: str) -> str:
    return f"{flag}: a flag of a public script that has no meaning here: {why}"


def kind_and_rule(
    model: str, arch: str | None, rule: str | None, window: int | None
) -> tuple[str, str | None, int | None]:
    """Kind of blocks, rule and window of Omega, from our words or those of a public script.

    Raises:
        ValueError: words of both, or a public pair that contradicts itself.
    """
    if model not in RULE_WORDS:
        if arch is not None:
            raise ValueError("--arch: belongs to --model titans or omeganet; else --model says it")
        return model, rule, window
    if rule is not None:
        raise ValueError(f"--rule: --model {model} says the rule")
    own, least = RULE_WORDS[model]
    if window is not None and window < least:
        raise ValueError(f"--omega-window: {window}, --model {model} needs at least {least}")
    if least == 1 and window not in (None, 1):
        raise ValueError(f"--omega-window: {window}, --model {model} has 1")
    return arch or "mag", own, window if least > 1 else None
