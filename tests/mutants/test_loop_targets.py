"""Targets of the mutants of the compiled loop over tokens: its code as Python, against the plain
twin.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tape
from atlas_ref.engine import segment
from atlas_ref.engine.compiled import tokens as compiled_tokens
from atlas_ref.engine.group.layout import Arrays, Layout
from atlas_ref.forms import chunked_plain
from tape import ops
from tests.engine.masked.test_masked import drawn
from tests.support.close import ANALYTIC, assert_close
from tests.support.compiled import in_python

pytest.importorskip("numba", reason="Numba is not installed")

LAYOUTS = {
    f"{read}{'-decayed' * before_error}{'-window' * (window > 1)}": Layout(
        19, window, (True,), "running", before_error, read, False, 0
    )
    for read in ("after", "before")
    for before_error in (False, True)
    for window in (1, 3)
}
CASES = [f"{name}-{with_momentum}" for name in LAYOUTS for with_momentum in ("momentum", "plain")]


def pulled_back(run: Any, inputs: Arrays) -> tuple[Any, dict[str, Any]]:
    """A weighted sum of the outputs of a segment, and its gradients."""
    names = [name for name, x in inputs._asdict().items() if x is not None]

    def function(*arrays: Any) -> Any:
        given = inputs._replace(**dict(zip(names, arrays, strict=True)))
        random = np.random.default_rng(3)
        return sum(ops.sum(x * random.standard_normal(x.shape)) for x in run(given))

    value, gradients = tape.value_and_grad(function, argnums=tuple(range(len(names))))(
        *(getattr(inputs, name) for name in names)
    )
    return value, dict(zip(names, gradients, strict=True))


@pytest.mark.host("the loop takes arrays of NumPy alone")
@pytest.mark.parametrize("case", CASES)
def test_token_loop(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, _, momentum = case.rpartition("-")
    layout = LAYOUTS[name]
    inputs = drawn(layout, momentum=momentum == "momentum")
    inputs = inputs._replace(reference=None, residuals=None)
    monkeypatch.setattr(compiled_tokens, "WORK", 0)
    monkeypatch.setattr(compiled_tokens, "SEGMENT", 8)
    in_python(monkeypatch)
    by_loop = segment.block([layout], chunked_plain.plain)

    def outputs(given: Arrays) -> list[Any]:
        y, end = by_loop(given)
        return [x for x in (y, *end) if x is not None]

    value, gradients = pulled_back(outputs, inputs)
    want, true = pulled_back(lambda given: chunked_plain.plain(layout, given), inputs)
    assert_close("value", value, want, ANALYTIC)
    for argument, gradient in gradients.items():
        assert_close(argument, gradient, true[argument], ANALYTIC)
