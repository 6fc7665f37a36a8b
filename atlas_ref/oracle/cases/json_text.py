"""JSON of cases and of files beside them, no deeper and no longer than a subject takes.

Specified in specs/case.md, CASE-2.
"""

from __future__ import annotations

from typing import Any

from atlas_ref.oracle.cases.tensor_spec import DEEPEST, LONGEST
from atlas_ref.storage import json_text


def decode(text: str | bytes) -> Any:
    """The value of a JSON text, in UTF-8 where it is bytes.

    Raises:
        ValueError: what is wrong with it, in one line.
    """
    return json_text.decoded(text, deepest=DEEPEST, longest=LONGEST)
