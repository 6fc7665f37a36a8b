"""The parallel forms with kernels in place of array operations.

On the host here, through the same hooks that a GPU takes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

import tape
from atlas_ref import backend, forms
from atlas_ref.engine import cuda
from atlas_ref.engine.cuda import hook
from atlas_ref.engine.cuda.hook import kernel
from atlas_ref.engine.cuda.launch import DoesNotFit
from atlas_ref.rules import delta, hebbian, omega, titans_lmm
from atlas_ref.rules.sequence import Tokens
from tape import ops
from tests.engine.masked.test_masked import LAYOUTS, by_hand, drawn
from tests.support.close import ANALYTIC, assert_close

MORE = {
    "running": ("inverse_unit_lower", "exact_walk", "exact_walk_backward"),
    "frozen": ("carried", "carried_backward"),
}


def weighed(outputs: Iterable[Any]) -> Any:
    """One number from all outputs, with a weight of its own for each entry.

    Equal weights of M and S would cancel where M is minus S.
    """
    return sum(
        ops.sum(ops.tanh(value) * np.cos(np.arange(value.size) + place).reshape(value.shape))
        for place, value in enumerate(outputs)
    )


@pytest.mark.sample(16)
@pytest.mark.clause("CUDA-14")
@pytest.mark.parametrize("per_dimension", [False, True])
@pytest.mark.parametrize("momentum", [False, True])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_group_with_kernels_is_the_group_without(
    host: Any, name: str, momentum: bool, per_dimension: bool
) -> None:
    """Values and gradients with kernels and without; and a proof that the kernels ran."""
    layout = LAYOUTS[name]
    given = drawn(layout, per_dimension=per_dimension, momentum=momentum)
    block = by_hand(layout)
    present = {key: value for key, value in given._asdict().items() if value is not None}

    def number(chosen: dict[str, Any]) -> Any:
        return weighed(value for value in block(*given._replace(**chosen)) if value is not None)

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
    expected = {"coefficient_rows", "coefficient_rows_backward"}
    expected |= set(MORE["running" if layout.reference == "running" else "frozen"])
    assert ran == expected


@pytest.fixture
def host(host: Any, request: pytest.FixtureRequest) -> Any:
    """The host, whose kernels take NumPy's arrays."""
    if request.config.getoption("--backend") != "numpy":
        pytest.skip("kernels on the host take NumPy's arrays")
    return host


SEQUENTIAL = {
    "omega": (omega, {"window": 3}, {"newton_schulz": "none"}),
    "omega-before-error": (
        omega,
        {"window": 5},
        {"newton_schulz": "none", "decay": "before_error", "read": "before"},
    ),
    "omega-minus": (
        omega,
        {"window": 2},
        {"newton_schulz": "none", "momentum_sign": "minus", "gradient_scale": 1.0},
    ),
    "titans_lmm": (titans_lmm, {}, {"gate": "retain"}),
    "titans_lmm-call-end": (titans_lmm, {}, {"read": "call_end"}),
    "delta": (delta, {}, {"decay": "before_error"}),
    "hebbian": (hebbian, {}, {}),
}
BY_TOKEN = {
    "newton-schulz": (omega, {"window": 3}, {}),
    "frozen": (titans_lmm, {"span": 2}, {"reference": "chunk_start"}),
    "momentum-first": (
        omega,
        {"window": 3},
        {"newton_schulz": "none", "order": "momentum_then_window"},
    ),
    "chunk-start": (delta, {"span": 3}, {"read": "chunk_start"}),
}


def sequence(
    rule: Any, sizes: dict[str, Any], convention: dict[str, Any], *, d_in: int = 4
) -> tuple[Any, Any, Any]:
    """A call of two packed sequences with inactive tokens, and a state to go on from."""
    random = np.random.default_rng(5)
    config = rule.Config(d_in=d_in, d_out=3, convention={"gate": "retain", **convention}, **sizes)
    lead, T = (2, 1), 9
    gates = {
        gate: random.uniform(0.1, 0.9, (*lead, T))
        for gate in ("retain", "momentum", "step_size")
        if gate in rule.RULE.gates
    }
    k, q = 0.4 * random.standard_normal((2, *lead, T, d_in))
    active, reset = np.ones(T, bool), np.zeros(T, bool)
    active[[2, 6]], reset[5] = False, True
    tokens = Tokens(
        k=k, v=random.standard_normal((*lead, T, 3)), q=q, active=active, reset=reset, **gates
    )
    return config, tokens, rule.start(config, leading=lead)


@pytest.mark.clause("CUDA-6", "CUDA-14")
@pytest.mark.parametrize("name", SEQUENTIAL)
def test_the_sequential_form_in_one_launch_for_each_packed_sequence(host: Any, name: str) -> None:
    rule, *rest = SEQUENTIAL[name]
    config, tokens, state = sequence(rule, *rest)
    want_state, want = forms.run(rule.RULE, config, tokens, state)
    again_state, again = forms.run(rule.RULE, config, tokens, want_state)
    with cuda.running_on(host):
        state, y = forms.run(rule.RULE, config, tokens, state)
        assert len(host.launches) == 2
        after, second = forms.run(rule.RULE, config, tokens, state)
    for label, got, truth in (
        ("y", y, want),
        ("again", second, again),
        ("M", after.M, again_state.M),
    ):
        assert_close(label, got, truth, ANALYTIC)
    if hasattr(want_state, "S"):
        assert_close("S", after.S, again_state.S, ANALYTIC)


@pytest.mark.clause("CUDA-14")
@pytest.mark.parametrize("name", BY_TOKEN)
def test_what_the_kernel_does_not_compute_runs_token_by_token(host: Any, name: str) -> None:
    rule, *rest = BY_TOKEN[name]
    config, tokens, state = sequence(rule, *rest)
    with cuda.running_on(host):
        forms.run(rule.RULE, config, tokens, state)
    assert host.launches == []


@pytest.mark.clause("CUDA-8", "CUDA-14")
def test_a_derivative_of_the_sequential_form_runs_token_by_token(host: Any) -> None:
    config, tokens, state = sequence(delta, {}, {})
    with cuda.running_on(host):
        tape.grad(
            lambda v: ops.sum(forms.run(delta.RULE, config, tokens.replaced(v=v), state)[1] ** 2)
        )(tokens.v)
    assert host.launches == []


@pytest.mark.clause("CUDA-14")
def test_a_memory_too_wide_for_the_kernel_runs_token_by_token(host: Any) -> None:
    config, tokens, state = sequence(delta, {}, {}, d_in=513)
    want = forms.run(delta.RULE, config, tokens, state)[1]
    with cuda.running_on(host):
        assert_close("y", forms.run(delta.RULE, config, tokens, state)[1], want, ANALYTIC)
    assert host.launches == []


@pytest.mark.clause("CUDA-14")
def test_complex_numbers_and_two_types_go_through_array_operations(host: Any) -> None:
    layout = LAYOUTS["running"]
    given = drawn(layout)
    with cuda.running_on(host):
        by_hand(layout)(*(x if x is None else x + 1e-30j for x in given))
        assert host.launches == []
        assert cuda.available_for(given.keys, None, given.values)
        assert not cuda.available_for(given.keys, given.values.astype(np.float32))


@pytest.mark.clause("CUDA-14")
@pytest.mark.parametrize("name", [name for name in LAYOUTS if name.startswith("running")])
def test_a_group_that_does_not_fit_a_block_goes_through_array_operations(
    host: Any, name: str
) -> None:
    """A group that a kernel refuses and leaves unchanged."""
    layout = LAYOUTS[name]
    given = drawn(layout)
    present = {key: value for key, value in given._asdict().items() if value is not None}

    def gradient() -> Any:
        return tape.grad(
            lambda chosen: weighed(
                x for x in by_hand(layout)(*given._replace(**chosen)) if x is not None
            )
        )(present)

    want = gradient()
    host.limit = 10
    with cuda.running_on(host):
        got = gradient()
    assert not {"exact_walk", "exact_walk_backward", "inverse_unit_lower"} & {
        each.partition("<")[0] for each in host.launches
    }
    for key, truth in want.items():
        assert_close(key, got[key], truth, ANALYTIC)


@pytest.mark.clause("CUDA-14")
@pytest.mark.parametrize("per_dimension", [False, True])
@pytest.mark.parametrize("momentum", [False, True])
@pytest.mark.parametrize("name", LAYOUTS)
def test_on_a_gpu_a_group_is_that_of_the_host(
    cupy: Any, name: str, momentum: bool, per_dimension: bool
) -> None:
    there = backend.named("cupy")
    given = drawn(LAYOUTS[name], per_dimension=per_dimension, momentum=momentum)
    block = by_hand(LAYOUTS[name])
    got = block(*(x if x is None else there.from_host(x) for x in given))
    for i, (mine, truth) in enumerate(zip(got, block(*given), strict=True)):
        assert (mine is None) == (truth is None)
        if truth is not None:
            assert_close(f"output {i}", there.to_host(mine), truth, ANALYTIC)


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


@pytest.mark.clause("CUDA-14")
def test_a_caller_chooses_for_each_call_whether_the_kernel_takes_it(host: Any) -> None:
    seen: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def _doubled(x: Any, *, twice: bool = True) -> str:
        return "plain"

    doubled = kernel(lambda x, twice=True: "kernel")(_doubled)
    x = np.ones(3)

    def first(step: Any) -> bool:
        seen.append((step.name, step.args, step.kwargs))
        return len(seen) == 1

    with cuda.running_on(host), hook.choosing(first):
        assert [doubled(x), doubled(x, twice=False)] == ["kernel", "plain"]
    assert seen == [("doubled", (x,), {}), ("doubled", (x,), {"twice": False})]
    with hook.choosing(lambda step: pytest.fail("no kernel can take it")):
        assert doubled(x) == "plain"
