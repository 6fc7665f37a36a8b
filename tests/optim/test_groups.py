"""Groups: who moves what, periods with gradients that wait, and what is applied at last."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from pydantic import TypeAdapter, ValidationError

from atlas_ref.levels import buffers
from atlas_ref.levels.pulse import Conductor
from atlas_ref.optim import adamw, clip, flat, groups, m3, muon, sgd
from atlas_ref.optim.groups import Config, Group
from tests.support.close import EXACT, assert_close, assert_differs
from tests.support.optimised import FALLS, drawn, run

ADAMW = adamw.Config(rate=0.05, schedule=FALLS, decay=0.1)
MUON = muon.Config(rate=0.05, schedule=FALLS)


def grouped(*own: Group, limit: float | None = None) -> Config:
    return Config(groups=own, clip=None if limit is None else clip.Config(limit=limit))


def go(config: Config, params: Any, grads: list[Any], state: Any = None, first: int = 0) -> Any:
    state = groups.init(config, params) if state is None else state
    for step, g in enumerate(grads, start=first):
        params, state = groups.update(config, state, params, g, step)
    return params, state


BY_SHAPE = grouped(
    Group(name="hidden", optimiser=MUON, matrices=True),
    Group(name="vectors", optimiser=ADAMW, matrices=False),
)


@pytest.mark.clause("OPTIM-26")
def test_parameters_are_dispatched_by_shape() -> None:
    """Matrices move as under Muon alone, vectors as under AdamW alone."""
    params, grads = drawn()
    params["row"] = np.ones((1, 4))
    grads = [{**g, "row": g["b"][None]} for g in grads]
    taken = groups.assigned(BY_SHAPE, params)
    assert taken == {"hidden": ("wide", "tall", "heads"), "vectors": ("b", "row")}
    found, _ = go(BY_SHAPE, params, grads)
    for config, names in ((MUON, taken["hidden"]), (ADAMW, taken["vectors"])):
        alone = [{name: g[name] for name in names} for g in grads]
        want, _ = run(config, {name: params[name] for name in names}, alone)
        for name in names:
            assert_close(name, found[name], want[name], EXACT)


@pytest.mark.clause("OPTIM-26")
def test_the_first_group_that_takes_a_name_has_it() -> None:
    params = {name: np.ones((2, 2)) for name in ("a.W", "a.norm", "b.W", "head")}
    config = grouped(
        Group(name="a", optimiser=ADAMW, names=("a.*",), but=("*norm",)),
        Group(name="W", optimiser=ADAMW, names=("*.W",)),
        Group(name="rest", optimiser=None),
    )
    assert groups.assigned(config, params) == {
        "a": ("a.W",),
        "W": ("b.W",),
        "rest": ("a.norm", "head"),
    }


@pytest.mark.clause("OPTIM-26")
def test_a_group_without_an_optimiser_leaves_its_parameters() -> None:
    params, grads = drawn()
    config = grouped(
        Group(name="memory", optimiser=None, names=("heads",)),
        Group(name="rest", optimiser=ADAMW),
        limit=0.5,
    )
    grads = [{**g, "heads": np.full_like(g["heads"], np.nan)} for g in grads]
    found, state = go(config, params, grads)
    assert np.array_equal(found["heads"], params["heads"])
    assert state.states.keys() == {"rest"}
    without = [{name: x for name, x in g.items() if name != "heads"} for g in grads]
    again, _ = go(config, params, without)  # its gradients need not be there
    for name, p in again.items():
        assert_close(name, found[name], p, EXACT)


@pytest.mark.clause("OPTIM-26", "OPTIM-28")
@pytest.mark.host("arrays that are the same object")
def test_what_does_not_move_is_the_same_array() -> None:
    params, grads = drawn(steps=2)
    config = grouped(
        Group(name="memory", optimiser=None, names=("heads",)),
        Group(name="slow", optimiser=ADAMW, names=("b",), period=5),
        Group(name="rest", optimiser=ADAMW),
    )
    found, state = go(config, params, grads[:1])
    after, state = go(config, found, grads[1:], state, 1)
    assert [name for name in params if after[name] is found[name]] == ["heads", "b"]


@pytest.mark.clause("OPTIM-26")
def test_groups_that_cannot_be_are_named() -> None:
    params = {"W": np.ones((2, 2)), "b": np.ones(2)}
    only = Group(name="hidden", optimiser=MUON, matrices=True)
    with pytest.raises(ValueError, match=r"params\.b: shape \(2,\), no group takes it; groups are"):
        groups.init(grouped(only), params)
    late = Group(name="late", optimiser=ADAMW, names=("W",))
    rest = Group(name="rest", optimiser=ADAMW)
    with pytest.raises(ValueError, match=r"groups\.late: no parameter is left for it"):
        groups.init(grouped(rest, late), params)
    with pytest.raises(ValidationError, match="groups: two are called 'rest'"):
        grouped(rest, rest)
    with pytest.raises(ValueError, match=r"params\.b: shape \(2,\), muon needs a matrix"):
        groups.init(grouped(Group(name="all", optimiser=MUON)), params)
    for wrong in ({"name": "a/b"}, {"name": "a", "period": 0}, {"name": "a", "nams": ("x",)}):
        with pytest.raises(ValidationError):
            Group(optimiser=None, **wrong)


@pytest.mark.clause("OPTIM-27")
def test_the_norm_is_over_all_groups_of_this_step() -> None:
    params, grads = drawn()
    rules = {"a": sgd.Config(rate=0.1), "b": sgd.Config(rate=0.2)}
    config = grouped(
        Group(name="a", optimiser=rules["a"], names=("wide", "tall")),
        Group(name="b", optimiser=rules["b"], period=2),
        limit=2.0,
    )
    found, state = params, groups.init(config, params)
    assert state.norm is None
    want, waiting = dict(params), dict.fromkeys(params, 0.0)
    for step, g in enumerate(grads):
        found, state = groups.update(config, state, found, g, step)
        norm = np.sqrt(sum(np.sum(x**2) for x in g.values()))
        assert state.norm == pytest.approx(norm, rel=1e-14)
        for name in params:
            waiting[name] = waiting[name] + g[name] * min(1.0, 2.0 / norm)
            own = name in ("wide", "tall")
            if own or step % 2 == 0:
                want[name] = want[name] - (0.1 if own else 0.2) * waiting[name]
                waiting[name] = 0.0
    for name, p in found.items():
        assert np.allclose(p, want[name], rtol=1e-13, atol=1e-14)


@pytest.mark.clause("OPTIM-28", "OPTIM-29")
def test_a_group_with_a_period_moves_by_sums_and_counts_its_own_updates() -> None:
    """The sums by hand, given to AdamW alone, whose divisors then count applications."""
    params, grads = drawn(steps=11)
    config = grouped(
        Group(name="slow", optimiser=ADAMW, names=("wide", "b"), period=3),
        Group(name="fast", optimiser=ADAMW),
    )
    state, found = groups.init(config, params), params
    slow = {name: params[name] for name in ("wide", "b")}
    held, sums = adamw.init(ADAMW, slow), []
    for step, g in enumerate(grads):
        before = found
        found, state = groups.update(config, state, found, g, step)
        sums.append(g)
        if step % 3:
            assert all(np.array_equal(found[name], before[name]) for name in slow)
            assert state.waits["slow"] == len(sums)
        else:
            total = {name: np.zeros_like(p) for name, p in slow.items()}
            for each in sums:
                total = {name: x + each[name] for name, x in total.items()}
            slow, held = adamw.update(ADAMW, held, slow, total, step)
            sums = []
            assert state.waits["slow"] == 0
        for name, p in slow.items():
            assert_close(f"step {step} {name}", found[name], p, EXACT)
    assert state.states["slow"].count == 4  # steps 0, 3, 6, 9
    assert state.states["fast"].count == 11
    alone, _ = run(ADAMW, {"tall": params["tall"]}, [{"tall": g["tall"]} for g in grads])
    assert_close("a group does not see the other", found["tall"], alone["tall"], EXACT)


@pytest.mark.clause("OPTIM-28")
def test_what_waits_is_what_error_buffers_of_levels_hold() -> None:
    """The other implementation of CMS-11, driven by a conductor, which says what is active."""
    params, grads = drawn(steps=13)
    descent = sgd.Config(rate=0.1)
    config = grouped(
        Group(name="level 0", optimiser=descent, names=("wide",)),
        Group(name="level 1", optimiser=descent, names=("*",), period=4),
    )
    taken = groups.assigned(config, params)
    conductor = Conductor(periods=(1, 4), first_step=1)
    held = list(buffers.buffers(conductor, threshold=100.0))
    state, found, want = groups.init(config, params), params, dict(params)
    for step, g in enumerate(grads):
        active = {f"level {i}": conductor.pulse.is_active(i) for i in (0, 1)}
        found, state = groups.update(config, state, found, g, step, active=active)
        for i in (0, 1):
            part = {name: g[name] for name in taken[f"level {i}"]}
            held[i], applied, _ = buffers.add(held[i], part, conductor.pulse, i)
            assert state.waits[f"level {i}"] == held[i].count
            for name, x in (applied or {}).items():
                want[name] = want[name] - 0.1 * x
            for name, x in (held[i].total or {}).items():
                assert_close(name, state.waiting[f"level {i}"][name], x, EXACT)
        for name, p in found.items():
            assert_close(f"step {step} {name}", p, want[name], EXACT)
        conductor = conductor.tick()


@pytest.mark.clause("OPTIM-28")
def test_gradients_that_wait_are_copies() -> None:
    params, grads = drawn(steps=3)
    config = grouped(Group(name="slow", optimiser=sgd.Config(rate=1.0), period=2))
    state, found, room = (
        groups.init(config, params),
        params,
        {n: p.copy() for n, p in params.items()},
    )
    for step, g in enumerate(grads):  # a loop that writes each gradient into the same arrays
        for name in room:
            room[name][...] = g[name]
        found, state = groups.update(config, state, found, room, step)
    want, _ = go(config, params, grads)
    for name, p in found.items():
        assert_close(name, p, want[name], EXACT)


@pytest.mark.clause("OPTIM-28")
def test_a_group_that_is_not_there_cannot_be_active() -> None:
    params, grads = drawn(("b",))
    config = grouped(Group(name="slow", optimiser=ADAMW, period=2))
    state = groups.init(config, params)
    message = r"active: group 'slwo' does not exist; groups are slow; did you mean slow\?"
    with pytest.raises(ValueError, match=message):
        groups.update(config, state, params, grads[0], 0, active={"slwo": True})


@pytest.mark.clause("OPTIM-30")
def test_what_waits_at_the_end_is_applied_at_last() -> None:
    params, grads = drawn(steps=6)
    config = grouped(
        Group(name="slow", optimiser=ADAMW, names=("wide", "b"), period=4),
        Group(name="fast", optimiser=ADAMW),
    )
    before, state = go(config, params, grads)  # active at 0 and 4; one gradient waits
    assert state.waits == {"slow": 1, "fast": 0}
    found, after = groups.flush(config, state, before, 6)
    slow = {name: before[name] for name in ("wide", "b")}
    last = {name: grads[5][name] for name in slow}
    want, held = adamw.update(ADAMW, state.states["slow"], slow, last, 6)
    for name, p in want.items():
        assert_close(name, found[name], p, EXACT)
        assert_differs(name, found[name], before[name], 1e-4)
    assert all(np.array_equal(found[name], before[name]) for name in ("tall", "heads"))
    assert (after.states["slow"].count, held.count) == (3, 3)
    assert after.waits == {"slow": 0, "fast": 0}
    again, same = groups.flush(config, after, found, 7)
    assert all(np.array_equal(again[name], found[name]) for name in found)
    assert same == after


@pytest.mark.clause("OPTIM-31")
@pytest.mark.parametrize("stop", [1, 2, 3, 4])
def test_a_saved_state_goes_on_with_the_same_bits(stop: int, tmp_path: Any) -> None:
    """Also where gradients wait, of every optimiser."""
    params, grads = drawn(steps=7)
    config = grouped(
        Group(name="muon", optimiser=MUON, names=("wide",)),
        Group(name="slow m3", optimiser=m3.Config(rate=0.1), names=("heads",), period=3),
        Group(name="buffer", optimiser=flat.Config(rate=0.1), names=("tall",), period=2),
        Group(name="rest", optimiser=ADAMW),
        limit=3.0,
    )
    whole, last = go(config, params, grads)
    half, state = go(config, params, grads[:stop])
    path = tmp_path / "state.safetensors"
    safetensors.numpy.save_file(groups.tensors_of(state), path)
    again = groups.of_tensors(config, half, safetensors.numpy.load_file(path))
    found, after = go(config, half, grads[stop:], again, stop)
    for name, p in found.items():
        assert_close(name, p, whole[name], EXACT)
    want = groups.tensors_of(last)
    assert groups.tensors_of(after).keys() == want.keys()
    for name, x in groups.tensors_of(after).items():
        assert_close(name, x, want[name], EXACT)


@pytest.mark.clause("OPTIM-31")
def test_a_saved_state_that_does_not_fit_is_named() -> None:
    params, grads = drawn(("wide", "b"), steps=2)
    config = grouped(Group(name="slow", optimiser=sgd.Config(rate=0.1), period=2))
    params, state = go(config, params, grads)
    saved = groups.tensors_of(state)
    names = ["slow/count", "slow/waiting/b", "slow/waiting/wide", "slow/waits"]
    assert sorted(saved) == names
    bad: list[tuple[dict[str, Any], str]] = [
        (saved | {"fast/count": np.array(1)}, r"fast/count: group 'fast' does not exist; groups"),
        (saved | {"slow/m/b": np.ones(4)}, r"slow/m/b: unknown in the saved state"),
        (saved | {"slow/waiting/b": np.ones(3)}, r"slow/waiting/b: float64 \(3,\), float64 \(4,\)"),
        (saved | {"slow/waits": np.array(0)}, r"slow/waiting/\w+: unknown in the saved state"),
        (saved | {"slow/waits": np.array(-2)}, r"slow/waits: -2, a count is at least 0"),
        *(
            ({key: x for key, x in saved.items() if key != name}, rf"{name}: missing|unknown")
            for name in names
        ),
    ]
    for wrong, message in bad:
        with pytest.raises(ValueError, match=message):
            groups.of_tensors(config, params, wrong)


@pytest.mark.clause("OPTIM-1", "OPTIM-3")
def test_bad_gradients_are_named_and_nothing_has_moved() -> None:
    params, grads = drawn()
    state = groups.init(BY_SHAPE, params)
    bad = {**grads[0], "b": np.ones(3)}
    with pytest.raises(ValueError, match=r"grads\.b: shape \(3,\), the parameter has \(4,\)"):
        groups.update(BY_SHAPE, state, params, bad, 0)
    with pytest.raises(ValueError, match=r"grads\.c: no parameter has this name"):
        groups.update(BY_SHAPE, state, params, {**grads[0], "c": np.ones(3)}, 0)
    assert state == groups.init(BY_SHAPE, params)


@pytest.mark.clause("OPTIM-24", "OPTIM-26")
@pytest.mark.parametrize("in_place", [False, True])
def test_a_group_on_one_buffer_has_the_bits_of_adamw(in_place: bool) -> None:
    params, grads = drawn()
    rule = {"rate": 0.05, "schedule": FALLS, "decay": 0.1}
    on_buffer = flat.Config(**rule, in_place=in_place)
    found: Any = []
    for config in (on_buffer, adamw.Config(**rule)):
        whole = grouped(
            Group(name="hidden", optimiser=MUON, names=("wide", "tall")),
            Group(name="rest", optimiser=config, period=2),
        )
        found.append(go(whole, params, grads))
    for name, p in found[0][0].items():
        assert_close(name, p, found[1][0][name], EXACT)


@pytest.mark.clause("OPTIM-26")
def test_settings_are_json() -> None:
    text = json.dumps(json.loads(BY_SHAPE.model_dump_json()))
    again = TypeAdapter(Config).validate_json(text)
    assert again == BY_SHAPE
    assert type(again.groups[0].optimiser) is muon.Config
