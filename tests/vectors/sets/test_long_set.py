"""The shipped set of long vectors: its promises of cases, sizes, kills and files."""

from __future__ import annotations

import json

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.family.mistakes.boundaries import SIZES, words_by_name
from atlas_ref.oracle.judge.arrays import relative_error
from atlas_ref.oracle.sweep.split import in_two, join, places
from atlas_ref.rules import FAMILY
from atlas_ref.vectors.inputs.axes.deep import DEEP_AXES
from atlas_ref.vectors.inputs.axes.formulas import FORMULAS
from atlas_ref.vectors.inputs.axes.maps import MAPS
from atlas_ref.vectors.inputs.axes.memories import MEMORIES
from atlas_ref.vectors.inputs.deep_targets import DEEP
from atlas_ref.vectors.inputs.properties import forms, properties
from atlas_ref.vectors.inputs.targets import TARGETS
from atlas_ref.vectors.inputs.tnt_targets import TNT
from atlas_ref.vectors.mutants.mutants import selected
from atlas_ref.vectors.mutants.score import FORMATS
from atlas_ref.vectors.sets import cases, locate, manifest, plan
from atlas_ref.vectors.sets.matrix import matrix
from atlas_ref.vectors.sets.verify import verify

FOLDER = locate.SHIPPED[1] / "v2"

#: Number of files of earlier versions, and SHA-256 of their digests, a line each: they never change
#: (VEC-20).
PUBLISHED = {
    90: "b447828d305be5b1f63d79c8a361beb701fef96aa0d14152e44711cf5fde0a18",
    137: "c6149300ca3dc45471e2b3632e17c2b9b96a826b8d613a9c4ce136ab3820c2cf",
    321: "8da0f7a3c628626dacb9123b0f3a57131aeb29f66f9674a6adcc9480e2b58f0a",
    334: "c9316720038ec98d165e92946a8835561afd1e8f7e08a5eb904b90dbdd29e54c",
    456: "273764400ee932b67e334d43cbceee1788b957488d71fb9d0575b402eb574593",
    544: "8e1018006526b8eef3be2b4ec8f1e3bc0636555fe69e3a8a0a8fd231979ca1b9",
    552: "99dc2d01e18984827581010216301a7d73bda25ff31aa9ee51bc939b96f03784",
    650: "aad2801e89403333b06b931a1ca1e2c062b0b343bbd359443e0f2a539cc6ab9b",
}


@pytest.fixture(scope="module")
def every():
    listing = manifest.load(FOLDER)
    return {each.name: (each, atlas_ref.load(FOLDER / each.file)) for each in listing.vectors}


@pytest.fixture(scope="module")
def long_set(every):
    """Long vectors: those of the first version, and not of axes that came later."""
    later = {target.name for target in (*MEMORIES, *MAPS)}
    return {
        name: pair
        for name, pair in every.items()
        if pair[0].rule in FAMILY and pair[0].target not in later
    }


@pytest.fixture(scope="module")
def deep_set(every):
    return {name: pair for name, pair in every.items() if pair[0].rule == "deep_memory"}


@pytest.fixture(scope="module")
def tnt_set(every):
    return {name: pair for name, pair in every.items() if pair[0].rule == "tnt"}


@pytest.fixture(scope="module")
def dplr_set(every):
    return {name: pair for name, pair in every.items() if pair[0].rule == "dplr"}


@pytest.mark.clause("VEC-20", "VEC-23", "VEC-25", "VEC-26")
def test_vectors_of_earlier_versions_are_the_first_and_never_change(every) -> None:
    rules = [each.rule for each, _ in every.values()]
    assert rules[:90].count("tnt") == rules[:137].count("dplr") == 0
    assert set(rules[90:137]) == {"tnt"}
    assert set(rules[137:321]) == {"dplr"}
    assert set(rules[321:334]) == {"tnt"}
    assert set(rules[650:]) == {"recurrence"}
    targets = [each.target for each, _ in every.values()]
    assert set(targets[334:456]) == {target.name for target in (*MEMORIES, *MAPS, *FORMULAS)}
    assert set(targets[456:544]) == {target.name for target in DEEP_AXES}
    topics = [each.topic for each, _ in every.values()]
    assert set(topics[544:552]) == {"gradient-bounds", "state", "gradient-state"}
    wide = {"wide-64", "wide-128", "wide-192", "65-wide", "65-heads", "65-state", "130-state"}
    assert {each for each in topics[552:650] if not each.startswith("head")} == wide
    assert {each.target for each, _ in every.values() if each.rule == "tnt"} == {
        target.name for target in TNT
    }
    for count, digest in PUBLISHED.items():
        text = "".join(
            f"{manifest.digest((FOLDER / each.file).read_bytes())}\n"
            for each, _ in list(every.values())[:count]
        )
        assert manifest.digest(text.encode()) == digest


@pytest.mark.clause("VEC-1", "VEC-21")
def test_cases_are_off_every_usual_chunk_by_one_or_two_and_the_set_is_light(long_set) -> None:
    assert sum((FOLDER / each.file).stat().st_size for each, _ in long_set.values()) < 1e6
    assert sum(path.stat().st_size for path in FOLDER.rglob("*")) < 20e6
    assert {cases.length(case) for _, case in long_set.values()} == {65, 130, 257}
    for name, (_, case) in long_set.items():
        tokens = cases.length(case)
        assert all(tokens % size in (1, 2) for size in SIZES if size < tokens), name
        sizes = [case.inputs[key].shape[-1] for key in ("in/k", "in/v") if key in case.inputs]
        assert max(sizes, default=1) <= 4, name
        assert case.header.span is None or all(size % case.header.span for size in SIZES), name


@pytest.mark.clause("VEC-21")
def test_gates_keep_what_was_before_the_first_boundary(long_set) -> None:
    """Products of all gates of a call, which float32 holds."""
    met = 0
    for name, (_, case) in long_set.items():
        for key, least in (("in/retain", 1e-3), ("in/momentum", 1e-36)):
            value = case.inputs.get(key)
            if value is None or (key == "in/retain" and case.convention.gate == "forget"):
                continue
            met += 1
            assert np.prod(value.astype(np.float64).reshape(-1, cases.length(case))[0]) > least, (
                name
            )
    assert met > 40


@pytest.mark.clause("VEC-2", "VEC-21")
def test_every_target_has_its_long_topics(long_set) -> None:
    for target in TARGETS:
        own = {each.topic for each, _ in long_set.values() if each.target == target.name}
        assert own == {topic.name for topic in target.long}, target.name
    assert {each.target for each, _ in long_set.values()} == {t.name for t in TARGETS if t.longer}


@pytest.mark.clause("VEC-7", "VEC-21")
def test_every_mistake_at_a_boundary_is_killed_in_every_format(long_set) -> None:
    for target in {each.target for each, _ in long_set.values()}:
        own = [pair for pair in long_set.values() if pair[0].target == target]
        possible = {each.name for _, case in own for each in selected(case)}
        for dtype in FORMATS:
            killed = {name for each, _ in own for name in each.kills[dtype]}
            assert killed == possible <= set(words_by_name()), (target, dtype)
    entries = {entry.name: entry for entry in plan.load("v2").vectors}
    assert entries.keys() >= long_set.keys()
    assert all(dict(entries[each.name].kills) == each.kills for each, _ in long_set.values())


@pytest.mark.clause("VEC-5", "VEC-10")
def test_what_the_manifest_says_is_so(long_set) -> None:
    for each, case in list(long_set.values())[::3]:
        assert each.properties == properties(case), each.name
        assert [(form.form, form.chunk) for form in each.forms] == forms(case), each.name
        assert each.splits == places(case), each.name
        for place in each.splits[1:2]:
            both = join(*(evaluate(part).tensors for part in in_two(case, place)))
            for name in ("out/y", "out/M"):
                assert relative_error(both[name], case.recorded[name]) < 1e-12, (each.name, name)


@pytest.mark.clause("VEC-6")
def test_recorded_values_are_certified(long_set) -> None:
    pytest.importorskip("flint", reason="python-flint is not installed")
    from atlas_ref.vectors.sets.expected import expected

    for name in ("delta-257", "omega-65", "titans_lmm-130-gradient", "omega-linear-130-packed"):
        each, case = long_set[name]
        found = expected(case, grad=each.grad)
        assert found.keys() == case.recorded.keys()
        assert all(value.tobytes() == case.recorded[key].tobytes() for key, value in found.items())


@pytest.mark.clause("VEC-1", "VEC-10", "VEC-22", "VEC-26")
def test_deep_memories_are_small_and_may_be_cut_where_the_manifest_says(deep_set) -> None:
    targets = {target.name for target in (*DEEP, *DEEP_AXES)}
    assert {each.target for each, _ in deep_set.values()} == targets
    cut = 0
    for name, (each, case) in deep_set.items():
        assert cases.length(case) <= 8
        assert max(case.inputs[key].shape[-1] for key in ("in/k", "in/v")) <= 4
        assert each.grad == any(key.startswith("grad/") for key in case.recorded)
        assert "out/state/position" not in case.recorded
        assert each.properties == properties(case), name
        assert each.splits == places(case), name
        assert each.forms == []
        for place in each.splits:
            head, tail = in_two(case, place)
            both = join(evaluate(head).tensors, evaluate(tail).tensors)
            for key in (key for key in case.recorded if key.startswith(("out/y", "out/state/w"))):
                assert relative_error(both[key], case.recorded[key]) < 1e-12, (name, place, key)
            cut += 1
    assert cut > 10


@pytest.mark.clause("VEC-6", "VEC-22", "VEC-23", "VEC-24", "VEC-26")
def test_values_of_rules_that_came_later_are_certified(deep_set, tnt_set, dplr_set) -> None:
    pytest.importorskip("flint", reason="python-flint is not installed")
    from atlas_ref.vectors.sets.expected import expected

    some = [*list(deep_set.values())[::4], *list(tnt_set.values())[::3]]
    for each, case in [*some, *list(dplr_set.values())[::3]]:
        found = expected(case, grad=each.grad)
        assert found.keys() == case.recorded.keys()
        assert all(value.tobytes() == case.recorded[key].tobytes() for key, value in found.items())


@pytest.mark.slow
@pytest.mark.clause("VEC-15")
def test_the_set_is_verified() -> None:
    found = verify(FOLDER)
    assert found.problems == []
    assert found.counts == {"vectors": 695, "negative": 0, "large": 0}


@pytest.mark.clause("VEC-18", "VEC-21", "VEC-22")
def test_the_published_matrix_is_about_this_set(every) -> None:
    published = json.loads((FOLDER.parent / "v2-kill-matrix.json").read_text())
    assert (published["set"], published["version"]) == ("v2", "1.9.0")
    assert published["alarms"] == published["lost"] == []
    for dtype in FORMATS:
        assert published["counts"][dtype] == {"killed": 8532, "mutants": 8532}
        for each, _ in every.values():
            kills = published["targets"][each.target]["kills"]
            assert all(each.name in kills[mutant][dtype] for mutant in each.kills[dtype])


@pytest.mark.slow
@pytest.mark.clause("VEC-18", "VEC-22")
def test_a_matrix_by_chunks_has_the_published_rows() -> None:
    """Borderline kills may differ between machines; those that the manifest lists may not."""
    found = matrix(FOLDER, targets=["deep_memory-linear"])
    assert found.alarms == found.lost == []
    rows = found.targets["deep_memory-linear"]
    published = json.loads((FOLDER.parent / "v2-kill-matrix.json").read_text())
    assert rows.kills.keys() == published["targets"]["deep_memory-linear"]["kills"].keys()
    assert (rows.survivors, found.exit_code) == ([], 0)
