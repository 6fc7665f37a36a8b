"""The lowest versions that `make lowest` installs: those that pyproject.toml allows."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def bounds() -> list[str]:
    """What a build, a run and a test require, extras that the tests take among it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    found, waiting = [*project["build-system"]["requires"]], ["test"]
    found += project["project"]["dependencies"]
    while waiting:
        for requirement in extras[waiting.pop()]:
            if requirement.startswith("atlas-ref["):
                waiting += requirement.removeprefix("atlas-ref[").removesuffix("]").split(",")
            else:
                found.append(requirement)
    return found


def test_every_lower_bound_is_tested_and_nothing_else() -> None:
    """A bound that rises in one file rises in the other: a line of lowest.txt each, sorted."""
    assert all(requirement.count(">=") == 1 for requirement in bounds())
    lines = [
        line for line in (ROOT / "lowest.txt").read_text().splitlines() if not line.startswith("#")
    ]
    wanted = {requirement.replace(">=", "==") for requirement in bounds()}
    assert lines == sorted(wanted, key=str.lower)


def test_constraints_are_at_least_the_lower_bounds() -> None:
    """The pins that everything else is tested with lie within the bounds."""
    pins = dict(
        line.lower().replace("_", "-").split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    )

    def number(text: str) -> tuple[int, ...]:
        return tuple(map(int, text.split(".")))

    for requirement in bounds():
        name, low = requirement.lower().replace("_", "-").split(">=")
        assert number(pins[name]) >= number(low), name
