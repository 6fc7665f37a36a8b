"""The command check: verdicts, its table, its JSON, and the exit code in every combination."""

import json
import os

import numpy as np
import pytest

import atlas_ref
from tests.support.casefiles import PEERS, RESERVED, some, written

PEER = PEERS / "fla_delta_11.safetensors"


@pytest.fixture
def recorded(tmp_path):
    """Files with our own results: right, wrong, integers, without the main result, bad."""
    header, tensors = some()
    results = atlas_ref.evaluate(atlas_ref.make(header, tensors), grad=True).tensors
    content = {
        "right": results,
        "wrong": results | {"out/M": results["out/M"] + 1e-6},
        "nan": results | {"out/y": np.where(results["out/y"] > 0, np.nan, results["out/y"])},
        "integers": {"out/y": results["out/y"].astype(np.int64)},
        "partial": {"out/M": results["out/M"]},
        "bare": {},
    }
    found = {
        name: written(tmp_path / f"{name}.safetensors", header, tensors | extra)
        for name, extra in content.items()
    }
    return found | {"reserved": RESERVED, "peer": PEER, "folder": PEERS}


@pytest.mark.sample(3)
@pytest.mark.clause("CASE-21", "CASE-26")
@pytest.mark.parametrize(
    ("names", "code"),
    [
        (["right"], 0),
        (["right", "peer"], 0),
        (["folder"], 0),
        (["right", "reserved"], 0),
        (["reserved"], 3),
        (["reserved", "reserved"], 3),
        (["wrong"], 1),
        (["right", "wrong", "reserved"], 1),
        (["nan"], 1),
        (["integers"], 1),
        (["partial"], 1),
        (["bare"], 2),
        (["wrong", "bare"], 2),
        (["bare", "right"], 2),
        (["reserved", "bare"], 2),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_the_exit_code_is_the_gravest_of_all_cases(names, code, as_json, recorded, cli):
    ran = cli("check", *(recorded[name] for name in names), *["--json"] * as_json)
    assert ran.code == code
    bad = [
        f"{recorded[name]}: no out/... or grad/... tensor is recorded, so there is nothing to check; "
        "--impl, --exec or --against names what is checked"
        for name in names
        if name == "bare"
    ]
    lines = [line for line in ran.err.splitlines() if ": void: " not in line]
    assert lines == [f"atlas-ref: {line}" for line in bad]
    if as_json:
        assert (ran.json["exit"], ran.json["bad_input"]) == (code, bad)


@pytest.mark.clause("CASE-16", "CASE-26")
def test_one_bad_case_does_not_keep_the_others_from_their_verdict(recorded, cli):
    ran = cli("check", recorded["bare"], recorded["wrong"], recorded["right"], "--json")
    assert ran.code == 2
    verdicts = {
        (os.path.basename(row["case"]), row["tensor"]): row["verdict"]
        for row in ran.json["results"]
    }
    assert verdicts["wrong.safetensors", "out/M"] == "WRONG"
    assert verdicts["right.safetensors", "out/M"] == "PASS"
    assert len(verdicts) == 2 * len(atlas_ref.load(recorded["right"]).recorded)


@pytest.mark.clause("CASE-21", "CASE-28")
def test_check_as_json_gives_every_field_and_writes_what_json_cannot_hold_in_words(recorded, cli):
    (first, *_) = cli("check", recorded["nan"], "--only", "y", "--json").json["results"]
    assert first == {
        "case": str(recorded["nan"]),
        "tensor": "out/y",
        "verdict": "WRONG",
        "error": None,
        "tolerance": 1e-12,
        "place": first["place"],
        "got": "nan",
        "want": first["want"],
        "why": f"nan at {tuple(first['place'])}",
        "basis": "fixed for float64 (CASE-20)",
        "allowed": 1.0,
        "first": first["first"],
        "profile": first["profile"],
        "xfail": "",
    }
    assert first["first"] == {
        "token": first["place"][1],
        "place": first["first"]["place"],
        "got": "nan",
        "want": first["first"]["want"],
    }
    assert (len(first["profile"]["ratios"]), first["profile"]["width"]) == (5, 1)
    wrong = cli("check", recorded["wrong"], "--only", "M", "--json").json["results"][0]
    assert (wrong["verdict"], wrong["why"]) == ("WRONG", "")
    assert wrong["got"] - wrong["want"] == pytest.approx(1e-6, rel=1e-6)
    assert wrong["error"] > wrong["tolerance"] == 1e-12


def test_the_table_names_case_tensor_verdict_error_tolerance_and_the_worst_place(recorded, cli):
    ran = cli("check", recorded["wrong"], recorded["partial"], RESERVED)
    assert ran.err == ""
    rows = []
    for line in ran.out.splitlines():
        if line.startswith("│"):
            row = [cell.strip() for cell in line.strip("│").split("│")]
            if any(row[:-1]):
                rows.append(row)
            else:  # the rest of a cell that is too long for one line
                rows[-1][-1] += f" {row[-1]}"
    by_tensor = {(row[0], row[1]): row for row in rows}
    M = atlas_ref.load(recorded["wrong"]).recorded["out/M"]
    ((tensor, error, tolerance, detail),) = [
        (row[1], *row[3:]) for row in rows if row[2] == "WRONG"
    ]
    assert (tensor, tolerance) == ("out/M", "1e-12")
    assert float(error) == pytest.approx(
        1e-6 * np.sqrt(M.size) / np.linalg.norm(M - 1e-6), rel=1e-2
    )
    place, numbers = detail.split(": ")
    got, want = numbers.split(", ")
    assert float(got) == M[tuple(json.loads(place))]
    assert float(got) - float(want) == pytest.approx(1e-6, rel=1e-6)
    assert by_tensor["wrong", "out/y"][2:] == ["PASS", "0", "1e-12", ""]
    assert by_tensor["partial", "out/y"][2:] == [
        "MISSING",
        "",
        "",
        "this result was not handed over",
    ]
    assert by_tensor["reserved", "-"][2:] == [
        "NOT SUPPORTED",
        "",
        "",
        "rule qk_projection: not yet supported",
    ]
    assert ran.out.splitlines()[-1] == f"{len(rows) - 3} PASS, 1 WRONG, 1 MISSING, 1 NOT SUPPORTED"


@pytest.mark.clause("CASE-23")
def test_only_chooses_among_the_recorded_results(recorded, cli):
    def tensors(*arguments):
        return [row["tensor"] for row in cli("check", *arguments, "--json").json["results"]]

    assert tensors(recorded["right"], "--only", "y, grad/k") == ["out/y", "grad/k"]
    assert cli("check", recorded["wrong"], "--only", "y,S").code == 0
    assert cli("check", recorded["wrong"], "--only", "M").code == 1
    nothing = cli("check", recorded["right"], "--only", "X")
    assert (nothing.code, nothing.out, nothing.err) == (3, "", "nothing could be compared\n")
    assert tensors(PEERS, RESERVED, "--only", "X") == ["out/X"] * 5 + ["-"]


@pytest.mark.clause("CASE-28")
def test_a_folder_stands_for_the_case_files_in_it(recorded, cli, tmp_path):
    (tmp_path / "notes.txt").write_text("not a case")
    cases = {
        row["case"] for row in cli("check", recorded["right"].parent, "--json").json["results"]
    }
    assert cases == {
        str(recorded[name]) for name in ("right", "wrong", "nan", "integers", "partial")
    }
    empty = tmp_path / "empty"
    empty.mkdir()
    ran = cli("check", empty, recorded["right"], "--json")
    assert (ran.code, len(ran.json["bad_input"])) == (2, 1)
    assert ran.json["results"]


@pytest.mark.clause("CASE-23")
def test_results_of_another_convention_pass_only_under_it(tmp_path, cli):
    header, tensors = some()
    case = atlas_ref.make(header, tensors)
    other = atlas_ref.evaluate(case, convention={"read": "before"}).tensors
    file = written(tmp_path / "before.safetensors", header, tensors | {"out/y": other["out/y"]})
    assert cli("check", file).code == 1
    assert cli("check", file, "--convention", "read=before").code == 0
    assert (
        atlas_ref.check(
            case.replaced(recorded={"out/y": other["out/y"]}), convention={"read": "before"}
        )[0].verdict
        == "PASS"
    )


@pytest.mark.clause("CASE-22", "SRC-10")
def test_a_precision_is_that_of_the_results_and_of_their_inputs(tmp_path, cli):
    header, tensors = some()
    case = atlas_ref.make(header, tensors)
    single = atlas_ref.evaluate(case, dtype="float32").tensors["out/y"]
    file = written(tmp_path / "single.safetensors", header, tensors | {"out/y": single})
    assert cli("check", file).code == 0
    assert cli("check", file, "--dtype", "float32").code == 0
    assert cli("check", file, "--dtype", "float64").code == 1
    assert cli("check", file, "--dtype", "float8").code == 2


@pytest.mark.clause("CASE-19")
def test_a_report_never_overwrites_what_is_read(tmp_path, cli):
    header, tensors = some("delta")
    results = dict(atlas_ref.evaluate(atlas_ref.make(header, tensors)).tensors)
    case, mine, known = tmp_path / "case.json", tmp_path / "mine.html", tmp_path / "known.json"
    written(case, header, tensors)
    written(mine, header, results)
    known.write_text('{"xfail": []}')
    before = [path.read_bytes() for path in (case, mine, known)]
    for place, what in (
        (case, "case"),
        (mine, "file of results"),
        (known, "list of expected failures"),
    ):
        ran = cli("check", case, "--against", mine, "--xfail", known, "--report", place)
        assert (ran.code, ran.out, ran.err) == (
            2,
            "",
            f"atlas-ref: {place}: is the {what} itself, which is not overwritten\n",
        )
    assert [path.read_bytes() for path in (case, mine, known)] == before


@pytest.mark.clause("SRC-1")
def test_a_source_that_no_system_can_name_is_one_line(tmp_path, cli):
    case = written(tmp_path / "case", *some("delta"))
    for place in ("x" * 300, case / "inside"):
        ran = cli("check", case, "--against", place)
        assert (ran.code, ran.out, ran.err) == (
            2,
            "",
            f"atlas-ref: {place}: no such file or folder\n",
        )


@pytest.fixture
def many(tmp_path):
    """Seven cases of three results each, the sixth and seventh wrong."""
    header, tensors = some()
    results = atlas_ref.evaluate(atlas_ref.make(header, tensors)).tensors
    results = {name: results[name] for name in ("out/y", "out/M", "out/S")}
    for number in range(7):
        wrong = {"out/M": results["out/M"] + number} if number > 4 else {}
        written(tmp_path / f"case{number}.safetensors", header, tensors | results | wrong)
    return tmp_path


@pytest.mark.clause("CASE-35")
def test_above_twenty_rows_those_that_fail_are_shown_alone(many, cli):
    ran = cli("check", many, "--no-nearest")
    rows = [line.split()[1:6:2] for line in ran.out.splitlines() if line.startswith("│")]
    assert rows == [["case5", "out/M", "WRONG"], ["case6", "out/M", "WRONG"]]
    assert ran.out.endswith(
        "\n19 of 21 rows, which do not fail, are shown by -v\n19 PASS, 2 WRONG\n"
    )
    for option in ("-v", "--verbose"):
        full = cli("check", many, "--no-nearest", option).out
        assert (full.count("PASS "), full.count("shown by -v")) == (19, 0)
        assert full.endswith("\n19 PASS, 2 WRONG\n")
    (many / "case6.safetensors").unlink()
    assert cli("check", many, "--no-nearest").out.count("PASS ") == 17


@pytest.mark.clause("CASE-35")
def test_where_nothing_fails_the_counts_stand_alone(many, cli):
    for number in (5, 6):
        (many / f"case{number}.safetensors").write_bytes((many / "case0.safetensors").read_bytes())
    ran = cli("check", many)
    assert (ran.code, ran.out) == (
        0,
        "21 of 21 rows, which do not fail, are shown by -v\n21 PASS\n",
    )


@pytest.mark.clause("CASE-35")
def test_verbose_tells_every_failure_in_full(many, cli):
    for number in range(5):
        (many / f"case{number}.safetensors").write_bytes((many / "case6.safetensors").read_bytes())
    short, full = (cli("check", many, "--no-nearest", *more).out for more in ([], ["-v"]))
    assert (short.count("repeat with"), full.count("repeat with")) == (5, 7)
    assert "and 2 more failing cases, told in full by -v, --json and --report" in short
    assert "more failing cases" not in full


@pytest.mark.slow
@pytest.mark.clause("VEC-14", "CASE-27")
def test_a_vector_is_repeated_and_taken_by_its_id(cli, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernel.py").write_text("def nothing(case, inputs):\n    return {}\n")
    words = ["--impl", "kernel:nothing", "--no-nearest", "--json"]
    whole = cli("check", "--set", "v1", "--target", "delta", "--large", *words).json
    commands = [each["command"].split() for each in whole["failures"]]
    assert ["atlas-ref", "check", "v1:delta-rows", "--impl", "kernel:nothing"] in commands
    assert ["atlas-ref", "check", "v1:delta-512", "--impl", "kernel:nothing"] in commands
    by_case = {each["case"]: each for each in whole["failures"]}
    for command in commands:
        (again,) = cli(*command[1:], "--no-nearest", "--json").json["failures"]
        assert again == by_case[again["case"]]
    (tmp_path / "v1:delta-rows").write_text("no case")
    assert "v1:delta-rows: not a whole safetensors file" in cli("check", "v1:delta-rows").err
    assert cli("show", "v1:delta-edges").code == 0
    assert cli("eval", "v1:delta-edges", "-o", "out").code == 0
    assert cli("identify", "v1:delta-edges", "--out", "out", "--depth", 0).code == 0
    assert cli("tolerance", "v1:delta-edges:y").code == 0
    ran = cli("check", "v9:delta-rows")
    assert (ran.code, ran.err) == (2, "atlas-ref: v9:delta-rows: no such file\n")


#: A Delta rule for one gate a token, without pulses and packed sequences.
LACKING = """
import numpy as np


def delta(case, inputs):
    if "reset" in inputs:
        raise KeyError("reset")
    k, v, q, retain, step, M = (inputs[n] for n in ("k", "v", "q", "retain", "step_size", "M0"))
    y = np.empty_like(v)
    for t in range(v.shape[-2]):
        error = (M @ k[..., t, :, None])[..., 0] - v[..., t, :]
        M = retain[..., t, None, None] * M
        M = M - step[..., t, None, None] * error[..., None] * k[..., t, None, :]
        y[..., t, :] = (M @ q[..., t, :, None])[..., 0]
    return {"y": y.astype("float64"), "M": M.astype("float64")}
"""


@pytest.fixture
def lacking(tmp_path, monkeypatch):
    (tmp_path / "lacking.py").write_text(LACKING)
    monkeypatch.chdir(tmp_path)
    return ["--set", "v1", "--target", "delta", "--impl", "lacking:delta", "--dtype", "float32"]


@pytest.mark.clause("SRC-22")
def test_a_crash_is_explained_by_what_no_answered_case_has(lacking, cli):
    ran = cli("check", *lacking, "--json")
    assert ran.code == 1
    why = {
        os.path.basename(row["case"]).partition(".")[0]: row["why"]
        for row in ran.json["results"]
        if row["verdict"] == "FAILED"
    }
    assert why.keys() == {"delta-rows", "delta-pulsed"}
    assert why["delta-rows"].endswith(" (only here: rows)")
    assert (
        why["delta-pulsed"] == "crash: KeyError: 'reset' (lacking.py:7) (only here: pulse, reset)"
    )
    explained = {each["case"]: each["feature"] for each in ran.json["failures"]}
    assert {os.path.basename(case): words for case, words in explained.items()} == {
        "delta-rows.safetensors": "no answered case has rows (one gate per output dimension); if "
        "your code has not, leave such cases out by --without rows",
        "delta-pulsed.safetensors": "no answered case has pulse (tokens at which nothing is "
        "written), reset (packed sequences); if your code has not, leave such cases out by "
        "--without pulse,reset",
    }
    text = cli("check", *lacking).out
    assert "  feature       no answered case has rows (one gate" in text


@pytest.mark.slow
@pytest.mark.clause("SRC-21")
def test_what_a_kernel_is_declared_not_to_have_is_skipped_and_counted(lacking, cli):
    ran = cli("check", *lacking, "--without", "pulse, reset,rows")
    assert ran.code == 0
    assert ran.out.endswith(
        "skipped by --without: 1 with rows, 1 with pulse, 1 with reset\n\n6 PASS, 2 NOT SUPPORTED "
        "(at most 8 tokens; longer: --set v2)\n"
    )
    plain = cli("check", *lacking, "--without", "pulse,reset,rows", "--json").json
    assert (plain["exit"], plain["skipped"]) == (0, {"rows": 1, "pulse": 1, "reset": 1})
    assert cli("check", *lacking, "--json").json["skipped"] == {}
    everything = cli("check", *lacking, "--without", "state", "--json")
    assert (everything.code, everything.json["skipped"]) == (3, {"state": 5})
    again = cli("check", *lacking, "--without", "rows", "--json").json["failures"]
    assert again[0]["command"].endswith(" --without rows")
    for words, message in (
        ("rowz", "without: feature 'rowz' does not exist; features are pulse, "),
        (",", "--without: names of features are needed, as in pulse,reset"),
    ):
        refused = cli("check", *lacking, "--without", words)
        assert (refused.code, refused.out) == (2, "")
        assert refused.err.startswith(f"atlas-ref: {message}")


@pytest.mark.clause("SRC-22")
def test_where_no_case_of_a_rule_is_answered_the_rule_is_named(lacking, cli):
    ran = cli("check", *lacking, "--target", "hebbian", "--no-nearest", "--json")
    about = {each["rule"]: each["feature"] for each in ran.json["failures"]}
    assert about["hebbian"] == (
        "rule hebbian: no case of it was answered; --target takes the vectors of one target"
    )
    alone = cli("check", "v1:delta-rows", *lacking[4:], "--json").json
    assert alone["failures"][0]["feature"] == ""
    assert "only here" not in alone["results"][0]["why"]
