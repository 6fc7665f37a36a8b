"""Files of a clone as text and as Python, or one line that names the file that is neither."""

from __future__ import annotations

import ast
from pathlib import Path


class ReadingError(ValueError):
    """A file that is not what its name says, or a clone without clauses."""


def text(path: Path, name: str) -> str:
    """A file's text.

    Raises:
        ReadingError: the file is no text in UTF-8, or cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeError:
        raise ReadingError(f"{name}: not text in UTF-8") from None
    except OSError as error:
        raise ReadingError(f"{name}: cannot be read: {error.strerror}") from None


def parsed(source: str, name: str) -> ast.Module:
    """The tree of a Python file.

    Raises:
        ReadingError: file and line of what is not Python.
    """
    try:
        return ast.parse(source)
    except SyntaxError as error:
        raise ReadingError(f"{name}:{error.lineno}: not Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:  # a zero byte, or endless nesting
        raise ReadingError(f"{name}: not Python: {error or type(error).__name__}") from None
