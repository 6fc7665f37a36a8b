"""What `make bench-gpu` installs without a network: the lacking packages alone, and a word about
those not brought.
"""

from __future__ import annotations

import importlib.metadata
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import wheels

ROOT = Path(__file__).parents[3]
NAMES = wheels.wanted(wheels.LIST.read_text())


def test_the_list_covers_what_the_package_needs_at_run_time() -> None:
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    listed = {wheels.plain(name) for name in NAMES} | {"numpy"}  # NumPy comes with CuPy
    assert {wheels.plain(need.partition(">=")[0]) for need in needs} <= listed


def test_the_list_is_complete_where_it_is_installed() -> None:
    """Completeness of the list: every requirement of a listed package is listed or expected on the
    machine.
    """
    given = {"numpy", "torch", "cupy"}
    listed = {wheels.plain(name) for name in NAMES} | given
    for name in NAMES:
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # not installed here
        for need in needs:
            if (
                "extra ==" in need
                or "sys_platform" in need
                or "platform_system" in need
                or "python_version" in need
            ):
                continue
            found = wheels.plain(wheels.re.split(r"[ \[<>=!~;(]", need)[0])
            assert found in listed, f"{name} needs {found}"


@pytest.mark.parametrize(
    ("name", "least", "lacking"),
    [
        ("pytest", "", False),
        ("pytest", "1.0", False),
        ("pytest", "999", True),
        ("no-such-distribution-at-all", "", True),
    ],
)
def test_a_distribution_is_lacking_where_it_is_missing_or_too_old(
    name: str, least: str, lacking: bool
) -> None:
    assert wheels.lacks(name, least) is lacking


@pytest.mark.parametrize(
    ("version", "numbers"),
    [("4.15.0rc1", (4, 15, 0)), ("2.11.0+cu130", (2, 11, 0)), ("0.8", (0, 8))],
)
def test_versions_are_compared_by_their_numbers(version: str, numbers: tuple[int, ...]) -> None:
    assert wheels.numbers(version) == numbers


def test_only_what_is_lacking_is_chosen_and_what_was_not_brought_is_named() -> None:
    brought = [Path("pytest-9.0-py3-none-any.whl"), Path("no_such_thing-1.0-py3-none-any.whl")]
    assert wheels.chosen(brought, {"pytest": "", "no-such-thing": "", "nor-this-one": ""}) == (
        brought[1:],
        ["nor-this-one"],
    )


def wheel(folder: Path, name: str, tag: str = "py3-none-any") -> Path:
    path = folder / f"{name}-1.0-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", "VALUE = 7\n")
        archive.writestr(
            f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{name}-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
    return path


def test_wheels_are_installed_into_the_folder_and_nowhere_else(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    (tmp_path / "wheels").mkdir()
    wheel(tmp_path / "wheels", "brought_along")
    monkeypatch.setattr(wheels, "LIST", tmp_path / "list.txt")
    wheels.LIST.write_text("brought-along  # needed\nnot-brought-at-all\npytest\n")
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "old.py").write_text("")
    assert wheels.main(tmp_path / "wheels", folder) == 0
    assert sorted(path.name for path in folder.iterdir()) == [
        "brought_along-1.0.dist-info",
        "brought_along.py",
    ]
    told = capsys.readouterr().out
    assert "no wheel in" in told
    assert "not-brought-at-all" in told


def test_without_wheels_it_says_what_is_missing_and_goes_on(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr(wheels, "LIST", tmp_path / "list.txt")
    wheels.LIST.write_text("not-brought-at-all\n")
    assert wheels.main(tmp_path / "none", tmp_path / "site") == 0
    assert "make gpu-wheels" in capsys.readouterr().out


def test_wheels_for_another_python_are_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: Any, capfd: Any
) -> None:
    wheel(tmp_path, "brought_along", "cp27-cp27m-win32")
    monkeypatch.setattr(wheels, "LIST", tmp_path / "list.txt")
    wheels.LIST.write_text("brought-along\n")
    assert wheels.main(tmp_path, tmp_path / "site") != 0
    assert f"GPU_PYTHON_VERSION=3.{wheels.version_info[1]}" in capfd.readouterr().out
