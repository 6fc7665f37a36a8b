"""The parallel forms with kernels in the place of array operations: on the host here, the same hooks that a GPU takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from close import ANALYTIC, assert_close

import tape
from atlas_ref import cuda
from atlas_ref.cuda.hook import kernel
from atlas_ref.cuda.launch import DoesNotFit
from atlas_ref.parallel.group import Arrays
from tape import ops
from tests.parallel.test_dual import LAYOUTS, by_hand, drawn

MORE = {
    "running": ("inverse_unit_lower", "exact_walk", "exact_walk_backward"),
    "frozen": ("carried", "carried_backward", "scaled_residuals"),
}


@pytest.mark.clause("CUDA-14")
@pytest.mark.parametrize("per_dimension", [False, True])
@pytest.mark.parametrize("momentum", [False, True])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_group_with_kernels_is_the_group_without(host: Any, name: str, momentum: bool, per_dimension: bool) -> None:
    """Values and gradients; and the kernels did run."""
    layout = LAYOUTS[name]
    given = drawn(layout, per_dimension=per_dimension, momentum=momentum)
    block = by_hand(layout)
    present = {key: value for key, value in given._asdict().items() if value is not None}

    def number(chosen: dict[str, Any]) -> Any:
        return sum(ops.sum(ops.tanh(value)) for value in block(*given._replace(**chosen)) if value is not None)

    want, bars = block(*given), tape.grad(number)(present)
    with cuda.running_on(host):
        got, found = block(*given), tape.grad(number)(present)
    for i, (mine, truth) in enumerate(zip(got, want, strict=True)):
        assert (mine is None) == (truth is None)
        if truth is not None:
            assert_close(f"output {i}", mine, truth, ANALYTIC)
    for key, truth in bars.items():
        assert_close(key, found[key], truth, ANALYTIC)
    ran = {each.partition("<")[0] for each in host.launches}
    expected = {"coefficient_rows", "coefficient_rows_backward", "gathered"}
    expected |= {"combined_reads"} if layout.read in ("after", "before") else set()
    expected |= set(MORE["running" if layout.reference == "running" else "frozen"])
    assert ran == expected


@pytest.mark.clause("CUDA-14")
def test_what_kernels_do_not_take_goes_through_array_operations(host: Any) -> None:
    layout = LAYOUTS["running"]
    given = drawn(layout)
    with cuda.running_on(host):
        stepped = Arrays(*(x if x is None else x + 1e-30j for x in given))
        by_hand(layout)(*stepped)
        assert host.launches == [], "complex numbers"
        host.limit = 100
        got = by_hand(layout)(*given)
    assert not {"exact_walk", "inverse_unit_lower"} & {each.partition("<")[0] for each in host.launches}, "too large for a block"
    for mine, truth in zip(got, by_hand(layout)(*given), strict=True):
        assert_close("output", mine, truth, ANALYTIC)


@pytest.mark.clause("CUDA-14")
def test_an_error_of_a_kernel_is_not_taken_for_a_size() -> None:
    def fused(x: Any) -> Any:
        raise DoesNotFit("x: too large") if x.size > 1 else ValueError("x: a mistake")

    hooked = kernel(fused)(lambda x: 2.0 * x)
    with cuda.running_on(object()):
        assert hooked(np.ones(2)).tolist() == [2.0, 2.0]
        with pytest.raises(ValueError, match="a mistake"):
            hooked(np.ones(1))
    assert hooked(np.ones(1)).tolist() == [2.0], "outside, no kernel"
