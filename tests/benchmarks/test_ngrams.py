"""Byte n-grams against their definition, context by context in dictionaries."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from benchmarks import ngrams
from tests.support.close import ANALYTIC, assert_close

pytestmark = pytest.mark.host("numbers of the host")

LEARNT = np.frombuffer(b"abracadabra abra, banana band. \x00\xff\xff\x00", np.uint8).reshape(5, 7)
ASKED = np.frombuffer(b"abracabandzabana\xff\xff", np.uint8).reshape(2, 9)


def probability(row: bytes, n: int) -> Fraction:
    """p_n of the last byte of a text behind all that comes before it, from the formula."""
    if n == 0:
        return Fraction(1, 256)
    shorter = probability(row, n - 1)
    if len(row) < n:
        return shorter
    grams = [bytes(each[i : i + n]) for each in LEARNT for i in range(len(each) - n + 1)]
    behind = Counter(gram[-1] for gram in grams if gram[:-1] == row[-n:-1])
    if not behind:
        return shorter
    kinds = len(behind)
    return (behind[row[-1]] + kinds * shorter) / (sum(behind.values()) + kinds)


def test_ngrams_are_those_of_their_definition() -> None:
    found = ngrams.bits(ngrams.counted(LEARNT, 4), ASKED)
    texts = [bytes(row[: i + 1]) for row in ASKED for i in range(1, len(row))]
    for n in range(1, 5):
        want = -np.mean([np.log2(float(probability(text, n))) for text in texts])
        assert_close(f"order {n}", found[n - 1], want, ANALYTIC)
    assert len({round(each, 6) for each in found}) == 4


@pytest.mark.parametrize("n", [1, 3])
def test_probabilities_have_the_sum_one(n: int) -> None:
    """Behind contexts that were seen and one that was not."""
    for context in (b"ab", b"qq", b"\xff\xff"):
        rows = np.array([[*context, c] for c in range(256)], np.uint8)
        total = sum(probability(bytes(row), n) for row in rows)
        assert total == 1
        p = np.full(rows.shape, 1 / 256)
        for order, own in enumerate(ngrams.counted(LEARNT, n), 1):
            p[:, order - 1 :] = ngrams._mixed(own, ngrams._keys(rows, order), p[:, order - 1 :])
        assert_close("sum", p[:, -1].sum(), 1.0, ANALYTIC)


@pytest.mark.parametrize("order", [0, 9])
def test_an_order_that_a_key_does_not_hold_is_refused(order: int) -> None:
    with pytest.raises(ValueError, match=f"order: {order}, expected 1 to 8"):
        ngrams.counted(LEARNT, order)
