"""The kernel of the README and what `atlas-ref check` says of it, in the colours of a terminal."""

from __future__ import annotations

import html
import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from docs.links import ROOT

KERNEL, CONSOLE = "<!-- kernel -->", "<!-- console -->"
BLOCK = re.compile(r'```python title="kernel.py"\n(.*?)```', re.DOTALL)
BOX = tuple("┏┃┡│└")
COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white") * 2
COMMANDS = (
    "atlas-ref new delta -o case.safetensors",
    "atlas-ref check case.safetensors --impl kernel:delta",
)


def with_kernel(markdown: str) -> str:
    """The page with the kernel where it asks for it."""
    return markdown.replace(KERNEL, f'```python title="kernel.py"\n{kernel(ROOT)}```')


def filled(content: str) -> str:
    """The page with the console where it asks for it."""
    return content.replace(CONSOLE, _console()) if CONSOLE in content else content


def kernel(root: Path) -> str:
    """The kernel that the README shows."""
    found = BLOCK.search((root / "README.md").read_text())
    if not found:
        raise ValueError("README.md: no block with the title kernel.py")
    return found[1]


def _console() -> str:
    """The commands with all that they print."""
    env = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), "."])
    parts = []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kernel.py").write_text(kernel(ROOT))
        for command in COMMANDS:
            arguments = [sys.executable, "-m", "atlas_ref.cli", *command.split()[1:]]
            done = subprocess.run(
                arguments, cwd=folder, env=env, capture_output=True, text=True, check=False
            )
            parts.append(f"<b>$ {command}</b>\n{coloured(done.stdout)}")
    return f'<div class="console" tabindex="0" data-search-exclude="true"><pre>{"".join(parts)}</pre></div>'


def coloured(text: str) -> str:
    """Text with the colours of a terminal as HTML, each colour and weight a class.

    A line of words wraps, one of a table does not.
    """
    from rich.console import Console
    from rich.text import Text

    console, parts = Console(file=io.StringIO()), []
    for line in text.splitlines():
        plain = Text.from_ansi(line)
        words = "".join(
            _segment(each.style, html.escape(each.text, quote=False))
            for each in plain.render(console)
        )
        kind = "box" if plain.plain[:1] in BOX else "row"
        parts.append(f'<span class="{kind}">{words}\n</span>')
    return "".join(parts)


def _segment(style: Any, words: str) -> str:
    names = [COLOURS[style.color.number]] if style and style.color else []
    names += ["bold"] if style and style.bold else []
    names += ["dim"] if style and style.dim else []
    return f'<span class="{" ".join(names)}">{words}</span>' if names else words
