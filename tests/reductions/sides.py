"""The two sides of a row, evaluated on inputs drawn for a shape, a seed and shared axes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import atlas_ref
from tape import ops, vjp
from tests.reductions.table import Inputs, Limit, Map, Row, Side, same

RULE_INPUTS = {
    "hebbian": "k v q retain M0",
    "delta": "k v q retain step_size step_size_memory M0",
    "titans_lmm": "k v q retain momentum step_size step_size_memory M0 S0",
    "omega": (
        "k v q retain log_retain momentum log_momentum step_size step_size_memory "
        "window_weights window_gate M0 S0"
        " window_k window_v window_residual phi/W phi/b phi/W1 phi/W2 phi/c phi/H proj"
    ),
}
TOKEN_INPUTS = (
    "x param/W_K param/W_V param/W_Q param/W_retain param/b_retain param/W_momentum "
    "param/b_momentum"
    " param/W_step_size param/b_step_size param/window_logits M0 S0"
)
MASKS = ("active", "reset")


@dataclass(frozen=True)
class Draw:
    """What a row is evaluated on.

    Attributes:
        T, d_in, d_out, heads: sizes, which a row may fix.
        seed: of all numbers.
        masked: some tokens inactive and the sequence packed, where the row says nothing of masks.
        window, span: for a row that holds for any; None for the row's own.
        axes: values of the convention that both sides take.
    """

    T: int
    d_in: int
    d_out: int
    seed: int
    masked: bool = False
    heads: int = 2
    window: int | None = None
    span: int | None = None
    axes: dict[str, Any] = field(default_factory=dict)

    def fitted(self, row: Row) -> Draw:
        """With the sizes that the row fixes."""
        return replace(
            self,
            T=row.tokens or self.T,
            d_in=row.d_in or self.d_in,
            d_out=row.d_out or self.d_out,
            masked=row.masks and self.masked,
        )


def under(row: Row, draw: Draw) -> Row:
    """The row with the drawn window and span, and both sides under the drawn axes too."""

    def one(side: Side) -> Side:
        if side.form is not None:
            return side
        takes = _turned(side.takes) if draw.axes.get("layout") == "transposed" else side.takes
        return replace(side, convention={**draw.axes, **side.convention}, takes=takes)

    return replace(
        row,
        left=one(row.left),
        right=one(row.right),
        window=draw.window or row.window,
        span=draw.span or row.span,
    )


def _turned(takes: Map) -> Map:
    """Transposed states, as a file of layout transposed has them."""

    def apply(x: Inputs) -> Inputs:
        made = takes(x)
        return {
            **made,
            **{name: ops.transpose(made[name]) for name in ("M0", "S0") if name in made},
        }

    return apply


def inputs(row: Row, draw: Draw) -> Inputs:
    """Shared inputs: gates that vary, keys of length about 1, states that are neither zero nor
    symmetric.
    """
    T, d_in, d_out = draw.T, draw.d_in, draw.d_out
    random = np.random.default_rng(draw.seed)
    lead = (1, draw.heads) if row.level == "token" else (draw.heads,)
    x = _tokens(random, draw) if row.level == "token" else _projected(random, draw)
    drawn_weights = random.uniform(0.4, 1.6, (*lead, T, row.window)) / row.window
    x["window_weights"] = (
        np.full_like(drawn_weights, 1.0 / row.window) if row.level == "token" else drawn_weights
    )
    x["M0"] = 0.5 * random.standard_normal((*lead, d_out, d_in))
    x["S0"] = 0.3 * random.standard_normal((*lead, d_out, d_in))
    if row.history:
        n = row.window - 1
        x["window_k"] = random.standard_normal((*lead, n, d_in)) / np.sqrt(d_in)
        x["window_v"], x["window_residual"] = random.standard_normal((2, *lead, n, d_out))
    if draw.masked:
        x["active"], x["reset"] = random.uniform(size=T) < 0.75, random.uniform(size=T) < 0.25
    return x


def _projected(random: np.random.Generator, draw: Draw) -> Inputs:
    rows, d_in = (draw.heads, draw.T), draw.d_in
    x: Inputs = {name: random.standard_normal((*rows, d_in)) / np.sqrt(d_in) for name in ("k", "q")}
    x["v"] = random.standard_normal((*rows, draw.d_out))
    for name, low, high in (
        ("retain", 0.6, 0.95),
        ("momentum", 0.2, 0.8),
        ("step_size", 0.1, 0.6),
        ("step_size_memory", 0.1, 0.6),
    ):
        x[name] = random.uniform(low, high, rows)
    return x


def _tokens(random: np.random.Generator, draw: Draw, d_model: int = 5) -> Inputs:
    d_in, d_out, heads = draw.d_in, draw.d_out, draw.heads
    x: Inputs = {"x": random.standard_normal((1, draw.T, d_model))}
    for name, rows in (("K", d_in), ("V", d_out), ("Q", d_in)):
        x[f"param/W_{name}"] = random.standard_normal((heads, rows, d_model)) / np.sqrt(d_model)
    for gate, bias in (("retain", 1.5), ("momentum", 0.5), ("step_size", -1.5)):
        x[f"param/W_{gate}"] = 0.5 * random.standard_normal((heads, 1, d_in + d_out))
        x[f"param/b_{gate}"] = bias + 0.3 * random.standard_normal((heads, 1))
    return x


def taken(side: Side, x: Inputs) -> Inputs:
    """The inputs of a side's rule, after its own map."""
    made = side.takes(x)
    if side.form is not None:
        return made
    axes = side.convention
    carries = axes.get("window_at_boundary") == "carry" and axes.get("reference") in (
        "chunk_start",
        "call_start",
    )
    has = {"retain": axes.get("gate") != "none", "step_size": axes.get("rate") != "none"}
    has |= {"step_size_memory": axes.get("rate") == "split", "window_residual": carries}
    names = TOKEN_INPUTS if side.header.get("level") == "token" else RULE_INPUTS[side.rule]
    return {name: made[name] for name in names.split() if name in made and has.get(name, True)}


def header(row: Row | Limit, side: Side) -> dict[str, Any]:
    made = {"schema": 1, "rule": side.rule, "convention": side.convention}
    if isinstance(row, Row):
        made |= ({"window": row.window} if side.rule == "omega" else {}) | (
            {"span": row.span} if row.span is not None else {}
        )
    return made | side.header


def evaluated(row: Row | Limit, side: Side, x: Inputs, cotangents: Inputs) -> tuple[Inputs, Inputs]:
    """Results of one side in the plain layout, and gradients of the shared inputs."""
    smooth = {name: value for name, value in x.items() if name not in MASKS}
    tensors, back = vjp(lambda inputs: taken(side, row.given(inputs)), smooth)
    if side.form is not None:
        results, pullback = vjp(side.form, tensors)
        (gradients,) = pullback({name: cotangents[name] for name in results})
        return results, back(gradients)[0]

    def layout(name: str, value: np.ndarray) -> np.ndarray:
        return (
            value.swapaxes(-1, -2)
            if name != "y" and side.convention.get("layout") == "transposed"
            else value
        )

    masks = {name: x[name] for name in MASKS if name in x}
    if side.inactive:
        masks["active"] = ~np.isin(np.arange(x["k"].shape[-2]), side.inactive)
    case = {f"in/{name}": value for name, value in {**tensors, **masks}.items()}
    case |= {f"in/{name}_bar": layout(name, value) for name, value in cotangents.items()}
    whole = header(row, side) | _gate_axis(tensors)
    out = atlas_ref.evaluate(atlas_ref.make(whole, case), grad=True).tensors
    results = {name: layout(name, out[f"out/{name}"]) for name in cotangents}
    constants = {name: np.zeros_like(tensors[name]) for name in _frozen(side) & tensors.keys()}
    own = {name: out[f"grad/{name}"] for name in tensors if name not in constants}
    return results, back(constants | own)[0]


def _frozen(side: Side) -> set[str]:
    """Tensors of a map that is not learned, which have no gradient."""
    learned = side.header.get("feature_map", {}).get("learned", True)
    return set() if learned else {"phi/W", "phi/b"}


def _gate_axis(tensors: Inputs) -> Inputs:
    """Which axis a gate of several entries has, since a square memory leaves it open."""
    gates = [tensors[name] for name in ("retain", "momentum", "step_size") if name in tensors]
    return {"gate_axis": "d_out"} if any(each.ndim == tensors["k"].ndim for each in gates) else {}


Compared = list[tuple[str, Any, Any]]


def both_sides(row: Row | Limit, left: Side, x: Inputs) -> tuple[Compared, Compared]:
    """(name, left, right) of every result that both sides have, and of the gradient of every shared
    input.
    """
    plain = {name: value for name, value in x.items() if name not in MASKS}
    maps = {"y": same, "M": same}
    S = row.S if isinstance(row, Row) else None
    if S is not None and all(has_momentum(side, row.given, plain) for side in (left, row.right)):
        maps["S"] = S
    random, T = np.random.default_rng(7), x["x" if "x" in x else "k"].shape[-2]
    M_shape = x["M0"].shape
    bars = {
        "y": random.standard_normal((*M_shape[:-2], T, M_shape[-2])),
        **{name: random.standard_normal(M_shape) for name in "MS"},
    }
    of_left, left_gradients = evaluated(row, left, x, {name: bars[name] for name in maps})
    of_right, right_gradients = evaluated(
        row, row.right, x, {name: each(bars[name]) for name, each in maps.items()}
    )
    results = [(name, of_left[name], each(of_right[name])) for name, each in maps.items()]
    return results, [
        (name, left_gradients[name], right_gradients[name]) for name in right_gradients
    ]


def has_momentum(side: Side, given: Map, x: Inputs) -> bool:
    names = taken(side, given(x)) if side.form is None else {}
    return not {"momentum", "log_momentum", "param/W_momentum"}.isdisjoint(names)
