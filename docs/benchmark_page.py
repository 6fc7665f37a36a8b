"""The page of benchmarks: figures of the last `make bench` here, or how to make them."""

from __future__ import annotations

from pathlib import Path

FIGURES = Path("build/bench")
HEAD = """# Benchmarks

Speed is measured by `make bench`, each figure beside the bare loop of the same run and its error;
[what is measured and how](../benchmarks/README.md).

"""
NONE = """No run is kept here. `make bench` writes its figures and `bench.json` to `build/bench` in about five minutes;
the site shows them when it is made the next time.
"""


def page(root: Path) -> str:
    found = figures(root)
    return HEAD + ("\n".join(f"![{each.stem}](../bench/{each.name})\n" for each in found) or NONE)


def figures(root: Path) -> list[Path]:
    """What `make bench` left."""
    return sorted((root / FIGURES).glob("*.png"))
