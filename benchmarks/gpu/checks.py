"""Checks before timing: every form on the device against NumPy and the sequential rule in float64.

Small sizes, since the sequential rule runs on the host. The first comparison is of the same
operations in another order (REORDERED); the second says that the form computes the rule, on this
device, and is what lets it be the truth at large sizes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from atlas_ref import backend
from benchmarks import memories
from benchmarks.gpu.devices import Device
from benchmarks.gpu.plan import Subject
from benchmarks.gpu.results import Check
from benchmarks.measure import relative_error
from benchmarks.memories import Memory, gradient_error

HEADS, D, TOKENS = 2, 32, 96
#: Largest factor by which Newton-Schulz magnifies a relative change of its argument: the slope of
#: five Muon steps at 0.
NEWTON_SCHULZ = 485.0
#: Largest difference of a form from the sequential rule in float64: the bound of the tests of the
#: forms.
FORM, FORM_WITH_NEWTON_SCHULZ = 1e4, 1e7


def reordered(dtype: Any, amplification: float) -> float:
    """The bound REORDERED: 8 eps times the length of the sums times what the rule amplifies
    (specs/notation.md).
    """
    return 8 * float(np.finfo(dtype).eps) * amplification


def checks(subjects: Iterable[Subject], device: Device) -> list[Check]:
    """Every form of every subject, reads and gradients, in float32 and float64."""
    found: list[Check] = []
    for subject in subjects:
        memory = memories.sized(subject.memory, D)
        forms = dict.fromkeys(str(each.form) for each in subject.candidates if each.ours)
        true = _on_numpy(memory, "rule", np.float64)
        for form in forms:
            found += _one(subject.name, memory, form, true, device)
    return found


def _one(name: str, memory: Memory, form: str, true: Any, device: Device) -> list[Check]:
    solves = memory.config.convention.has_newton_schulz
    made: list[Check] = []
    for dtype in (np.float64, np.float32):
        ours = _on_device(memory, form, dtype, device)
        same = _on_numpy(memory, form, dtype)
        bound = reordered(dtype, TOKENS * (NEWTON_SCHULZ if solves else 1.0))
        made += _pair(name, form, dtype, "NumPy", ours, same, bound)
        if dtype is np.float64:
            bound = reordered(dtype, FORM_WITH_NEWTON_SCHULZ if solves else FORM)
            made += _pair(name, form, dtype, "float64 sequential", ours, true, bound)
    return made


def _pair(
    name: str, form: str, dtype: Any, against: str, got: Any, want: Any, bound: float
) -> list[Check]:
    errors = {
        "reads": relative_error(got[0], want[0]),
        "gradients": gradient_error(got[1], want[1]),
    }
    kind = np.dtype(dtype).name
    return [
        Check(name, form, what, kind, against, off if np.isfinite(off) else np.inf, bound)
        for what, off in errors.items()
    ]


def _given(memory: Memory, dtype: Any) -> tuple[dict[str, Any], Any]:
    """float32 numbers for either format, so that both see the same problem."""
    bar = np.random.default_rng(1).standard_normal((HEADS, TOKENS, D), np.float32)
    return memories.sequence(memory, TOKENS, dtype, heads=HEADS), bar.astype(dtype)


def _on_numpy(memory: Memory, form: str, dtype: Any) -> tuple[Any, dict[str, Any]]:
    with backend.used("numpy"):
        return memories.both(memory, *_given(memory, dtype), form)


def _on_device(memory: Memory, form: str, dtype: Any, device: Device) -> tuple[Any, dict[str, Any]]:
    arrays, bar = _given(memory, dtype)
    y, gradient = memories.both(
        memory, {name: device.ours(each) for name, each in arrays.items()}, device.ours(bar), form
    )
    return device.host(y), {name: device.host(each) for name, each in gradient.items()}
