#!/bin/sh
# onnx 1.23.2, reference evaluator of CausalConvWithState: float64 inputs, with and without silu.
#
# Guess before the run: float64 in, float64 out, so that silu of the sum has an error of about 1e-16.
# Seen: silu is computed in float32 whatever the dtype, and the result is cast back:
#     without activation: off by 0e+00
#     with silu: off by 7e-08
#
# Exits 1 where that changes. Installs into a folder that it removes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check onnx==1.23.2
"$folder/env/bin/python" -W ignore - <<'EOF'
import sys

import numpy as np
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

draw = np.random.default_rng(0)
x, w = draw.standard_normal((1, 2, 5)), draw.standard_normal((2, 1, 3))


def off(activation):
    node = helper.make_node("CausalConvWithState", ["x", "w"], ["y", "after"], activation=activation)
    values = [
        [helper.make_tensor_value_info(name, TensorProto.DOUBLE, None) for name in names]
        for names in (("x", "w"), ("y", "after"))
    ]
    graph = helper.make_graph([node], "one", *values)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 27)])
    y, _ = ReferenceEvaluator(model).run(None, {"x": x, "w": w})
    rows = np.concatenate([np.zeros((2, 2)), x[0]], axis=-1)
    z = np.stack([np.convolve(rows[c], w[c, 0, ::-1], mode="valid") for c in range(2)])
    want = z if activation == "none" else z / (1.0 + np.exp(-z))
    return float(np.abs(y[0] - want).max() / np.abs(want).max())


plain, silu = off("none"), off("silu")
print(f"without activation: off by {plain:.0e}")
print(f"with silu: off by {silu:.0e}")
sys.exit(0 if plain < 1e-14 and 1e-9 < silu < 1e-6 else 1)
EOF
