"""A case taken as an implementation: what restating it changes, what is refused, and what that
means for the truth.
"""

import json

import numpy as np
import pytest

import atlas_ref
from benchmarks.survey import catalogue, restate, run
from benchmarks.survey.restate import OWN, asked
from tests.support.casefiles import some
from tests.support.close import EXACT, assert_close

Implementation = catalogue.helper("reading").Implementation


def oracle(case, inputs):
    """Results of a correct implementation: ours, under the requested convention."""
    made = atlas_ref.make(case, {f"in/{name}": value for name, value in inputs.items()})
    return {
        name: value
        for name, value in atlas_ref.evaluate(made, grad="y_bar" in inputs).tensors.items()
        if not name.startswith("trace")
    }


def claim(rule="delta", convention="spec", **said):
    convention = {"preset": convention} if isinstance(convention, str) else convention
    return Implementation(
        **{
            "label": "stub",
            "package": "numpy",
            "rule": rule,
            "convention": convention,
            "source": "-",
            "answer": oracle,
            **said,
        }
    )


def case(rule="delta", **request):
    header, inputs = some(rule, **request)
    return atlas_ref.make(header, inputs, name="one")


def test_a_case_of_its_convention_is_asked_as_it_stands():
    one = case(convention="fla-gated-delta")
    found = asked(
        one,
        claim(
            convention={
                "decay": "before_error",
                "layout": "transposed",
                "query_scale": "1/sqrt(d_in)",
            }
        ),
    )
    assert found.changes == ()
    assert found.case.header.convention == "fla-gated-delta"
    for name, value in one.inputs.items():
        assert_close(name, found.case.inputs[name], value, EXACT)


def test_another_rule_is_no_question():
    assert asked(case("hebbian"), claim("delta")) is None


@pytest.mark.parametrize("d_in", [3, 4])
def test_gates_of_each_row_are_restated_with_their_axis(d_in):
    """Where the memory is square, or cut to a square, their shape has two readings (GATES-15)."""
    one = case(per_dimension_gates=True, d_in=d_in, d_out=3)
    found = asked(one, claim(square=True, per_row=("retain", "step_size")))
    assert found.why == ""
    assert found.case.inputs["in/step_size"].shape == found.case.inputs["in/v"].shape
    assert found.case.header.gate_axis == "d_out"
    restated = asked(
        one, claim(convention="fla-delta", square=True, per_row=("retain", "step_size"))
    )
    assert restated.why == ""
    assert (OWN in restated.changes, restated.case.header.gate_axis) == (True, "d_out")
    bare = asked(one, claim(convention="fla-delta", square=True))
    assert (bare.why, bare.case.header.gate_axis) == ("", None)


def test_states_are_transposed_with_the_layout():
    one = case()
    found = asked(one, claim(convention={"layout": "transposed"}))
    assert found.changes == (OWN,)
    assert_close("M0", found.case.inputs["in/M0"], np.swapaxes(one.inputs["in/M0"], -1, -2), EXACT)


CHANGES = {
    "square": ({"d_in": 4, "d_out": 3}, {"square": True}, "keys and values cut to one width"),
    "rows": ({"per_dimension_gates": True}, {}, "one gate per head"),
    "no first memory": ({}, {"states": ()}, "no M0"),
    "no gate": ({}, {"convention": {"gate": "none"}}, "no retain gate"),
    "gate": ({"convention": {"gate": "none"}}, {}, "a retain gate that keeps all"),
    "second rate": ({}, {"convention": {"rate": "split"}}, "a second rate"),
    "one rate": (
        {"convention": {"rate": "split"}},
        {"convention": {"rate": "momentum"}},
        "one rate",
    ),
    "a rate": ({"convention": {"rate": "none"}}, {"convention": {"rate": "memory"}}, "a step size"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_it_does_not_know_is_left_out_and_named(name):
    request, said, words = CHANGES[name]
    rule = "titans_lmm" if "rate" in name else "delta"
    one, implementation = case(rule, **request), claim(rule, **said)
    found = asked(one, implementation)
    assert found.why == ""
    assert words in found.changes
    assert (
        implementation.refusal(
            found.case.header.plain(), {key[3:]: value for key, value in found.case.inputs.items()}
        )
        == ""
    )
    rows = atlas_ref.check(found.case, source=lambda each: run.respond(implementation, each))
    assert {row.verdict for row in rows} == {"PASS"}


def test_gates_are_given_as_logarithms_where_they_are_taken_so():
    found = asked(case(), claim(logs=("retain",)))
    assert "in/log_retain" in found.case.inputs
    header, inputs = some("delta")
    inputs["in/retain"] = np.zeros_like(inputs["in/retain"])
    assert "in/retain" in asked(atlas_ref.make(header, inputs), claim(logs=("retain",))).case.inputs


REFUSED = {
    "in/active": ({"pulse": 2}, {}),
    "in/reset": ({"reset": 2}, {}),
    "level token": ({"level": "token"}, {}),
    "too short": ({}, {"wants": lambda inputs: "too short"}),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_restated_is_not_asked(why):
    request, said = REFUSED[why]
    found = asked(case(**request), claim(**said))
    assert (found.case, found.why) == (None, why)


def test_a_claim_is_carried_out_as_it_says_and_nothing_else():
    implementation = claim(convention={"gate": "forget"})
    header, inputs = some("delta")
    bare = {name.removeprefix("in/"): value for name, value in inputs.items()}
    with pytest.raises(NotImplementedError, match=r"^gate retain: it computes forget$"):
        implementation(header, bare)
    with pytest.raises(NotImplementedError, match=r"^rule titans_lmm: it computes delta$"):
        implementation(some("titans_lmm")[0], bare)
    assert implementation({**header, "convention": {"gate": "forget"}}, bare)["out/y"].shape == (
        2,
        5,
        3,
    )


def test_no_question_is_asked_twice():
    """Two conventions of the same inputs, restated under a third."""
    both = [
        asked(case(convention=each), claim(convention={"gate": "forget"}))
        for each in ("spec", {"read": "before"})
    ]
    assert [each.why for each in restate.once(both)] == ["", restate.SAME]


def folder_of(tmp_path, *requests):
    for n, request in enumerate(requests):
        atlas_ref.save(tmp_path / f"{n}.safetensors", *some(**request))
    (tmp_path / "bad.safetensors").write_bytes(b"no case")
    return run.read(tmp_path)


@pytest.mark.slow
def test_the_results_count_what_passes_and_name_what_fails(tmp_path):
    found = folder_of(
        tmp_path,
        {"rule": "delta"},
        {"rule": "delta", "convention": {"gate": "forget"}, "seed": 1},
        {"rule": "hebbian"},
    )
    assert (len(found.cases), found.refused) == (3, 1)

    def off(case, inputs):
        answer = dict(oracle(case, inputs))
        answer["out/M"] = answer["out/M"] + 1e-3
        return answer | {"out/y": np.full_like(answer["out/y"], np.nan)}

    entries = [
        catalogue.Entry("of:right", claim(dtypes=("float64",)), "1.0"),
        catalogue.Entry("of:wrong", claim(answer=off), "2.0"),
    ]
    entries.append(catalogue.Entry("of:gone", claim(), ""))
    data = run.survey(found, entries)
    right, wrong, gone = data["implementations"]
    assert right["identified"]["verdict"] == "MATCH"
    assert right["identified"]["own"] is True
    result = right["results"]["float64"]
    assert result["cases"] == {"as they stand": 1, "restated": 1, "passed": 2}
    assert (result["values"], result["failed"]) == ({"PASS": 4}, {})
    assert result["gradients"]["PASS"] == 12
    assert wrong["identified"]["verdict"] == "NOT FINITE"
    failed = wrong["results"]["float32"]["failed"]
    assert set(failed) == {"DELTA-3", "DELTA-4"}
    assert (failed["DELTA-3"]["cases"], failed["DELTA-3"]["verdicts"]) == (["0", "1"], ["WRONG"])
    assert (failed["DELTA-4"]["worst"], failed["DELTA-4"]["why"]) == ("not finite", ["not finite"])
    assert gone["missing"] == "numpy is not installed"
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_a_folder_without_cases_is_refused(tmp_path):
    with pytest.raises(atlas_ref.CaseError, match=r"holds no case$"):
        run.read(tmp_path)


def test_names_choose_implementations():
    assert [entry.function for entry in catalogue.entries(["opengdn"])] == [
        "of_gated_delta:opengdn",
        "of_gated_delta:opengdn_chunk",
    ]
    assert [entry.function for entry in catalogue.entries(["qwen"])] == ["of_gated_delta:qwen"]
    with pytest.raises(ValueError, match=r"^no: no such implementation; there are delta, "):
        catalogue.entries(["no"])
