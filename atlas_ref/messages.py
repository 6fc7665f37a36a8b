"""Problems of a validation in plain words, for error messages."""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError


def first_problem(error: ValidationError) -> str:
    """The main problem of a validation in one line: place, value, and the values that are legal."""
    problems = error.errors(include_url=False)
    problem = max(problems, key=lambda each: (each["type"] == "extra_forbidden", len(each["loc"])))
    where = ".".join(
        str(part)
        for part in problem["loc"]
        if not (isinstance(part, str) and not part.isidentifier())
    )
    where = f"{where}: " if where else ""
    if problem["type"] == "extra_forbidden":
        return f"{where}unknown key"
    if problem["type"] == "missing":
        return f"{where}missing"
    if problem["type"] == "union_tag_not_found":
        return f"{where}kind: missing"
    text = _plain_words(problem)
    complete = isinstance(problem["input"], dict | list | tuple) or "found" in text
    return f"{where}{text}" + ("" if complete else f", found {shown(problem['input'])}")


def shown(value: Any) -> str:
    """A value in a message: null, true and false as in JSON, and at most 60 characters."""
    text = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _plain_words(problem: Any) -> str:
    """The message of pydantic, in words that name no library."""
    context = problem.get("ctx", {})
    if problem["type"] == "union_tag_invalid":
        return f"kind {context['tag']!r} does not exist; kinds are {context['expected_tags']}"
    if problem["type"] in ("greater_than_equal", "less_than_equal"):
        word, bound = ("least", context["ge"]) if "ge" in context else ("most", context["le"])
        return f"must be at {word} {bound if isinstance(bound, int) else format(bound, 'g')}"
    if problem["type"] == "string_pattern_mismatch":
        return f"must match {context['pattern']}"
    if problem["type"] == "too_short":
        return f"must have at least {context['min_length']} entry, found {context['actual_length']}"
    if problem["type"] == "too_long":
        return f"must have at most {context['max_length']} entries"
    text = str(problem["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    text = (
        text.replace("Input should be a valid integer", "must be an integer")
        .replace("Input should be", "must be")
        .replace("a valid array", "a list")
        .replace("a valid ", "a ")
    )
    return text[0].lower() + text[1:]
