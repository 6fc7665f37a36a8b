"""The table of what each difference between the causal reading and Atlas-MAG's costs, measured anew."""

from __future__ import annotations

import re

import pytest

from benchmarks import mag_axes

pytestmark = [pytest.mark.clause("MAG-11"), pytest.mark.host("numbers of the host")]


@pytest.fixture(scope="module")
def found() -> dict[str, mag_axes.Cost]:
    return mag_axes.costs()


@pytest.mark.slow
def test_the_table_of_the_spec_is_what_the_command_writes(
    found: dict[str, mag_axes.Cost],
) -> None:
    """Its words to the letter, its numbers to the last digit but one."""
    text = mag_axes.SPEC.read_text()
    own = mag_axes.inserted(text, mag_axes.table(found))
    number = re.compile(r"[+-]?\d\.\d+(e[+-]\d+)?")
    assert number.sub("N", own) == number.sub("N", text)
    for a, b in zip(number.finditer(own), number.finditer(text), strict=True):
        assert float(a[0]) == pytest.approx(float(b[0]), rel=0.06, abs=2e-3)


def test_only_the_read_reaches_earlier_tokens_and_only_the_coupling_other_rows(
    found: dict[str, mag_axes.Cost],
) -> None:
    reads = {"read", "chunk and read", "chunk, read and coupling", "all"}
    rows = {"coupling", "chunk, read and coupling", "all"}
    assert {name for name, each in found.items() if each.earlier} == reads
    assert {name for name, each in found.items() if each.rows} == rows
    assert min(found[name].earlier for name in reads) > 1e-4
    assert min(found[name].rows for name in rows) > 1e-4


def test_the_step_is_what_leaks_and_what_it_costs_is_measured(
    found: dict[str, mag_axes.Cost],
) -> None:
    """Without it neither reading reaches earlier tokens or other rows."""
    for name in mag_axes.WITHOUT:
        assert (found[name].earlier, found[name].rows) == (0.0, 0.0)
    assert found["no step"].logits > 1e-2
    assert abs(found["all"].loss - found["all, no step"].loss) > 1e-4
    assert found["all"].earlier > 1e-4


def test_gradients_that_go_straight_through_change_no_value_and_another_memory_does(
    found: dict[str, mag_axes.Cost],
) -> None:
    straight = found["outer_gradient"]
    assert (straight.logits, straight.loss) == (0.0, 0.0)
    assert straight.memory < 0.99
    assert found["vectors"] == mag_axes.Cost(0.0, 0.0, 0.0, 0.0, *found["vectors"][4:])
    assert found["vectors"].memory == pytest.approx(1.0, abs=1e-12)
    assert found["fast and vectors"].logits > 1e-3
    assert found["newton_schulz"].logits < mag_axes.ROUNDING


def test_every_axis_that_the_presets_do_not_share_has_a_row() -> None:
    causal, public = (mag_axes.PRESETS[name] for name in ("causal", "atlas-mag"))
    apart = {name for name in causal if causal[name] != public[name]}
    single = {name for name, axes in mag_axes.differences().items() if axes == (name,)}
    assert single == apart | {"calls"}
    assert mag_axes.config_of(tuple(single)).blocks[0].calls == "documents"


def test_a_page_without_the_comments_is_refused() -> None:
    with pytest.raises(ValueError, match="no <!-- measured by"):
        mag_axes.inserted("nothing", "table")
