"""What is right: reads and states of each request by its own tokens alone (SCHED-8)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from atlas_ref.oracle.serving.members import Run, State, advance, first_state
from atlas_ref.oracle.serving.parameters import Parameters
from atlas_ref.oracle.serving.plan import CALLS, Moment, moments, rows_beside, rows_of
from atlas_ref.types import Array


def truth(own: Parameters, inputs: Mapping[str, Array], run: Run) -> dict[str, Array]:
    """out/y and the states after every step (SCHED-8).

    Each request is computed alone, from its first token to its last, and once. A schedule enters
    but by what it looks at; of a draft it looks at rows that follow the request's own tokens.
    """
    weights = of_all_requests(own, inputs)
    looked = list(moments(own))
    reads, states = dict[tuple[int, int], Array](), dict[tuple[int, int], State]()
    for r in sorted({each.part.request for each in looked}):
        state = first_state(own, inputs["in/x"].dtype)
        states[r, 0], before = state, 0
        for place in sorted(_stops(looked, r) - {0}):
            rows = rows_of(own, inputs, r, range(before, place))
            y, state = advance(own, weights, state, rows, run)
            reads |= {(r, before + i): row for i, row in enumerate(y)}
            states[r, place], before = state, place
    rows_out, found = list[Array](), dict[str, Array]()
    for each in looked:
        r = each.part.request
        if each.step.op in CALLS:
            rows_out += [reads[r, each.first + i] for i in range(each.part.tokens)]
        elif each.step.op == "draft":
            drafted = rows_beside(own, inputs, each.step.rows)
            rows_out += list(advance(own, weights, states[r, each.first], drafted, run)[0])
        if each.last is not None:
            found |= results_of(own, each.step.number, r, states[r, each.last])
    return {"out/y": np.stack(rows_out), **found}


def of_all_requests(own: Parameters, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Tensors that all requests share, without `in/`."""
    names = (*own.of.weights, *(("conv_w",) if own.conv else ()))
    return {name: inputs[f"in/{name}"] for name in names}


def _stops(looked: list[Moment], r: int) -> set[int]:
    """Tokens of a request after which its state is looked at."""
    of_request = [each for each in looked if each.part.request == r]
    return {each.first for each in of_request} | {each.last or 0 for each in of_request}


def results_of(own: Parameters, step: int, r: int, state: Mapping[str, Any]) -> dict[str, Array]:
    """The states of a request after a step, by the names of results."""
    return {f"out/state{step}/r{r}/{name}": state[name] for name in own.states}
