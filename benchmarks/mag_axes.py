"""What each difference between the causal reading and Atlas-MAG's costs: python -m benchmarks.mag_axes
[--write]

A small model away from its start, of which one axis at a time has the value of public code. Written
into specs/atlas_mag.md (MAG-11) between two comments.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

import tape
from atlas_ref.layers.shared_memory import PRESETS
from atlas_ref.models import atlas_mag, language_model
from atlas_ref.types import Array
from tape import ops
from tape.nested import flatten

SPEC = Path(__file__).parents[1] / "specs" / "atlas_mag.md"
BEGIN = "<!-- measured by: python -m benchmarks.mag_axes --write -->"
END = "<!-- end of what was measured -->"

SETTINGS = atlas_mag.Settings(
    vocab_size=32,
    dim=32,
    n_layers=2,
    n_heads=2,
    poly_rank=24,
    attn_window_size=16,
    omega_context_window=16,
    gate_hidden=16,
    ttl_eta=0.1,
    training=True,
)
#: Tokens of a chunk; of a call, of which there are two; and the token of the second one where
#: another document starts.
CHUNK, TOKENS, START = 8, 28, 11
#: The token of a row that is changed, in a chunk of that document that is written.
CHANGED = TOKENS + START + 12
ROWS = 2
#: Mean of the scale of a memory's reads, so that they show, and what is rounding.
SCALE, ROUNDING = 2.0, 1e-12

#: Axes of the presets that differ, and what calls share; several that mean something together alone.
TOGETHER: dict[str, tuple[str, ...]] = {
    "fast and vectors": ("fast", "vectors"),
    "chunk and read": ("chunk", "read"),
    "chunk, read and coupling": ("chunk", "read", "coupling"),
    "resets": ("memory_reset", "momentum_reset"),
}
CALLS = {"causal": "continued", "atlas-mag": "documents"}
#: Rows in which no memory is written: what the step does, and what leaks without it.
WITHOUT = ("no step", "all, no step")


class Cost(NamedTuple):
    """What one difference changes.

    Attributes:
        logits: relative change of all logits.
        loss: change of the loss, in nats.
        earlier, rows: largest change of a logit before a changed token, and of another row.
        memory, others: cosine of the gradients by first weights, and by all other parameters, with
            those of the causal reading.
    """

    logits: float
    loss: float
    earlier: float
    rows: float
    memory: float
    others: float


def values(preset: str) -> dict[str, Any]:
    """The values of a preset on the axes that differ between the two."""
    causal = PRESETS["causal"] | {"chunk": CHUNK, "calls": CALLS["causal"]}
    public = PRESETS["atlas-mag"] | {"calls": CALLS["atlas-mag"]}
    own = {"causal": causal, "atlas-mag": public}[preset]
    return {name: own[name] for name in causal if causal[name] != public[name]}


def differences() -> dict[str, tuple[str, ...]]:
    """Axes by the words of a row: each by itself, then those that go together, then all."""
    axes = tuple(values("causal"))
    every = {name: (name,) for name in axes} | TOGETHER | {"all": axes}
    return every | dict(zip(WITHOUT, ((), axes), strict=True))


def config_of(axes: tuple[str, ...], *, step: bool = True) -> language_model.Config:
    """The causal model with the values of public code on some axes.

    Args:
        step: whether memories are written.
    """
    own = values("causal") | {name: values("atlas-mag")[name] for name in axes}
    if own["newton_schulz"] != "none":
        own["newton_schulz"] = {**own["newton_schulz"], "steps": SETTINGS.ttl_ns_iters}
    own |= {} if step else {"phase": "off"}
    return atlas_mag.model(SETTINGS, "causal", **own)


def parameters(config: language_model.Config) -> language_model.Params:
    """Parameters away from their start, by their names the same for every reading."""
    leaves, paths, build = flatten(language_model.init(config, 0), "params")
    drawn = []
    for leaf, path in zip(leaves, paths, strict=True):
        draw = np.random.Generator(np.random.Philox(abs(_number(path))))
        ones = np.ones(leaf.shape) if path.endswith(("weight", "gain']")) else 0.0
        scale = 0.3 if "phi" in path or "gate" in path else 0.2
        ones = SCALE if "read_scale" in path else ones
        drawn.append(ones + scale * draw.standard_normal(leaf.shape))
    own: language_model.Params = build(drawn)
    return own


def _number(path: str) -> int:
    """A seed of a name, the same in every process."""
    total = 0
    for letter in path:
        total = (total * 131 + ord(letter)) % 2**31
    return total


def ids() -> np.ndarray[Any, Any]:
    draw = np.random.Generator(np.random.Philox(1))
    return draw.integers(0, SETTINGS.vocab_size, (ROWS, 2 * TOKENS + 1))


def logits_of(config: language_model.Config, params: Any, own: Any) -> Array:
    """Logits of both calls; a document starts inside the second."""
    state, rows = language_model.start(config, ROWS), []
    reset = np.arange(TOKENS) == START
    for part, starts in ((own[:, :TOKENS], None), (own[:, TOKENS : 2 * TOKENS], reset)):
        state, logits = language_model.apply(config, params, state, part, reset=starts)
        rows.append(logits)
    return ops.concatenate(rows, axis=1)


class Measured(NamedTuple):
    """Results of a reading."""

    logits: Any
    loss: float
    earlier: float
    rows: float
    gradients: dict[str, Any]


def measured(config: language_model.Config) -> Measured:
    """Logits, loss, leaks of a token of a row, gradients by the paths of parameters."""
    params, own = parameters(config), ids()

    def loss(params: Any) -> Array:
        return language_model.cross_entropy(logits_of(config, params, own), own[:, 1:])

    value, gradient = tape.value_and_grad(loss)(params)
    leaves, paths, _ = flatten(gradient, "gradient")
    logits, other = logits_of(config, params, own), own.copy()
    other[0, CHANGED] = (other[0, CHANGED] + 1) % SETTINGS.vocab_size
    change = np.abs(logits_of(config, params, other) - logits)
    return Measured(
        logits=logits,
        loss=float(value),
        earlier=float(change[0, :CHANGED].max()),
        rows=float(change[1:].max()),
        gradients=dict(zip(paths, leaves, strict=True)),
    )


def cost(base: Measured, own: Measured) -> Cost:
    """What a reading changes of another one."""
    names = base.gradients.keys() & own.gradients.keys()
    first = sorted(name for name in names if ".phi" in name)
    return Cost(
        logits=float(np.linalg.norm(own.logits - base.logits) / np.linalg.norm(base.logits)),
        loss=own.loss - base.loss,
        earlier=own.earlier,
        rows=own.rows,
        memory=_cosine(base, own, first),
        others=_cosine(base, own, sorted(names - set(first))),
    )


def _cosine(base: Measured, own: Measured, names: list[str]) -> float:
    a, b = (
        np.concatenate([np.ravel(each.gradients[name]) for name in names]) for each in (base, own)
    )
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / size if size else 0.0


def costs() -> dict[str, Cost]:
    """Every row of the table."""
    base = measured(config_of(()))
    return {
        words: cost(base, measured(config_of(axes, step=words not in WITHOUT)))
        for words, axes in differences().items()
    }


# -- the table -------------------------------------------------------------------------------------


def cells(own: Cost) -> tuple[str, ...]:
    """Numbers of a row, as the table has them."""
    return (
        _size(own.logits),
        "0" if abs(own.loss) < ROUNDING else f"{own.loss:+.1e}",
        *(_size(each) for each in (own.earlier, own.rows)),
        *(f"{each:.3f}" for each in (own.memory, own.others)),
    )


def _size(number: float) -> str:
    """Two digits; rounding is called by its name, and 0 is 0 bit for bit."""
    if not number:
        return "0"
    return "rounding" if number < ROUNDING else f"{number:.1e}"


def table(found: dict[str, Cost]) -> str:
    """The table in Markdown."""
    head = (
        *("axis", "causal", "public", "logits", "loss", "earlier tokens", "other rows"),
        *("gradient of W_0", "other gradients"),
    )
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    causal, public = values("causal"), values("atlas-mag")
    for words, axes in differences().items():
        alone = len(axes) == 1
        both = [_word(each[words]) if alone else "" for each in (causal, public)]
        lines.append("| " + " | ".join((words, *both, *cells(found[words]))) + " |")
    return "\n".join(lines)


def _word(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {each}" for name, each in value.items() if name != "steps")
    return str(value)


def inserted(text: str, found: str) -> str:
    """A page with the table between its comments.

    Raises:
        ValueError: a page without them.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no {BEGIN} and {END} in the page")
    return f"{before}{begin}\n\n{found}\n\n{end}{after}"


def main(
    write: Annotated[bool, typer.Option("--write", help="Into specs/atlas_mag.md.")] = False,
) -> None:
    """Measure what each difference costs, and print it as a table."""
    found = table(costs())
    if write:
        part = SPEC.with_name(f".{SPEC.name}.part")
        part.write_text(inserted(SPEC.read_text(), found))
        os.replace(part, SPEC)
    print(found)


if __name__ == "__main__":
    typer.run(main)
