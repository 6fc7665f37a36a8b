"""Reading a case: every key and tensor, defaults of absent ones, dtypes, masks, logarithms."""

import json

import ml_dtypes
import numpy as np
import pytest

import atlas_ref
from atlas_ref.conventions import resolve
from atlas_ref.oracle.cases.tensors import bare
from atlas_ref.oracle.schema.schema import tensor_table
from tests.support.casefiles import GONE, PEERS, changed, some, written
from tests.support.close import ANALYTIC, EXACT, assert_close
from tests.truth import features, literal

GATE = {"kind": "product", "of": [{"kind": "gate"}, {"kind": "softmax"}]}
CARRY = {
    "window": 3,
    "history": 2,
    "span": 2,
    "convention": {"preset": "atlas-rnn", "reference": "chunk_start"},
}
SURROGATE = {"reference": "surrogate"}

#: Valid cases that together hold every tensor of the table.
WHOLE = {
    "weights": {"window": 3, "history": 2, "reset": 3, "pulse": 2},
    "gate under carry": {**CARRY, "window_gate": True},
    "split": {"rule": "titans_lmm", "convention": {"rate": "split"}, "per_dimension_gates": True},
    "momenta": {"window": 3, "convention": {"order": "momentum_then_window"}},
    "token": {"level": "token", "window": 3, "history": 2, "window_weights": GATE},
    "fourier": {"feature_map": {"kind": "random_fourier"}, "features": 6},
    "mlp": {"feature_map": {"kind": "residual_mlp"}},
    "sketch": {"feature_map": {"kind": "sketch"}},
    "tensor_sketch": {"feature_map": {"kind": "tensor_sketch", "degree": 3}, "features": 5},
    "surrogate": {"rule": "titans_lmm", "level": "token", "convention": SURROGATE},
    "newton_schulz": {"rule": "newton_schulz"},
    "feature_map": {"rule": "feature_map"},
    "learned block": {"rule": "cms", "levels": ("delta", "delta"), "learned": True},
    "block": {
        "rule": "cms",
        "levels": ("titans_lmm", {"rule": "omega", "window": 3}),
        "history": 2,
        "reset": 3,
    },
}


def complete(name):
    """A valid case with every tensor that its kind may hold."""
    header, tensors = some(**WHOLE[name])
    if "in/M0" in tensors:
        tensors |= {"in/M_bar": tensors["in/M0"]} | (
            {"in/S_bar": tensors["in/S0"]} if "in/S0" in tensors else {}
        )
    if name == "gate under carry":
        header["phase"] = 1
        tensors["in/M_ref"] = 0.5 * tensors["in/M0"]
    if name == "surrogate":
        tensors |= {
            f"in/param/W_{each}_surrogate": 0.5 * tensors[f"in/param/W_{each}"] for each in "KV"
        }
    if name == "weights":
        for gate in ("retain", "momentum"):
            tensors[f"in/log_{gate}"] = np.log(tensors.pop(f"in/{gate}"))
    if name == "momenta":
        tensors["in/window_momentum"] = np.stack([tensors["in/S0"]] * 2, axis=-3)
    return header, tensors


@pytest.mark.clause("CASE-6", "CASE-8", "CASE-9", "CASE-10", "CASE-11")
def test_the_complete_cases_hold_every_tensor_of_the_table():
    assert {bare(key) for name in WHOLE for key in complete(name)[1]} == set(tensor_table())


@pytest.mark.clause("CASE-5", "CASE-6", "CASE-8", "CASE-10", "CASE-11", "CASE-14")
@pytest.mark.parametrize("name", WHOLE)
def test_a_complete_case_is_read_and_every_floating_input_has_a_gradient(name, tmp_path):
    header, tensors = complete(name)
    case = atlas_ref.load(written(tmp_path / "case", header, tensors))
    assert case.inputs.keys() == tensors.keys()
    assert case.header.plain() == header
    results = atlas_ref.evaluate(case, grad=True).tensors
    floating = {
        key.removeprefix("in/")
        for key in tensors
        if not key.endswith("_bar") and key not in ("in/active", "in/reset")
    }
    assert {key.removeprefix("grad/") for key in results if key.startswith("grad/")} == floating
    for key in floating:
        assert results[f"grad/{key}"].shape == tensors[f"in/{key}"].shape
    assert all(np.isfinite(value).all() for value in results.values())


@pytest.mark.clause("CASE-2")
def test_every_key_is_read(tmp_path):
    header, tensors = complete("token")
    header |= {
        "span": 4,
        "form": "kernel",
        "chunk": 16,
        "convention": {"preset": "atlas-paper", "read": "before"},
        "note": "née α",
    }
    header |= {"feature_map": {"kind": "elu"}, "trace": [], "phase": 3, "parameters": None}
    case = atlas_ref.load(written(tmp_path / "case", header, tensors))
    assert case.header.plain() == header
    assert case.convention == resolve(
        {"preset": "atlas-paper", "read": "before"}, rule="omega", level="token"
    )


@pytest.mark.clause("CASE-2", "CASE-6", "CASE-9")
@pytest.mark.parametrize(
    ("without", "stated", "tensors"),
    [
        (
            {},
            {
                "level": "projected",
                "form": "sequential",
                "convention": "spec",
                "window": 1,
                "feature_map": {"kind": "identity"},
            },
            {},
        ),
        ({}, {"convention": {"preset": "spec"}, "note": "", "chunk": 7}, {}),
        (
            {},
            {"span": None, "phase": None, "chunk": None, "window_weights": None, "trace": None},
            {},
        ),
        ({"level": "token", "window": 3}, {"window_weights": {"kind": "uniform"}}, {}),
        ({"window": 3}, {}, {"in/window_weights": np.full((2, 5, 3), 1 / 3)}),
        ({}, {}, {"in/window_weights": np.ones((2, 5, 1))}),
        ({}, {}, {"in/active": np.ones(5, bool), "in/reset": np.zeros(5, bool)}),
        ({}, {}, {"in/M_bar": np.zeros((2, 3, 4)), "in/S_bar": np.zeros((2, 3, 4))}),
        (
            {"window": 3},
            {},
            {"in/window_k": np.zeros((2, 0, 4)), "in/window_v": np.zeros((2, 0, 3))},
        ),
    ],
)
def test_a_default_and_the_same_thing_stated_are_one_case(without, stated, tensors):
    header, given = some(**without)
    if without.get("window") == 3 and "in/window_weights" in given:
        del given["in/window_weights"]
    plain = atlas_ref.evaluate(atlas_ref.make(header, given), grad=True).tensors
    full = atlas_ref.evaluate(
        atlas_ref.make({**header, **stated}, {**given, **tensors}), grad=True
    ).tensors
    assert {key.replace("in/", "grad/") for key in tensors} >= full.keys() - plain.keys()
    for key, value in plain.items():
        assert_close(key, full[key], value, EXACT)


@pytest.mark.clause("CASE-6")
def test_absent_states_are_zero_and_absent_momentum_is_zero_without_a_state():
    header, tensors = some()
    zero = {"in/M0": np.zeros((2, 3, 4)), "in/S0": np.zeros((2, 3, 4))}
    absent = atlas_ref.evaluate(
        atlas_ref.make(header, changed(tensors, dict.fromkeys(zero, GONE)))
    ).tensors
    stated = atlas_ref.evaluate(atlas_ref.make(header, tensors | zero)).tensors
    for key, value in absent.items():
        assert_close(key, stated[key], value, EXACT)
    without = atlas_ref.evaluate(
        atlas_ref.make(header, changed(tensors, {"in/momentum": GONE, "in/S0": GONE}))
    ).tensors
    nought = atlas_ref.evaluate(
        atlas_ref.make(header, tensors | {"in/momentum": np.zeros((2, 5)), "in/S0": zero["in/S0"]})
    ).tensors
    assert "out/S" not in without
    assert_close("y", without["out/y"], nought["out/y"], EXACT)


@pytest.mark.clause("CASE-6", "CASE-7")
def test_masks_are_bool_or_uint8_and_mean_the_same():
    header, tensors = some(window=3, history=2)
    bits = {"in/active": [1, 0, 1, 1, 0], "in/reset": [0, 0, 0, 1, 0]}
    results = [
        atlas_ref.evaluate(
            atlas_ref.make(
                header, tensors | {key: np.array(value, kind) for key, value in bits.items()}
            ),
            grad=True,
        )
        for kind in (np.bool_, np.uint8)
    ]
    for key, value in results[0].tensors.items():
        assert_close(key, results[1].tensors[key], value, EXACT)


@pytest.mark.clause("CASE-4")
@pytest.mark.parametrize("kind", [np.float32, ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("name", ["weights", "token", "newton_schulz"])
def test_narrow_inputs_are_converted_exactly(kind, name, tmp_path):
    header, tensors = complete(name)
    narrow = {
        key: value if value.dtype == np.uint8 else value.astype(kind)
        for key, value in tensors.items()
    }
    wide = {
        key: value if value.dtype == np.uint8 else value.astype(np.float64)
        for key, value in narrow.items()
    }
    read = atlas_ref.load(written(tmp_path / "case", header, narrow))
    assert read.inputs[next(iter(tensors))].dtype == kind
    got = atlas_ref.evaluate(read, grad=True).tensors
    for key, value in atlas_ref.evaluate(atlas_ref.make(header, wide), grad=True).tensors.items():
        assert got[key].dtype == np.float64
        assert_close(key, got[key], value, EXACT)


@pytest.mark.clause("CASE-4")
def test_bfloat16_is_the_upper_half_of_float32(tmp_path):
    """Every finite bfloat16, read as the float32 with these upper sixteen bits."""
    bits = np.arange(2**16, dtype=np.uint16)
    upper = (bits.astype(np.uint32) << 16).view(np.float32)
    bits, upper = bits[np.isfinite(upper)], upper[np.isfinite(upper)]
    tensors = {"in/x": ("BF16", (len(bits), 1), bits.tobytes())}
    case = atlas_ref.load(written(tmp_path / "case", {"schema": 1, "rule": "feature_map"}, tensors))
    phi = atlas_ref.evaluate(case).tensors["out/phi"]
    assert_close("phi", phi[:, 0], upper.astype(np.float64), EXACT)


@pytest.mark.clause("CASE-6", "CASE-14")
@pytest.mark.parametrize("gate", ["retain", "forget"])
def test_a_logarithm_stands_for_its_gate_and_takes_its_gradient(gate):
    """Gates given as x = exp(l).

    The derivative by l is that by x times x; the gate axis applies to x.
    """
    header, tensors = some(convention={"gate": gate})
    plain = atlas_ref.evaluate(atlas_ref.make(header, tensors), grad=True).tensors
    logs = {f"in/log_{name}": np.log(tensors[f"in/{name}"]) for name in ("retain", "momentum")}
    given = changed(tensors, logs | {"in/retain": GONE, "in/momentum": GONE})
    stood_in = atlas_ref.evaluate(atlas_ref.make(header, given), grad=True).tensors
    assert stood_in.keys() >= {"out/S", "grad/log_retain", "grad/log_momentum"}
    for name in ("retain", "momentum"):
        want = plain[f"grad/{name}"] * tensors[f"in/{name}"]
        np.testing.assert_allclose(stood_in[f"grad/log_{name}"], want, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(stood_in["out/y"], plain["out/y"], rtol=1e-10)


@pytest.mark.clause("CASE-5")
def test_results_and_traces_in_a_case_do_not_change_what_is_computed():
    header, tensors = some()
    extra = {
        name: np.ones(3)
        for name in ("out/y", "out/anything", "grad/k", "trace/S", "trace_grad/S", "chunk/A")
    }
    with_results = atlas_ref.make(header, tensors | extra)
    plain = atlas_ref.evaluate(atlas_ref.make(header, tensors)).tensors
    for key, value in atlas_ref.evaluate(with_results).tensors.items():
        assert_close(key, value, plain[key], EXACT)
    assert set(with_results.recorded) == {"out/y", "out/anything", "grad/k"}


@pytest.mark.clause("CASE-6")
@pytest.mark.parametrize("lead", [(), (2,), (2, 1, 3)])
def test_any_leading_axes_are_so_many_separate_cases(lead):
    header, tensors = some(heads=6, window=2, history=1)
    count = int(np.prod(lead, dtype=int))

    def shaped(value, axes):
        return value[0] if axes == () else value[:count].reshape(axes + value.shape[1:])

    together = atlas_ref.evaluate(
        atlas_ref.make(header, {key: shaped(value, lead) for key, value in tensors.items()})
    ).tensors
    for i, index in enumerate(np.ndindex(lead)):
        one = atlas_ref.evaluate(
            atlas_ref.make(header, {key: value[i] for key, value in tensors.items()})
        ).tensors
        for key, value in one.items():
            np.testing.assert_allclose(together[key][index], value, rtol=1e-13, atol=1e-15)


@pytest.mark.clause("CASE-2")
def test_a_reserved_rule_may_hold_anything_under_in(tmp_path):
    header = {
        "schema": 1,
        "rule": "ttl",
        "parameters": {"depth": 2, "any": {"thing": [1, 2.5, None]}},
    }
    case = atlas_ref.load(
        written(
            tmp_path / "case", header, {"in/anything": np.full(3, np.nan), "out/loss": np.ones(())}
        )
    )
    assert not case.supported
    assert case.header.plain() == header


@pytest.mark.clause("CASE-1")
def test_the_peers_hold_their_header_where_the_spec_says():
    """The header of a file, read with nothing but the eight bytes, JSON and the key.

    That of a module, in words of an earlier day, is read in later ones (LAYER-17).
    """
    rules = [each for each in PEERS.glob("*.safetensors") if "ttl" not in each.name]
    for file in [each for each in rules if "qk" not in each.name]:
        data = file.read_bytes()
        metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        assert json.loads(metadata["atlas_ref"]) == atlas_ref.load(file).header.plain()


@pytest.mark.clause("CASE-9", "WINDOW-6", "PHI-6")
def test_the_hidden_units_of_the_window_gate_are_not_those_of_the_feature_map():
    header, tensors = some(
        level="token",
        window=3,
        window_weights={"kind": "gate"},
        feature_map={"kind": "residual_mlp"},
    )
    draw = np.random.default_rng(0)
    for units in (5, 7):
        own = {
            f"in/phi/{name}": draw.standard_normal(shape)
            for name, shape in (("W1", (units, 4)), ("W2", (4, units)))
        }
        case = atlas_ref.make(header, tensors | own)
        found, want = (
            atlas_ref.evaluate(case, grad=True).tensors,
            literal.evaluate(header, case.inputs),
        )
        assert found["grad/phi/W1"].shape == (units, 4)
        assert_close("y", found["out/y"], want["out/y"], ANALYTIC)
    with pytest.raises(atlas_ref.CaseError, match=r"window_b1.* but in/param/window_W1 makes it"):
        atlas_ref.make(header, tensors | {"in/param/window_b1": np.zeros((2, 5))})


@pytest.mark.clause("CASE-11")
@pytest.mark.parametrize("name", features.MAPS)
def test_a_row_without_leading_axes_is_mapped_and_differentiated(name):
    settings = features.MAPS[name]
    parameters = features.tensors(settings, 3)
    own = {"in/proj" if key == "proj" else f"in/phi/{key}": w for key, w in parameters.items()}
    draw = np.random.default_rng(1)
    x = draw.standard_normal(3)
    want = features.phi(settings, parameters, x)
    header = {"schema": 1, "rule": "feature_map", "feature_map": settings}
    bar = draw.standard_normal(want.shape)
    case = atlas_ref.make(header, own | {"in/x": x, "in/phi_bar": bar})
    found = atlas_ref.evaluate(case, grad=True)
    assert_close("phi", found.tensors["out/phi"], want, ANALYTIC)
    x_bar, bars = features.pullback(settings, parameters, x, bar)
    assert_close("x", found.tensors["grad/x"], x_bar, ANALYTIC)
    for key, gradient in bars.items():
        place = "grad/proj" if key == "proj" else f"grad/phi/{key}"
        assert_close(key, found.tensors[place], gradient, ANALYTIC)
    assert found.void == {}


@pytest.mark.clause("CASE-2")
@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"window": 3, "span": 4, "convention": {"preset": "atlas-paper", "read": "before"}},
        {"note": "née", "feature_map": {"kind": "elu"}, "chunk": 2},
        {"schedule": {"periods": [1, 4], "level": 1, "first_step": 3}},
    ],
)
def test_a_header_is_the_json_object_that_make_and_save_take_back(keys, tmp_path):
    header, tensors = some(**{key: keys[key] for key in ("window",) if key in keys})
    case = atlas_ref.make({**header, **keys}, tensors)
    assert dict(case.header) == {**header, **keys}
    assert json.loads(json.dumps(dict(case.header))) == dict(case.header)
    assert case.header["rule"] == header["rule"]
    again = atlas_ref.make(dict(case.header), case.inputs)
    assert again.header == case.header
    atlas_ref.save(tmp_path / "a", case.header, case.inputs)
    atlas_ref.save(tmp_path / "b", dict(case.header), case.inputs)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert atlas_ref.load(tmp_path / "b").header == case.header
    changed = atlas_ref.make({**case.header, "note": "another"}, case.inputs)
    assert dict(changed.header) == {**header, **keys, "note": "another"}
    with pytest.raises(KeyError):
        case.header["parameters"]
