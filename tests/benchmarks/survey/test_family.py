"""References of the linear family: what each was found to compute, its faults, and what the page says."""

import functools
import json
from pathlib import Path

import pytest

import atlas_ref
from atlas_ref.oracle.identify.identify import identify
from atlas_ref.oracle.sources import sources
from benchmarks.survey import family, family_faults
from benchmarks.survey.catalogue import version

DATA = Path(__file__).parents[3] / "specs" / "survey.json"
SAID = json.loads(DATA.read_text())
REFERENCES = family.references()
ROWS = {row["function"].partition(":")[2]: row for row in SAID["family"]["found"]}


def installed(package, said):
    if version(package) != said:
        pytest.skip(f"{package} {said} is not installed")


def firm(row):
    """A row without what is of its run alone: the number of readings, and whether it was kept."""
    return {name: value for name, value in row.items() if name not in ("searched", "kept")}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", REFERENCES)
def test_the_data_are_what_is_found(name):
    installed(ROWS[name]["package"], ROWS[name]["version"])
    now = json.loads(json.dumps(family.row(name, REFERENCES[name])))
    assert firm(now) == firm(ROWS[name])


def test_every_reference_is_its_member_and_no_other():
    assert list(ROWS) == list(REFERENCES)
    for row in ROWS.values():
        assert (row["verdict"], row["found"], row["undecided"]) == ("MATCH", "the stated", [])
        assert row["searched"] > 1
        for kind in ("values", "gradients"):
            passed, total = row.get(kind, (1, 1))
            assert passed == total > 0


def test_the_recurrent_reference_of_comba_is_found_to_decay_before_it_erases():
    """Asked for the member of its chunk form, which is that of its op."""
    recurrent, chunk = REFERENCES["comba"], REFERENCES["comba_chunk"]
    installed("fla-core", ROWS["comba"]["version"])
    case = family.drawn(chunk)
    wrong = recurrent._replace(member=chunk.member)
    result = identify(case, family.answered(case, wrong), dtype=family.DTYPE)
    assert result.verdict == "MATCH"
    assert not result.own
    assert family.found_in(result) in (
        "parameters.member=comba_decay_before_erase",
        "parameters.decay=before_error",
    )
    ask = functools.partial(sources.respond, wrong)
    rows = atlas_ref.check(case, source=ask, dtype=family.DTYPE)
    assert {row.tensor: row.verdict for row in rows}["out/y"] == "WRONG"


@pytest.mark.parametrize("number", range(len(family_faults.FAULTS)))
def test_the_page_holds_the_number_of_a_fault(number):
    fault, said = family_faults.FAULTS[number], SAID["family_faults"][number]
    assert (said["fault"], said["measured"]) == (fault.words, fault.measured)
    installed(fault.package, said["version"])
    now, before = fault.of(), said["number"]
    if before.endswith("%"):
        assert float(now[:-1]) == pytest.approx(float(before[:-1]), rel=0.1)
    else:
        assert now == before
    assert now != fault.right.split()[0].rstrip(":,")


TWINS = {
    "scale 1": (lambda: family_faults.backward_of_rwkv6(1.0), "0"),
    "queries of length 1": (lambda: family_faults.mesa_by_conjugate_gradients(1.0), "0"),
    "one chunk of rwkv6": (
        lambda: family_faults.nan_gradients(mild(family_faults.RWKV6)),
        "0 of 5",
    ),
    "gated delta": (lambda: family_faults.nan_gradients(family_faults.GATED_DELTA), "0 of 5"),
    "kda, gentle": (lambda: family_faults.nan_gradients(mild(family_faults.KDA)), "0 of 5"),
    "Qwen3-Next": (lambda: family_faults.nan_gradients(family_faults.QWEN), "0 of 5"),
    "Kimi-Linear": (lambda: family_faults.nan_gradients(family_faults.KIMI), "0 of 5"),
    "x of -3": (lambda: family_faults.gate_of_kimi(-3.0), "1.00"),
}


def mild(one):
    """The same function with its log gates divided by 40."""
    load = one.load

    def gentle():
        function = load()
        return lambda **x: function(**{**x, one.gate: x[one.gate] / 40})

    return one._replace(load=gentle)


@pytest.mark.parametrize("name", TWINS)
def test_what_is_no_fault_measures_as_none(name):
    package = "transformers" if name in ("Qwen3-Next", "Kimi-Linear", "x of -3") else "fla-core"
    row = next(row for row in SAID["family_faults"] if row["package"] == package)
    installed(package, row["version"])
    measure, want = TWINS[name]
    assert measure() == want
