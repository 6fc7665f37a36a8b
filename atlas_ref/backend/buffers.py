"""The buffer through which NumPy's ufuncs copy arrays whose pieces lie apart."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np


@contextlib.contextmanager
def short_buffers() -> Iterator[None]:
    """Keep NumPy from needless copies; results stay the same.

    A factor that scales whole rows, or an array whose pieces lie apart in memory, goes through
    NumPy's buffer where a row or a piece is shorter than half of the buffer. That takes longer than
    the operation itself; with this buffer it happens below 512 numbers.
    """
    with np.errstate():
        np.setbufsize(1024)
        yield
