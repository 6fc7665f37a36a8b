"""What a run asks: up to the first case that fails, or those that failed in the last one (SRC-32)."""

import json

import pytest

from atlas_ref.storage import last_failed

KERNELS = """
import atlas_ref


def off(case, inputs, *seeds):
    full = {"in/" + name: each for name, each in inputs.items()}
    results = atlas_ref.evaluate(atlas_ref.make(case, full), grad=True).tensors
    bad = inputs.get("k", inputs.get("x")).shape[-2] in seeds
    return {name: each + 0.1 * bad for name, each in results.items()}


def right(case, inputs):
    return off(case, inputs)


def wrong(case, inputs):
    return off(case, inputs, 5, 7)


def better(case, inputs):
    return off(case, inputs, 7)


def absent(case, inputs):
    if inputs["k"].shape[-2] == 4:
        raise NotImplementedError("no four tokens")
    return right(case, inputs)
"""


@pytest.fixture
def room(tmp_path, monkeypatch, cli):
    """A folder with cases of 4, 5 and 7 tokens and kernels, and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "mine.py").write_text(KERNELS)
    (tmp_path / "cases").mkdir()
    for tokens in (4, 5, 7):
        place = f"cases/t{tokens}.safetensors"
        assert cli("new", "delta", "--tokens", tokens, "--cotangent", "-o", place).code == 0
    return tmp_path


def asked(cli, kernel, *options):
    """Names of the cases that a check asked, its exit code, and what it said."""
    ran = cli("check", "cases", "--impl", f"mine:{kernel}", "--no-nearest", "--json", *options)
    names = dict.fromkeys(row["case"] for row in ran.json["results"])
    return [name[-len("t4.safetensors") :][:2] for name in names], ran.code, ran.err


@pytest.mark.clause("SRC-32")
def test_a_check_ends_at_the_first_case_that_fails(room, cli):
    assert asked(cli, "wrong", "-x") == (
        ["t4", "t5"],
        1,
        "ended at the first case that fails; 1 not asked\n",
    )
    assert asked(cli, "right", "-x") == (["t4", "t5", "t7"], 0, "")


@pytest.mark.clause("SRC-32")
def test_bad_input_ends_a_check_too(room, cli):
    (room / "cases/a.safetensors").write_bytes(b"no case")
    ran = cli("check", "cases", "--impl", "mine:right", "-x", "--json")
    assert (ran.code, ran.json["results"]) == (2, [])
    assert "3 not asked" in ran.err


@pytest.mark.clause("SRC-32")
def test_those_that_failed_are_asked_again(room, cli):
    everything = ["t4", "t5", "t7"]
    names, code, said = asked(cli, "wrong", "--last-failed")
    assert (names, code) == (everything, 1)
    assert "none of these cases failed in the last run here; all are asked" in said
    names, code, said = asked(cli, "better", "--last-failed")
    assert (names, code) == (["t5", "t7"], 1)
    assert said == "--last-failed: t5, t7, of 3 cases\n"
    assert asked(cli, "better", "--last-failed")[:2] == (["t7"], 1)
    assert asked(cli, "right", "--last-failed")[:2] == (["t7"], 0)
    assert asked(cli, "right", "--last-failed")[0] == everything


@pytest.mark.clause("SRC-32")
def test_what_was_not_asked_is_not_forgotten(room, cli):
    asked(cli, "wrong")
    assert asked(cli, "wrong", "--last-failed", "-x")[0] == ["t5"]
    assert asked(cli, "better", "--last-failed")[0] == ["t5", "t7"]
    assert asked(cli, "right", "--last-failed")[0] == ["t7"]


@pytest.mark.clause("SRC-32", "SRC-16")
def test_an_expected_failure_of_a_case_that_is_not_asked_is_about_something(room, cli):
    expected = {"xfail": [{"id": "t7", "reason": "seven", "expires": "2999-01-01"}]}
    (room / "x.json").write_text(json.dumps(expected))
    names, code, said = asked(cli, "wrong", "-x", "--xfail", "x.json")
    assert (names, code) == (["t4", "t5"], 1), said


@pytest.mark.clause("SRC-32")
def test_reasons_are_told_by_kind(room, cli):
    check = ("check", "cases", "--impl", "mine:absent", "--no-nearest")
    assert "1 not supported: no four tokens" in " ".join(cli(*check, "-rs").out.split())
    assert "1 not supported" not in cli(*check, "-rx").out
    assert "1 not supported" in cli(*check, "-ra").out
    bad = cli(*check, "-r", "q")
    assert bad.code == 2
    assert "--reasons: of the letters s, x, a are needed, found 'q'" in bad.err


@pytest.mark.clause("SRC-32")
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_sweep_ends_at_the_first_case_by_number(room, cli, jobs):
    sweep = ("sweep", "delta", "--impl", "mine:wrong", "--keep", 0, "--json", "--cases", 12)
    whole = cli(*sweep).json
    first = whole["failures"][0]["number"]
    ran = cli(*sweep, "-x", "--jobs", jobs)
    assert (ran.json["cases"], [each["number"] for each in ran.json["failures"]]) == (
        first + 1,
        [first],
    )
    assert f"{12 - first - 1} not asked" in ran.err


@pytest.mark.clause("SRC-32")
def test_a_sweep_asks_the_numbers_that_failed(room, cli):
    words = ("sweep", "delta", "--keep", 0, "--json", "--cases", 12)
    failed = cli(*words, "--impl", "mine:wrong").json["failures"]
    again = cli(*words, "--impl", "mine:wrong", "--last-failed").json
    assert again["failures"] == failed
    assert again["cases"] == len(failed)
    assert cli(*words, "--impl", "mine:right", "--last-failed").json["counts"] == {
        "PASS": len(failed)
    }
    other = cli(*words, "--impl", "mine:right", "--last-failed", "--seed", 1)
    assert other.json["cases"] == 12


@pytest.mark.clause("SRC-32")
@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1}', "[" * 10**5])
def test_a_note_that_is_none_of_ours_is_passed_over(text, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "atlas-ref").mkdir()
    (tmp_path / "atlas-ref/last-failed.json").write_text(text)
    assert last_failed.failed_last(["check"]) == set()
    last_failed.note(["check"], asked=[], failed=["x"])
    assert last_failed.failed_last(["check"]) == {"x"}


@pytest.mark.clause("SRC-32")
def test_the_last_fifty_runs_are_noted(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for number in range(last_failed.RUNS + 1):
        last_failed.note([str(number)], asked=[], failed=["x"])
    assert last_failed.failed_last(["0"]) == set()
    assert (
        last_failed.failed_last(["1"]) == last_failed.failed_last([str(last_failed.RUNS)]) == {"x"}
    )


@pytest.mark.clause("SRC-32")
def test_a_cache_that_cannot_be_written_loses_the_note_alone(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    last_failed.note(["check"], asked=[], failed=["x"])
    assert last_failed.failed_last(["check"]) == set()


@pytest.mark.clause("SRC-32")
def test_a_folder_that_is_gone_is_a_place_too(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    last_failed.note(["check"], asked=[], failed=["x"])
    assert last_failed.failed_last(["check"]) == {"x"}
    monkeypatch.chdir(tmp_path)
    assert last_failed.failed_last(["check"]) == set()
