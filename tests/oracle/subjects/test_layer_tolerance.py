"""Tolerances of layers below float64: wide enough for every arithmetic, narrow enough for mistakes."""

import numpy as np
import pytest

import atlas_ref
from atlas_ref import backend
from atlas_ref.backend import threads
from atlas_ref.oracle.cases.inputs import round_inputs
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.family.arithmetic import MEMBERS
from atlas_ref.oracle.judge import ensemble
from atlas_ref.oracle.judge.answers import Answer
from atlas_ref.oracle.judge.tolerance import PASS, tolerances
from atlas_ref.oracle.norms import norms
from tests.support.layer_arithmetic import results
from tests.support.layer_cases import MAG, ONE, PARTS, file_of, layer_case
from tests.support.standin.array import NAME


def by_name(file):
    return file.stem


def answered(tensors):
    return lambda case: Answer(dict(tensors))


@pytest.mark.clause("LAYER-11", "CASE-22")
@pytest.mark.parametrize("file", PARTS, ids=by_name)
def test_a_plain_evaluation_in_any_arithmetic_stays_below_one_tolerance(file):
    case = round_inputs(atlas_ref.load(file), "float32")
    want = evaluate(case, grad=True).tensors
    allowed = tolerances(case, dtype="float32", only=list(want), results=want)
    for way in MEMBERS:
        got = results(case, way, "float32")
        assert got.keys() == want.keys()
        for name, value in got.items():
            assert value.dtype == np.float32
            ratio = norms(np.asarray(value, np.float64) - want[name]).over(allowed[name].norms)
            assert ratio < 1.0, (way.name, name)


def long_case(layer):
    """A case of more terms to each sum than any recorded one."""
    draw = np.random.default_rng(7).standard_normal
    D, T, H, d, n = 64, 40, 4, 16, 170
    if layer == "feed_forward":
        parameters = {"dim": D, "mult": 4}
        own = {"0.weight": 1 + 0.3 * draw(D), "1.bias": 0.1 * draw(2 * n), "3.bias": 0.1 * draw(D)}
        own |= {"1.weight": draw((2 * n, D)) / 8, "3.weight": draw((D, n)) / n**0.5}
    else:
        sizes = {"dim": D, "heads": H, "dim_head": d, "num_persist_mem_tokens": 4}
        parameters = sizes | {"window_size": 24, "calls": [T - 3, 1, 2]}
        freqs = np.float32(10000.0) ** (-np.arange(0, d, 2, dtype=np.float32) / np.float32(d))
        own = {"norm.weight": 1 + 0.3 * draw(D), "to_qkv.weight": draw((3 * H * d, D)) / 8}
        own |= {"to_out.weight": draw((D, H * d)) / 8, "persist_mem": draw((H, 4, d))}
        own["rotary_emb.freqs"] = freqs.astype(np.float64)
    tensors = {f"in/param/{name}": value for name, value in own.items()}
    tensors |= {"in/x": draw((2, T, D)), "in/y_bar": draw((2, T, D))}
    header = {"schema": 1, "rule": "layer", "layer": layer, "parameters": parameters}
    return atlas_ref.make(header, tensors)


@pytest.mark.clause("LAYER-11")
@pytest.mark.parametrize("layer", ["feed_forward", "sliding_window_attention"])
def test_longer_sums_in_another_order_stay_below_one_tolerance(layer):
    case = round_inputs(long_case(layer), "float32")
    want = evaluate(case, grad=True).tensors
    allowed = tolerances(case, dtype="float32", only=list(want), results=want)
    for way in MEMBERS:
        for name, value in results(case, way, "float32").items():
            ratio = norms(np.asarray(value, np.float64) - want[name]).over(allowed[name].norms)
            assert ratio < 1.0, (way.name, name)


@pytest.mark.clause("LAYER-9", "LAYER-11")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "file", [*map(file_of, [*ONE.values(), "attention_cache_w5_p2"]), *MAG], ids=by_name
)
def test_a_layer_that_works_in_a_narrower_format_passes(file, dtype):
    case = atlas_ref.load(file)
    mine = evaluate(case, grad=True, dtype=dtype).tensors
    assert {value.dtype.name for value in mine.values()} == {dtype}
    rows = atlas_ref.check(case, source=answered(mine), dtype=dtype)
    assert {row.tensor: row.verdict for row in rows} == dict.fromkeys(mine, "PASS")


MISTAKES = {
    "a weight that is left out": {"in/param/norm.weight": np.ones_like},
    "a slower turn": {"in/param/rotary_emb.freqs": lambda w: w * (1 - 1e-4)},
    "one persistent row of zeros": {
        "in/param/persist_mem": lambda w: w * (np.arange(3) > 0)[:, None]
    },
    "a projection that is off by a hundred thousandth": {
        "in/param/to_qkv.weight": lambda w: w * (1 + 2e-5)
    },
}


@pytest.mark.clause("LAYER-11")
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_wrong_in_float32(name):
    case = atlas_ref.load(file_of("attention_w32_p3"))
    wrong = {key: np.ascontiguousarray(f(case.inputs[key])) for key, f in MISTAKES[name].items()}
    mine = evaluate(case.replaced(inputs={**case.inputs, **wrong}), dtype="float32").tensors
    rows = atlas_ref.check(case, source=answered(mine), dtype="float32")
    assert {row.tensor: row.verdict for row in rows}["out/y"] == "WRONG"


@pytest.mark.clause("LAYER-9")
def test_the_epsilon_is_that_of_the_dtype_of_the_model():
    """A row of root mean square 1e-7, which float32 halves and more and float64 does not."""
    case = atlas_ref.load(file_of("rms_norm_tiny"))
    x, weight = case.inputs["in/x"], case.inputs["in/param/weight"]
    for dtype, eps in (("float64", 2.0**-52), ("float32", 2.0**-23)):
        want = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps) * weight
        got = evaluate(case, dtype=dtype).tensors["out/y"]
        assert np.abs(got - want).max() < 1e-6 * np.abs(want).max()
    ours = {dtype: evaluate(case, dtype=dtype).tensors for dtype in ("float64", "float32")}
    assert np.abs(ours["float32"]["out/y"] - ours["float64"]["out/y"]).max() > 0.01
    asked = atlas_ref.check(case, source=answered(ours["float32"]), dtype="float32")
    assert [row.verdict for row in asked] == ["PASS"]
    not_asked = atlas_ref.check(case, source=answered(ours["float32"]))
    assert [row.verdict for row in not_asked] == ["WRONG"]


@pytest.mark.clause("LAYER-9")
def test_a_file_in_float32_has_the_epsilon_of_float32():
    header, tensors = layer_case("rms_norm_tiny")
    narrow = {name: value.astype(np.float32) for name, value in tensors.items()}
    mine = evaluate(atlas_ref.make(header, narrow), grad=True, dtype="float32").tensors
    rows = atlas_ref.check(atlas_ref.make(header, {**narrow, **mine}))
    assert {row.verdict for row in rows} == {"PASS"}
    mixed = atlas_ref.make(header, {**narrow, "in/x": tensors["in/x"]})
    y = evaluate(mixed).tensors["out/y"]
    assert np.abs(y - mine["out/y"]).max() > 0.01  # float64 tokens: the epsilon of float64


@pytest.mark.clause("LAYER-11", "TOL-10")
def test_a_tolerance_of_a_layer_has_ten_members_and_a_floor(cli):
    file = file_of("attention_cache_w5_p2")
    shown = cli("tolerance", f"{file}:grad/param/to_qkv.weight", "--json").json
    assert len(shown["ensemble"]) == len(MEMBERS) == 10
    assert (shown["amplification"], shown["pass"]) == (1.0, PASS)
    assert shown["tolerance"]["max"] == pytest.approx(
        max(each["max"] for each in shown["ensemble"].values()) + shown["floor"]["max"]
    )
    assert cli("tolerance", f"{file}:y").code == 0
    refused = cli("tolerance", f"{file}:y", "--state-dtype", "bfloat16")
    assert refused.code == 2
    words = "state-dtype: belongs to a memory, layer sliding_window_attention has no state to round"
    assert refused.err == f"atlas-ref: {file}: {words}\n"
    refused = cli("check", file, "--state-dtype", "float32")
    assert (refused.code, refused.err) == (2, f"atlas-ref: {file}: {words}\n")


def test_members_multiply_on_one_thread_since_small_products_wait_for_busy_processors(monkeypatch):
    """Attention of 256 tokens in a window of 256: its tolerance took 37 s in place of 5."""
    case, seen = atlas_ref.load(file_of("attention_w5_p3")), set()
    plain, before = ensemble.evaluate, [each.get_num_threads() for each in threads._blas()]

    def evaluated(*args, **settings):
        seen.update(library.get_num_threads() for library in threads._blas())
        return plain(*args, **settings)

    monkeypatch.setattr(ensemble, "evaluate", evaluated)
    for library in threads._blas():
        library.set_num_threads(2)
    try:
        tolerances(case, dtype="float32")
    finally:
        for library, count in zip(threads._blas(), before, strict=True):
            library.set_num_threads(count)
    assert seen == {1}


@pytest.mark.clause("LAYER-11", "BACKEND-2")
def test_members_compute_where_their_inputs_are_whatever_backend_is_in_use():
    case = atlas_ref.load(file_of("attention_cache_w5_p2"))
    here = ensemble.members(case, "float32", grad=True)
    with backend.used(NAME):
        there = ensemble.members(case, "float32", grad=True)
    for member, mine in here.items():
        for name, value in mine.items():
            assert np.array_equal(value, there[member][name]), (member, name)
