"""Text that a trained model goes on with: tokens of a prompt, pieces as they are drawn, stop tokens.

Specified in specs/evaluate.md (EVAL-7).
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.models import generation, language_model
from atlas_ref.rules.checks import precision
from atlas_ref.train.trained import Trained
from atlas_ref.train.vocabulary import Bytes, Ids, Vocabulary

#: What stands for bytes that are no UTF-8, or not yet.
UNREADABLE = "\ufffd"


class Piece(NamedTuple):
    """What a new token adds.

    Attributes:
        id: the token; None for text that waited for tokens that did not come.
        text: readable text that it ends, empty where a character is not whole.
        stopped: whether it is a stop token.
    """

    id: int | None
    text: str
    stopped: bool


def ids_of(words: Vocabulary, text: str) -> Ids:
    """Tokens (n,) of a prompt: those of a document that has not ended (EVAL-7).

    Raises:
        ValueError: a text without a token.
    """
    ids = words.encoded(text.encode("utf-8", "surrogateescape")).astype(np.int64)
    if not isinstance(words, Bytes) and words.last is not None:
        ids = ids[:-1]
    if not len(ids):
        raise ValueError("prompt: is empty, at least one token is needed")
    return ids


def stop_ids(words: Vocabulary, texts: Sequence[str]) -> tuple[int, ...]:
    """Stop tokens: those of the texts, or where there is none the end of a document (EVAL-7).

    Raises:
        ValueError: names the text that is not one token.
    """
    if not texts:
        own = None if isinstance(words, Bytes) else words.last
        return () if own is None else (own,)
    return tuple(_one(words, each) for each in texts)


def _one(words: Vocabulary, text: str) -> int:
    if isinstance(words, Bytes):
        ids = list(text.encode("utf-8", "surrogateescape"))
    else:
        known = words.tokenizer.token_to_id(text)
        ids = (
            list(words.tokenizer.encode(text, add_special_tokens=False).ids)
            if known is None
            else [known]
        )
    if len(ids) != 1:
        raise ValueError(f"stop: {text!r} is {len(ids)} tokens, one is needed")
    return int(ids[0])


def stream(
    own: Trained, prompt: Sequence[int] | Ids, *, stop: Sequence[int] = (), **how: Any
) -> Iterator[Piece]:
    """The text that goes on after a prompt, as soon as it is drawn (EVAL-7, MODEL-18).

    Args:
        prompt (n,): tokens.
        stop: tokens that end it; their text is not part of it.
        how: steps, temperature, top_k, top_p, min_p and seed of `generation.stream`.

    Raises:
        ValueError: arguments outside their ranges, before the first token is drawn.
    """
    ids = np.asarray(prompt, np.int64)[None]
    state = language_model.start(
        own.config, 1, dtype=precision(own.params.embedding), initial=own.initial
    )
    steps = generation.stream(own.config, own.params, ids, state=state, stop=stop, **how)
    return _pieces(own.vocabulary, steps, frozenset(stop))


def _pieces(
    words: Vocabulary, steps: Iterator[generation.Step], stop: frozenset[int]
) -> Iterator[Piece]:
    reader = _Bytes() if isinstance(words, Bytes) else _Tokens(words)
    while (step := _next(steps)) is not None:
        new = int(step.ids[0])
        stopped = new in stop
        yield Piece(new, "" if stopped else reader.read(new), stopped)
    if rest := reader.rest():
        yield Piece(None, rest, False)


def _next(steps: Iterator[generation.Step]) -> generation.Step | None:
    """The next step; logits that are not finite are refused, and need no warning before."""
    with np.errstate(all="ignore"):
        return next(steps, None)


class _Bytes:
    """Characters of UTF-8 from bytes, each when it is whole."""

    def __init__(self) -> None:
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read(self, new: int) -> str:
        return self.decoder.decode(bytes([new]))

    def rest(self) -> str:
        return self.decoder.decode(b"", final=True)


class _Tokens:
    """Text from tokens, each part when the tokens behind it change it no more."""

    def __init__(self, words: Any) -> None:
        self.words, self.ids, self.told = words, list[int](), ""

    def _text(self) -> str:
        return str(self.words.decoded(np.array(self.ids)).decode())

    def read(self, new: int) -> str:
        self.ids.append(new)
        text = self._text()
        if text.endswith(UNREADABLE) or not text.startswith(self.told):
            return ""
        part, self.told = text[len(self.told) :], text
        return part

    def rest(self) -> str:
        text = self._text()
        return text[len(self.told) :] if text.startswith(self.told) else ""
