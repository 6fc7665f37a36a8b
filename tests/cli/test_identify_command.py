"""The commands identify and tolerance: words, JSON, exit codes, and refused files."""

import json
import re

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.evaluate import evaluate
from tests.support.casefiles import parts, written
from tests.support.golden import assert_golden
from tests.support.identified import altered, made, results


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A case and results of it in files beside it.

    Names have no folders, so that words are the same everywhere.
    """
    monkeypatch.chdir(tmp_path)
    case = altered(made("titans_lmm", d_in=3, d_out=3), {})
    header, inputs = parts(case)
    still = altered(case, {"in/S0": None, "in/M0": None})

    def saved(name, tensors):
        return written(tmp_path / f"{name}.safetensors", header, tensors).name

    right = results(case, "titans-paper", "out/y", "out/M")
    return {
        "case": saved("case", inputs),
        "still": written(tmp_path / "still.safetensors", header, still.inputs).name,
        "mine": saved("mine", right),
        "own": saved("own", results(case, {}) | inputs),
        "still_mine": saved("still_mine", results(still, {})),
        "wrong": saved("wrong", {"out/y": right["out/y"] * np.float32(1.01)}),
        "nan": saved("nan", {"out/y": np.full_like(right["out/y"], np.nan)}),
    }


def measured(text):
    """The report with placeholders for every number that depends on the rounding of this
    machine.
    """
    return re.sub(
        r"[\d.]+(e[+-]\d+)?(?= (tolerances|times worse|in out/))|(?<=distance )[\d.]+(e[+-]\d+)?",
        "NUMBER",
        text,
    )


@pytest.mark.clause("IDENT-9")
@pytest.mark.parametrize(
    ("case", "mine", "code", "name"),
    [
        ("case", "mine", 0, "match"),
        ("case", "own", 0, "own"),
        ("still", "still_mine", 3, "undecidable"),
        ("case", "wrong", 1, "no_match"),
        ("case", "nan", 1, "not_finite"),
    ],
)
def test_the_report_in_words_and_as_json(case, mine, code, name, files, cli):
    ran = cli("identify", files[case], "--out", files[mine], "--depth", 1)
    assert ran.code == code, ran.err
    assert_golden(f"identify_{name}.txt", measured(ran.out))
    plain = cli("identify", files[case], "--out", files[mine], "--depth", 1, "--json")
    assert plain.code == plain.json["exit"] == code
    assert plain.json["verdict"] in ran.out
    if plain.json["match"] is not None:
        assert plain.json["match"]["option"] in ran.out
    assert list(plain.json) == [
        *(
            "case",
            "out",
            "exit",
            "verdict",
            "why",
            "match",
            "preset",
            "own",
            "from_own",
            "as_if",
            "runner_up",
            "times_worse",
            "undecided",
        ),
        *(
            "indistinguishable",
            "void",
            "not_tried",
            "not_used",
            "failed",
            "searched",
            "deciding_case",
        ),
    ]


@pytest.mark.clause("IDENT-7", "IDENT-9")
def test_json_names_the_match_so_that_another_command_takes_it(files, cli, tmp_path):
    found = cli("identify", files["case"], "--out", files["mine"], "--depth", 1, "--json").json
    assert found["preset"] == "titans-paper"
    assert found["match"]["option"] == "titans-paper"
    assert found["times_worse"] > 1e3
    ran = cli(
        "eval", files["case"], "-o", "ours.safetensors", "--convention", found["match"]["option"]
    )
    assert ran.code == 0
    header, tensors = atlas_ref.oracle.cases.case.load_results("ours.safetensors")
    mine = atlas_ref.oracle.cases.case.load_results(files["mine"])[1]
    assert np.allclose(tensors["out/y"], mine["out/y"], rtol=1e-5, atol=1e-6)
    assert header.rule == "titans_lmm"


@pytest.mark.clause("IDENT-8", "IDENT-9")
def test_the_deciding_case_is_written_and_decides(files, cli):
    ran = cli(
        "identify",
        files["still"],
        "--out",
        files["still_mine"],
        "--depth",
        1,
        "--decide",
        "decide.safetensors",
        "--json",
    )
    assert ran.code == 3
    assert ran.json["deciding_case"] == "decide.safetensors"
    made_case = atlas_ref.load("decide.safetensors")
    y = evaluate(made_case, convention="spec").tensors["out/y"].astype(np.float32)
    atlas_ref.save("answer.safetensors", made_case.header, {"out/y": y})
    again = cli("identify", "decide.safetensors", "--out", "answer.safetensors", "--depth", 1)
    assert again.code == 0
    assert again.out.splitlines()[:2][0] == "decide.safetensors: MATCH"
    words = cli(
        "identify",
        files["still"],
        "--out",
        files["still_mine"],
        "--depth",
        1,
        "--decide",
        "decide.safetensors",
    )
    assert words.err == "wrote decide.safetensors: run your code on it, and identify that\n"
    none = cli(
        "identify",
        files["case"],
        "--out",
        files["mine"],
        "--depth",
        1,
        "--decide",
        "none.safetensors",
    )
    assert (none.code, none.err) == (0, "no case is needed to decide\n")
    same = cli("identify", files["still"], "--out", files["still_mine"], "--decide", files["still"])
    assert same.code == 2


def foreign(files, tmp_path):
    """Files that hold no results of the case, each with its refusal."""
    header, inputs = parts(made("titans_lmm", d_in=3, d_out=3))
    y = np.zeros((2, 8, 3), np.float32)
    (tmp_path / "text").write_text("not a tensor file\n")
    (tmp_path / "cut").write_bytes((tmp_path / files["mine"]).read_bytes()[:-7])
    (tmp_path / "head").write_bytes((tmp_path / files["mine"]).read_bytes()[:5])
    (tmp_path / "empty").write_bytes(b"")
    return {
        "text": "text: not a whole safetensors file",
        "cut": "cut: not a whole safetensors file",
        "head": "head: not a whole safetensors file",
        "empty": "empty: not a whole safetensors file",
        "gone": "gone: no such file",
        ".": "case.safetensors: no out/... or grad/... tensor was handed over",
        written(
            tmp_path / "delta", {"schema": 1, "rule": "delta"}, {"out/y": y}
        ).name: "delta: rule: the case has titans_lmm, found delta: results of another case",
        written(
            tmp_path / "none", header, inputs
        ).name: "no out/... or grad/... tensor was handed over, so there is nothing to identify",
        written(
            tmp_path / "k", header, inputs | {"in/k": inputs["in/k"] + 1, "out/y": y}
        ).name: "k: in/k: differs from the case's: results of another case",
        written(
            tmp_path / "short", header, {"out/y": y[:, :7]}
        ).name: "out/y: shape (2, 7, 3), expected (2, 8, 3)",
        written(tmp_path / "name", header, {"out/z": y}).name: "out/z: not a result of this case",
        written(
            tmp_path / "kind", header, {"out/y": y.astype(np.int32)}
        ).name: "out/y: dtype int32, one of float64",
        written(
            tmp_path / "prefix", header, {"y": y}
        ).name: "'y': tensor names start with in/, out/",
        written(
            tmp_path / "key", header | {"colour": 1}, {"out/y": y}
        ).name: "key: colour: unknown key",
    }


@pytest.mark.clause("IDENT-1")
def test_foreign_and_truncated_files_are_one_line_and_exit_code_2(files, cli, tmp_path):
    for name, words in foreign(files, tmp_path).items():
        ran = cli("identify", files["case"], "--out", name)
        assert ran.code == 2, (name, ran.err)
        assert ran.out == ""
        assert ran.err.count("\n") == 1
        assert words in ran.err, (name, ran.err)
        plain = cli("identify", files["case"], "--out", name, "--json")
        assert plain.code == plain.json["exit"] == 2


@pytest.mark.clause("IDENT-9")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--dtype", "float8"], "dtype 'float8' is not available"),
        (["--depth", "3"], "Invalid value for '--depth'"),
        (["--depth", "many"], "Invalid value for '--depth'"),
    ],
)
def test_bad_options_are_one_line(options, words, files, cli):
    ran = cli("identify", files["case"], "--out", files["mine"], *options)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.clause("TOL-10")
def test_the_derivation_of_a_tolerance(files, cli):
    case = made("titans_lmm", tokens=4, d_in=2, d_out=2, heads=1)
    atlas_ref.save("small.safetensors", case.header, case.inputs)
    ran = cli("tolerance", "small.safetensors:y")
    assert ran.code == 0
    rows = [line.split("│")[1].strip() for line in ran.out.splitlines() if line.startswith("│")]
    assert rows[-5:] == [
        "largest error",
        "floor: 4 units in the last place",
        "tolerance: their sum",
        "PASS up to 2 times",
        "MARGINAL up to 4 times",
    ]
    plain = cli("tolerance", "small.safetensors:y", "--json").json
    assert rows[:-5] == list(plain["ensemble"])
    assert len(plain["ensemble"]) >= 8
    for norm in ("max", "rms", "p99"):
        worst = max(each[norm] for each in plain["ensemble"].values())
        assert plain["tolerance"][norm] == pytest.approx(worst + plain["floor"][norm])
    assert plain["dtype"] == "float32"


@pytest.mark.clause("TOL-10")
def test_the_words_of_a_derivation_are_kept(cli, tmp_path, monkeypatch):
    """A case whose every product is exact, so that the numbers are the same on every machine."""
    monkeypatch.chdir(tmp_path)
    header = {"schema": 1, "rule": "hebbian", "convention": {"gate": "none"}}
    one = np.ones((1, 2, 1))
    atlas_ref.save("exact.safetensors", header, {"in/k": one, "in/v": one, "in/q": one})
    assert_golden(
        "tolerance_exact.txt", cli("tolerance", "exact.safetensors:y", "--dtype", "bfloat16").out
    )
    assert (
        json.loads(cli("tolerance", "exact.safetensors:M", "--dtype", "float64", "--json").out)[
            "note"
        ]
        == ""
    )


@pytest.mark.clause("TOL-10", "TOL-5")
def test_amplification_and_what_cannot_be_separated_are_printed(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    case = made("omega", window=2)
    atlas_ref.save("omega.safetensors", case.header, case.inputs)
    out = cli("tolerance", "omega.safetensors:y").out
    assert "that Newton-Schulz amplifies" in out
    assert "float32 cannot separate this case's out/y from that of: newton_schulz.eps 0" in out
    assert cli("tolerance", "omega.safetensors:grad/k", "--dtype", "float64").code == 0
    state = cli(
        "tolerance",
        "omega.safetensors:M",
        "--dtype",
        "bfloat16",
        "--state-dtype",
        "bfloat16",
        "--json",
    ).json
    assert (
        state["tolerance"]["rms"]
        > cli("tolerance", "omega.safetensors:M", "--dtype", "bfloat16", "--json").json[
            "tolerance"
        ]["rms"]
    )


@pytest.mark.clause("TOL-10")
@pytest.mark.parametrize(
    ("what", "options", "words"),
    [
        (
            "case.safetensors",
            [],
            "case.safetensors: CASE:TENSOR is needed, such as case.safetensors:y",
        ),
        ("case.safetensors:", [], "CASE:TENSOR is needed"),
        ("case.safetensors:zz", [], "out/zz: no rule has such a result"),
        ("case.safetensors:X", [], "out/X: not a result of this case; it has out/y, out/M"),
        ("gone.safetensors:y", [], "gone.safetensors: no such file"),
        ("case.safetensors:y", ["--dtype", "float8"], "dtype 'float8' is not available"),
        ("case.safetensors:y", ["--state-dtype", "float8"], "dtype 'float8' is not available"),
    ],
)
def test_a_tolerance_of_nothing_is_refused_in_one_line(what, options, words, files, cli):
    ran = cli("tolerance", what, *options)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.clause("TOL-10")
def test_gradients_without_a_cotangent_have_no_tolerance(files, cli, tmp_path):
    header, inputs = parts(made("delta", cotangent=False))
    bare = written(tmp_path / "bare.safetensors", header, inputs)
    ran = cli("tolerance", f"{bare.name}:grad/k")
    assert ran.code == 2
    assert "in/y_bar: missing, gradients need it" in ran.err
