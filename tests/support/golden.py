"""Golden files: output of a command as text, so that a change of words shows in a diff.

`ATLAS_REF_GOLDEN=write python -m pytest tests/oracle` writes the files anew; read the diff before
you keep it.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "cli" / "golden"
WRITE = "ATLAS_REF_GOLDEN"


def assert_golden(name: str, text: str, *, folder: Path = GOLDEN) -> None:
    """Assert that `text` is the content of `golden/<name>`.

    The test replaces paths and times before, so that it is the same everywhere.

    Args:
        name: `<topic>_<what>.txt`.
        folder: where the files lie, for the test of this helper.
    """
    file = folder / name
    if os.environ.get(WRITE) == "write":
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return
    assert file.exists(), f"{file.name}: no such golden file; {WRITE}=write makes it"
    want = file.read_text(encoding="utf-8")
    if text != want:
        diff = difflib.unified_diff(
            want.splitlines(), text.splitlines(), f"golden/{name}", "found", lineterm=""
        )
        raise AssertionError(
            "\n".join([f"{name} reads differently ({WRITE}=write keeps the new words):", *diff])
        )
