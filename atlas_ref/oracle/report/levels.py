"""What kernels tend to miss of a block, its levels included (CASE-27)."""

from __future__ import annotations

import re

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.features import FEATURES
from atlas_ref.oracle.cases.levels import parts
from atlas_ref.oracle.family.departures import features

#: Features of a block: the key that states each, and the clause that says what it does.
OF_BLOCKS = {"nested": ("nested", "CMS-23"), "learned": ("schedule.learned", "CMS-20")}


def missed_features(case: Case) -> tuple[str, ...]:
    """Features of a block and of each level, in words.

    Who writes is no such thing of a level, since every block has a schedule.
    """
    words = [
        f"{key} ({FEATURES[name].meaning}, {clause_of})"
        for name, (key, clause_of) in OF_BLOCKS.items()
        if FEATURES[name].is_of(case)
    ]
    for number, part in enumerate(parts(case)):
        own = features(part)
        if number == 0 and "in/reset" in own:
            words.append(own["in/reset"])
        words += [
            re.sub(r"\bin/", f"in/level{number}/", each)
            if name.startswith("in/")
            else f"{each} of level {number}"
            for name, each in own.items()
            if name not in ("in/active", "in/reset")
        ]
    return tuple(words)
