"""TNT: a global memory over chunks, local memories that every shard starts anew, their reads added.

    y_t = f(V_xi(t,C_G), q_t) + sum_i f(W_i,t, P_i,t q_t)

It equals the sum of N + 1 ordinary runs of the rules, which is how it is computed. Specified in
specs/tnt.md. Source: TNT (2511.07343) Eqs 5-7, 13-15.
"""

from __future__ import annotations

from atlas_ref.forms.tnt.config import PRESETS, Config, Global, Local, Projection, preset
from atlas_ref.forms.tnt.gates import Gates
from atlas_ref.forms.tnt.retrieve import retrieve
from atlas_ref.forms.tnt.run import run
from atlas_ref.forms.tnt.state import Initial, Params, State, start

__all__ = [
    "PRESETS",
    "Config",
    "Gates",
    "Global",
    "Initial",
    "Local",
    "Params",
    "Projection",
    "State",
    "preset",
    "retrieve",
    "run",
    "start",
]
