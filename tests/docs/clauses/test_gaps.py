"""Gaps with file and line for a clause that is removed, renamed or left untested.

Shown in a copy of this repository and in a small one.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from docs.clauses import record
from docs.clauses.record import Record
from docs.clauses.trace import trace

ROOT = Path(__file__).parents[3]


def gaps(root: Path, found: Record | None = None) -> list[str]:
    return [str(gap) for gap in trace(root, found).gaps]


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, f"{path}: {text.count(old)} places read {old!r}"
    path.write_text(text.replace(old, new))


def line(path: Path, text: str) -> int:
    """The number of the line on which a text begins."""
    return path.read_text().split(text)[0].count("\n") + 1


# -- a copy of this repository, without a run ------------------------------------------------------


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for folder in ("specs", "tests", "atlas_ref", "tape", "docs"):
        shutil.copytree(
            ROOT / folder,
            tmp_path / folder,
            ignore=shutil.ignore_patterns("*.safetensors", "__pycache__"),
        )
    return tmp_path


@pytest.mark.slow
@pytest.mark.clause("TRACE-9")
def test_a_clause_that_is_removed_is_missed_by_code_and_tests(clone: Path) -> None:
    spec = clone / "specs/omega.md"
    text = spec.read_text()
    spec.write_text(re.sub(r"### OMEGA-13 .*?(?=\n## )", "", text, flags=re.DOTALL))
    found = gaps(clone)
    rule = clone / "atlas_ref/rules/omega.py"
    assert (
        f"atlas_ref/rules/omega.py:{line(rule, 'The state after an inactive')}: OMEGA-13: "
        "no spec has this clause"
    ) in found
    test = "test_gates_of_an_inactive_token_influence_nothing"
    assert any(
        gap.startswith("tests/rules/test_omega.py:") and f"OMEGA-13: {test} is marked" in gap
        for gap in found
    )


@pytest.mark.slow
@pytest.mark.clause("TRACE-9")
def test_a_clause_that_is_renamed_has_neither_code_nor_test(clone: Path) -> None:
    spec, other = clone / "specs/delta.md", f"DELTA-{99}"
    edit(spec, "### DELTA-4 Read", f"### {other} Read")
    found = gaps(clone)
    at = line(spec, f"### {other}")
    assert f"specs/delta.md:{at}: {other} Read: no test is marked with it" in found
    assert (
        f"specs/delta.md:{at}: {other} Read: no code names it, and it does not say why (**No "
        "code.** reason)"
    ) in found
    assert any(
        gap.startswith("atlas_ref/rules/delta.py:") and "DELTA-4: no spec has this clause" in gap
        for gap in found
    )


@pytest.mark.slow
@pytest.mark.clause("TRACE-9")
def test_a_clause_that_loses_its_tests_is_a_gap(clone: Path) -> None:
    for path in (clone / "tests").rglob("*.py"):
        text = path.read_text()
        if '"NS-14"' in text:
            path.write_text(
                re.sub(r'@pytest\.mark\.clause\("NS-14"\)\n|, "NS-14"|"NS-14", ', "", text)
            )
    spec = clone / "specs/newton_schulz.md"
    assert gaps(clone) == [
        (
            f"specs/newton_schulz.md:{line(spec, '### NS-14')}: NS-14 Cubic coefficients converge "
            "slowly: no test is marked with it"
        )
    ]


@pytest.mark.clause("TRACE-7")
def test_a_quoted_text_that_changes_is_a_gap_where_it_is_quoted(clone: Path) -> None:
    edit(
        clone / "specs/exact.md",
        "4.7 times the work of the sequential",
        "5 times the work of the sequential",
    )
    (found,) = gaps(clone)
    assert re.match(
        r"tests/forms/test_contained\.py:\d+: EXACT-16: quotes 'at \$c = C = 16\$", found
    )
    assert re.search(r"which specs/exact\.md:\d+ does not say$", found)


# -- a small repository, with a run ----------------------------------------------------------------

SPEC = """### TOY-1 Sum

The sum of two numbers.

### TOY-2 Names

**No code.** A list of names.
"""
CODE = '''"""A toy."""


def add(a, b):
    """TOY-1."""
    return a + b


def other():
    return 0
'''
TEST = """import importlib.util
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("toy", Path(__file__).parents[1] / "tape/toy.py")
toy = importlib.util.module_from_spec(spec)
spec.loader.exec_module(toy)


@pytest.mark.clause("TOY-1")
@pytest.mark.parametrize("a", range(20))
def test_add(a):
    assert toy.add(a, 2) == a + 2


@pytest.mark.clause("TOY-2")
def test_names():
    assert toy.__doc__ == "A toy."
"""
INI = (
    "[pytest]\naddopts = -p no:cacheprovider --import-mode=importlib\nmarkers =\n    clause: of "
    "it\n    slow: of it\n"
)

Toy = Callable[..., Path]


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    """Make the small repository, run its tests under the recorder, return its root."""

    def make(spec: str = SPEC, code: str = CODE, test: str = TEST, workers: int = 0) -> Path:
        for name, text in {
            "specs/toy.md": spec,
            "tape/toy.py": code,
            "tests/test_toy.py": test,
            "pytest.ini": INI,
        }.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "tests.support.trace_plugin",
            "--rootdir",
            str(tmp_path),
            "-n",
            str(workers),
            "tests",
        ]
        env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
        done = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        assert "recorded build/trace/run.json" in done.stdout, done.stdout + done.stderr
        return tmp_path

    return make


@pytest.mark.sample(1)
@pytest.mark.clause("TRACE-4", "TRACE-5")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_clause_whose_test_executed_its_code_is_no_gap(toy: Toy, workers: int) -> None:
    root = toy(workers=workers)
    found = trace(root, record.read(root))
    assert found.gaps == ()
    ((test, place),) = found.evidence["TOY-1"].proved
    assert (test.id, place.where, place.name) == (
        "tests/test_toy.py::test_add",
        "tape/toy.py:4",
        "add",
    )
    ran = json.loads((root / record.RECORD).read_text())["tests"]["tests/test_toy.py::test_add"]
    assert ran == {"clauses": ["TOY-1"], "passed": True, "lines": {"tape/toy.py": "6"}}


@pytest.mark.clause("TRACE-4")
def test_what_a_shared_fixture_executes_counts_for_every_test_that_asks_for_it(toy: Toy) -> None:
    shared = TEST.replace(
        (
            '@pytest.mark.clause("TOY-1")\n@pytest.mark.parametrize("a", range(20))\ndef '
            "test_add(a):\n    assert toy.add(a, 2) == a + 2\n"
        ),
        "@pytest.fixture(scope='module')\ndef added():\n    return toy.add(1, 2)\n\n\n"
        "def test_first(added):\n    assert added > 0\n\n\n"
        '@pytest.mark.clause("TOY-1")\ndef test_second(added):\n    assert added == 3\n',
    )
    root = toy(test=shared)
    found = trace(root, record.read(root))
    assert found.gaps == ()
    assert [test.name for test, _ in found.evidence["TOY-1"].proved] == ["test_second"]


@pytest.mark.clause("TRACE-5")
def test_a_clause_whose_tests_execute_other_code_is_a_gap(toy: Toy) -> None:
    root = toy(test=TEST.replace("toy.add(a, 2) == a + 2", "toy.other() == 0"))
    assert gaps(root, record.read(root)) == [
        "specs/toy.md:1: TOY-1 Sum: none of its 1 tests executed its code (tape/toy.py:4 ...)"
    ]


@pytest.mark.clause("TRACE-5")
def test_a_test_that_fails_proves_nothing(toy: Toy) -> None:
    root = toy(test=TEST.replace("== a + 2", "== 2"))
    assert gaps(root, record.read(root)) == [
        "specs/toy.md:1: TOY-1 Sum: none of its 1 tests executed its code (tape/toy.py:4 ...)"
    ]


@pytest.mark.clause("TRACE-6")
def test_a_clause_without_code_must_say_so_and_must_have_none(toy: Toy) -> None:
    root = toy(spec=SPEC.replace("**No code.** ", ""), code=CODE)
    assert gaps(root, record.read(root)) == [
        (
            "specs/toy.md:5: TOY-2 Names: no code names it, and it does not say why (**No code.** "
            "reason)"
        )
    ]
    root = toy(code=CODE.replace("return 0", "return 0  # TOY-2"))
    assert gaps(root, record.read(root)) == [
        "specs/toy.md:5: TOY-2 Names: says that it has no code, and tape/toy.py:9 names it"
    ]


@pytest.mark.clause("TRACE-8")
def test_a_case_exercises_and_a_mutant_changes_the_code_of_a_clause(toy: Toy) -> None:
    root = toy()
    found = record.read(root)
    mutants = (
        record.Mutant("by-place", "adds one more", "tape/toy.py", 4, ()),
        record.Mutant(
            "by-test", "another mistake", "tape/toy.py", 9, ("tests/test_toy.py::test_add",)
        ),
        record.Mutant("none", "unrelated", "tape/toy.py", 9, ("tests/test_toy.py::test_names",)),
    )
    vectors = {"a": {"tape/toy.py": frozenset({6})}, "b": {"tape/toy.py": frozenset({10})}}
    evidence = trace(root, found._replace(mutants=mutants, vectors=vectors)).evidence["TOY-1"]
    assert [each.name for each in evidence.mutants] == ["by-place", "by-test"]
    assert evidence.vectors == ("a",)


@pytest.mark.slow
@pytest.mark.clause("TRACE-10")
def test_the_command_reports_gaps_and_evidence(toy: Toy, cli: Callable[..., Any]) -> None:
    root = toy()
    ran = cli("trace-spec", "--root", root)
    assert (ran.code, ran.out.rstrip().endswith("no gap")) == (0, True)
    ran = cli("trace-spec", "--root", root, "TOY-1")
    told = (
        "TOY-1 Sum (specs/toy.md:1)\n  code     tape/toy.py:4 add\n  test     "
        "tests/test_toy.py::test_add\nno gap\n"
    )
    assert (ran.code, ran.out) == (0, told)
    root = toy(test=TEST.replace('@pytest.mark.clause("TOY-2")\n', ""))
    ran = cli("trace-spec", "--root", root)
    assert ran.code == 1
    assert ran.out.endswith("specs/toy.md:5: TOY-2 Names: no test is marked with it\n1 gap\n")
    ran = cli("trace-spec", "--root", root, "--json")
    assert (ran.code, ran.json["exit"]) == (1, 1)
    assert ran.json["gaps"] == [
        {"path": "specs/toy.md", "line": 5, "what": "TOY-2 Names: no test is marked with it"}
    ]
    assert ran.json["clauses"][0]["executed"] == [["tests/test_toy.py::test_add", "tape/toy.py:4"]]


@pytest.mark.clause("TRACE-10")
def test_the_command_refuses_what_it_cannot_report_on(
    toy: Toy, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    assert cli("trace-spec", "--root", tmp_path / "nowhere").code == 2
    root = toy()
    assert (
        cli("trace-spec", "--root", root, "TOY-7").err == "atlas-ref: CLAUSE: no spec has TOY-7\n"
    )
    (root / "tape/toy.py").write_text(CODE + "\n")
    ran = cli("trace-spec", "--root", root)
    assert ran.code == 2
    assert "recorded of other sources than these; `make trace` records anew" in ran.err
    (root / record.RECORD).unlink()
    assert (
        "no run of the tests is recorded; `make trace` records one"
        in cli("trace-spec", "--root", root).err
    )


@pytest.mark.clause("TRACE-4")
def test_sources_that_change_while_the_tests_run_are_not_those_of_the_record(toy: Toy) -> None:
    change = (
        'def test_change():\n    path = Path(__file__).parents[1] / "tape/toy.py"\n    '
        'path.write_text(path.read_text() + "\\n")\n'
    )
    root = toy(test=f"{TEST}\n\n{change}")
    with pytest.raises(record.RecordError, match="recorded of other sources than these"):
        record.read(root)


@pytest.mark.clause("TRACE-9")
def test_an_id_that_two_clauses_have_is_a_gap_where_the_second_stands(toy: Toy) -> None:
    root = toy()
    (root / "specs/zoo.md").write_text("# Zoo\n\n### TOY-1 Difference\n\nOf two numbers.\n")
    assert gaps(root, record.read(root)) == [
        "specs/zoo.md:3: TOY-1 Difference: specs/toy.md:1 has this id too"
    ]


@pytest.mark.clause("TRACE-10")
@pytest.mark.parametrize(
    ("path", "content", "said"),
    [
        ("tape/toy.py", b"def f(:\n", "tape/toy.py:1: not Python: invalid syntax"),
        (
            "tests/test_toy.py",
            b"x = 1\n  y = 2\n",
            "tests/test_toy.py:2: not Python: unexpected indent",
        ),
        ("specs/toy.md", b"### TOY-1 \xff\n", "specs/toy.md: not text in UTF-8"),
        ("specs/toy.md", b"# Nothing\n", "specs: no clause stands there, as `### FAMILY-1 Title`"),
        ("docs/x.md", b"\xff", "docs/x.md: not text in UTF-8"),
    ],
)
def test_a_clone_that_cannot_be_read_is_refused_in_one_line(
    path: str, content: bytes, said: str, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    for name, text in {
        "specs/toy.md": SPEC,
        "tape/toy.py": CODE,
        "tests/test_toy.py": TEST,
    }.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).write_bytes(content)
    record.write(tmp_path, Record({}))
    ran = cli("trace-spec", "--root", tmp_path)
    assert (ran.code, ran.out, ran.err) == (2, "", f"atlas-ref: {said}\n")
    ran = cli("trace-spec", "--root", tmp_path, "--json")
    assert (ran.code, ran.json) == (2, {"exit": 2, "bad_input": [said]})


@pytest.mark.clause("TRACE-4", "TRACE-10")
@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[]", "not a record of a run: list indices"),
        ("{", "not a record of a run: Expecting property name"),
        ('{"schema": 2}', "schema 2, expected 1; `make trace` records anew"),
        ('{"schema": 1}', "not a record of a run: 'tests' is missing; `make trace` records one"),
        (
            '{"schema": 1, "tests": {}, "vectors": {}, "mutants": []}',
            "not a record of a run: 'sources' is missing; `make trace` records one",
        ),
        (
            '{"schema": 1, "tests": {"a": {"clauses": [["b"]], "passed": true, "lines": {}}}}',
            "not a record of a run: clauses: ['b'] is no text",
        ),
    ],
)
def test_a_record_that_is_none_is_refused_in_one_line(
    content: str, said: str, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    (tmp_path / "specs").mkdir()
    (tmp_path / "run.json").write_text(content)
    ran = cli("trace-spec", "--root", tmp_path, "--record", tmp_path / "run.json")
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert ran.err.count("\n") == 1
