"""Rows of packages that are absent from a run stay as an earlier run recorded them, with its date."""

import json
from pathlib import Path

import pytest

from benchmarks.survey.pages import kept
from benchmarks.survey.pages.page import page

DATA = Path(__file__).parents[3] / "specs" / "survey.json"


def said():
    """The data of the page, as if every package had been asked on its day."""
    data = json.loads(DATA.read_text())
    for part in parts(data):
        part.pop("kept", None)
    for row in data["field"]["rows"]:
        row["date"] = data["date"]
    return data


def parts(data):
    lists = [data[name] for name in ("implementations", "deep_faults", "family_faults")]
    lists += [data[name]["found"] for name in ("deep", "family")]
    return [*(row for rows in lists for row in rows), data["bracket"], data["chunks"], data["rnn"]]


def without(package):
    """A later run that does not find a package."""
    data = {**said(), "date": "2030-01-02"}
    for name in ("implementations", "deep_faults", "family_faults"):
        data[name] = [stripped(row, package) for row in data[name]]
    for name in ("deep", "family"):
        rows = [stripped(row, package) for row in data[name]["found"]]
        data[name] = {**data[name], "found": rows}
    if package == "fla-core":
        data["bracket"] = {"missing": "fla is not installed"}
    if package == "titans-pytorch":
        data["chunks"] = {"missing": "titans-pytorch is not installed (extra bench)"}
    if package == "atlas-rnn":
        rows = [{**row, "package": "-"} for row in data["rnn"]["rows"]]
        data["rnn"] = {"version": "", "rows": rows}
    return data


def stripped(row, package):
    if row["package"] != package:
        return row
    names = ("label", "package", "function", "rule", "convention", "source", "note", "member")
    own = {name: row[name] for name in (*names, "settings", "fault", "measured") if name in row}
    return {**own, "version": "", "missing": f"{package} is not installed (extra bench)"}


@pytest.mark.parametrize("package", ["fla-core", "titans-pytorch", "atlas-rnn"])
def test_every_row_of_an_absent_package_is_the_recorded_one_with_its_date(package):
    before = said()
    merged = kept.with_kept(without(package), before)
    changed = 0
    for now, then in zip(parts(merged), parts(before), strict=True):
        dated = now.pop("kept", None)
        assert dated in (None, before["date"])
        changed += dated is not None
        assert now == then
    assert changed >= 1
    assert merged["date"] == "2030-01-02"


def test_a_row_that_is_kept_twice_has_the_day_on_which_it_was_asked():
    once = kept.with_kept(without("atlas-rnn"), said())
    later = {**without("atlas-rnn"), "date": "2031-01-02"}
    assert kept.with_kept(later, once) == {**once, "date": "2031-01-02"}


def test_the_page_says_which_rows_were_not_asked_again():
    before = said()
    assert "Every row was asked in it." in page(before)
    text = page(kept.with_kept(without("fla-core"), before))
    assert "was not asked again in this run, or its package was absent from it" in text
    text = text[text.index("## Which convention") :]
    rows = [line for line in text.splitlines() if line.startswith("| fla-core 0")]
    assert rows
    assert all(f", asked {before['date']} |" in line for line in rows)
    others = [line for line in text.splitlines() if line.startswith("| transformers")]
    assert others
    assert not any("asked 20" in line for line in others)


def test_what_answers_another_question_is_not_kept():
    """Another set of cases, another convention, another measurement."""
    before = said()
    other_set = {**before, "set": {**before["set"], "sha256": "0"}}
    absent = without("fla-core")
    merged = kept.with_kept(absent, other_set)
    assert merged["implementations"] == absent["implementations"]
    other = json.loads(json.dumps(before))
    for row in other["implementations"]:
        row["convention"] = "spec"
    for row in (*other["deep_faults"], *other["family_faults"]):
        row["measured"] = "something else"
    for row in other["family"]["found"]:
        row["member"] = "another"
    merged = kept.with_kept(absent, other)
    for name in ("implementations", "deep_faults", "family_faults", "family"):
        assert merged[name] == absent[name]


def test_what_a_run_did_not_measure_at_all_stays_with_its_date():
    before = said()
    now = {"date": "2030-01-02", **{name: before[name] for name in ("set", "implementations")}}
    merged = kept.with_kept(now, before)
    for name in kept.BESIDE:
        whole = merged[name]
        rows = whole if isinstance(whole, list) else whole.get("found", [whole])
        assert {row["kept"] for row in rows} == {before["date"]}, name


def test_a_package_that_is_there_is_never_replaced():
    before = said()
    for row in before["implementations"]:
        row["label"] = "of before"
    now = said()
    assert kept.with_kept(now, before) == now


def test_the_record_of_a_package_that_was_never_asked_stays_missing():
    absent = without("fla-core")
    assert kept.with_kept(absent, absent) == absent
