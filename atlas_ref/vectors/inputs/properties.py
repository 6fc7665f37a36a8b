"""Properties of a vector without which some mistakes stay hidden, read off its numbers (VEC-5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.family.facts import facts
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.replay.trace import trace
from atlas_ref.oracle.sweep.first import tokens_of
from atlas_ref.oracle.sweep.split import places

Numbers = np.ndarray[Any, Any]

#: A singular value is as large as another if they differ by less than this, relative.
EQUAL = 1e-9

#: A momentum is tiny whose norm is below this, near the eps of Newton-Schulz.
TINY = 2.0**-20


class Look:
    """A case, its trace and its sizes, from which properties are computed."""

    def __init__(self, case: Case) -> None:
        self.case, self.header = case, case.header
        self.inputs: Mapping[str, Numbers] = {
            name: np.asarray(value, np.float64) for name, value in case.inputs.items()
        }
        self.sequence = SUBJECTS[case.header.rule].has_sequence
        self.traced = trace(case) if self.sequence else {}
        of = facts(case)
        self.T, self.d_out, self.d_phi = of.tokens, of.d_out, of.d_phi
        keys = self.inputs.get("in/k", self.inputs.get("in/param/W_K"))
        self.d_in = 0 if keys is None else keys.shape[-1 if "in/k" in self.inputs else -2]

    def gates(self) -> Numbers:
        """Every retain and momentum gate."""
        return np.concatenate(
            [
                np.zeros(0),
                *(
                    self.inputs[name].ravel()
                    for name in ("in/retain", "in/momentum")
                    if name in self.inputs
                ),
            ]
        )

    def varies(self, name: str) -> bool:
        """Whether a gate differs from token to token."""
        value = self.inputs.get(name)
        return value is not None and self.T > 1 and float(np.ptp(value)) > 0

    def unsymmetric(self, name: str) -> bool:
        """Whether matrices are there, not zero, and not their transposes."""
        value = self.inputs.get(name)
        if value is None or not np.any(value):
            return False
        return value.shape[-1] != value.shape[-2] or not np.array_equal(
            value, np.swapaxes(value, -1, -2)
        )

    def arguments(self) -> Numbers:
        """Arguments of Newton-Schulz, (matrices, d_out, d_phi)."""
        if not self.case.convention.has_newton_schulz:
            return np.zeros((0, 1, 1))
        argument = SUBJECTS[self.header.rule].argument
        if not argument and not self.traced:  # of a function: matrices of several shapes
            return np.zeros((0, 1, 1))
        matrices = self.inputs[argument] if argument else self.traced["trace/S"]
        return matrices.reshape(-1, *matrices.shape[-2:])


def _weights_by_token(look: Look) -> bool:
    weights = look.inputs.get("in/window_weights")
    if weights is None:
        return False
    by_lag = np.array_equal(weights, np.broadcast_to(weights[..., :1, :], weights.shape))
    uniform = np.array_equal(weights, np.broadcast_to(weights[..., :1], weights.shape))
    return not by_lag and not uniform


def _repeated(look: Look) -> bool:
    if look.T < 2 or "in/k" not in look.inputs:
        return False
    rows = look.inputs["in/k"].reshape(-1, look.T, look.inputs["in/k"].shape[-1])
    return any(len(np.unique(row, axis=0)) < look.T for row in rows)


def _zero_gradient(look: Look) -> bool:
    gradients = look.traced.get("trace/gradient")
    return gradients is not None and bool((np.abs(gradients).max(axis=(-2, -1)) == 0).any())


def _equal_values(look: Look) -> bool:
    S = look.arguments()
    if not len(S) or min(S.shape[-2:]) < 2:
        return False
    values = np.linalg.svd(S, compute_uv=False)
    return bool((np.abs(np.diff(values)) <= EQUAL * values[:, :1])[values[:, 0] > 0].any())


def _by_dimension(look: Look) -> bool:
    if "in/param/b_retain" in look.inputs:
        return bool(look.inputs["in/param/b_retain"].shape[-1] > 1)
    gates = [look.inputs[name] for name in ("in/retain", "in/step_size") if name in look.inputs]
    return look.sequence and any(gate.ndim == look.inputs["in/k"].ndim for gate in gates)


def _tiny(look: Look) -> bool:
    sizes = np.linalg.norm(look.arguments(), axis=(-2, -1))
    return bool(((sizes > 0) & (sizes < TINY)).any())


PROPERTIES: dict[str, Callable[[Look], bool]] = {
    "gates tell forget from retain": lambda look: bool(
        np.any(look.inputs.get("in/retain", np.full(1, 0.5)) != 0.5)
    ),
    "step sizes vary": lambda look: look.varies("in/step_size"),
    "momenta vary": lambda look: look.varies("in/momentum"),
    "M0 is not symmetric": lambda look: look.unsymmetric("in/M0"),
    "S0 is not symmetric": lambda look: look.unsymmetric("in/S0"),
    "d_in below d_out": lambda look: look.sequence and look.d_in < look.d_out,
    "d_in above d_out": lambda look: look.sequence and look.d_in > look.d_out,
    "d_out at least 3": lambda look: look.d_out >= 3,
    "d_out above d_phi": lambda look: look.d_out > look.d_phi > 0,
    "tokens not a multiple of the chunk": lambda look: any(
        look.T % form[1] for form in forms(look.case)
    ),
    "tokens below the chunk": lambda look: any(form[1] > look.T for form in forms(look.case)),
    "tokens below the window": lambda look: look.sequence and look.header.window > look.T,
    "tokens above the span above 1": lambda look: (
        look.header.span is not None and look.T > look.header.span > 1
    ),
    "a gate is 0": lambda look: bool(np.any(look.gates() == 0.0)),
    "a gate is 1": lambda look: bool(np.any(look.gates() == 1.0)),
    "weights are no function of the lag": _weights_by_token,
    "repeated keys": _repeated,
    "a zero gradient": _zero_gradient,
    "a tiny momentum": _tiny,
    "equal singular values": _equal_values,
    "split calls": lambda look: bool(places(look.case)),
    "pulses": lambda look: "in/active" in look.inputs,
    "resets": lambda look: "in/reset" in look.inputs,
    "an initial window": lambda look: "in/window_k" in look.inputs,
    "gates per output dimension": _by_dimension,
    "gradients": lambda look: any(
        name in look.inputs for name in ("in/y_bar", "in/X_bar", "in/phi_bar")
    ),
    "several heads": lambda look: any(
        name in look.inputs and look.inputs[name].shape[0] > 1
        for name in ("in/k", "in/G", "in/param/W_K")
    ),
}


def properties(case: Case) -> list[str]:
    """Names of the properties that a case has (VEC-5)."""
    look = Look(case)
    return [name for name, has in PROPERTIES.items() if has(look)]


def forms(case: Case) -> list[tuple[str, int]]:
    """Forms that compute a case, with a chunk that does not divide its tokens and one that is
    longer.
    """
    computing = [form for form in _computing(case) if form != "sequential"]
    if not computing:
        return []
    T = tokens_of(case)
    short = 64 if T > 64 and T % 64 else 3 if T % 3 else 2 if T % 2 else 5
    chunks = list(dict.fromkeys([short, T + 1]))
    return [(form, chunk) for form in computing for chunk in chunks]


def _computing(case: Case) -> Iterator[str]:
    """Forms that compute a case, by the rule's own check where it has one (DPLRCASE-13)."""
    subject = SUBJECTS[case.header.rule]
    for form in subject.tried_forms:
        with suppress(ValueError):
            subject.check_form(case, form, None)
            yield form
