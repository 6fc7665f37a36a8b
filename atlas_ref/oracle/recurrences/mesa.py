"""Cases of the mesa memory, and its plain loop, which shares no code with the rule (RECUR-10)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.tensor_spec import Tensor, masks
from atlas_ref.oracle.drawing import leading
from atlas_ref.oracle.family.arithmetic import Arithmetic
from atlas_ref.oracle.program.changes import change_tensor, ones, zero_silent_tokens
from atlas_ref.oracle.program.context import Context, Inputs
from atlas_ref.oracle.program.hook import Hook, by, within
from atlas_ref.oracle.program.mistakes import has, of_before, scale_query
from atlas_ref.oracle.program.program import Program, Results, Shapes
from atlas_ref.oracle.program.reading import Reading
from atlas_ref.oracle.recurrences.member import SHARED, STATE_LAYOUT, Member, in_layout
from atlas_ref.rules.recurrences import mesa
from atlas_ref.rules.recurrences.checks import of_last_axes
from atlas_ref.types import Array
from tape import ops, plain

TENSORS = {
    "in/k": Tensor("... T d_in"),
    "in/v": Tensor("... T d_out"),
    "in/q": Tensor("... T d_in"),
    "in/weight": Tensor("... T"),
    "in/log_retain": Tensor("... T", high=0.0),
    "in/ridge": Tensor("d_in, or heads d_in", low=0.0),
    "in/G0": Tensor("... d_in d_in", "0"),
    "in/M0": Tensor("... d_out d_in", "0"),
    "in/G_bar": Tensor("... d_in d_in", "0"),
    "in/M_bar": Tensor("... d_out d_in", "0"),
    **SHARED,
}


def _shapes(x: Inputs, settings: Any) -> Shapes:
    *lead, T, d_in = x["in/k"].shape
    d_out = x["in/v"].shape[-1]
    return {
        **dict.fromkeys(("k", "q"), (*lead, T, d_in)),
        **dict.fromkeys(("v", "y"), (*lead, T, d_out)),
        **dict.fromkeys(("weight", "log_retain"), (*lead, T)),
        "ridge": of_last_axes(x["in/ridge"], tuple(lead), d_in),
        "G": (*lead, d_in, d_in),
        "M": (*lead, d_out, d_in),
    }


def _evaluate(x: Inputs, settings: Any) -> dict[str, Array]:
    names = ("k", "v", "q", "weight", "log_retain", "ridge")
    tokens = mesa.Tokens(**{name: x[f"in/{name}"] for name in names}, **masks(x))
    first = {"M": in_layout(settings, x["in/M0"])} if "in/M0" in x else {}
    after, y = mesa.run(tokens, mesa.start(tokens, G=x.get("in/G0"), **first))
    return {"out/y": y, "out/G": after.G, "out/M": in_layout(settings, after.M)}


def _loop(context: Context, hook: Hook) -> Results:
    """The recurrence, token by token, with its ops (RECUR-15)."""
    way, reads, ridge = context.arithmetic, [], context.whole("ridge")
    G, M = first = context.first("G"), context.first("M")
    for t in range(context.tokens):
        k, v, q = context.rows(t, "k", "v", "q")
        G, M = (hook.start(*each) for each in zip("GM", (t, t), (G, M), first, strict=True))
        if context.writes(t):
            w = hook("gate", t, ops.exp, context.row(t, "log_retain"))
            weight = context.row(t, "weight")
            G = hook("G", t, partial(_add, way), G, w, weight, k, k)
            M = hook("M", t, partial(_add, way), M, w, weight, v, k)
        else:
            G, M = hook.keep("G", t, G), hook.keep("M", t, M)
        solved = hook("solved", t, partial(_solve, way), hook.read("G", G), ridge, q)
        reads.append(hook("y", t, partial(_read, way), hook.read("M", M), solved))
    return {"y": ops.stack(reads, axis=-2), "G": G, "M": M}


def _add(way: Arithmetic, x: Array, w: Array, weight: Array, rows: Array, k: Array) -> Array:
    """A decayed matrix and a weighted product of a column and a key."""
    outer = weight[..., None, None] * (rows[..., :, None] * k[..., None, :])
    return way.scaled_sum(w[..., None, None], x, outer)


def _read(way: Arithmetic, M: Array, solved: Array) -> Array:
    return way.matmul(M, solved[..., None])[..., 0]


def _solve(way: Arithmetic, G: Array, ridge: Array, q: Array) -> Array:
    """(G + diag(ridge))^-1 q."""
    diagonal = ridge[..., None] * np.eye(G.shape[-1], dtype=plain(G).dtype)
    return _by_elimination(way, G + diagonal, q[..., None])[..., 0]


def _by_elimination(way: Arithmetic, A: Array, b: Array) -> Array:
    """A^-1 b by elimination downwards, the largest entry of a column first, and substitution up."""
    n = A.shape[-1]
    for i in range(n):
        exchange = _exchange(A, i)
        A, b = exchange @ A, exchange @ b
        below = (np.arange(n) > i).astype(plain(A).dtype)
        factors = (-below * A[..., :, i] / A[..., i, i, None])[..., None]
        A = way.scaled_sum(factors, A[..., i, None, :], A)
        b = way.scaled_sum(factors, b[..., i, None, :], b)
    x: list[Array] = []  # from the last row up
    for i in reversed(range(n)):
        rest = b[..., i, :]
        if x:
            known = ops.stack(x[::-1], axis=-2)
            rest = rest - way.matmul(A[..., i, None, i + 1 :], known)[..., 0, :]
        x.append(rest / A[..., i, i, None])
    return ops.stack(x[::-1], axis=-2)


def _exchange(A: Array, i: int) -> Array:
    """The matrix that exchanges row i with that of the largest entry below it in column i."""
    bare = plain(A)
    best = i + np.argmax(np.abs(np.real(bare[..., i:, i])), axis=-1)
    rows = np.broadcast_to(np.arange(bare.shape[-1]), bare.shape[:-1]).copy()
    np.put_along_axis(rows, best[..., None], i, axis=-1)
    rows[..., i] = best
    return (rows[..., :, None] == np.arange(bare.shape[-1])).astype(bare.dtype)


def _draw(request: Any, settings: Any, generator: Any) -> dict[str, Array]:
    lead = (*leading(request), request.tokens)
    return {
        "in/k": generator.standard_normal((*lead, request.d_in)) / np.sqrt(request.d_in),
        "in/v": generator.standard_normal((*lead, request.d_out)),
        "in/q": generator.standard_normal((*lead, request.d_in)),
        "in/weight": generator.uniform(0.1, 1.0, lead),
        "in/log_retain": np.log(generator.uniform(0.8, 1.0, lead)),
        "in/ridge": generator.uniform(0.5, 1.5, (request.heads, request.d_in)),
    }


def _first(name: str, x: Any, settings: Any) -> Any:
    """A sum of squares of keys for G, so that what is solved keeps its sign."""
    return x @ x.swapaxes(-1, -2) if name == "G" else x


def _of_diagonal(G: Array, ridge: Array, q: Array) -> Array:
    diagonal = ops.sum(G * np.eye(G.shape[-1], dtype=plain(G).dtype), axis=-1)
    return q / (diagonal + ridge)


def _one_step(G: Array, ridge: Array, q: Array) -> Array:
    """The first step of conjugate gradients from zero."""
    found = (G @ q[..., None])[..., 0] + ridge * q
    square_of_q, slope = (ops.sum(q * x, axis=-1, keepdims=True) for x in (q, found))
    return square_of_q / slope * q


def _wide(context: Context) -> bool:
    """Whether a system has more than one unknown."""
    return bool(context.inputs["in/k"].shape[-1] > 1)


def _of_heads(context: Context) -> bool:
    ridge = context.inputs["in/ridge"]
    return bool(ridge.ndim > 1 and ridge.shape[-2] > 1)


def _late_gate(compute: Any, x: Array, w: Array, *written: Array) -> Array:
    return w[..., None, None] * compute(x, ones(w), *written)


#: Mistakes of kernels beside those of every program (RECUR-14).
MISTAKES = (
    *(
        Reading(
            f"{name} without decay",
            f"{name} did not decay",
            ops={name: lambda op, x, w, *written: op(x, ones(w), *written)},
        )
        for name in "GM"
    ),
    *(
        Reading(
            f"weight of {name} forgotten",
            f"in/weight was 1 in {name}",
            ops={name: lambda op, x, w, weight, *rows: op(x, w, ones(weight), *rows)},
        )
        for name in "GM"
    ),
    Reading("weight forgotten", "in/weight was 1", inputs=change_tensor("in/weight", ones)),
    Reading(
        "weight twice",
        "in/weight was applied twice",
        inputs=change_tensor("in/weight", lambda x: x * x),
    ),
    Reading(
        "gate after write",
        "the gate came after the write",
        ops=dict.fromkeys(("G", "M"), within(_late_gate)),
    ),
    Reading(
        "gate when silent",
        "silent tokens decayed",
        has("active"),
        inputs=zero_silent_tokens("in/weight"),
    ),
    Reading(
        "no ridge",
        "in/ridge was 0",
        ops={"solved": lambda op, G, ridge, q: op(G, ops.zeros_like(ridge), q)},
    ),
    Reading(
        "ridge twice",
        "in/ridge was added twice",
        ops={"solved": lambda op, G, ridge, q: op(G, 2.0 * ridge, q)},
    ),
    Reading(
        "ridge of head 0",
        "all heads had the ridge of the first",
        _of_heads,
        inputs=change_tensor("in/ridge", lambda x: ops.broadcast_to(x[..., :1, :], x.shape)),
    ),
    Reading(
        "not solved",
        "reads were with the query as it is",
        ops={"solved": by(lambda G, ridge, q: q)},
    ),
    Reading(
        "solved by the diagonal",
        "the system was its diagonal alone",
        _wide,
        ops={"solved": by(_of_diagonal)},
    ),
    Reading(
        "one step of conjugate gradients",
        "the system was solved by one step of conjugate gradients",
        _wide,
        ops={"solved": by(_one_step)},
    ),
    Reading(
        "query scaled",
        "queries were multiplied by 1/sqrt(d_in)",
        _wide,
        ops={"solved": lambda op, G, ridge, q: op(G, ridge, scale_query(q))},
    ),
    Reading(
        "read before",
        "queries read the memory before their token",
        ops={"read/G": of_before, "read/M": of_before},
    ),
    Reading("G of before", "systems were by G of before their token", ops={"read/G": of_before}),
    Reading("M of before", "reads were of M of before their token", ops={"read/M": of_before}),
)

PROGRAM = Program(
    name="mesa",
    tensors=TENSORS,
    shapes=_shapes,
    states=("G", "M"),
    matrices=("M",),
    settings=(STATE_LAYOUT,),
    loop=_loop,
    rounding={"gate": "touch", "G": "store", "M": "store"},
    clause="RECUR-10",
    draw=_draw,
    first=_first,
    mistakes=MISTAKES,
)

MEMBER = Member(
    source="fla-core 0.6.0, ops/mesa_net/naive.py, exact",
    program=PROGRAM,
    evaluate=_evaluate,
    words={"lamb": "ridge", "beta": "weight", "G": "G", "state": "M"},
)
