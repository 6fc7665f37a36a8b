"""The presets of TNT against the equations as printed, appendix C, and NL_Hecate's code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

import tape
from atlas_ref.forms import tnt
from atlas_ref.forms.tnt import clone, pieces
from atlas_ref.rules.sequence import Tokens
from tape import ops
from tests.support.close import assert_close, assert_differs, reordered
from tests.support.directions import check_directions
from tests.support.tnt import C_G, D_OUT, Setup, T, drawn_tokens, rule_config, setup
from tests.truth import tnt_loops as loops

LOOPS = reordered(T, amplification=4)
COTANGENT = np.random.default_rng(9).standard_normal((T, D_OUT))
SPANS, SHARDS = (3, 4, 1), (6, 8, 5)  # chunks that divide their shards, as xi is printed


def preset(name: str, rule: str = "titans_lmm", **changes: Any) -> Setup:
    """A preset without gates, with the inputs of `setup`."""
    setting = setup(rule, 3, seed=2, gated=False, spans=SPANS, shards=SHARDS)
    config = rule_config(rule, gate="none")
    sizes = {"span": C_G, "spans": SPANS, "shards": SHARDS} | changes
    return setting._replace(config=tnt.preset(name, config, **sizes))


TRUTHS = {
    "paper": loops.paper,
    "paper-literal": loops.printed,
    "paper-app-c": loops.app_c,
}


@pytest.mark.clause("TNT-3", "TNT-5", "TNT-12")
@pytest.mark.parametrize("name", TRUTHS)
def test_a_preset_is_what_its_source_prints(name: str) -> None:
    setting = preset(name)
    state, y = setting.run()
    want = TRUTHS[name](setting.memories())
    assert_close("y", y, want.y, LOOPS)
    for place, M in list(zip(state.places, want.M, strict=True))[name == "paper-literal" :]:
        assert_close("W", place.memory.M, M, LOOPS)
    check_directions(
        lambda leaves: ops.sum(setting.run(leaves)[1] * COTANGENT),
        setting.leaves,
        loops=lambda leaves: np.sum(TRUTHS[name](setting.memories(leaves)).y * COTANGENT),
        tolerance=1e-11,
    )


@pytest.mark.clause("TNT-12")
def test_presets_differ_from_each_other() -> None:
    reads = {name: preset(name).run()[1] for name in TRUTHS}
    assert_differs("literal", reads["paper-literal"], reads["paper"], 0.1)
    assert_differs("appendix C", reads["paper-app-c"], reads["paper"], 0.1)
    assert set(tnt.PRESETS) == set(TRUTHS)


@pytest.mark.clause("TNT-3", "TNT-11")
def test_the_literal_reading_is_cut_anywhere() -> None:
    setting = preset("paper-literal")
    named = setting.leaves["tokens"][0]
    _, y = setting.run()
    for at in (4, 5, 6, 7, 10, 18):
        state, reads = tnt.start(setting.config, setting.params()), []
        for rows in (slice(0, at), slice(at, T)):
            part = Tokens(**{name: x[rows] for name, x in named.items()})
            state, one = tnt.run(setting.config, setting.params(), part, state)
            reads.append(one)
        assert_close(f"y cut at {at}", np.concatenate(reads), y, LOOPS)


@pytest.mark.clause("TNT-12")
def test_a_preset_that_cannot_be_is_refused() -> None:
    for changes, words in (
        ({"name": "paper-2"}, "preset: 'paper-2' is not one of paper, paper-literal, paper-app-c"),
        ({"name": "nl-hecate"}, r"paper-app-c; that is atlas_ref\.forms\.tnt\.clone"),
        ({"shards": (6,)}, "shards: 1, expected one for each of 3 spans"),
    ):
        name = str(changes.pop("name", "paper"))
        with pytest.raises(ValueError, match=words):
            preset(name, **changes)
    for rule in ("delta", "omega"):
        with pytest.raises(ValidationError, match=r"sum: inclusive|base: previous"):
            preset("paper-literal", rule)
    with pytest.raises(ValueError, match="momentum: given, but sum inclusive"):
        run_with_momentum("paper-literal", 0)
    with pytest.raises(ValueError, match="momentum: given, but base previous"):
        run_with_momentum("paper-literal", 1)


def run_with_momentum(name: str, place: int) -> None:
    """Run a preset whose memory at `place` alone is given a momentum."""
    setting = preset(name)
    named = setting.leaves["tokens"][0]
    bare = Tokens(**named)
    each = [bare] * 4
    each[place] = bare.replaced(momentum=np.full(T, 0.5))
    params = setting.params()
    tnt.run(setting.config, params, tuple(each), tnt.start(setting.config, params))


# -- clones ----------------------------------------------------------------------------------------


def clones(summary: Any = "mean", rule: str = "titans_lmm", **changes: Any) -> tuple[Any, Any]:
    """Settings of clones and their inputs: {"tokens", "V", "W"}."""
    random = np.random.default_rng(4)
    config = clone.Config(
        config=rule_config(rule, d_in=D_OUT), shard=9, span=4, summary=summary, **changes
    )
    leaves = {
        "tokens": drawn_tokens(rule, random, d_in=D_OUT),
        "V": 0.5 * random.standard_normal((D_OUT, D_OUT)),
    }
    if summary == "attention":
        leaves["W"] = random.standard_normal((D_OUT, D_OUT))
    return config, leaves


def run_clones(config: Any, leaves: Any) -> tuple[clone.State, Any]:
    params = clone.Params(V=leaves["V"], W_summary=leaves.get("W"))
    tokens = Tokens(**leaves["tokens"])
    return clone.run(config, params, tokens, clone.start(config, params, dtype=tokens.k.dtype))


def loop_of_clones(config: Any, leaves: Any, **more: Any) -> tuple[Any, list[Any]]:
    named = dict(leaves["tokens"])
    named["weights"] = named.pop("window_weights", None)
    words = {"last_state": "last"}
    return loops.clones(
        loops.Inputs(**named),
        leaves["V"],
        shard=config.shard,
        chunk=config.span,
        summary=words.get(config.summary, config.summary),
        W_summary=leaves.get("W"),
        **more,
    )


CLONES = [
    ("titans_lmm", "mean"),
    ("delta", "attention"),
    ("hebbian", "mean"),
    ("omega", "last_state"),
]


@pytest.mark.clause("TNT-20", "TNT-21")
@pytest.mark.parametrize(("rule", "summary"), CLONES)
def test_clones_are_their_loop(rule: str, summary: str) -> None:
    config, leaves = clones(summary, rule)
    state, y = run_clones(config, leaves)
    want, states = loop_of_clones(config, leaves)
    assert_close("y", y, want, LOOPS)
    assert_close("V", state.V, states[2], LOOPS)
    params = clone.Params(V=leaves["V"], W_summary=leaves.get("W"))
    assert_close("V as a call ends", clone.flushed(config, params, state), states[3], LOOPS)
    assert state.reads.shape == (0 if summary == "last_state" else 5, D_OUT)


@pytest.mark.clause("TNT-22")
@pytest.mark.parametrize("gradient", ["full", "stop"])
@pytest.mark.parametrize(("rule", "summary"), CLONES)
def test_gradients_of_clones_pass_or_stop(rule: str, summary: str, gradient: str) -> None:
    config, leaves = clones(summary, rule, clone_gradient=gradient)
    states = np.array(loop_of_clones(config, leaves)[1])
    stopped = None if gradient == "full" else states

    def loss(leaves: Any) -> Any:
        return ops.sum(run_clones(config, leaves)[1] * COTANGENT)

    check_directions(
        loss,
        leaves,
        loops=lambda leaves: np.sum(loop_of_clones(config, leaves, stopped=stopped)[0] * COTANGENT),
        tolerance=1e-11,
    )
    if gradient == "stop":
        found = tape.grad(loss)(leaves)
        assert all(not np.any(found[name]) for name in ("V", "W") if name in found)


@pytest.mark.clause("TNT-20")
@pytest.mark.parametrize(("rule", "summary"), CLONES)
def test_clones_are_cut_anywhere(rule: str, summary: str) -> None:
    config, leaves = clones(summary, rule)
    whole, y = run_clones(config, leaves)
    params = clone.Params(V=leaves["V"], W_summary=leaves.get("W"))
    tokens = Tokens(**leaves["tokens"])
    for at in (1, 4, 6, 9, 11, 18, 22):
        state, first = clone.run(
            config, params, pieces.cut(tokens, 0, at), clone.start(config, params)
        )
        state, second = clone.run(config, params, pieces.cut(tokens, at, T), state)
        assert_close(f"y cut at {at}", np.concatenate([first, second]), y, LOOPS)
        assert_close(f"V cut at {at}", state.V, whole.V, LOOPS)


@pytest.mark.clause("TNT-20")
def test_a_document_begins_again_at_the_first_memory() -> None:
    config, leaves = clones()
    params = clone.Params(V=leaves["V"])
    tokens = Tokens(**leaves["tokens"])
    marked = tokens.replaced(reset=np.arange(T) == 7)
    _, y = clone.run(config, params, marked, clone.start(config, params))
    _, alone = clone.run(config, params, pieces.cut(tokens, 7, T), clone.start(config, params))
    assert_close("second document", y[7:], alone, LOOPS)


@pytest.mark.clause("TNT-20", "TNT-22")
def test_clones_that_mean_nothing_are_refused() -> None:
    assert clone.PRESETS == {"nl-hecate": {"clone_gradient": "stop"}}
    with pytest.raises(ValidationError, match=r"adds s s\^T, so that d_out must be d_phi"):
        clone.Config(config=rule_config("delta"), shard=4, span=2)
    with pytest.raises(ValidationError, match="form chunkwise: the reference is running"):
        clones(form="chunkwise")
    config, leaves = clones("attention")
    with pytest.raises(ValueError, match="W_summary: missing, but summary is attention"):
        clone.start(config, clone.Params(V=leaves["V"]))
    tokens = Tokens(**leaves["tokens"]).replaced(active=np.arange(T) > 0)
    params = clone.Params(W_summary=leaves["W"])
    with pytest.raises(ValueError, match="active: every token of a TNT writes"):
        clone.run(config, params, tokens, clone.start(config, params))
