"""What explains a verdict may fail: the verdict, its exit code and the rest of the message stand."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.identify import deciding
from atlas_ref.oracle.identify import identify as family
from atlas_ref.oracle.identify.identify import identify
from atlas_ref.oracle.modules import judge as modules
from atlas_ref.oracle.modules.recording import make_recording
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.replay import nearest as readings
from atlas_ref.oracle.replay.replay import first_wrong, replay
from atlas_ref.oracle.replay.trace import add_trace
from atlas_ref.oracle.report import failures, nearest
from atlas_ref.oracle.report.failures import explain
from atlas_ref.storage import faults
from tests.support import deep_cases
from tests.support.casefiles import some, written
from tests.support.recorded_modules import header_of, of_ours

ASKED = "a fault of atlas-ref itself, not of your input: KeyError: 'a bug'"


def broken(*arguments: Any, **options: Any) -> Any:
    raise KeyError("a bug")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for tracebacks."""
    (tmp_path / "faults").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "faults"))
    return tmp_path


def wrong_case(path: Path, rule: str = "delta", **request: Any) -> Path:
    """A case whose recorded reads are twice ours."""
    case = atlas_ref.make(*some(rule, **request))
    y = {"out/y": 2.0 * evaluate(case).tensors["out/y"]}
    return written(path, case.header.plain(), {**case.inputs, **y})


@pytest.mark.clause("CASE-38", "SRC-25", "CASE-34")
def test_a_search_that_fails_leaves_the_verdict_and_asks_for_a_report(
    folder: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(family, "identify", broken)
    for name, rule in (("a", "delta"), ("b", "delta"), ("c", "dplr")):
        wrong_case(folder / f"{name}.safetensors", rule)
    files = [folder / f"{name}.safetensors" for name in "abc"]
    ran = cli("check", *files)
    assert ran.code == 1
    assert "nearest       the search failed, a fault of atlas-ref itself" in ran.out + ran.err
    (file,) = (folder / "faults").iterdir()  # one for the two rules of the run
    assert "Traceback" in file.read_text()
    as_json = cli("check", *files, "--json")
    assert as_json.code == 1
    words = [each["nearest_convention"] for each in as_json.json["failures"]]
    assert words[0].startswith(f"the search failed, {ASKED}")
    assert f"report it with {file}" in words[0]
    assert words[1] == "not searched: a was, of the same rule (atlas-ref identify does)"
    assert words[2] == words[0]


@pytest.mark.clause("CASE-38", "CASE-27")
@pytest.mark.parametrize(
    ("part", "field"),
    [("_clause", "clause"), ("_missed_features", "case_has"), ("_by_replay", "found_before")],
)
def test_each_part_of_a_message_fails_alone(
    part: str, field: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = atlas_ref.load(wrong_case(folder / "case.safetensors"))
    done = atlas_ref.oracle.judge.compare.checked(case)
    whole = explain(done, done.rows, "repeat", nearest=nearest.nothing)
    monkeypatch.setattr(failures, part, broken)
    failure = explain(done, done.rows, "repeat", nearest=broken)
    assert whole is not None
    assert failure is not None
    assert failure.nearest.startswith(f"the search failed, {ASKED}")
    told, whole_words = failure._replace(nearest="").plain(), whole.plain()
    assert " failed, " in str(told[field])
    assert ASKED in str(told[field])
    assert {key: x for key, x in told.items() if key != field} == {
        key: x for key, x in whole_words.items() if key != field
    }


@pytest.mark.clause("CASE-38")
def test_memory_that_is_not_there_is_no_fault() -> None:
    def large() -> str:
        raise MemoryError

    words = faults.told("the search", large, str)
    assert words == "the search failed: it needs more memory than there is"


@pytest.mark.clause("CASE-38", "IDENT-9")
@pytest.mark.sample(1)
@pytest.mark.parametrize("stage", ["with_departures", "with_number", "with_changes"])
def test_a_stage_of_identify_that_fails_leaves_the_answer(
    stage: str, folder: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = wrong_case(folder / "case.safetensors", tokens=2, heads=1)
    case = atlas_ref.load(file)
    own = identify(case, case.recorded)
    monkeypatch.setattr(family.Search, stage, broken)
    answer = identify(case, case.recorded)
    assert (answer.verdict, answer.exit_code) == (own.verdict, own.exit_code)
    assert answer.match is not None
    assert all(each.startswith(f"a stage of the search failed, {ASKED}") for each in answer.failed)
    assert answer.failed
    ran = cli("identify", file, "--out", file, "--json")
    assert (ran.code, ran.json["failed"]) == (own.exit_code, list(answer.failed))
    assert answer.failed[0][:40] in cli("identify", file, "--out", file).out


@pytest.mark.clause("CASE-38", "IDENT-8")
def test_a_search_for_what_decides_that_fails_leaves_the_answer(
    folder: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = atlas_ref.make(*some("hebbian", tokens=1))
    file = folder / "case.safetensors"
    written(file, case.header.plain(), {**case.inputs, **evaluate(case).tensors})
    words = ["identify", file, "--out", file, "--decide", folder / "decides.safetensors", "--json"]
    own = cli(*words)
    assert (own.code, own.json["verdict"]) == (3, "UNDECIDABLE")
    monkeypatch.setattr(deciding, "deciding_case", broken)
    ran = cli(*words)
    assert (ran.code, ran.json["verdict"]) == (3, "UNDECIDABLE")
    assert ran.json["deciding_case"].startswith("the search for a case that decides failed, ")


def failing_at(rule: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one reading of a rule fail."""
    subject = SUBJECTS[rule]
    searched = subject.searched
    assert searched is not None

    def run(inputs: Any, case: Any, rounding: Any, chosen: Any) -> Any:
        if any(each.name == name for each in chosen):
            raise KeyError("a bug")
        return searched.run(inputs, case, rounding, chosen)

    wrong = subject._replace(searched=searched._replace(run=run))
    monkeypatch.setitem(SUBJECTS.loaded, rule, wrong)


@pytest.mark.clause("CASE-38", "SRC-25", "DEEPCASE-14")
@pytest.mark.parametrize("kind", ["settings", "departures"])
def test_a_reading_that_fails_is_left_out_and_said(
    kind: str, folder: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting, and a mistake: the others are tried as before."""
    parameters = {"member": "simple_gla"}
    request = {"tokens": 4, "d_in": 3, "d_out": 3, "heads": 1, "parameters": parameters}
    file = wrong_case(folder / "case.safetensors", "dplr", **request)
    case = atlas_ref.load(file)
    own = identify(case, case.recorded)
    some_readings = getattr(SUBJECTS["dplr"].searched, kind)(case)
    name = [each.name for each in some_readings if not each.grad][-1]  # not the nearest
    failing_at("dplr", name, monkeypatch)
    answer = identify(case, case.recorded)
    assert (answer.verdict, answer.match) == (own.verdict, own.match)
    assert answer.failed[0].startswith(f"the reading {name} failed, {ASKED}")
    ran = cli("check", file, "--json")
    words = ran.json["failures"][0]["nearest_convention"]
    assert ran.code == 1
    assert f"the reading {name} failed, " in words


@pytest.mark.clause("CASE-38", "REPLAY-16")
def test_a_reading_of_a_trace_that_fails_leaves_the_first_wrong_op(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = atlas_ref.make(*some("delta", tokens=4))
    trace = {n: np.array(x) for n, x in add_trace(case, evaluate(case)).tensors.items()}
    trace["trace/y"][..., 2, :] *= 1.5
    trace = {n: x for n, x in trace.items() if n.startswith("trace/")}
    own = first_wrong(replay(case, trace))
    assert own is not None
    monkeypatch.setattr(readings, "_right", broken)
    first = first_wrong(replay(case, trace))
    assert first is not None
    assert first._replace(nearest="") == own._replace(nearest="")
    assert ASKED in first.nearest
    monkeypatch.setattr(readings, "_readings", broken)
    first = first_wrong(replay(case, trace))
    assert first is not None
    assert first.nearest.startswith("the search failed, ")


@pytest.mark.clause("CASE-38", "MODULES-12")
def test_a_search_about_a_module_that_fails_leaves_its_verdict(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = header_of(calls=[5, 4], settings={"depth": 1})
    tensors = dict(of_ours(header))
    key = next(each for each in tensors if each.endswith("to_logits/out/y"))
    tensors[key] = tensors[key] * 1.5
    own = modules.first_wrong(modules.judge(make_recording(header, tensors), nearest=False))
    for part in ("nearest_of", "inside_of"):
        monkeypatch.setattr(modules, part, broken)
    first = modules.first_wrong(modules.judge(make_recording(header, tensors)))
    assert own is not None
    assert first is not None
    assert (first.module, first.verdict) == (own.module, "WRONG")
    assert first.nearest.startswith(f"the search failed, {ASKED}")
    assert first.inside.startswith(f"the replay failed, {ASKED}")


@pytest.mark.clause("DEEPCASE-15", "CASE-38")
def test_mistakes_are_those_that_can_be_made_beside_a_setting(folder: Path) -> None:
    """A kernel that cubes retain, of which no decay is nearer: no decay comes late then."""
    request = {"parameters": {"chunk": 3, "memory": {"kind": "mlp"}}}
    case = deep_cases.made(**request, convention={"newton_schulz": "none"})
    cubed = {**case.inputs, "in/retain": case.inputs["in/retain"] ** 3}
    mine = evaluate(atlas_ref.make(case.header.plain(), cubed)).tensors
    answer = identify(case, mine)
    assert (answer.verdict, answer.failed) == ("NO MATCH", ())
