"""The shipped set: its promises of cases, sizes and manifest."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import jsonschema
import pytest

import atlas_ref
from atlas_ref.oracle.cases.inputs import round_inputs
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.judge.arrays import relative_error
from atlas_ref.oracle.judge.tolerance import PASS, tolerances
from atlas_ref.oracle.sweep.split import in_two, join, places
from atlas_ref.vectors.inputs.draw import exact
from atlas_ref.vectors.inputs.properties import PROPERTIES, forms, properties
from atlas_ref.vectors.inputs.targets import TARGETS
from atlas_ref.vectors.mutants.score import ratio
from atlas_ref.vectors.sets import locate, manifest, plan, search
from atlas_ref.vectors.sets.schema import manifest_schema
from tests.oracle.planted import restatement, table
from tests.oracle.planted.cases import inputs_of, rule_of
from tests.oracle.planted.rounding import LEGAL, PLAIN

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def cases(shipped, listed):
    return {each.name: atlas_ref.load(shipped / each.file) for each in listed.vectors}


@pytest.mark.clause("VEC-1")
def test_cases_are_small_and_the_set_is_light(shipped, cases) -> None:
    assert sum(path.stat().st_size for path in shipped.rglob("*")) < 20e6
    for name, case in cases.items():
        sizes = {
            key: case.inputs[key].shape
            for key in ("in/k", "in/v", "in/x", "in/G")
            if key in case.inputs
        }
        tokens = [
            shape[-2]
            for key, shape in sizes.items()
            if key in ("in/k", "in/x") and case.header.rule != "feature_map"
        ]
        assert all(count <= 8 for count in tokens), name
        assert all(shape[-1] <= 4 for shape in sizes.values()), name
        assert {value.dtype.name for value in case.recorded.values()} == {"float64"}, name


@pytest.mark.clause("VEC-1")
def test_a_set_holds_the_files_that_its_manifest_names_and_no_other(shipped, listed) -> None:
    there = {path.relative_to(shipped).as_posix() for path in shipped.rglob("*") if path.is_file()}
    named = manifest.files_of(listed)
    assert len(named) == len(set(named))
    assert there == {*named, manifest.MANIFEST, manifest.SCHEMA, manifest.SUMS}
    assert manifest.read_sums(shipped).keys() == there - {manifest.SUMS}


@pytest.mark.clause("VEC-2")
def test_every_target_has_vectors_with_and_without_gradients(listed) -> None:
    of = {
        target.name: [each for each in listed.vectors if each.target == target.name]
        for target in TARGETS
    }
    assert all(of.values())
    for target in TARGETS:
        assert True in {each.grad for each in of[target.name]}, target.name
        assert target.rule == "feature_map" or False in {each.grad for each in of[target.name]}, (
            target.name
        )


@pytest.mark.clause("VEC-4")
def test_inputs_are_exact_in_bfloat16_and_float16(cases) -> None:
    for name, case in cases.items():
        for key, value in case.inputs.items():
            assert value.dtype.kind in "bu" or exact(value), (name, key)


@pytest.mark.clause("VEC-5")
def test_every_property_occurs_and_is_told_truly(listed, cases) -> None:
    for each in listed.vectors:
        assert each.properties == properties(cases[each.name]), each.name
    shown = {found for each in listed.vectors for found in each.properties}
    assert shown == set(PROPERTIES)


@pytest.mark.clause("VEC-5")
def test_properties_occur_where_they_matter(listed) -> None:
    """Edges, sizes and split calls for every rule with a sequence."""
    for rule in ("omega", "titans_lmm", "delta", "hebbian"):
        shown = {found for each in listed.vectors if each.rule == rule for found in each.properties}
        wanted = {
            "a gate is 0",
            "a gate is 1",
            "d_in below d_out",
            "d_out at least 3",
            "d_out above d_phi",
            "split calls",
            "pulses",
            "resets",
        }
        wanted |= {
            "repeated keys",
            "several heads",
            "gates per output dimension",
            "M0 is not symmetric",
        }
        assert wanted <= shown, (rule, wanted - shown)


@pytest.mark.clause("VEC-6")
def test_recorded_values_are_certified(cases) -> None:
    pytest.importorskip("flint", reason="python-flint is not installed")
    from atlas_ref.vectors.sets.expected import expected

    for name in list(cases)[::9]:
        case = cases[name]
        found = expected(case, grad=any(key.startswith("grad/") for key in case.recorded))
        assert found.keys() == case.recorded.keys()
        for key, value in found.items():
            assert value.tobytes() == case.recorded[key].tobytes(), (name, key)


@pytest.mark.clause("VEC-7", "VEC-18")
def test_a_kill_is_listed_for_every_mutant_in_every_format(listed) -> None:
    """The same kills of each target at float32 and at bfloat16, and hundreds of them."""
    total = 0
    for target in TARGETS:
        killed = {
            dtype: {
                name
                for each in listed.vectors
                if each.target == target.name
                for name in each.kills[dtype]
            }
            for dtype in ("float32", "bfloat16")
        }
        assert killed["float32"] == killed["bfloat16"], target.name
        total += len(killed["float32"])
    assert total > 1800
    assert {
        name for each in listed.vectors for names in each.kills.values() for name in names
    } == set(listed.mutants)


@pytest.mark.clause("VEC-7")
def test_no_vector_is_superfluous(listed) -> None:
    """Sets without one vector, each of which loses a kill or a property of its target."""
    for each in listed.vectors:
        others = [
            other for other in listed.vectors if other.target == each.target and other is not each
        ]
        kills = {(dtype, name) for dtype, names in each.kills.items() for name in names}
        left = {
            (dtype, name)
            for other in others
            for dtype, names in other.kills.items()
            for name in names
        }
        shown = {found for other in others for found in other.properties}
        assert kills - left or set(each.properties) - shown, each.name


@pytest.mark.clause("VEC-8")
def test_the_schema_knows_every_key(shipped, listed) -> None:
    schema = manifest_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    plain = json.loads((shipped / "manifest.json").read_text())
    jsonschema.validate(plain, schema)
    assert plain == listed.plain()
    few = json.dumps(plain | {"vectors": plain["vectors"][:1], "negative": plain["negative"][:1]})
    for spoil in (
        lambda found: found.update(extra=1),
        lambda found: found["vectors"][0].update(extra=1),
        lambda found: found["vectors"][0]["kills"].update(float16=[]),
        lambda found: found["negative"][0]["repair"][0].update(extra=1),
        lambda found: found["vectors"][0].pop("forms"),
    ):
        bad = json.loads(few)
        spoil(bad)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(bad, schema)


@pytest.mark.clause("VEC-7")
def test_the_manifest_follows_the_plan(listed) -> None:
    made = plan.load("v1")
    assert (made.set, made.version) == (listed.set, listed.version)
    assert [(entry.name, entry.target, entry.topic, entry.seed) for entry in made.vectors] == [
        (each.name, each.target, each.topic, each.seed) for each in listed.vectors
    ]
    assert [dict(entry.kills) for entry in made.vectors] == [
        dict(each.kills) for each in listed.vectors
    ]


@pytest.mark.clause("VEC-10")
def test_forms_and_splits_give_the_same_results(listed, cases) -> None:
    seen = set()
    for each in listed.vectors:
        case = cases[each.name]
        assert [(form.form, form.chunk) for form in each.forms] == forms(case)
        assert each.splits == places(case)
        for form in each.forms[::2]:
            found = evaluate(case, form=form.form, chunk=form.chunk).tensors
            _same(found, case.recorded, each.name)
            seen.add(form.form)
        for place in each.splits[:1]:
            head, tail = in_two(case, place)
            both = join(evaluate(head).tensors, evaluate(tail).tensors)
            _same(
                {
                    name: value
                    for name, value in both.items()
                    if name in ("out/y", "out/M", "out/S")
                },
                case.recorded,
                each.name,
            )
    assert seen == {"chunkwise", "exact", "scan", "atlas_parallel", "kernel"}


def _same(found, recorded, name) -> None:
    for key, value in found.items():
        assert relative_error(value, recorded[key]) < 3e-12, (name, key)


@pytest.mark.clause("VEC-14")
def test_a_wheel_has_the_set_where_it_is_looked_for() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    wheel = build["targets"]["wheel"]
    assert {f"vectors/{name}" for name in locate.shipped()} < set(wheel["only-include"])
    assert ROOT / wheel["sources"]["vectors"] == locate.SHIPPED[0]
    assert locate.SHIPPED[1] == ROOT / "vectors"
    assert "vectors" in build["targets"]["sdist"]["include"]


@pytest.mark.sample(1)
@pytest.mark.clause("VEC-17")
@pytest.mark.parametrize("dtype", table.STORAGE)
def test_legal_variants_of_another_program_pass(listed, cases, dtype) -> None:
    """The restatement by hand, which shares no code with ours, with eight ways of rounding.

    Its conventions are those of `spec`.
    """
    tried = 0
    for each in listed.vectors:
        if each.target not in (
            "delta",
            "hebbian",
            "titans_lmm",
            "omega",
            "omega-linear",
            "omega-atlas-paper",
        ):
            continue
        case = cases[each.name]
        known = {"in/active", "in/reset", "in/window_k"} & set(case.inputs)
        if known:
            continue
        tried += 1
        case, grad = round_inputs(case, dtype), "in/y_bar" in case.inputs
        want = {
            name: value
            for name, value in evaluate(case, grad=grad).tensors.items()
            if not name.startswith("out/window")
        }
        allowed = tolerances(case, dtype=dtype, only=list(want), results=want, alternatives=False)
        for way in (PLAIN, *LEGAL):
            found = restatement.run(
                rule_of(case), inputs_of(case), table.STORAGE[dtype], way=way, grad=grad
            )
            results = {
                name: value for name, value in found.items() if name.startswith(("out/", "grad/"))
            }
            assert set(results) <= set(want)
            assert ratio(results, want, allowed) <= PASS, (each.name, way.name)
    assert tried > 15


@pytest.mark.clause("VEC-20")
def test_the_version_has_three_numbers(listed) -> None:
    assert listed.version == "1.0.0"
    assert listed.set == "v1"
    with pytest.raises(ValueError, match="version"):
        manifest.Manifest.model_validate(listed.plain() | {"version": "1.0"})


@pytest.mark.clause("VEC-7")
def test_greedy_choice_covers_and_prunes() -> None:
    def candidate(seed: int, *kills: str, refused: str = "") -> search.Candidate:
        return search.Candidate(
            "t", "a", seed, {("float32", name): 9.0 for name in kills}, frozenset(), refused
        )

    pool = [
        candidate(0, "a", "b"),
        candidate(1, "c", "d"),
        candidate(2, "a", "c", "e"),
        candidate(3, "a", "b", "c", "d", "e", refused="loud"),
    ]
    assert [each.seed for each in search.chosen(pool)] == [0, 1, 2]
    pool[0] = candidate(0, "b")
    assert [each.seed for each in search.chosen(pool)] == [0, 1, 2]
    assert search.missing([candidate(0, "a"), candidate(1, "b", refused="loud")]) == [
        ("float32", "b")
    ]
    weak = candidate(0, "a")._replace(kills={("float32", "a"): search.LISTED - 0.1})
    assert search.missing([weak]) == [("float32", "a")]
    both = [candidate(0, "a", "b", "c"), candidate(1, "a", "b", "d", "e"), candidate(2, "c")]
    assert [each.seed for each in search.chosen(both)] == [0, 1]
