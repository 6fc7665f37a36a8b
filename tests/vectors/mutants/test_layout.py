"""Mutants of kernels with one gate a head: rows, heads, tiles, and the vectors that reject them."""

from __future__ import annotations

import numpy as np
import pytest

from atlas_ref.oracle.dplr.chunks.form import YOUNGER
from atlas_ref.oracle.dplr.members import MEMBERS
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.family.mistakes import boundaries
from atlas_ref.oracle.judge.tolerance import PASS, tolerances
from atlas_ref.vectors.inputs.axes.formulas import LONGER_STATES
from atlas_ref.vectors.inputs.dplr_targets import CHANNELS_OF, HEADS, OF_HEADS
from atlas_ref.vectors.mutants import erase_chunks, erase_layout, mutants, score
from atlas_ref.vectors.mutants.score import FORMATS
from atlas_ref.vectors.sets import cases, manifest
from tests.support.killed import FOLDER, case_of

LISTING = {each.name: each for each in manifest.load(FOLDER).vectors}


@pytest.mark.clause("VEC-27")
@pytest.mark.parametrize("member", OF_HEADS)
def test_a_member_with_one_gate_a_head_has_vectors_that_its_kernels_can_answer(member: str) -> None:
    """Gates of a head, rates of a row, one step, no silent tokens, and nothing of the settings."""
    found = {each.topic for each in LISTING.values() if each.target == f"dplr-{member}"}
    assert {topic.name for topic in HEADS} <= found
    for each in LISTING.values():
        if each.target == f"dplr-{member}" and each.topic.startswith("head"):
            case = cases.load(FOLDER / each.file)
            assert case.header.plain()["parameters"].keys() <= {"member", "groups"}
            rank = case.inputs["in/v"].ndim
            gate = case.inputs.get("in/retain", case.inputs.get("in/log_retain"))
            assert gate.ndim == rank - 1
            assert case.inputs["in/beta"].ndim == rank - 1 if "in/beta" in case.inputs else True
            assert "in/active" not in case.inputs


@pytest.mark.clause("VEC-27")
def test_every_move_among_rows_and_heads_is_a_mutant_of_a_batch() -> None:
    made = erase_layout.made_in(case_of("dplr-gated_delta", "head-gradient-batch")).keys()
    made |= erase_layout.made_in(case_of("dplr-gated_delta", "head-batch")).keys()
    assert made == erase_layout.MOVES.keys()
    assert not erase_layout.made_in(case_of("dplr-gated_delta", "head"))
    assert all(mutants.words(f"dplr: {name}") for name in made)


@pytest.mark.clause("VEC-27")
@pytest.mark.parametrize("dtype", FORMATS)
def test_a_batch_rejects_every_mistake_of_its_rows_and_heads(dtype: str) -> None:
    """As published; a legal variant passes."""
    killed = set()
    for topic in ("head-batch", "head-gradient-batch"):
        result = score.score(case_of("dplr-gated_delta", topic), dtype)
        assert max(result.controls.values()) <= 2.0
        killed |= {name for name, ratio in result.mutants.items() if not ratio <= 2.0}
    assert {f"dplr: {name}" for name in erase_layout.MOVES} <= killed


@pytest.mark.clause("VEC-27")
def test_younger_mistakes_of_chunks_are_mutants_where_a_head_has_one_gate() -> None:
    """Published targets keep their mutants, and long chunks show too little of them."""
    one, channels = case_of("dplr-gated_delta", "head-65"), case_of("dplr-gated_delta", "65")
    assert set(YOUNGER) <= set(erase_chunks.made_in(one, 16))
    assert not set(YOUNGER) & set(erase_chunks.made_in(one, 32))
    assert not set(YOUNGER) & set(erase_chunks.made_in(channels, 16))


@pytest.mark.clause("VEC-28")
@pytest.mark.parametrize(
    ("member", "lost"),
    [
        ("momentum_delta", "momentum dropped"),
        ("precond_kda", "squares dropped"),
        ("precond_gated_delta", "squares dropped"),
    ],
)
def test_long_calls_with_a_further_state_reject_one_that_does_not_arrive(member, lost) -> None:
    for topic in LONGER_STATES:
        case = case_of(f"dplr-{member}", topic.name)
        assert mutants.long(case)
        assert f"{lost} in chunks of 16" in [each.name for each in mutants.selected(case)]
        right = boundaries.run(case, 16)["out/y"]
        wrong = boundaries.run(case, 16, lost)["out/y"]
        want = boundaries.run(case, 1024)["out/y"]
        assert np.abs(np.asarray(right) - want).max() < 1e-12
        assert np.abs(np.asarray(wrong) - want).max() > 1e-4


@pytest.mark.clause("VEC-28")
@pytest.mark.parametrize("member", CHANNELS_OF)
def test_wide_vectors_reject_kernels_that_leave_channels_out(member: str) -> None:
    both = {f"{kind} channels beyond {tile}" for kind in ("key", "value") for tile in (32, 64)}
    longer = (both - {"value channels beyond 64"}) | {"key channels beyond 128"}
    for topic, want in (("wide-128", both), ("wide-192", longer)):
        assert erase_layout.made_in(case_of(f"dplr-{member}", topic)).keys() == want
        named = LISTING[next(n for n in LISTING if n.startswith(f"dplr-{member}-{topic}"))]
        for dtype in FORMATS:
            assert {f"dplr: {name}" for name in want} <= set(named.kills[dtype])


@pytest.mark.clause("VEC-28")
def test_a_long_call_of_several_heads_rejects_gates_of_another_head() -> None:
    """Also where each channel has a gate; a block of 8 tokens is no chunk of a mutant."""
    case = case_of("dplr-kda", "65-heads", LISTING["dplr-kda-65-heads-4"].seed)
    gate = case.inputs["in/retain"]
    assert gate.shape == (2, 65, 3)
    assert set(YOUNGER) <= set(erase_chunks.made_in(case, 16))
    assert not set(YOUNGER) & set(erase_chunks.made_in(case, 32))
    swapped = np.concatenate([gate[:, :8], gate[::-1, 8:]], axis=1)
    want = evaluate(case).tensors
    for dtype in FORMATS:
        assert {f"dplr: {name} in chunks of 16" for name in YOUNGER} <= set(
            LISTING["dplr-kda-65-heads-4"].kills[dtype]
        )
        allowed = tolerances(case, dtype=dtype, only=list(want), results=want)
        wrong = evaluate(case.replaced(inputs={**case.inputs, "in/retain": swapped})).tensors
        assert score.ratio(wrong, want, allowed) > PASS


def test_members_with_a_head_gate_are_all_here() -> None:
    heads = {name for name, member in MEMBERS.items() if member.gate == "head"}
    assert heads - set(OF_HEADS) == {"momentum_delta"}
