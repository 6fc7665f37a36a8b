"""Hooks of mkdocs: they add generated pages, fill in tables, and mark equations."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).absolute().parents[1]
sys.path[:0] = [str(ROOT)]  # mkdocs loads a hook by its path

from mkdocs.config.defaults import MkDocsConfig  # noqa: E402
from mkdocs.exceptions import PluginError  # noqa: E402
from mkdocs.structure.files import File, Files  # noqa: E402
from mkdocs.utils import get_relative_url  # noqa: E402

from docs import (  # noqa: E402
    console,
    equations,
    generated,
    lined_code,
    picture_places,
    reference_links,
    search_weights,
    search_worker,
    tables,
    vector_pages,
)

BLANKS = re.compile(r"\s*\n\s*")
#: Files of the theme: maps of its own sources, and other languages of the search.
UNUSED = ("assets/**/*.map", "assets/javascripts/lunr/**/*.js")


@contextmanager
def refused() -> Iterator[None]:
    """End the build with what is wrong with equations, without a traceback."""
    try:
        yield
    except equations.EquationError as error:
        raise PluginError(str(error)) from error


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the pages that mkdocs.yml does not list yet.

    A new spec stands with the tools, sets of vectors in a section of their own.
    """
    with refused():
        equations.require()
    nav: Any = config.nav
    listed = repr(nav)
    sections = {name: pages for each in nav for name, pages in each.items()}
    for path in generated.specs(ROOT):
        if path not in listed:
            sections["Tools"].append(path)
    sections["Vectors"][:0] = vector_pages.nav(ROOT)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add every generated page, pages of source, and files."""
    config.extra.update(trace=generated.traced(ROOT), equations=[])
    for name, content in [
        *generated.pages(ROOT, config.extra["trace"]),
        *generated.files(ROOT),
    ]:
        if isinstance(content, Path):
            files.append(File.generated(config, name, abs_src_path=str(content)))
        else:
            files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Fill in the tables that a page asks for, and say what its matches in a search count for."""
    path = page.file.src_uri
    page.meta.setdefault("search", {})["boost"] = search_weights.weight(path)
    return tables.filled(console.with_kernel(markdown), config.extra["trace"], path)


def on_page_content(content: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Mark the equations of a page, and fill in its pictures, its code and its console."""
    with refused():
        content, found = equations.marked(content, page.file.src_uri)
    config.extra["equations"] += found
    if found:
        content = equations.loading(get_relative_url(".", page.url)) + content
    if page.file.src_uri.startswith("reference/"):
        content = reference_links.filled(content, page.file.src_uri, ROOT)
    return picture_places.filled(console.filled(lined_code.filled(content, ROOT)))


def on_post_page(output: str, page: Any, config: MkDocsConfig) -> str:
    """Drop blanks at the ends of lines around the article, half of the theme's text."""
    before, article, rest = output.partition("<article")
    inside, end, after = rest.rpartition("</article>")
    return BLANKS.sub("\n", before) + article + inside + end + BLANKS.sub("\n", after)


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse equations that do not render, mend the search, and drop files that no reader asks for."""
    with refused():
        equations.check(config.extra["equations"])
    search_worker.mend(Path(config.site_dir))
    for pattern in UNUSED:
        for path in Path(config.site_dir).glob(pattern):
            path.unlink()
