"""Commands on cases of deep memories: new, show, eval, check, tolerance, and what refuses them."""

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.new import Request, new
from tests.support import deep_cases, deep_implementations

PARAMETERS = ("--parameter", "chunk=2", "--parameter", "memory.kind=mlp")
RIGHT = "tests.support.deep_implementations:right"
WRONG = "tests.support.deep_implementations:gates_of_the_first_token"


@pytest.fixture
def case(tmp_path):
    made = deep_cases.made(**deep_implementations.REQUEST)
    atlas_ref.save(tmp_path / "case.safetensors", made.header, made.inputs)
    return tmp_path / "case.safetensors"


@pytest.mark.clause("DEEPCASE-10")
def test_a_first_case_is_one_command_away(cli, tmp_path):
    file = tmp_path / "case.safetensors"
    ran = cli("new", "deep_memory", "-o", file)
    assert (ran.code, ran.err) == (0, f"wrote {file}\n")
    case = atlas_ref.load(file)
    assert case.void == {}
    assert case.inputs.keys() == new(Request(rule="deep_memory")).inputs.keys()
    moving = atlas_ref.evaluate(case).tensors["out/state/weights/W_1"]
    assert not np.array_equal(moving[0], case.inputs["in/memory/W_1"])


@pytest.mark.clause("CASE-23")
def test_a_name_that_is_no_result_is_told_with_those_of_the_case(case, cli):
    ran = cli("check", case, "--impl", RIGHT, "--only", "y,zz")
    assert ran.code == 2
    assert "only: out/zz: no rule has such a result; " in ran.err
    assert "case.safetensors has out/y, " in ran.err.replace("case has", "case.safetensors has")
    assert "out/state/weights/" in ran.err
    assert "M_ref" not in ran.err
    several = cli("check", case, case, "--impl", RIGHT, "--only", "zz")
    assert (several.code, "results are y, M, S" in several.err) == (2, True)


@pytest.mark.clause("DEEPCASE-10")
def test_options_choose_the_parameters_and_the_tensors(cli, tmp_path):
    file = tmp_path / "case.safetensors"
    options = [*PARAMETERS, "--parameter", 'fast=["W_2"]', "--parameter", "memory.expansion=1.5"]
    options += ["--parameter", 'window_weights={"kind": "decay", "base": 0.5}']
    options += ["--parameter", "adaptive=true", "--convention", "newton_schulz=none"]
    options += ["--tokens", "7", "--d-in", "4", "--d-out", "2", "--heads", "3", "--history", "1"]
    options += [
        "--window-gate",
        "--pulse",
        "2",
        "--reset",
        "3",
        "--cotangent",
        "--dtype",
        "float32",
    ]
    assert cli("new", "deep_memory", "-o", file, *options).code == 0
    case = atlas_ref.load(file)
    assert case.header.parameters == {
        "chunk": 2,
        "memory": {"kind": "mlp", "expansion": 1.5},
        "fast": ["W_2"],
        "window_weights": {"kind": "decay", "base": 0.5},
        "adaptive": True,
    }
    shapes = {name: value.shape for name, value in case.inputs.items()}
    assert shapes["in/memory/W_1"] == (6, 4)
    assert shapes["in/state/weights/W_2"] == (3, 2, 6)
    assert "in/state/weights/W_1" not in shapes
    assert shapes["in/state/keys"] == (3, 1, 4)
    assert shapes["in/window_gate"] == shapes["in/retain"] == (3, 7)
    assert int(case.inputs["in/state/position"]) == 1
    assert case.inputs["in/active"].tolist() == [1, 0, 0, 1, 1, 0, 0]
    assert case.inputs["in/reset"].tolist() == [0, 0, 0, 1, 0, 0, 1]
    assert {x.dtype.name for x in case.inputs.values() if x.dtype.kind == "f"} == {"float32"}


BAD = {
    "no value": (["chunk"], "--parameter: NAME=VALUE is needed, as in chunk=4, found 'chunk'"),
    "twice": (["chunk=2", "chunk=3"], "--parameter: chunk is given twice"),
    "inside a value": (["memory=3", "memory.kind=mlp"], "--parameter: memory.kind is given twice"),
    "around a value": (["memory.kind=mlp", "memory=3"], "--parameter: memory is given twice"),
    "unknown": (["chnk=2"], "case.safetensors: parameters.chnk: the rule deep_memory has none; "),
    "illegal": (["chunk=0"], "case.safetensors: parameters.chunk: must be at least 1, found 0"),
    "of other widths": (
        ["memory.kind=mlp", "memory.residual_norm=true"],
        "case.safetensors: parameters.memory.residual_norm: d_in 4 and d_out 3 must be the same",
    ),
}


@pytest.mark.clause("DEEPCASE-10", "CASE-17")
@pytest.mark.parametrize("name", BAD)
def test_a_bad_parameter_is_one_line(name, cli, tmp_path):
    values, words = BAD[name]
    options = [word for value in values for word in ("--parameter", value)]
    ran = cli("new", "deep_memory", "-o", tmp_path / "case.safetensors", *options)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err
    assert ran.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.clause("DEEPCASE-10")
@pytest.mark.parametrize(
    ("rule", "options", "words"),
    [
        (
            "deep_memory",
            ["--window", "3"],
            "window: the rule deep_memory has none; it is parameters",
        ),
        ("deep_memory", ["--level", "token"], "level: the rule deep_memory has projected alone"),
        ("deep_memory", ["--per-dimension"], "per_dimension_gates: the rule deep_memory has none"),
        ("deep_memory", ["--periods", "1,2"], "schedule: the rule deep_memory has none"),
        ("omega", ["--parameter", "chunk=2"], "parameters: the rule omega has none"),
        ("layer", [], "rule layer: its cases are recorded, none is drawn"),
    ],
)
def test_options_of_another_rule_are_refused(rule, options, words, cli, tmp_path):
    ran = cli("new", rule, "-o", tmp_path / "case.safetensors", *options)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err


@pytest.mark.clause("DEEPCASE-11", "CASE-18")
def test_show_has_the_convention_in_force_and_what_is_void(cli, tmp_path):
    file = tmp_path / "case.safetensors"
    assert cli("new", "deep_memory", "-o", file, "--parameter", "clip_norm=0.5").code == 0
    shown = cli("show", file, "--json").json
    assert shown["convention"]["rate"] == "memory"
    assert shown["convention"]["gradient_scale"] == 2.0
    assert shown["void"] == {"parameters.clip_norm": "there is no clip"}
    assert shown["tensors"]["in/memory/W_1"]["shape"] == [16, 4]
    text = cli("show", file).out
    assert "in/memory/W_2" in text
    assert "there is no clip" in text


@pytest.mark.clause("DEEPCASE-11")
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_what_eval_writes_passes_as_an_answer(dtype, case, cli, tmp_path):
    full = deep_cases.made(**deep_cases.FULL)
    atlas_ref.save(case, full.header, full.inputs)
    out = tmp_path / "out.safetensors"
    assert cli("eval", case, "-o", out, "--grad", "--dtype", dtype).code == 0
    ran = cli("check", case, "--against", out, "--dtype", dtype, "--json")
    assert ran.json["exit"] == 0
    assert len(ran.json["results"]) == len(atlas_ref.evaluate(full, grad=True).tensors)


@pytest.mark.clause("DEEPCASE-11")
def test_another_convention_may_be_asked_for(case, cli, tmp_path):
    out = tmp_path / "out.safetensors"
    assert cli("eval", case, "-o", out, "--convention", "read=before").code == 0
    assert cli("check", case, "--against", out).code == 1
    assert cli("check", case, "--against", out, "--convention", "read=before").code == 0


@pytest.mark.clause("DEEPCASE-9", "DEEPCASE-11", "CASE-26")
def test_a_function_is_checked_and_its_mistake_named(case, cli):
    ran = cli("check", case, "--impl", RIGHT, "--dtype", "float32")
    assert ran.code == 0
    ran = cli("check", case, "--impl", WRONG, "--dtype", "float32", "--json")
    assert ran.code == 1
    (failure,) = ran.json["failures"]
    assert (failure["rule"], failure["clause"]) == ("deep_memory", "DEEP-15")
    assert failure["first_wrong"]["op"] == "out/y"
    assert failure["first_wrong"]["token"] == 1


@pytest.mark.clause("DEEPCASE-9", "TOL-10")
def test_a_tolerance_is_derived(case, cli):
    ran = cli("tolerance", f"{case}:state/weights/W_1", "--state-dtype", "bfloat16", "--json")
    assert ran.code == 0
    assert len(ran.json["ensemble"]) == 10
    assert ran.json["tolerance"]["max"] > 1e-4


@pytest.mark.clause("CERT-13", "CERT-17")
def test_the_command_certifies_a_deep_memory(cli, tmp_path) -> None:
    file, out = tmp_path / "case.safetensors", tmp_path / "out.safetensors"
    words = ("--parameter", "chunk=2", "--tokens", "3", "--heads", "1", "--cotangent")
    assert cli("new", "deep_memory", "-o", file, *words).code == 0
    ran = cli("certify", file, "--grad", "-o", out)
    assert ran.code == 0, ran.out
    assert "entries certified" in ran.out
    assert cli("check", out).code == 0


@pytest.mark.clause("DEEPCASE-11")
@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["eval", "--form", "chunkwise"], "form chunkwise: not defined for rule deep_memory"),
        (["levels"], "rule deep_memory"),
    ],
)
def test_what_knows_other_memories_alone_refuses_it_in_one_line(
    command, words, case, cli, tmp_path
):
    name, *options = command
    ran = cli(name, case, *options, "-o", tmp_path / "out")
    assert ran.code in (2, 3)
    assert words in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.clause("DEEPCASE-10")
@pytest.mark.parametrize(
    ("name", "bias", "retention"),
    [
        ("moneta", {"kind": "lp", "power": 3.0}, {"kind": "lq", "power": 4.0}),
        ("yaad", {"kind": "huber"}, {"kind": "l2"}),
        ("memora", {"kind": "l2"}, {"kind": "kl"}),
    ],
)
def test_a_rule_of_miras_is_one_word(cli, tmp_path, name, bias, retention):
    file = tmp_path / "case.safetensors"
    options = ["--d-out", "4", "--tokens", "3", "--parameter", f"preset={name}"]
    ran = cli("new", "deep_memory", "-o", file, *options)
    assert (ran.code, ran.err) == (0, f"wrote {file}\n")
    case = atlas_ref.load(file)
    memory = {"kind": "mlp", "residual_norm": True}
    want = {"memory": memory, "span": 16, "bias": bias, "retention": retention}
    assert case.header.plain()["parameters"] == want
    axes = case.header.plain()["convention"]
    assert axes == {"newton_schulz": "none", "reference": "chunk_start"}
    assert "in/momentum" not in case.inputs
    assert np.isfinite(atlas_ref.evaluate(case).tensors["out/y"]).all()


@pytest.mark.clause("DEEPCASE-10")
def test_what_is_stated_stands_in_the_place_of_a_preset(cli, tmp_path):
    file = tmp_path / "case.safetensors"
    options = ["retention.link=mirror", "memory.kind=linear", "span=3", 'bias={"kind": "l1"}']
    options = [word for each in ["preset=moneta", *options] for word in ("--parameter", each)]
    assert cli("new", "deep_memory", "-o", file, *options, "--convention", "read=before").code == 0
    header = atlas_ref.load(file).header.plain()
    assert header["parameters"] == {
        "memory": {"kind": "linear"},
        "span": 3,
        "bias": {"kind": "l1"},
        "retention": {"kind": "lq", "power": 4.0, "link": "mirror"},
    }
    assert header["convention"]["read"] == "before"
    gated = ["deep_momentum.function.kind=linear", "preset=yaad", "memory.kind=linear"]
    gated = [word for each in gated for word in ("--parameter", each)]
    assert cli("new", "deep_memory", "-o", file, *gated).code == 0
    assert "in/momentum" in atlas_ref.load(file).inputs
    for rule, word, said in (
        ("deep_memory", "monetta", "parameters.preset 'monetta' does not exist"),
        ("deep_memory", '["moneta"]', "does not exist"),
        ("tnt", "moneta", "parameters"),
    ):
        ran = cli("new", rule, "-o", file, "--parameter", f"preset={word}")
        assert (ran.code, said in ran.err) == (2, True), ran.err
