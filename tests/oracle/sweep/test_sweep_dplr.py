"""Sweeps of rule dplr: draws, regimes, what is found of a wrong kernel, and how small it gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.dplr import draw
from atlas_ref.oracle.dplr.members import MEMBERS
from atlas_ref.oracle.dplr.parameters import Parameters
from atlas_ref.oracle.drawing import LONG
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.sweep.draw import draw_case, regimes
from atlas_ref.oracle.sweep.sweep import Named, sweep
from tests.support import dplr_kernels as kernels
from tests.support.swept import assert_goes_on, assert_left_is_needed, numbers, source

RULE = "dplr"


def wide(case: Case, name: str) -> np.ndarray[Any, Any]:
    return case.inputs[name].astype(np.float64)


#: Parameters that say how a program stores or cumulates: they change no result, and are not drawn.
DECLARED = ("state_dtype", "state_every", "log_chunk")


@pytest.mark.clause("SWEEP-2", "SWEEP-12", "SWEEP-16")
def test_the_draw_reaches_every_member_parameter_and_tensor() -> None:
    cases = [draw_case(RULE, 0, number, {}) for number in range(400)]
    assert set(Parameters.model_fields) - {*DECLARED, *draw.LATER_PARAMETERS} <= set(draw.SPACE)
    for name in draw.OF_PARAMETERS:
        met = {json.dumps(each.request["parameters"].get(name)) for each in cases}
        default, *others = (json.dumps(value) for value in draw.SPACE[name])
        assert {*others} - {"null", default} <= met, name
    for name in (*draw.OF_TENSORS, "dtype"):
        assert {each.request[name] for each in cases} == set(draw.SPACE[name]), name
    met = {each.request["parameters"].get("member") for each in cases}
    assert met == {None, *draw.DRAWN}
    assert met < {None, *MEMBERS}
    assert {each.regime for each in cases} == {*regimes(RULE), "slow"}
    long = [each for each in cases if each.regime == "slow"]
    assert {each.request["tokens"] for each in long} == set(LONG)
    assert len(long) == 40
    names = {name for each in cases for name in each.case.inputs}
    assert {"in/log_retain", "in/erase_read", "in/bonus", "in/M0", "in/M_bar", "in/reset"} <= names
    bonuses = {
        each.case.inputs["in/bonus"].ndim for each in cases if "in/bonus" in each.case.inputs
    }
    assert bonuses == {1, 2}


@pytest.mark.clause("SWEEP-3", "SWEEP-16")
def test_a_name_is_fixed_and_moves_nothing_else() -> None:
    for number in range(20):
        free = draw_case(RULE, 2, number, {}).request
        held = draw_case(RULE, 2, number, {"state_bar": (True,), "norm_eps": (1e-2,)}).request
        assert held.pop("state_bar") is True
        assert held["parameters"].pop("norm_eps") == 1e-2
        free.pop("state_bar")
        free["parameters"].pop("norm_eps", None)
        assert held == free
    stored = {"state_dtype": ("bfloat16",), "state_every": (4,), "log_chunk": (8,)}
    stated = draw_case(RULE, 2, 0, {**stored, "gate": ("channel",)}).request["parameters"]
    assert stated | {name: value for name, (value,) in stored.items()} == stated
    scalar = draw_case(RULE, 0, 0, {"member": ("kda",), "gate": ("log_token",)}).case
    lead, tokens = scalar.inputs["in/v"].shape[:-2], scalar.inputs["in/q"].shape[-2]
    assert wide(scalar, "in/log_retain").shape == (*lead, tokens)


@pytest.mark.clause("SWEEP-3", "SWEEP-16")
@pytest.mark.parametrize(
    ("fixed", "words"),
    [
        ({"convention": ("spec",)}, "'convention' is not drawn; tokens, d_in, "),
        ({"gate": ("scalar",)}, "gate: 'scalar' is none of token, channel, log_token, log_channel"),
        ({"member": ("delta",), "gate": ("token",)}, "300 attempts, .*gate: .* delta has none"),
        ({"member": ("delta",), "erase": ("pair",)}, "300 attempts, .*erase: .* delta has none"),
        ({"member": ("kda",), "bonus": ("head",)}, "300 attempts, .*bonus: .* kda is as it is"),
        ({"member": ("kdaa",)}, "300 attempts, .*parameters.member"),
        ({"member": ({},)}, "300 attempts, .*parameters.member"),
        ({"steps": ("many",)}, "300 attempts, .*parameters.steps"),
        ({"regime": ("small",)}, "regime 'small' does not exist for dplr; regimes are ordinary, "),
    ],
)
def test_what_does_not_exist_is_refused_in_a_line(fixed: Any, words: str) -> None:
    with pytest.raises(CaseError, match=f"^sweep: .*{words}") as caught:
        sweep(RULE, source(kernels.right), cases=1, choices=fixed)
    assert "\n" not in str(caught.value)


@pytest.mark.clause("SWEEP-4", "SWEEP-16")
def test_regimes_are_what_the_table_says() -> None:
    def case(regime: str, gate: str, tokens: int = 33) -> Case:
        fixed = {"regime": (regime,), "gate": (gate,), "member": ("kda",), "tokens": (tokens,)}
        return draw_case(RULE, 0, 0, {**fixed, "dtype": ("float64",), "state": ("memory",)}).case

    logs = wide(case("edges", "log_channel"), "in/log_retain")
    assert {-np.inf, -100.0, -1000.0, 0.0} <= set(np.unique(logs))
    assert np.mean(logs < -0.3) < 0.5
    for name in ("in/retain", "in/beta"):
        values = wide(case("edges", "channel"), name)
        assert 0.2 < np.mean((values == 0) | (values == 1)) < 0.5
    assert (wide(case("ones", "token"), "in/retain") == 1).all()
    assert (wide(case("ones", "log_token"), "in/log_retain") == 0).all()
    fading = wide(case("fading", "channel"), "in/retain")
    assert (fading.min(), fading.max()) == (2.0**-13, 0.25)
    faded = np.exp(wide(case("fading", "log_channel"), "in/log_retain"))
    np.testing.assert_allclose((faded.min(), faded.max()), (2.0**-13, 0.25), rtol=1e-15)
    sudden = wide(case("sudden", "log_token"), "in/log_retain")
    assert ((sudden == -1000).sum(axis=-1) == 1).all()
    assert (np.sort(sudden, axis=-1)[..., 1:] > -0.02).all()
    assert (
        (wide(case("sudden", "channel"), "in/retain") == 0).any(axis=-1).sum(axis=-1) == 1
    ).all()
    keys = wide(case("repeated", "token"), "in/k")
    assert (keys == keys[..., :1, :]).all()
    assert "in/M0" not in case("empty", "token").inputs
    assert "in/M0" in case("ones", "token").inputs


@pytest.mark.clause("SWEEP-12", "SWEEP-16")
def test_nothing_grows_in_hundreds_of_tokens() -> None:
    most = 0.0
    for number in range(9, 400, 10):
        case = draw_case(RULE, 1, number, {}).case
        most = max(most, float(np.abs(evaluate(case).tensors["out/M"].astype(float)).max()))
    assert most < 200


@pytest.mark.slow
@pytest.mark.clause("SWEEP-5", "SWEEP-16")
def test_a_right_kernel_passes(tmp_path: Path) -> None:
    found = sweep(RULE, source(kernels.right), cases=100, folder=tmp_path)
    skipped = found.counts.pop("NOT SUPPORTED", 0)  # members that came after the kernel
    assert found.counts == {"PASS": 100 - skipped}, found.failures
    assert skipped < 50
    assert list(tmp_path.iterdir()) == []


#: Member that is drawn where it is fixed -> a kernel with a mistake in it.
OF_LATER = {
    "linear_attn_normalized": kernels.bare_divisor,
    "precond_kda": kernels.uncentred,
    "precond_gated_delta": kernels.uncentred,
    "momentum_delta": kernels.late_momentum,
}


@pytest.mark.sample(1)
@pytest.mark.clause("SWEEP-3", "SWEEP-16", "DPLR-19", "DPLR-20", "DPLR-21")
@pytest.mark.parametrize("member", OF_LATER)
def test_a_later_member_is_drawn_where_it_is_fixed(member: str, tmp_path: Path) -> None:
    fixed = {"member": (member,)}
    found = sweep(RULE, source(kernels.right), cases=40, choices=fixed, folder=tmp_path)
    assert found.counts == {"PASS": 40}, found.failures
    assert set(OF_LATER) == set(MEMBERS) - set(draw.DRAWN)
    wrong = source(OF_LATER[member])
    found = sweep(RULE, wrong, cases=10, choices=fixed, folder=tmp_path, keep=1, shrink=100)
    (kept,) = [each for each in found.failures if each.file is not None]
    case = atlas_ref.load(tmp_path / str(kept.file))
    assert case.inputs["in/q"].shape[-2] == 1
    assert numbers(case) <= 12
    assert any(row.verdict == "WRONG" for row in atlas_ref.check(case))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
def test_a_right_kernel_passes_of_other_seeds(seed: int, tmp_path: Path) -> None:
    found = sweep(RULE, source(kernels.right), cases=300, seed=seed, folder=tmp_path)
    assert set(found.counts) <= {"PASS", "NOT SUPPORTED"}, found.failures
    assert found.counts["PASS"] > 150


#: What is left of a case that shows a mistake, in tokens and in numbers.
LEFT = {
    kernels.decay_order: (2, 12),
    kernels.bare_key: (2, 10),
    kernels.round_robin: (1, 12),
    kernels.decays_every_step: (2, 14),
    kernels.cumulated_logs: (3, 16),
    kernels.resets_to_zero: (1, 6),
}


@pytest.mark.sample(1)
@pytest.mark.clause("SWEEP-7", "SWEEP-16")
@pytest.mark.parametrize("mistake", LEFT, ids=lambda each: each.__name__)
def test_a_mistake_is_found_and_shrunk_to_what_it_needs(mistake: Any, tmp_path: Path) -> None:
    found = sweep(RULE, source(mistake), cases=60, folder=tmp_path, keep=2, shrink=200)
    kept = [each for each in found.failures if each.file is not None]
    assert len(kept) == 2
    tokens, most = LEFT[mistake]
    for each in kept:
        case = atlas_ref.load(tmp_path / str(each.file))
        assert case.inputs["in/q"].shape[-2] <= tokens
        assert numbers(case) <= most
        assert any(row.verdict == "WRONG" for row in atlas_ref.check(case))


@pytest.mark.slow
@pytest.mark.clause("SWEEP-12", "SWEEP-16")
def test_a_chunk_that_starts_too_early_is_found_in_long_cases_alone(tmp_path: Path) -> None:
    found = sweep(RULE, source(kernels.late_by_64), cases=40, folder=tmp_path, keep=1)
    assert found.failures
    assert {each.number % 10 for each in found.failures} == {9}
    case = atlas_ref.load(tmp_path / str(found.failures[0].file))
    assert case.inputs["in/q"].shape[-2] == 65
    assert numbers(case) == 3 * 65


#: What a mistake may need, and how many numbers are left of a case with it alone.
NEEDS = {
    "nothing": (lambda case: True, 3),
    "a group": (lambda case: (case.header.parameters or {}).get("groups", 1) > 1, 4),
    "a step": (lambda case: (case.header.parameters or {}).get("steps", 1) > 1, 5),
    "a bonus": (lambda case: "in/bonus" in case.inputs and "in/bonus" in case.inputs, 4),
    "a member": (lambda case: (case.header.parameters or {}).get("member") == "gdn2", 5),
    "a turned state": (
        lambda case: (
            (case.header.parameters or {}).get("state_layout") == "(d_in, d_out)"
            and "in/M0" in case.inputs
        ),
        4,
    ),
    "a gate of channels": (
        lambda case: (
            "in/log_retain" in case.inputs
            and case.inputs["in/log_retain"].ndim == case.inputs["in/v"].ndim
        ),
        4,
    ),
    "a gate of zero": (
        lambda case: (
            "in/log_retain" in case.inputs and np.isneginf(wide(case, "in/log_retain")).any()
        ),
        4,
    ),
    "two heads": (lambda case: case.inputs["in/v"].ndim > 2 and len(case.inputs["in/v"]) > 1, 6),
}


@pytest.mark.clause("SWEEP-7", "SWEEP-16")
def test_what_is_left_of_a_case_is_what_a_mistake_needs() -> None:
    assert_left_is_needed(RULE, NEEDS, 120)


@pytest.mark.slow
@pytest.mark.clause("SWEEP-8", "SWEEP-9", "SWEEP-16")
def test_a_sweep_in_processes_goes_on_from_its_log(tmp_path: Path) -> None:
    named = Named("function", "tests.support.dplr_kernels:resets_to_zero")
    assert_goes_on(RULE, named, tmp_path, cases=20, first=8)


@pytest.mark.slow
@pytest.mark.clause("SWEEP-11", "SWEEP-16")
def test_the_command_sweeps_the_rule(cli: Any, tmp_path: Path) -> None:
    words = ["sweep", RULE, "--fix", "member=kda,gated_delta", "--fix", "dtype=float32"]
    words += ["--cases", "8", "-o", tmp_path / "out"]
    right = cli(*words, "--impl", "tests.support.dplr_kernels:right")
    assert (right.code, right.err) == (0, "")
    assert "sweep dplr, seed 0, 8 cases: 8 PASS" in right.out
    wrong = cli(*words, "--impl", "tests.support.dplr_kernels:decay_order", "--keep", "1")
    assert wrong.code == 1
    (file,) = (tmp_path / "out").iterdir()
    again = cli("check", file)
    assert again.code == 1
    assert "DPLR" in again.out
