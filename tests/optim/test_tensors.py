"""What all optimisers share: names, dtypes, refusals, states as tensors, and no tape."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from pydantic import ValidationError

import tape
from atlas_ref import backend
from atlas_ref.layers import norm
from atlas_ref.models import checkpoint, language_model
from atlas_ref.optim import OPTIMISERS, adamuon, adamw, m3, module_of, muon, sgd, tensors
from tape import ops
from tape.core import recording
from tests.support.close import EXACT, assert_close
from tests.support.models import MODELS
from tests.support.optimised import FALLS, MATRICES, SHAPES, drawn, run
from tests.support.standin import array as standin

CONFIGS: dict[str, Any] = {
    "sgd": sgd.Config(rate=0.1, schedule=FALLS, momentum=0.9, decay=0.1),
    **{
        name: each.module.Config(rate=0.1, schedule=FALLS, decay=0.1)
        for name, each in OPTIMISERS.items()
        if name != "sgd"
    },
}
EACH = pytest.mark.parametrize("kind", CONFIGS)


def of(kind: str, dtype: Any = np.float64, steps: int = 4) -> tuple[Any, Any, Any]:
    """Settings, parameters that the rule takes, and gradients."""
    names = MATRICES if kind in ("muon", "adamuon") else tuple(SHAPES)
    return CONFIGS[kind], *drawn(names, dtype=dtype, steps=steps)


@pytest.mark.clause("OPTIM-1")
@EACH
def test_calls_leave_their_arguments_as_they_were(kind: str) -> None:
    config, params, grads = of(kind)
    held = {name: p.copy() for name, p in params.items()}
    given = [{name: g.copy() for name, g in each.items()} for each in grads]
    _, first = run(config, params, grads[:1])
    again = {slot: {n: x.copy() for n, x in own.items()} for slot, own in first.slots.items()}
    run(config, params, grads, first, 1)
    for name, p in params.items():
        assert_close(name, p, held[name], EXACT)
        for step, g in enumerate(grads):
            assert_close(name, g[name], given[step][name], EXACT)
        for slot in first.slots:
            if name in first.slots[slot]:
                assert_close(slot, first.slots[slot][name], again[slot][name], EXACT)


@pytest.mark.clause("OPTIM-1")
@EACH
def test_every_parameter_is_moved_alone(kind: str) -> None:
    config, params, grads = of(kind)
    whole, _ = run(config, params, grads)
    for name, p in params.items():
        alone, _ = run(config, {name: p}, [{name: g[name]} for g in grads])
        assert_close(name, alone[name], whole[name], EXACT)


@pytest.mark.clause("OPTIM-1")
@EACH
def test_a_state_starts_at_0(kind: str) -> None:
    config, params, _ = of(kind)
    state = module_of(config).init(config, params)
    assert state.count == 0
    assert all(not x.any() for own in state.slots.values() for x in own.values())


@pytest.mark.clause("OPTIM-1")
@pytest.mark.host("an array on a device cannot be protected")
@EACH
def test_results_cannot_be_changed(kind: str) -> None:
    config, params, grads = of(kind)
    found, after = run(config, params, grads)
    assert after.count == len(grads)
    arrays = [*found.values(), *(x for own in after.slots.values() for x in own.values())]
    assert [x.flags.writeable for x in arrays] == [False] * len(arrays)


@pytest.mark.clause("OPTIM-2")
@EACH
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_tensor_keeps_its_dtype(kind: str, dtype: Any) -> None:
    config, params, grads = of(kind, dtype)
    found, state = run(config, params, grads)
    assert {x.dtype for x in found.values()} == {np.dtype(dtype)}
    kept = {x.dtype for own in state.slots.values() for x in own.values()}
    assert kept <= {np.dtype(dtype)}


@pytest.mark.clause("OPTIM-2")
@pytest.mark.parametrize("kind", ["sgd", "adamw", "muon", "adamuon", "m3"])
def test_in_float32_no_array_is_wider_on_the_way(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every array that the rule itself makes, seen by a subclass that outlives arithmetic."""
    seen: set[str] = set()

    class Watched(np.ndarray):
        def __array_finalize__(self, other: Any) -> None:
            if self.ndim:
                seen.add(self.dtype.name)

    config, params, grads = of(kind, np.float32)
    monkeypatch.setattr(tensors, "named", lambda tree, where: tensors.Named(tree, dict))
    watched = lambda nest: {name: x.view(Watched) for name, x in nest.items()}  # noqa: E731
    run(config, watched(params), [watched(g) for g in grads])
    assert seen - {"bool"} == {"float32"}
    watched(params)["wide"] * np.float64(2.0)  # such a number of NumPy's is not weak
    assert "float64" in seen


@pytest.mark.clause("OPTIM-2")
def test_models_dicts_and_tuples_are_named_by_their_paths() -> None:
    W, b = np.ones((2, 3)), np.ones(3)
    nest = {"a": (W, {"x/y.z": b}), "n": norm.Params(weight=b)}
    own = tensors.named(nest, "params")
    assert list(own.tensors) == ["a.0", "a.1.x/y.z", "n.weight"]
    built = own.build({name: 2 * x for name, x in own.tensors.items()})
    assert type(built["n"]) is norm.Params
    assert_close("n", built["n"].weight, 2 * b, EXACT)
    assert_close("a", built["a"][1]["x/y.z"], 2 * b, EXACT)


@pytest.mark.clause("OPTIM-2")
@pytest.mark.sample(6)
@pytest.mark.parametrize("name", MODELS)
def test_names_of_a_model_are_those_of_its_checkpoint(name: str) -> None:
    own = tensors.named(language_model.init(MODELS[name]), "params").tensors
    needed = checkpoint.needed_by(MODELS[name])
    assert [re.sub(r"\['(.*?)'\]", r".\1", each) for each in needed] == list(own)


W = np.ones((2, 3))
BAD_PARAMS: dict[str, tuple[Any, str]] = {
    "integers": ({"W": np.ones((2, 3), int)}, r"params\['W'\]: an array of int64"),
    "half": ({"W": W.astype(np.float16)}, r"params\.W: float16, an array of float32 or float64"),
    "complex": ({"W": W + 0j}, r"params\.W: complex128, an array of float32 or float64 is needed"),
    "a number": ({"W": W, "c": 1.0}, r"params\.c: float, an array of float32 or float64 is"),
    "bare": (W, r"params: a bare array has no name, a dict or a model of arrays is needed"),
    "twice": ({"a.b": W, "a": {"b": W}}, r"params\.a\.b: two tensors have this name"),
    "nan": ({"W": np.array([[1.0, np.nan]])}, r"params\.W: every entry must be finite, found nan"),
}


@pytest.mark.clause("OPTIM-2")
@pytest.mark.parametrize("name", BAD_PARAMS)
def test_parameters_that_cannot_be_are_named(name: str) -> None:
    params, message = BAD_PARAMS[name]
    with pytest.raises(ValueError, match=message):
        adamw.init(adamw.Config(rate=0.1), params)


BAD_GRADS: dict[str, tuple[Any, str]] = {
    "missing": ({"W": W}, r"grads\.bias: missing, every parameter needs a gradient"),
    "unknown": (
        {"W": W, "bias": W[0], "bais": W[0]},
        r"grads\.bais: no parameter has this name; did you mean bias\?",
    ),
    "shape": ({"W": W.T, "bias": W[0]}, r"grads\.W: shape \(3, 2\), the parameter has \(2, 3\)"),
    "one too few axes": (
        {"W": W[0], "bias": W[0]},
        r"grads\.W: shape \(3,\), the parameter has \(2, 3\)",
    ),
    "dtype": (
        {"W": W.astype(np.float32), "bias": W[0]},
        r"grads\.W: float32, the parameter is float64",
    ),
    "nan": (
        {"W": np.where(W > 0, [[1.0, 1.0, np.nan]], W), "bias": W[0]},
        r"grads\.W: every entry must be finite, found nan at \(0, 2\)",
    ),
    "infinite": (
        {"W": W, "bias": np.array([1.0, -np.inf, 1.0])},
        r"grads\.bias: every entry must be finite, found -inf at \(1,\)",
    ),
}


@pytest.mark.clause("OPTIM-3")
@pytest.mark.parametrize("kind", ["adamw", "adamw_flat", "m3"])
@pytest.mark.parametrize("name", BAD_GRADS)
def test_gradients_of_other_parameters_are_named(name: str, kind: str) -> None:
    grads, message = BAD_GRADS[name]
    config, params = CONFIGS[kind], {"W": W, "bias": W[0]}
    module = module_of(config)
    with pytest.raises(ValueError, match=message):
        module.update(config, module.init(config, params), params, grads, 0)


@pytest.mark.clause("OPTIM-3")
@EACH
def test_a_state_of_other_parameters_is_refused(kind: str) -> None:
    config, params, grads = of(kind)
    module = module_of(config)
    state = module.init(config, {"other": np.ones((2, 2))})
    with pytest.raises(ValueError, match=r"state\.\S+\.\w+: missing; the state is of other param"):
        module.update(config, state, params, grads[0], 0)
    wrong = module.init(config, {name: np.ones((2, 2)) for name in params})
    with pytest.raises(ValueError, match=r"state\.\S+: float64 \(2, 2\), the parameter is float64"):
        module.update(config, wrong, params, grads[0], 0)


@pytest.mark.clause("OPTIM-3")
@EACH
@pytest.mark.parametrize("settings", [{"rate": -0.1}, {"rate": 0.1, "decay": -1.0}, {}])
def test_a_rate_is_needed_and_none_is_negative(kind: str, settings: Any) -> None:
    with pytest.raises(ValidationError, match=r"rate|decay"):
        OPTIMISERS[kind].module.Config(**settings)


@pytest.mark.clause("OPTIM-6")
@EACH
def test_a_step_that_is_no_number_is_refused(kind: str) -> None:
    config, params, grads = of(kind)
    module = module_of(config)
    with pytest.raises(ValueError, match="step: -1, a whole number from 0 is needed"):
        module.update(config, module.init(config, params), params, grads[0], -1)


@pytest.mark.clause("OPTIM-12")
@pytest.mark.parametrize("rule", [muon, adamuon])
def test_a_vector_is_no_matrix(rule: Any) -> None:
    params = {"b": np.ones(3)}
    with pytest.raises(ValueError, match=r"params\.b: shape \(3,\), \w+ needs a matrix; give it"):
        rule.init(rule.Config(rate=0.1), params)
    rule.init(rule.Config(rate=0.1, newton_schulz=None), params)


@pytest.mark.clause("OPTIM-12")
@pytest.mark.parametrize("rule", [muon, adamuon, m3])
def test_an_argument_of_newton_schulz_belongs_to_memories(rule: Any) -> None:
    ns = rule.NewtonSchulz(argument="nesterov")
    with pytest.raises(ValidationError, match=r"newton_schulz\.argument: nesterov belongs to mem"):
        rule.Config(rate=0.1, newton_schulz=ns)


@pytest.mark.clause("OPTIM-8")
def test_nesterov_needs_a_momentum() -> None:
    with pytest.raises(ValidationError, match="nesterov: needs a momentum above 0"):
        sgd.Config(rate=0.1, nesterov=True)


@pytest.mark.clause("OPTIM-1")
def test_settings_of_no_optimiser_are_refused() -> None:
    with pytest.raises(ValueError, match="config: Config is no optimiser's, they are sgd, adamw"):
        module_of(norm.Config(kind="none", d=2))


@pytest.mark.clause("OPTIM-4")
@EACH
def test_an_optimiser_appends_no_entry_to_a_tape(kind: str) -> None:
    config, params, grads = of(kind)
    module = module_of(config)
    with recording() as own:
        x = own.variable(np.ones(3))
        ops.sum(x * x)
        before = len(own.entries)
        module.update(config, module.init(config, params), params, grads[0], 0)
        assert len(own.entries) == before > 1


@pytest.mark.clause("OPTIM-4")
@EACH
@pytest.mark.parametrize("where", ["params", "grads"])
def test_what_is_recorded_is_refused_by_name(kind: str, where: str) -> None:
    config, params, grads = of(kind)
    module = module_of(config)
    state = module.init(config, params)

    def loss(x: Any) -> Any:
        own = {**params, "wide": x} if where == "params" else params
        given = {**grads[0], "wide": x} if where == "grads" else grads[0]
        return ops.sum(module.update(config, state, own, given, 0)[0]["wide"])

    with pytest.raises(ValueError, match=rf"{where}\.wide: recorded on a tape; an optimiser runs"):
        tape.grad(loss)(params["wide"])


@pytest.mark.clause("OPTIM-5")
@EACH
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_saved_state_goes_on_with_the_same_bits(kind: str, dtype: Any, tmp_path: Any) -> None:
    config, params, grads = of(kind, dtype, steps=6)
    whole, last = run(config, params, grads)
    half, state = run(config, params, grads[:3])
    safetensors.numpy.save_file(tensors.tensors_of(state), tmp_path / "state.safetensors")
    saved = safetensors.numpy.load_file(tmp_path / "state.safetensors")
    again = tensors.of_tensors(module_of(config).init(config, params), saved)
    found, after = run(config, half, grads[3:], again, 3)
    for name, p in found.items():
        assert_close(name, p, whole[name], EXACT)
    want = tensors.tensors_of(last)
    for name, x in tensors.tensors_of(after).items():
        assert_close(name, x, want[name], EXACT)


@pytest.mark.clause("OPTIM-5")
def test_a_saved_state_that_does_not_fit_is_named() -> None:
    params, grads = drawn(("b",), steps=1)
    config = CONFIGS["adamw"]
    like = adamw.init(config, params)
    saved = tensors.tensors_of(run(config, params, grads)[1])
    assert sorted(saved) == ["count", "m/b", "v/b"]
    bad: list[tuple[dict[str, Any], str]] = [
        ({name: x for name, x in saved.items() if name != "v/b"}, r"v/b: missing in the saved"),
        (saved | {"v/W": saved["v/b"]}, r"v/W: unknown in the saved state; did you mean v/b\?"),
        (saved | {"m/b": np.ones(3)}, r"m/b: float64 \(3,\), float64 \(4,\) is needed"),
        (saved | {"m/b": np.ones(4, np.float32)}, r"m/b: float32 \(4,\), float64 \(4,\) is needed"),
        (saved | {"m/b": np.full(4, np.nan)}, r"state\.m/b: every entry must be finite"),
        (saved | {"count": np.array(-1)}, r"count: -1, a count is at least 0"),
        (saved | {"count": np.array(1.0)}, r"count: float64 \(\), int64 \(\) is needed"),
    ]
    for wrong, message in bad:
        with pytest.raises(ValueError, match=message):
            tensors.of_tensors(like, wrong)


@pytest.mark.clause("OPTIM-35")
def test_what_a_state_keeps() -> None:
    """AdaMuon keeps as many bytes as AdamW."""
    params, _ = drawn(MATRICES, steps=0)
    size = sum(p.nbytes for p in params.values())

    def kept(config: Any) -> float:
        state = module_of(config).init(config, params)
        return sum(x.nbytes for own in state.slots.values() for x in own.values()) / size

    assert kept(sgd.Config(rate=0.1)) == 0
    assert kept(CONFIGS["sgd"]) == kept(CONFIGS["muon"]) == 1
    assert kept(CONFIGS["adamw"]) == kept(CONFIGS["adamuon"]) == kept(CONFIGS["adamw_flat"]) == 2
    assert kept(CONFIGS["m3"]) == 3
    assert kept(m3.paper(rate=0.1, take=(1, 1), period=4, weight=1, second=1)) == 4
    assert kept(m3.Config(rate=0.1, takes="last")) == 2


@pytest.mark.clause("OPTIM-1")
@EACH
def test_the_loss_of_a_regression_falls(kind: str) -> None:
    """A hundred steps of every rule, on a loss whose least value is 0."""
    draw = np.random.default_rng(3)
    x, W_true = draw.standard_normal((40, 4)), draw.standard_normal((3, 4))
    y = x @ W_true.T

    def loss(params: Any) -> Any:
        return ops.mean((x @ ops.transpose(params["W"]) - y) ** 2)

    params: Any = {"W": np.zeros((3, 4))}
    config = CONFIGS[kind].replaced(schedule=type(FALLS)(), decay=0.0, rate=0.03)
    state = module_of(config).init(config, params)
    first = loss(params)
    for step in range(100):
        params, state = module_of(config).update(
            config, state, params, tape.grad(loss)(params), step
        )
    assert loss(params) < 0.2 * first


@pytest.mark.clause("OPTIM-2")
def test_arrays_of_two_backends_are_refused_by_name() -> None:
    there = backend.named(standin.NAME)
    params = {"W": W, "b": there.from_host(np.ones(3))}
    with pytest.raises(ValueError, match=r"params\.b: in strict, but params\.W is in numpy"):
        tensors.named(params, "params")
