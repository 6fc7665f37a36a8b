"""A group from inputs to ratios: on the CPU, on the strict stand-in, and with candidates that
fail.
"""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import tests.support.standin.array
from atlas_ref import backend
from benchmarks import memories
from benchmarks.gpu import __main__ as command
from benchmarks.gpu import batches, checks, devices, plan, running, speeds, storage
from benchmarks.gpu.devices import Cpu, Peak, Unavailable, open_device
from benchmarks.gpu.plan import Candidate, Foreseen, Group
from benchmarks.gpu.running import Settings
from benchmarks.measure import Spread, Work
from tests.support.close import assert_close, reordered

SPEEDS = speeds.Speeds(Spread.one(1e9), Spread.one(1e9), Spread.one(2e9))
BRIEF = Settings(slot=0.0, longest=10.0)
OURS = (
    "chunkwise",
    "exact",
    "sequential",
    "scan",
    "atlas_parallel",
    "kernel",
    "exact, bfloat16 storage",
    "chunkwise, bfloat16 storage",
)


class Elsewhere(Cpu):
    """A device whose arrays refuse what CuPy's refuse, and no PyTorch."""

    name = "strict"

    def __init__(self) -> None:
        self.torch = None
        self.there = backend.named(tests.support.standin.array.NAME)

    def ours(self, array: Any) -> Any:
        return self.there.from_host(array)

    def host(self, array: Any) -> np.ndarray[Any, Any]:
        return self.there.to_host(array)

    def tiled(self, array: Any, shape: tuple[int, ...]) -> Any:
        return self.ours(super().tiled(self.host(array), shape))

    def peak(self, work: Work) -> Peak:
        work()
        return Peak(0.0, "not counted")


def group(
    name: str, labels: tuple[str, ...] = OURS, tokens: int = 32, heads: int = 2, d: int = 6
) -> Group:
    (subject,) = [each for each in plan.SUBJECTS if each.name == name]
    return Group(
        subject,
        heads,
        d,
        tokens,
        tuple(each for each in subject.candidates if each.label in labels),
    )


def test_inputs_of_any_size_repeat_what_was_drawn_on_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running, "DRAWN", (2, 16))
    one = group("gated delta", tokens=40, heads=3)
    arrays, bar = running.inputs(one, Cpu())
    drawn = memories.sequence(one.memory, 16, heads=2)
    assert {name: array.shape for name, array in arrays.items()} == {
        "k": (3, 40, 6), "v": (3, 40, 6), "q": (3, 40, 6), "retain": (3, 40), "step_size": (3, 40)
    }  # fmt: skip
    assert bar.shape == (3, 40, 6)
    assert np.array_equal(arrays["k"][2, 32:], drawn["k"][0, :8])
    assert np.array_equal(arrays["retain"][1, 16:32], drawn["retain"][1])


@pytest.mark.slow
@pytest.mark.parametrize("name", [subject.name for subject in plan.SUBJECTS])
def test_every_candidate_of_ours_runs_and_is_right(name: str) -> None:
    one = group(name)
    found = running.measured(one, Cpu(), BRIEF, Foreseen(), SPEEDS)
    assert len(found.figures) == 2 * len(one.candidates) >= 4
    for figure in found.figures:
        assert figure.skipped is None
        assert figure.error is not None
        # bfloat16: the rounding of what leaves, 2^-8 at most
        assert figure.error < (4e-3 if figure.storage == "bfloat16" else 1e-3)
        assert figure.error > (1e-4 if figure.storage == "bfloat16" else 0)
        assert figure.right
        assert figure.seconds.median > 0
        assert figure.bandwidth > 0
        assert figure.rate > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gated delta", "frozen Omega in spans"])
def test_nothing_in_a_run_leaves_the_device(name: str) -> None:
    """A run on the stand-in, which raises on conversions and on waits for the device.

    Only the checks of a call's arguments may look.
    """
    device = Elsewhere()
    with backend.used(tests.support.standin.array.NAME):
        found = running.measured(group(name), device, BRIEF, Foreseen(), SPEEDS)
    for figure in found.figures:
        assert figure.skipped is None, f"{figure.label}: {figure.skipped}"
        assert figure.right
        assert figure.error is not None


def test_a_form_from_a_state_that_was_made_before_copies_nothing() -> None:
    """The condition of a CUDA graph: a look at a value would break the recording off."""
    device = Elsewhere()
    one = group("gated delta")
    with backend.used(tests.support.standin.array.NAME):
        arrays, bar = running.inputs(one, device)
        start = memories.started(one.memory, arrays)
        copies = device.there.copies
        before = copies.to_host, copies.to_device
        memories.forward(one.memory, arrays, "exact", start=start)
        assert copies.to_host == before[0]
        memories.both(one.memory, arrays, bar, "exact", start=start)
        assert copies.to_host == before[0]


@pytest.mark.slow
def test_a_candidate_that_fails_is_a_line_and_the_others_go_on() -> None:
    one = group("gated delta", ("exact",))
    broken = Candidate("broken", "no such form")
    graph = Candidate("exact, CUDA graph", "exact", graph=True)
    large = Candidate("large", "exact", floats=(1e15, 1e15))
    one = one._replace(candidates=(broken, graph, large, *one.candidates))
    figures = {
        each.label: each for each in running.measured(one, Cpu(), BRIEF, Foreseen(), SPEEDS).figures
    }
    assert str(figures["broken"].skipped).startswith("failed: ValueError: form: 'no such form'")
    assert figures["exact, CUDA graph"].skipped == "a CUDA graph needs a GPU"
    assert "would hold about" in str(figures["large"].skipped)
    assert figures["exact"].skipped is None


@pytest.mark.slow
def test_what_would_take_too_long_is_left_out() -> None:
    one, foreseen = group("gated delta", ("exact", "sequential")), Foreseen()
    small = one._replace(tokens=16)
    sequential = one.candidates[-1]
    foreseen.note(small, sequential, "both", 100.0)
    figures = running.measured(one, Cpu(), BRIEF, foreseen, SPEEDS).figures
    skipped = {(each.label, each.kind): each.skipped for each in figures if each.skipped}
    assert skipped == {("sequential", "both"): "one run would take about 200.0 s"}


def test_an_error_is_that_of_the_worst_result_and_nan_is_none() -> None:
    exact = np.array([3.0, 4.0]), {"k": np.array([1.0])}
    assert running.error((np.array([3.0, 4.5]), None), exact) == 0.1
    assert running.error((exact[0], {"k": np.array([0.5])}), exact) == 0.5
    assert math.isinf(running.error((np.array([3.0, math.nan]), None), exact))


def test_ratios_are_theirs_over_ours_round_by_round() -> None:
    one = group("gated delta", ("exact",))
    ours = running._blank(one, one.candidates[0], "forward")
    theirs = ours._replace(label="PyTorch eager", ours=False)
    (ratio,) = running._ratios(
        {"exact": ours, "PyTorch eager": theirs},
        {"exact": [1.0, 2.0, 1.0, 9.0], "PyTorch eager": [2.0, 8.0, 3.0]},
    )
    assert ratio.faster == Spread(2.5, 3.0, 3.5)


def test_shares_are_useful_work_over_what_was_measured() -> None:
    one = group("delta", ("exact",), tokens=16, heads=1, d=8)
    figure = running._finished(
        running._blank(one, one.candidates[0], "forward"), [2.0, 2.0, 2.0], one, SPEEDS
    )
    assert figure.bandwidth == 4 * 16 * (4 * 8 + 1) / 2.0 / 1e9
    assert figure.seconds == Spread.one(2.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gated delta", "frozen Omega with Newton-Schulz"])
def test_forms_on_a_device_are_checked_against_numpy_and_the_sequential_rule(name: str) -> None:
    (subject,) = [each for each in plan.SUBJECTS if each.name == name]
    device = Elsewhere()
    with backend.used(tests.support.standin.array.NAME):
        found = checks.checks([subject], device)
    forms = {each.form for each in subject.candidates if each.ours}
    # reads, gradients; float32 and float64 against NumPy, float64 against the rule
    assert len(found) == len(forms) * 2 * 3
    assert all(each.kept for each in found)
    assert {each.against for each in found} == {"NumPy", "float64 sequential"}


def test_a_form_that_is_wrong_on_the_device_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = checks._on_device

    def wrong(*given: Any) -> Any:
        y, gradient = right(*given)
        return y * (1 + 1e-3), gradient

    monkeypatch.setattr(checks, "_on_device", wrong)
    (subject,) = [each for each in plan.SUBJECTS if each.name == "delta"]
    found = checks.checks([subject], Cpu())
    assert {each.what for each in found if not each.kept} == {"reads"}


def test_bfloat16_storage_rounds_to_nearest_ties_to_even() -> None:
    import ml_dtypes

    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32) * np.float32(1e3)
    ties = np.array([1.00390625, 1.01171875, -1.00390625, 0.0, -0.0, 3.3e38, 1e-40], np.float32)
    for values in (x, ties):
        found = storage.widened(storage.narrowed(values))
        assert np.array_equal(
            found.view(np.uint32),
            values.astype(ml_dtypes.bfloat16).astype(np.float32).view(np.uint32),
        )


def test_newton_schulz_alone_is_measured_beside_pytorch() -> None:
    pytest.importorskip("torch", reason="the reference is written in PyTorch (extra bench)")
    found = batches.measured(8, 6, "float32", Cpu(), BRIEF, SPEEDS)
    assert [(each.label, each.kind) for each in found.figures] == [
        ("Newton-Schulz", "forward"), ("PyTorch eager", "forward"), ("Newton-Schulz", "both"), ("PyTorch eager", "both")
    ]  # fmt: skip
    assert all(each.error is not None and each.error < 1e-4 for each in found.figures)
    assert len(found.ratios) == 2
    first = found.figures[0]
    assert_close("rate", first.rate, 2 * 8 * 15 * 6**3 / first.seconds.median / 1e9, reordered(1))


def test_newton_schulz_on_bfloat16_storage_is_held_against_that_rate() -> None:
    device = Cpu()
    device.torch = None
    figure = batches.measured(8, 6, "bfloat16", device, BRIEF, SPEEDS).figures[0]
    assert figure.storage == "bfloat16"
    assert figure.error is not None
    assert 1e-4 < figure.error < 4e-3
    assert math.isclose(figure.rate, 2 * 8 * 15 * 6**3 / figure.seconds.median / 2e9)


def test_newton_schulz_without_pytorch_has_no_reference() -> None:
    device = Cpu()
    device.torch = None
    figures = batches.measured(8, 6, "float32", device, BRIEF, SPEEDS).figures
    assert [each.skipped is None for each in figures] == [True, False] * 2


def test_without_cupy_the_command_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cupy", None)
    for variable in ("CUPY_TF32", "ATLAS_REF_TF32", "TRITON_F32_DEFAULT"):
        monkeypatch.setenv(variable, "")
    with pytest.raises(Unavailable, match="CuPy does not import"):
        open_device("cuda")
    made = CliRunner().invoke(_app(), [])
    assert made.exit_code == 2
    assert made.output.count("\n") == 1
    assert "bench-gpu: CuPy does not import" in made.output
    assert "--list prints the plan" in made.output


def _app() -> Any:
    typer = importlib.import_module("typer")
    app = typer.Typer()
    app.command()(command.main)
    return app


@pytest.mark.slow
def test_the_whole_command_runs_in_small_on_the_cpu_and_says_that_it_measured_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "TINY", ((2, 4, 64), (2, 4, 128)))
    monkeypatch.setattr(plan, "SUBJECTS", plan.SUBJECTS[1:3])
    monkeypatch.setattr(command, "SUBJECTS", plan.SUBJECTS[1:2])
    monkeypatch.setattr(devices.measure, "machine", dict)
    with backend.used("numpy"):
        made = CliRunner().invoke(_app(), ["--device", "cpu", "--quick", "--out", str(tmp_path)])
    assert made.exit_code == 0, made.output
    assert made.output.count(command.NOT_A_GPU[:20]) == 2
    data = json.loads((tmp_path / "bench-gpu.json").read_text(), parse_constant=pytest.fail)
    assert data["machine"]["measured"] is False
    assert {each["word"] for each in data["targets"]} == {"open"}
    ran = {
        (each["subject"], each["label"], each["tokens"])
        for each in data["figures"]
        if each["skipped"] is None
    }
    assert {("delta", "exact", 64), ("gated delta", "exact", 128)} <= ran
    assert all(each["kept"] for each in data["checks"])


@pytest.mark.slow
def test_a_budget_that_is_spent_leaves_groups_out_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "SUBJECTS", plan.SUBJECTS[1:2])
    monkeypatch.setattr(command, "SUBJECTS", plan.SUBJECTS[1:2])
    monkeypatch.setattr(devices.measure, "machine", dict)
    with backend.used("numpy"):
        made = CliRunner().invoke(
            _app(), ["--device", "cpu", "--quick", "--budget", "0.001", "--out", str(tmp_path)]
        )
    assert made.exit_code == 0, made.output
    assert (
        f"not run  gated delta, 2 heads, d = 8, T = {plan.TINY[1][2]}: the budget of 0.001 s "
        "was spent"
    ) in made.output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--budget", "nan"], "--budget nan: expected seconds, at least 0"),
        (["--budget", "-5"], "--budget -5: expected seconds, at least 0"),
        (["--out", "FILE/folder"], "--out FILE/folder: Not a directory"),
    ],
)
def test_what_would_be_lost_at_the_end_is_refused_at_the_start(
    tmp_path: Path, options: list[str], words: str
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    options = [each.replace("FILE", str(file)) for each in options]
    with backend.used("numpy"):
        made = CliRunner().invoke(_app(), ["--device", "cpu", "--out", str(tmp_path), *options])
    assert made.exit_code == 2
    assert "".join(made.output.split("\n")) == f"bench-gpu: {words.replace('FILE', str(file))}"
