#!/bin/sh
# fla-core 0.6.0, ops/comba/naive.py: its recurrent and its chunk reference of Comba, on the same input.
#
# Guess before the run: both compute one rule, so reads and last states agree to the rounding of float32,
# about 1e-6.
# Seen: they are two rules. The recurrent one decays the memory before it takes the error, the chunk one
# after; where every gate is 1 they agree:
#     gates below 1: reads apart by 11 %
#     gates of 1: reads apart by less than 1e-5
#
# Exits 1 where that changes. Installs into a folder that it removes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check fla-core==0.6.0 torch==2.13.0 einops==0.8.2
"$folder/env/bin/python" -W ignore - <<'EOF'
import importlib.util
import sys
from pathlib import Path

import torch
from torch.nn.functional import logsigmoid, normalize

# The file alone: the package imports Triton, which a machine without a GPU may not have.
place = Path(importlib.util.find_spec("fla").submodule_search_locations[0]) / "ops/comba/naive.py"
spec = importlib.util.spec_from_file_location("naive", place)
naive = importlib.util.module_from_spec(spec)
spec.loader.exec_module(naive)

torch.manual_seed(0)
B, T, H, D = 1, 64, 2, 8
q, k, p, v = (torch.randn(B, T, H, D) for _ in range(4))
k, p = normalize(k, dim=-1), normalize(p, dim=-1)
beta = torch.rand(B, T, H)


def apart(g):
    given = {"q": q, "k": k, "v": v, "p": p, "g": g, "beta": beta}
    one, _ = naive.naive_recurrent_comba(**given, output_final_state=True)
    other, _ = naive.naive_chunk_comba(**given, chunk_size=16, output_final_state=True)
    return float((one - other).norm() / one.norm())


gated, full = apart(logsigmoid(torch.randn(B, T, H))), apart(torch.zeros(B, T, H))
print(f"gates below 1: reads apart by {100 * gated:.2g} %")
print(f"gates of 1: reads apart by {'less than 1e-5' if full < 1e-5 else full}")
sys.exit(0 if gated > 0.01 and full < 1e-5 else 1)
EOF
