"""The kill matrix: no surviving mutant, no rejected legal variant, and a report of exceptions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from atlas_ref.oracle.cases.case import CaseError
from atlas_ref.vectors.mutants.mutants import mutants
from atlas_ref.vectors.mutants.score import FORMATS
from atlas_ref.vectors.sets import encode, locate, manifest, matrix
from atlas_ref.vectors.sets.matrix import markdown

PUBLISHED = locate.SHIPPED[1] / "v1-kill-matrix.json"


def reduced(
    shipped: Path,
    listed: manifest.Manifest,
    folder: Path,
    targets: tuple[str, ...],
    change=lambda vector: vector,
) -> Path:
    """A set of the vectors of some targets, each changed."""
    vectors = [change(each) for each in listed.vectors if each.target in targets]
    few = listed.replaced(
        vectors=[each for each in vectors if each is not None], negative=[], large=[]
    )
    for each in few.vectors:
        (folder / each.file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(shipped / each.file, folder / each.file)
    (folder / manifest.MANIFEST).write_bytes(encode.json_bytes(few.plain()))
    (folder / manifest.SUMS).write_bytes(b"")
    return folder


@pytest.mark.clause("VEC-18")
def test_linear_rules_and_newton_schulz_have_no_survivor(shipped, listed) -> None:
    found = matrix.matrix(shipped, targets=["hebbian", "newton_schulz"])
    assert found.alarms == found.lost == []
    assert [rows.survivors for rows in found.targets.values()] == [[], []]
    assert found.exit_code == 0
    killed, total = found.counts("bfloat16")
    assert killed == total > 85
    for name, rows in found.targets.items():
        assert rows.vectors == [each.name for each in listed.vectors if each.target == name]
    assert "newton_schulz.transpose=never" in found.targets["newton_schulz"].void
    assert found.targets["hebbian"].void["order=momentum_then_window"]


@pytest.mark.slow
@pytest.mark.clause("VEC-18")
def test_the_published_matrix_is_that_of_the_set(shipped) -> None:
    """Every target: no survivor, no alarm, and every published kill a kill.

    Borderline ones may differ between machines.
    """
    found = matrix.matrix(shipped, jobs=2)
    assert found.exit_code == 0
    published = json.loads(PUBLISHED.read_text())
    assert {dtype: published["counts"][dtype] for dtype in FORMATS} == found.plain()["counts"]
    assert published["targets"].keys() == found.targets.keys()
    for name, rows in found.targets.items():
        assert rows.kills.keys() == published["targets"][name]["kills"].keys()
        assert rows.void == published["targets"][name]["void"]


@pytest.mark.clause("VEC-18")
def test_the_published_matrix_is_about_this_set(listed) -> None:
    published = json.loads(PUBLISHED.read_text())
    assert (published["set"], published["version"]) == (listed.set, listed.version)
    assert published["alarms"] == published["lost"] == []
    for dtype in FORMATS:
        assert published["counts"][dtype]["killed"] == published["counts"][dtype]["mutants"]
    for each in listed.vectors:
        for dtype in FORMATS:
            kills = published["targets"][each.target]["kills"]
            assert all(each.name in kills[mutant][dtype] for mutant in each.kills[dtype]), each.name
    text = PUBLISHED.with_suffix(".md").read_text()
    assert f"# Kill matrix of {listed.set} {listed.version}" in text
    for dtype in FORMATS:
        assert (
            f"- {dtype}: {published['counts'][dtype]['killed']} of "
            f"{published['counts'][dtype]['mutants']} mutants killed"
        ) in text


@pytest.mark.clause("VEC-18")
def test_a_mutant_that_no_vector_kills_survives(shipped, listed, tmp_path) -> None:
    """A set without the vectors with a gate of 0, which alone kill one of its mutants."""
    folder = reduced(
        shipped,
        listed,
        tmp_path / "set",
        ("hebbian",),
        lambda each: None if "a gate is 0" in each.properties else each,
    )
    found = matrix.matrix(folder)
    assert ("chunk decay by division", "float32") in found.targets["hebbian"].survivors
    assert found.exit_code == 1
    assert "SURVIVES at float32: chunk decay by division" in markdown(found)


@pytest.mark.clause("VEC-18")
def test_a_kill_that_is_listed_and_is_none(shipped, listed, tmp_path) -> None:
    def boast(each: manifest.Vector) -> manifest.Vector:
        return each.replaced(
            kills={**each.kills, "float32": [*each.kills["float32"], "window off by one"]}
        )

    found = matrix.matrix(reduced(shipped, listed, tmp_path / "set", ("hebbian",), boast))
    assert {(dtype, name) for _, dtype, name in found.lost} == {("float32", "window off by one")}
    assert found.exit_code == 1


@pytest.mark.clause("VEC-18")
def test_an_alarm_is_said(shipped, listed, tmp_path, monkeypatch) -> None:
    """A mutant among the legal variants."""
    from atlas_ref.vectors.mutants import score

    legal = score.controls

    def controls(case, dtype, *, grad):
        yield from legal(case, dtype, grad=grad)
        yield from (each for each in mutants(case, dtype) if each[0] == "read=before")

    monkeypatch.setattr(score, "controls", controls)
    found = matrix.matrix(reduced(shipped, listed, tmp_path / "set", ("hebbian",)))
    assert found.exit_code == 1
    assert found.alarms
    assert all(what.startswith("read=before: ") for _, _, what in found.alarms)


@pytest.mark.clause("VEC-16", "VEC-18")
def test_what_is_no_mutant_has_a_reason(shipped, listed) -> None:
    import atlas_ref

    for target in ("hebbian", "delta", "omega", "omega-frozen", "newton_schulz", "feature_map-elu"):
        vector = next(each for each in listed.vectors if each.target == target)
        found = matrix.hidden(atlas_ref.load(shipped / vector.file))
        assert all(found.values()), target
    assert matrix.hidden(
        atlas_ref.load(
            shipped / next(each.file for each in listed.vectors if each.target == "delta")
        )
    )


def test_markdown_has_a_row_a_mutant_and_a_column_a_vector(shipped) -> None:
    found = matrix.matrix(shipped, targets=["feature_map-elu"])
    lines = markdown(found).splitlines()
    start = lines.index("## feature_map-elu")
    assert (
        lines[start + 2]
        == "| mutant | "
        + " | ".join(
            name.removeprefix("feature_map-elu-")
            for name in found.targets["feature_map-elu"].vectors
        )
        + " |"
    )
    rows = [line for line in lines[start + 4 :] if line.startswith("| ")]
    assert len(rows) == len(found.targets["feature_map-elu"].kills)
    assert "| map of half: phi(x / 2) | f b" in "\n".join(rows)


def test_a_target_that_does_not_exist(shipped) -> None:
    with pytest.raises(
        CaseError, match="target 'gamma' does not exist; targets are hebbian, delta"
    ):
        matrix.matrix(shipped, targets=["gamma"])


@pytest.mark.clause("VEC-18")
def test_a_matrix_goes_on_from_its_log(shipped, tmp_path, monkeypatch) -> None:
    log = tmp_path / "log"
    first = matrix.matrix(shipped, targets=["feature_map-elu"], resume=log)
    monkeypatch.setattr(matrix.Scoring, "perform", lambda *_: pytest.fail("computed again"))
    assert matrix.matrix(shipped, targets=["feature_map-elu"], resume=log) == first
    with pytest.raises(CaseError, match="targets: the log is that of a kill matrix"):
        matrix.matrix(shipped, targets=["feature_map-linear"], resume=log)
