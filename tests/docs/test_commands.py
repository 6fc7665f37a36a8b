"""The commands and code blocks of the documents: each command exists, each block runs.

Commands for a set of vectors are run too.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from atlas_ref.cli.main import program
from docs import command_line
from tests.support.page_blocks import blocks, done, run

ROOT = Path(__file__).parents[2]
FOLDERS = ("specs", "docs/pages", "examples", "vectors", "benchmarks")
PAGES = [
    *sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]),
    *(path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.md"))),
]
INDENTED = re.compile(r"^    (?:\$ )?((?:atlas-ref|make|pytest) .*(?:\\\n.*)*)$", re.MULTILINE)
#: A kernel that computes everything, since it is ours.
KERNEL = """import atlas_ref


def delta(case, inputs):
    made = atlas_ref.make(case, {f"in/{name}": value for name, value in inputs.items()})
    return dict(atlas_ref.evaluate(made, grad="y_bar" in inputs).tensors)
"""


def commands(path: Path, program: str) -> list[list[str]]:
    """The words of every line of a document that calls a program.

    A line joined by && is several; words behind # or two blanks are dropped.
    """
    lines = [match.replace("\\\n", " ") for match in INDENTED.findall(path.read_text())]
    parts = [
        part.strip()
        for line in lines
        for part in re.split(r" && ", re.split(r"\s#|\s{2,}", line)[0])
    ]
    return [shlex.split(part) for part in parts if part.split()[0] == program]


def shown() -> list[tuple[str, list[str]]]:
    """(file, words) of every indented call of the command line."""
    return [
        (path.relative_to(ROOT).as_posix(), words)
        for path in PAGES
        for words in commands(path, "atlas-ref")
    ]


def test_every_command_that_a_document_shows_is_one_that_the_program_takes() -> None:
    there = dict(command_line.commands(typer.main.get_command(program())))
    wrong = []
    for path, words in shown():
        command = there.get(words[1]) or there.get(" ".join(words[1:3]))
        if command is None:
            wrong.append(f"{path}: {' '.join(words)}: there is no command {words[1]}")
            continue
        known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
        wrong += [
            f"{path}: {' '.join(words)}: {word} is no option"
            for word in words[2:]
            if word.startswith("-") and word not in known
        ]
    assert wrong == []
    assert len(shown()) > 15


def test_the_page_of_the_command_line_has_every_command_with_every_option() -> None:
    page = command_line.page()
    there = dict(command_line.commands(typer.main.get_command(program())))
    assert {"check", "trace-spec", "vectors kill-matrix"} <= set(there)
    for name, command in there.items():
        part = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        assert part, name
        missing = [
            option
            for each in command.params
            for option in each.opts
            if option.startswith("-") and f"{option}" not in part
        ]
        assert missing == ["--help"] * ("--help" in missing), name


def test_every_target_of_make_that_a_document_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        (path.name, word)
        for path in PAGES
        for words in commands(path, "make")
        for word in words[1:]
        if "=" not in word
    }
    named |= {
        (path.name, word)
        for path in PAGES
        for words in re.findall(r"`make ([a-z -]+)`", path.read_text())
        for word in words.split()
    }
    ci = re.findall(r"^make (.*)$", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    named |= {(".ci/run", word) for words in ci for word in words.split()}
    assert {word for path, word in named if path == ".ci/run"} >= {
        "test",
        "slow",
        "trace",
        "docs",
        "docs-test",
    }
    assert sorted((path, word) for path, word in named if word not in targets) == []


@pytest.mark.slow
def test_the_commands_that_use_a_set_of_vectors_run(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/kernels.py").write_text(KERNEL)
    ran = 0
    page = ROOT / "specs/vectors.md"
    shown = [
        words
        for words in commands(page, "atlas-ref")
        if words[1] == "check" or words[1:3] == ["vectors", "list"]
    ]
    for words in [*shown, *commands(page, "pytest")]:
        module = (
            ["atlas_ref.cli"]
            if words[0] == "atlas-ref"
            else ["pytest", "-p", "no:cacheprovider", "-q"]
        )
        code, out = done([sys.executable, "-m", *module, *words[1:]], tmp_path)
        assert code == 0, f"{' '.join(words)}\n{out}"
        ran += 1
    assert ran == 3


@pytest.mark.parametrize(
    "path",
    [path for path in PAGES if path.parts[-2] != "tutorial"],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_every_other_block_of_code_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All code blocks but those of the README and the tutorial, which have tests of their own."""
    if path == ROOT / "README.md":
        assert blocks(path)
        return
    folder = path.parent
    for block in blocks(path):
        assert block.kind in ("python", "console"), (
            f"{path}: a block of {block.kind} that nothing runs"
        )
        if block.kind == "console":
            run(block, tmp_path)
            continue
        monkeypatch.syspath_prepend(folder)
        printed = run(
            block._replace(text=f"import sys\nsys.path.insert(0, {str(folder)!r})\n{block.text}"),
            tmp_path,
        )
        said = [
            line.rpartition("#")[2].strip()
            for line in block.text.split("\n")
            if line.startswith("print(") and "#" in line
        ]
        assert printed.split("\n")[: len(said)] == said


def test_documents_are_all_there() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    if not tracked:
        pytest.skip("no clone of git: which documents there are is not known")
    known = {path.relative_to(ROOT).as_posix() for path in PAGES}
    assert (
        sorted(name for name in tracked if name not in known and not name.startswith("tests/"))
        == []
    )
