"""Kernels of one member of the linear family, their mistakes, and adapters that state what they take."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "adapters"))
import kernels


def token_by_token(
    q: Any,
    k: Any,
    v: Any,
    beta: Any,
    g: Any = None,
    initial_state: Any = None,
    cu_seqlens: Any = None,
) -> tuple[Any, Any]:
    """Gated delta or KDA, (B, T, H, D), with packed sequences and heads that share keys."""
    q, k = (np.repeat(x, v.shape[2] // k.shape[2], axis=2) for x in (q, k))
    tokens, packed = v.shape[1], cu_seqlens is not None
    ends = list(cu_seqlens) if packed else [b * tokens for b in range(len(v) + 1)]
    shape = (len(ends) - 1, v.shape[2], k.shape[3], v.shape[3])
    states = np.zeros(shape, v.dtype) if initial_state is None else initial_state.copy()
    g = np.zeros(v.shape[:3], v.dtype) if g is None else g
    o, wide = np.empty_like(v), g[..., None] if g.ndim == 3 else g
    for n, (first, last) in enumerate(itertools.pairwise(ends)):
        for place in range(first, last):
            i = (0, place) if packed else (n, place - first)
            S = states[n] * np.exp(wide[i])[..., None]
            error = beta[i][:, None] * (v[i] - (k[i][:, None] @ S)[:, 0])
            states[n] = S + k[i][..., None] * error[:, None]
            o[i] = k.shape[3] ** -0.5 * (q[i][:, None] @ states[n])[:, 0]
    return o, states


def of_first_row(initial_state: Any = None, **arguments: Any) -> tuple[Any, Any]:
    """Every row and sequence starts from the state of the first: a pointer without its offset."""
    if initial_state is not None:
        initial_state = np.repeat(initial_state[:1], len(initial_state), axis=0)
    return token_by_token(initial_state=initial_state, **arguments)


def state_runs_on(cu_seqlens: Any = None, initial_state: Any = None, **arguments: Any) -> Any:
    """Starts of sequences do not reach the rule."""
    first = initial_state if cu_seqlens is None or initial_state is None else initial_state[:1]
    y, S = token_by_token(initial_state=first, **arguments)
    return y, S if cu_seqlens is None else np.repeat(S, len(cu_seqlens) - 1, axis=0)


def kernel(call: Callable[..., Any], member: str) -> Any:
    """A kernel of kda or gated_delta by the adapter of the examples."""
    channels = member == "kda"
    return kernels.Kernel(call, kernels.KDA, member=member, channels=channels, grouped=True)


def nothing(case: Any, inputs: Any) -> Any:
    """Answer no case, for reasons of its own."""
    x = inputs.get("k", inputs.get("x"))
    raise NotImplementedError(f"{x.shape}: it takes none")


class Adapter(NamedTuple):
    """An adapter that says what its kernel takes."""

    stated: Any

    def __call__(self, case: Any, inputs: Any) -> Any:
        """Results of gated_delta without packed sequences."""
        if "active" in inputs or (case.get("parameters") or {}).get("member") != "gated_delta":
            raise NotImplementedError("it computes gated_delta of all tokens")
        return kernel(token_by_token, "gated_delta")(case, inputs)

    def sweep_settings(self) -> Any:
        """What it takes."""
        if isinstance(self.stated, Exception):
            raise self.stated
        return self.stated


PLAIN = dict.fromkeys(("decay", "query_scale", "q_norm", "k_norm", "norm_eps"), (None,))
mine = Adapter(
    {
        **PLAIN,
        "member": ("gated_delta",),
        "gate": ["token", "log_token"],
        **{"steps": (1,), "pulse": (1,), "rates": ("row",)},
    }
)
lying = Adapter({"speed": (1,)})
raising = Adapter(ValueError("no device"))
listing = Adapter(["member"])
single = Adapter({"member": "kda"})
