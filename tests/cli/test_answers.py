"""What an implementation answers: asked by identify, kept by check, and named shortly."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.case import load_results
from atlas_ref.oracle.cases.inputs import same
from tests.sweep_kernels import right

MINE = """
import atlas_ref
import numpy as np
from tests.sweep_kernels import right


def true(case, inputs):
    return right(case, inputs)


def before(case, inputs):
    moved = atlas_ref.make({**case, "convention": {"read": "before"}}, named(inputs))
    return {name[4:]: each for name, each in atlas_ref.evaluate(moved).tensors.items()}


def named(inputs):
    return {"in/" + name: each for name, each in inputs.items()}


def ours(case, inputs):
    return {n[4:]: x for n, x in atlas_ref.evaluate(atlas_ref.make(case, named(inputs))).tensors.items()}


def absent(case, inputs):
    raise NotImplementedError("not this one")


def wrong(case, inputs):
    return {"y": np.zeros_like(right(case, inputs)["y"])}


def raises(case, inputs):
    raise RuntimeError("no memory left")
"""

PROGRAM = """
import sys
import atlas_ref
sys.path.insert(0, ".")
import mine
case = atlas_ref.load(sys.argv[1])
inputs = {name[3:]: value for name, value in case.inputs.items()}
answer = mine.before(dict(case.header), inputs)
atlas_ref.save(sys.argv[2], case.header, {"out/" + name: each for name, each in answer.items()})
"""


@pytest.fixture
def room(tmp_path, monkeypatch, cli):
    """A folder with two cases of delta, an implementation and a program."""
    monkeypatch.chdir(tmp_path)
    # The program is its own process, and the implementation stands on a module of the tests.
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "program.py").write_text(PROGRAM)
    for name, seed in (("one", 1), ("two", 2)):
        size = ["--tokens", 6, "--d-in", 3, "--d-out", 3]
        assert cli("new", "delta", "-o", f"{name}.safetensors", *size, "--seed", seed).code == 0
    return tmp_path


@pytest.mark.clause("IDENT-20")
def test_identify_asks_a_function_a_program_or_the_case(room, cli):
    whole = cli("identify", "one.safetensors", "--impl", "mine:before", "--depth", 1, "--json").json
    assert (whole["verdict"], whole["match"]["option"]) == ("MATCH", "spec read=before")
    assert whole["out"] == "mine:before"
    kept = ("--keep", "kept.safetensors", "--no-nearest")
    assert cli("check", "one.safetensors", "--impl", "mine:before", *kept).code == 1
    command = f"{sys.executable} program.py {{case}} {{out}}"
    answers = {}
    for words in (
        ["one.safetensors", "--against", "kept.safetensors"],
        ["one.safetensors", "--exec", command],
        ["kept.safetensors"],
    ):
        found = cli("identify", *words, "--depth", 0, "--json").json
        assert found.pop("out") == words[-1]
        assert found.pop("case") == words[0]
        answers[words[-1]] = found
    for each in answers.values():
        assert each == found
    assert found["match"]["distance"] > 0.01  # of reads at another time
    bare = cli("identify", "one.safetensors")
    assert bare.code == 2
    assert "no out/... or grad/... tensor is recorded" in bare.err
    both = cli("identify", "one.safetensors", "--impl", "mine:before", "--out", "kept.safetensors")
    assert both.code == 2
    assert "--against and --impl: one source of results at a time" in both.err


@pytest.mark.clause("IDENT-20")
def test_identify_rounds_inputs_as_check_does(room, cli):
    cli("check", "one.safetensors", "--impl", "mine:true", "--dtype", "bfloat16", "--keep", "k.st")
    assert load_results("k.st")[1]["in/k"].dtype.name == "bfloat16"
    words = ("--impl", "mine:true", "--dtype", "bfloat16", "--depth", 0, "--json")
    found = cli("identify", "one.safetensors", *words).json
    assert found["own"]
    assert found["match"]["distance"] < 1e-12


@pytest.mark.clause("IDENT-20")
@pytest.mark.parametrize(
    ("name", "verdict", "why", "code"),
    [
        ("raises", "FAILED", "crash: RuntimeError: no memory left", 1),
        ("absent", "NOT SUPPORTED", "not this one", 3),
    ],
)
def test_no_answer_is_an_answer_of_identify(name, verdict, why, code, room, cli):
    ran = cli("identify", "one.safetensors", "--impl", f"mine:{name}", "--json")
    assert (ran.code, ran.json["verdict"], ran.json["match"]) == (code, verdict, None)
    assert ran.json["why"].startswith(why)


@pytest.mark.clause("IDENT-20")
def test_a_folder_without_the_case_is_missing(room, cli):
    (room / "empty").mkdir()
    missing = cli("identify", "one.safetensors", "--out", "empty")
    assert missing.code == 1
    assert missing.out.startswith("one.safetensors: MISSING: empty holds no one.safetensors")


@pytest.mark.clause("CASE-41")
def test_an_answer_takes_the_place_of_an_earlier_one_alone(room, cli):
    """Another case or a program is refused before anything is asked."""
    check = ("check", "one.safetensors", "--impl", "mine:true", "--keep")
    before = (room / "mine.py").read_bytes()
    for place, words in (
        ("mine.py", "exists and holds no results, which would be lost"),
        ("two.safetensors", "exists and holds no results, which would be lost"),
    ):
        ran = cli(*check, place)
        assert (ran.code, f"--keep {place}: {words}" in ran.err) == (2, True)
    assert (room / "mine.py").read_bytes() == before
    assert [cli(*check, "k.st").code, cli(*check, "k.st").code] == [0, 0]


@pytest.mark.clause("CASE-41")
def test_check_keeps_answers_in_a_folder_that_other_commands_read(room, cli):
    cases = ("one.safetensors", "two.safetensors")
    ran = cli("check", *cases, "--impl", "mine:wrong", "--keep", "kept", "--no-nearest", "--json")
    assert ran.code == 1
    again = cli("check", *cases, "--against", "kept", "--no-nearest", "--json").json
    assert again["results"] == ran.json["results"]
    for name in cases:
        case, kept = atlas_ref.load(name), atlas_ref.load(room / "kept" / name)
        assert kept.header == case.header
        assert all(same(value, case.inputs[key]) for key, value in kept.inputs.items())
        want = right(dict(case.header), {key[3:]: each for key, each in case.inputs.items()})
        assert set(kept.recorded) == {"out/y"}
        assert np.array_equal(kept.recorded["out/y"], np.zeros_like(want["y"]))


@pytest.mark.clause("CASE-41")
def test_what_cannot_be_kept_leaves_the_verdict(room, cli):
    ran = cli("check", "one.safetensors", "--impl", "mine:true", "--keep", "no/k.st", "--json")
    assert ran.code == 2
    assert {row["verdict"] for row in ran.json["results"]} == {"PASS"}
    (line,) = ran.json["bad_input"]
    assert line == f"no/k.st: the folder {room / 'no'} does not exist"


@pytest.mark.clause("CASE-41")
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["one.safetensors", "--keep", "k.st"], "neither is given"),
        (["one.safetensors", "--against", "two.safetensors", "--keep", "k.st"], "neither is given"),
        (["one.safetensors", "--impl", "mine:true", "--keep", "one.safetensors"], "is the case"),
        (["one.safetensors", "--impl", "mine:true", "--keep", "."], "is the case itself"),
        (
            ["one.safetensors", "two.safetensors", "--impl", "mine:true", "--keep", "mine.py"],
            "is one file for 2 cases; a folder is needed",
        ),
        (
            ["one.safetensors", "one.safetensors", "--impl", "mine:true", "--keep", "k"],
            "two cases are called one.safetensors",
        ),
    ],
)
def test_a_place_that_answers_cannot_go_to_is_refused_first(words, why, room, cli):
    before = {path: path.read_bytes() for path in room.iterdir() if path.is_file()}
    ran = cli("check", *words)
    assert ran.code == 2
    assert why in ran.err
    assert {path: path.read_bytes() for path in room.iterdir() if path.is_file()} == before


@pytest.mark.clause("CASE-42")
def test_a_header_is_read_as_the_object_that_a_kernel_gets(room, cli):
    words = ("new", "dplr", "-o", "d.safetensors", "--parameter", "member=kda")
    assert cli(*words).code == 0
    header = atlas_ref.load("d.safetensors").header
    plain = dict(header)
    assert header.get("parameters") == plain["parameters"] == {"member": "kda"}
    assert header.get("parameters", {}).get("steps", 1) == 1
    assert (header.get("convention"), header.get("convention", "spec")) == (None, "spec")
    assert ("rule" in header, "note" in header, "nothing" in header) == (True, False, False)
    assert all(header.get(key) == header[key] for key in plain)


@pytest.mark.clause("CASE-43")
def test_check_names_a_vector_by_its_id(room, cli):
    words = ("v1:delta-rows", "--impl", "mine:raises", "--no-nearest", "--keep", "k.st")
    ran = cli("check", *words)
    assert ran.code == 1
    assert "\nv1:delta-rows: FAILED (delta)\n" in ran.out
    assert "/delta-rows.safetensors" not in ran.out + ran.err
    assert not (room / "k.st").exists()  # nothing was answered


@pytest.mark.clause("VEC-14")
def test_a_target_with_members_names_them(cli):
    ran = cli("check", "--set", "v2", "--target", "dplr")
    assert ran.code == 0
    assert "members of dplr, each a target: " in ran.out
    assert "dplr-kda" in ran.out
    one = cli("check", "--set", "v2", "--target", "dplr-hgrn")
    assert one.code == 2
    assert "did you mean" in one.err
    part = cli("check", "--set", "v2", "--target", "dplr-precond")
    assert part.code == 2


@pytest.mark.clause("RECUR-8")
def test_each_tool_takes_a_recurrence(room, cli):
    bare = cli("new", "recurrence", "-o", "r.safetensors")
    assert bare.code == 2
    assert "parameters.member: missing; members are gsa, hgrn, mesa" in bare.err
    made = ("new", "recurrence", "-o", "r.safetensors", "--parameter", "member=gsa", "--cotangent")
    assert cli(*made).code == 0
    assert cli("eval", "r.safetensors", "--trace", "--grad", "-o", "t.safetensors").code == 0
    for words in (
        ["identify", "r.safetensors", "--out", "t.safetensors"],
        ["replay", "r.safetensors", "--trace", "t.safetensors"],
        ["certify", "r.safetensors", "--grad", "-o", "c.safetensors"],
        ["sweep", "recurrence", "--impl", "mine:ours", "--cases", "3"],
        ["check", "r.safetensors", "--against", "c.safetensors"],
    ):
        ran = cli(*words)
        assert ran.code == 0, (words, ran.out, ran.err)
