"""Cases of layers: what public code recorded against ours, and what is wrong in a file."""

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.case import differentiable
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.judge.arrays import relative_error
from atlas_ref.oracle.judge.compare import checked
from atlas_ref.oracle.report.failures import explain
from atlas_ref.oracle.sources import sources
from tests.support import layer_implementations
from tests.support.layer_cases import FILES, MAG, ONE, PARTS, SYSTEMS, file_of, layer_case

TOLERANCE = 1e-10
GENERATION = ("in/prompt", "in/uniform")


def by_name(file):
    return file.stem


def test_there_are_fifteen_cases_of_parts_forty_of_memories_blocks_and_models_seven_of_mag():
    assert (len(FILES), len(PARTS), len(SYSTEMS), len(MAG)) == (55, 15, 40, 7)


@pytest.mark.clause(
    "LAYER-1",
    "LAYER-3",
    "LAYER-4",
    "LAYER-5",
    "LAYER-6",
    "LAYER-7",
    "LAYER-8",
    "LAYER-10",
    "LAYER-13",
    "LAYER-14",
    "LAYER-15",
    "LAYER-16",
    "LAYER-17",
    "MODEL-6",
    "MODEL-7",
    "MODEL-8",
    "MODEL-9",
    "MODEL-10",
    "OMEGA-29",
    "OMEGA-30",
)
@pytest.mark.parametrize("file", FILES + MAG, ids=by_name)
def test_every_recorded_tensor_of_a_layer_passes(file):
    case = atlas_ref.load(file)
    rows = atlas_ref.check(case)
    assert {row.tensor for row in rows} == set(case.recorded)
    for row in rows:
        assert row.verdict == "PASS", row
        if "float32" in file.stem or case.recorded[row.tensor].dtype.kind in "iu":
            continue
        assert (row.tolerance, row.allowed) == (TOLERANCE, 1.0)
        assert row.error <= (1e-15 if file in PARTS else 1e-13), row  # LAYER-10 says 6e-16


@pytest.mark.clause("LAYER-8")
@pytest.mark.parametrize("file", FILES, ids=by_name)
def test_gradients_are_by_tokens_and_every_parameter_but_constants(file):
    case = atlas_ref.load(file)
    recorded = {name.removeprefix("grad/") for name in case.recorded if name.startswith("grad/")}
    own = {name.removeprefix("in/") for name in differentiable(case)}
    if case.header.layer == "sampling":  # whole numbers have none
        assert recorded == set()
    else:
        assert recorded == own - {"uniform"}
    assert not any(name.endswith(("rotary_emb.freqs", "phi.proj")) for name in recorded)


@pytest.mark.clause("LAYER-10")
@pytest.mark.parametrize("file", PARTS + MAG, ids=by_name)
def test_a_recorded_tensor_of_a_layer_that_is_off_in_one_entry_is_wrong_there(file):
    """Records with their largest entry moved by 2e-9 of the tensor's norm."""
    case = atlas_ref.load(file)
    for name, value in case.recorded.items():
        at = np.unravel_index(int(np.argmax(np.abs(value))), value.shape)
        moved = value.copy()
        moved[at] += 2e-9 * (np.linalg.norm(value) or 1.0)
        rows = atlas_ref.check(case.replaced(recorded={**case.recorded, name: moved}))
        (wrong,) = [row for row in rows if row.verdict != "PASS"]
        assert (wrong.tensor, wrong.verdict, wrong.place) == (name, "WRONG", at)
        assert (wrong.got, wrong.want) == (moved[at], pytest.approx(value[at], rel=1e-12))


@pytest.mark.clause("LAYER-10")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_result_of_a_layer_that_is_not_finite_is_wrong_with_its_first_place(bad):
    case = atlas_ref.load(file_of("feed_forward_mult1"))
    y = case.recorded["out/y"].copy()
    y[1, 2, 3:] = bad
    (wrong,) = [
        row
        for row in atlas_ref.check(case.replaced(recorded={**case.recorded, "out/y": y}))
        if row.verdict != "PASS"
    ]
    assert (wrong.tensor, wrong.verdict, wrong.place) == ("out/y", "WRONG", (1, 2, 3))


MISTAKES = {
    "frequencies in float64": {
        "in/param/rotary_emb.freqs": lambda w: 10000.0 ** (-np.arange(len(w)) / len(w))
    },
    "persistent rows of the other head": {"in/param/persist_mem": lambda w: w[::-1]},
    "queries and keys exchanged": {
        "in/param/to_qkv.weight": lambda w: np.concatenate([w[8:16], w[:8], w[16:]])
    },
    "a norm without weight": {"in/param/norm.weight": np.ones_like},
}


@pytest.mark.clause("LAYER-10")
@pytest.mark.parametrize("name", MISTAKES)
def test_a_small_mistake_in_attention_is_beyond_the_tolerance(name):
    case = atlas_ref.load(file_of("attention_w32_p3"))
    wrong = {key: np.ascontiguousarray(f(case.inputs[key])) for key, f in MISTAKES[name].items()}
    y = evaluate(case.replaced(inputs={**case.inputs, **wrong})).tensors["out/y"]
    assert relative_error(y, case.recorded["out/y"]) > 2 * TOLERANCE
    rows = atlas_ref.check(case.replaced(recorded={"out/y": y}))
    assert [row.verdict for row in rows] == ["WRONG"]


@pytest.mark.clause("LAYER-6")
def test_the_causal_reading_is_judged_apart_from_the_reading_of_the_code():
    case = atlas_ref.load(file_of("attention_w5_p3"))
    swapped = {"out/y": case.recorded["out/y_prefix"], "out/y_prefix": case.recorded["out/y"]}
    rows = atlas_ref.check(case.replaced(recorded=swapped))
    assert {row.tensor: row.verdict for row in rows} == dict.fromkeys(swapped, "WRONG")
    (prefix,) = [row for row in rows if row.tensor == "out/y_prefix"]
    assert prefix.first is not None
    assert prefix.first.token == 0  # the first row of the code sees the last keys of the call


@pytest.mark.clause("LAYER-7")
def test_calls_that_are_cut_elsewhere_give_something_else():
    case = atlas_ref.load(file_of("attention_cache_w5_p2"))
    header = case.header.plain()
    header["parameters"]["calls"] = [12]
    whole = atlas_ref.make(header, {**case.inputs, **case.recorded})
    verdicts = {row.tensor: row.verdict for row in atlas_ref.check(whole)}
    assert verdicts["out/y"] == verdicts["grad/x"] == "WRONG"
    assert verdicts["out/y_prefix"] == verdicts["out/cache/v"] == "PASS"


@pytest.mark.clause("LAYER-3", "LAYER-7")
@pytest.mark.parametrize("name", ["attention_cache_w5_p2", "attention_cache_w32_p2"])
def test_a_cache_that_is_handed_on_continues_a_run(name):
    case = atlas_ref.load(file_of(name))
    header, tensors = case.header.plain(), dict(case.inputs)
    calls, T = header["parameters"]["calls"], tensors["in/x"].shape[1]
    first = calls[0]
    pieces = []
    for cut, own in (((0, first), calls[:1]), ((first, T), calls[1:])):
        part = {**tensors, "in/x": tensors["in/x"][:, slice(*cut)]}
        part.pop("in/y_bar")
        if pieces:
            part |= {f"in/cache/{key}": pieces[0][f"out/cache/{key}"] for key in "kv"}
        header["parameters"] = {**header["parameters"], "calls": own}
        pieces.append(atlas_ref.evaluate(atlas_ref.make(header, part)).tensors)
    y = np.concatenate([each["out/y"] for each in pieces], axis=1)
    assert relative_error(y, case.recorded["out/y"]) < 1e-14
    for key in ("out/cache/k", "out/cache/v"):
        assert relative_error(pieces[1][key], case.recorded[key]) < 1e-14
    assert "out/y_prefix" in pieces[0]
    assert "out/y_prefix" not in pieces[1]


@pytest.mark.clause("LAYER-8")
def test_gradients_by_a_cache_are_those_of_differences():
    case = atlas_ref.load(file_of("attention_cache_w5_p2"))
    header, tensors = layer_case("attention_cache_w5_p2")
    header["parameters"]["calls"] = [12]
    tensors |= {f"in/cache/{key}": case.recorded[f"out/cache/{key}"][..., :4, :] for key in "kv"}

    def loss(**changes):
        changed = atlas_ref.make(header, {**tensors, **changes})
        return float(np.sum(atlas_ref.evaluate(changed).tensors["out/y"] * tensors["in/y_bar"]))

    results = atlas_ref.evaluate(atlas_ref.make(header, tensors), grad=True).tensors
    for key in ("in/cache/k", "in/cache/v"):
        along = np.random.default_rng(0).standard_normal(tensors[key].shape)
        up, down = (loss(**{key: tensors[key] + h * along}) for h in (1e-6, -1e-6))
        want = np.sum(results["grad/" + key.removeprefix("in/")] * along)
        assert want == pytest.approx((up - down) / 2e-6, rel=1e-7)


@pytest.mark.clause("LAYER-8")
def test_gradients_of_a_layer_need_its_cotangent():
    header, tensors = layer_case("rms_norm")
    tensors.pop("in/y_bar")
    case = atlas_ref.make(header, tensors)
    assert "out/y" in atlas_ref.evaluate(case).tensors
    with pytest.raises(atlas_ref.CaseError, match="in/y_bar: missing, gradients need it"):
        atlas_ref.evaluate(case, grad=True)


@pytest.mark.clause("LAYER-15")
def test_one_token_has_no_loss_and_its_gradients_are_refused_in_one_line(cli, tmp_path):
    header, tensors = layer_case("lm_mag")
    header["parameters"] |= {"repeat_calls": None, "max_length": None}
    tensors = {name: value for name, value in tensors.items() if name not in GENERATION}
    tensors["in/ids"] = tensors["in/ids"][:, :1]
    file, out = tmp_path / "one.safetensors", tmp_path / "ours.safetensors"
    words = (
        f"atlas-ref: {file}: out/loss: in/ids has 1 token, and without a next one there is no loss "
        "to take gradients of\n"
    )
    case = atlas_ref.make(header, tensors)
    results = atlas_ref.evaluate(case).tensors
    assert results.keys() == {"out/logits"}
    atlas_ref.save(file, header, tensors)
    assert cli("eval", file, "-o", out).code == 0
    for refused in (
        cli("eval", file, "--grad", "-o", out),
        cli("tolerance", f"{file}:grad/param/embed.weight"),
    ):
        assert (refused.code, refused.err) == (2, words)
    zeros = np.zeros_like(tensors["in/param/embed.weight"])
    recorded = {**tensors, **results, "grad/param/embed.weight": zeros}
    atlas_ref.save(file, header, recorded)
    refused = cli("check", file)
    assert (refused.code, refused.err) == (2, words)
    assert cli("check", file, "--only", "logits").code == 0


@pytest.mark.clause("LAYER-2", "CASE-18")
def test_a_base_beside_recorded_frequencies_is_void():
    header, tensors = layer_case()
    case = atlas_ref.make(header, tensors)
    assert (case.void, case.in_force) == ({}, {})
    header["parameters"]["rotary_base"] = 500.0
    other = atlas_ref.make(header, tensors)
    assert other.void == {
        "parameters.rotary_base": "in/param/rotary_emb.freqs holds the frequencies"
    }
    a, b = (atlas_ref.evaluate(each).tensors["out/y"] for each in (case, other))
    assert np.array_equal(a, b)


@pytest.mark.clause("LAYER-12", "SRC-14", "CASE-27")
@pytest.mark.parametrize(
    ("name", "tensor", "clause"),
    [
        ("rms_norm", "out/y", "NORM-4"),
        ("multihead_rms_norm", "grad/x", "LAYER-8"),
        ("feed_forward_mult4", "out/y", "FEED-1"),
        ("feed_forward_mult4", "grad/param/1.weight", "LAYER-8"),
        ("attention_cache_w5_p2", "out/y", "ATTENTION-4"),
        ("attention_cache_w5_p2", "out/y_prefix", "ATTENTION-3"),
        ("attention_cache_w5_p2", "out/cache/k", "ATTENTION-8"),
        ("attention_cache_w5_p2", "grad/param/persist_mem", "ATTENTION-12"),
    ],
)
def test_a_failure_of_a_layer_names_the_clause_of_its_result(name, tensor, clause):
    case = atlas_ref.load(file_of(name))
    wrong = case.replaced(recorded={**case.recorded, tensor: case.recorded[tensor] * 1.5})
    done = checked(wrong)
    failure = explain(done, done.rows, "again")
    assert failure is not None
    assert (failure.op, failure.clause, failure.verdict) == (tensor, clause, "WRONG")
    assert failure.rule == f"layer {case.header.layer}"


@pytest.mark.clause("CASE-23")
def test_a_result_that_the_layer_does_not_have_is_refused_by_name():
    case = atlas_ref.load(file_of("rms_norm"))
    extra = case.replaced(recorded={**case.recorded, "out/y_prefix": case.recorded["out/y"]})
    with pytest.raises(atlas_ref.CaseError, match="out/y_prefix: not a result of this case"):
        atlas_ref.check(extra)
    with pytest.raises(atlas_ref.CaseError, match="only: out/zz: no rule has such a result"):
        atlas_ref.check(case, only=["zz"])
    rows = atlas_ref.check(case, only=["grad/param/weight"])
    assert [row.tensor for row in rows] == ["grad/param/weight"]


@pytest.mark.clause("CASE-23", "LAYER-12")
def test_a_result_that_an_implementation_misnames_is_told_those_of_the_layer():
    case = atlas_ref.load(file_of("feed_forward_mult1"))
    words = "out/Y: not a result of this case; it has out/y$"
    with pytest.raises(atlas_ref.CaseError, match=words):
        atlas_ref.check(case, source=lambda it: sources.respond(layer_implementations.misnamed, it))


@pytest.mark.clause("CASE-2", "LAYER-1")
@pytest.mark.parametrize("name", ONE.values())
def test_a_layer_is_written_and_read_again_bit_by_bit(name, tmp_path):
    case = atlas_ref.load(file_of(name))
    atlas_ref.save(tmp_path / "again.safetensors", case.header, {**case.inputs, **case.recorded})
    again = atlas_ref.load(tmp_path / "again.safetensors")
    assert again.header == case.header
    assert again.inputs.keys() == case.inputs.keys()
    for key, value in case.inputs.items():
        assert np.array_equal(again.inputs[key], value)


@pytest.mark.clause("LAYER-16")
def test_recorded_samples_are_drawn_again():
    rows = atlas_ref.check(atlas_ref.load(file_of("sampling")))
    assert {row.verdict for row in rows} == {"PASS"}
