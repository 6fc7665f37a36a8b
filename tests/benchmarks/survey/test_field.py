"""The scoreboard: its catalogue, a stand-in package asked in a process of its own, and its rows."""

import ast
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.dplr.members import MEMBERS
from atlas_ref.rules import RULES
from benchmarks.survey.field import environment, field
from benchmarks.survey.field.environment import PATH, AbsentError, Environment
from benchmarks.survey.field.packages import Entry, Package, chosen, packages
from benchmarks.survey.field.scores import of_target, worst
from benchmarks.survey.pages import field as table
from benchmarks.survey.pages.page import page
from docs import run_tables

ROOT = Path(__file__).parents[3]
DATA = ROOT / "specs" / "survey.json"
CATALOGUE = packages()

#: A package of one file: a kernel of the delta rule, and four that fail each in its own way.
STAND_IN = """
import numpy as np
from kernels import Kernel


def delta(q, k, v, beta, initial_state=None):
    B, T, H, D = k.shape
    S = np.zeros((B, H, D, v.shape[-1]), k.dtype) if initial_state is None else initial_state
    y = np.zeros(v.shape, v.dtype)
    for t in range(T):
        error = v[:, t] - np.einsum("bhd,bhde->bhe", k[:, t], S)
        S = S + np.einsum("bhd,bhe->bhde", k[:, t], beta[:, t, :, None] * error)
        y[:, t] = np.einsum("bhd,bhde->bhe", q[:, t] * D**-0.5, S)
    return y, S


def doubled(**x):
    y, S = delta(**x)
    return 2 * y, S


def raising(**x):
    raise RuntimeError("out of tiles")


ARGUMENTS = {"q": "q", "k": "k", "v": "v", "beta": "beta", "initial_state": "M0"}
right = Kernel(delta, ARGUMENTS, "delta")
wrong = Kernel(doubled, ARGUMENTS, "delta")
broken = Kernel(raising, ARGUMENTS, "delta")
"""


# -- the catalogue ---------------------------------------------------------------------------------


@pytest.mark.parametrize("package", CATALOGUE, ids=lambda package: package.name)
def test_every_package_is_pinned_and_its_functions_are_there(package):
    assert package.pinned
    for entry in package.entries:
        module, colon, name = entry.adapter.partition(":")
        assert colon
        if package.program:
            assert (PATH[1] / package.program).parent.name == module, entry.adapter
            assert (PATH[1] / package.program).is_file()
        else:
            files = [folder / f"{module}.py" for folder in PATH[1:]]
            found = [file for file in files if file.exists()]
            assert len(found) == 1, entry.adapter
            assert name in bound(found[0]), entry.adapter
        rule, _, member = entry.target.partition("-")
        assert rule in (*RULES, "newton_schulz", "dplr")
        assert (member in MEMBERS) == (rule == "dplr")


def bound(file):
    """Names that a module binds at its top."""
    tree = ast.parse(file.read_text())
    nodes = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    targets = [node.targets if isinstance(node, ast.Assign) else [node.target] for node in nodes]
    places = [each for row in targets for target in row for each in ast.walk(target)]
    names = {each.id for each in places if isinstance(each, ast.Name)}
    return names | {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_catalogue_has_the_field():
    """The implementations with a convention, and more than as many of members."""
    entries = [entry for package in CATALOGUE for entry in package.entries]
    assert len(CATALOGUE) >= 20
    assert len(entries) >= 45
    assert len({(entry.adapter, entry.target) for entry in entries}) == len(entries)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[x]\npins = ["x==1"]\nwheels = 1\n[x.functions]\n', "wheels: no such key"),
        ('[x]\npins = ["y==1"]\n[x.functions]\n', "first pin is x==VERSION"),
        ('[x]\npins = ["x==1", "torch"]\n[x.functions]\n', "torch: a pin has =="),
        ('[x]\npins = ["x==1"]\n[x.functions]\n', "no function"),
        ('[x]\npins = ["x==1"]\n[x.functions]\n"a:b" = { entry = "f" }\n', "has no target"),
        (
            '[x]\npins = ["x==1"]\n[x.functions]\n"a:b" = { entry = "f", target = "t", speed = 1 }\n',
            "speed: no such key",
        ),
    ],
)
def test_a_malformed_catalogue_is_refused(text, said, tmp_path):
    (tmp_path / "packages.toml").write_text(text)
    with pytest.raises(ValueError, match=said):
        packages(tmp_path / "packages.toml")


def test_an_unknown_package_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="nobody: no such package; there are fla-core, "):
        chosen(CATALOGUE, ["nobody"])
    assert [each.name for each in chosen(CATALOGUE, ["optax"])] == ["optax"]


# -- a stand-in package ----------------------------------------------------------------------------


def vectors():
    """Three cases of the delta rule: two that the stand-in takes, and one that it does not."""
    sizes = {"rule": "dplr", "tokens": 5, "d_in": 4, "d_out": 3, "heads": 2}
    cases = [new(Request(**sizes, parameters={"member": "delta"}, seed=seed)) for seed in range(2)]
    cases.append(new(Request(**sizes, parameters={"member": "delta", "k_norm": "l2"})))
    other = new(Request(**sizes, parameters={"member": "linear_attn"}))
    return [*cases, other]


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """The package in a folder, and an environment that is this one."""
    (tmp_path / "stand_in_kernels.py").write_text(STAND_IN)
    monkeypatch.setattr(field, "PATH", (*PATH, tmp_path))
    return lambda package: Environment(Path(sys.executable), {"stand-in": "1.2+cpu"})


def asked(making, *names, **options):
    entries = tuple(Entry(f"stand_in_kernels:{name}", name, "dplr-delta") for name in names)
    package = Package("stand-in", ("stand-in==1.2",), entries)
    return field.asked_of(package, vectors(), making=making, **options)


def test_a_function_is_asked_in_a_process_of_its_own_and_counted(stand_in):
    (row,) = asked(stand_in, "right")
    assert (row["version"], row["convention"]) == ("1.2", "delta")
    assert (row["vectors"], row["asked"], row["passed"]) == (3, 2, 2)
    assert float(row["worst"]) < 1
    assert list(row["gradients"]) == [0, 0]
    assert (row["failing"], sum(row["lacks"].values())) == ({}, 1)
    assert "k_norm l2" in next(iter(row["lacks"]))


def test_what_fails_says_how_and_stops_no_other(stand_in):
    wrong, broken, absent, right = asked(stand_in, "wrong", "broken", "nowhere", "right")
    assert wrong["failing"]["WRONG"]["cases"] == 2
    assert wrong["failing"]["WRONG"]["why"] == "out/y"
    assert float(wrong["worst"]) > 1
    assert "out of tiles" in broken["failing"]["FAILED"]["why"]
    assert (broken["asked"], broken["passed"], broken["worst"]) == (2, 0, "-")
    assert "nowhere" in absent["missing"]
    assert right["passed"] == 2


def test_what_cannot_be_installed_is_a_row_for_each_function_that_says_why():
    def making(package):
        raise AbsentError("No matching distribution found")

    rows = asked(making, "right", "wrong")
    assert [row["missing"] for row in rows] == ["No matching distribution found"] * 2
    assert [row["version"] for row in rows] == ["1.2"] * 2


def test_what_else_is_asked_runs_beside_the_scores(stand_in):
    seen = []
    asked(stand_in, "right", also=lambda entry, version, source: seen.append((entry, version)))
    assert [(entry.entry, version) for entry, version in seen] == [("right", "1.2")]


# -- environments ----------------------------------------------------------------------------------


def test_an_environment_is_made_once_for_its_pins(tmp_path, monkeypatch):
    commands = []

    def run(words):
        commands.append(words)
        if "venv" in words:
            (Path(words[-1]) / "bin").mkdir(parents=True)
            python = Path(words[-1]) / "bin" / "python"  # a link would be another environment
            python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
            python.chmod(0o755)

    monkeypatch.setattr(environment, "_run", run)
    package = Package("numpy", ("numpy==2.1", "torch==2.13.0"), (), alone=True)
    for _ in range(2):
        assert environment.made(package, tmp_path).version("NumPy") == np.__version__
    assert len(commands) == 3
    assert commands[1][-1] == "torch==2.13.0"
    assert commands[2][-2:] == ["--ignore-requires-python", "numpy==2.1"]
    environment.made(package._replace(pins=("numpy==2.2",)), tmp_path)
    assert len(commands) == 6


def test_a_package_whose_python_is_not_here_says_so(tmp_path):
    with pytest.raises(AbsentError, match=r"it needs Python 9\.9"):
        environment.made(Package("x", ("x==1",), (), python="9.9"), tmp_path)


def test_a_reason_is_the_error_of_pip_without_addresses_and_places():
    said = "WARNING: one\nERROR: Could not find x from https://example.invalid/x in /home/a/b\nERROR: no"
    assert environment.reason(said) == "ERROR: Could not find x from ... in ..."
    assert environment.reason("") == "it said nothing"
    assert len(environment.reason("ERROR: " + "x" * 1000)) == environment.LONGEST


# -- rows ------------------------------------------------------------------------------------------


def test_rows_that_were_not_asked_stand_as_an_earlier_run_left_them():
    entries = tuple(Entry(f"m:{name}", name, "dplr-delta") for name in "abc")
    package = Package("x", ("x==1",), entries)
    rows = [
        {**field.said(package, entry), "date": "2020-01-01", "asked": 1} for entry in entries[:2]
    ]
    now = [
        {**field.said(package, entries[0]), "asked": 2},
        {**field.said(package, entries[1]), "missing": "no network"},
    ]
    first, second, third = field.together([package], now, rows)
    assert first["asked"] == 2
    assert (second["date"], second["asked"]) == ("2020-01-01", 1)
    assert third["missing"] == "not asked yet"


def test_the_largest_error_is_in_tolerances():
    case = atlas_ref.Comparison("c", "out/y", "PASS", error=1.0, tolerance=4.0, got=1.0)
    assert worst([case, case._replace(error=2.0)]) == "0.5"
    lost = case._replace(error=None, tolerance=None, got=float("nan"))
    assert worst([case, lost]) == "not finite"
    assert worst([]) == "-"


def test_vectors_are_those_of_the_rule_or_of_the_member():
    cases = vectors()
    assert of_target("dplr-linear_attn", cases) == cases[3:]
    assert of_target("dplr", cases) == cases
    assert of_target("delta", cases) == []


def test_every_row_of_the_data_has_a_pin_and_results_or_a_reason():
    rows = json.loads(DATA.read_text())["field"]["rows"]
    entries = [(package, entry) for package in CATALOGUE for entry in package.entries]
    assert [field.key(row) for row in rows] == [
        (package.name, entry.adapter, entry.target) for package, entry in entries
    ]
    for row, (package, _) in zip(rows, entries, strict=True):
        assert row["version"] == package.pinned
        assert bool(row.get("missing")) != ("asked" in row)
        assert row.get("passed", 0) <= row.get("asked", 0) <= row.get("vectors", 0)


def test_the_page_has_a_line_for_each_row():
    data = json.loads(DATA.read_text())
    text = page(data)
    lines = table.lines(data["field"]["rows"], data["date"])
    assert len(lines) == len(data["field"]["rows"])
    for line in lines:
        assert "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" in text
    own = table.packages(data["field"]["rows"])
    assert [line[0].split()[0] for line in own] == [package.name for package in CATALOGUE]


def test_the_site_shows_the_field_second_and_every_function_on_a_page():
    start = (ROOT / "docs" / "pages" / "index.md").read_text()
    headings = [line for line in start.splitlines() if line.startswith("## ")]
    assert headings[0] == "## What the field computes"
    assert "<!-- table: field_packages -->" in start
    nav = (ROOT / "mkdocs.yml").read_text().partition("nav:\n  - Start: index.md\n")[2]
    assert nav.startswith("  - The field, asked: tables/field.md\n")
    assert "<!-- table: field -->" in (ROOT / "docs/pages/tables/field.md").read_text()
    rows = json.loads(DATA.read_text())["field"]["rows"]
    whole = run_tables.field(None, "tables/field.md")
    assert whole.count("\n") == len(rows) + 2
    short = run_tables.field_packages(None, "index.md")
    asked = [row for row in rows if "missing" not in row]
    assert f"took {sum(row['asked'] for row in asked):,} cases" in short
    for package in CATALOGUE:
        assert f"| {package.name} {package.pinned} |" in whole
        assert f"| {package.name} {package.pinned} |" in short
