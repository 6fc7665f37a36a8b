"""Maps whose tensors are constants: values, derivatives, cases, parameters (PHI-20)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

import atlas_ref
from atlas_ref.certify import certify
from atlas_ref.layers import memory
from atlas_ref.optim import adamw, groups
from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.identify.observation import observe
from atlas_ref.parts import feature_maps
from atlas_ref.parts.feature_maps import FeatureMap, RandomFourier
from tape import grad, hvp, ops, value_and_grad, vjp
from tape.nested import flatten
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs, reordered
from tests.support.memories import layer, rule
from tests.truth import features
from tests.truth.features import MAPS
from tests.truth.literal_gradient import complex_step

STEP = 1e-30
PARSE: TypeAdapter[Any] = TypeAdapter(FeatureMap)
WITH_TENSORS = {name: own for name, own in MAPS.items() if features.tensors(own, 2)}
FROZEN = {"kind": "random_fourier", "learned": False}

with_tensors = pytest.mark.parametrize("settings", WITH_TENSORS.values(), ids=WITH_TENSORS.keys())


def gaussian(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


def frozen(settings: dict[str, Any]) -> Any:
    return PARSE.validate_python({**settings, "learned": False})


def omega(**fields: Any) -> Case:
    sizes = {"tokens": 5, "d_in": 3, "d_out": 2, "heads": 2, "d_model": 3, "window": 2}
    plain = {"convention": {"newton_schulz": "none"}, "features": 4, "cotangent": True}
    return new(Request(**{"rule": "omega", "seed": 5, **sizes, **plain, **fields}))


# -- the map ---------------------------------------------------------------------------------------


@with_tensors
@pytest.mark.clause("PHI-20")
def test_a_frozen_map_has_the_same_values(settings: dict[str, Any]) -> None:
    p, x = features.tensors(settings, 4), gaussian(2, 3, 4)
    learned = PARSE.validate_python(settings)
    assert learned.learned is True
    want = feature_maps.apply(learned, p, x)
    assert_close("phi", feature_maps.apply(frozen(settings), p, x), want, EXACT)
    for name in p:
        changed = {**p, name: p[name] + 1.0}
        assert_differs(name, feature_maps.apply(frozen(settings), changed, x), want, 1e-3)


@with_tensors
@pytest.mark.clause("PHI-20")
def test_the_argument_keeps_its_derivative_and_the_tensors_have_none(
    settings: dict[str, Any],
) -> None:
    own, p, x = frozen(settings), features.tensors(settings, 3), gaussian(2, 3)
    g = gaussian(2, features.phi(settings, p, x[0]).shape[0], seed=1)
    x_bar, p_bar = vjp(lambda x, p: feature_maps.apply(own, p, x), x, p)[1](g)
    want = np.zeros_like(x)
    for index in np.ndindex(*x.shape):
        moved = x.astype(complex)
        moved[index] += 1j * STEP
        rows = np.array([features.phi(settings, p, each) for each in moved])
        want[index] = np.imag(np.sum(g * rows)) / STEP
    assert_close("x", x_bar, want, ANALYTIC)
    assert p_bar.keys() == p.keys()
    for name, bar in p_bar.items():
        assert_close(name, bar, np.zeros_like(p[name]), EXACT)


@with_tensors
@pytest.mark.clause("PHI-20")
def test_the_second_derivative_of_a_frozen_map_is_that_of_a_learned_one(
    settings: dict[str, Any],
) -> None:
    own, p = frozen(settings), features.tensors(settings, 3)
    x, v = gaussian(2, 3), gaussian(2, 3, seed=1)

    def function(y: Any) -> Any:
        return ops.sum(feature_maps.apply(own, p, y) ** 3)

    want = np.imag(grad(function)(x + 1j * STEP * v)) / STEP
    assert_close("hvp", hvp(function)(x, v), want, ANALYTIC)


@pytest.mark.clause("PHI-20")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "random_fourier", "learned": 0}, "learned: must be a boolean, found 0"),
        ({"kind": "sketch", "learned": "no"}, "learned: must be a boolean, found 'no'"),
        ({"kind": "identity", "learned": False}, "identity.learned: unknown key"),
        ({"kind": "polynomial", "learned": True}, "polynomial.learned: unknown key"),
    ],
)
def test_the_setting_is_a_truth_value_of_a_kind_with_tensors(
    settings: dict[str, Any], message: str
) -> None:
    header = {"schema": 1, "rule": "feature_map", "feature_map": settings}
    with pytest.raises(CaseError, match=message):
        atlas_ref.make(header, {"in/x": np.ones((2, 3))})


# -- cases -----------------------------------------------------------------------------------------


CASES: dict[str, dict[str, Any]] = {
    "map": {"rule": "feature_map", "window": 1, "convention": "spec"},
    "omega": {},
    "token": {"level": "token"},
}


@pytest.mark.clause("PHI-20")
@pytest.mark.parametrize("settings", [FROZEN, {"kind": "tensor_sketch", "learned": False}], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_a_case_has_gradients_of_all_inputs_but_the_frozen_tensors(
    name: str, settings: dict[str, Any]
) -> None:
    case = omega(feature_map=settings, **CASES[name])
    learned = omega(feature_map={"kind": settings["kind"]}, **CASES[name])
    assert case.inputs.keys() == learned.inputs.keys()
    found = atlas_ref.evaluate(case, grad=True).tensors
    whole = atlas_ref.evaluate(learned, grad=True).tensors
    gone = {"grad/proj", "grad/phi/W", "grad/phi/b", "grad/phi/c", "grad/phi/H"} & whole.keys()
    assert len(gone) == len(feature_maps.TENSORS[settings["kind"]])
    assert found.keys() == whole.keys() - gone
    header = case.header.plain()
    bars = {key: value for key, value in case.inputs.items() if key.endswith("_bar")}
    inputs = {key: value for key, value in case.inputs.items() if key not in bars}
    for key in found:
        if key.startswith("out/"):
            assert_close(key, found[key], whole[key], EXACT)
        else:
            want = complex_step(header, inputs, key.replace("grad/", "in/", 1), bars)
            assert_close(key, found[key], want, ANALYTIC)


@pytest.mark.clause("PHI-20")
def test_each_level_of_a_block_has_its_own_setting() -> None:
    levels = [
        {"rule": "omega", "window": 2, "feature_map": own}
        for own in (FROZEN, {"kind": "random_fourier"})
    ]
    sizes = {"tokens": 4, "d_in": 3, "d_out": 2, "heads": 1, "d_model": 3, "cotangent": True}
    case = new(Request(rule="cms", levels=tuple(levels), periods=(1, 2), **sizes))
    found = atlas_ref.evaluate(case, grad=True).tensors
    phi = {f"level{number}/phi/{name}" for number in (0, 1) for name in ("W", "b")}
    assert {f"in/{name}" for name in phi} <= case.inputs.keys()
    assert {name for name in phi if f"grad/{name}" in found} == {"level1/phi/W", "level1/phi/b"}


@pytest.mark.clause("PHI-20")
def test_a_gradient_of_a_frozen_tensor_is_refused_with_the_reason() -> None:
    case = omega(feature_map=FROZEN)
    results = dict(atlas_ref.evaluate(case, grad=True).tensors)
    recorded = atlas_ref.make(case.header.plain(), {**case.inputs, **results})
    assert {each.verdict for each in atlas_ref.check(recorded)} == {"PASS"}
    more = {**results, "grad/phi/W": np.zeros_like(case.inputs["in/phi/W"])}
    recorded = atlas_ref.make(case.header.plain(), {**case.inputs, **more})
    reason = "grad/phi/W: not a result .*; the map is not learned, so its tensors have no gradient"
    with pytest.raises(CaseError, match=reason):
        atlas_ref.check(recorded)
    assert "grad/phi/W" in observe(case, more, None).unused
    more = {**results, "grad/phi/V": np.zeros(3)}
    recorded = atlas_ref.make(case.header.plain(), {**case.inputs, **more})
    with pytest.raises(CaseError, match=r"grad/phi/V: not a result of this case; it has [^;]*$"):
        atlas_ref.check(recorded)


@pytest.mark.clause("PHI-20")
def test_gradients_of_a_frozen_map_are_certified_without_its_tensors() -> None:
    sizes = {"tokens": 2, "heads": 1, "d_in": 2, "features": 3}
    found = certify(omega(feature_map=FROZEN, **sizes), grad=True).values
    whole = certify(omega(feature_map={"kind": "random_fourier"}, **sizes), grad=True).values
    assert whole.keys() - found.keys() == {"grad/phi/W", "grad/phi/b"}
    ours = atlas_ref.evaluate(omega(feature_map=FROZEN, **sizes), grad=True).tensors
    for name, value in found.items():
        assert_close(name, value, whole[name], EXACT)
        assert_close(name, ours[name], value, ANALYTIC)


# -- parameters ------------------------------------------------------------------------------------


def gradients_of_a_layer(learned: bool) -> tuple[Any, dict[str, Any], Any]:
    """Parameters of a memory layer with a map, their derivatives by name, and the same in place."""
    config = layer(rule("omega", feature_map=RandomFourier(learned=learned), features=4))
    params = memory.init(config, 3)
    x = gaussian(2, 6, config.d_model)

    def loss(params: Any) -> Any:
        y = memory.apply(config, params, memory.start(config, batch=2), x)[1]
        return ops.sum(y**2)

    grads = value_and_grad(loss)(params)[1]
    leaves, paths, _ = flatten(grads)
    return params, dict(zip(paths, leaves, strict=True)), grads


@pytest.mark.clause("PHI-20")
def test_parameters_of_a_frozen_map_in_a_layer_have_the_derivative_zero() -> None:
    _, found, _ = gradients_of_a_layer(learned=False)
    _, whole, _ = gradients_of_a_layer(learned=True)
    assert found.keys() == whole.keys()
    phi = [name for name in found if ".phi[" in name]
    assert len(phi) == 2
    for name, value in whole.items():
        if name in phi:
            assert np.abs(value).max() > 0
            assert_close(name, found[name], np.zeros_like(value), EXACT)
        else:
            assert_close(name, found[name], value, reordered(10))


@pytest.mark.clause("PHI-20")
def test_weight_decay_moves_a_frozen_map_unless_its_group_has_no_optimiser() -> None:
    params, _, grads = gradients_of_a_layer(learned=False)
    moves = groups.Group(name="rest", optimiser=adamw.Config(rate=0.1, decay=0.1))
    stays = groups.Group(name="frozen", optimiser=None, names=("*.phi.*",))

    def moved(*each: groups.Group) -> dict[str, Any]:
        own = groups.Config(groups=each)
        after = groups.update(own, groups.init(own, params), params, grads, step=0)[0]
        leaves, paths, _ = flatten(after)
        return dict(zip(paths, leaves, strict=True))

    leaves, paths, _ = flatten(params)
    before = dict(zip(paths, leaves, strict=True))
    for name in (name for name in before if ".phi[" in name):
        assert_differs(name, moved(moves)[name], before[name], 1e-3)
        assert_close(name, moved(stays, moves)[name], before[name], EXACT)
