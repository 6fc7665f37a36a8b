"""JSON from files of others: no key twice, no NaN, no endless number, no endless nesting.

Specified in specs/case.md, CASE-2.
"""

from __future__ import annotations

import json
import math
from typing import Any

from atlas_ref.storage.files import unique

#: Levels of nesting, and digits of a whole number, that are read.
DEEPEST, LONGEST = 100, 18


def decoded(text: str | bytes, *, deepest: int = DEEPEST, longest: int = LONGEST) -> Any:
    """The value of a JSON text, in UTF-8 where it is bytes.

    Args:
        deepest: levels of nesting.
        longest: digits of a whole number.

    Raises:
        ValueError: what is wrong with it, in one line.
    """
    try:
        data = json.loads(
            text.decode() if isinstance(text, bytes) else text,
            object_pairs_hook=unique,
            parse_constant=_refuse,
            parse_float=_finite,
            parse_int=lambda digits: _integer(digits, longest),
        )
        if _depth(data) > deepest:
            raise RecursionError
    except RecursionError:
        raise ValueError(f"nested more than {deepest} levels deep") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"not JSON: {error}") from None
    return data


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _finite(text: str) -> float:
    if not math.isfinite(float(text)):
        raise ValueError(f"the number {_short(text)} is beyond float64")
    return float(text)


def _integer(text: str, longest: int) -> int:
    if len(text) > longest:
        raise ValueError(f"the integer {_short(text)} has more than {longest} digits")
    return int(text)


def _short(text: str) -> str:
    return text if len(text) <= 24 else f"{text[:20]}..."


def _depth(value: Any) -> int:
    """Levels of objects and lists; a number in either is one more."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    nested = [each for each in inside if type(each) in (dict, list)]  # of a long list mostly none
    return 1 + max(map(_depth, nested), default=int(bool(inside)))
