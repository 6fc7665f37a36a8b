"""Members of the linear family on balls, a function for each formula of an erase (CERT-18).

Written from DPLR-8 and DPLRCASE-3. `MEMBERS` holds every member that certify has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from atlas_ref.certify.matrix import Matrix, hadamard, scaled

#: A tensor of the row by its name, None where the case has none.
Row = Callable[[str], Matrix | None]


class Write(NamedTuple):
    """M <- D - diag(rate) (F read) along^T + value key^T (DPLR-2, DPLR-3).

    D is the decayed memory, and F the memory in which the erase reads.

    Attributes:
        value: what is written along the key.
        read, along: vectors of the erase; None for no erase.
        rate: factor of the erase, a number or one for each value; None for 1.
    """

    value: Matrix
    read: Matrix | None = None
    along: Matrix | None = None
    rate: Matrix | None = None


Formula = Callable[[Row, Matrix, Matrix], Write]


class Member(NamedTuple):
    """One member of the family (DPLRCASE-3).

    Attributes:
        formula: (row, key, value) -> the write of a row.
        decay, query_scale, norm: values of parameters that a case leaves open.
        heads: whether head h has the gate 1 - 2^(-5-h).
        sums: whether a read is divided by what its query finds in the sum of keys (DPLR-19).
        squares: whether pairs are written along preconditioned keys (DPLR-20).
        momentum: whether the error of a token is taken in by a momentum (DPLR-21).
        floor: least length that a norm divides by; 0 for eps under the root.
    """

    formula: Formula
    decay: Literal["after_error", "before_error"] = "after_error"
    query_scale: Any = "1/sqrt(d_in)"
    norm: str = "none"
    heads: bool = False
    sums: bool = False
    squares: bool = False
    momentum: bool = False
    floor: float = 0.0


def _needed(row: Row, name: str) -> Matrix:
    """A tensor that the reader has found in every case of the member."""
    tensor = row(name)
    assert tensor is not None
    return tensor


def plain(row: Row, key: Matrix, value: Matrix) -> Write:
    """No erase."""
    return Write(value)


def given(row: Row, key: Matrix, value: Matrix) -> Write:
    """Both vectors of the erase and the factors of its rows as the case gives them, or none."""
    return Write(value, *(row(f"in/erase_{name}") for name in ("read", "write", "scale")))


def error(row: Row, key: Matrix, value: Matrix) -> Write:
    """rate (v - F k) along the key, with the rate in in/beta."""
    rate = _needed(row, "in/beta")
    return Write(scaled(rate, value), key, key, rate)


def comba(row: Row, key: Matrix, value: Matrix) -> Write:
    """rate (v - F p) along the key, with p the erase key."""
    return error(row, key, value)._replace(read=_needed(row, "in/erase_key"))


def gates(row: Row, key: Matrix, value: Matrix) -> Write:
    """A gate per channel on each of both: g v is written, and e k reads what is taken away."""
    read = hadamard(_needed(row, "in/erase_gate"), key)
    return Write(hadamard(_needed(row, "in/write_gate"), value), read, key)


def low_rank(row: Row, key: Matrix, value: Matrix) -> Write:
    """(F a) b^T is added, with a in in/alpha and b in in/beta."""
    return Write(value, -_needed(row, "in/alpha"), _needed(row, "in/beta"))


def kk(row: Row, key: Matrix, value: Matrix) -> Write:
    """F kk is taken away along kk times a, channel by channel."""
    read = _needed(row, "in/kk")
    return Write(value, read, hadamard(read, _needed(row, "in/a")))


_DELTA = Member(error, "before_error")

#: Name of a member -> its row; None for the tensors of the rule.
MEMBERS: dict[str | None, Member] = {
    None: Member(given, query_scale=1),
    "linear_attn": Member(plain),
    "retention": Member(plain, heads=True),
    "simple_gla": Member(plain),
    "gla": Member(plain),
    "rwkv6": Member(plain),
    "rwkv7": Member(kk, query_scale=1),
    "delta": Member(error),
    "gated_delta": _DELTA,
    "kda": _DELTA,
    "gated_delta_product": _DELTA,
    "gdn2": Member(gates, "before_error"),
    "comba_decay_after_erase": Member(comba),
    "comba_decay_before_erase": Member(comba, "before_error"),
    "iplr": Member(low_rank),
    "dplr": Member(low_rank),
    "qwen3_next": _DELTA._replace(norm="l2"),
    "kimi_linear": _DELTA._replace(norm="l2"),
    "linear_attn_normalized": Member(plain, sums=True),
    "precond_kda": _DELTA._replace(squares=True),
    "momentum_delta": Member(plain, momentum=True),
    "precond_gated_delta": _DELTA._replace(squares=True, norm="l2", floor=1e-12),
}
