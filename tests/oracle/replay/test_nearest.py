"""The nearest convention of a replay: named where it explains the whole trace, and not otherwise."""

import numpy as np
import pytest

from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.evaluate import under
from atlas_ref.oracle.replay.replay import first_wrong, replay
from atlas_ref.oracle.replay.trace import trace
from tests.support import departing
from tests.support.departing import ReversedStart, ShortWindow, SilentLeftOut, traces
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


@pytest.mark.sample(4)
@pytest.mark.clause("REPLAY-16")
@pytest.mark.parametrize(
    "names", [None, ("residual",), ("residual", "M"), ("residual", "y")], ids=str
)
@pytest.mark.parametrize("loops", [ShortWindow, ReversedStart, SilentLeftOut])
def test_a_wrong_window_is_no_other_order_of_sums(loops, names):
    """A residual that is right at lag 0 alone: momentum_then_window looks at no other row."""
    whole = traces(WINDOWED, loops)
    first = first_wrong(
        replay(
            WINDOWED,
            {f"trace/{name}": whole[f"trace/{name}"] for name in names} if names else whole,
        )
    )
    assert first.op == "residual"
    assert "order momentum_then_window" not in first.nearest
    right = traces(WINDOWED, Traced)
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


#: What a small program does, on a case of which rule, and what a replay says of its trace.
NAMED = [
    ("ShortWindow", WINDOWED, "residual", "as if the window were one token shorter"),
    ("ReversedStart", WINDOWED, "residual", "as if the window from before were in reverse order"),
    ("ReversedWeights", WINDOWED, "gradient", "as if window weights ran from the oldest token"),
    ("AllActive", WINDOWED, "S", "as if in/active were ignored"),
    ("NoStart", WINDOWED, "residual", "as if the window from before were ignored"),
    (
        "LateDecay",
        new(Request(rule="titans_lmm", tokens=6, d_in=3, d_out=2, seed=8)),
        "M",
        "as if the decay came after the write, r (M - b U)",
    ),
]


@pytest.mark.clause("REPLAY-16", "IDENT-14", "IDENT-15")
@pytest.mark.parametrize(("loops", "case", "op", "words"), NAMED, ids=[each[0] for each in NAMED])
def test_a_departure_is_named_at_the_op_that_it_changes(loops, case, op, words):
    first = first_wrong(replay(case, traces(case, getattr(departing, loops))))
    assert first.op == op
    assert first.nearest.split(" or ")[0] == words
    assert first.nearest.count("as if") == first.nearest.count(" or ") + 1
