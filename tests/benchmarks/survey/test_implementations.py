"""Adapters of public implementations: each computes what it says, and the survey confirms what the
page says.
"""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.sources import sources
from benchmarks.survey import catalogue, identity, run
from benchmarks.survey.field import environment
from benchmarks.survey.field.environment import AbsentError
from benchmarks.survey.pages.kept import BESIDE
from benchmarks.survey.pages.page import page
from benchmarks.survey.restate import asked
from tests.support.casefiles import some

ROOT = Path(__file__).parents[3]
PAGE, DATA = ROOT / "specs" / "survey.md", ROOT / "specs" / "survey.json"
ENTRIES = {entry.function.partition(":")[2]: entry for entry in catalogue.entries()}

#: What no test expects to pass: the page says how it fails.
FAILING = ("momentum_delta_chunk", "torch_muon", "muon_optimizer", "gram")

#: What divides or rounds in place, so that it has no gradient.
WITHOUT_GRADIENT = ("heavyball_legacy", "heavyball_rows", "gram_standard")


def installed(name):
    entry = ENTRIES[name]
    if not entry.version:
        pytest.skip(f"{entry.implementation.package} is not installed")
    return entry


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", [name for name in ENTRIES if name not in FAILING])
def test_an_implementation_computes_what_its_adapter_says(name):
    one = installed(name).implementation
    header, inputs = (
        some(one.rule, tokens=8, d_in=4, d_out=4, heads=2)
        if one.rule != "newton_schulz"
        else some("newton_schulz")
    )
    question = asked(atlas_ref.make(header, inputs), one)
    assert question.why == ""
    for dtype in one.dtypes:
        rows = atlas_ref.check(
            question.case, source=lambda case: sources.respond(one, case), dtype=dtype
        )
        assert [
            (row.tensor, row.verdict, row.error, row.why) for row in rows if row.verdict != "PASS"
        ] == []
        has = any(row.tensor.startswith("grad/") for row in rows)
        assert has != (name in WITHOUT_GRADIENT)


@pytest.mark.parametrize("name", ["gated_delta", "opengdn", "titans_pytorch", "titans_unofficial"])
def test_its_convention_is_found_from_its_results_alone(name):
    found = identity.identified(installed(name).implementation)
    assert (found.verdict, found.own) == ("MATCH", True)


def test_a_gate_of_zero_makes_a_chunk_form_in_logarithms_not_finite():
    """The finding of the page, on one case."""
    one = installed("gated_delta_chunk").implementation
    header, inputs = some("delta", tokens=6, convention="fla-gated-delta", cotangent=False)
    inputs["in/retain"] = np.array(inputs["in/retain"])
    inputs["in/retain"][..., 2] = 0.0
    case = atlas_ref.make(header, inputs)
    rows = {
        row.tensor: row
        for row in atlas_ref.check(
            case, source=lambda each: sources.respond(one, each), dtype="float32"
        )
    }
    assert rows["out/y"].verdict == "WRONG"
    assert np.isnan(rows["out/y"].got)
    right = installed("gated_delta").implementation
    assert {
        row.verdict
        for row in atlas_ref.check(
            case, source=lambda each: sources.respond(right, each), dtype="float32"
        )
    } == {"PASS"}


def test_the_momentum_chunk_form_adds_to_a_rate():
    """Reads of a second rate that is 1e-6 larger than the one passed in."""
    one = installed("momentum_delta_chunk").implementation
    header, inputs = some("titans_lmm", tokens=8, convention="fla-momentum-delta", cotangent=False)
    inputs["in/step_size_memory"] = np.full_like(inputs["in/step_size_memory"], 0.01)
    mine = one(
        header,
        {name.removeprefix("in/"): value.astype(np.float32) for name, value in inputs.items()},
    )["y"]
    narrow = {name: value.astype(np.float32).astype(np.float64) for name, value in inputs.items()}
    apart = []
    for more in (0.0, 1e-6):
        given = narrow | {"in/step_size_memory": narrow["in/step_size_memory"] + more}
        want = atlas_ref.evaluate(atlas_ref.make(header, given)).tensors["out/y"]
        apart.append(np.linalg.norm(mine - want) / np.linalg.norm(want))
    assert apart[1] < 2e-6
    assert apart[0] > 5 * apart[1]


def test_the_page_says_what_its_data_say():
    assert PAGE.read_text() == page(json.loads(DATA.read_text()))


def test_every_implementation_is_on_the_page():
    rows = json.loads(DATA.read_text())["implementations"]
    assert [row["function"] for row in rows] == [entry.function for entry in ENTRIES.values()]
    assert all(row["version"] and "missing" not in row for row in rows)


def the_set():
    """The set of vectors that the page reports on."""
    folder = ROOT / json.loads(DATA.read_text())["set"]["name"]
    if not folder.exists():
        pytest.skip(f"{folder.relative_to(ROOT)} is not here")
    return run.read(folder)


def test_the_page_is_about_the_set_as_it_is():
    said = json.loads(DATA.read_text())["set"]
    found = the_set()
    assert (len(found.cases), found.digest) == (said["cases"], said["sha256"]), (
        "the set has changed: make survey"
    )


def test_the_page_says_of_what_day_it_is_and_how_many_conventions_its_run_compared():
    data = json.loads(DATA.read_text())
    text = PAGE.read_text()
    assert f"The run is of {data['date']}." in text
    for row in data["implementations"]:
        assert f", of {row['identified']['searched']} |" in text
        assert row["identified"]["searched"] > 1


def survey_of_the_page(names):
    """The page's rows and today's survey, for implementations installed in the page's version."""
    before = json.loads(DATA.read_text())
    rows = {row["function"]: row for row in before["implementations"]}
    chosen = [
        entry
        for name, entry in ENTRIES.items()
        if name in names and entry.version == rows[entry.function]["version"]
    ]
    if not chosen:
        pytest.skip(f"none of {', '.join(names)} is installed in the version of the page")
    found = the_set()
    return [(rows[entry.function], run.entry_row(entry, found)) for entry in chosen]


def firm(row, *, same_axes):
    """The part of a row that every machine agrees on.

    Verdicts near their bound may turn out otherwise where sums are ordered otherwise. How many
    conventions were compared is a fact of the row's run. Where another run had other axes, another
    convention may be the nearest to results that none explains.
    """
    identified = {name: value for name, value in row["identified"].items() if name != "searched"}
    if not same_axes and identified["verdict"] == "NO MATCH":
        identified = {"verdict": "NO MATCH"}
    row = {name: value for name, value in row.items() if name != "kept"}
    row["identified"] = identified
    results = {}
    for dtype, result in row["results"].items():
        failed = {clause: {**each, "worst": ""} for clause, each in result["failed"].items()}
        near = any("MARGINAL" in each["verdicts"] for each in failed.values())
        results[dtype] = sorted(failed) if near else {**result, "failed": failed}
    return json.loads(json.dumps({**row, "results": results}))


@pytest.mark.parametrize(
    "names",
    [("opengdn",), pytest.param(tuple(ENTRIES), marks=pytest.mark.slow)],
    ids=["one", "all"],
)
def test_the_data_are_what_the_survey_finds(names):
    for before, now in survey_of_the_page(names):
        same = now["identified"]["searched"] == before["identified"]["searched"]
        assert firm(now, same_axes=same) == firm(before, same_axes=same), before["function"]


@pytest.mark.parametrize("beside", ["said", pytest.param("found", marks=pytest.mark.slow)])
def test_the_command_prints_a_page_or_one_object(beside, tmp_path, monkeypatch):
    """What stands beside the set takes a minute, so `make test` takes what the page says of it."""
    if beside == "said":
        said = json.loads(DATA.read_text())
        monkeypatch.setattr(run, "beside", lambda tell: {key: said[key] for key in BESIDE})

    def absent(package):
        raise AbsentError(f"no matching distribution of {package.name}")

    monkeypatch.setattr(environment, "made", absent)
    main = importlib.import_module("benchmarks.survey.__main__")
    import typer
    from typer.testing import CliRunner

    app = typer.Typer()
    app.command()(main.main)
    runner = CliRunner()
    assert runner.invoke(app, [str(tmp_path)]).exit_code == 2
    atlas_ref.save(tmp_path / "one.safetensors", *some("delta"))
    own = [str(tmp_path), "--more", str(tmp_path), "--only"]
    assert runner.invoke(app, [*own, "nobody"]).exit_code == 2
    stem = str(tmp_path / "page")
    done = runner.invoke(app, [*own, "opengdn", "--beside", "--json", "--write", stem])
    assert done.exit_code == 0, done.output
    data = json.loads((tmp_path / "page.json").read_text())
    assert json.loads(done.stdout) == data
    assert (tmp_path / "page.md").read_text() == page(data)
    assert data["set"]["cases"] == 1
    why = {row["missing"] for row in data["field"]["rows"]}
    assert why == {"no matching distribution of opengdn", "not asked yet"}
