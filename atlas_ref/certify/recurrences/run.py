"""A sequence of rule recurrence on balls, token by token, each member written out (RECUR-17).

Written from RECUR-1 to RECUR-3, RECUR-5, RECUR-10 to RECUR-12 and SHORT-1 to SHORT-3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flint import arb

from atlas_ref.certify.functions import activated, exponentials, inverse, softmax, summed
from atlas_ref.certify.inputs import Inputs
from atlas_ref.certify.matrix import (
    Matrix,
    each,
    filled,
    hadamard,
    mark,
    sane,
    scaled,
    solved,
    total,
    zeros,
)
from atlas_ref.certify.run import Results

#: Parameters that a case leaves open (RECUR-5).
DEFAULTS: dict[str, Any] = {
    "query_scale": "1/sqrt(d_in)",
    "state_layout": "(d_out, d_in)",
    "mini_batch": 16,
    "norm_eps": 1e-6,
    "groups": 1,
    "position": 0,
    "activation": "none",
    "columns": "W-1",
    "reset_to": "zero",
}


class Sequence:
    """One head of one sequence, a value head where several share a key.

    Args:
        index: its place in the leading axes of values.

    Attributes:
        count: number of its tokens.
        marks: of each token, its place in the sequence of all matrices.
    """

    def __init__(
        self, header: Any, convention: Any, inputs: Inputs, index: tuple[int, ...]
    ) -> None:
        self.inputs, self.index = inputs, index
        self.s = {**DEFAULTS, **(header.parameters or {})}
        rows = "in/x" if "in/x" in inputs else "in/v"
        self.count, self.d_out = inputs.shape(rows)[-2:]
        self.d_in = inputs.shape("in/k")[-1] if "in/k" in inputs else self.d_out
        self.marks: list[int] = []

    def run(self, watch: Callable[[str, int], None] = lambda kind, done: None) -> Results:
        """Run every token in turn (RECUR-1).

        Args:
            watch: called before each token with how many were done (CERT-16).
        """

        def tokens() -> Any:
            for t in range(self.count):
                watch("tokens", t)
                self.marks.append(mark())
                starts = self.inputs.flag("in/reset", t, False)
                yield t, starts, self.inputs.flag("in/active", t, True)

        results: Results = MEMBERS[self.s["member"]](self, tokens())
        return results

    # -- tensors -----------------------------------------------------------------------------------

    def row(self, name: str, t: int) -> Matrix:
        """A tensor of this head at a token."""
        return self.inputs.get(f"in/{name}", *self.index, t)

    def of_key(self, name: str, t: int) -> Matrix:
        """A key or query at a token, of the key head of this value head (DPLR-6)."""
        place = self.index
        if self.s["groups"] > 1:
            place = (*place[:-1], place[-1] // self.s["groups"])
        return self.inputs.get(f"in/{name}", *place, t)

    def of_memory(self, name: str, behind: int = 1) -> Matrix:
        """A tensor of the memory, by as many last leading axes as it has before those of its own."""
        axes = len(self.inputs.shape(f"in/{name}")) - behind
        return self.inputs.get(f"in/{name}", *self.index[len(self.index) - axes :])

    def asked(self, t: int) -> Matrix:
        """A query times its factor."""
        q = self.of_key("q", t)
        return q if self.s["query_scale"] == 1 else q.times(1 / arb(q.rows).sqrt())

    def gate(self, t: int) -> Matrix:
        """A number, or a column."""
        return exponentials(self.row("log_retain", t))

    def laid(self, matrix: Matrix) -> Matrix:
        """A matrix of the state converted to or from the layout of the case."""
        return matrix.T if self.s["state_layout"] == "(d_in, d_out)" else matrix


def gsa(x: Sequence, tokens: Any) -> Results:
    """Two memories of slots, and a softmax over them between (RECUR-2).

    K <- diag(w) K + s k^T, M <- M diag(w) + v s^T, y = M softmax(c K q)
    """
    slots = x.inputs.shape("in/s")[-1]
    first = (_laid_first(x, "K", slots, x.d_in), _laid_first(x, "M", x.d_out, slots))
    (K, M), reads = first, []
    for t, starts, active in tokens:
        K, M = first if starts else (K, M)
        if active:
            w, s = x.gate(t), x.row("s", t)
            K = sane(scaled(w, K) + s @ x.row("k", t).T)
            M = sane(scaled(w, M.T).T + x.row("v", t) @ s.T)
        reads.append(M @ softmax(K @ x.asked(t)))
    return {"out/y": reads, "out/K": x.laid(K), "out/M": x.laid(M)}


def hgrn(x: Sequence, tokens: Any) -> Results:
    """h <- w h + x, y = h (RECUR-3)."""
    given = x.inputs.optional("in/h0", *x.index)
    h = first = zeros(x.d_out, 1) if given is None else given
    reads = []
    for t, starts, active in tokens:
        h = first if starts else h
        h = sane(hadamard(x.gate(t), h) + x.row("x", t)) if active else h
        reads.append(h)
    return {"out/y": reads, "out/h": h}


def mesa(x: Sequence, tokens: Any) -> Results:
    """Sums over keys, and a system that each read solves (RECUR-10).

    G <- w G + b k k^T, M <- w M + b v k^T, y = M (G + diag(ridge))^-1 q
    """
    given = x.inputs.optional("in/G0", *x.index)
    G = zeros(x.d_in, x.d_in) if given is None else given
    M, reads = _laid_first(x, "M", x.d_out, x.d_in), []
    first, ridge = (G, M), _diagonal(x.of_memory("ridge"))
    for t, starts, active in tokens:
        G, M = first if starts else (G, M)
        if active:
            w, key = x.gate(t), scaled(x.row("weight", t), x.row("k", t))
            G = sane(scaled(w, G) + x.row("k", t) @ key.T)
            M = sane(scaled(w, M) + x.row("v", t) @ key.T)
        reads.append(M @ solved(G + ridge, x.of_key("q", t)))
    return {"out/y": reads, "out/G": G, "out/M": x.laid(M)}


def ttt_linear(x: Sequence, tokens: Any) -> Results:
    """One step along the sum of gradients of a mini-batch, all taken at its start (RECUR-11)."""
    gain, shift, d = x.of_memory("gain"), x.of_memory("shift"), x.d_in
    given = x.inputs.optional("in/bias0", *x.index)
    start = first = (_laid_first(x, "M", d, d), zeros(d, 1) if given is None else given)
    M, bias = start
    slopes: list[tuple[Matrix, Matrix]] = []  # of each token of the mini-batch, with its key
    reads = []
    for t, starts, active in tokens:
        if starts:
            start, slopes = first, []
            M, bias = first
        if active:
            if len(slopes) == x.s["mini_batch"]:
                start, slopes = (M, bias), []
            k = x.row("k", t)
            hat, deviation = _normed(x, start[0] @ k + start[1])
            g = hadamard(hadamard(hat, gain) + shift - (x.row("v", t) - k), gain)
            along = _mean(hadamard(g, hat))
            u = scaled(inverse(deviation), g - _spread(_mean(g), d) - scaled(along, hat))
            slopes.append((u, k))
            step = x.row("step_size", t)
            M = sane(start[0] - scaled(step, total([u @ k.T for u, k in slopes], d, d)))
            bias = sane(start[1] - scaled(step, total([u for u, _ in slopes], d, 1)))
        o = M @ x.asked(t) + bias
        reads.append(o + hadamard(_normed(x, o)[0], gain) + shift)
    return {"out/y": reads, "out/M": x.laid(M), "out/bias": bias}


def log_linear(x: Sequence, tokens: Any) -> Results:
    """Past tokens by the bits in which their number differs from the present one (RECUR-12)."""
    levels, last = x.inputs.shape("in/level_scales")[-1], x.s["position"] - 1
    earlier = []
    for level in range(levels if x.s["position"] else 0):
        if level == 0 or last >> (level - 1) & 1:
            token = last if level == 0 else last ^ (1 << (level - 1))
            earlier.append((token, _laid_first(x, "M", x.d_out, x.d_in, level)))
    past, here, reads = earlier, last, []
    for t, starts, active in tokens:
        past, here = (earlier, last) if starts else (past, here)
        if active:
            w, here = x.gate(t), here + 1
            pair = x.row("v", t) @ x.of_key("k", t).T
            past = [(s, sane(scaled(w, each_))) for s, each_ in past] + [(here, pair)]
        factors = x.row("level_scales", t)
        found = [
            scaled(_entry(factors, (here ^ s).bit_length()), each_ @ x.asked(t))
            for s, each_ in past
        ]
        reads.append(total(found, x.d_out, 1))
    by_level = [
        total([each_ for s, each_ in past if (here ^ s).bit_length() == n], x.d_out, x.d_in)
        for n in range(levels)
    ]
    return {"out/y": reads, "out/M": [x.laid(each_) for each_ in by_level]}


def short_conv(x: Sequence, tokens: Any) -> Results:
    """A sum over the last inputs of each channel (SHORT-1).

    y = act(sum_j w_j x_{t - W + 1 + j} + bias)
    """
    w = x.of_memory("w", behind=2)
    bias = x.of_memory("bias") if "in/bias" in x.inputs else zeros(x.d_out, 1)
    taps = w.columns
    columns = taps - 1 if x.s["columns"] == "W-1" else taps
    window = _laid_first(x, "window", x.d_out, columns)
    first = [window @ _unit(columns, j) for j in range(columns)]
    fresh = first if x.s["reset_to"] == "first" else [zeros(x.d_out, 1)] * columns
    past, reads = first, []
    for t, starts, active in tokens:
        past = fresh if starts else past
        if not active:
            reads.append(zeros(x.d_out, 1))
            continue
        past = [*past, x.row("x", t)]
        terms = [hadamard(w @ _unit(taps, taps - 1 - i), past[-1 - i]) for i in range(taps)]
        total_ = total(terms, x.d_out, 1) + bias
        reads.append(activated(total_, "silu") if x.s["activation"] == "silu" else total_)
        past = past[-columns:]
    last = total([each_ @ _unit(columns, j).T for j, each_ in enumerate(past)], x.d_out, columns)
    return {"out/y": reads, "out/window": x.laid(last)}


MEMBERS: dict[str, Callable[[Sequence, Any], Results]] = {
    "gsa": gsa,
    "hgrn": hgrn,
    "mesa": mesa,
    "ttt_linear": ttt_linear,
    "log_linear": log_linear,
    "short_conv": short_conv,
}


def _laid_first(x: Sequence, name: str, rows: int, columns: int, *more: int) -> Matrix:
    """A first matrix as the rule has it, zero unless given."""
    given = x.inputs.optional(f"in/{name}0", *x.index, *more)
    return zeros(rows, columns) if given is None else x.laid(given)


def _diagonal(column: Matrix) -> Matrix:
    """The matrix with a column on its diagonal."""
    n = column.rows
    ones = [arb(int(i == j)) for i in range(n) for j in range(n)]
    return scaled(column, Matrix(filled(n, n, ones)))


def _entry(column: Matrix, i: int) -> Matrix:
    """One entry of a column, 1 x 1."""
    ones = [arb(int(i == j)) for j in range(column.rows)]
    return Matrix(filled(1, column.rows, ones)) @ column


def _unit(rows: int, place: int) -> Matrix:
    """A column with a 1 in one row."""
    return Matrix(filled(rows, 1, [arb(int(i == place)) for i in range(rows)]))


def _mean(column: Matrix) -> Matrix:
    return summed(column).times(arb(1) / column.rows)


def _spread(number: Matrix, rows: int) -> Matrix:
    """A number in every row of a column."""
    return Matrix(filled(rows, 1, [arb(1)] * rows)) @ number


def _normed(x: Sequence, z: Matrix) -> tuple[Matrix, Matrix]:
    """z without its mean over its deviation, and that."""
    centred = z - _spread(_mean(z), z.rows)
    squares = _mean(hadamard(centred, centred)).plus(arb(x.s["norm_eps"]))
    deviation = each(squares, lambda a: a.sqrt(), lambda a: 1 / (2 * a.sqrt()))
    return scaled(inverse(deviation), centred), deviation
