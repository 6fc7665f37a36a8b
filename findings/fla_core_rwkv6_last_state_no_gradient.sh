#!/bin/sh
# fla-core 0.6.0, ops/rwkv6: the gradients of a loss on the last state, by its token form and its chunk form.
#
# Guess before the run: fused_recurrent_rwkv6 returns a last state that autograd follows, so a loss on it
# has the gradients that chunk_rwkv6 gives, to the rounding of float32.
# Seen: the token form's backward is handed the cotangent of the last state and leaves it out. Every
# gradient is zero and nothing says so; those of a loss on the reads agree. Of the same kind, the token
# forms of gla and of simple_gla do follow it.
#     loss on the reads: gradients of k apart by less than 1e-4
#     loss on the last state: norm of the gradient of k is 0 by tokens, not 0 in chunks
#     gla: 0 in neither
#
# The Triton sources run on a CPU by Triton's interpreter, one configuration of each kernel. Its loops
# count in integers, which lack the `to` that the chunk form asks of them, so `range` is replaced there.
# Exits 1 where that changes. Installs into a folder that it removes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check fla-core==0.6.0 torch==2.13.0 einops==0.8.2 \
    triton==3.6.0 numpy==2.2.6 packaging==26.0
cat > "$folder/ask.py" <<'EOF'
import builtins
import sys

import torch
from torch.nn.functional import logsigmoid
from triton.runtime import autotuner, interpreter

made = autotuner.Autotuner.__init__


def one_configuration(self, fn, names, configs, *rest, **more):
    made(self, fn, names, configs[:1], *rest, **more)


autotuner.Autotuner.__init__ = one_configuration

from fla.ops.gla import chunk_gla, fused_recurrent_gla
from fla.ops.rwkv6 import chunk_rwkv6, fused_recurrent_rwkv6


def counted(*bounds):
    for number in builtins.range(*map(int, bounds)):
        yield interpreter._implicit_cvt(number)


for name, module in list(sys.modules.items()):
    if name.startswith("fla.ops"):
        vars(module).setdefault("range", counted)

torch.manual_seed(0)
B, T, H, D = 1, 32, 2, 16
r, k, v = (torch.randn(B, T, H, D) / 2 for _ in range(3))
w, u = logsigmoid(torch.randn(B, T, H, D)), torch.randn(H, D)


def gradient(form, state, **given):
    key = k.clone().requires_grad_()
    y, last = form(k=key, v=v, output_final_state=True, **given)
    return torch.autograd.grad((last if state else y).square().sum(), key)[0]


rwkv6 = {"r": r, "w": w, "u": u}
one, other = (gradient(form, False, **rwkv6) for form in (fused_recurrent_rwkv6, chunk_rwkv6))
reads = float((one - other).norm() / other.norm())
tokens, chunks = (float(gradient(form, True, **rwkv6).norm()) for form in (fused_recurrent_rwkv6, chunk_rwkv6))
gla = (gradient(fused_recurrent_gla, True, q=r, gk=w), gradient(chunk_gla, True, q=r, g=w))
print(f"loss on the reads: gradients of k apart by {'less than 1e-4' if reads < 1e-4 else reads}")
print(f"loss on the last state: norm of the gradient of k is {tokens:g} by tokens, {chunks:g} in chunks")
print(f"gla: {', '.join(f'{float(each.norm()):g}' for each in gla)}")
sys.exit(0 if reads < 1e-4 and tokens == 0 and chunks > 0.1 and all(float(x.norm()) > 0.1 for x in gla) else 1)
EOF
TRITON_INTERPRET=1 "$folder/env/bin/python" -W ignore "$folder/ask.py"
