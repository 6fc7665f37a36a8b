"""Cases of the short convolution: sweeps, schedules and their mistakes, draws for vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.oracle.cases.case import CaseError, load, make
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.judge.answers import Answer
from atlas_ref.oracle.judge.compare import checked
from atlas_ref.oracle.schedules.judge import check_schedule
from atlas_ref.oracle.sweep.draw import draw_case
from atlas_ref.oracle.sweep.sweep import sweep
from atlas_ref.vectors.inputs.draw import drawn, exact
from atlas_ref.vectors.inputs.recurrences import target
from tests.support.killed import assert_kernel_is_the_rule
from tests.support.swept import source

FIXED = {"member": ("short_conv",)}


def kernel(
    case: dict[str, Any],
    inputs: dict[str, Any],
    *,
    late: bool = False,
    lost: int = 0,
    zeros: Any = (),
) -> dict[str, Any]:
    """All inputs of a sequence in one row, of which each token reads the last W.

    Args:
        late: whether the window of a call of several tokens lacks the last one.
        lost: calls of at least so many tokens start from no window; 0 for none.
        zeros: lengths of calls whose older inputs are gone.
    """
    own = case["parameters"]
    x, w = (inputs[name].astype(np.float64) for name in ("x", "w"))
    W, T = w.shape[-1], x.shape[-2]
    columns = W if own.get("columns") == "W" else W - 1
    turned = own.get("state_layout") == "(d_in, d_out)"
    first = np.zeros((*x.shape[:-2], x.shape[-1], columns))
    if "window0" in inputs and not 0 < lost <= T:
        window = inputs["window0"].astype(np.float64)
        first = window.swapaxes(-1, -2) if turned else window
    fresh, past, y = (
        first if own.get("reset_to") == "first" else 0.0 * first,
        first,
        np.zeros(x.shape),
    )
    for t in range(T):
        past = fresh if "reset" in inputs and inputs["reset"][t] else past
        if "active" in inputs and not inputs["active"][t]:
            continue
        past = np.concatenate([past, x[..., t, :, None]], axis=-1)
        z = (past[..., -W:] * w).sum(-1) + inputs.get("bias", np.zeros(x.shape[-1]))
        y[..., t, :] = z / (1.0 + np.exp(-z)) if own.get("activation") == "silu" else z
    after = past[..., -columns - 1 : -1] if late and T > 1 else past[..., -columns:]
    if T in zeros:
        after = np.concatenate([0.0 * after[..., :-T], after[..., -T:]], axis=-1)
    return {"y": y, "window": after.swapaxes(-1, -2) if turned else after}


def without_active(case: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    return kernel(case, {name: x for name, x in inputs.items() if name != "active"})


@pytest.mark.clause("SHORT-6", "SWEEP-14")
def test_a_sweep_draws_it_where_it_is_fixed_with_all_its_settings() -> None:
    free = [draw_case("recurrence", 0, n, {}).request["parameters"] for n in range(60)]
    assert all(each["member"] != "short_conv" for each in free)
    cases = [draw_case("recurrence", 0, n, FIXED) for n in range(60)]
    met = [each.request["parameters"] for each in cases]
    for name, other in (("activation", "silu"), ("columns", "W"), ("reset_to", "first")):
        assert {each.get(name) for each in met} == {None, other}
    assert {each.get("state_layout") for each in met} >= {"(d_in, d_out)"}
    names = {name for each in cases for name in each.case.inputs}
    assert names >= {"in/window0", "in/window_bar", "in/bias", "in/active", "in/reset"}
    silu = [draw_case("recurrence", 0, n, FIXED | {"activation": ("silu",)}) for n in range(9)]
    assert {each.request["parameters"]["activation"] for each in silu} == {"silu"}


@pytest.mark.clause("SHORT-6")
def test_a_kernel_by_another_hand_passes_a_sweep_and_a_failure_gets_small(tmp_path: Any) -> None:
    small: dict[str, Any] = {**FIXED, "dtype": ("float64",)}
    right = sweep("recurrence", source(kernel), cases=60, choices=small, folder=tmp_path / "right")
    assert right.counts["PASS"] == 60
    wrong = sweep(
        "recurrence",
        source(without_active),
        cases=12,
        choices={**small, "pulse": (2,)},
        folder=tmp_path / "wrong",
        keep=1,
    )
    failure = next(each for each in wrong.failures if each.file is not None)
    case = load(tmp_path / "wrong" / str(failure.file))
    assert "in/active" in case.inputs
    assert sum(int(x.size) for x in case.inputs.values()) < 20


@pytest.mark.clause("SHORT-2", "SHORT-7", "SCHED-6")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"late": True}, "states were those before the last token of a call, of several tokens"),
        ({"lost": 2}, "calls of several tokens started from no state"),
        ({"lost": 1}, "each call started from no state"),
        ({"zeros": (1, 2)}, "a call shorter than the window left zeros in front of its tokens"),
    ],
)
def test_a_schedule_finds_a_window_that_is_lost_or_off_by_one(change: Any, words: str) -> None:
    parameters = {"member": "short_conv", "activation": "silu"}
    case = new(Request(rule="recurrence", tokens=33, parameters=parameters, d_in=4, d_out=3))

    def answer(of: Any) -> Answer:
        inputs = {name.removeprefix("in/"): x for name, x in of.inputs.items()}
        found = kernel(of.header.plain(), inputs, **change)
        return Answer({f"out/{name}": x for name, x in found.items()})

    rows = check_schedule(case, answer, "serving").rows
    assert {row.verdict for row in rows} == {"PASS"} if not words else {"PASS", "WRONG"}
    assert words in " ".join(row.why for row in rows)
    alone = {row.verdict for row in checked(case, source=answer).rows}
    assert (alone == {"PASS"}) == (change in ({}, {"zeros": (1, 2)}))


@pytest.mark.clause("SHORT-6", "VEC-29")
def test_vectors_of_it_are_drawn_exactly_and_the_kernel_is_the_rule() -> None:
    of = target("short_conv")
    names = {topic.name for topic in of.topics}
    assert {"tall", "start", "packed", "layout", "gradient", "gradient-packed", "65"} <= names
    assert "extreme" not in names  # it has no gates
    for topic in of.topics:
        case = drawn(of, topic, 0)
        assert all(exact(x) for x in case.inputs.values() if x.dtype.kind == "f")
        assert ("in/window0" in case.inputs) == (topic.name != "start")
    for topic in (of.topics[0], of.topics[6]):
        assert_kernel_is_the_rule(drawn(of, topic, 1), grad=topic.grad)


@pytest.mark.clause("SHORT-6")
def test_one_tap_is_refused_in_one_line() -> None:
    case = new(Request(rule="recurrence", tokens=3, parameters={"member": "short_conv"}, d_out=3))
    with pytest.raises(
        CaseError, match=r"in/w: shape \(2, 3, 1\), one tap leaves no window; 2 are"
    ):
        make(case.header.plain(), {"in/x": case.inputs["in/x"], "in/w": np.ones((2, 3, 1))})
