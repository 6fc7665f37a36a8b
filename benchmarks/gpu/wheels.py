"""Install, without a network, the packages of wheels.txt that this Python lacks.

    python benchmarks/gpu/wheels.py WHEELS FOLDER

Runs on a bare Python, before anything of the project can be imported. Nothing is written but the
folder.
"""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
from pathlib import Path
from sys import version_info

LIST = Path(__file__).with_name("wheels.txt")


def wanted(lines: str) -> dict[str, str]:
    """Names with the least version that will do, empty for any."""
    names = [line.partition("#")[0].strip() for line in lines.splitlines()]
    return {name: least for name, _, least in (each.partition(">=") for each in names if each)}


def lacks(name: str, least: str) -> bool:
    """Whether a distribution is missing here, or older than it may be."""
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return True
    return bool(least) and numbers(found) < numbers(least)


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: 4.15.0rc1 -> (4, 15, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0].split("rc")[0])[:3])


def plain(name: str) -> str:
    """A name as wheels spell it."""
    return re.sub(r"[-_.]+", "_", name).lower()


def chosen(wheels: list[Path], names: dict[str, str]) -> tuple[list[Path], list[str]]:
    """Wheels of the names that are lacking, and the names for which no wheel was brought."""
    by_name = {plain(wheel.name.split("-")[0]): wheel for wheel in wheels}
    lacking = [name for name, least in names.items() if lacks(name, least)]
    return [by_name[plain(name)] for name in lacking if plain(name) in by_name], [
        name for name in lacking if plain(name) not in by_name
    ]


def main(wheels: Path, folder: Path) -> int:
    """Install into the folder, made anew; say what is missing."""
    some, missing = chosen(sorted(wheels.glob("*.whl")), wanted(LIST.read_text()))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if missing:
        print(
            f"gpu-wheels: not installed, and no wheel in {wheels}: {', '.join(missing)} (make "
            "gpu-wheels, where there is a network)"
        )
    if not some:
        return 0
    print(
        f"gpu-wheels: installed from {wheels} into {folder}: "
        f"{', '.join(wheel.name.split('-')[0] for wheel in some)}"
    )
    install = [
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--no-compile",
        "--disable-pip-version-check",
        "--target",
        str(folder),
    ]
    code = subprocess.run(
        [sys.executable, "-m", "pip", *install, *map(str, some)], check=False
    ).returncode
    if code:
        print(
            "gpu-wheels: pip refused them; for this Python: make gpu-wheels "
            f"GPU_PYTHON_VERSION={version_info[0]}.{version_info[1]}"
        )
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
