"""The command certify: table, JSON, the written case, exit codes, and its answer without
python-flint.
"""

import importlib.util

import numpy as np
import pytest

import atlas_ref
from atlas_ref.certify import certify
from atlas_ref.certify.ulps import errors
from atlas_ref.cli.certify import _far
from atlas_ref.messages import install
from atlas_ref.oracle.cases.new import Request, new
from tests.support.casefiles import PEERS, RESERVED, written

TIE = {
    "schema": 1,
    "rule": "omega",
    "window": 3,
    "convention": {"newton_schulz": "none", "rate": "none"},
}


@pytest.fixture
def case(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = new(Request(rule="omega", tokens=4, window=2, heads=1, cotangent=True))
    return written(tmp_path / "case.safetensors", made.header.plain(), made.inputs).name


@pytest.fixture
def tie(tmp_path, monkeypatch):
    """y = 1/3 * 3 * (1 + 2^-52) * 1.5, in the middle of two float64."""
    monkeypatch.chdir(tmp_path)
    tensors = {"in/k": [[1 + 2.0**-52]], "in/v": [[3.0]], "in/q": [[1.5]], "in/retain": [1.0]}
    return written(
        tmp_path / "tie.safetensors",
        TIE,
        {name: np.array(value) for name, value in tensors.items()},
    ).name


@pytest.mark.clause("CERT-13")
def test_the_table_has_a_row_per_tensor(case, cli):
    ran = cli("certify", case)
    assert ran.code == 0, ran.err
    assert [
        line.split("│")[2].strip() for line in ran.out.splitlines() if line.startswith("│")
    ] == [
        "out/y",
        "out/M",
        "out/S",
        "out/window_k",
        "out/window_v",
    ]
    assert ran.out.rstrip().endswith("43 of 43 entries certified")
    found = certify(atlas_ref.load(case), grad=True)
    plain = cli("certify", case, "--grad", "--differences", "--json")
    assert plain.code == plain.json["exit"] == 0
    assert {row["tensor"]: row["bits"] for row in plain.json["tensors"]} == found.bits
    assert plain.json["problems"] == []


@pytest.mark.clause("CERT-13")
def test_the_written_case_records_the_certified_results_and_passes(case, cli):
    ran = cli("certify", case, "--grad", "-o", "certified.safetensors")
    assert ran.code == 0, ran.err
    assert ran.err.startswith("wrote certified.safetensors: out/y, out/M")
    recorded = atlas_ref.load("certified.safetensors")
    found = certify(atlas_ref.load(case), grad=True)
    assert recorded.recorded.keys() == found.values.keys()
    for name, value in found.values.items():
        assert recorded.recorded[name].tobytes() == value.tobytes()
    assert recorded.header == atlas_ref.load(case).header
    assert cli("check", "certified.safetensors").code == 0


@pytest.mark.clause("CERT-7")
@pytest.mark.clause("CERT-13")
def test_an_unresolved_entry_is_named_with_both_neighbours_and_not_written(tie, cli):
    ran = cli("certify", tie, "--max-bits", 256, "-o", "out.safetensors")
    assert ran.code == 1
    assert (
        "out/y [0, 0]: unresolved: 1.5000000000000002 or 1.5000000000000004\n3 of 4 entries "
        "certified\n"
    ) in ran.out
    assert ran.err == (
        "wrote out.safetensors: out/M, out/window_k, out/window_v; left out, since entries "
        "are unresolved: out/y\n"
    )
    assert "out/y" not in atlas_ref.load("out.safetensors").recorded
    plain = cli("certify", tie, "--max-bits", 256, "--json")
    assert plain.code == plain.json["exit"] == 1
    (problem,) = plain.json["problems"]
    assert (problem["tensor"], problem["index"], problem["what"]) == ("out/y", [0, 0], "unresolved")
    assert problem["high"] - problem["low"] == 2.0**-52


@pytest.mark.clause("CERT-13", "CASE-20")
def test_results_of_ours_that_are_far_from_the_certified_ones_fail(cli, tmp_path, monkeypatch):
    """Forty steps of Muon are chaotic: no float64 evaluation stays near the exact result."""
    monkeypatch.chdir(tmp_path)
    axes = {"newton_schulz": {"steps": 40, "eps": 0.0}}
    header = {"schema": 1, "rule": "newton_schulz", "convention": axes}
    G = np.array([[1.0, 1.0], [1.0, 1.0 + 2.0**-52]])
    chaotic = written(tmp_path / "chaotic.safetensors", header, {"in/G": G}).name
    ran = cli("certify", chaotic, "--json")
    assert ran.code == ran.json["exit"] == 1
    (row,), (problem,) = ran.json["tensors"], ran.json["problems"]
    assert row["unresolved"] == 0
    assert (problem["case"], problem["tensor"]) == (chaotic, "out/X")
    found = certify(atlas_ref.load(chaotic)).values["out/X"]
    assert problem["want"] == found[tuple(problem["index"])]
    assert problem["error"] > 1e-12
    said = cli("certify", chaotic)
    assert said.code == 1
    assert (
        f"out/X {problem['index']}: ours is off by {problem['error']:.3g} of the tensor, at most "
        f"1e-12 is expected: {problem['got']!r}, certified {problem['want']!r}; judge this case by "
        "the certified results (--out)\n4 of 4 entries certified\n"
    ) in said.out


@pytest.mark.clause("CERT-13", "CASE-20")
def test_infinities_that_agree_and_entries_that_are_unresolved_are_not_far(case):
    want = {"out/y": np.array([1.0, np.inf, np.nan, 0.0])}
    one = certify(atlas_ref.load(case))._replace(values=want)
    right = np.array([1.0 + 1e-15, np.inf, 3.0, 0.0])
    assert _far("case", one, {"out/y": right}) == []
    for place, wrong in ((0, 1.0 + 1e-11), (1, 2.0), (0, np.nan), (3, -np.inf)):
        moved = right.copy()
        moved[place] = wrong
        (problem,) = _far("case", one, {"out/y": moved})
        assert problem["index"] == [place]
        assert not problem["error"] <= 1e-12


@pytest.mark.clause("CERT-13")
def test_a_folder_is_certified_whole_and_reserved_rules_are_passed_over(cli, tmp_path):
    modules = ("mag_ttl", "mag_qk")  # which certify refuses
    rules = [each for each in PEERS.glob("*.safetensors") if not each.name.startswith(modules)]
    folder = tmp_path / "cases"
    folder.mkdir()
    for each in (*rules, RESERVED):
        (folder / each.name).symlink_to(each)
    ran = cli("certify", folder, "--json")
    assert ran.code == 0, ran.err
    assert f"{folder / RESERVED.name}: rule qk_projection: not yet supported" in ran.err
    assert len({row["case"] for row in ran.json["tensors"]}) == 17
    assert max(row["scale"] for row in ran.json["tensors"]) < 100
    only = cli("certify", RESERVED)
    assert only.code == 3
    assert only.err.endswith("nothing could be certified\n")


@pytest.mark.clause("CERT-13")
def test_what_is_wrong_is_said_in_one_line(case, cli, tmp_path):
    second = tmp_path / "second.safetensors"
    second.write_bytes((tmp_path / case).read_bytes())
    bare = new(Request(rule="delta"))
    written(tmp_path / "bare.safetensors", bare.header.plain(), bare.inputs)
    for arguments, message in (
        ((case, "-o", case), f"atlas-ref: {case}: is the case itself, which is not overwritten\n"),
        (
            (case, second, "-o", "out.safetensors"),
            "atlas-ref: --out out.safetensors: holds one case, 2 were given\n",
        ),
        ((case, "--differences"), "atlas-ref: --differences: proves gradients, --grad is needed\n"),
        (
            ("bare.safetensors", "--grad"),
            "atlas-ref: bare.safetensors: in/y_bar: missing, gradients need it\n",
        ),
        (("nowhere.safetensors",), "atlas-ref: nowhere.safetensors: no such file\n"),
    ):
        ran = cli("certify", *arguments)
        assert (ran.code, ran.err) == (2, message)
    assert cli("certify", case, "bare.safetensors", "--grad").code == 0


@pytest.mark.clause("CERT-14")
def test_without_python_flint_one_line_names_the_extra(case, cli, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    line = f"certify needs python-flint, which is not installed: {install('certify')}"
    ran = cli("certify", case)
    assert (ran.code, ran.out, ran.err) == (2, "", f"atlas-ref: {line}\n")
    plain = cli("certify", case, "--json")
    assert plain.json == {"exit": 2, "bad_input": [line]}
    with pytest.raises(atlas_ref.CaseError, match="needs python-flint"):
        certify(atlas_ref.load(case))


@pytest.mark.clause("CERT-12")
def test_errors_are_in_units_in_the_last_place():
    want = np.array([1.0, 2.0, -3.0, 0.0, np.nan, np.inf])
    got = np.array([1.0 + 2.0**-52, 2.0, -3.0 + 2.0**-50, 2.0**-53, 7.0, np.inf])
    each, largest = errors(got, want)
    assert each.tolist() == [1.0, 0.0, 2.0, 0.25, 0.0]
    assert largest.tolist() == [0.5, 0.0, 2.0, 0.25, 0.0]
    assert errors(np.array([np.nan, np.inf]), np.array([1.0, 1.0]))[0].tolist()[1] == np.inf


@pytest.mark.clause("CERT-13", "CERT-18", "CERT-19")
@pytest.mark.parametrize("rule", ["dplr", "tnt"])
def test_the_command_certifies_memories_outside_the_family(rule, cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = new(Request(rule=rule, tokens=3, d_in=3, d_out=2, heads=1, cotangent=True))
    written(tmp_path / "case.safetensors", made.header.plain(), made.inputs)
    ran = cli("certify", "case.safetensors", "--grad", "-o", "out.safetensors")
    assert ran.code == 0, ran.err
    recorded = atlas_ref.load("out.safetensors").recorded
    found = certify(made, grad=True).values
    assert set(recorded) == set(found)
    assert all(np.array_equal(recorded[name], x) for name, x in found.items())
    assert cli("check", "out.safetensors").code == 0
