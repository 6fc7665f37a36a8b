"""The pytest plugin, in runs of pytest of its own."""

import os
import re
import tomllib
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

import atlas_ref
from atlas_ref.oracle.judge import xfail
from atlas_ref.oracle.report import failures
from atlas_ref.oracle.sources import sources
from tests.support import (
    deep_cases,
    deep_implementations,
    implementations,
    tnt_cases,
    tnt_implementations,
)
from tests.support.casefiles import PEERS, parts, some, written
from tests.support.expected import in_toml
from tests.support.golden import assert_golden
from tests.support.layer_cases import FEW, file_of

ROOT = Path(__file__).parents[1]


pytest_plugins = ["pytester"]

#: Imported here, since pytester forgets after each run what a run imported.
LOADED = (failures, implementations, sources, xfail)


class Ran(NamedTuple):
    returncode: int
    counts: dict[str, int]
    stdout: str
    stderr: str


@pytest.fixture
def project(pytester, monkeypatch):
    """Three cases, the second of another seed, and one test of the project's own."""
    (pytester.path / "cases").mkdir()
    for seed, name in enumerate(("one", "two", "three")):
        written(
            pytester.path / "cases" / f"{name}.safetensors",
            *some("delta", seed=seed, tokens=4, d_in=3, d_out=2, heads=1),
        )
    pytester.makepyfile(test_own="def test_own():\n    pass\n")
    pytester.makeini(
        "[pytest]\naddopts = --strict-markers --strict-config\nfilterwarnings = error\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests/support")]))
    monkeypatch.setenv("COLUMNS", "100")
    return pytester


def ran(project, *options, apart=False):
    """A run of pytest, in this process unless imports are at stake."""
    search = [] if "-q" in options or apart else ["--atlas-no-nearest"]
    words = [
        "-p",
        "atlas_ref.pytest_plugin",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:hypothesispytest",
        *search,
        *map(str, options),
    ]
    done = project.runpytest_subprocess(*words) if apart else project.runpytest_inprocess(*words)
    stdout = done.stdout.str()
    outcomes = done.parseoutcomes() if re.search(r"in \d+\.\d+s", stdout) else {}
    return Ran(
        int(done.ret),
        {name: number for name, number in outcomes.items() if name != "warnings"},
        stdout,
        done.stderr.str(),
    )


@pytest.mark.clause("SRC-20")
def test_one_test_per_case_beside_the_projects_own(project):
    found = ran(project, "--atlas-impl", "implementations:right", "--atlas-cases", "cases", "-v")
    assert (found.returncode, found.counts) == (0, {"passed": 4}), found.stdout + found.stderr
    for name in ("one", "two", "three"):
        assert f"cases/{name}.safetensors::{name} PASSED" in found.stdout
    found = ran(
        project, "--atlas-impl", "implementations:right", "--atlas-cases", "cases", "-m", "atlas"
    )
    assert (found.returncode, found.counts) == (0, {"passed": 3, "deselected": 1})
    found = ran(
        project, "--atlas-impl", "implementations:right", "--atlas-cases", "cases", "-k", "two"
    )
    assert found.counts == {"passed": 1, "deselected": 3}


@pytest.mark.clause("SRC-20", "LAYER-12")
def test_cases_of_layers_are_tests(project):
    (project.path / "layers").mkdir()
    for file in FEW:
        (project.path / "layers" / file.name).write_bytes(file.read_bytes())
    found = ran(project, "--atlas-cases", "layers", "-m", "atlas")
    assert (found.returncode, found.counts) == (0, {"passed": len(FEW), "deselected": 1})
    mine = ["--atlas-impl", "layer_implementations:another_eps", "--atlas-cases"]
    found = ran(project, *mine, file_of("rms_norm_tiny"), "-m", "atlas")
    assert (found.returncode, found.counts) == (1, {"failed": 1, "deselected": 1})
    assert "WRONG (layer rms_norm)" in found.stdout


@pytest.mark.clause("SRC-20", "DEEPCASE-11")
def test_a_deep_memory_is_a_test_of_the_plugin(project):
    made = deep_cases.made(**deep_implementations.REQUEST)
    written(project.path / "cases" / "one.safetensors", *parts(made))
    for function, counts in (("right", {"passed": 1}), ("gates_of_the_first_token", {"failed": 1})):
        mine = ["--atlas-impl", f"deep_implementations:{function}", "--atlas-cases"]
        found = ran(project, *mine, "cases/one.safetensors", "-m", "atlas")
        assert found.counts == {**counts, "deselected": 1}
    assert "WRONG (deep_memory)" in found.stdout


@pytest.mark.clause("SRC-20", "TNTCASE-11")
def test_a_tnt_is_a_test_of_the_plugin(project):
    made = tnt_cases.made(**tnt_implementations.REQUEST)
    written(project.path / "cases" / "one.safetensors", *parts(made))
    for function, counts in (("right", {"passed": 1}), ("never_reset", {"failed": 1})):
        mine = ["--atlas-impl", f"tnt_implementations:{function}", "--atlas-cases"]
        found = ran(project, *mine, "cases/one.safetensors", "-m", "atlas")
        assert found.counts == {**counts, "deselected": 1}
    assert "WRONG (tnt)" in found.stdout


@pytest.mark.clause("SRC-20", "CASE-27")
def test_a_wrong_implementation_fails_with_the_message_and_nothing_else(project):
    found = ran(
        project,
        "--atlas-impl",
        "implementations:wrong_from_3",
        "--atlas-cases",
        "cases/one.safetensors",
        "-m",
        "atlas",
        "-q",
    )
    assert (found.returncode, found.counts) == (1, {"failed": 1, "deselected": 1})
    text = re.sub(
        r"-?0x1\.[0-9a-f]+p[+-]\d+", "0x...", found.stdout.replace(str(project.path), "PROJECT")
    )
    text = re.sub(r"-?\d+\.\d{4,}(e[+-]\d+)?", lambda each: f"{float(each[0]):.3g}", text)
    text = re.sub(r"nearest .*", "nearest ...", text)
    assert_golden(
        "plugin_failure.txt",
        text[text.index("PROJECT/cases") : text.index("=====", text.index("PROJECT/cases"))],
    )
    assert "Traceback" not in found.stdout


@pytest.mark.clause("SRC-20")
@pytest.mark.parametrize(
    ("options", "code", "want"),
    [
        (
            ["--atlas-impl", "implementations:in_its_dtype", "--atlas-dtype", "bfloat16"],
            0,
            {"passed": 3},
        ),
        (["--atlas-impl", "implementations:brain", "--atlas-dtype", "float32"], 1, {"failed": 3}),
        (["--atlas-impl", "implementations:unsupported"], 0, {"skipped": 3}),
        (["--atlas-impl", "implementations:raises"], 1, {"failed": 3}),
        (["--atlas-impl", "implementations:unknown_name"], 1, {"failed": 3}),
        (["--atlas-impl", "implementations:memory_alone"], 1, {"failed": 3}),
        (["--atlas-impl", "implementations:memory_alone", "--atlas-only", "M"], 0, {"passed": 3}),
        (["--atlas-exec", "false {case} {out}"], 1, {"failed": 3}),
        (["--atlas-exec", "sleep 60 {case} {out}", "--atlas-timeout", "0.2"], 1, {"failed": 3}),
        (["--atlas-impl", "no_such_module:f"], 1, {"failed": 3}),
        ([], 1, {"failed": 3}),
    ],
)
def test_each_way_to_end(options, code, want, project):
    found = ran(project, "--atlas-cases", "cases", "-m", "atlas", *options)
    assert (found.returncode, found.counts) == (code, {**want, "deselected": 1}), (
        found.stdout + found.stderr
    )


@pytest.mark.clause("SRC-20", "CASE-23")
def test_without_an_implementation_recorded_results_are_compared(project):
    found = ran(project, "--atlas-cases", PEERS)
    assert (found.returncode, found.counts) == (0, {"passed": 21}), found.stdout + found.stderr


@pytest.mark.clause("SRC-16", "SRC-20")
def test_expected_failures(project):
    known = {"id": "one", "reason": "rounds twice", "expires": "2999-01-01"}
    late = {**known, "id": "two:out/y", "expires": "2020-01-01"}
    wrong = [
        "--atlas-impl",
        "implementations:wrong_from_3",
        "--atlas-cases",
        "cases",
        "-m",
        "atlas",
        "--atlas-xfail",
        "known.toml",
        "-rxfs",
    ]
    (project.path / "known.toml").write_text(in_toml(known, late))
    found = ran(project, *wrong)
    assert found.counts == {"failed": 2, "xfailed": 1, "deselected": 1}
    assert "xfail two:out/y: expired on 2020-01-01: rounds twice" in found.stdout
    assert "rounds twice" in found.stdout
    right = [word.replace("wrong_from_3", "right") for word in wrong]
    (project.path / "known.toml").write_text(in_toml(known))
    found = ran(project, *right)
    assert found.counts == {"failed": 1, "passed": 2, "deselected": 1}
    assert "xfail one: passes; remove the entry (rounds twice)" in found.stdout
    for identity, words in (
        ("absent", "xfail absent: no such case"),
        ("one:out/S", "xfail one:out/S: no such case or tensor was checked"),
    ):
        (project.path / "known.toml").write_text(in_toml({**known, "id": identity}))
        found = ran(project, *wrong)
        assert found.returncode != 0
        assert words in found.stdout + found.stderr


@pytest.mark.clause("SRC-20")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--atlas-impl", "a:b"], "--atlas-impl needs --atlas-cases"),
        (["--atlas-exec", "a"], "--atlas-exec needs --atlas-cases"),
        (["--atlas-cases", "absent"], "no such file or folder"),
        (["--atlas-cases", "x" * 300], "no such file or folder"),
        (
            ["--atlas-cases", "cases", "--atlas-impl", "a:b", "--atlas-exec", "c"],
            "--atlas-impl and --atlas-exec: one source of results at a time",
        ),
        (["--atlas-cases", "cases", "--atlas-exec", "true"], "exec: {case} is needed"),
        (["--atlas-cases", "cases", "--atlas-only", "Z"], "only: out/Z: no rule has such a result"),
        (["--atlas-cases", "cases", "--atlas-xfail", "absent.toml"], "absent.toml: no such file"),
    ],
)
def test_options_that_do_not_fit_are_a_usage_error(options, words, project):
    found = ran(project, *options)
    assert found.returncode == 4, found.stdout
    assert words in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.clause("SRC-20")
def test_verdicts_are_properties_of_the_junit_report(project):
    ran(
        project,
        "--atlas-impl",
        "implementations:right",
        "--atlas-cases",
        "cases",
        "--junit-xml",
        "out.xml",
    )
    text = (project.path / "out.xml").read_text()
    assert text.count('<property name="out/y" value="PASS"') == 3


@pytest.mark.slow
@pytest.mark.clause("SRC-20")
def test_it_runs_on_several_processes_and_collects_each_case_once(project):
    found = ran(
        project,
        "--atlas-impl",
        "implementations:right",
        "--atlas-cases",
        "cases",
        "--atlas-cases",
        "cases",
        "-n",
        "2",
        ".",
        apart=True,
    )
    assert (found.returncode, found.counts) == (0, {"passed": 4}), found.stdout + found.stderr


@pytest.mark.clause("SRC-20")
def test_without_its_options_it_imports_nothing(project):
    (project.path / "test_own.py").write_text(
        "import sys\n\ndef test_own():\n    assert 'atlas_ref.pytest_plugin' in sys.modules\n"
        "    assert {name for name in sys.modules if name.startswith('atlas_ref.')} == "
        "{'atlas_ref.pytest_plugin'}\n"
        "    assert 'numpy' not in sys.modules\n"
    )
    found = ran(project, apart=True)
    assert (found.returncode, found.counts) == (0, {"passed": 1}), found.stdout + found.stderr


@pytest.mark.clause("SRC-20")
def test_the_package_announces_the_plugin():
    announced = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][
        "pytest11"
    ]
    assert announced == {"atlas_ref.pytest_plugin": "atlas_ref.pytest_plugin"}
    assert callable(import_module(announced["atlas_ref.pytest_plugin"]).pytest_addoption)
    assert atlas_ref.__version__


@pytest.mark.clause("SRC-20", "VEC-14")
def test_a_target_takes_its_vectors_alone(project):
    words = ["--atlas-set", "v1", "-m", "atlas", "--atlas-impl", "implementations:right"]
    found = ran(project, *words, "--atlas-target", "delta", "-v", "--atlas-dtype", "float32")
    names = set(re.findall(r"::(\S+) (?:PASSED|FAILED|SKIPPED)", found.stdout))
    assert names == {
        f"delta-{topic}" for topic in ("rows", "pulsed", "edges", "repeated", "gradient-1")
    }
    both = ran(project, *words, "--atlas-target", "delta", "--atlas-target", "hebbian")
    assert sum(both.counts.values()) - both.counts["deselected"] == 10
    for options, message in (
        ([*words, "--atlas-target", "detla"], "target 'detla' does not exist; targets are"),
        (["--atlas-target", "delta"], "--atlas-target belongs to --atlas-set"),
        ([*words, "--atlas-without", "rowz"], "without: feature 'rowz' does not exist"),
    ):
        refused = ran(project, *options)
        assert refused.returncode == 4
        assert message in refused.stderr


@pytest.mark.clause("SRC-20", "SRC-21")
def test_what_an_implementation_does_not_have_is_skipped(project):
    words = ["--atlas-set", "v1", "--atlas-target", "delta", "-m", "atlas", "-rs"]
    found = ran(
        project, *words, "--atlas-impl", "implementations:raises", "--atlas-without", "rows,reset"
    )
    assert found.counts == {"failed": 3, "skipped": 2, "deselected": 1}
    assert "skipped: without rows" in found.stdout
    assert "skipped: without reset" in found.stdout
    assert "repeat with   pytest --atlas-cases v1:delta-edges " in found.stdout
    again = re.search(r"repeat with +pytest (--atlas-cases v1:delta-edges .*)", found.stdout)
    assert again is not None
    assert "--atlas-without rows,reset" in again[1]
    assert ran(project, *again[1].split()).counts == {"failed": 1, "deselected": 1}
