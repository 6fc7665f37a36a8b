"""Expected failures: the file, and the effect of an entry on a run."""

import datetime
import json
import os
import re
from pathlib import Path

import pytest

import atlas_ref
from atlas_ref.oracle.judge import xfail
from atlas_ref.oracle.judge.verdicts import Comparison
from atlas_ref.oracle.judge.xfail import Entry
from tests.support.casefiles import some, written
from tests.support.expected import in_toml

TODAY = datetime.date(2026, 6, 15)
ENTRY = {"id": "case:out/y", "reason": "the kernel rounds twice", "expires": "2027-03-31"}


def entry(name, days=1, reason="known"):
    return Entry(name, reason, TODAY + datetime.timedelta(days=days))


def row(tensor, verdict, case="cases/case.safetensors"):
    return Comparison(case, tensor, verdict)


@pytest.mark.clause("SRC-15")
@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_a_file_is_read(suffix, tmp_path):
    file = tmp_path / f"known{suffix}"
    entries = [ENTRY, {**ENTRY, "id": "other", "reason": "  two \n words "}]
    file.write_text(in_toml(*entries) if suffix == ".toml" else json.dumps({"xfail": entries}))
    first, second = xfail.load(file)
    assert first == Entry("case:out/y", "the kernel rounds twice", datetime.date(2027, 3, 31))
    assert (first.case, first.tensor, second.case, second.tensor) == (
        "case",
        "out/y",
        "other",
        None,
    )
    assert second.reason == "two words"


@pytest.mark.clause("SRC-15")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "one list named xfail is needed, of tables with id, reason, expires"),
        ("xfail = 3", "one list named xfail is needed, of tables with id, reason, expires"),
        (
            "xfail = []\nskip = []",
            "one list named xfail is needed, of tables with id, reason, expires",
        ),
        ("xfail = [3]", "xfail 1: a table with id, reason, expires is needed, found int"),
        ("[[xfail]", "not TOML: "),
        (
            in_toml({**ENTRY, "until": "x"}),
            "xfail 1: until: unknown key; keys are id, reason, expires",
        ),
        (in_toml(ENTRY, {"id": "a", "reason": "b"}), "xfail 2: expires: missing"),
        (in_toml({"id": "a", "expires": "2027-01-01"}), "xfail 1: reason: missing"),
        (in_toml({**ENTRY, "reason": " "}), "xfail 1: reason: words are needed, found ' '"),
        (in_toml({**ENTRY, "id": 3}), "xfail 1: id: words are needed, found 3"),
        (
            in_toml({**ENTRY, "expires": '"soon"'}),
            "xfail 1: expires: a date as 2027-03-31 is needed, found 'soon'",
        ),
        (
            in_toml({**ENTRY, "expires": "2027-03-31T00:00:00"}),
            "xfail 1: expires: a date as 2027-03-31 is needed, found '2027-03-31 00:",
        ),
        (
            in_toml({**ENTRY, "expires": "20"}),
            "xfail 1: expires: a date as 2027-03-31 is needed, found '20'",
        ),
        (in_toml(ENTRY, ENTRY), "id 'case:out/y' stands twice"),
    ],
)
def test_a_file_that_is_none_is_bad_input_in_one_line(text, words, tmp_path, cli):
    file = tmp_path / "known.toml"
    file.write_text(text)
    with pytest.raises(atlas_ref.CaseError) as found:
        xfail.load(file)
    assert str(found.value).startswith(f"{file}: {words}")
    ran = cli("check", tmp_path, "--xfail", file)
    assert (ran.code, ran.out, ran.err) == (2, "", f"atlas-ref: {found.value}\n")


@pytest.mark.clause("SRC-15")
def test_json_is_read_strictly_too(tmp_path):
    file = tmp_path / "known.json"
    for text, words in (
        ("{", "not JSON: "),
        ('{"xfail": [], "xfail": []}', "not JSON: key 'xfail' stands twice"),
        ("[" * 9999, "not JSON: "),
    ):
        file.write_text(text)
        with pytest.raises(atlas_ref.CaseError, match=f"^{file}: {words}"):
            xfail.load(file)
    file.write_bytes(b"\xff")
    with pytest.raises(atlas_ref.CaseError, match=f"^{file}: not JSON: "):
        xfail.load(file)


@pytest.mark.clause("SRC-15")
def test_a_pipe_or_device_holds_no_list(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(atlas_ref.CaseError, match=f"^{path}: is not a regular file$"):
            xfail.load(path)


@pytest.mark.clause("SRC-16")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("case", ["out/y", "out/M"]),
        ("case.safetensors", ["out/y", "out/M"]),
        ("cases/case.safetensors", ["out/y", "out/M"]),
        ("case:out/y", ["out/y"]),
        ("cases/case.safetensors:out/M", ["out/M"]),
        ("cas", []),
        ("case:grad/k", []),
        ("case:y", []),
    ],
)
def test_an_entry_is_about_a_case_or_one_of_its_tensors(name, expected):
    rows = [row("out/y", "WRONG"), row("out/M", "MARGINAL"), row("out/S", "PASS")]
    found = xfail.apply([entry(name)], rows, today=TODAY)
    assert [each.tensor for each in found.rows if each.xfail == "known"] == expected
    assert found.problems == []
    assert found.met == ({name} if expected else set())
    assert xfail.unknown([entry(name)], found.met) == (
        [] if expected else [f"xfail {name}: no such case or tensor was checked"]
    )


@pytest.mark.clause("SRC-16")
def test_a_case_without_an_answer_is_what_an_entry_about_any_of_its_tensors_expected():
    found = xfail.apply([entry("case:out/y")], [row("-", "FAILED")], today=TODAY)
    assert [each.xfail for each in found.rows] == ["known"]


@pytest.mark.clause("SRC-16")
def test_an_entry_holds_on_its_last_day_and_not_on_the_next():
    for days, reason, problems in (
        (0, "known", []),
        (-1, "", ["xfail case: expired on 2026-06-14: known"]),
    ):
        found = xfail.apply([entry("case", days)], [row("out/y", "WRONG")], today=TODAY)
        assert ([each.xfail for each in found.rows], found.problems) == ([reason], problems)


@pytest.mark.clause("SRC-16")
def test_an_entry_whose_case_passes_is_a_problem_whether_expired_or_not():
    for days in (1, -1):
        found = xfail.apply(
            [entry("case", days)], [row("out/y", "PASS"), row("out/M", "PASS")], today=TODAY
        )
        assert found.problems == ["xfail case: passes; remove the entry (known)"]
    found = xfail.apply(
        [entry("case:out/M")], [row("out/y", "WRONG"), row("out/M", "PASS")], today=TODAY
    )
    assert found.problems == ["xfail case:out/M: passes; remove the entry (known)"]
    assert [each.xfail for each in found.rows] == ["", ""]


@pytest.mark.clause("SRC-16")
def test_a_case_that_is_not_supported_neither_passes_nor_fails():
    found = xfail.apply([entry("case")], [row("-", "NOT SUPPORTED")], today=TODAY)
    assert (found.problems, found.met, [each.xfail for each in found.rows]) == ([], {"case"}, [""])


@pytest.mark.clause("SRC-16")
def test_with_only_entries_about_other_tensors_are_let_be():
    entries = [entry("case:out/M"), entry("absent"), entry("case:out/S")]
    assert xfail.unknown(entries, {"case:out/S"}, only={"out/y"}) == [
        "xfail absent: no such case or tensor was checked"
    ]


@pytest.mark.clause("SRC-16", "CASE-26")
def test_the_command_counts_what_was_expected_apart(cli, tmp_path):
    header, tensors = some("delta")
    results = dict(atlas_ref.evaluate(atlas_ref.make(header, tensors)).tensors)
    (tmp_path / "cases").mkdir()
    written(tmp_path / "cases" / "good.safetensors", header, tensors | results)
    written(
        tmp_path / "cases" / "bad.safetensors",
        header,
        tensors | results | {"out/y": 2 * results["out/y"]},
    )

    def run(*entries, options=()):
        (tmp_path / "known.toml").write_text(in_toml(*entries))
        return cli(
            "check",
            tmp_path / "cases",
            "--xfail",
            tmp_path / "known.toml",
            "--no-nearest",
            *options,
        )

    known = {"id": "bad:out/y", "reason": "doubled", "expires": "2999-12-31"}
    ran = run(known)
    assert ran.code == 0
    assert ran.out.splitlines()[-1] == "3 PASS, 1 XFAIL"
    assert "(expected to fail: doubled)" in " ".join(re.sub("│", " ", ran.out).split())
    assert run(known, options=("--json",)).json["failures"] == []
    for change, code, words in (
        ({"id": "good"}, 1, "xfail good: passes; remove the entry (doubled)"),
        ({"expires": "2020-01-01"}, 1, "xfail bad:out/y: expired on 2020-01-01: doubled"),
        ({"id": "other"}, 2, "xfail other: no such case or tensor was checked"),
        ({"id": "bad:out/S"}, 2, "xfail bad:out/S: no such case or tensor was checked"),
    ):
        ran = run({**known, **change})
        assert (ran.code, ran.err) == (code, f"atlas-ref: {words}\n")
    assert run({**known, "id": "bad:out/M"}, options=("--only", "y")).code == 1
    written(tmp_path / "cases" / "bad.safetensors", {**header, "rule": "no"}, tensors)
    assert "no such case" not in run(known).err
