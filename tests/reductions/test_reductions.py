"""Every row of the reduction table: agreement to rounding, and failure when one condition is
broken.

The rows are data in `table.py`. Each is evaluated on several shapes with keys and values of
different length, some of them with inactive tokens and packed sequences; its table is printed at
the end of the test run.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import atlas_ref
from tape import vjp
from tests.reductions.table import LIMITS, ROWS, Inputs, Limit, Map, Row, Side, same
from tests.support.close import EXACT, Tolerance, assert_close, relative_error, reordered

#: (T, d_in, d_out, seed, with inactive tokens and a packed sequence)
SHAPES = ((7, 4, 3, 1, False), (9, 3, 5, 2, True), (5, 2, 6, 3, False))
HEADS = 2
STEEPEST = 3.4445**5  # slope at 0 of Newton-Schulz, which multiplies the rounding of its argument
DIFFERENT = 1e-3

RULE_INPUTS = {
    "hebbian": "k v q retain M0",
    "delta": "k v q retain step_size step_size_memory M0",
    "titans_lmm": "k v q retain momentum step_size step_size_memory M0 S0",
    "omega": (
        "k v q retain log_retain momentum log_momentum step_size step_size_memory "
        "window_weights window_gate M0 S0"
        " window_k window_v window_residual phi/W phi/W1 phi/W2 proj"
    ),
}
TOKEN_INPUTS = (
    "x param/W_K param/W_V param/W_Q param/W_retain param/b_retain param/W_momentum "
    "param/b_momentum"
    " param/W_step_size param/b_step_size param/window_logits M0 S0"
)
MASKS = ("active", "reset")

Shape = tuple[int, int, int, int, bool]


def shapes(row: Row | Limit) -> list[Shape]:
    """The shapes in turn, with the sizes that the row needs."""
    if isinstance(row, Limit):
        return list(SHAPES)
    chosen = [
        (row.tokens or T, row.d_in or d_in, row.d_out or d_out, seed, row.masks and masks)
        for T, d_in, d_out, seed, masks in SHAPES
    ]
    return sorted(set(chosen), key=chosen.index)


def drawn(row: Row, shape: Shape) -> Inputs:
    """Shared inputs: gates that vary, keys of length about 1, states that are neither zero nor
    symmetric.
    """
    T, d_in, d_out, seed, masks = shape
    random = np.random.default_rng(seed)
    lead = (1, HEADS) if row.level == "token" else (HEADS,)
    x = (
        _tokens(random, T, d_in, d_out)
        if row.level == "token"
        else _projected(random, lead, T, d_in, d_out)
    )
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
    if masks:
        x["active"], x["reset"] = np.ones(T, bool), np.zeros(T, bool)
        x["active"][[1, T - 2]], x["reset"][T // 2] = False, True
    return x


def _projected(
    random: np.random.Generator, lead: tuple[int, ...], T: int, d_in: int, d_out: int
) -> Inputs:
    x: Inputs = {
        name: random.standard_normal((*lead, T, d_in)) / np.sqrt(d_in) for name in ("k", "q")
    }
    x["v"] = random.standard_normal((*lead, T, d_out))
    for name, low, high in (
        ("retain", 0.6, 0.95),
        ("momentum", 0.2, 0.8),
        ("step_size", 0.1, 0.6),
        ("step_size_memory", 0.1, 0.6),
    ):
        x[name] = random.uniform(low, high, (*lead, T))
    return x


def _tokens(random: np.random.Generator, T: int, d_in: int, d_out: int, d_model: int = 5) -> Inputs:
    x: Inputs = {"x": random.standard_normal((1, T, d_model))}
    for name, rows in (("K", d_in), ("V", d_out), ("Q", d_in)):
        x[f"param/W_{name}"] = random.standard_normal((HEADS, rows, d_model)) / np.sqrt(d_model)
    for gate, bias in (("retain", 1.5), ("momentum", 0.5), ("step_size", -1.5)):
        x[f"param/W_{gate}"] = 0.5 * random.standard_normal((HEADS, 1, d_in + d_out))
        x[f"param/b_{gate}"] = bias + 0.3 * random.standard_normal((HEADS, 1))
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
    out = atlas_ref.evaluate(atlas_ref.make(header(row, side), case), grad=True).tensors
    results = {name: layout(name, out[f"out/{name}"]) for name in cotangents}
    return results, back({name: out[f"grad/{name}"] for name in tensors})[0]


def both_sides(
    row: Row | Limit, left: Side, x: Inputs
) -> tuple[list[tuple[str, Any, Any]], list[tuple[str, Any, Any]]]:
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


def rounding(row: Row, T: int) -> Tolerance:
    orthogonalised = any(
        side.convention.get("newton_schulz", "none") != "none" for side in (row.left, row.right)
    )
    return reordered(T, amplification=STEEPEST if orthogonalised else 1.0)


def size(arrays: list[Any]) -> float:
    return float(np.sqrt(sum(np.sum(np.square(each)) for each in arrays)))


def line(row: Row | Limit, **found: Any) -> str:
    """A line of the table at the end of the run."""
    return json.dumps(
        {"id": row.id, "place": [each.id for each in (*ROWS, *LIMITS)].index(row.id), **found}
    )


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.id, marks=pytest.mark.clause(*row.clauses)) for row in ROWS]
)
def test_reduction(row: Row, record_property: Any) -> None:
    worst = 0.0
    for shape in shapes(row):
        results, gradients = both_sides(row, row.left, drawn(row, shape))
        tolerance = rounding(row, shape[0])
        for name, left, right in results:
            assert_close(
                f"{row.id}: {name} for {shape}", left, right, EXACT if row.exact else tolerance
            )
            worst = max(worst, relative_error(left, right))
        # what one input's gradient is rounded against: paths cancel
        whole = size([right for *_, right in gradients])
        for name, left, right in gradients:
            error = size([left - right]) / whole
            assert tolerance.bound is not None
            assert error <= tolerance.bound, (
                f"{row.id}: grad/{name} for {shape}: {error:.2e} of all gradients > {tolerance}"
            )
            worst = max(worst, error)
    record_property("reductions", line(row, statement=row.statement, agrees=worst))


TWINS = [(row, broken) for row in ROWS for broken in row.twins]


@pytest.mark.sample(80)
@pytest.mark.parametrize(
    ("row", "broken"), TWINS, ids=[f"{row.id}: {broken}" for row, broken in TWINS]
)
def test_negative_twin(row: Row, broken: str, record_property: Any) -> None:
    twin = row.twin(broken)
    least = np.inf
    for shape in shapes(twin):
        results, _ = both_sides(twin, twin.left, drawn(twin, shape))
        least = min(least, max(relative_error(left, right) for _, left, right in results))
    assert least > DIFFERENT, f"{row.id} with {broken}: the sides differ by {least:.1e} only"
    record_property("reductions", line(row, broken=broken, differs=least))


def distances(row: Limit, left: Any, shape: Shape) -> list[float]:
    """Distance of the sides in y, M and all gradients at h, divided by twice that at h / 2."""
    x = drawn(Row(row.id, "", (), left(1.0), row.right), shape)
    found = []
    for h in (row.step, row.step / 2):
        results, gradients = both_sides(row, left(h), x)
        found.append(
            [*(relative_error(a, b) for _, a, b in results), size([a - b for _, a, b in gradients])]
        )
    return [whole / half / 2.0 for whole, half in zip(*found, strict=True)]


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.id, marks=pytest.mark.clause(*row.clauses)) for row in LIMITS]
)
def test_limit_is_of_first_order(row: Limit, record_property: Any) -> None:
    worst = 0.0
    for shape in shapes(row):
        T = shape[0]
        for ratio in distances(row, row.left, shape):
            assert abs(ratio - 1.0) <= 10 * T * row.step, (
                f"{row.id} for {shape}: half of h leaves 1 / {2 * ratio:.6f} of the distance"
            )
            worst = max(worst, abs(ratio - 1.0))
    record_property("reductions", line(row, statement=row.statement, agrees=worst))


LIMIT_TWINS = [(row, broken) for row in LIMITS for broken in row.twins]


@pytest.mark.parametrize(
    ("row", "broken"), LIMIT_TWINS, ids=[f"{row.id}: {broken}" for row, broken in LIMIT_TWINS]
)
def test_negative_twin_of_limit(row: Limit, broken: str, record_property: Any) -> None:
    least = np.inf
    for shape in shapes(row):
        x = drawn(Row(row.id, "", (), row.right, row.right), shape)
        results, _ = both_sides(row, row.twins[broken](row.step), x)
        least = min(least, max(relative_error(left, right) for _, left, right in results))
    assert least > DIFFERENT, f"{row.id} with {broken}: the distance is {least:.1e}, it tends to 0"
    record_property("reductions", line(row, broken=broken, differs=least))


def test_rows_are_named_once_and_have_a_twin() -> None:
    every = [*ROWS, *LIMITS]
    assert len({row.id for row in every}) == len(every)
    assert all(row.twins and row.clauses for row in every)
