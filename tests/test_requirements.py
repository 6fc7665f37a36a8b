"""What make installs: every file has its hash, and every version is that of constraints.txt."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "requirements"

#: File -> the extras of the project whose requirements it holds, None where it is no extra's.
FILES: dict[str, str | None] = {"build": None, "runtime": "", "test": "test", "docs": "docs"}

MARKER = r"[a-z_]+ [<>=!]+ '[^']+'"
ENTRY = re.compile(rf"([A-Za-z0-9._-]+)==([^\s;]+)( ; {MARKER}(?: (?:and|or) {MARKER})*)? \\")
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")


class Pin(NamedTuple):
    version: str
    hashes: int


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text: str) -> dict[str, Pin]:
    """The packages of a file with hashes, in which nothing else may stand."""
    found: dict[str, Pin] = {}
    last, continued = "", False
    for line in text.splitlines():
        entry = ENTRY.fullmatch(line)
        assert bool(entry) != continued, line
        if entry:
            last = canonical(entry[1])
            assert last not in found, line
            found[last] = Pin(entry[2], 0)
        else:
            assert HASH.fullmatch(line), line
            found[last] = found[last]._replace(hashes=found[last].hashes + 1)
        continued = line.endswith("\\")
    assert not continued
    return found


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    rows = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonical(name): version for name, version in rows}


def needed(project: dict[str, Any], extra: str) -> set[str]:
    """Names that the project and one of its extras require, those of further extras too."""
    names: set[str] = set()
    waiting = [*project["dependencies"], *project["optional-dependencies"].get(extra, ())]
    while waiting:
        name, further = re.match(r"([A-Za-z0-9._-]+)(?:\[([a-z,]+)\])?", waiting.pop()).groups()
        if name == project["name"]:
            for each in further.split(","):
                waiting += project["optional-dependencies"][each]
        else:
            names.add(canonical(name))
    return names


@pytest.mark.parametrize("name", FILES)
def test_every_pin_has_hashes_and_is_that_of_the_constraints(name: str) -> None:
    held, versions = pins((FOLDER / f"{name}.txt").read_text()), constraints()
    assert held
    assert {package: pin.version for package, pin in held.items()} == {
        package: versions.get(package) for package in held
    }
    assert [package for package, pin in held.items() if not pin.hashes] == []


def test_every_file_is_one_that_make_installs() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"{name}.txt" for name in FILES}


@pytest.mark.parametrize("name", FILES)
def test_the_pins_hold_all_that_the_project_requires(name: str) -> None:
    """`make requirements` writes them anew where it asks for more."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extra = FILES[name]
    built = {re.match(r"[a-z]+", each)[0] for each in data["build-system"]["requires"]}
    names = built if extra is None else needed(data["project"], extra)
    assert len(names) >= 1
    assert names - pins((FOLDER / f"{name}.txt").read_text()).keys() == set()


@pytest.mark.parametrize(
    "text",
    [
        "numpy==2.4.6\n",
        "numpy==2.4.6 \\\n",
        "numpy>=2.4.6 \\\n    --hash=sha256:" + "0" * 64 + "\n",
        "numpy==2.4.6 \\\n    --hash=md5:" + "0" * 32 + "\n",
        "--find-links somewhere\n",
        "numpy==2.4.6 \\\n    --hash=sha256:" + "0" * 64 + "\n# a comment\n",
    ],
)
def test_a_line_without_a_hash_is_seen(text: str) -> None:
    with pytest.raises(AssertionError):
        pins(text)


def test_make_installs_nothing_without_a_hash_but_the_project_and_its_bench() -> None:
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", ".venv/.test", ".venv/.docs"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    installs = [line for line in done.stdout.splitlines() if "pip install" in line]
    project = "--no-deps --no-build-isolation --editable ."
    assert sum(line.endswith(project) for line in installs) == 1
    hashed = [line for line in installs if not line.endswith(project)]
    assert len(hashed) == 3
    for line in hashed:
        assert "--require-hashes" in line
        assert set(re.findall(r"-r (\S+)", line)) <= {f"requirements/{name}.txt" for name in FILES}
