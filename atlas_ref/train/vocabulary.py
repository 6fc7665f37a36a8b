"""Vocabularies: bytes, or the tokens of a `tokenizers` file by the extra `text`.

Specified in specs/train.md (TRAIN-3).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from atlas_ref import messages
from atlas_ref.storage import files

Ids = np.ndarray[Any, Any]

#: Name of the `tokenizers` file that lies in the folder of a run.
NAME = "tokenizer.json"

#: Names of tokens that stand before and after a document, in the order in which they are looked for.
FIRST = ("<bos>", "<s>", "[BOS]", "<|startoftext|>")
LAST = ("<eos>", "</s>", "[EOS]", "<|endoftext|>")


class Bytes(NamedTuple):
    """The 256 bytes; no token stands for the start or the end of a document."""

    size: int = 256

    def encoded(self, text: bytes) -> Ids:
        """Ids of a document, one for each byte."""
        return np.frombuffer(text, np.uint8)

    def decoded(self, ids: Ids) -> bytes:
        """The text of ids."""
        return np.asarray(ids, np.uint8).tobytes()


class Tokens(NamedTuple):
    """The tokens of a `tokenizers` file.

    Attributes:
        size: one more than the largest id.
        first, last: ids that stand before and after a document; None where the file has none.
        tokenizer: of the library.
    """

    size: int
    first: int | None
    last: int | None
    tokenizer: Any

    def encoded(self, text: bytes) -> Ids:
        """Ids of a document, between the tokens for its start and its end. What is no UTF-8 becomes
        U+FFFD.
        """
        ids = self.tokenizer.encode(text.decode("utf-8", "replace"), add_special_tokens=False).ids
        around = [[each] if each is not None else [] for each in (self.first, self.last)]
        return np.array([*around[0], *ids, *around[1]], np.uint32)

    def decoded(self, ids: Ids) -> bytes:
        """The text of ids, without special tokens."""
        text: str = self.tokenizer.decode([int(each) for each in ids], skip_special_tokens=True)
        return text.encode()


Vocabulary = Bytes | Tokens


def vocabulary(path: str | None) -> Vocabulary:
    """The vocabulary of a `tokenizers` file, or of bytes (TRAIN-3).

    Raises:
        ValueError: names the file that cannot be read or holds no tokenizer, or the extra that is
            missing.
    """
    if path is None:
        return Bytes()
    try:
        text = files.read_bytes(path).decode()
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not a tokenizer: it is no UTF-8") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    try:
        import tokenizers
    except ModuleNotFoundError:
        raise ValueError(
            f"{path}: a vocabulary of tokens needs the package tokenizers: "
            f"{messages.install('text')}"
        ) from None
    try:
        own = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare ones
        raise ValueError(f"{path}: not a tokenizer: {' '.join(str(error).split())}") from None
    known: dict[str, int] = own.get_vocab(with_added_tokens=True)
    if not known:
        raise ValueError(f"{path}: the tokenizer has no token")
    first, last = (
        next((known[name] for name in names if name in known), None) for names in (FIRST, LAST)
    )
    return Tokens(max(known.values()) + 1, first, last, own)
