"""Files of expected failures for tests."""

import json
from typing import Any


def in_toml(*entries: dict[str, Any]) -> str:
    """TOML text of entries; `expires` is copied verbatim, so that it may be no date."""
    return "\n".join(
        "[[xfail]]\n"
        + "\n".join(
            f"{key} = {value if key == 'expires' else json.dumps(value)}"
            for key, value in each.items()
        )
        for each in entries
    )
