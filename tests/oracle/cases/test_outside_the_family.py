"""A rule that is no setting of the family: forms, traces and tolerances refuse it by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from atlas_ref.certify import certified
from atlas_ref.forms import support
from atlas_ref.oracle.cases.case import Case, Unsupported
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.identify.identify import identify
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.replay.replay import replay
from atlas_ref.oracle.replay.trace import trace
from atlas_ref.rules import RULES


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    """A case of the Delta rule, as if it were another recurrence."""
    case = new(Request(rule="delta", tokens=3, d_in=2, d_out=2))
    monkeypatch.setitem(RULES.loaded, "delta", RULES["delta"]._replace(in_family=False))
    apart = SUBJECTS["delta"]._replace(traced=None, search=None)
    monkeypatch.setitem(SUBJECTS.loaded, "delta", apart)
    return case


@pytest.mark.parametrize(
    ("ask", "what"),
    [
        (trace, "a trace"),
        (lambda case: replay(case, {}), "replay"),
        (lambda case: identify(case, {}), "identify"),
    ],
    ids=["trace", "replay", "identify"],
)
def test_what_computes_the_family_alone_refuses_it(
    outside: Case, ask: Callable[[Case], Any], what: str
) -> None:
    with pytest.raises(Unsupported, match=f"rule delta: {what} is not yet supported"):
        ask(outside)


def test_no_parallel_form_claims_it(outside: Case) -> None:
    assert support._family(lambda rule: "exact") == {
        name: "not defined" if name in ("delta", "deep_memory") else "exact" for name in RULES
    }


def test_certify_knows_the_rules_that_it_was_written_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flint", reason="certify needs python-flint")
    monkeypatch.delitem(certified.WRITES, "delta")
    with pytest.raises(Unsupported, match="rule delta: certify is not yet supported"):
        certified.certify(new(Request(rule="delta", tokens=3, d_in=2, d_out=2)))
