"""An environment for each package: build/survey/NAME, made by pip or npm from the package's pins.

A package that needs another NumPy, Python or PyTorch than its neighbour stops nobody. What cannot
be installed says why, in the words of these.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks.survey.field.packages import Package

ROOT = Path(__file__).parents[3]

#: Where environments are made.
PLACE = ROOT / "build" / "survey"

#: Folders that adapters are imported from, and this package itself.
PATH = (ROOT, ROOT / "examples" / "adapters", ROOT / "examples" / "adapters" / "public")

#: Characters of a reason.
LONGEST = 160

#: Seconds that pip or npm has for one package.
PATIENCE = 1800.0

VERSIONS = """import importlib.metadata, json
print(json.dumps({each.name.lower(): each.version for each in importlib.metadata.distributions()}))
"""


class AbsentError(Exception):
    """A package cannot be had here, and why."""


class Environment(NamedTuple):
    """An interpreter and what it can import.

    Attributes:
        python: of Python, or Node.
        versions: of what is installed, by name.
        modules: the folder of packages of npm.
    """

    python: Path
    versions: Mapping[str, str]
    modules: Path | None = None

    def version(self, package: str) -> str:
        """The installed version of a package, without the name of a build; empty without it."""
        return self.versions.get(package.lower(), "").partition("+")[0]


def made(package: Package, place: Path = PLACE) -> Environment:
    """The environment of a package, made where there is none of these pins.

    Raises:
        AbsentError: its Python or Node is not here, or pip or npm refuses, in its words.
    """
    if package.program:
        return _of_npm(package, place)
    folder = place / package.name
    python, stamp = folder / "bin" / "python", folder / "pins.json"
    asked = json.dumps([package.pins, package.python, package.alone, _beside()])
    if not stamp.exists() or stamp.read_text() != asked:
        shutil.rmtree(folder, ignore_errors=True)
        _run([_interpreter(package.python), "-m", "venv", str(folder)])
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, *_beside(), *package.pins[int(package.alone) :]])
        if package.alone:
            _run([*pip, "--no-deps", "--ignore-requires-python", package.pins[0]])
        stamp.write_text(asked)
    said = subprocess.run(
        [str(python), "-c", VERSIONS], capture_output=True, text=True, check=True, env=_clean()
    )
    return Environment(python, json.loads(said.stdout))


def _of_npm(package: Package, place: Path) -> Environment:
    """The same of a package of npm, without scripts: those fetch what a CPU does not need."""
    folder = place / package.name
    node, npm = (shutil.which(program) for program in ("node", "npm"))
    if node is None or npm is None:
        raise AbsentError("it needs Node and npm, which are not on the path")
    stamp, asked = folder / "pins.json", json.dumps(package.pins)
    if not stamp.exists() or stamp.read_text() != asked:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        pins = [pin.replace("==", "@") for pin in package.pins]
        quiet = ("--ignore-scripts", "--no-audit", "--no-fund", "--silent")
        _run([npm, "install", "--prefix", str(folder), *quiet, *pins])
        stamp.write_text(asked)
    modules = folder / "node_modules"
    named = json.loads((modules / package.name / "package.json").read_text())
    return Environment(Path(node), {package.name.lower(): named["version"]}, modules)


def _beside() -> list[str]:
    """What atlas-ref itself needs, which answers cases there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return list(project["dependencies"])


def _interpreter(version: str) -> str:
    if not version:
        return sys.executable
    found = shutil.which(f"python{version}")
    if found is None:
        raise AbsentError(f"it needs Python {version}, which is not on the path")
    return found


def _clean() -> dict[str, str]:
    """The variables of this process without what leads to other packages."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def _run(words: list[str]) -> None:
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=PATIENCE, env=_clean(), check=False
        )
    except subprocess.TimeoutExpired:
        raise AbsentError(f"{Path(words[0]).name} did not end within {PATIENCE:g} s") from None
    if done.returncode:
        raise AbsentError(reason(done.stderr or done.stdout))


def reason(output: str) -> str:
    """Why pip failed, in its own words: short, without addresses and places of this machine."""
    lines = [" ".join(line.split()) for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(ERROR|error|\w*Error)\b", line)]
    known = [line for line in lines if "Requires-Python" in line or "equires" in line]
    words = next(iter([*errors, *known, *lines[-1:]]), "it said nothing")
    words = re.sub(r"\w+://\S+|(?<!\S)/\S+", "...", words)
    return words if len(words) <= LONGEST else words[: LONGEST - 3] + "..."
