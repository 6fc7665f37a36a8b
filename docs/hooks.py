"""Hooks of mkdocs: they add generated pages, fill in tables, and convert equations to MathML."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).absolute().parents[1]
sys.path[:0] = [str(ROOT)]  # mkdocs loads a hook by its path

from mkdocs.config.defaults import MkDocsConfig  # noqa: E402
from mkdocs.structure.files import File, Files  # noqa: E402

from docs import (  # noqa: E402
    benchmark_page,
    console,
    generated,
    mathml,
    picture_places,
    search_weights,
    tables,
    vector_pages,
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the pages that mkdocs.yml does not list yet.

    A new spec stands with the tools, sets of vectors in a section of their own.
    """
    nav: Any = config.nav
    listed = repr(nav)
    sections = {name: pages for each in nav for name, pages in each.items()}
    for path in generated.specs(ROOT):
        if path not in listed:
            sections["Tools"].append(path)
    sections["Vectors"][:0] = vector_pages.nav(ROOT)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add every generated page, the figures of benchmarks, and the recorded cases."""
    config.extra["trace"] = generated.traced(ROOT)
    for name, content in generated.pages(ROOT, config.extra["trace"]):
        files.append(File.generated(config, name, content=content))
    for name, path in [
        *((f"bench/{each.name}", each) for each in benchmark_page.figures(ROOT)),
        *vector_pages.files(ROOT),
    ]:
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Fill in the tables that a page asks for, and say what its matches in a search count for."""
    path = page.file.src_uri
    page.meta.setdefault("search", {})["boost"] = search_weights.weight(path)
    return tables.filled(console.with_kernel(markdown), config.extra["trace"], path)


def on_page_content(content: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Convert the equations of a page to MathML and fill in its pictures, except on pages of source."""
    if page.file.src_uri.startswith("source/"):
        return content
    return picture_places.filled(console.filled(mathml.rendered(content, page.file.src_uri)))
