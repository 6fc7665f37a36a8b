"""The list of layers as data: a further layer is one entry, with a state, a loss and whole numbers."""

from typing import Annotated, Any

import numpy as np
import pytest
from pydantic import Field

import atlas_ref
from atlas_ref import backend
from atlas_ref.models import MODULES, atlas_rnn
from atlas_ref.oracle.cases.case import make
from atlas_ref.oracle.cases.tensor_spec import Tensor
from atlas_ref.oracle.subjects import layer, layers
from atlas_ref.oracle.subjects.layer import ENTRIES
from atlas_ref.oracle.subjects.layers import Entry, States
from atlas_ref.types import Array, Dims, Frozen
from tape import ops, plain
from tests.docs.test_links import clauses


def test_every_entry_is_complete():
    known = set(clauses())
    for name, entry in ENTRIES.items():
        assert entry.module is MODULES[name]
        assert "grad" in entry.clauses
        assert callable(entry.result) or {"out", entry.result} & entry.clauses.keys()
        assert {each for each in entry.clauses.values() if each not in known} == set()
    assert ENTRIES.keys() == MODULES.keys()


# -- a layer that only these tests know ------------------------------------------------------------


class Sums:
    """y = x + w s, with the sum s of earlier tokens as state."""

    class Config(Frozen):
        d: int

    class Params(Frozen):
        w: Annotated[Array, Dims("d")]

    class State(Frozen):
        s: Annotated[Array, Dims("B d")]

    @staticmethod
    def init(config: Any, seed: int = 0) -> Any:
        return Sums.Params(w=np.ones(config.d))

    @staticmethod
    def start(config: Any, batch: int, *, dtype: Any = np.float64) -> Any:
        return Sums.State(s=backend.current().zeros((batch, config.d), dtype))

    @staticmethod
    def apply(config: Any, params: Any, state: Any, x: Array) -> Any:
        rows, s = [], state.s
        for t in range(x.shape[1]):
            rows.append(x[:, t] + params.w * s)
            s = s + x[:, t]
        return Sums.State.trusted(s=s), ops.stack(rows, axis=1)


class SumsSettings(Frozen):
    dim: Annotated[int, Field(ge=1)]
    calls: list[int] | None = None


def _run(call):
    results = layers.in_calls(call)
    y = results["out/y"]
    loss = ops.sum(y * y) if call.entry.loss else None
    best = np.argmax(backend.host(plain(y)), axis=-1)
    extra = {} if loss is None else {"out/loss": loss}
    return {**results, **extra, "out/greedy_cached": best.astype(np.int64)}


def entry(loss=""):
    module = atlas_rnn.Module(
        Sums,
        SumsSettings,
        sizes=lambda settings: {"dim": settings.dim},
        names=lambda settings: {"gain": atlas_rnn.Name("dim", ".w")},
        config=lambda settings, eps, constants: Sums.Config(d=settings.dim),
    )
    bar = {} if loss else {"in/y_bar": Tensor("B T dim", "no gradients")}
    return Entry(
        module,
        lambda settings: {
            "in/x": Tensor("B T dim"),
            "in/ids": Tensor("B", "none", low=0, whole=True),
            **bar,
        },
        _run,
        {"out/y": "LAYER-1", "grad": "LAYER-8"},
        states=States(
            "state",
            lambda config, state: {"S": state.s},
            lambda settings: {"S": Tensor("B dim", "0")},
            lambda config, tensors: Sums.State.trusted(s=tensors["S"]),
            each=True,
        ),
        loss=loss,
    )


HEADER = {"schema": 1, "rule": "layer", "layer": "rnn_memory", "parameters": {"dim": 3}}


@pytest.fixture
def sums(monkeypatch):
    """The layer under the name of one that is not yet computed."""
    monkeypatch.setitem(layer.ENTRIES, "rnn_memory", entry())


def tensors(seed=0):
    draw = np.random.default_rng(seed).standard_normal
    return {
        "in/x": draw((2, 5, 3)),
        "in/param/gain": draw(3),
        "in/state/S": draw((2, 3)),
        "in/y_bar": draw((2, 5, 3)),
        "in/state_bar/S": draw((2, 3)),
    }


@pytest.mark.clause("LAYER-7", "LAYER-8")
def test_a_state_enters_passes_from_call_to_call_leaves_and_has_a_cotangent(sums):
    own = tensors()
    header = {**HEADER, "parameters": {"dim": 3, "calls": [2, 1, 2]}}
    results = atlas_ref.evaluate(make(header, own), grad=True).tensors
    x, w, S = own["in/x"], own["in/param/gain"], own["in/state/S"]
    before = S[:, None] + np.concatenate(
        [np.zeros((2, 1, 3)), np.cumsum(x, axis=1)[:, :-1]], axis=1
    )
    assert np.allclose(results["out/y"], x + w * before, atol=1e-14)
    assert np.allclose(results["out/state/S"], S + x.sum(axis=1), atol=1e-14)
    assert np.allclose(results["out/state_after_call0/S"], S + x[:, :2].sum(axis=1), atol=1e-14)
    assert np.allclose(results["out/state_after_call1/S"], S + x[:, :3].sum(axis=1), atol=1e-14)
    y_bar, S_bar = own["in/y_bar"], own["in/state_bar/S"]
    assert np.allclose(results["grad/state/S"], w * y_bar.sum(axis=1) + S_bar, atol=1e-14)
    assert np.allclose(results["grad/param/gain"], (before * y_bar).sum(axis=(0, 1)), atol=1e-14)
    assert "grad/state_bar/S" not in results
    rows = atlas_ref.check(make(header, {**own, **results}))
    assert {row.verdict for row in rows} == {"PASS"}


@pytest.mark.clause("LAYER-7")
def test_a_case_without_a_state_starts_with_none(sums):
    own = {name: value for name, value in tensors().items() if "state" not in name}
    y = atlas_ref.evaluate(make(HEADER, own)).tensors["out/y"]
    assert np.array_equal(y[:, 0], own["in/x"][:, 0])


@pytest.mark.clause("LAYER-8")
def test_a_loss_has_gradients_without_a_cotangent(monkeypatch):
    monkeypatch.setitem(layer.ENTRIES, "rnn_memory", entry(loss="out/loss"))
    own = tensors()
    own = {name: own[name] for name in ("in/x", "in/param/gain")}
    results = atlas_ref.evaluate(make(HEADER, own), grad=True).tensors
    x, w = own["in/x"], own["in/param/gain"]
    before = np.concatenate([np.zeros((2, 1, 3)), np.cumsum(x, axis=1)[:, :-1]], axis=1)
    y = x + w * before
    assert results["out/loss"] == pytest.approx(np.sum(y * y), rel=1e-14)
    assert np.allclose(results["grad/param/gain"], (2 * y * before).sum(axis=(0, 1)), atol=1e-12)
    rows = atlas_ref.check(make(HEADER, {**own, **results}))
    assert {row.verdict for row in rows} == {"PASS"}


@pytest.mark.clause("LAYER-10")
def test_whole_numbers_must_be_equal_and_the_first_that_is_not_is_named(sums):
    own = tensors()
    results = atlas_ref.evaluate(make(HEADER, own)).tensors
    ids = results["out/greedy_cached"]
    assert ids.dtype == np.int64
    for wrong, words in (
        (ids + (np.arange(5) == 3), f"{ids[0, 3] + 1} at (0, 3), expected {ids[0, 3]}"),
        (ids[:, :4], "shape (2, 4), expected (2, 5)"),
        (ids.astype(np.float64), "dtype float64, whole numbers are needed"),
    ):
        case = make(HEADER, {**own, **results, "out/greedy_cached": wrong})
        (row,) = [row for row in atlas_ref.check(case) if row.verdict != "PASS"]
        assert (row.tensor, row.verdict, row.why) == ("out/greedy_cached", "WRONG", words)


@pytest.mark.clause("LAYER-3")
def test_tokens_by_number_are_whole_and_in_their_range(sums):
    own = tensors()
    make(HEADER, {**own, "in/ids": np.array([0, 7])})
    for ids, words in (
        (np.array([0.0, 7.0]), "in/ids: dtype float64, int64 or int32 is needed"),
        (np.array([3, -1]), r"in/ids: entries must be at least 0, found -1 at \(1,\)"),
    ):
        with pytest.raises(atlas_ref.CaseError, match=words):
            make(HEADER, {**own, "in/ids": ids})
    case = make(HEADER, {**own, "in/ids": np.array([0, 7])})
    assert "grad/ids" not in atlas_ref.evaluate(case, grad=True).tensors


@pytest.mark.clause("LAYER-11")
def test_a_further_layer_has_a_tolerance_too(sums):
    case = make(HEADER, tensors())
    mine = atlas_ref.evaluate(case, grad=True, dtype="float32").tensors
    rows = atlas_ref.check(make(HEADER, {**case.inputs, **mine}), dtype="float32")
    assert {row.verdict for row in rows} == {"PASS"}
