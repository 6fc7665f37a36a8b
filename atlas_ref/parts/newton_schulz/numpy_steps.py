"""The steps of Newton-Schulz and their backwards by NumPy, in place, in groups of matrices.

A group stays near a processor, and groups are shared out over threads. Specified in
specs/newton_schulz.md (NS-1, NS-20).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from atlas_ref.backend import on_host
from atlas_ref.backend.scratch import scratch
from atlas_ref.backend.threads import in_threads, processors
from atlas_ref.parts.newton_schulz.compiled_steps import Table
from atlas_ref.types import Array

# of smaller groups threads contend for the GIL, which every call needs at its end
GROUP_BYTES = 2**20
KEPT_BYTES = 5 * 2**20  # of all iterates that a group keeps for its backward
# multiply-adds of one step below which a second thread costs more than it saves
THREAD_WORK = 2**22
# multiply-adds of one product above which the BLAS starts threads, which would contend with ours
BLAS_WORK = 2**20


def forward(X: Array, table: Table) -> None:
    """Run all steps on one group of matrices, in place, in reused work space."""
    with scratch.frame():
        square = (*X.shape[:-1], X.shape[-2])
        A, B, Y = scratch.empty(square, X), scratch.empty(square, X), scratch.empty(X.shape, X)
        for a, b, c in table:
            _gram(X, A)
            if c == 0:  # a cubic does without A^2
                A *= b
            else:
                np.matmul(A, A, out=B)
                B *= c
                A *= b
                A += B
            np.matmul(A, X, out=Y)
            X *= a
            X += Y


def _gram(X: Array, out: Array) -> None:
    """Compute X X^T into `out`.

    A small product is twice as fast with a contiguous right side. A large one the BLAS computes on
    several threads, and only half of it, since the result is symmetric.
    """
    if X.shape[-2] ** 2 * X.shape[-1] > BLAS_WORK:
        np.matmul(X, X.swapaxes(-1, -2), out=out)
        return
    with scratch.frame():
        np.matmul(X, scratch.transposed(X), out=out)


def backward(X: Array, D: Array, table: Table) -> None:
    """Recompute the steps of one group in place in X, and run their backwards in place in D.

    D holds the cotangent of the last iterate, then that of the first.
    """
    arguments = []
    for row in table:
        arguments.append(X.copy())
        forward(X, (row,))
    A, B, dA, other = (np.empty_like(X, shape=(*X.shape[:-1], X.shape[-2])) for _ in range(4))
    Y, x_T = np.empty_like(X), np.empty_like(X, shape=(*X.shape[:-2], X.shape[-1], X.shape[-2]))
    for (a, b, c), x in zip(reversed(table), reversed(arguments), strict=True):
        # a product with a contiguous factor is faster, and there are two
        x_T[...] = x.swapaxes(-1, -2)
        np.matmul(x, x_T, out=A)
        np.matmul(D, x_T, out=B)  # dB
        np.matmul(B, A, out=dA)
        dA += np.matmul(A, B, out=other)
        dA *= c
        B *= b
        dA += B
        np.add(dA, dA.swapaxes(-1, -2), out=other)
        np.matmul(A, A, out=B)
        B *= c
        A *= b
        B += A
        np.matmul(B, D, out=Y)
        D *= a
        D += Y
        D += np.matmul(other, x, out=Y)


def in_groups(
    work: Callable[[slice], None], X: Array, size_of_group: int, *, blas: bool = True
) -> None:
    """Run `work` over groups of matrices of at most `size_of_group` bytes, on several threads where
    that pays.

    Every matrix is computed alone, so the result does not depend on groups or threads.

    Args:
        blas: whether products are the BLAS's, which shares out large ones itself.
    """
    count, rows, columns = X.shape
    if not on_host(X):  # a device takes all matrices at once
        work(slice(None))
        return
    product = rows * rows * columns
    pays = (product <= BLAS_WORK or not blas) and count * product >= THREAD_WORK
    threads = min(processors(), max(1, count)) if pays else 1
    size = max(1, min(size_of_group // max(1, rows * columns * X.itemsize), -(-count // threads)))
    groups = [slice(i, i + size) for i in range(0, count, size)]

    def share(first: int) -> None:
        for group in groups[first::threads]:
            work(group)

    in_threads([functools.partial(share, first) for first in range(threads)])
