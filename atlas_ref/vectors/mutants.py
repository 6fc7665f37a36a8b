from __future__ import annotations


def all_words() -> dict[str, str]:
    return {}
