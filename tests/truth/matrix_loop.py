"""A literal loop over tokens with a window of gradient matrices, under one frozen reference.

Nothing is shared with the package under test.
"""

import numpy as np


def run(p, before, *, c, s):
    """Memory, reads and momentum of one packed sequence with `before`, matrices oldest first."""
    M, S, reference = p["M"], p["S"], p["M"]
    window = list(before)
    reads = []
    for t in range(len(p["k"])):
        reads.append(M @ p["q"][t])
        error = reference @ p["k"][t] - p["v"][t]
        window.append(s * p["window_gate"][t] * np.outer(error, p["k"][t]))
        window = window[-c:]
        gradient = 0
        for lag, matrix in enumerate(reversed(window)):
            gradient = gradient + p["window_weights"][t, lag] * matrix
        if not p["active"][t]:
            continue
        S = p["momentum"][t] * S + gradient
        M = p["retain"][t] * M - p["step_size"][t] * S
    return M, np.array(reads), S
