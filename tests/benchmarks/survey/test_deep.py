"""Memories of several layers: which readings explain them, their faults, and what the page says."""

import json
import re
from pathlib import Path

import pytest

from benchmarks.survey import deep, deep_faults
from benchmarks.survey.catalogue import helper, version

DATA = Path(__file__).parents[3] / "specs" / "survey.json"
SAID = json.loads(DATA.read_text())
PACKAGES = {"titans-pytorch", "titans-memory", "titans-unofficial"}
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e-?\d+)?")


def installed(package, said):
    if version(package) != said:
        pytest.skip(f"{package} {said} is not installed")


def of_rounding(words):
    return words.startswith("1e-") or words == "0"


def alike(now, before):
    """Numbers of a row, but for the last digit of a size and for rounding."""
    if of_rounding(now) and of_rounding(before):
        return True
    one, other = NUMBER.search(now), NUMBER.search(before)
    if one is None or other is None or of_rounding(now) != of_rounding(before):
        return now == before
    return float(one[0]) == pytest.approx(float(other[0]), rel=0.06)


@pytest.mark.sample(1)
@pytest.mark.parametrize("number", range(len(deep.ASKED)))
def test_the_data_are_what_is_found(number):
    asked, before = deep.ASKED[number], SAID["deep"]["found"][number]
    installed(before["package"], before["version"])
    now = json.loads(json.dumps(deep.row(asked)))
    sizes, of_the_run = ("values", "gradients", "relu"), ("searched", "kept")
    if now["verdict"] == "NO MATCH" and now["searched"] != before["searched"]:
        of_the_run += ("nearest",)  # among other readings than those of the page's run
    assert {n: x for n, x in now.items() if n not in (*sizes, *of_the_run)} == {
        n: x for n, x in before.items() if n not in (*sizes, *of_the_run)
    }
    for name in sizes:
        assert alike(now[name], before[name]), (name, now[name], before[name])


def test_every_package_is_asked_and_each_row_is_a_match_or_says_what_departs():
    found = SAID["deep"]["found"]
    assert {row["package"] for row in found} == PACKAGES
    for row in found:
        passed, total = row["passed"]
        if row["package"] == "titans-unofficial":
            assert row["verdict"] == "NO MATCH"
            assert not of_rounding(row["values"])
        else:
            assert (row["verdict"], row["nearest"], row["departure"]) == ("MATCH", "", "")
            assert passed == total
            assert of_rounding(row["values"])
            assert of_rounding(row["gradients"])


def test_relu_is_all_that_departs_where_biases_are_held_and_not_where_they_learn():
    learn, *held = [row for row in SAID["deep"]["found"] if row["package"] == "titans-unofficial"]
    assert learn["departure"] == ""
    assert learn["relu"].endswith("%")
    *plain, clipped = held
    for row in plain:
        assert row["departure"] == "the activation were relu"
        assert of_rounding(row["relu"])
    assert 1e-8 < float(clipped["relu"]) < 1e-5


@pytest.mark.parametrize("number", range(len(deep_faults.FAULTS)))
def test_the_page_holds_the_number_of_a_fault(number):
    fault, said = deep_faults.FAULTS[number], SAID["deep_faults"][number]
    assert (said["fault"], said["measured"]) == (fault.words, fault.measured)
    installed(fault.package, said["version"])
    assert alike(fault.of(), said["number"])


def test_a_masked_chunk_is_finite_without_a_bound():
    """The twin of the first fault."""
    installed("titans-pytorch", SAID["deep_faults"][0]["version"])
    assert deep_faults.masked_chunk(None) == f"0 of {deep_faults.TOKENS}"


REFUSED = {
    "another rule": ({"rule": "delta"}, {}, "rule delta"),
    "another scale": ({}, {"gradient_scale": 1.0}, "gradient_scale 1.0: it computes 2/d_out"),
    "a window of two chunks": ({"window": 8}, {}, "parameters.window: it computes 4"),
    "another read": ({}, {"read": "before"}, "read before: it computes after"),
    "a hard bound": ({"clip": "hard"}, {}, "parameters.clip: it computes soft"),
    "an activation": (
        {"memory": {"kind": "mlp", "activation": "silu"}},
        {},
        "parameters.memory: it computes",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_adapter_refuses_what_its_package_does_not_compute(name):
    parameters, convention, words = REFUSED[name]
    one = helper(deep.ADAPTER).titans_pytorch
    case = deep.drawn(next(each for each in deep.ASKED if "renewed every chunk" in each.words), one)
    header = case.header.plain()
    inputs = {each.removeprefix("in/"): value for each, value in case.inputs.items()}
    assert one.refusal(header, inputs) == ""
    rule = parameters.get("rule", header["rule"])
    own = {each: value for each, value in parameters.items() if each != "rule"}
    changed = {
        **header,
        "rule": rule,
        "parameters": header["parameters"] | own,
        "convention": header["convention"] | convention,
    }
    with pytest.raises(NotImplementedError, match=re.escape(words)):
        one(changed, inputs)


def test_an_adapter_refuses_tensors_that_its_package_does_not_take():
    one = helper(deep.ADAPTER).titans_unofficial
    case = deep.drawn(next(each for each in deep.ASKED if each.function == deep.UNOFFICIAL), one)
    inputs = {each.removeprefix("in/"): value for each, value in case.inputs.items()}
    with pytest.raises(NotImplementedError, match="in/k: it takes unit vectors"):
        one(case.header.plain(), inputs | {"k": 2.0 * inputs["k"]})
    with pytest.raises(NotImplementedError, match="in/active"):
        one(case.header.plain(), inputs | {"active": inputs["retain"]})
