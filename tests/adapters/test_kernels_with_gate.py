"""The adapter of kernels that make their gates themselves: layouts, gradients, and what it refuses."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.sources import sources
from tests.support import fla_kernel

ADAPTERS = Path(__file__).parents[2] / "examples" / "adapters"
sys.path.insert(0, str(ADAPTERS))
import kernels  # noqa: E402

STEP = 1e-30


def kda(A_log: Any, dt_bias: Any = 0.0, *, g: Any, head_first: bool = False, **others: Any) -> Any:
    """Kimi Delta Attention with raw numbers g, A_log (H,) and dt_bias (H, K) in the kernel."""
    z = (np.swapaxes(g, 1, 2) if head_first else g) + dt_bias
    log_gate = -np.exp(A_log)[:, None] * np.log1p(np.exp(z))
    log_gate = np.swapaxes(log_gate, 1, 2) if head_first else log_gate
    return fla_kernel.kda(g=log_gate, head_first=head_first, **others)


KERNEL = kernels.Kernel(
    kda,
    kernels.KDA_WITH_GATE,
    member="kda",
    gradients=functools.partial(fla_kernel.by_complex_step, kernel=kda),
    settings={"gate_formula": "softplus"},
    grouped=True,
)


def case(change: Any = None, member: str = "kda", **fields: Any) -> Any:
    """A small case with raw numbers, whose inputs a function changes."""
    own = {"member": member, "gate_formula": "softplus", **fields.pop("parameters", {})}
    sizes = {"tokens": 4, "d_in": 3, "d_out": 2, "heads": 2, "seed": 5, "cotangent": True, **fields}
    drawn = new(Request(rule="dplr", draw=1, parameters=own, **sizes))
    inputs = dict(drawn.inputs)
    return atlas_ref.make(drawn.header.plain(), change(inputs) if change else inputs, name="drawn")


def checked(one: Any, kernel: Any) -> list[Any]:
    return atlas_ref.check(one, source=lambda each: sources.respond(kernel, each))


def of_all_heads(inputs: dict[str, Any]) -> dict[str, Any]:
    shared = ("in/gate_log_rate", "in/gate_bias")
    return {n: np.array(x[0]) if n in shared else x for n, x in inputs.items()}


def of_a_batch(inputs: dict[str, Any]) -> dict[str, Any]:
    bare = ("in/gate_log_rate", "in/gate_bias", "in/reset")
    return {n: x if n in bare else np.stack([x, 0.5 * x]) for n, x in inputs.items()}


def without_bias(inputs: dict[str, Any]) -> dict[str, Any]:
    return {n: x for n, x in inputs.items() if n != "in/gate_bias"}


@pytest.mark.clause("SRC-6", "DPLRCASE-16")
@pytest.mark.parametrize("head_first", [False, True])
@pytest.mark.parametrize("change", [None, of_all_heads, of_a_batch, without_bias])
@pytest.mark.parametrize("fields", [{}, {"reset": 3}, {"parameters": {"groups": 2}}])
def test_a_kernel_with_its_gate_passes_with_every_gradient(
    fields: Any, change: Any, head_first: bool
) -> None:
    one = case(change, **fields)
    kernel = KERNEL._replace(
        head_axis=1 if head_first else 2, options={"head_first": True} if head_first else {}
    )
    rows = checked(one, kernel)
    assert {row.verdict for row in rows} == {"PASS"}, rows
    floats = {n for n in one.inputs if n not in ("in/reset", "in/y_bar")}
    assert {row.tensor for row in rows} == {"out/y", "out/M"} | {f"grad/{n[3:]}" for n in floats}


@pytest.mark.clause("SRC-6", "DPLRCASE-16")
def test_a_kernel_without_its_bias_is_wrong_in_the_gradient_too() -> None:
    def bare(**arguments: Any) -> Any:
        return kda(**{**arguments, "dt_bias": 0.0 * arguments["dt_bias"]})

    rows = checked(
        case(),
        KERNEL._replace(
            call=bare, gradients=functools.partial(fla_kernel.by_complex_step, kernel=bare)
        ),
    )
    verdicts = {row.tensor: row.verdict for row in rows}
    assert (verdicts["out/y"], verdicts["grad/gate_bias"]) == ("WRONG", "WRONG")


def of_each_row(inputs: dict[str, Any]) -> dict[str, Any]:
    bare = ("in/gate_log_rate",)
    return {n: x if n in bare else np.stack([x, 0.5 * x]) for n, x in inputs.items()}


def of_tokens(inputs: dict[str, Any]) -> dict[str, Any]:
    first = ("in/gate_input", "in/gate_bias")
    return {n: x[..., 0] if n in first else x for n, x in inputs.items()}


@pytest.mark.clause("SRC-1")
@pytest.mark.parametrize(
    ("one", "words"),
    [
        (case(of_each_row), "in/gate_bias for each row of the batch: it takes one"),
        (case(of_tokens), "in/gate_input of shape (2, 4): it takes one for each key channel"),
        (
            case(parameters={"gate_formula": "bounded", "gate_lower_bound": -5.0}),
            "parameters.gate_formula bounded: it computes softplus",
        ),
        (
            case(parameters={"beta_formula": "sigmoid"}),
            "parameters.beta_formula sigmoid: it computes none",
        ),
    ],
)
def test_what_a_kernel_with_a_gate_does_not_take_is_not_supported(one: Any, words: str) -> None:
    (row,) = checked(one, KERNEL)
    assert (row.tensor, row.verdict) == ("-", "NOT SUPPORTED")
    assert words in row.why
