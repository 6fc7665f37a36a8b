#!/bin/sh
# Triton 3.6.0 and 3.9.0: a kernel that asks its loop counter for another type, compiled and interpreted.
#
# Guess before the run: TRITON_INTERPRET=1 runs what compiles. A counter of `range` is a tensor in compiled
# code, so `i.to(tl.int64)`, which real kernels write against overflow of offsets, runs in both.
# Seen: the interpreter leaves `range` to Python, whose integers have no `to`, and raises. The compiler takes
# the same source (as far as its intermediate language, which needs no GPU). So a kernel made for long
# sequences is one that the interpreter cannot check, as is every chunk op of fla-core 0.6.0 with states.
#     3.6.0 compiled: yes
#       interpreted: AttributeError("'int' object has no attribute 'to'")
#     3.9.0 compiled: yes
#       interpreted: AttributeError("'int' object has no attribute 'to'")
#
# Exits 1 where that changes. Installs into a folder that it removes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/ask.py" <<'EOF'
import os
import sys

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


def add(x, y, n, SIZE: tl.constexpr):
    lanes = tl.arange(0, SIZE)
    total = tl.zeros([SIZE], tl.float32)
    for i in range(n):
        total += tl.load(x + i.to(tl.int64) * SIZE + lanes)
    tl.store(y + lanes, total)


interpreted = os.environ.get("TRITON_INTERPRET") == "1"
kernel = triton.jit(add)
if interpreted:
    x, y = torch.ones(3, 16), torch.zeros(16)
    try:
        kernel[(1,)](x, y, 3, 16)
        said = "yes"
    except Exception as error:
        said = str(error)
    print(f"  interpreted: {said}")
    sys.exit(0 if "no attribute 'to'" in said else 1)
source = ASTSource(kernel, {"x": "*fp32", "y": "*fp32", "n": "i32", "SIZE": "constexpr"}, {"SIZE": 16})
made = triton.compile(source, target=GPUTarget("cuda", 90, 32))
print(f"{triton.__version__} compiled: {'yes' if 'ttir' in made.asm else 'no'}")
sys.exit(0 if "ttir" in made.asm else 1)
EOF
for version in 3.6.0 3.9.0; do
    python3 -m venv "$folder/env-$version"
    "$folder/env-$version/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 "triton==$version" numpy==2.2.6
    "$folder/env-$version/bin/python" -W ignore "$folder/ask.py"
    TRITON_INTERPRET=1 "$folder/env-$version/bin/python" -W ignore "$folder/ask.py"
done
