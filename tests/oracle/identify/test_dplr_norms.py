"""A norm with an eps under its root where the member has a least length, by a program by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.identify.identify import identify

WORDS = "a norm had an eps of 1e-6 under its root in place of a least length"


def case() -> Case:
    sizes = {"tokens": 12, "d_in": 4, "d_out": 3, "heads": 2, "seed": 4}
    return new(Request(rule="dplr", draw=1, parameters={"member": "precond_gated_delta"}, **sizes))


def by_hand(of: Case, *, eps: float = 0.0) -> dict[str, Any]:
    """Reads of the preconditioned gated delta rule (DPLR-20), keys and queries under a norm."""
    x = {name.removeprefix("in/"): np.asarray(value) for name, value in of.inputs.items()}
    k, q = (x[n] / np.sqrt((x[n] ** 2).sum(-1, keepdims=True) + eps) for n in ("k", "q"))
    heads, tokens, d_in = k.shape
    M = x["M0"] if "M0" in x else np.zeros((heads, x["v"].shape[-1], d_in))
    A = x["A0"] if "A0" in x else np.zeros((heads, d_in))
    y = np.zeros_like(x["v"])
    gates = x["retain"] if "retain" in x else np.exp(x["log_retain"])
    gates = gates[..., None] if gates.ndim == 2 else gates  # of a head, or of its channels
    for t in range(tokens):
        A = np.exp(x["log_retain_precond"][:, t, None]) * A
        A = A + x["beta_precond"][:, t, None] * k[:, t] ** 2
        r = np.log(A + 1e-6) + 0.2
        written = k[:, t] * 1.5 ** (-r / (1 + np.abs(r)))
        M = M * gates[:, t, None]
        change = x["v"][:, t] - np.einsum("hoi,hi->ho", M, k[:, t])
        M = M + np.einsum("h,ho,hi->hoi", x["beta"][:, t], change, written)
        y[:, t] = np.einsum("hoi,hi->ho", M, q[:, t]) / np.sqrt(d_in)
    return {"out/y": y, "out/M": M, "out/A": A}


def test_the_program_by_hand_is_right_without_an_eps() -> None:
    of = case()
    for name, value in by_hand(of).items():
        np.testing.assert_allclose(value, evaluate(of).tensors[name], rtol=1e-11, atol=1e-13)


@pytest.mark.clause("DPLRCASE-25", "IDENT-17")
def test_an_eps_under_the_root_is_named() -> None:
    answer = identify(case(), by_hand(case(), eps=1e-6), depth=1)
    # the search asks the first tokens alone, as short as what a last memory may lack
    assert (answer.verdict, answer.failed) == ("NO MATCH", ())
    assert WORDS in [each.words for each in answer.departures]
