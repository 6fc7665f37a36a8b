"""Adjoints: no alarm for those of the trace, and the wrong op named for a faulty backward by
hand.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atlas_ref.oracle.cases.case import CaseError
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.replay.replay import first_wrong, replay
from atlas_ref.oracle.replay.trace import trace
from tests.support.strategies import cases, repeatable
from tests.support.traced_cases import KINDS, small


def told(found):
    return [(each.op, each.verdict, each.ratio) for each in found if each.verdict != "PASS"]


@pytest.mark.sample(16)
@pytest.mark.clause("REPLAY-23")
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_right_adjoints_raise_no_alarm(kind, dtype):
    case = small(kind)
    whole = trace(case, grad=True, dtype=dtype)
    found = replay(case, whole, dtype=dtype)
    assert len(found) == len(whole)
    assert told(found) == []


@pytest.mark.clause("REPLAY-10", "REPLAY-23")
@settings(repeatable, max_examples=20)
@given(cases(), st.data())
def test_any_subset_of_right_adjoints_raises_no_alarm(case, data):
    dtype = data.draw(st.sampled_from(["float64", "float32", "bfloat16"]))
    whole = trace(case, grad=True, dtype=dtype)
    names = data.draw(st.lists(st.sampled_from(sorted(whole)), min_size=1, unique=True))
    assert told(replay(case, {name: whole[name] for name in names}, dtype=dtype)) == []


@pytest.mark.sample(1)
@pytest.mark.clause("REPLAY-23")
@pytest.mark.parametrize("kind", KINDS)
def test_one_wrong_adjoint_is_named(kind):
    """One adjoint with a changed number: those computed from the old number disagree, all later
    ones are right.
    """
    case, draw = small(kind), np.random.default_rng(2)
    whole = trace(case, grad=True)
    names = [name for name in whole if name.startswith("trace_grad/")]
    lead = whole["trace/y"].ndim - 2
    for _ in range(5):
        name = str(draw.choice(names))
        value = whole[name].copy()
        place = tuple(int(draw.integers(n)) for n in value.shape)
        if value[place] == 0.0:
            continue  # nothing depends on it
        value[place] *= 1.01
        found = replay(case, {**whole, name: value}, nearest=False)
        first = first_wrong(found)
        assert (first.op, first.token, first.verdict) == (name, place[lead], "WRONG")


def backward(case, values, *, mistake=""):
    """Adjoints of Titans LMM by hand, one token after the other, with a mistake on request
    (TITANS-15).
    """
    k, q, y_bar = (case.inputs[f"in/{name}"] for name in ("k", "q", "y_bar"))
    r, m, h = (
        case.inputs[f"in/{name}"][..., None, None] for name in ("retain", "momentum", "step_size")
    )
    names = ("M", "S", "gradient", "residual")
    made = {name: np.zeros_like(values[f"trace/{name}"]) for name in names}
    M_carry = np.zeros_like(values["trace/M"][:, 0])
    S_carry = np.zeros_like(M_carry)
    for t in reversed(range(k.shape[1])):
        M_bar = M_carry + y_bar[:, t, :, None] * q[:, t, None, :]
        S_bar = S_carry - M_bar
        g_bar = S_bar if mistake == "rate left out" else h[:, t] * S_bar
        e_bar = (g_bar @ k[:, t, :, None])[..., 0]
        through_error = e_bar[:, :, None] * k[:, t, None, :]
        if mistake == "spurious transpose":
            through_error = through_error.swapaxes(-1, -2)
        M_carry = r[:, t] * M_bar + through_error
        S_carry = m[:, t] * S_bar
        if mistake == "carry of M dropped":
            M_carry = through_error
        if mistake == "carry of S dropped":
            S_carry = 0.0 * S_carry
        for name, value in (
            ("M", M_bar),
            ("S", S_bar),
            ("gradient", g_bar),
            ("residual", e_bar[:, None]),
        ):
            made[name][:, t] = value
    return {f"trace_grad/{name}": value for name, value in made.items()}


@pytest.mark.sample(4)
@pytest.mark.clause("REPLAY-15", "REPLAY-23")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("mistake", "op", "token"),
    [
        ("", None, None),
        ("rate left out", "trace_grad/gradient", 5),
        ("spurious transpose", "trace_grad/M", 4),
        ("carry of M dropped", "trace_grad/M", 4),
        ("carry of S dropped", "trace_grad/S", 4),
    ],
)
def test_a_mistake_of_a_backward_pass_is_named_where_it_shows_first(mistake, op, token, dtype):
    case = new(
        Request(rule="titans_lmm", draw=1, tokens=6, d_in=3, d_out=3, seed=1, cotangent=True)
    )
    kind = trace(case, dtype=dtype)["trace/M"].dtype
    whole = trace(case)
    mine = {
        name: value.astype(kind)
        for name, value in (whole | backward(case, whole, mistake=mistake)).items()
    }
    found = replay(case, mine, nearest=False)
    first = first_wrong(found)
    assert (None if first is None else (first.op, first.token)) == (
        None if op is None else (op, token)
    )
    if first is not None and token == 4:
        assert first.before.endswith("every recorded adjoint is right at token 5")
        assert first.gap == ()
    alone = first_wrong(
        replay(case, {name: mine[name] for name in mine if name != "trace_grad/S"}, nearest=False)
    )
    if mistake == "carry of S dropped":
        assert (alone.op, alone.gap) == ("trace_grad/gradient", ("S",))


@pytest.mark.clause("REPLAY-23")
def test_adjoints_need_a_cotangent():
    case = new(Request(rule="delta", tokens=3))
    mine = {"trace_grad/M": trace(case)["trace/M"]}
    with pytest.raises(CaseError) as caught:
        replay(case, mine)
    assert str(caught.value) == "new: in/y_bar: missing, adjoints need it"
