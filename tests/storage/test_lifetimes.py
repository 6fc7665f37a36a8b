"""One file format for parameters, states and contexts: what comes back, and what is refused."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest

from atlas_ref.layers import projection
from atlas_ref.levels import block, presets
from atlas_ref.levels.pulse import Conductor
from atlas_ref.models import language_model
from atlas_ref.rules import RULES, deep_memory
from atlas_ref.storage import files, lifetimes
from atlas_ref.storage.lifetimes import Held
from atlas_ref.train.models import model
from atlas_ref.train.settings import Model
from atlas_ref.types import same_bits

SIZES = {"d_in": 4, "d_out": 3, "d_model": 5, "heads": 2}


def of_rule(name: str) -> Held:
    """Parameters of a rule, and its state in the midst of a sequence."""
    config = RULES[name].Config(**SIZES)
    params = projection.init(config, seed=3)
    x = np.random.default_rng(0).standard_normal((2, 7, 5))
    state, _ = projection.run_tokens(
        RULES[name], config, params, x, RULES[name].start(config, (2, 2))
    )
    return Held(params, state)


@pytest.mark.clause("LIFE-1", "LIFE-2", "LIFE-5")
@pytest.mark.parametrize("name", RULES)
def test_parameters_and_state_of_every_rule_come_back_bit_for_bit(name, tmp_path):
    held = of_rule(name)
    lifetimes.save(tmp_path / "a.safetensors", held)
    back = lifetimes.load(tmp_path / "a.safetensors")
    assert (back.params, back.state, back.context) == (held.params, held.state, None)
    assert not [
        each
        for each in vars(back.state).values()
        if getattr(each, "flags", None) and each.flags.writeable
    ]


@pytest.mark.clause("LIFE-1", "LIFE-5")
def test_a_stream_goes_on_from_a_context_that_comes_from_a_file(tmp_path):
    config = presets.fast_titans_slow_omega(d_model=6, d_in=4, d_out=3, heads=2)
    params, x = block.init(config, 0), np.random.default_rng(1).standard_normal((1, 30, 6))
    _, whole = block.run(config, params, x, block.start(config))
    context, first = block.run(config, params, x[:, :13], block.start(config))
    lifetimes.save(tmp_path / "stream.safetensors", Held(params, context=context))
    held = lifetimes.load(tmp_path / "stream.safetensors")
    assert held.context.conductor == Conductor(step=13, tokens=13)
    _, last = block.run(config, held.params, x[:, 13:], held.context)
    assert np.array_equal(np.concatenate([first, last], axis=2), whole)


@pytest.mark.clause("LIFE-2", "TRAIN-12")
@pytest.mark.parametrize("kind", ["mag", "mal", "mac", "lmm", "omega", "atlas-mag"])
def test_states_of_every_model_come_back(kind, tmp_path):
    config = model(Model(model=kind, dim=8, layers=1, heads=2, expansion=1, window=4), 256)
    state = language_model.start(config, 2, dtype=np.float32)
    params = language_model.init(config, 0, dtype=np.float32)
    ids = np.random.default_rng(0).integers(0, 256, (2, 7))
    state, _ = language_model.apply(config, params, state, ids)
    lifetimes.save(tmp_path / "a.safetensors", Held(context=state))
    back = lifetimes.load(tmp_path / "a.safetensors").context
    assert same_bits(vars(back), vars(state))
    assert not same_bits(vars(back), vars(language_model.start(config, 2, dtype=np.float32)))


@pytest.mark.clause("LIFE-3")
def test_a_file_says_what_each_tensor_is_in_words_that_other_programs_read(tmp_path):
    lifetimes.save(tmp_path / "a.safetensors", of_rule("omega"))
    metadata, tensors = files.read(tmp_path / "a.safetensors")
    header = json.loads(metadata["atlas_ref_lifetimes"])
    assert (header["schema"], list(header["parts"])) == (1, ["params", "state"])
    assert header["parts"]["state"]["of"] == "atlas_ref.rules.omega:State"
    assert header["parts"]["state"]["fields"]["M"] == {"tensor": "state/M"}
    assert tensors["params/gates.retain.W"].shape == (2, 1, 7)


ONE = np.ones(1)


def nest(depth: int) -> list[Any]:
    """A list in a list in a list."""
    inside: list[Any] = []
    for _ in range(depth):
        inside = [inside]
    return inside


def structure(of: str, **fields: Any) -> dict[str, Any]:
    return {"state": {"of": of, "fields": {name: {"value": x} for name, x in fields.items()}}}


@pytest.mark.clause("LIFE-4", "LIFE-5")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema": 2}, "schema: 1 is needed, found 2"),
        ({"parts": {}}, "parts: an object is needed, found {}"),
        ({"parts": {"stat": {"value": 1}}}, "parts.stat: one of params, state, context is needed"),
        ({"parts": {"state": {"tensor": "state/N"}}}, "state/N: no such tensor in the file"),
        ({"digest": "0"}, "digest: not that of what is in the file"),
        ({"parts": structure("os:system")}, "state: not one of this version: 'os:system'"),
        ({"parts": structure("atlas_ref.cli.main:main")}, "state: not one of this version"),
        ({"parts": structure("atlas_ref.rules.omega:run")}, "state: not one of this version"),
        ({"parts": structure("atlas_ref.rules.none:State")}, "state: not one of this version"),
        (
            {"parts": structure("atlas_ref.rules.omega:np.linalg._linalg.QRResult", Q=1, R=2)},
            "state: not one of this version",
        ),
        (
            {"parts": structure("atlas_ref.rules.omega:np.ndarray")},
            "state: not one of this version",
        ),
        ({"parts": structure("atlas_ref.levels.pulse:Conductor", step=-1)}, "state.step: "),
        ({"parts": structure("atlas_ref.levels.pulse:Conductor", stop=1)}, "state.stop: "),
        ({"parts": {"state": [1]}}, "state: not one of this version"),
        ({"parts": {"state": {"tensor": ["a"]}}}, "state: not one of this version"),
    ],
)
def test_a_file_of_another_program_or_a_damaged_one_is_refused(changes, words, tmp_path):
    path = tmp_path / "a.safetensors"
    header, tensors = lifetimes.packed(Held(state=np.ones(2)))
    metadata = lifetimes.sealed(header | changes, tensors)
    if "digest" in changes:
        metadata = {lifetimes.KEY: json.dumps(header | changes)}
    files.write(path, metadata, tensors)
    with pytest.raises(ValueError, match=r"^.*a\.safetensors: ") as error:
        lifetimes.load(path)
    assert words in str(error.value)


@pytest.mark.clause("LIFE-4")
def test_a_tensor_that_changed_on_the_disk_is_found(tmp_path):
    path = tmp_path / "a.safetensors"
    lifetimes.save(path, of_rule("delta"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match="digest: not that of what is in the file"):
        lifetimes.load(path)


@pytest.mark.clause("LIFE-5")
def test_a_state_that_contradicts_itself_is_refused_by_the_name_of_its_field(tmp_path):
    path = tmp_path / "a.safetensors"
    state = of_rule("omega").state
    lifetimes.save(path, Held(state=state.replaced(S=state.S[..., :1])))
    with pytest.raises(ValueError, match=r"a\.safetensors: state\.S: shape"):
        lifetimes.load(path)


@pytest.mark.clause("LIFE-2")
@pytest.mark.parametrize(
    ("held", "words"),
    [
        (Held(), "one of params, state, context is needed, found none"),
        (Held(state={"a": object()}), "state/a: object is no data"),
        (Held(params=[{"b": np.float64}]), "params/0.b: type is no data"),
        (Held(context=iter("a")), "context: str_ascii_iterator is no data"),
        (Held(state={"a.b": ONE, "a": {"b": ONE}}), "state/a.b: two tensors have this name"),
        (Held(state={1: ONE}), "state: key 1, a word is needed"),
        (Held(state=[0.5, float("inf")]), "state/1: inf, a finite number is needed"),
        (Held(state={"a": float("nan")}), "state/a: nan, a finite number is needed"),
        (Held(state=(10**18,)), "state/0: a whole number of at most 18 digits is needed"),
        (Held(state=np.array([None])), "state: dtype object cannot be stored"),
        (Held(state=nest(60)), "nested more than 100 levels deep"),
        (Held(state=nest(5000)), "nested more than 100 levels deep"),
        (Held(state=[ONE] * 20_001), "20001 tensors, at most 20000 are read"),
        (Held(state=["a" * 5_000_000]), "at most 5000000 are read"),
    ],
)
def test_what_is_no_data_is_refused_by_its_place(held, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        lifetimes.save(tmp_path / "a.safetensors", held)
    assert not list(tmp_path.iterdir())


@pytest.mark.clause("LIFE-2", "LIFE-5")
def test_numbers_of_another_byte_order_come_back(tmp_path):
    x = np.arange(6.0).reshape(2, 3)
    for given in (x.astype(">f8"), np.asfortranarray(x)):
        lifetimes.save(tmp_path / "a.safetensors", Held(state=given))
        assert same_bits(lifetimes.load(tmp_path / "a.safetensors").state, x)


@pytest.mark.clause("LIFE-2", "LIFE-5")
def test_whole_numbers_at_the_limit_come_back(tmp_path):
    numbers = (10**18 - 1, -(10**17) + 1, 5e-324, -0.0)
    lifetimes.save(tmp_path / "a.safetensors", Held(state=numbers))
    assert str(lifetimes.load(tmp_path / "a.safetensors").state) == str(numbers)


@pytest.mark.clause("LIFE-2")
def test_data_of_another_package_are_refused(tmp_path):
    from atlas_ref.train.settings import Text

    with pytest.raises(ValueError, match="Text is no data of a memory"):
        lifetimes.save(tmp_path / "a.safetensors", Held(params=Text(paths=("a",))))


@pytest.mark.clause("LIFE-5")
def test_a_deep_memory_goes_on_from_a_file(tmp_path):
    config = deep_memory.Config(**SIZES, chunk=3)
    params, x = projection.init(config, seed=3), np.random.default_rng(0).standard_normal((2, 8, 5))
    rule = RULES["deep_memory"]
    state = rule.start(config, (2, 2))
    state, _ = projection.run_tokens(rule, config, params, x[:, :4], state)
    lifetimes.save(tmp_path / "a.safetensors", Held(state=state))
    _, y = projection.run_tokens(
        rule, config, params, x[:, 4:], lifetimes.load(tmp_path / "a.safetensors").state
    )
    _, uncut = projection.run_tokens(rule, config, params, x[:, 4:], state)
    assert np.array_equal(y, uncut)


@pytest.mark.clause("LIFE-5")
@pytest.mark.parametrize("module", ["this", "atlas_ref.cli.__main__", "atlas_ref.rules..os"])
def test_no_module_that_a_file_names_is_imported_but_those_of_data(module, tmp_path):
    header, tensors = lifetimes.packed(Held(state=np.ones(2)))
    path, before = tmp_path / "a.safetensors", set(sys.modules)
    parts = structure(f"{module}:d")
    files.write(path, lifetimes.sealed(header | {"parts": parts}, tensors), tensors)
    with pytest.raises(ValueError, match="state: not one of this version"):
        lifetimes.load(path)
    assert set(sys.modules) == before
