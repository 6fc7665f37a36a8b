"""Every code block of the docs, run as it stands: the tutorial in order, with each kernel it
offers.
"""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import pkgutil
from pathlib import Path

import pytest

import atlas_ref
import tape
from tests.support.page_blocks import Block, blocks, copied, run

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs/pages"
STEPS = sorted((PAGES / "tutorial").glob("[0-9]_*.md"))


def chosen(found: list[Block], kernel: str) -> list[Block]:
    """The blocks of a reader who takes this kernel, where a page offers several under one name."""
    offered = [each for each in found if each.title == "kernel.py"]
    kept = [each for each in offered if each.needs(kernel)]
    return [each for each in found if each not in offered or each in kept]


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["numpy", "torch"])
def test_the_tutorial_runs_from_its_first_step_to_its_last(kernel: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(kernel) is None:
        pytest.skip(f"{kernel} is not installed; the other kernel of the tutorial runs")
    assert len(STEPS) == 6
    printed = []
    for step in STEPS[:-1]:
        copied(step, tmp_path)
        found = chosen(blocks(step), kernel)
        assert any(each.kind == "console" for each in found)
        printed += [run(each, tmp_path) for each in found]
    whole = "".join(printed)
    assert "False" not in whole
    assert whole.count("True\n") == 2
    assert "out/y (2, 8, 3)\nout/M (2, 3, 4)\n" in whole


@pytest.mark.slow
def test_the_page_of_a_kda_kernel_runs_alone(tmp_path: Path) -> None:
    """The fifth step alone, with the files that it asks its reader to copy."""
    copied(STEPS[4], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"kernels.py", "kernel_tensors.py"}
    printed = "".join(run(each, tmp_path) for each in blocks(STEPS[4]))
    assert "parameters.decay=after_error" in printed


def test_no_other_page_has_code_that_nothing_runs() -> None:
    others = [path for path in PAGES.rglob("*.md") if path not in STEPS]
    assert len(others) > 8
    assert [path.name for path in others if blocks(path)] == []


def modules() -> list[str]:
    found = [
        each.name
        for package in (atlas_ref, tape)
        for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    return ["atlas_ref", "tape", *found]


def test_every_example_of_a_docstring_prints_what_it_says() -> None:
    ran = 0
    for name in modules():
        if name == "atlas_ref.certify" or not name.startswith("atlas_ref.certify."):
            failed, attempted = doctest.testmod(
                importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE
            )
            assert failed == 0, name
            ran += attempted
    assert ran > 0
