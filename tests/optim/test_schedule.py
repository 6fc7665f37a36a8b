"""Schedules: a first step that moves, a warm-up, a fall, and what stays."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from pydantic import ValidationError

from atlas_ref.optim import sgd
from atlas_ref.optim.schedule import Schedule
from tests.support.close import ANALYTIC, assert_close
from tests.support.optimised import drawn, run


@pytest.mark.clause("OPTIM-6")
def test_a_warm_up_rises_by_equal_steps_from_the_first_step_on() -> None:
    schedule = Schedule(warmup=4)
    assert [schedule.factor(s) for s in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert Schedule(warmup=1).factor(0) == 1.0
    assert Schedule().factor(0) == 1.0


@pytest.mark.clause("OPTIM-6")
def test_the_first_step_moves_unless_it_is_asked_not_to() -> None:
    params, grads = drawn(steps=1)
    moved, _ = run(sgd.Config(rate=0.1, schedule=Schedule(warmup=100)), params, grads)
    stayed, _ = run(
        sgd.Config(rate=0.1, schedule=Schedule(warmup=100, first="zero")), params, grads
    )
    for name, p in params.items():
        assert_close(name, p - moved[name], 0.001 * grads[0][name], ANALYTIC)
        assert np.array_equal(stayed[name], p)


@pytest.mark.clause("OPTIM-7")
@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_after_the_warm_up_it_falls_to_the_floor_and_stays(floor: float) -> None:
    linear = Schedule(kind="linear", warmup=2, steps=12, floor=floor)
    cosine = Schedule(kind="cosine", warmup=2, steps=12, floor=floor)
    for s in range(2, 13):
        x = (s - 2) / 10
        assert linear.factor(s) == pytest.approx(1 - (1 - floor) * x, abs=1e-15)
        want = floor + (1 - floor) * math.cos(math.pi * x / 2) ** 2
        assert cosine.factor(s) == pytest.approx(want, abs=1e-15)
    for schedule in (linear, cosine):
        factors = [schedule.factor(s) for s in range(20)]
        assert factors[1] == factors[2] == 1.0
        assert all(a > b for a, b in itertools.pairwise(factors[2:13]))
        assert factors[12:] == [pytest.approx(floor, abs=1e-15)] * 8


@pytest.mark.clause("OPTIM-6", "OPTIM-7")
def test_the_schedule_of_atlas_mag_until_its_end() -> None:
    """Its formula by hand; beyond the last step it rises again, and ours does not."""

    def public(step: int) -> float:
        if step < 3:
            return step / 3
        return 0.5 * (1 + math.cos(math.pi * (step - 3) / max(1, 9 - 3)))

    own = Schedule(kind="cosine", warmup=3, steps=9, first="zero")
    assert [own.factor(s) for s in range(10)] == pytest.approx([public(s) for s in range(10)])
    assert public(12) > 0.4
    assert own.factor(12) == 0.0


@pytest.mark.clause("OPTIM-7")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "cosine"}, "steps: kind cosine needs the number of steps of the run"),
        ({"kind": "linear", "steps": 5, "warmup": 5}, "warmup: 5 steps of 5 leave none"),
        ({"steps": 5}, "steps and floor belong to a schedule that falls"),
        ({"floor": 0.5}, "steps and floor belong to a schedule that falls"),
        ({"kind": "step"}, "kind\n.*'constant', 'linear' or 'cosine'"),
        ({"warmup": -1}, "warmup\n.*greater than or equal to 0"),
    ],
)
def test_an_impossible_schedule_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Schedule(**settings)


@pytest.mark.clause("OPTIM-6")
@pytest.mark.parametrize("step", [-1, 1.0, True, "1"])
def test_a_step_is_a_whole_number_from_0(step: object) -> None:
    with pytest.raises(ValueError, match=r"step: .*, a whole number from 0 is needed"):
        Schedule().factor(step)  # type: ignore[arg-type]
