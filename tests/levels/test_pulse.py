"""Pulse and Conductor against loops that count by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from atlas_ref.levels import block, level
from atlas_ref.levels.pulse import PERIODS, Conductor, schedule
from atlas_ref.rules import delta
from atlas_ref.types import Pulse


def counted(periods: Sequence[int], first: int, tokens: int) -> list[list[bool]]:
    """Levels that fire at each token: each counts down to its next write, without a division."""
    waiting = [0 if first == 0 else period - first for period in periods]
    found = []
    for _ in range(tokens):
        found.append([left == 0 for left in waiting])
        waiting = [
            period - 1 if left == 0 else left - 1
            for left, period in zip(waiting, periods, strict=True)
        ]
    return found


@pytest.mark.clause("PULSE-2", "PULSE-3", "PULSE-6")
@given(
    periods=st.lists(st.integers(1, 20), min_size=1, max_size=5),
    first=st.sampled_from([0, 1]),
    tokens=st.integers(1, 90),
)
def test_the_schedule_is_that_of_levels_that_count_down(
    periods: list[int], first: int, tokens: int
) -> None:
    conductor = Conductor(periods=tuple(periods), first_step=first)
    want = counted(periods, first, tokens)
    assert conductor.schedule(tokens).tolist() == want
    seen: list[Pulse] = []
    after = conductor.tick(seen.append, tokens=tokens)
    assert [list(pulse.active) for pulse in seen] == want
    assert [pulse.step for pulse in seen] == list(range(first, first + tokens))
    assert (after.step, after.tokens) == (first + tokens, tokens)


@pytest.mark.clause("PULSE-2")
def test_the_default_periods_fire_where_the_table_says() -> None:
    active = Conductor().schedule(1025)
    assert active[0].all()
    assert [int(active[t].sum()) for t in (1, 7, 8, 63, 64, 511, 512, 1024)] == [
        1,
        1,
        2,
        1,
        3,
        1,
        4,
        4,
    ]
    assert np.nonzero(active[:, 3])[0].tolist() == [0, 512, 1024]
    late = Conductor(first_step=1).schedule(1024)
    assert not late[:511, 3].any()
    assert np.nonzero(late[:, 3])[0].tolist() == [511, 1023]


@pytest.mark.clause("PULSE-7")
@pytest.mark.parametrize(
    ("periods", "first"), [(PERIODS, 0), (PERIODS, 1), ((2, 3, 7), 1), ((1,), 0)]
)
def test_the_average_is_the_sum_of_reciprocals(periods: tuple[int, ...], first: int) -> None:
    conductor = Conductor(periods=periods, first_step=first).advanced(37)
    measured = conductor.schedule(math.lcm(*periods)).sum() / math.lcm(*periods)
    assert measured == pytest.approx(conductor.average_active, abs=1e-15)


@pytest.mark.clause("PULSE-7")
def test_1_14_of_the_four_default_levels_are_active() -> None:
    active = Conductor().schedule(4096)
    assert active.sum() == 4096 + 512 + 64 + 8
    assert round(float(active.sum(1).mean()), 2) == 1.14
    assert Conductor().average_active == 1.142578125


@pytest.mark.clause("PULSE-1")
def test_a_pulse_knows_no_level_but_its_own() -> None:
    pulse = Conductor(periods=(1, 8)).pulse
    for wrong in (-1, 2, 0.0, True, "0", None):
        with pytest.raises(
            ValueError, match=rf"^level: {wrong!r}, expected one of 2, counted from 0$"
        ):
            pulse.is_active(wrong)
    assert pulse.is_active(np.int64(1))


@pytest.mark.clause("PULSE-2", "PULSE-6")
@pytest.mark.parametrize("step", [2**53 - 1, 2**63 - 2, 2**64 - 2, 10**30])
def test_no_step_and_no_period_is_too_large(step: int) -> None:
    periods = (1, 3, 2**63, 2**64, step + 2)
    conductor = Conductor(periods=periods, step=step, tokens=step)
    want = [[(step + t) % period == 0 for period in periods] for t in range(7)]
    assert conductor.schedule(7).tolist() == want
    assert list(conductor.advanced(2).pulse.active) == want[2]
    assert want[2][4]


@pytest.mark.clause("PULSE-1")
def test_a_pulse_cannot_be_changed() -> None:
    pulse = Conductor().advanced(8).pulse
    assert (pulse.step, pulse.active, pulse.phase) == (8, (True, True, False, False), "build")
    assert [pulse.is_active(level) for level in range(4)] == [True, True, False, False]
    with pytest.raises(ValidationError, match="frozen"):
        pulse.step = 9  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        Conductor().step = 9  # type: ignore[misc]


@pytest.mark.clause("PULSE-4")
def test_observers_see_a_step_before_the_counter_moves() -> None:
    conductor = Conductor(periods=(1, 2))
    log: list[tuple[str, int, bool]] = []

    def observer(name: str):
        return lambda pulse: log.append((name, pulse.step, pulse.is_active(1)))

    after = conductor.tick(observer("first"), observer("second")).tick(observer("first"))
    assert log == [("first", 0, True), ("second", 0, True), ("first", 1, False)]
    assert (conductor.step, after.step) == (0, 2)


@pytest.mark.clause("PULSE-4")
def test_an_observer_that_fails_leaves_the_step() -> None:
    conductor = Conductor().advanced(3)

    def fails(pulse: Pulse) -> None:
        raise RuntimeError(f"at {pulse.step}")

    with pytest.raises(RuntimeError, match="at 3"):
        conductor.tick(fails)
    assert conductor.step == 3


@pytest.mark.clause("PULSE-3")
def test_nothing_but_restoring_makes_a_smaller_step() -> None:
    conductor = Conductor(first_step=1)
    steps = [conductor.step]
    for tokens in (1, 5, 1, 40):
        conductor = conductor.advanced(tokens)
        conductor = conductor.in_phase("stream").in_phase("build").tick()
        steps.append(conductor.step)
    assert steps == sorted(set(steps))
    for wrong in (0, -1, True, 1.0):
        with pytest.raises(ValueError, match=r"^tokens: .* at least 1$"):
            conductor.advanced(wrong)  # type: ignore[arg-type]


@pytest.mark.clause("PULSE-5", "PULSE-6")
def test_a_step_per_call_holds_for_all_its_tokens() -> None:
    conductor = Conductor(periods=(1, 2, 3), per="call")
    rows = []
    for tokens in (4, 1, 7, 2):
        active = conductor.schedule(tokens)
        assert active.shape == (tokens, 3)
        assert (active == active[0]).all()
        assert active[0].tolist() == list(conductor.pulse.active)
        rows.append(active[0].tolist())
        seen: list[Pulse] = []
        conductor = conductor.tick(seen.append, tokens=tokens)
        assert len(seen) == 1
    assert rows == counted((1, 2, 3), 0, 4)
    assert (conductor.step, conductor.tokens) == (4, 14)


@pytest.mark.clause("PULSE-5")
def test_a_level_that_a_call_covers_is_always_active() -> None:
    conductor = Conductor(periods=(2, 8, 9), first_step=1, per="call", call_tokens=8)
    assert conductor.schedule(8).tolist() == [[True, True, False]] * 8
    assert conductor.average_active == 2 + 1 / 9
    assert conductor.always
    assert not Conductor(periods=(2, 8, 9), per="call").always
    with pytest.raises(ValidationError, match="call_tokens: belongs to steps per call"):
        Conductor(call_tokens=8)


@pytest.mark.clause("PULSE-8")
def test_phases_change_no_schedule_and_only_build_learns() -> None:
    found = {phase: Conductor(phase=phase).advanced(13) for phase in ("build", "test", "stream")}
    assert [each.pulse.learns for each in found.values()] == [True, False, False]
    tables = {each.schedule(100).tobytes() for each in found.values()}
    assert len(tables) == 1
    assert found["build"].in_phase("test") == found["test"]
    with pytest.raises(ValidationError, match="phase"):
        Conductor().in_phase("train")  # type: ignore[arg-type]


@pytest.mark.clause("PULSE-9")
@pytest.mark.parametrize(
    "settings",
    [{}, {"first_step": 1}, {"periods": (3, 5), "per": "call", "call_tokens": 4, "phase": "test"}],
)
def test_a_restored_conductor_continues(settings: dict) -> None:
    conductor = Conductor(**settings)
    driven = conductor.advanced(11).advanced(9)
    saved = json.loads(json.dumps(driven.saved()))
    again = conductor.restored(saved, tokens=20)
    assert again == driven
    assert again.schedule(50).tobytes() == driven.schedule(50).tobytes()
    assert (
        conductor.restored(conductor.advanced(2).saved()).in_phase("stream").step
        == conductor.advanced(2).step
    )


@pytest.mark.clause("PULSE-9")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"periods": [1, 8, 64]},
            r"^periods: \[1, 8, 64\] in the saved conductor, \[1, 8, 64, 512\] in this one$",
        ),
        ({"first_step": 1}, "^first_step: 1 in the saved conductor, 0 in this one$"),
        ({"per": "call"}, "^per: call in the saved conductor, token in this one$"),
        ({"call_tokens": 4}, "^call_tokens: 4 in the saved conductor, None in this one$"),
        ({"speed": 4}, "^speed: unknown in the saved conductor$"),
        ({"step": None}, "^step: missing in the saved conductor$"),
        ({"tokens": 6}, "^tokens: the saved conductor stands after 6, the stream after 5$"),
    ],
)
def test_a_saved_conductor_that_does_not_match_is_refused(change: dict, words: str) -> None:
    saved = {
        key: value
        for key, value in {**Conductor().advanced(5).saved(), **change}.items()
        if value is not None or key == "call_tokens"
    }
    with pytest.raises(ValueError, match=words):
        Conductor().restored(saved, tokens=5)


@pytest.mark.clause("PULSE-3", "PULSE-9")
@pytest.mark.parametrize(
    "wrong",
    [
        {"step": 3},
        {"step": 0, "tokens": 1},
        {"first_step": 1, "step": 0},
        {"per": "call", "step": 2, "tokens": 1},
    ],
)
def test_a_step_that_the_tokens_do_not_make_is_refused(wrong: dict) -> None:
    with pytest.raises(ValidationError, match="step: "):
        Conductor(**wrong)


@pytest.mark.clause("PULSE-2", "PULSE-3")
@pytest.mark.parametrize(
    "wrong",
    [
        {"periods": ()},
        {"periods": (1, 0)},
        {"periods": (1.5,)},
        {"first_step": 2},
        {"first_step": True},
        {"per": "batch"},
    ],
)
def test_settings_that_mean_nothing_are_refused(wrong: dict) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        Conductor(**wrong)


@pytest.mark.clause("PULSE-6")
def test_a_schedule_from_any_step_is_a_row_of_the_longer_one() -> None:
    whole = schedule(PERIODS, 0, 600)
    assert (schedule(PERIODS, 505, 95) == whole[505:]).all()


@pytest.mark.clause("PULSE-10")
@pytest.mark.parametrize("origin", ["first", "multiple"])
def test_chunk_boundaries_are_where_a_frozen_reference_is_taken_anew(origin: str) -> None:
    convention = {"reference": "chunk_start", "span_origin": origin}
    sizes = {"d_in": 3, "d_out": 2, "d_model": 4}
    config = block.Config(
        levels=(
            level.Level(config=delta.Config(**sizes, span=3, convention=convention)),
            level.Level(config=delta.Config(**sizes), period=2),
        )
    )
    params, x = block.init(config, 0), np.random.default_rng(0).standard_normal((1, 11, 4))
    context, anew, told = block.start(config), [], []
    for t in range(11):
        pulse = block.pulse(config, context)
        reset = np.array([t == 7])
        before = context.origins[0] if t == 7 else context.states[0]
        told.append(pulse.replaced(step=t).chunk_boundaries if t != 7 else None)
        assert pulse.active == context.conductor.pulse.active
        context, _ = block.run(config, params, x[:, t : t + 1], context, reset=reset)
        anew.append(np.array_equal(context.states[0].reference, before.M))
    assert anew[1:] == [each is None or each[0] for each in told][1:]
    assert {each[1] for each in told if each} == {False}
    first = 0 if origin == "first" else 1
    assert [(t + first) % 3 == 0 for t in range(7)] == [each[0] for each in told[:7]]
