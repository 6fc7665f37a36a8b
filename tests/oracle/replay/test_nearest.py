"""The nearest convention of a replay: named where it explains the whole trace, and not otherwise."""

import numpy as np
import pytest

from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.evaluate import under
from atlas_ref.oracle.replay.replay import first_wrong, replay
from atlas_ref.oracle.replay.trace import trace
from tests.support.departing import ReversedStart, ShortWindow, SilentLeftOut, answered
from tests.support.traced_cases import Traced

#: A window with a start of its own, and silent tokens.
WINDOWED = new(
    Request(
        rule="omega",
        tokens=7,
        d_in=3,
        d_out=2,
        window=3,
        history=2,
        pulse=3,
        seed=8,
        convention={"newton_schulz": "none"},
    )
)


@pytest.mark.clause("REPLAY-16")
@pytest.mark.parametrize(
    "names", [None, ("residual",), ("residual", "M"), ("residual", "y")], ids=str
)
@pytest.mark.parametrize("loops", [ShortWindow, ReversedStart, SilentLeftOut])
def test_a_wrong_window_is_no_other_order_of_sums(loops, names):
    """A residual that is right at lag 0 alone: momentum_then_window looks at no other row."""
    whole, _ = answered(WINDOWED, loops)
    first = first_wrong(
        replay(
            WINDOWED,
            {f"trace/{name}": whole[f"trace/{name}"] for name in names} if names else whole,
        )
    )
    assert first.op == "residual"
    assert "order momentum_then_window" not in first.nearest
    right, _ = answered(WINDOWED, Traced)
    assert first_wrong(replay(WINDOWED, right)) is None


@pytest.mark.clause("REPLAY-16")
def test_another_order_of_sums_is_still_named():
    mine = trace(under(WINDOWED, {"order": "momentum_then_window"}), dtype="float32")
    first = first_wrong(replay(WINDOWED, {n: x for n, x in mine.items() if n != "trace/P"}))
    assert first.nearest == "order momentum_then_window"


@pytest.mark.clause("REPLAY-16")
def test_a_setting_that_leaves_a_later_op_wrong_is_not_named():
    """A forget gate, and a second mistake in y."""
    mine = {
        name: np.array(value)
        for name, value in trace(under(WINDOWED, {"gate": "forget"}), dtype="float32").items()
    }
    assert first_wrong(replay(WINDOWED, mine)).nearest == "gate forget"
    mine["trace/y"] *= np.float32(1.01)
    first = first_wrong(replay(WINDOWED, mine))
    assert (first.op, first.nearest) == ("M", "")
