"""The page of the tutorial that checks a kernel of a public package, where that is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.support.page_blocks import blocks, copied, run

PAGE = Path(__file__).parents[2] / "docs/pages/tutorial/6_gated_delta.md"


def test_the_page_copies_what_connects_a_kernel(tmp_path: Path) -> None:
    copied(PAGE, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"kernels.py", "kernel_tensors.py"}
    kernel = next(each for each in blocks(PAGE) if each.title == "gated.py")
    assert kernel.needs("kernels")


@pytest.mark.slow
def test_the_page_of_a_public_kernel_runs_from_an_empty_folder(tmp_path: Path) -> None:
    """The last step alone, with the package whose kernel it checks; `make docs-test` has it."""
    if importlib.util.find_spec("onnx") is None:
        pytest.skip("onnx is not installed, whose kernel the page checks; make docs-test runs it")
    copied(PAGE, tmp_path)
    printed = "".join(run(each, tmp_path) for each in blocks(PAGE))
    assert "20 PASS" in printed
    assert "the scale of a query was applied twice" in printed
