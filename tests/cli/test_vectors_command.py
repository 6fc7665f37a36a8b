"""The command `atlas-ref vectors`: words, JSON and exit codes; check and pytest with a set."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from atlas_ref.cli.formats import schema
from atlas_ref.oracle.cases.case import make
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.vectors.sets import encode, manifest
from tests.support.golden import assert_golden

GOLDEN = Path(__file__).parents[1] / "vectors" / "golden"
TESTS = Path(__file__).parents[1] / "support"


@pytest.mark.slow
@pytest.mark.clause("VEC-15")
def test_verify_says_what_it_checked(cli, shipped) -> None:
    ran = cli("vectors", "verify")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0].startswith(f"{shipped} 1.0.0: ")
    assert "27 negative, 8 large; ours is within " in lines[0]
    assert lines[1:] == ["verified"]
    found = cli("vectors", "verify", "v1", "--json").json
    assert (found["exit"], found["problems"], found["counts"]["negative"]) == (0, [], 27)
    assert found["worst"].keys() == {"vector", "tensor", "error", "ulps"}


@pytest.mark.clause("VEC-8", "VEC-15")
def test_a_spoilt_set_is_one_line_each_and_exit_code_1(cli, spoilt, listed) -> None:
    gone, changed = (each.file for each in listed.vectors[:2])
    (spoilt / gone).unlink()
    path = spoilt / changed
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    ran = cli("vectors", "verify", spoilt)
    assert ran.code == 1
    lines = sorted(ran.err.splitlines(), key=lambda line: gone not in line)
    assert lines[0] == f"atlas-ref: {spoilt}: {gone}: missing; SHA256SUMS lists it"
    assert lines[1].startswith(f"atlas-ref: {spoilt}: {changed}: its SHA-256 is ")
    assert len(lines) == 2
    assert ran.out.splitlines()[-1] == "NOT VERIFIED: 2 problems"
    (spoilt / "manifest.json").write_text("{")
    ran = cli("vectors", "verify", spoilt)
    assert ran.code == 1
    assert any("manifest.json: not JSON" in line for line in ran.err.splitlines())


@pytest.mark.clause("VEC-18")
def test_a_block_of_levels_has_no_kill_matrix_and_can_be_verified(cli, spoilt, listed) -> None:
    """Verification of blocks of levels under a digest and a manifest of their own."""
    case = new(Request(rule="cms", levels=("titans_lmm", "delta"), tokens=5))
    inputs = {
        name: np.round(value * 16) / 16 if value.dtype.kind == "f" else value
        for name, value in case.inputs.items()
    }
    case = make(case.header.plain(), inputs)
    block = listed.vectors[0].replaced(rule="cms", target="cms", grad=False)
    (spoilt / block.file).write_bytes(
        encode.tensor_bytes(case.header.plain(), {**inputs, **evaluate(case).tensors})
    )
    plain = listed.replaced(vectors=[block, *listed.vectors[1:]]).plain()
    (spoilt / manifest.MANIFEST).write_bytes(encode.json_bytes(plain))
    files = {
        name: (spoilt / name).read_bytes()
        for name in (*manifest.files_of(listed), manifest.MANIFEST, manifest.SCHEMA)
    }
    (spoilt / manifest.SUMS).write_bytes(manifest.sums(files))
    assert cli("vectors", "verify", spoilt).code == 0
    ran = cli("vectors", "kill-matrix", spoilt, "--target", "cms")
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (2, "", 1)
    assert (
        "rule cms: the kill matrix looks into one memory; atlas-ref levels makes a case of "
        "each level"
    ) in ran.err


def test_where_nothing_can_be_written_is_said_before_the_work(cli, tmp_path) -> None:
    absent = tmp_path / "absent" / "x"
    for words in (
        ["kill-matrix", "v1", "--report", f"{absent}.md"],
        ["search", "mine", "1.0.0", "-o", f"{absent}.json"],
    ):
        ran = cli("vectors", *words)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.endswith(f"the folder {absent.parent} does not exist\n")
    for words, said in (
        (["My Set", "1.0.0"], "set: must match"),
        (["mine", "1.0"], "version: must match"),
    ):
        ran = cli("vectors", "search", *words, "-o", tmp_path / "plan.json")
        assert (ran.code, len(ran.err.splitlines())) == (2, 1)
        assert said in ran.err


def test_what_is_no_set_is_bad_input(cli, tmp_path) -> None:
    for words in (
        ["verify", tmp_path],
        ["list", "v9"],
        ["kill-matrix", tmp_path],
        ["diff", "v1", tmp_path],
        ["make", "v9", "-o", tmp_path / "x"],
    ):
        ran = cli("vectors", *words)
        assert ran.code == 2, words
        assert ran.out == ""
        assert len(ran.err.splitlines()) == 1
        assert ran.err.startswith("atlas-ref: ")


@pytest.mark.slow
@pytest.mark.clause("VEC-14")
def test_list_says_what_there_is_and_how_long_it_is(cli, listed, shipped) -> None:
    found = cli("vectors", "list", "--json").json
    assert found["sets"] == {"v1": str(shipped), "v2": str(shipped.parent / "v2")}
    assert found["tokens"] == {"v1": 8, "v2": 257}
    ran = cli("vectors", "list")
    for words in (("v1", "8"), ("v2", "257")):
        assert any(set(words) <= set(line.split()) for line in ran.out.splitlines())
    ran = cli("vectors", "list", "v1")
    assert ran.code == 0
    assert ran.out.startswith("v1 1.0.0, at most 8 tokens")
    assert cli("vectors", "list", "v2").out.startswith("v2 1.9.0, at most 257 tokens")
    for name, rule, tokens in (
        ("v1", "feature_map", 0),
        ("v1", "hebbian", 8),
        ("v2", "hebbian", 257),
    ):
        printed = cli("vectors", "list", name, "--rule", rule, "--json")
        assert printed.json["tokens"] == tokens
        jsonschema.validate(json.loads(printed.out), schema("vectors list"))
    assert "tokens" not in cli("vectors", "list", "v1", "--rule", "feature_map").out.split("\n")[0]
    for each in (*listed.vectors, *listed.negative, *listed.large):
        assert each.name in ran.out
    found = cli("vectors", "list", "v1", "--rule", "hebbian", "--json").json
    assert {each["rule"] for each in found["vectors"]} == {"hebbian"}
    assert found["version"] == "1.0.0"


@pytest.mark.clause("VEC-18")
def test_kill_matrix_prints_and_writes(cli, tmp_path) -> None:
    reports = [tmp_path / "m.md", tmp_path / "m.json"]
    ran = cli(
        "vectors",
        "kill-matrix",
        "v1",
        "--target",
        "feature_map-elu",
        *(word for path in reports for word in ("--report", path)),
    )
    assert ran.code == 0
    assert_golden("kill_matrix.txt", ran.out, folder=GOLDEN)
    assert reports[0].read_text().startswith("# Kill matrix of v1 1.0.0\n")
    found = cli("vectors", "kill-matrix", "v1", "--target", "feature_map-elu", "--json").json
    assert found["counts"] == {
        dtype: {"killed": 3, "mutants": 3} for dtype in ("float32", "bfloat16")
    }
    ran = cli("vectors", "kill-matrix", "v1", "--report", tmp_path / "m.txt")
    assert (ran.code, "a name that ends in .md or .json" in ran.err) == (2, True)
    ran = cli(
        "vectors",
        "kill-matrix",
        "v1",
        "--target",
        "feature_map-elu",
        "--report",
        tmp_path / "absent" / "m.md",
    )
    assert (ran.code, "does not exist" in ran.err) == (2, True)


@pytest.mark.clause("VEC-19")
def test_diff_of_two_sets(cli, spoilt, listed) -> None:
    ran = cli("vectors", "diff", "v1", spoilt)
    assert (ran.code, ran.out) == (0, "no difference\n")
    assert cli("vectors", "diff", "v1", spoilt, "--json").json == {"exit": 0, "changes": []}
    path = spoilt / "manifest.json"
    path.write_text(path.read_text().replace('"version": "1.0.0"', '"version": "1.0.1"'))
    ran = cli("vectors", "diff", "v1", spoilt)
    assert ran.code == 1
    assert ran.out == 'metadata: version: "1.0.0" -> "1.0.1"\n0 added, 0 removed, 1 changed\n'


@pytest.mark.clause("VEC-7")
def test_search_writes_a_plan(cli, tmp_path, monkeypatch) -> None:
    pytest.importorskip(
        "flint", reason="python-flint is not installed, and values are certified with it"
    )
    from atlas_ref.vectors.inputs import targets
    from atlas_ref.vectors.sets import plan, search

    monkeypatch.setattr(search, "TARGETS", [targets.target_named("feature_map-elu")])
    ran = cli(
        "vectors", "search", "v0", "0.1.0", "-o", tmp_path / "plan.json", "--seeds", "2", "--json"
    )
    assert (ran.code, ran.json["survivors"]) == (0, {})
    found = plan.load(str(tmp_path / "plan.json"))
    assert (found.set, found.version) == ("v0", "0.1.0")
    assert {entry.target for entry in found.vectors} == {"feature_map-elu"}


@pytest.mark.clause("VEC-27")
def test_search_draws_one_topic_alone(cli, tmp_path, monkeypatch) -> None:
    pytest.importorskip(
        "flint", reason="python-flint is not installed, and values are certified with it"
    )
    from atlas_ref.vectors.inputs import targets
    from atlas_ref.vectors.sets import plan, search

    monkeypatch.setattr(search, "TARGETS", [])
    monkeypatch.setattr(search, "LATER", [targets.target_named("dplr-simple_gla")])
    words = ("vectors", "search", "v0", "0.1.0", "-o", tmp_path / "plan.json", "--long")
    ran = cli(*words, "--topic", "head", "--topic", "head-log", "--seeds", "2")
    assert ran.code == 0
    found = plan.load(str(tmp_path / "plan.json"))
    assert [entry.topic for entry in found.vectors] == ["head", "head-log"]
    ran = cli(*words, "--topic", "heads")
    assert (ran.code, "topic 'heads': no target has it" in ran.err) == (2, True)


@pytest.mark.clause("VEC-14")
def test_check_takes_a_set(cli, listed) -> None:
    ran = cli("check", "--set", "v1", "--json")
    assert ran.code == 0
    cases = {Path(row["case"]).stem for row in ran.json["results"]}
    assert cases == {each.name for each in listed.vectors}
    assert {row["verdict"] for row in ran.json["results"]} == {"PASS"}


@pytest.mark.clause("VEC-14")
def test_the_last_line_says_how_long_the_cases_were_and_where_longer_ones_are(cli, spoilt) -> None:
    def last(*words: object) -> str:
        return cli("check", *words).out.splitlines()[-1]

    delta = ("--target", "delta")
    short = last("--set", "v1", *delta)
    assert re.fullmatch(r"\d+ PASS \(at most 8 tokens; longer: --set v2\)", short)
    assert last("--set", spoilt, *delta) == short
    assert last("--set", "v2", *delta).endswith(" PASS (at most 257 tokens)")
    both = ("--set", "v1", "--set", "v2")
    assert last(*both, "--target", "omega-token").endswith(" PASS (at most 130 tokens)")
    # a target that one of the sets has; without tokens there is nothing to say
    assert re.fullmatch(r"\d+ PASS", last(*both, "--target", "feature_map-elu"))
    assert re.fullmatch(r"\d+ PASS", last("v1:delta-rows"))
    ran = cli("check", *both, "--target", "gamma")
    assert (ran.code, "set 'v1', set 'v2': target 'gamma' does not exist" in ran.err) == (2, True)


@pytest.mark.clause("VEC-14")
def test_check_takes_larger_cases_with_a_source(cli, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    targets = ["--target", "delta", "--target", "hebbian"]
    ran = cli(
        "check",
        "--set",
        "v1",
        *targets,
        "--large",
        "--impl",
        "implementations:right",
        "--no-nearest",
        "--json",
    )
    verdicts = {
        Path(row["case"]).name: row["verdict"]
        for row in ran.json["results"]
        if row["tensor"] in ("out/M", "-")
    }
    large = {name: verdict for name, verdict in verdicts.items() if name.endswith(".json")}
    assert large == {
        "delta-512.json": "PASS",
        "delta-odd.json": "PASS",
        "hebbian-1024.json": "NOT SUPPORTED",
    }
    assert all(name.startswith(("delta", "hebbian")) for name in verdicts)
    assert len(verdicts) > 8
    ran = cli("check", "--set", "v1", "--target", "gamma")
    assert (
        ran.code,
        "set 'v1': target 'gamma' does not exist; targets are hebbian, delta" in ran.err,
    ) == (2, True)
    assert "--target: belongs to --set" in cli("check", "--target", "delta").err
    ran = cli("check", "--large")
    assert (ran.code, "--large: belongs to --set" in ran.err) == (2, True)
    ran = cli("check")
    assert (ran.code, "a case, a folder of cases or --set is needed" in ran.err) == (2, True)
    assert cli("check", "--set", "v9").code == 2


@pytest.mark.slow
@pytest.mark.clause("VEC-14")
def test_pytest_takes_a_set(listed, tmp_path) -> None:
    """A run of pytest of its own, on one rule."""
    env = {**os.environ, "PYTHONPATH": str(TESTS)}
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "atlas",
        "--atlas-set",
        "v1",
        "-k",
        "hebbian",
    ]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
    count = sum("hebbian" in each.name for each in listed.vectors)
    assert done.returncode == 0, done.stdout
    assert f"{count} passed" in done.stdout
    assert "vectors: at most 8 tokens; longer: --atlas-set v2\n" in done.stdout
    done = subprocess.run(
        [*words[:8], "--atlas-set", "v9"], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 4
    assert "set 'v9' is neither a folder nor a shipped set" in done.stderr
