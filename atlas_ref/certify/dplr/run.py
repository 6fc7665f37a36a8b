"""A sequence of rule dplr on balls, token by token (CERT-18).

Written from DPLR-1 to DPLR-7, DPLR-19 to DPLR-21, DPLRCASE-2 to DPLRCASE-5, DPLRCASE-16, DPLRCASE-17.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from flint import arb

from atlas_ref.certify.dplr import formulas
from atlas_ref.certify.dplr.members import MEMBERS
from atlas_ref.certify.functions import exponentials, inverse, normalised
from atlas_ref.certify.inputs import Inputs
from atlas_ref.certify.matrix import Matrix, each, hadamard, mark, number, sane, scaled, zeros
from atlas_ref.certify.run import Results

#: Parameters that a case leaves open (DPLRCASE-2); the others are the member's.
DEFAULTS: dict[str, Any] = {
    "member": None,
    "steps": 1,
    "groups": 1,
    "group_order": "blocks",
    "masked_read": "memory",
    "query_groups": 1,
    "norm_eps": 1e-6,
    "state_layout": "(d_out, d_in)",
    # how others store their state and cumulate gates, on which certified results do not depend
    "state_dtype": None,
    "state_every": 1,
    "log_chunk": None,
    **formulas.DEFAULTS,
}

#: What is added to the divisor of a normalised read: the float64 nearest to it (DPLR-19).
EPS = arb(1e-10)

#: Parameters whose default is that of the member.
OWN = ("decay", "query_scale", "q_norm", "k_norm")


def settings_of(header: Any) -> dict[str, Any]:
    """The parameters of a case, with those that it leaves open."""
    stated = {name: x for name, x in (header.parameters or {}).items() if x is not None}
    settings = {**DEFAULTS, **stated}
    member = MEMBERS[settings["member"]]
    of_member = (member.decay, member.query_scale, member.norm, member.norm)
    return {**dict(zip(OWN, of_member, strict=True)), **settings}


def refusal(header: Any) -> str:
    """Why a case cannot be certified, and what to do instead; "" where it can (CERT-18)."""
    stated = header.parameters or {}
    instead = "is not yet supported; tolerance measures how results round"
    if stated.get("member") not in MEMBERS:
        return f"parameters.member: certify of {stated['member']} {instead}"
    if MEMBERS[stated.get("member")].squares and stated.get("groups", 1) != 1:
        return f"parameters.groups: certify of {stated['member']} with groups {instead}"
    if stated.get("query_groups", 1) != 1:
        return f"parameters.query_groups: certify of several queries a memory {instead}"
    unknown = [name for name in stated if name not in (*DEFAULTS, *OWN)]
    return f"parameters.{unknown[0]}: certify under it {instead}" if unknown else ""


#: Memory, momentum, sum of keys and sum of squares; None where a member has none.
State = tuple[Matrix, Matrix, Matrix | None, Matrix | None]


class _Norm(NamedTuple):
    """x / sqrt(sum x^2 + eps), or x over a length of at least eps, for `functions.normalised`."""

    norm_eps: float
    norm_guard: str = "root"


class Sequence:
    """One value head of one sequence.

    Args:
        index: its place in the leading axes of values.

    Attributes:
        count: number of its tokens.
        marks: of each token, its place in the sequence of all matrices.
    """

    def __init__(
        self, header: Any, convention: Any, inputs: Inputs, index: tuple[int, ...]
    ) -> None:
        self.inputs, self.index, self.s = inputs, index, settings_of(header)
        self.member = MEMBERS[self.s["member"]]
        self.steps = self.s["steps"]
        self.key_index = index if self.s["groups"] == 1 else self._key_head()
        self.d_in, self.d_out = (inputs.shape(name)[-1] for name in ("in/k", "in/v"))
        self.count = inputs.shape("in/q")[-2]
        self.marks: list[int] = []

    def _key_head(self) -> tuple[int, ...]:
        """Value head i has key head i // G, or i mod H (DPLR-6, DPLRCASE-26)."""
        heads, head = self.inputs.shape("in/k")[-3], self.index[-1]
        blocks = self.s["group_order"] == "blocks"
        return (*self.index[:-1], head // self.s["groups"] if blocks else head % heads)

    def laid(self, matrix: Matrix) -> Matrix:
        """A memory converted to or from the layout of the file."""
        return matrix.T if self.s["state_layout"] == "(d_in, d_out)" else matrix

    def run(self, watch: Callable[[str, int], None] = lambda kind, done: None) -> Results:
        """Run every token in turn: reset, decay, erases and writes, read (DPLR-7).

        Args:
            watch: called before each token with how many were done (CERT-16).
        """
        first, first_S = self.first("in/M0"), self.first("in/S0")
        M, S, z, A, reads = first, first_S, self.first_sum(), self.first_squares(), []
        for t in range(self.count):
            watch("tokens", t)
            self.marks.append(mark())
            if self.inputs.flag("in/reset", t, False, self.index):
                M, S, z, A = first, first_S, self.first_sum(), self.first_squares()
            if self.active(t) or self.s["masked_read"] == "memory":
                state = self.after((M, S, z, A), t) if self.active(t) else (M, S, z, A)
                reads.append(self.seen(M, state, t, self.active(t)))
                M, S, z, A = state
            elif self.s["masked_read"] == "written":
                reads.append(self.seen(M, self.after((M, S, z, A), t), t, True))
            else:
                reads.append(zeros(self.d_out, 1))
        momentum = self.laid(S) if self.member.momentum else None
        seconds = {"out/z": z, "out/A": A, "out/S": momentum}
        own: Results = {name: state for name, state in seconds.items() if state is not None}
        return {"out/y": reads, "out/M": self.laid(M), **own}

    def active(self, t: int) -> bool:
        """Whether a token writes, by the mask of all rows or by that of its row (DPLRCASE-27)."""
        return self.inputs.flag("in/active", t, True, self.index)

    def after(self, state: State, t: int) -> State:
        """What a token that writes leaves of M, S, z and A."""
        M, S, z, A = state
        A, z = self.squared(A, t), self.summed(z, t)
        M, S = self.moved(M, S, t) if self.member.momentum else (self.token(M, t, A), S)
        return M, S, z, A

    def seen(self, before: Matrix, state: State, t: int, active: bool) -> Matrix:
        """The read of a token, from the memory before it and the state behind it."""
        M, _, z, _ = state
        read = self.read(before if "in/bonus" in self.inputs else M, t, active)
        return read if z is None else self.divided(read, z, t)

    def first(self, name: str) -> Matrix:
        """The memory or the momentum before the first token."""
        given = self.inputs.optional(name, *self.index)
        return zeros(self.d_out, self.d_in) if given is None else self.laid(given)

    def moved(self, M: Matrix, S: Matrix, t: int) -> tuple[Matrix, Matrix]:
        """M and S behind a token with momentum (DPLR-21)."""
        gate, at = self.gate(t), (*self.index, t)
        decayed = M if gate is None else decay(gate, M)
        of = M if self.s["decay"] == "after_error" else decayed
        error = of @ self.inputs.get("in/erase_key", *at) - self.inputs.get("in/v", *at)
        change = scaled(self.inputs.get("in/eta", *at), error) @ self.key("in/k", t).T
        S = sane(scaled(exponentials(self.inputs.get("in/log_momentum", *at)), S) + change)
        rate = self.row("in/beta", t)
        assert rate is not None
        return sane(decayed - scaled(rate, S)), S

    def first_squares(self) -> Matrix | None:
        """A before the first token; None where keys are written as they are (DPLR-20)."""
        if not self.member.squares:
            return None
        given = self.inputs.optional("in/A0", *self.key_index)
        return zeros(self.d_in, 1) if given is None else given

    def squared(self, A: Matrix | None, t: int) -> Matrix | None:
        """A after the squares of a key (DPLR-20)."""
        if A is None:
            return None
        key = self.key("in/k", t)
        gate, rate = (
            self.inputs.get(f"in/{name}_precond", *self.key_index, t)
            for name in ("log_retain", "beta")
        )
        return scaled(exponentials(gate), A) + scaled(rate, hadamard(key, key))

    def first_sum(self) -> Matrix | None:
        """The sum of keys before the first token; None for reads that nothing divides (DPLR-19)."""
        if not self.member.sums:
            return None
        given = self.inputs.optional("in/z0", *self.index)
        return zeros(self.d_in, 1) if given is None else given

    def summed(self, z: Matrix | None, t: int) -> Matrix | None:
        """The sum with the keys of a token (DPLR-19)."""
        for j in range(t * self.steps, (t + 1) * self.steps):
            z = None if z is None else z + self.key("in/k", j)
        return z

    def divided(self, read: Matrix, z: Matrix, t: int) -> Matrix:
        """A read over s z.q + eps (DPLR-19)."""
        return scaled(inverse(self.scaled(z.T @ self.key("in/q", t)).plus(EPS)), read)

    def token(self, M: Matrix, t: int, A: Matrix | None = None) -> Matrix:
        """M behind a token: one decay, and an erase and a write of each of its rows (DPLR-4)."""
        gate = self.gate(t)
        for j in range(t * self.steps, (t + 1) * self.steps):
            M = sane(self.written(M, j, gate if j == t * self.steps else None, A))
        return M

    def written(self, M: Matrix, j: int, gate: Matrix | None, A: Matrix | None = None) -> Matrix:
        """M behind the erase and the write of a row (DPLR-2, DPLR-3)."""
        key, value = self.key("in/k", j), self.inputs.get("in/v", *self.index, j)
        write = self.member.formula(lambda name: self.row(name, j), key, value)
        if A is not None:
            key = hadamard(factors(A), key)
            write = write._replace(along=key)
        decayed = M if gate is None else decay(gate, M)
        after = decayed + write.value @ key.T
        if write.read is None or write.along is None:
            return after
        found = (M if self.s["decay"] == "after_error" else decayed) @ write.read
        taken = found if write.rate is None else scaled(write.rate, found)
        return after - taken @ write.along.T

    def row(self, name: str, j: int) -> Matrix | None:
        """A tensor of row j of this value head; a step size of raw numbers by its formula."""
        if name == "in/beta" and self.s["beta_formula"] is not None:
            return formulas.rate(self.s, self.inputs.get("in/beta_input", *self.index, j))
        return self.inputs.optional(name, *self.index, j)

    def key(self, name: str, j: int) -> Matrix:
        """A key or query under its norm, from its own head (DPLR-6, DPLRCASE-2)."""
        kind = self.s["k_norm" if name == "in/k" else "q_norm"]
        x = self.inputs.get(name, *self.key_index, j)
        floor = self.member.floor
        norm = _Norm(floor, "clamp") if floor else _Norm(self.s["norm_eps"])
        return normalised(x, kind, norm)

    def gate(self, t: int) -> Matrix | None:
        """The gate of a token, 1 x 1 or a column of channels; None for 1 (DPLR-1)."""
        if self.member.heads:
            head = self.index[-1] if self.index else 0
            return number(1 - arb(2) ** (-5 - head))
        if self.s["gate_formula"] is not None:
            return exponentials(formulas.log_gate(self.s, self.inputs, self.index, t))
        log = self.inputs.optional("in/log_retain", *self.index, t)
        return self.row("in/retain", t) if log is None else exponentials(log)

    def read(self, M: Matrix, t: int, active: bool) -> Matrix:
        """s M q, with a bonus s (M + v (u k)^T) q (DPLR-5)."""
        if active and "in/bonus" in self.inputs:
            axes = len(self.inputs.shape("in/bonus")) - 1
            bonus = self.inputs.get("in/bonus", *self.index[len(self.index) - axes :])
            value = self.inputs.get("in/v", *self.index, t)
            M = M + value @ hadamard(bonus, self.key("in/k", t)).T
        return self.scaled(M @ self.key("in/q", t))

    def scaled(self, y: Matrix) -> Matrix:
        """What a query finds, under its scale."""
        return y if self.s["query_scale"] == 1 else y.times(1 / arb(self.d_in).sqrt())


def factors(A: Matrix) -> Matrix:
    """1.5^(-r / (1 + |r|)) with r = log(A + 1e-6) + 0.2 (DPLR-20).

    The slope of r / (1 + |r|) is 1 / (1 + |r|)^2, at 0 too.
    """
    r = each(A.plus(arb(1e-6)), lambda x: x.log(), lambda x: 1 / x).plus(arb(0.2))
    share = each(r, lambda x: x / (1 + abs(x)), lambda x: 1 / (1 + abs(x)) ** 2)
    return exponentials(share.times(-arb(1.5).log()))


def decay(gate: Matrix, M: Matrix) -> Matrix:
    """M diag(w), or w M for one gate."""
    return scaled(gate, M) if gate.rows == 1 else scaled(gate, M.T).T
