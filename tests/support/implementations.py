"""Implementations of the Delta rule that a user might hand over: right, wrong, and badly
behaved.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
import time
from typing import Any

import ml_dtypes
import numpy as np

from tests.truth import literal


def right(case: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """The Delta rule under `spec`, in float64."""
    return _delta(case, inputs)


def wrong_from_3(case: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """The Delta rule that forgets instead of retaining, from token 3 on."""
    return _delta(case, inputs, forget_from=3)


def block(case: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """A block of levels: every level in loops, then the weighted sum of the reads."""
    periods, first = case["schedule"]["periods"], case["schedule"].get("first_step", 0)
    weights = np.exp(inputs["logits"]) / np.exp(inputs["logits"]).sum()
    answer: dict[str, Any] = {"y": 0.0}
    for level, (own, period) in enumerate(zip(case["levels"], periods, strict=True)):
        tensors = {
            f"in/{name.removeprefix(f'level{level}/')}": x
            for name, x in inputs.items()
            if name.startswith(f"level{level}/")
        }
        active = (first + np.arange(inputs["x"].shape[1])) % period == 0
        results = literal.evaluate(
            {"level": "token", **own}, {**tensors, "in/x": inputs["x"], "in/active": active}
        )
        answer["y"] = answer["y"] + weights[level] * results["out/y"]
        answer[f"level{level}/M"] = results["out/M"]
    return answer


def _delta(
    case: dict[str, Any], inputs: dict[str, Any], *, forget_from: int | None = None
) -> dict[str, Any]:
    if case["rule"] != "delta":
        raise NotImplementedError(f"no {case['rule']} here")
    k, v, q, retain, step = (
        np.asarray(inputs[name], np.float64) for name in ("k", "v", "q", "retain", "step_size")
    )
    M, y = np.array(inputs["M0"], np.float64), np.zeros_like(v)
    for t in range(k.shape[-2]):
        r = retain[..., t, None, None]
        if forget_from is not None and t >= forget_from:
            r = 1.0 - r
        residual = (M @ k[..., t, :, None])[..., 0] - v[..., t, :]
        M = r * M - step[..., t, None, None] * residual[..., :, None] * k[..., t, None, :]
        y[..., t, :] = (M @ q[..., t, :, None])[..., 0]
    return {"y": y, "M": M}


def single(case: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    return {name: value.astype(np.float32) for name, value in _delta(case, inputs).items()}


def brain(case: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    return {name: value.astype(ml_dtypes.bfloat16) for name, value in _delta(case, inputs).items()}


def in_its_dtype(case: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """Results in the dtype of the inputs."""
    return {name: value.astype(inputs["k"].dtype) for name, value in _delta(case, inputs).items()}


def memory_alone(case: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    return {"M": _delta(case, inputs)["M"]}


def unknown_name(case: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    return {"Y": _delta(case, inputs)["y"]}


def of_another_rule(case: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    return {"y": _delta(case, inputs)["y"], "S": np.zeros(3)}


def a_list(case: dict[str, Any], inputs: dict[str, Any]) -> Any:
    return [1.0, 2.0]


def lists_inside(case: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    return {"y": [[1.0]]}


def words(case: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    return {"y": np.array(["a"])}


def raises(case: dict[str, Any], inputs: dict[str, Any]) -> Any:
    raise ValueError("the kernel wants\n\na power of two")


def leaves(case: dict[str, Any], inputs: dict[str, Any]) -> Any:
    sys.exit(5)


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words for it")


def raises_without_words(case: dict[str, Any], inputs: dict[str, Any]) -> Any:
    raise Speechless


def interrupts_itself(case: dict[str, Any], inputs: dict[str, Any]) -> Any:
    raise KeyboardInterrupt


def closes_every_file(case: dict[str, Any], inputs: dict[str, Any]) -> Any:
    os.closerange(3, 100)
    return _delta(case, inputs)


def writes_everywhere(case: dict[str, Any], inputs: dict[str, Any]) -> Any:
    """Right results, and output even to the channel of results of the calling process."""
    return _written_everywhere(b"loss 0.25\n", case, inputs)


def announces_a_number(case: dict[str, Any], inputs: dict[str, Any]) -> Any:
    """Right results, and a line on that channel which is announced as they are, but for a number."""
    text = b'{"status": "failed", "message": 0.25}\n'
    return _written_everywhere(text, case, inputs)


def _written_everywhere(text: bytes, case: dict[str, Any], inputs: dict[str, Any]) -> Any:
    for descriptor in range(3, 30):
        with contextlib.suppress(OSError):
            os.write(descriptor, text)
    time.sleep(0.2)
    return _delta(case, inputs)


def unsupported(case: dict[str, Any], inputs: dict[str, Any]) -> Any:
    raise NotImplementedError


def ends_the_process(case: dict[str, Any], inputs: dict[str, Any]) -> Any:
    os._exit(7)


def segfault(case: dict[str, Any], inputs: dict[str, Any]) -> Any:
    ctypes.string_at(0)


def hangs(case: dict[str, Any], inputs: dict[str, Any]) -> Any:
    """An endless run with a child, whose process id it leaves in a file."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(os.environ["ATLAS_REF_TEST_PID"], "w") as file:
        file.write(str(child.pid))
    time.sleep(600)


def crashes_on_the_second(case: dict[str, Any], inputs: dict[str, Any]) -> Any:
    if case.get("note") == "second":
        os._exit(7)
    return _delta(case, inputs)


def prints(case: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """Right results, and text on Python's standard output and on that of the process."""
    print("a word of its own")
    os.write(1, b"and another\n")
    return _delta(case, inputs)


def changes_its_inputs(case: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    results = _delta(case, inputs)
    for value in inputs.values():
        value[...] = 0
    case.clear()
    return results


not_a_function = 3
