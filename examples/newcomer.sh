#!/usr/bin/env bash
# A newcomer's first hour: a kernel that is wrong, and how it is found out.
#
#     bash examples/newcomer.sh
#
# check says that something is wrong, replay which step, identify what was meant; the repaired kernel passes,
# and a sweep tries it where nobody looked. Needs `atlas-ref` and its `python` on the path; works in a folder of its own.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

# expect CODE COMMAND...: show a command, run it, and stop the story if it ends otherwise than told.
expect() {
    local want=$1 got=0
    shift
    printf '$ %s\n' "$*"
    "$@" || got=$?
    if [ "$got" -ne "$want" ]; then
        printf 'exit code %s, expected %s\n' "$got" "$want" >&2
        exit 1
    fi
}

say 'A Titans memory, written from the paper in an evening.'
cat > kernel.py <<'PYTHON'
import sys

import numpy as np

import atlas_ref


def titans(case, inputs):
    """Results and every step on the way, in float32."""
    if "active" in inputs or "reset" in inputs:
        raise NotImplementedError("pulses and packed sequences: not yet")
    x = {name: value.astype(np.float32) for name, value in inputs.items()}
    d_out, d_in = x["v"].shape[-1], x["k"].shape[-1]
    M = x.get("M0", np.zeros((*x["k"].shape[:-2], d_out, d_in), np.float32))
    S = x.get("S0", np.zeros_like(M))
    steps = {name: [] for name in ("residual", "gradient", "S", "M", "y")}
    for t in range(x["k"].shape[-2]):
        k, v, q = (x[name][..., t, :] for name in ("k", "v", "q"))
        retain, momentum, step_size = (gate(x[name], x["v"], t) for name in ("retain", "momentum", "step_size"))
        residual = (M @ k[..., None])[..., 0] - v
        gradient = residual[..., :, None] * k[..., None, :]
        S = momentum * S + step_size * gradient
        M = (1 - retain) * M - S
        y = (M @ q[..., None])[..., 0]
        for name, value in (("residual", residual[..., None, :]), ("gradient", gradient), ("S", S), ("M", M), ("y", y)):
            steps[name].append(value)
    axis = x["k"].ndim - 2
    trace = {f"trace/{name}": np.stack(values, axis) for name, values in steps.items()}
    return {"y": trace["trace/y"], "M": M, "S": S, **trace}


def gate(value, v, t):
    """This token's gate as a factor of rows: one for all rows, or one for each."""
    return value[..., t, None, None] if value.ndim < v.ndim else value[..., t, :, None]


if __name__ == "__main__":
    case = atlas_ref.load(sys.argv[1])
    found = titans(case.header.plain(), {name.removeprefix("in/"): value for name, value in case.inputs.items()})
    atlas_ref.save(sys.argv[2], case.header, {name if "/" in name else f"out/{name}": value for name, value in found.items()})
PYTHON
expect 0 atlas-ref new titans_lmm --tokens 8 --dtype float32 -o case.safetensors

say 'Is it right?  check says no.'
expect 1 atlas-ref check case.safetensors --impl kernel:titans

say 'Which step is wrong?  Hand over what each step computed; replay evaluates every step again on your own inputs.'
expect 0 python kernel.py case.safetensors mine.safetensors
expect 1 atlas-ref replay case.safetensors --trace mine.safetensors

say 'The memory update. But it is what the paper prints?  identify knows which paper.'
expect 0 atlas-ref identify case.safetensors --out mine.safetensors

say 'The gate is a forget gate there, and the case asks for a retain gate. One line changes.'
expect 0 sed -i.wrong 's/(1 - retain) \* M/retain * M/' kernel.py

say 'Is it right now?'
expect 0 atlas-ref check case.safetensors --impl kernel:titans
expect 0 python kernel.py case.safetensors mine.safetensors
expect 0 atlas-ref replay case.safetensors --trace mine.safetensors

say 'And where nobody looked: odd sizes, gates of 0 and 1, other formats.'
expect 0 atlas-ref sweep titans_lmm --impl kernel:titans --convention spec --fix level=projected --fix pulse=1 --fix reset=0 --cases 40

say 'Right.'
