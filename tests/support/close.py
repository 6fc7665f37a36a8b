"""Named tolerances, and the one comparison that every test uses."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Tolerance(NamedTuple):
    """A relative bound on ||got - want|| / ||want|| (absolute where want is 0); None for the same
    bits.
    """

    name: str
    bound: float | None


EXACT = Tolerance("EXACT", None)  # on another backend than NumPy REORDERED(64)
ANALYTIC = Tolerance("ANALYTIC", 1e-12)
FINITE_DIFFERENCE = Tolerance("FINITE_DIFFERENCE", 1e-6)


class Elsewhere:
    """Whether the tests compute on another backend, whose products may sum in another order
    (BACKEND-11).
    """

    yes = False


def reordered(length: int, *, dtype: Any = np.float64, amplification: float = 1.0) -> Tolerance:
    """A bound for the same sum in another order.

    A few units in the last place per term, times the amplification by the rule.
    """
    return Tolerance(
        f"REORDERED({length})", 8 * float(np.finfo(dtype).eps) * length * amplification
    )


def relative_error(got: Any, want: Any) -> float:
    """||got - want|| / ||want||, or ||got|| where want is 0; scaled first, so that squares neither
    overflow nor vanish.
    """
    got, want = np.asarray(got), np.asarray(want)
    top = float(np.max(np.abs(want), initial=0.0))
    if top == 0.0 or not np.isfinite(top):
        return float(np.linalg.norm(got - want))
    return float(np.linalg.norm((got - want) / top) / np.linalg.norm(want / top))


def assert_close(name: str, got: Any, want: Any, tolerance: Tolerance) -> None:
    """Fail with label, worst index, absolute and relative error."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape, f"{name}: shape {got.shape}, expected {want.shape}"
    if tolerance.bound is None and Elsewhere.yes and got.dtype.kind in "fc":
        tolerance = reordered(64, dtype=got.dtype)
    if tolerance.bound is None:
        assert got.dtype == want.dtype, f"{name}: dtype {got.dtype}, expected {want.dtype}"
        same = got.tobytes() == want.tobytes()
    else:
        same = bool(relative_error(got, want) <= tolerance.bound)
    if not same:
        gap = np.abs(got - want)
        worst = (
            np.unravel_index(int(np.argmax(np.where(np.isnan(gap), np.inf, gap))), gap.shape)
            if gap.size
            else ()
        )
        place = tuple(int(i) for i in worst)
        raise AssertionError(
            f"{name}: not within {tolerance.name} {tolerance.bound}: worst at {place}: got "
            f"{got[worst]!r}, want {want[worst]!r}, "
            f"absolute {gap[worst]:.3e}, relative (norms) {relative_error(got, want):.3e}"
        )


def assert_differs(name: str, got: Any, want: Any, least: float) -> None:
    """Fail where two things that must differ are closer than `least`, relative."""
    error = relative_error(got, want)
    assert error > least, f"{name}: relative distance {error:.3e}, expected more than {least:g}"
