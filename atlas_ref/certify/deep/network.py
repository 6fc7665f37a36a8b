"""A network in the place of a momentum on balls: what it learns of a write, and its step (CERT-17).

Written from DEEP-37 and DEEP-38.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flint import arb, arb_mat

from atlas_ref.certify.deep.functions import Function
from atlas_ref.certify.matrix import Matrix, filled, scaled, stacked

Tensors = Mapping[str, Matrix]

#: Settings that a case may leave out.
DEFAULTS: dict[str, Any] = {
    "function": {"kind": "mlp", "activation": "silu"},
    "objective": "l2",
}


def network(settings: Mapping[str, Any], entries: int) -> tuple[Function, str]:
    """The network between so many entries, and its objective."""
    own = {**DEFAULTS, **settings}
    return Function(own["function"], entries, entries), str(own["objective"])


def step(
    of: tuple[Function, str],
    V: Tensors,
    g: Tensors,
    m: Matrix,
    a: Matrix | None,
    *,
    minus: bool,
) -> tuple[dict[str, Matrix], dict[str, Matrix]]:
    """V after a write, and the step in the shapes of the gradients."""
    function, objective = of
    u = stacked([flat(x) for x in g.values()])
    v = function.apply(V, u)
    target = Matrix(filled(u.rows, 1, [arb(1)] * u.rows)) if objective == "ones" else u
    target = -target if minus else target
    bar = v["y"] - target if objective == "l2" else -target
    found = function.gradient(V, v, bar, list(V))
    after = {
        name: scaled(m, x) - (found[name] if a is None else scaled(a, found[name]))
        for name, x in V.items()
    }
    return after, _split(function.apply(after, u)["y"], g)


def flat(x: Matrix) -> Matrix:
    """A matrix as one column, row by row."""
    rows, columns = x.rows, x.columns
    return Matrix(
        filled(rows * columns, 1, x.value.entries()),
        (x, lambda g: filled(rows, columns, g.entries())),
    )


def _split(y: Matrix, g: Tensors) -> dict[str, Matrix]:
    """One column as the matrices whose entries it holds."""
    parts, first, whole = {}, 0, y.rows

    def back(first: int) -> Any:
        def pulled(g: arb_mat) -> arb_mat:
            own = g.entries()
            behind = whole - first - len(own)
            return filled(whole, 1, [*[arb(0)] * first, *own, *[arb(0)] * behind])

        return pulled

    for name, x in g.items():
        last = first + x.rows * x.columns
        own = filled(x.rows, x.columns, y.value.entries()[first:last])
        parts[name] = Matrix(own, (y, back(first)))
        first = last
    return parts
