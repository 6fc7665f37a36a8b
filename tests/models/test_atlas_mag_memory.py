"""Atlas-MAG with its memories: recorded blocks and models, the model's guarantees, and its leak."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tape
from atlas_ref.blocks import mag
from atlas_ref.layers import shared_memory
from atlas_ref.models import atlas_mag, checkpoint, language_model
from atlas_ref.models.atlas_mag import names
from atlas_ref.models.shapes import params_of
from tape import ops
from tape.nested import flatten
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs, reordered
from tests.support.directions import check_directions
from tests.support.layers import Recorded, recorded
from tests.support.shared_memories import SETTINGS, drawn

pytestmark = pytest.mark.host("recorded arrays")

FOLDER = "peers_atlas_mag"
BLOCKS = ["block_ttl", "block_ttl_adaptive", "block_ttl_off", "block_inference"]
MODELS = ["ttl", "ttl_adaptive", "inference"]
Tensors = dict[str, Any]


def settings_of(file: Recorded) -> atlas_mag.Settings:
    """The arguments of a recorded block or model."""
    own = {"vocab_size": 1, "n_layers": 1, **file.settings}
    if "in/buffer/qk_memory.norm_persistent" in file.tensors:
        size = float(file.tensors["in/buffer/qk_memory.norm_persistent"]) / own["dim"]
        own["persistent_size"] = size
    fields = atlas_mag.Settings.model_fields
    return atlas_mag.Settings(**{name: x for name, x in own.items() if name in fields})


def after(state: mag.State, place: str = "") -> Tensors:
    """Parameters and momenta of the memory of a block after a call, by recorded names."""
    tensors, momenta = atlas_mag.of_state(state.memory)
    return {f"state/param/{place}memory.{name}": each for name, each in tensors.items()} | {
        f"state/buffer/{place}memory.{name}": each for name, each in momenta.items()
    }


def same(found: Tensors, wanted: Tensors) -> None:
    assert wanted
    for key, want in wanted.items():
        assert_close(key, found[key], want, ANALYTIC)


@pytest.mark.clause("MAG-2", "MAG-3", "MAG-4", "MAG-5", "SHARED-2", "SHARED-4", "DEEP-20")
@pytest.mark.parametrize("name", BLOCKS)
def test_a_recorded_block_its_memory_after_it_and_its_gradients(name: str) -> None:
    file = recorded(f"mag_{name}", FOLDER)
    settings, tensors = settings_of(file), file.tensors
    config, x = atlas_mag.block(settings), tensors["in/x"]
    momenta = atlas_mag.momenta(settings, file.named("in/buffer/"), "memory.")
    start = mag.start(config, len(x), initial={"momentum": momenta})

    def run(at: Tensors) -> Any:
        return mag.apply(config, atlas_mag.block_parameters(settings, at), start, at["x"])

    at = file.named("in/param/") | {"x": x}
    state, y = run(at)
    assert_close("y", y, tensors["out/y"], ANALYTIC)
    if settings.learns:
        same(after(state), {k: v for k, v in file.named("out/").items() if k.startswith("state/")})
    gradient = tape.grad(lambda at: ops.sum(run(at)[1] * tensors["in/y_bar"]))(at)
    same(gradient, file.named("grad/param/") | {"x": tensors["grad/x"]})


@pytest.mark.clause("MAG-2", "MAG-4", "MAG-5", "MODEL-1", "MODEL-5", "BLOCKS-10")
@pytest.mark.parametrize("name", MODELS)
def test_a_recorded_model_in_its_calls_with_memories_after_each_and_all_gradients(
    name: str,
) -> None:
    """Gradients are those of the last call at the memories that it left, as if it had begun there."""
    file = recorded(f"mag_skeleton_{name}", FOLDER)
    settings = settings_of(file)
    config, theirs = atlas_mag.model(settings), file.named("in/param/")
    calls = file.settings["calls"]
    buffers = file.named("in/buffer/")
    initial = [
        {"momentum": atlas_mag.momenta(settings, buffers, f"blocks.{i}.memory.")}
        for i in range(settings.n_layers)
    ]
    start = language_model.start(config, 2, initial=initial)

    def run(at: Tensors, each: Any = None) -> Any:
        state, params = start, atlas_mag.parameters(settings, at)
        for i in range(calls):
            place = f"call{i}/" if calls > 1 else ""
            ids = file.tensors[f"in/{place}ids"]
            if each is not None:
                _, logits = language_model.apply(config, params, state, ids[:, :-1])
            state, loss = language_model.loss(config, params, state, ids)
            if each is not None:
                each(place, logits, loss, state)
        return loss

    def compared(place: str, logits: Any, loss: Any, state: Any) -> None:
        want = file.named(f"out/{place}")
        assert_close("logits", logits, want["logits"], ANALYTIC)
        assert_close("loss", loss, want["loss"], ANALYTIC)
        found: Tensors = {}
        for i, block in enumerate(state.blocks):
            found |= after(block, f"blocks.{i}.")
        states = {key: x for key, x in want.items() if key.startswith("state/")}
        assert bool(states) == settings.learns
        if states:
            same(found, states)

    run(theirs, compared)
    same(tape.grad(run)(theirs), file.named("grad/param/"))


@pytest.mark.clause("MODEL-14", "MAG-6")
@pytest.mark.parametrize("name", atlas_mag.CONFIGURATIONS)
@pytest.mark.parametrize("changes", [{}, {"poly_rank": 512}, {"memory_mlp": "gelu"}], ids=str)
def test_the_model_has_as_many_parameters_as_the_public_one(name: str, changes: Tensors) -> None:
    settings = atlas_mag.CONFIGURATIONS[name].replaced(**changes)
    needed = flatten(params_of(atlas_mag.model(settings)), "params")[0]
    assert sum(math.prod(each.shape) for each in needed) == atlas_mag.count(settings)


# -- the causal reading ----------------------------------------------------------------------------


def model_of(preset: str, **changes: Any) -> Any:
    """A model away from its start, and ids of three rows."""
    own = {"chunk": 3} | changes if preset == "causal" else changes
    config = atlas_mag.model(SETTINGS.replaced(training=True), preset, **own)
    ids = np.random.default_rng(5).integers(0, SETTINGS.vocab_size, (3, 14))
    return config, drawn(language_model, config, 1), ids


def logits_of(config: Any, params: Any, ids: Any) -> Any:
    return language_model.apply(config, params, language_model.start(config, len(ids)), ids)[1]


@pytest.mark.clause("MODEL-4", "SHARED-8", "MAG-5")
@pytest.mark.parametrize("changes", [{}, {"chunk": 1}, {"read": "before"}], ids=str)
def test_no_id_changes_logits_before_it_or_of_another_row_under_causal(changes: Tensors) -> None:
    config, params, ids = model_of("causal", **changes)
    assert config.causal
    logits = logits_of(config, params, ids)
    for t in (0, 2, 7, 13):
        other = ids.copy()
        other[0, t] = (other[0, t] + 1) % SETTINGS.vocab_size
        changed = logits_of(config, params, other)
        assert_close("before", changed[0, :t], logits[0, :t], EXACT)
        assert_close("other rows", changed[1:], logits[1:], EXACT)
        assert_differs("at", changed[0, t], logits[0, t], 1e-3)


@pytest.mark.clause("MODEL-3", "SHARED-8", "BLOCKS-2")
@pytest.mark.parametrize("cuts", [[1], [4, 5, 9], list(range(1, 14))], ids=str)
def test_calls_cut_anywhere_and_documents_are_those_alone_under_causal(cuts: list[int]) -> None:
    config, params, ids = model_of("causal")
    state, rows = language_model.start(config, 3), []
    for part in np.split(np.arange(14), cuts):
        state, each = language_model.apply(config, params, state, ids[:, part])
        rows.append(each)
    close = reordered(256, amplification=100.0)
    assert_close("cut", np.concatenate(rows, axis=1), logits_of(config, params, ids), close)
    reset = np.isin(np.arange(14), cuts)
    start = language_model.start(config, 3)
    _, packed = language_model.apply(config, params, start, ids, reset=reset)
    for part in np.split(np.arange(14), cuts):
        assert_close("alone", packed[:, part], logits_of(config, params, ids[:, part]), close)


@pytest.mark.clause("MAG-2", "DEEP-18")
def test_gradients_of_the_causal_model_are_its_complex_step() -> None:
    """With the gelu that the complex step can pass."""
    settings = SETTINGS.replaced(n_layers=1)
    block = atlas_mag.block(settings, "causal", chunk=3)
    own = block.memory
    rule = own.level.config
    tanh = rule.replaced(memory=rule.memory.replaced(activation="gelu_tanh"))
    level = own.level.replaced(config=tanh)
    block = block.replaced(memory=own.replaced(levels=own.levels.replaced(levels=(level,))))
    config = atlas_mag.model(settings, "causal", chunk=3).replaced(blocks=(block,))
    params, ids = drawn(language_model, config, 1), np.random.default_rng(5).integers(0, 11, (2, 9))
    start = language_model.start(config, 2)
    check_directions(
        lambda p: language_model.loss(config, p, start, ids)[1], params, tolerance=1e-11
    )


# -- the public reading ----------------------------------------------------------------------------


@pytest.mark.clause("MAG-5", "BLOCKS-10")
def test_the_public_reading_leaks_to_earlier_tokens_and_to_other_rows_in_training_alone() -> None:
    config, params, ids = model_of("atlas-mag")
    still = atlas_mag.model(SETTINGS)
    other = ids.copy()
    other[0, -1] = (other[0, -1] + 1) % SETTINGS.vocab_size
    for own, leaks in ((config, True), (still, False)):
        assert own.causal is not leaks
        logits, changed = (logits_of(own, params, each) for each in (ids, other))
        for where in ((0, slice(0, -1)), (slice(1, None), slice(None))):
            if leaks:
                assert_differs("leak", changed[where], logits[where], 1e-6)
            else:
                assert_close("no leak", changed[where], logits[where], EXACT)


@pytest.mark.clause("MAG-4", "BLOCKS-10", "DEEP-16")
def test_calls_of_the_public_reading_share_memories_and_nothing_else() -> None:
    """A second call on a model whose memories are those after the first one, and no other state."""
    config, params, ids = model_of("atlas-mag")
    first, second = ids[:, :5], ids[:, 5:]
    state, _ = language_model.apply(config, params, language_model.start(config, 3), first)
    _, logits = language_model.apply(config, params, state, second)
    initial = []
    for each in state.blocks:
        own = each.memory.levels.states[0]
        initial.append({"weights": own.weights, "momentum": own.momentum})
    fresh = language_model.start(config, 3, initial=initial)
    _, again = language_model.apply(config, params, fresh, second)
    assert_close("second", again, logits, ANALYTIC)
    assert_differs("memories", logits, logits_of(config, params, second), 1e-6)


@pytest.mark.clause("MODEL-16")
def test_memories_that_a_model_starts_from_are_saved_and_must_fit(tmp_path: Any) -> None:
    config, params, ids = model_of("atlas-mag")
    state, _ = language_model.apply(config, params, language_model.start(config, 3), ids)
    initial = tuple(
        {"momentum": dict(each.memory.levels.states[0].momentum)} for each in state.blocks
    )
    path = tmp_path / "model"
    checkpoint.save(path, config, params, initial=(initial[0], None))
    found = checkpoint.read(path)
    assert (found.config, found.params) == (config, params)
    assert found.initial[1] is None
    for name, each in initial[0]["momentum"].items():
        assert_close(name, found.initial[0]["momentum"][name], each, EXACT)
    broken = dict(initial[0]["momentum"])
    lost = broken.pop("W_up")
    start = "initial.blocks.0.memory.momentum."
    for wrong, says in (
        (broken, rf"{start}W_up: missing, shape \(1, 1, 8, 4\) is needed"),
        (broken | {"W_up": lost[0]}, rf"{start}W_up: shape \(1, 8, 4\), expected"),
        (broken | {"W_up": lost, "W": lost}, rf"{start}W: unknown tensor"),
    ):
        with pytest.raises(ValueError, match=says):
            checkpoint.save(path, config, params, initial=({"momentum": wrong}, None))
    with pytest.raises(ValueError, match="initial: 1 entries, expected 2"):
        language_model.start(config, 3, initial=initial[:1])
    bare = config.replaced(blocks=(config.blocks[0].replaced(memory=None),) * 2)
    with pytest.raises(ValueError, match="initial: the block has no memory that shares"):
        language_model.start(bare, 3, initial=initial)


@pytest.mark.clause("MAG-1", "MAG-3")
def test_what_is_disabled_is_not_built() -> None:
    off = atlas_mag.memory(SETTINGS.replaced(ttl_enabled=False, training=True))
    assert off.level.config.phase == "off"
    assert off.causal
    assert atlas_mag.block(SETTINGS.replaced(disable_memory=True)).memory is None
    assert not SETTINGS.replaced(disable_memory=True, training=True).learns
    assert isinstance(atlas_mag.block(SETTINGS).memory, shared_memory.Config)
    only = atlas_mag.shapes(SETTINGS.replaced(disable_memory=True))
    assert only.keys() == {
        name for name in atlas_mag.shapes(SETTINGS) if "memory." not in name and "gate" not in name
    }
    assert names.buffers(SETTINGS.replaced(disable_memory=True)) == {}


@pytest.mark.clause("QK-4", "MAG-3", "SHARED-5")
@pytest.mark.parametrize("preset", sorted(shared_memory.PRESETS))
def test_a_window_far_longer_than_the_tokens_is_one_that_holds_them(preset: str) -> None:
    ids = np.arange(24).reshape(2, 12)

    def logits(window: int) -> Any:
        sizes = {"vocab_size": 30, "dim": 16, "n_heads": 2, "n_layers": 1, "ttl_eta": 0.1}
        settings = atlas_mag.Settings(**sizes, training=True, omega_context_window=window)
        config = atlas_mag.model(settings, preset, **({"chunk": 4} if preset == "causal" else {}))
        params = language_model.init(config, 0)
        return language_model.apply(config, params, language_model.start(config, 2), ids)[1]

    assert_close("logits", logits(10**12), logits(12), EXACT)
    assert_differs("logits", logits(4), logits(12), 1e-9)
