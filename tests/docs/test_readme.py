"""Every code block of the README, run in order in one empty folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

from safetensors import safe_open

from tests.support.page_blocks import blocks

README = Path(__file__).parents[2] / "README.md"
FIGURE = re.compile(r"-?0x[0-9a-fp.+-]+|-?\d+\.\d+(?:e[+-]\d+)?")


def test_every_block_of_the_readme_runs_and_prints_what_it_says(tmp_path: Path) -> None:
    """A comparison without digits, since the last ones of an error depend on the processor.

    A block shows all that its last command prints, or some lines of what its commands print.
    """
    found = blocks(README)
    assert [block.kind for block in found] == ["python", "console"]
    assert [block.title for block in found] == ["kernel.py", ""]
    codes, printed = [], []
    for block in found:
        if block.title:
            (tmp_path / block.title).write_text(block.text)
            continue
        for command in commands(block.kind, block.text):
            done = subprocess.run(
                command, capture_output=True, text=True, cwd=tmp_path, env=ENV, check=False
            )
            assert done.stderr == "" or done.returncode == 0, done.stderr
            printed.append(done.stdout)
            codes.append(done.returncode)
    assert codes == [0, 1]
    assert {"WRONG", "DELTA-2", "decay=before_error:"} <= set(printed[1].split())
    assert lines(printed[1]) == lines(shown(found[1].text))


def test_the_readme_begins_with_a_kernel_of_ten_lines_and_is_short() -> None:
    kernel = blocks(README)[0].text
    assert len(kernel[kernel.index("def ") :].splitlines()) <= 10
    assert len(README.read_text().split()) <= 500


#: Our package, and the folder in which the commands run.
ENV = {**os.environ, "PYTHONPATH": os.pathsep.join([str(README.parent), "."])}


def shown(text: str) -> str:
    """What a console block says that its commands print."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("$ "))


def commands(kind: str, text: str) -> list[list[str]]:
    """The command lines of a block, for this Python."""
    if kind == "python":
        return [[sys.executable, "-c", text]]
    words = [shlex.split(line)[1:] for line in text.splitlines() if line.startswith("$ ")]
    assert {each[0] for each in words} == {"atlas-ref"}
    return [[sys.executable, "-m", "atlas_ref.cli", *each[1:]] for each in words]


def lines(text: str) -> list[str]:
    """Printed lines without digits of decimals and without the rules and blanks that fit a table to
    them.
    """
    return [
        " ".join(FIGURE.sub("#", line).strip("┏┳┓┡╇┩└┴┘━─").split())
        for line in text.strip().splitlines()
    ]


def test_the_readme_names_only_files_that_exist() -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", README.read_text())
    assert len(links) > 10
    assert [link for link in links if not (README.parent / link).exists()] == []


#: Words for small numbers.
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")

#: Public implementations of which `make oracle` has recordings, by what their headers say.
RECORDED = ("atlas-rnn", "Atlas-MAG", "titans-pytorch", "fla-core", "transformers")


def test_the_readme_counts_the_public_implementations_of_make_oracle() -> None:
    folders = re.findall(r"tests/data/peers\w*", (README.parent / "Makefile").read_text())
    found = set()
    for folder in dict.fromkeys(folders):
        for path in (README.parent / folder).glob("*.safetensors"):
            with safe_open(path, "np") as file:
                header = file.metadata()["atlas_ref"]
            if '"kind": "schedule"' in header:  # of a longhand reference, which is no package
                continue
            (name,) = (each for each in RECORDED if each in header)
            found.add(name)
    assert found == set(RECORDED)
    word = re.search(r"results of (\w+) public implementations", README.read_text())
    assert word is not None
    assert word[1] == WORDS[len(found)]


def test_the_index_leads_to_every_spec_and_to_nothing_that_is_not_there() -> None:
    index = README.parent / "docs" / "contents.md"
    assert "(docs/contents.md)" in README.read_text()
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", index.read_text())
    assert [link for link in links if not (index.parent / link).exists()] == []
    assert [
        path.name
        for path in sorted((README.parent / "specs").glob("*.md"))
        if f"../specs/{path.name}" not in links
    ] == []


#: Names by which people look for a kernel.
NAMES = ("DeltaNet", "Gated DeltaNet", "KDA", "GLA", "RWKV-7", "Mamba-2", "Titans", "Atlas", "TTT")


def test_the_first_screen_asks_the_question_and_names_what_people_look_for() -> None:
    first = README.read_text().split("## ")[0]
    assert "Is your kernel right" in first
    assert [name for name in NAMES if name not in first] == []
    extras = tomllib.loads((README.parent / "pyproject.toml").read_text())["project"]
    names = set(extras["optional-dependencies"]) - {"docs", "test", "bench"}
    assert [name for name in sorted(names) if f"`{name}`" not in README.read_text()] == []
