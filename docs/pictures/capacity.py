"""Capacity without training: recalled pairs of rules, maps and settings, with their limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from atlas_ref.train.probes.capacity import LEAST_SQUARES, Settings
from atlas_ref.train.probes.curve import Point, curve
from atlas_ref.train.probes.limits import limit
from docs.pictures import style

#: Length of keys and of values, and draws of each point.
D, DRAWS = 16, 8
COUNTS = (1, 2, 4, 8, 10, 12, 14, 16, 17, 18, 20, 24, 28, 32)
PLAIN = {"newton_schulz": "none"}
#: Name of a curve -> its settings.
Curves = Mapping[str, Mapping[str, Any]]

RULES: Curves = {
    "Hebbian": {"memory": "hebbian"},
    "Delta, one pass": {"memory": "delta"},
    "Delta, 8 passes": {"memory": "delta", "passes": 8},
    "Delta, 64 passes": {"memory": "delta", "passes": 64, "form": "exact"},
    "least squares": {"memory": LEAST_SQUARES},
}
WINDOWS: Curves = {
    f"window {c}": {"memory": "omega", "convention": PLAIN, "parameters": {"window": c}}
    for c in (1, 4, 16)
} | {
    "window of all pairs": {
        "memory": "omega",
        "convention": PLAIN,
        "parameters": {"window": "pairs"},
    },
    "least squares": {"memory": LEAST_SQUARES},
}
STEPS: Curves = {
    (f"{steps} steps" if steps > 1 else "1 step" if steps else "none (Hebbian)"): {
        "memory": "omega",
        "period": "pairs",
        "convention": {"newton_schulz": {"steps": steps}, "rate": "memory"} if steps else PLAIN,
        "parameters": {"window": "pairs"},
    }
    for steps in (0, 1, 3, 5)
} | {"least squares": {"memory": LEAST_SQUARES}}
#: Length of keys for maps and deep memories, which hold more.
SHORT = 4
MAP_COUNTS = (1, 2, 4, 5, 6, 8, 12, 14, 15, 16, 20, 24, 28, 30, 31, 32, 34, 36, 40)
MAPS: Curves = {
    "identity": {},
    "elementwise, degree 2": {"feature_map": {"kind": "elementwise"}},
    "monomials, degree 2": {"feature_map": {"kind": "monomials"}},
    "polynomial, degree 3": {"feature_map": {"kind": "polynomial", "degree": 3}},
}
DEEP_COUNTS = (1, 2, 4, 6, 8, 10, 12, 16, 20)
DEEP: Curves = {
    "matrix": {"memory": LEAST_SQUARES},
} | {
    f"MLP, {expansion * SHORT} hidden units": {
        "memory": "deep_memory",
        "convention": PLAIN,
        "parameters": {
            "memory": {"kind": "mlp", "expansion": expansion},
            "chunk": "pairs",
            "reduction": "mean",
        },
        "momentum": 0.9,
        "step_size": 0.2,
        "passes": 300,
    }
    for expansion in (1, 2)
}


@cache
def measured(which: str) -> Mapping[str, tuple[int, tuple[Point, ...]]]:
    """Limit and points of each curve of a panel."""
    curves, counts, own = PANELS[which]
    found = {}
    for name, settings in curves.items():
        chosen = Settings.model_validate({"d_k": D, "d_v": D, **own, **settings})
        found[name] = (limit(chosen), curve(chosen, counts, range(DRAWS)))
    return found


PANELS: dict[str, tuple[Curves, Sequence[int], Mapping[str, Any]]] = {
    "rules": (RULES, COUNTS, {}),
    "windows": (WINDOWS, COUNTS, {}),
    "steps": (STEPS, COUNTS, {}),
    "maps": (MAPS, MAP_COUNTS, {"memory": LEAST_SQUARES, "d_k": SHORT}),
    "deep": (DEEP, DEEP_COUNTS, {"d_k": SHORT, "d_v": SHORT}),
}


def rules() -> str:
    """Hebbian, Delta and least squares, by angle with expectations, and by error (PROBE-11 to
    PROBE-13).
    """
    figure, axes = _figure(2)
    _panel(axes[0], measured("rules"), "by_angle", "by angle", expected=True)
    _panel(axes[1], measured("rules"), "by_error", "by error")
    return _svg(figure, axes, "capacity_rules", "Recalled pairs of Hebbian, Delta, least squares")


def windows() -> str:
    """Windows of Omega in one pass, and steps of Newton-Schulz in one write (PROBE-7, PROBE-14)."""
    figure, axes = _figure(2)
    _panel(axes[0], measured("windows"), "by_angle", "one pass of Omega, by angle")
    _panel(axes[1], measured("steps"), "by_angle", "one write with Newton-Schulz, by angle")
    title = "Recalled pairs by window and by steps of Newton-Schulz"
    return _svg(figure, axes, "capacity_windows", title)


def functions() -> str:
    """Feature maps by least squares, and MLP by gradient descent, with limits (PROBE-8 to PROBE-10)."""
    figure, axes = _figure(2)
    _panel(axes[0], measured("maps"), "by_error", f"maps of keys of length {SHORT}, by error")
    _panel(axes[1], measured("deep"), "by_error", f"deep memories, values of {SHORT}, by error")
    return _svg(figure, axes, "capacity_functions", "Recalled pairs of feature maps and of MLP")


def _figure(columns: int) -> tuple[Any, Any]:
    figure, axes = style.figure(columns, width=10.4, height=5.2)
    return figure, axes[0]


def _panel(
    ax: Any,
    curves: Mapping[str, tuple[int, tuple[Point, ...]]],
    reading: str,
    title: str,
    *,
    expected: bool = False,
) -> None:
    """One reading of each curve; limits below the largest count as dotted lines."""
    most = max(point.pairs for _, points in curves.values() for point in points)
    for place, (name, (bound, points)) in enumerate(curves.items()):
        colour = style.COLOURS[place]
        counts = [point.pairs for point in points]
        ax.plot(
            counts,
            [getattr(point, reading) for point in points],
            color=colour,
            marker=style.MARKERS[place],
            markersize=4,
            linewidth=1.3,
            label=f"{name}: limit {bound}" if reading == "by_error" else name,
        )
        told = [point.expected_by_angle for point in points]
        if expected and None not in told:
            ax.plot(counts, told, color=colour, linewidth=1.0, linestyle="--")
        if reading == "by_error" and bound < most:
            ax.axhline(bound, color=colour, linewidth=0.9, linestyle=":")
    ax.plot([0, most], [0, most], color=style.TEXT, alpha=0.5, linewidth=0.8)
    ax.set(title=title, xlabel="pairs written", ylabel="pairs recalled")


def _svg(figure: Any, axes: Any, name: str, title: str) -> str:
    for ax in axes:
        style.legend(ax, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)
        ax.yaxis.get_major_locator().set_params(integer=True)
        ax.xaxis.get_major_locator().set_params(integer=True)
    return style.svg(figure, name, title)
