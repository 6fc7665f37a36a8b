"""The forms of dplr, DPLR-12 to DPLR-14, DPLR-17: the literal loops and the rule, in values and gradients."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import tape
from atlas_ref.engine.compiled import low_rank
from atlas_ref.engine.compiled import tokens as compiled_tokens
from atlas_ref.forms import dplr as forms
from atlas_ref.rules import dplr
from tape import ops
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs
from tests.support.linear_family import BY_ROW, FILES, MEMBERS, computed, drawn, recorded
from tests.truth import family_loops

#: Form and tokens that it takes at once, with the clauses of each.
WAYS = [pytest.param("sequential", None, marks=pytest.mark.clause("DPLR-12"))] + [
    pytest.param("chunk", size, marks=pytest.mark.clause("DPLR-12", "DPLR-13", "DPLR-14"))
    for size in (1, 3, 4, 16, None)
]
WAYS.append(pytest.param("scan", None, marks=pytest.mark.clause("DPLR-12", "DPLR-17")))
SIZES = [(1, 1, 2), (9, 3, 5), (21, 5, 2)]
SHAPES = {
    "k": (2, 13, 4),
    "v": (2, 13, 3),
    "q": (2, 13, 4),
    "retain": (2, 13, 4),
    "erase_read": (2, 13, 4),
    "erase_write": (2, 13, 4),
}


@pytest.fixture(autouse=True)
def short_sequences_are_compiled(monkeypatch):
    """No sequence is too short for the loop of the form scan, and each has several segments."""
    monkeypatch.setattr(compiled_tokens, "WORK", 0)
    monkeypatch.setattr(low_rank, "SEGMENT", 8)


def taking(form: str, chunk: int | None) -> Any:
    return lambda config, tokens, state: forms.run(form, config, tokens, state, chunk)


def arrays(seed: int = 0, **changes: Any) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    x = {name: 0.5 * draw.standard_normal(shape) for name, shape in SHAPES.items()}
    x |= {"retain": draw.uniform(0.0, 1.0, SHAPES["retain"])} | changes
    return {name: value for name, value in x.items() if value is not None}


def results(
    x: dict[str, Any], form: str, chunk: int | None = None, M: Any = None, **settings: Any
) -> dict[str, Any]:
    config = dplr.Config(**({"d_in": 4, "d_out": 3} | settings))
    state = dplr.start(config, x["v"].shape[:-2]) if M is None else dplr.State(M=M)
    state, y = forms.run(form, config, dplr.Tokens(**x), state, chunk)
    return {"y": y, "M": state.M}


def with_extremes(x: dict[str, Any]) -> dict[str, Any]:
    """The same inputs with some log gates of 0, -100 and -1000."""
    if "log_decay" in x:
        logs = x["log_decay"].copy()
        logs[:, :, 1::5], logs[:, :, 2::7], logs[:, 0, 3::4] = 0.0, -100.0, -1000.0
        x = x | {"log_decay": logs}
    return x


# -- the literal loops -----------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("member", MEMBERS)
@pytest.mark.parametrize(("form", "chunk"), WAYS)
def test_each_form_is_the_literal_loop_of_every_member(form, chunk, member, sizes):
    for seed, change in ((5, dict), (6, with_extremes)):
        x = change(drawn(member, seed, sizes))
        got, want = computed(member, x, taking(form, chunk)), family_loops.run(member, x)
        for name, value in want.items():
            assert_close(name, got[name], value, ANALYTIC)


@pytest.mark.parametrize("member", MEMBERS)
@pytest.mark.parametrize(("form", "chunk"), WAYS)
def test_gradients_are_those_of_the_literal_loop_by_complex_step(form, chunk, member):
    """Along a random direction of each input, by loops that share nothing with tape or form."""
    x, draw = with_extremes(drawn(member, 7, (11, 4, 3))), np.random.default_rng(3)
    bars = {name: draw.standard_normal(value.shape) for name, value in computed(member, x).items()}

    def loss(inputs, run):
        got = run(member, inputs)
        return sum(ops.sum(bars[name] * got[name]) for name in bars)

    by_form = functools.partial(computed, run=taking(form, chunk))
    own = tape.grad(lambda inputs: loss(inputs, by_form))(x)
    for name, value in x.items():
        along = draw.standard_normal(value.shape)
        moved = {**x, name: value + 1e-30j * along}
        want = loss(moved, family_loops.run).imag / 1e-30
        assert_close(name, np.sum(own[name] * along), want, ANALYTIC)


@pytest.mark.parametrize("file", [f for f in FILES if f not in BY_ROW], ids=lambda file: file.stem)
@pytest.mark.parametrize(("form", "chunk"), WAYS[2:])
def test_recordings_of_public_code_are_met(form, chunk, file):
    member, x, bars, want, gradients = recorded(file)
    by_form = functools.partial(computed, run=taking(form, chunk))
    for name, value in want.items():
        assert_close(name, by_form(member, x)[name], value, ANALYTIC)

    def loss(inputs):
        got = by_form(member, inputs)
        return sum(ops.sum(bars[name] * got[name]) for name in bars)

    own = tape.grad(loss)(x)
    for name, value in gradients.items():
        assert_close(f"grad/{name}", own[name], value, ANALYTIC)


# -- the settings that no member has ---------------------------------------------------------------

ACTIVE = np.arange(13) % 4 != 1
RESET = np.isin(np.arange(13), (3, 4, 11))
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "inactive": ({"active": ACTIVE}, {}),
    "inactive, decay before": ({"active": ACTIVE}, {"decay": "before_error"}),
    "packed": ({"reset": RESET}, {}),
    "packed, inactive, scaled": (
        {"reset": RESET, "active": ACTIVE},
        {"query_scale": "1/sqrt(d_in)"},
    ),
    "bonus, erase, packed, inactive": (
        {"reset": RESET, "active": ACTIVE, "bonus": np.array([0.3, -0.2, 1.0, 0.0])},
        {"decay": "before_error"},
    ),
    "bonus of each head": ({"bonus": np.linspace(-1, 1, 8).reshape(2, 4)}, {}),
    "scalar gate": ({"retain": np.linspace(0.0, 1.0, 26).reshape(2, 13)}, {}),
    "no gate": ({"retain": None}, {}),
    "no erase, packed": ({"erase_read": None, "erase_write": None, "reset": RESET}, {}),
    "groups": ({name: arrays(3)[name][:1] for name in ("k", "q")}, {"groups": 2}),
    "three steps": (
        {
            "q": arrays(3)["q"][:, :4],
            "retain": arrays(4)["retain"][:, :4],
            **{name: arrays(3)[name][:, :12] for name in ("k", "v", "erase_read", "erase_write")},
            "active": ACTIVE[:4],
            "reset": RESET[:4],
        },
        {"steps": 3},
    ),
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(("form", "chunk"), WAYS[1:])
def test_every_setting_is_the_rule_in_values_and_gradients(form, chunk, setting):
    changes, settings = SETTINGS[setting]
    x, M = arrays(1, **changes), np.random.default_rng(2).standard_normal((2, 3, 4))
    got, want = results(x, form, chunk, M, **settings), results(x, "sequential", M=M, **settings)
    bars = {name: np.random.default_rng(4).standard_normal(want[name].shape) for name in want}
    for name, value in want.items():
        assert_close(name, got[name], value, ANALYTIC)
    numbers = {name: value for name, value in x.items() if value.dtype.kind == "f"} | {"M": M}

    def loss(inputs, form, chunk=None):
        given = {**x, **{name: value for name, value in inputs.items() if name != "M"}}
        got = results(given, form, chunk, inputs["M"], **settings)
        return sum(ops.sum(bars[name] * got[name]) for name in bars)

    own = tape.grad(lambda inputs: loss(inputs, form, chunk))(numbers)
    true = tape.grad(lambda inputs: loss(inputs, "sequential"))(numbers)
    for name, value in true.items():
        assert_close(f"grad/{name}", own[name], value, ANALYTIC)


@pytest.mark.parametrize("shape", [(2, 13), (2, 13, 4)], ids=str)
@pytest.mark.parametrize(("form", "chunk"), WAYS)
def test_logs_of_gates_are_the_gates_and_of_minus_infinity_0(form, chunk, shape):
    logs = -3.0 * np.random.default_rng(8).random(shape)
    logs[:, 2], logs[:, 5], logs[0, 7] = -np.inf, -1000.0, 0.0
    x, M = arrays(8, retain=None), np.random.default_rng(2).standard_normal((2, 3, 4))

    def loss(logs, form, chunk=None):
        got = results(x | {"log_retain": logs}, form, chunk, M)
        return ops.sum(got["y"] * got["y"]) + ops.sum(got["M"])

    got = results(x | {"log_retain": logs}, form, chunk, M)
    for name, value in results(x | {"retain": np.exp(logs)}, "sequential", M=M).items():
        assert_close(name, got[name], value, ANALYTIC)
    own, true = (tape.grad(loss)(logs, *way) for way in ((form, chunk), ("sequential",)))
    assert_close("log_retain", own, true, ANALYTIC)
    assert np.isfinite(own).all()


@pytest.mark.clause("DPLR-13", "DPLR-14")
@pytest.mark.parametrize("decay", ["after_error", "before_error"])
def test_gradients_of_the_chunk_form_are_its_complex_step_at_gates_of_zero(decay):
    x = arrays(5)
    x["retain"][0, 2:4], x["retain"][1, :, 1] = 0.0, 0.0

    def loss(inputs):
        got = results(inputs, "chunk", 5, decay=decay)
        return ops.sum(got["y"] * got["y"]) + ops.sum(got["M"])

    own, want = tape.grad(loss)(x), tape.check.complex_step(loss, x)
    for name, value in want.items():
        assert_close(name, own[name], value, ANALYTIC)


# -- calls -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", range(1, 13))
@pytest.mark.parametrize(("form", "chunk"), [*WAYS[:4], WAYS[-1]])
def test_a_split_call_is_the_whole_one_and_where_chunks_end_bit_for_bit(form, chunk, cut):
    x, M = arrays(6), np.random.default_rng(6).standard_normal((2, 3, 4))
    whole = results(x, form, chunk, M)
    first = results({name: value[:, :cut] for name, value in x.items()}, form, chunk, M)
    rest = {name: value[:, cut:] for name, value in x.items()}
    second = results(rest, form, chunk, first["M"])
    tolerance = ANALYTIC if chunk and cut % chunk else EXACT
    y = np.concatenate([first["y"], second["y"]], axis=1)
    assert_close("y", y, whole["y"], tolerance)
    assert_close("M", second["M"], whole["M"], tolerance)
    other = results(rest, "sequential", M=first["M"])  # forms continue each other
    assert_close("M", other["M"], whole["M"], ANALYTIC)
    assert_differs("M", results(rest, form, chunk)["M"], whole["M"], 1e-6)


@pytest.mark.clause("DPLR-12", "DPLR-14")
def test_scores_that_are_made_group_by_group_are_the_same(monkeypatch):
    whole = results(arrays(7), "chunk", 2)
    monkeypatch.setattr("atlas_ref.forms.dplr.chunk.SCORES_BYTES", 1)
    for name, value in results(arrays(7), "chunk", 2).items():
        assert_close(name, value, whole[name], EXACT)


@pytest.mark.clause("DPLR-12")
@pytest.mark.parametrize(
    ("form", "chunk", "message"),
    [
        ("exact", None, "form: 'exact', expected one of sequential, "),
        ("chunk", 0, "chunk: 0, expected at least 1"),
    ],
)
def test_another_form_and_no_chunk_are_refused(form, chunk, message):
    with pytest.raises(ValueError, match=message):
        results(arrays(), form, chunk)


@pytest.mark.clause("DPLR-12", "DPLR-18")
@pytest.mark.parametrize("form", ["scan", "chunk"])
def test_a_factor_for_each_row_of_the_erase_is_refused_by_name(form):
    x = arrays(erase_scale=np.ones((2, 13, 3)))
    with pytest.raises(ValueError, match=f"form: {form} has one erase for all rows of M, and a"):
        results(x, form)
    assert_close("M", results(x, "sequential")["M"], results(arrays(), form)["M"], ANALYTIC)


@pytest.mark.clause("DPLR-12")
@pytest.mark.parametrize("form", forms.FORMS)
def test_a_form_refuses_what_the_rule_refuses(form):
    with pytest.raises(ValueError, match=r"erase_write: shape \(2, 13, 3\), expected"):
        results(arrays(erase_write=np.ones((2, 13, 3))), form)
