"""What a command loads, and which way the imports of the oracle run: bounds that can only fall."""

from __future__ import annotations

import ast
import gc
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from atlas_ref.cli import output
from atlas_ref.forms.dplr import FORMS
from atlas_ref.on_demand import OnDemand
from atlas_ref.oracle.registry import ENTRIES, SUBJECTS
from atlas_ref.rules import FAMILY, RULES
from tests.support.casefiles import some, written
from tests.test_imports import FILES, imported

ROOT = Path(__file__).parents[1]
ORACLE = sorted((ROOT / "atlas_ref/oracle").rglob("*.py"))

#: Runs the command line, and prints how many modules of the package that has loaded.
COUNTED = """
import sys
from atlas_ref.cli.main import main
try:
    main()
except SystemExit as ended:
    assert ended.code == 0, ended.code
print(sum(name.split(".")[0] in ("atlas_ref", "tape") for name in sys.modules))
"""

#: Functions of upper floors that are named as text, of which no import tells (subjects/base/deferred.py).
DEFERRED = 17

#: Floors of the oracle, from the lowest: a room may import from its own floor and from those below.
#: What a subject is lies at the ground, and which ones there are, as text.
FLOORS = (
    (
        "cases",
        "registry",
        "sequences",
        "norms",
        "drawing",
        "subjects.subject",
        "subjects.base.calls",
        "subjects.base.search",
        "subjects.base.deferred",
        "family.arithmetic",
    ),
    (
        "family",
        "deep",
        "dplr",
        "tnt",
        "recurrences",
        "program",
        "serving",
        "subjects",
        "parameters",
        "regimes",
        "drawn_axes",
    ),
    ("evaluate", "schema", "family.mistake", "family.departures", "family.habits"),
    ("judge",),
    ("sources", "replay"),
    ("modules", "schedules", "sweep", "family.mistakes"),
    ("identify", "sequences.identify"),
    ("report",),
)


def loaded(*words: str | Path) -> int:
    """Modules of the package that a command has loaded when it ends."""
    ran = subprocess.run(
        [sys.executable, "-c", COUNTED, *map(str, words)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return int(ran.stdout.split()[-1])


def case_file(folder: Path, rule: str) -> Path:
    """A small case with our results."""
    from atlas_ref import evaluate, make

    case = make(*some(rule, tokens=4))
    results = evaluate(case).tensors
    return written(folder / f"{rule}.safetensors", case.header.plain(), {**case.inputs, **results})


@pytest.mark.parametrize(
    ("command", "rule", "bound"),
    [("new", "delta", 115), ("check", "delta", 162), ("identify", "dplr", 207)],
)
def test_a_command_loads_what_it_needs(command: str, rule: str, bound: int, tmp_path: Path) -> None:
    words = (
        [command, rule, "-o", tmp_path / "new.safetensors"]
        if command == "new"
        else [command, case_file(tmp_path, rule)]
    )
    assert loaded(*words) <= bound


def floor(name: str) -> int:
    """The floor of a module of the oracle: that of the longest name which it begins with."""
    own = name.removeprefix("atlas_ref.oracle.").removesuffix(".__init__")
    places = {
        room: number
        for number, rooms in enumerate(FLOORS)
        for room in rooms
        if own == room or own.startswith(f"{room}.")
    }
    return places[max(places, key=len)]


def test_no_import_of_the_oracle_runs_upward() -> None:
    rooms = [name for name in FILES if name.startswith("atlas_ref.oracle.")]
    rooms.remove("atlas_ref.oracle.__init__")
    upward = {
        (name, each)
        for name in rooms
        for each in imported(name, types=False) | in_functions(name)
        if each in rooms and floor(each) > floor(name)
    }
    assert upward == set()


def in_functions(name: str) -> set[str]:
    """Modules of the oracle that functions of a module import."""
    found = set()
    for node in ast.walk(ast.parse(FILES[name].read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    return found & FILES.keys()


def test_a_case_is_a_case_in_the_oracle() -> None:
    """No argument `case: Any`, and no class in the place of one."""
    texts = {path: path.read_text() for path in ORACLE}
    assert [path for path, text in texts.items() if "case: Any" in text] == []
    assert [path for path, text in texts.items() if "_Headed" in text] == []


def test_a_table_on_demand_knows_its_names_without_an_import() -> None:
    read: list[str] = []

    def value(module: object, name: str) -> str:
        read.append(name)
        return name.upper()

    table = OnDemand({"a": "json", "b": "no.such.module"}, value)
    assert (list(table), len(table), "b" in table, "c" in table) == (["a", "b"], 2, True, False)
    assert read == []
    assert (table["a"], table["a"], read, table.loaded) == ("A", "A", ["a"], {"a": "A"})
    with pytest.raises(ModuleNotFoundError):
        table["b"]
    with pytest.raises(KeyError):
        table["c"]


def test_what_is_known_of_a_subject_without_its_import_is_what_it_says() -> None:
    assert {name for name, rule in RULES.items() if rule.in_family} == set(FAMILY)
    assert ENTRIES["dplr"].forms == tuple(FORMS)
    for name, entry in ENTRIES.items():
        subject = SUBJECTS[name]
        assert (subject.name, set(subject.keys)) == (name, set(entry.keys))


def test_imports_of_a_command_are_no_garbage() -> None:
    """No collection while a command imports; what it has imported is left out of later ones."""
    gc.enable()
    counts = []
    for _ in range(2):
        with output.importing():
            assert not gc.isenabled()
            assert json.loads("[[[]]]")
        assert gc.isenabled()
        counts.append(gc.get_freeze_count())
    assert counts[0] > 0
    assert counts[1] <= counts[0]  # frozen once


def test_a_function_that_is_named_as_text_stands_there() -> None:
    """Imports that no reader of imports sees: each is there, and there are no more of them."""
    text = "".join(path.read_text() for path in ORACLE)
    places = set(re.findall(r'defer\(\s*"([\w.]+:\w+)"', text))
    assert 0 < len(places) <= DEFERRED
    for place in places:
        module, name = place.split(":")
        assert callable(getattr(importlib.import_module(f"atlas_ref.oracle.{module}"), name)), place
