#!/bin/sh
# xllamacpp 2026.10.11549, ggml_gated_delta_net asked for the last K states of a call of 5 tokens.
#
# Guess before the run: they stand as the tokens do, the state after the last token behind the others.
# Seen: the newest stands first:
#     K = 1: states after 5 tokens
#     K = 3: states after 5, 4, 3 tokens
#
# Exits 1 where that changes. Installs into a folder that it removes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check xllamacpp==2026.10.11549 numpy==2.4.6
"$folder/env/bin/python" -W ignore - <<'PY'
import ctypes
import importlib.util
import sys
from pathlib import Path

import numpy as np

T, H, D = 5, 1, 64
place = importlib.util.find_spec("xllamacpp").submodule_search_locations[0]
ggml = ctypes.CDLL(str(sorted(Path(place).glob("xllamacpp*.so"))[0]))
pointer, int64 = ctypes.c_void_p, ctypes.c_int64


class Parameters(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("buffer", pointer), ("no_alloc", ctypes.c_bool)]


for name, result, arguments in (
    ("ggml_init", pointer, [Parameters]),
    ("ggml_free", None, [pointer]),
    ("ggml_new_tensor_4d", pointer, [pointer, ctypes.c_int, *[int64] * 4]),
    ("ggml_get_data", pointer, [pointer]),
    ("ggml_nbytes", ctypes.c_size_t, [pointer]),
    ("ggml_new_graph", pointer, [pointer]),
    ("ggml_build_forward_expand", None, [pointer, pointer]),
    ("ggml_graph_compute_with_ctx", ctypes.c_int, [pointer, pointer, ctypes.c_int]),
    ("ggml_gated_delta_net", pointer, [pointer, *[pointer] * 6, int64]),
):
    getattr(ggml, name).restype, getattr(ggml, name).argtypes = result, arguments
ggml.ggml_cpu_init()

draw = np.random.default_rng(0)
q, k, v = (0.3 * draw.standard_normal((1, T, H, D)) for _ in range(3))
log_gate, beta = -draw.random((1, T, H, 1)), draw.random((1, T, H, 1))
first = draw.standard_normal((1, H, D, D))


def last_states(count):
    """States that the operation hands over, in the order in which they stand."""
    context = ggml.ggml_init(Parameters(1 << 25, None, False))
    nodes = []
    for x in (q, k, v, log_gate, beta, first):
        x = np.ascontiguousarray(x, np.float32)
        nodes.append(ggml.ggml_new_tensor_4d(context, 0, *x.shape[::-1]))
        ctypes.memmove(ggml.ggml_get_data(nodes[-1]), x.ctypes.data, x.nbytes)
    node = ggml.ggml_gated_delta_net(context, *nodes, count)
    graph = ggml.ggml_new_graph(context)
    ggml.ggml_build_forward_expand(graph, node)
    assert ggml.ggml_graph_compute_with_ctx(context, graph, 1) == 0
    data = ctypes.cast(ggml.ggml_get_data(node), ctypes.POINTER(ctypes.c_float))
    numbers = np.ctypeslib.as_array(data, (ggml.ggml_nbytes(node) // 4,)).copy()
    ggml.ggml_free(context)
    return numbers[v.size :].reshape(count, H, D, D)


M, ours = first[0].copy(), [first[0]]
for t in range(T):
    M = M * np.exp(log_gate[0, t])[:, :, None]
    error = v[0, t] - np.einsum("hoi,hi->ho", M, k[0, t])
    M = M + np.einsum("ho,hi->hoi", beta[0, t] * error, k[0, t])
    ours.append(M)


def tokens_of(state):
    """After how many tokens this is the state."""
    return next(t for t, M in enumerate(ours) if np.abs(M - state).max() < 1e-5)


found = {count: [tokens_of(x) for x in last_states(count)] for count in (1, 3)}
for count, places in found.items():
    print(f"K = {count}: states after {', '.join(map(str, places))} tokens")
sys.exit(0 if found == {1: [5], 3: [5, 4, 3]} else 1)
PY
