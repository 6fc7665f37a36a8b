"""The index of the search without long terms that hold digits.

lunr, which searches it, takes two nodes of its tree of terms for one where their digits happen to
read the same; it then loses other words, such as every one that begins with "vec". Names of tests
and numbers are such terms; "float32" and "OMEGA-4" stay.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

#: The path of the index on the site.
INDEX = "search/search_index.json"
LONG = re.compile(r"(?<![^\s\->;(])(?=[^\s<>&-]*\d)[^\s<>&-]{10,}")


def shorten(path: Path) -> None:
    """Drop such terms from the texts of an index; titles stay."""
    index = json.loads(path.read_text())
    for each in index["docs"]:
        each["text"] = LONG.sub("", each["text"])
    path.write_text(json.dumps(index, separators=(",", ":")))
