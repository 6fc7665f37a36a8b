#!/bin/sh
# titans-pytorch 0.5.5, newtonschulz5: a matrix, and a batch of matrices.
#
# Guess before the run: its result is close to orthogonal for any matrix, singular values within 0.5 to 1.5,
# as those of the four-axes tensor in the package's own call.
# Seen: a matrix (two axes) and a batch of matrices (three) come back as they went in, to the last bit and
# without a word; the same matrices under one more axis are orthogonalised:
#     two axes: unchanged, singular values 0.98 to 5.90
#     three axes: unchanged
#     four axes: singular values 0.68 to 1.08
#
# Exits 1 where that changes. Installs into a folder that it removes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check titans-pytorch==0.5.5 torch==2.13.0
"$folder/env/bin/python" -W ignore - <<'EOF'
import sys

import torch
from titans_pytorch.neural_memory import newtonschulz5

torch.manual_seed(0)
matrix = torch.randn(8, 12, dtype=torch.float64)


def spread(x):
    values = torch.linalg.svdvals(x)
    return float(values.min()), float(values.max())


plain, batch = newtonschulz5(matrix), newtonschulz5(matrix[None])
four = newtonschulz5(matrix[None, None])[0, 0]
same = torch.equal(plain, matrix), torch.equal(batch[0], matrix)
print(f"two axes: {'unchanged' if same[0] else 'changed'}, singular values %.2f to %.2f" % spread(plain))
print(f"three axes: {'unchanged' if same[1] else 'changed'}")
print("four axes: singular values %.2f to %.2f" % spread(four))
low, high = spread(four)
sys.exit(0 if all(same) and 0.5 < low and high < 1.5 else 1)
EOF
