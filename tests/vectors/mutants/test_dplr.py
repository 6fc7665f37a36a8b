"""Mutants of the linear family: their kernel, their names, and that v2 rejects every one of them."""

from __future__ import annotations

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.dplr import parameters
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.judge.answers import Answer
from atlas_ref.oracle.judge.arrays import relative_error
from atlas_ref.oracle.judge.compare import checked
from atlas_ref.oracle.judge.tolerance import PASS, tolerances
from atlas_ref.oracle.norms import FORMATS
from atlas_ref.oracle.program.reading import Reading
from atlas_ref.oracle.sweep.split import in_two, join, places
from atlas_ref.vectors.inputs.axes.formulas import FORMULAS
from atlas_ref.vectors.inputs.dplr_targets import DPLR, NAMES
from atlas_ref.vectors.inputs.draw import drawn, exact
from atlas_ref.vectors.inputs.properties import forms
from atlas_ref.vectors.mutants import erase_chunks, mutants, own, score
from tests.support.killed import (
    FOLDER,
    assert_kernel_is_the_rule,
    case_of,
    kills,
    short_of,
)

#: Mistakes that kernels make, and a target that can make them.
LIST = {
    "parameters.decay=after_error": "dplr-kda",
    "parameters.member=comba_decay_before_erase": "dplr-comba_decay_after_erase",
    "parameters.state_layout=(d_in, d_out)": "dplr-kda",
    "parameters.query_scale=1": "dplr-gla",
    "parameters.norm_eps=1e-05": "dplr-qwen3_next",
    "dplr: gate after erase": "dplr-rwkv7",
    "dplr: gate on rows": "dplr-kda",
    "dplr: gate early": "dplr-simple_gla",
    "dplr: gate at steps": "dplr-gated_delta_product",
    "dplr: read of first step": "dplr-gated_delta_product",
    "dplr: log of base 2": "dplr-kda",
    "dplr: erase of bare key": "dplr-kimi_linear",
    "dplr: eps outside the root": "dplr-qwen3_next",
    "dplr: erase without beta": "dplr-delta",
    "dplr: beta doubled": "dplr-delta",
    "dplr: mean beta": "dplr-delta",
    "dplr: erase crossed": "dplr-gdn2",
    "dplr: erase of key": "dplr-comba_decay_before_erase",
    "dplr: in/alpha exchanged": "dplr-iplr",
    "dplr: bonus late": "dplr-rwkv6",
    "dplr: bonus decayed": "dplr-rwkv6",
    "dplr: round robin": "dplr-gated_delta",
    "dplr: scale twice": "dplr-linear_attn",
    "dplr: M0 transposed": "dplr",
    "dplr: reset to zero": "dplr",
    "dplr: gate held": "dplr-gla",
    "dplr: beta held": "dplr-delta",
    "dplr: M0 held": "dplr-linear_attn",
    "dplr: last held": "dplr-linear_attn",
    "dplr: heads held": "dplr-gated_delta",
    "dplr: state one chunk late in chunks of 64": "dplr-linear_attn",
    "dplr: tail dropped in chunks of 16": "dplr-kda",
    "dplr: first memory read too early in chunks of 32": "dplr-kda",
    "dplr: own gate on own write in chunks of 16": "dplr-gla",
    "dplr: inverse of first order in chunks of 64": "dplr-delta",
    "dplr: decay by division in chunks of 4": "dplr-kda",
    "dplr: dM dropped in chunks of 64": "dplr-kda",
    "dplr: reset inside a chunk ignored in chunks of 128": "dplr-kda",
}


def possible(case) -> set[str]:
    """Names of the mutants of a case."""
    return short_of(case, "dplr") | {
        erase_chunks.named_in(wrong, size)
        for size in erase_chunks.sizes(case)
        for wrong in erase_chunks.made_in(case, size)
    }


# -- the kernels -----------------------------------------------------------------------------------


@pytest.mark.clause("VEC-16", "VEC-24")
@pytest.mark.sample(4)
@pytest.mark.parametrize("target", DPLR, ids=lambda target: target.name)
def test_the_kernel_without_a_mistake_is_the_rule(target) -> None:
    # where writes nearly cancel, rounding grows, and a search passes over most draws (VEC-7)
    calm = [topic for topic in target.topics if "cancelling" not in topic.regimes]
    for topic in (calm[0], calm[-1]):
        case = drawn(target, topic, 1)
        sizes = erase_chunks.sizes(case)
        chunks = [erase_chunks.kernel(case, "float32", size) for size in sizes]
        assert_kernel_is_the_rule(case, grad=topic.grad, others=chunks)


#: A call of one chunk, of which each mistake is a sum of calls of the rule.
WHOLE = case_of("dplr", "start")


def of_rule(**tensors):
    """Results of the rule with other tensors in float64; None leaves one out."""
    x = {f"in/{name}": value for name, value in tensors.items()}
    inputs = {**WHOLE.inputs, "in/M0": first_memory(), **x}
    return results({name: value for name, value in inputs.items() if value is not None})


def results(inputs):
    wide = {n: x if x.dtype.kind in "bui" else x.astype(np.float64) for n, x in inputs.items()}
    found = evaluate(atlas_ref.oracle.cases.case.make(WHOLE.header.plain(), wide)).tensors
    return found["out/y"], found["out/M"]


def first_memory():
    return np.random.default_rng(3).standard_normal((1, 3, 3))


def in_one_chunk(wrong, size=7, inputs=None, **tensors):
    """Reads and the last memory of the chunk form with a mistake, in float64."""
    x = {**WHOLE.inputs, "in/M0": first_memory()} if inputs is None else inputs
    x = {**x, **{f"in/{name}": value for name, value in tensors.items()}}
    x = {name: value for name, value in x.items() if value is not None}
    wide = {n: v if v.dtype.kind in "bui" else v.astype(np.float64) for n, v in x.items()}
    case = WHOLE.replaced(inputs=wide)
    found = erase_chunks.exact(case, size, wrong)
    return found["out/y"], found["out/M"]


def both_are(found, want) -> None:
    for got, value in zip(found, want, strict=True):
        assert relative_error(got, value) < 1e-12


NO_ERASE = {"erase_read": None, "erase_write": None}


@pytest.mark.clause("VEC-24")
def test_mistakes_at_the_first_memory_are_sums_of_calls_of_the_rule() -> None:
    zero = np.zeros((1, 3, 3))
    still = np.zeros_like(WHOLE.inputs["in/v"])
    whole, without = of_rule(), of_rule(M0=zero)
    both_are(in_one_chunk(""), whole)
    for case, wrong in ((NO_ERASE, "first memory not decayed"), ({}, "")):
        y, M = in_one_chunk(wrong, **case)
        if wrong:
            plain = of_rule(M0=zero, **case)
            both_are((y, M), (of_rule(**case)[0], plain[1] + first_memory()))
    bare = of_rule(v=still, **NO_ERASE)
    both_are(
        in_one_chunk("first memory not erased"), [a + b for a, b in zip(without, bare, strict=True)]
    )
    writes = of_rule(M0=zero, **NO_ERASE)
    until = np.cumprod(WHOLE.inputs["in/retain"].astype(np.float64), axis=1)
    until = np.concatenate([np.ones_like(until[:, :1]), until[:, :-1]], axis=1)
    found = np.einsum("hoi,hti->hto", first_memory(), until * WHOLE.inputs["in/erase_read"])
    taken = of_rule(M0=zero, v=-found, k=WHOLE.inputs["in/erase_write"], **NO_ERASE)
    both_are(
        in_one_chunk("writes of the chunk not erased"),
        [a + b + c for a, b, c in zip(bare, writes, taken, strict=True)],
    )
    late = WHOLE.inputs["in/retain"].copy()
    late[:, 1:] = late[:, :-1]
    late[:, 0] = 1.0
    early = of_rule(v=still, retain=late, **NO_ERASE)[0]
    plain = of_rule(**NO_ERASE)
    both_are(in_one_chunk("first memory read too early", **NO_ERASE), (early + writes[0], plain[1]))


@pytest.mark.clause("VEC-24")
def test_mistakes_at_a_tokens_own_write_are_calls_of_the_rule() -> None:
    k, q, w = (WHOLE.inputs[f"in/{name}"].astype(np.float64) for name in ("k", "q", "retain"))
    memories = [first_memory()]
    for t in range(1, 7):
        head = {n: x[..., :t, :] for n, x in WHOLE.inputs.items() if n != "in/M0"}
        memories.append(results({**head, "in/M0": first_memory()})[1])
    reads = [M @ (w * q)[:, t, :, None] for t, M in enumerate(memories)]
    both_are(
        in_one_chunk("own write not read"), (np.concatenate(reads, -1).swapaxes(1, 2), of_rule()[1])
    )
    gated = k * w
    both_are(in_one_chunk("own gate on own write", **NO_ERASE), of_rule(k=gated, **NO_ERASE))
    # the erase of a token after its write is one of what is there and of the write
    a, b = (WHOLE.inputs[f"in/erase_{name}"].astype(np.float64) for name in ("read", "write"))
    moved = of_rule(M0=np.zeros((1, 3, 3)), k=k - b * np.sum(k * a, axis=-1, keepdims=True))
    found = in_one_chunk("own write erased", M0=np.zeros((1, 3, 3)))
    assert relative_error(found[1], moved[1]) < 1e-12


@pytest.mark.clause("VEC-24")
def test_mistakes_between_chunks_are_calls_of_the_rule() -> None:
    cut = {
        name: (x[..., :4, :], x[..., 4:, :]) for name, x in WHOLE.inputs.items() if name != "in/M0"
    }
    head = {name: pair[0] for name, pair in cut.items()} | {"in/M0": first_memory()}
    tail = {name: pair[1] for name, pair in cut.items()} | {"in/M0": first_memory()}
    y, M = results(head)
    late = results(tail)
    both_are(in_one_chunk("state one chunk late", 4), (np.concatenate([y, late[0]], -2), late[1]))
    both_are(in_one_chunk("tail dropped", 4), (np.concatenate([y, np.zeros_like(late[0])], -2), M))
    marks = np.array([0, 0, 1, 0, 1, 0, 0], np.uint8)
    seen = np.array([0, 0, 0, 0, 1, 0, 0], np.uint8)
    both_are(in_one_chunk("reset inside a chunk ignored", 4, reset=marks), of_rule(reset=seen))
    assert relative_error(in_one_chunk("", 4, reset=marks)[0], of_rule(reset=seen)[0]) > 1e-3


@pytest.mark.clause("VEC-24")
def test_decays_by_division_are_the_rule_until_a_gate_is_zero() -> None:
    both_are(in_one_chunk("decay by division"), of_rule())
    gates = WHOLE.inputs["in/retain"].copy()
    gates[:, 2] = 0.0
    with np.errstate(all="ignore"):
        y, _ = in_one_chunk("decay by division", retain=gates)
    assert np.isnan(y).any()
    both_are(in_one_chunk("", retain=gates), of_rule(retain=gates))


@pytest.mark.clause("VEC-24")
def test_cotangents_that_stop_at_a_chunk_are_those_of_two_calls() -> None:
    case = case_of("dplr-kda", "gradient")
    head, tail = in_two(case, 4)
    bars = {n: np.zeros_like(x) for n, x in head.inputs.items() if n == "in/M_bar"}
    first = evaluate(head.replaced(inputs={**head.inputs, **bars}), grad=True).tensors
    last = evaluate(tail, grad=True).tensors
    wide = case.replaced(inputs={n: x.astype(np.float64) for n, x in case.inputs.items()})
    found = erase_chunks.exact(wide, 4, "dM dropped")
    assert relative_error(found["grad/M0"], first["grad/M0"]) < 1e-12
    for name in ("grad/k", "grad/v", "grad/q", "grad/retain"):
        want = np.concatenate([first[name], last[name]], axis=-2)
        assert relative_error(found[name], want) < 1e-12, name
    assert relative_error(evaluate(case, grad=True).tensors["grad/k"], found["grad/k"]) > 1e-3


@pytest.mark.clause("VEC-24")
def test_values_of_a_backward_mistake_are_right() -> None:
    case = case_of("dplr-kda", "gradient")
    right = own.kernel(case, "float32")
    made = [each for each in own.readings(case) if each.grad]
    assert len(made) >= 8
    for each in made:
        found = own.kernel(case, "float32", (each,))
        gaps = {n: np.abs(x - right[n]).max() for n, x in found.items()}
        assert max(gap for name, gap in gaps.items() if name.startswith("out/")) == 0.0, each.name
        assert max(gap for name, gap in gaps.items() if name.startswith("grad/")) > 0.0, each.name


# -- what is a mutant ------------------------------------------------------------------------------


@pytest.mark.clause("VEC-24")
def test_sums_in_bfloat16_are_rejected_by_float32_alone() -> None:
    """So that they are no mutants: a set rejects its mutants in every format."""
    case = case_of("dplr-gla", "65")
    want = evaluate(case).tensors
    ratios = {}
    for dtype in score.FORMATS:
        allowed = tolerances(case, dtype=dtype, only=list(want), results=want)
        for wrong in erase_chunks.FINE:
            found = erase_chunks.kernel(case, dtype, 16, wrong)
            ratios[dtype, wrong] = score.ratio(found, want, allowed)
    for wrong in erase_chunks.FINE:
        assert ratios["float32", wrong] > 100, wrong
        assert ratios["bfloat16", wrong] <= PASS, wrong
        assert wrong not in erase_chunks.made_in(case, 16)


@pytest.mark.clause("VEC-24")
def test_one_gate_of_retention_too_many_is_seen_by_float32_alone() -> None:
    case = case_of("dplr-retention", "65")
    want = evaluate(case).tensors
    for dtype, rejected in (("float32", True), ("bfloat16", False)):
        allowed = tolerances(case, dtype=dtype, only=list(want), results=want)
        for wrong in erase_chunks.FINE_OF_HEADS:
            found = erase_chunks.kernel(case, dtype, 16, wrong)
            assert (score.ratio(found, want, allowed) > PASS) == rejected, (dtype, wrong)
    assert not {*erase_chunks.FINE_OF_HEADS} & {*erase_chunks.made_in(case, 16)}


@pytest.mark.clause("VEC-24")
def test_settings_that_are_the_same_function_are_no_mutants() -> None:
    names = {own.named(each, "dplr") for each in own.readings(case_of("dplr-gla", "square"))}
    assert {"dplr: gate late", "parameters.query_scale=1"} <= names
    assert "parameters.member=simple_gla" not in names  # which has a gate of the same shape
    assert "parameters.decay=before_error" not in names  # nothing is erased
    assert "dplr: gate held" not in names  # there is no cotangent


@pytest.mark.clause("VEC-24")
def test_settings_and_members_that_are_younger_than_the_set_are_no_mutants() -> None:
    assert set(NAMES) <= set(atlas_ref.oracle.dplr.members.MEMBERS)
    for change, tried in (
        ({"parameters.member": "kda"}, True),
        ({"parameters.decay": "after_error"}, True),
        ({"parameters.member": "younger"}, False),
        ({"parameters.younger": 1}, False),
    ):
        assert own.tried(Reading("", change=change), "dplr") == tried, change


@pytest.mark.slow
@pytest.mark.clause("VEC-24")
def test_mutants_are_named_in_words(listing) -> None:
    assert mutants.words("dplr: gate early") == "gates were one token early"
    late = "dplr: state one chunk late in chunks of 64"
    assert mutants.words(late) == "a chunk starts from the state of the chunk before, of 64 tokens"
    names = {name for target in DPLR for name in kills(listing, target.name, "float32")}
    assert all(listing.mutants[name] == mutants.words(name) for name in names)


# -- what the set rejects --------------------------------------------------------------------------


@pytest.mark.clause("VEC-24")
def test_every_target_kills_its_mutants_in_both_formats(listing) -> None:
    pairs = 0
    for target in DPLR:
        float32, bfloat16 = (kills(listing, target.name, dtype) for dtype in score.FORMATS)
        assert float32 == bfloat16, target.name
        assert len(float32) >= 40, target.name
        pairs += len(float32)
    assert pairs >= 200
    for mutant, target in LIST.items():
        assert mutant in kills(listing, target, "bfloat16"), (mutant, target)


@pytest.mark.clause("VEC-24")
@pytest.mark.sample(1)
@pytest.mark.parametrize("target", DPLR, ids=lambda target: target.name)
def test_every_mutant_of_a_vector_is_killed_by_one_of_its_target(listing, target) -> None:
    vectors = [each for each in listing.vectors if each.target == target.name]
    names = set().union(*(possible(atlas_ref.load(FOLDER / each.file)) for each in vectors))
    for dtype in score.FORMATS:
        assert names == kills(listing, target.name, dtype)


@pytest.mark.clause("VEC-24")
def test_targets_are_the_rule_and_its_members_and_cover_every_kind_of_call(listing) -> None:
    later = {target.name for target in FORMULAS}  # which came to the set after these
    of_rule = [each for each in listing.vectors if each.rule == "dplr"]
    vectors = [each for each in of_rule if each.target not in later]
    assert {each.target for each in vectors} == {"dplr", *(f"dplr-{name}" for name in NAMES)}
    cases = [atlas_ref.load(FOLDER / each.file) for each in vectors]
    for name in ("in/reset", "in/active", "in/M_bar", "in/log_retain", "in/erase_scale"):
        assert any(name in case.inputs for case in cases), name
    assert sum("in/M0" not in case.inputs for case in cases) >= len(DPLR)
    own_settings = [parameters.parse(case.header) for case in cases]
    assert any(each.groups > 1 for each in own_settings)
    assert any(each.steps > 1 for each in own_settings)
    assert any(each.state_layout == "(d_in, d_out)" for each in own_settings)
    gates = [case.inputs[n] for case in cases for n in ("in/retain",) if n in case.inputs]
    assert any((gate == 0).any() and (gate == 1).any() for gate in gates)
    logs = [case.inputs["in/log_retain"] for case in cases if "in/log_retain" in case.inputs]
    assert any(np.isneginf(log).any() for log in logs)
    assert all(exact(x) for case in cases for x in case.inputs.values() if x.dtype.kind == "f")
    assert {case.inputs["in/q"].shape[-2] for case in cases} >= {65, 130}
    wide = {"wide-64", "wide-128", "wide-192", "65-wide"}  # VEC-28
    small = [(e, c) for e, c in zip(vectors, cases, strict=True) if e.topic not in wide]
    assert max(c.inputs[name].shape[-1] for _, c in small for name in ("in/k", "in/v")) <= 4
    assert max((FOLDER / each.file).stat().st_size for each, _ in small) < 33_000
    assert max((FOLDER / each.file).stat().st_size for each in vectors) < 150_000


@pytest.mark.clause("VEC-24")
@pytest.mark.parametrize("dtype", score.FORMATS)
def test_scores_are_the_verdicts_of_check(dtype) -> None:
    case = case_of("dplr-comba_decay_after_erase", "square")
    scores = score.score(case, dtype).mutants
    kind = np.float32 if dtype == "float32" else FORMATS[dtype][0]
    wrong = 0
    for name, found in list(mutants.mutants(case, dtype))[::6]:
        answer = {key: np.asarray(x).astype(kind) for key, x in found.items()}
        rows = checked(case, source=lambda _, answer=answer: Answer(answer), dtype=dtype).rows
        assert any(row.verdict != "PASS" for row in rows) == (scores[name] > PASS), name
        wrong += scores[name] > PASS
    assert wrong > 5


@pytest.mark.clause("VEC-17", "VEC-24")
def test_legal_variants_pass_on_a_vector(listing) -> None:
    each = next(v for v in listing.vectors if v.target == "dplr-kda" and not v.grad)
    found = score.score(atlas_ref.load(FOLDER / each.file), "float32")
    assert sum("chunk" in name for name in found.controls) >= 3
    assert any("form scan" in name for name in found.controls)
    assert max(found.controls.values()) <= PASS
    assert found.hidden == []
    assert {name for name, ratio in found.mutants.items() if ratio > PASS} >= {
        *each.kills["float32"]
    }


@pytest.mark.clause("VEC-10", "VEC-24")
@pytest.mark.sample(5)
@pytest.mark.parametrize("target", DPLR, ids=lambda target: target.name)
def test_a_call_may_be_cut_and_computed_in_the_forms_that_a_vector_names(listing, target) -> None:
    cut = 0
    for each in (each for each in listing.vectors if each.target == target.name):
        case = atlas_ref.load(FOLDER / each.file)
        assert each.splits == places(case)
        assert [(one.form, one.chunk) for one in each.forms] == forms(case)
        whole = {n: x for n, x in case.recorded.items() if n.startswith("out/")}
        for place in each.splits:
            both = join(*(evaluate(part).tensors for part in in_two(case, place)))
            for name, value in whole.items():
                assert relative_error(both[name], value) < 1e-12, (each.name, place, name)
            cut += 1
        for form, chunk in forms(case)[::3]:
            found = evaluate(case, form=form, chunk=chunk).tensors
            for name, value in whole.items():
                assert relative_error(found[name], value) < 1e-12, (each.name, form, name)
    assert cut >= 6
