"""M and S are judged in the format of the state, not in that of the results: TOL-7, TOL-8."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.inputs import convert
from atlas_ref.oracle.cases.inputs import round_inputs as stored
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.family.arithmetic import MEMBERS
from atlas_ref.oracle.judge import ensemble, states
from atlas_ref.oracle.judge.alternatives import Alternative
from atlas_ref.oracle.judge.answers import Answer
from atlas_ref.oracle.judge.arrays import judged
from atlas_ref.oracle.judge.tolerance import _with_alternatives, from_members, tolerances
from atlas_ref.oracle.norms import Norms, norms, ulp
from atlas_ref.vectors.mutants.score import LEGAL
from tests.support.casefiles import some, written

Array = Any
KINDS: dict[str, Any] = {
    "float32": np.float32,
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
}
REQUESTS: dict[str, dict[str, Any]] = {
    "hebbian": {"rule": "hebbian"},
    "delta": {"rule": "delta"},
    "titans_lmm": {"rule": "titans_lmm"},
    "titans_lmm frozen": {
        "rule": "titans_lmm",
        "span": 4,
        "convention": {"reference": "chunk_start"},
    },
    "titans_lmm token": {"rule": "titans_lmm", "level": "token"},
    "omega": {"rule": "omega", "window": 3},
    "omega linear": {"rule": "omega", "window": 3, "convention": {"newton_schulz": "none"}},
    "omega momenta": {
        "rule": "omega",
        "window": 3,
        "convention": {"order": "momentum_then_window", "newton_schulz": "none"},
    },
}
#: The dtype asked for, and the dtypes in which a float32 state may be handed over under it.
HANDED = [("float32", "float32")] + [
    (dtype, handed) for dtype in ("bfloat16", "float16") for handed in ("float32", dtype)
]


def case_of(name: str, dtype: str, tokens: int = 12) -> Case:
    request = Request(tokens=tokens, d_in=6, d_out=5, heads=2, seed=1, **REQUESTS[name])
    return stored(new(request, name=name), dtype)


def verdicts(
    case: Case, results: Mapping[str, Array], dtype: str, handed: str, state: str | None = None
) -> dict[str, str]:
    """Verdicts of check on results handed over in `dtype`, their state in `handed`."""
    with np.errstate(over="ignore"):
        answer = {
            name: np.asarray(value).astype(KINDS[handed if states.is_state(name) else dtype])
            for name, value in results.items()
        }
    rows = atlas_ref.check(case, source=lambda _: Answer(answer), dtype=dtype, state_dtype=state)
    return {row.tensor: row.verdict for row in rows if row.tensor in answer}


@pytest.mark.sample(8)
@pytest.mark.clause("TOL-7", "TOL-8", "SRC-10", "CASE-22")
@pytest.mark.parametrize("kept", ["bfloat16", "float16"])
@pytest.mark.parametrize(("dtype", "handed"), HANDED)
@pytest.mark.parametrize("name", REQUESTS)
def test_a_state_that_is_rounded_at_every_token_fails_until_it_is_said(
    name: str, dtype: str, handed: str, kept: str
) -> None:
    case = case_of(name, dtype)
    rounding = ensemble.evaluate(case, convert(case, "float32"), MEMBERS[0], state_dtype=kept)
    found = verdicts(case, rounding, dtype, handed)
    assert found["out/M"] == "WRONG"
    assert found.get("out/S", "WRONG") == "WRONG"
    if handed == "float32":
        assert set(verdicts(case, rounding, dtype, handed, kept).values()) == {"PASS"}


@pytest.mark.sample(4)
@pytest.mark.clause("TOL-7", "TOL-8")
@pytest.mark.parametrize(("dtype", "handed"), HANDED)
@pytest.mark.parametrize("name", REQUESTS)
def test_a_state_in_float32_passes_in_every_legal_arithmetic(
    name: str, dtype: str, handed: str
) -> None:
    case = case_of(name, dtype)
    for way in (*MEMBERS, *LEGAL):
        results = ensemble.evaluate(case, convert(case, "float32"), way)
        assert set(verdicts(case, results, dtype, handed).values()) == {"PASS"}, way.name


@pytest.mark.clause("TOL-8")
@pytest.mark.parametrize("kept", ["bfloat16", "float16"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_loops_that_know_nothing_of_the_oracle_are_judged_likewise(dtype: str, kept: str) -> None:
    """The Delta rule in float32, with and without a state in a narrow format."""
    case = case_of("delta", dtype)
    given = {name: value.astype(np.float32) for name, value in case.inputs.items()}

    def run(kind: Any) -> dict[str, Array]:
        M = given["in/M0"]
        reads = []
        for t in range(12):
            k, v, q = (given[f"in/{name}"][:, t] for name in "kvq")
            e = np.einsum("hij,hj->hi", M, k) - v
            step = given["in/step_size"][:, t, None, None] * e[:, :, None] * k[:, None, :]
            M = given["in/retain"][:, t, None, None] * M - step
            M = M.astype(kind).astype(np.float32)
            reads.append(np.einsum("hij,hj->hi", M, q))
        return {"out/y": np.stack(reads, axis=1), "out/M": M}

    for handed in {"float32", dtype}:
        assert verdicts(case, run(np.float32), dtype, handed)["out/M"] == "PASS"
        assert verdicts(case, run(KINDS[kept]), dtype, handed)["out/M"] == "WRONG"
    assert verdicts(case, run(KINDS[kept]), dtype, "float32", kept)["out/M"] == "PASS"


@pytest.mark.clause("TOL-8")
def test_the_finer_of_both_formats_judges_a_state() -> None:
    for name, dtype, state, kind in (
        ("out/M", "bfloat16", None, "float32"),
        ("out/level1/S", "float16", None, "float32"),
        ("out/M_ref", "bfloat16", "float16", "float16"),
        ("out/window_momentum", "bfloat16", "bfloat16", "bfloat16"),
        ("out/M", "float16", "bfloat16", "float16"),
        ("out/M", "bfloat16", "float64", "float32"),
        ("out/M", "float32", "bfloat16", "float32"),
        ("out/M", "float64", None, "float64"),
        ("out/y", "bfloat16", None, "bfloat16"),
        ("grad/M0", "bfloat16", None, "bfloat16"),
        ("out/window_residual", "float16", None, "float16"),
    ):
        assert states.judged_in(name, dtype, state) == kind
    case = case_of("titans_lmm", "bfloat16", tokens=4)
    of = {"dtype": "bfloat16", "only": ["out/y", "out/M", "out/S"], "alternatives": False}
    float32, kept, before = (
        tolerances(case, **of, **more)
        for more in ({"states": True}, {"states": True, "state_dtype": "bfloat16"}, {})
    )
    assert float32["out/y"] == before["out/y"]
    for name in ("out/M", "out/S"):
        assert float32[name].max < before[name].max / 1e3
        assert (float32[name].dtype, float32[name].handed) == ("float32", "bfloat16")
        assert (kept[name].dtype, kept[name].handed) == ("bfloat16", "")
        assert kept[name].max >= before[name].max


@pytest.mark.clause("TOL-8", "TOL-2")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_one_rounding_is_taken_off_where_the_format_holds_every_number(dtype: str) -> None:
    draw = np.random.default_rng(0)
    want = draw.standard_normal(500) * 10.0 ** draw.integers(-9, 4, 500)
    got = want.astype(KINDS[dtype]).astype(np.float64)
    assert not states.gap(got, want, dtype).any()
    assert np.array_equal(states.gap(got, want, ""), np.abs(got - want))
    assert np.array_equal(
        states.gap(got * (1 + 2.0**-20), want, dtype), np.abs(got * (1 + 2.0**-20) - want)
    )
    for each, half in zip(got, states.half_units(got, dtype), strict=True):
        assert half == ulp(abs(each), dtype) / 2
    beyond = got + 2 * states.half_units(got, dtype)  # the next number of the format
    assert states.holds(beyond, dtype)
    assert states.gap(beyond, want, dtype).min() >= 0
    assert np.mean(states.gap(beyond, want, dtype) > 0) > 0.9


@pytest.mark.clause("TOL-6", "TOL-8")
def test_a_state_that_a_handed_over_format_cannot_hold_is_undecidable() -> None:
    case = case_of("hebbian", "float16")
    large = {**case.inputs, "in/M0": np.full_like(case.inputs["in/M0"], 65000.0)}
    ones = np.full_like(case.inputs["in/retain"], 1.0)
    case = case.replaced(
        inputs=large | {"in/retain": ones, "in/v": np.full_like(case.inputs["in/v"], 60000.0)}
    )
    results = atlas_ref.evaluate(case).tensors
    assert np.abs(results["out/M"]).max() > 65520
    assert verdicts(case, results, "float16", "float16")["out/M"] == "UNDECIDABLE"
    assert verdicts(case, results, "float16", "float32")["out/M"] == "PASS"


@pytest.mark.clause("TOL-6", "TOL-8")
def test_an_alternative_is_hidden_where_one_rounding_hides_it() -> None:
    """Another result that is a thousandth away shows in float32, and not once it is rounded."""
    want = np.array([1.0, -1.5, 1.25])
    bound = from_members("out/M", want, {"exact": want}, "float32")._replace(handed="bfloat16")
    far, near = (
        Alternative({axis: "other"}, {"out/M": Norms(*[distance] * 3)})
        for axis, distance in (("gate", 0.1), ("decay", 1e-3))
    )
    hidden = _with_alternatives(bound, [near], norms(want))
    assert (hidden.merged, hidden.merged_handed) == ((), ("decay other",))
    open_ = _with_alternatives(bound, [near, far], norms(want))
    assert (open_.merged, open_.merged_handed) == ((), ())
    single = want + np.array([0.0, 2.0**-24, 0.0])  # no number of bfloat16
    assert judged("case", "out/M", single, want, hidden).verdict == "PASS"
    row = judged("case", "out/M", want, want, hidden)
    assert row.verdict == "UNDECIDABLE"
    assert row.why == "bfloat16 cannot separate ours from decay other"
    assert judged("case", "out/M", want, want, open_).verdict == "PASS"


@pytest.mark.clause("SRC-10", "TOL-10")
def test_the_commands_judge_a_state_by_its_format(tmp_path: Any, cli: Any) -> None:
    case = case_of("delta", "bfloat16")
    kept = ensemble.evaluate(case, convert(case, "float32"), MEMBERS[0], state_dtype="bfloat16")
    mine = {
        "out/y": kept["out/y"].astype(ml_dtypes.bfloat16),
        "out/M": kept["out/M"].astype(np.float32),
    }
    path = written(tmp_path / "case.safetensors", case.header.plain(), case.inputs)
    results = written(tmp_path / "mine.safetensors", case.header.plain(), mine)
    command = ("check", path, "--against", results, "--dtype", "bfloat16")
    wrong = cli(*command, "--json")
    assert wrong.code == 1
    assert cli(*command, "--state-dtype", "bfloat16").code == 0
    assert "units in the last place of float32), beside half a unit of bfloat16" in wrong.out
    shown = cli("tolerance", f"{path}:M", "--dtype", "bfloat16", "--json").json
    want = tolerances(case, dtype="bfloat16", states=True, only=["out/M"])["out/M"]
    assert shown["tolerance"] == want.norms._asdict()


@pytest.mark.clause("TOL-8")
@pytest.mark.parametrize("dtype", [None, "float32"])
def test_a_format_of_the_state_that_does_not_exist_is_refused_whatever_is_judged(dtype) -> None:
    header, tensors = some("delta")
    case = atlas_ref.make(header, tensors)
    with pytest.raises(atlas_ref.CaseError, match="state-dtype: dtype 'int8' is not available"):
        atlas_ref.check(case, source=lambda _: Answer({}), dtype=dtype, state_dtype="int8")
