"""Codes of refusals: one word for each kind, in which implementations in any language can agree
(VEC-11).
"""

from __future__ import annotations

import re

from atlas_ref.oracle.cases.case import CaseError

#: code -> its meaning, and a pattern of our messages.
CODES: dict[str, tuple[str, str]] = {
    "format": ("the file is no whole safetensors file", r"not a whole safetensors file"),
    "metadata": (
        "the header has no JSON object of ours, or one that is not JSON",
        r"metadata key|: not JSON|stands twice",
    ),
    "unknown-key": (
        "a key that the JSON object does not have",
        r"unknown key|axis '[^']*' does not exist",
    ),
    "unknown-value": (
        "a value that a key or an axis does not have",
        r"does not exist|not available|this version reads|must be '",
    ),
    "missing-tensor": ("a tensor that the rule needs is not there", r"in/\S+: missing"),
    "unknown-tensor": ("a tensor that no case of this rule has", r"unknown tensor"),
    "forbidden-tensor": ("a tensor that this case may not have", r"not part of this case"),
    "shape": (
        "axes that do not fit each other or the settings",
        r"expected \(|axis |axes|initial window tokens|shape",
    ),
    "dtype": ("a tensor of a type that it may not have", r"dtype .* (is|or \w+ is) needed"),
    "not-finite": ("an entry that is no finite number", r"entries must be finite"),
    "range": ("an entry outside its range", r"entries must be at (least|most)|must be 0 or 1"),
    "contract": ("settings that the rule does not have, or that do not go together", r"."),
}


def code_of(error: CaseError) -> str:
    """The code of a refusal (VEC-11)."""
    text = str(error)
    return next(code for code, (_, pattern) in CODES.items() if re.search(pattern, text))
