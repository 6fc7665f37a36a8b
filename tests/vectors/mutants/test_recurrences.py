"""Mutants of recurrences: their kernel, their names, and that v2 rejects every one of them."""

from __future__ import annotations

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.judge.arrays import relative_error
from atlas_ref.oracle.norms import FORMATS
from atlas_ref.oracle.recurrences.members import MEMBERS
from atlas_ref.oracle.sweep.split import in_two, join, places
from atlas_ref.vectors.inputs.draw import drawn, exact
from atlas_ref.vectors.inputs.properties import properties
from atlas_ref.vectors.inputs.recurrences import RECURRENCES
from atlas_ref.vectors.mutants import mutants, own
from atlas_ref.vectors.sets import manifest
from tests.support.killed import (
    FOLDER,
    assert_backward_mistakes_leave_values,
    assert_kernel_is_the_rule,
    case_of,
    kills,
    of_target,
    possible,
)

#: Mistakes that kernels make, and a target that can make them.
LIST = {
    "parameters.query_scale=1": "recurrence-gsa",
    "parameters.state_layout=(d_in, d_out)": "recurrence-ttt_linear",
    "parameters.mini_batch=1": "recurrence-ttt_linear",
    "parameters.norm_eps=1e-06": "recurrence-ttt_linear",
    "recurrence: write of 1 - gate": "recurrence-gsa",
    "recurrence: no softmax": "recurrence-gsa",
    "recurrence: gate when silent": "recurrence-hgrn",
    "recurrence: input times 1 - gate": "recurrence-hgrn",
    "recurrence: solved by the diagonal": "recurrence-mesa",
    "recurrence: weight of G forgotten": "recurrence-mesa",
    "recurrence: eps outside the root": "recurrence-ttt_linear",
    "recurrence: step of each token": "recurrence-ttt_linear",
    "recurrence: residual forgotten": "recurrence-ttt_linear",
    "recurrence: last mini-batch not written": "recurrence-ttt_linear",
    "recurrence: level dropped": "recurrence-log_linear",
    "recurrence: position ignored": "recurrence-log_linear",
    "recurrence: round robin": "recurrence-log_linear",
    "recurrence: reset to zero": "recurrence-mesa",
    "recurrence: M0 ignored": "recurrence-log_linear",
    "recurrence: gradient over resets": "recurrence-gsa",
}

EVERY = pytest.mark.parametrize("target", RECURRENCES, ids=lambda target: target.name)


@pytest.mark.clause("VEC-16", "VEC-29")
@pytest.mark.sample(2)
@EVERY
def test_the_kernel_without_a_mistake_is_the_rule(target) -> None:
    for topic in (target.topics[0], target.topics[6]):
        assert_kernel_is_the_rule(drawn(target, topic, 1), grad=topic.grad)


@pytest.mark.clause("VEC-16", "VEC-29")
@pytest.mark.sample(2)
@EVERY
def test_backward_mistakes_leave_values(target) -> None:
    assert assert_backward_mistakes_leave_values(case_of(target.name, "gradient-packed")) >= 4


@pytest.mark.clause("VEC-4", "VEC-29")
@EVERY
def test_numbers_are_exact_in_every_format(target) -> None:
    assert len(RECURRENCES) == sum(not each.program.later for each in MEMBERS.values())
    for topic in target.topics:
        case = drawn(target, topic, 0)
        finite = {name: x[np.isfinite(x)] for name, x in case.inputs.items()}
        assert all(exact(x) for name, x in finite.items() if case.inputs[name].dtype.kind == "f")
        states = {f"in/{name}0" for name in MEMBERS[target.name[11:]].program.states}
        assert states <= case.inputs.keys() or topic.name in ("start", "usual"), topic.name


@pytest.mark.clause("VEC-5", "VEC-6", "VEC-10", "VEC-29")
@EVERY
def test_v2_has_vectors_that_are_certified_and_cut_where_it_says(target, listing) -> None:
    pytest.importorskip("flint", reason="python-flint is not installed")
    from atlas_ref.vectors.sets.expected import expected

    found = of_target(listing, target.name)
    assert len(found) >= 8
    for each in found:
        case = atlas_ref.load(FOLDER / each.file)
        assert each.grad == any(key.startswith("grad/") for key in case.recorded)
        assert (each.properties, each.splits) == (properties(case), places(case)), each.name
        for place in each.splits if each.topic != "65" else ():
            both = join(*(evaluate(part).tensors for part in in_two(case, place)))
            for key in (key for key in case.recorded if key.startswith("out/")):
                assert relative_error(both[key], case.recorded[key]) < 1e-12, (each.name, key)
    for each in found[2:7:2]:
        case = atlas_ref.load(FOLDER / each.file)
        for name, value in expected(case, grad=each.grad).items():
            assert value.tobytes() == case.recorded[name].tobytes(), (each.name, name)


@pytest.mark.clause("VEC-16", "VEC-29")
@pytest.mark.sample(1)
@EVERY
def test_v2_rejects_every_mutant_in_every_format(target, listing: manifest.Manifest) -> None:
    names = possible(listing, target.name, "recurrence")
    for dtype in ("float32", "bfloat16"):
        assert dtype in FORMATS
        assert kills(listing, target.name, dtype) == names
    assert all(mutants.words(name) == listing.mutants[name] for name in names)


@pytest.mark.clause("VEC-16", "VEC-29")
def test_v2_rejects_what_is_known_of_kernels(listing) -> None:
    for name, target in LIST.items():
        for dtype in ("float32", "bfloat16"):
            assert name in kills(listing, target, dtype), (name, target)
    assert own.words("recurrence: no softmax") == "reads had no softmax"
