"""Every code block of the README, run in order in one empty folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
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
    assert [block.kind for block in found] == ["python", "console", "python", "console"]
    assert [block.title for block in found] == ["kernel.py", "", "", ""]
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
    assert codes == [0, 1, 0, 0, 1]
    assert {"WRONG", "DELTA-2", "decay=before_error:"} <= set(printed[1].split())
    assert lines(printed[1]) == lines(shown(found[1].text))
    assert set(lines(shown(found[3].text))) <= set(lines("".join(printed[3:])))
    assert len(shown(found[3].text).splitlines()) == 2


def test_the_readme_begins_with_a_kernel_of_ten_lines_and_is_short() -> None:
    kernel = blocks(README)[0].text
    assert len(kernel[kernel.index("def ") :].splitlines()) <= 10
    assert len(README.read_text().split()) <= 700


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
            (name,) = (each for each in RECORDED if each in header)
            found.add(name)
    assert found == set(RECORDED)
    word = re.search(r"results of (\w+) public implementations", README.read_text())
    assert word is not None
    assert word[1] == WORDS[len(found)]


def test_the_readme_leads_to_every_spec() -> None:
    text = README.read_text()
    assert [
        path.name
        for path in sorted((README.parent / "specs").glob("*.md"))
        if f"(specs/{path.name})" not in text
    ] == []
