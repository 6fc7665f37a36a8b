"""The plan of `make bench-gpu`: every form, size and reference in order, and the omissions with
reasons.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from atlas_ref.forms import support
from benchmarks import memories, useful
from benchmarks.gpu import __main__ as command
from benchmarks.gpu import plan, warm
from benchmarks.gpu.plan import Candidate, Foreseen, Group

ROOT = Path(__file__).parents[3]
FULL = list(plan.groups(quick=False))


def group(name: str, heads: int = 8, d: int = 64, tokens: int = 8192) -> Group:
    (subject,) = [each for each in plan.SUBJECTS if each.name == name]
    return Group(subject, heads, d, tokens, subject.candidates)


def test_every_subject_is_planned_at_every_size() -> None:
    sizes = {
        (heads, d, tokens)
        for heads in (8, 64)
        for d in (64, 128)
        for tokens in (1024, 8192, 32768, 131072)
    }
    assert set(plan.SIZES) == sizes
    assert len(plan.SIZES) == len(sizes)
    early = [each for each in FULL if not each.has_triton]
    assert len(early) == len(sizes) * len(plan.SUBJECTS)


def test_what_triton_compiles_comes_last_beside_our_own_form() -> None:
    late = [each for each in FULL if each.has_triton]
    assert FULL[-len(late) :] == late
    assert len(late) == 2 * len(plan.SIZES)  # delta and gated delta
    for one in late:
        assert one.candidates[0].judged
        assert all(each.is_triton or each.ours for each in one.candidates)


def test_every_form_that_computes_something_is_planned() -> None:
    forms = {each.form for subject in plan.SUBJECTS for each in subject.candidates if each.ours}
    assert forms == set(support.SUPPORT) - {"tnt"}  # which is no form of one memory


def test_every_form_that_is_planned_computes_its_rule() -> None:
    for subject in plan.SUBJECTS:
        rule = subject.memory.rule.__name__.rpartition(".")[2]
        for each in subject.candidates:
            if each.form is not None:
                assert support.refusal(rule, subject.memory.config.convention, each.form) is None


def test_rows_on_bfloat16_storage_are_run_where_they_are_asked_for() -> None:
    labels = {each.label for one in FULL for each in one.candidates}
    asked = {
        each.label
        for one in plan.groups(quick=False, storage=("float32", "bfloat16"))
        for each in one.candidates
    }
    assert asked - labels == {"chunkwise, bfloat16 storage", "exact, bfloat16 storage"}


def test_a_short_run_is_a_part_of_the_long_one() -> None:
    short = list(plan.groups(quick=True))
    long = {(one.title, one.has_triton): one for one in FULL}
    assert len(short) < len(FULL) / 4
    for one in short:
        assert {each.label for each in one.candidates} <= {
            each.label for each in long[one.title, one.has_triton].candidates
        }
        assert any(each.judged for each in one.candidates)


@pytest.mark.parametrize(
    ("name", "label", "size", "reason"),
    [
        ("gated delta", "exact", (64, 64, 131072), None),
        ("gated delta", "exact", (64, 128, 131072), "would hold about 116 GB"),
        ("gated delta", "scan", (64, 128, 131072), "would hold about"),
        ("gated delta", "kernel", (8, 64, 8192), "not tried beyond T = 1024"),
        ("frozen Omega", "atlas-rnn cell", (64, 128, 8192), "would hold about"),
        ("frozen Omega", "atlas-rnn cell", (8, 64, 8192), None),
    ],
)
def test_what_would_not_fit_is_refused_with_the_estimate(
    name: str, label: str, size: tuple[int, int, int], reason: str | None
) -> None:
    one = group(name, *size)
    (candidate,) = [each for each in one.candidates if each.label == label]
    found = plan.refusal(candidate, one, "both", 141e9)
    assert found is None if reason is None else reason in str(found)


def test_an_estimate_grows_with_what_the_candidate_holds() -> None:
    def bytes_of(grows: str, tokens: int, d: int) -> float:
        return Candidate("x", grows=grows, floats=(1, 1)).bytes_needed("forward", 2, d, tokens)

    assert bytes_of("numbers", 100, 8) == 4 * (2 * 100 * 8) * 6
    assert bytes_of("matrices", 100, 8) == 4 * (2 * 100 * 8) * (8 + 5)
    assert bytes_of("steps", 100, 8) == 4 * (2 * 100 * 8) * (100 + 5)


def test_seconds_are_foreseen_from_smaller_sizes() -> None:
    foreseen, small = Foreseen(), group("gated delta", tokens=1024)
    exact, kernel = (
        next(each for each in small.candidates if each.label == label)
        for label in ("exact", "kernel")
    )
    assert foreseen.seconds(small, exact, "both") is None
    foreseen.note(small, exact, "both", 0.5)
    foreseen.note(small, kernel, "both", 0.5)
    assert foreseen.seconds(group("gated delta", tokens=8192), exact, "both") == 4.0
    assert foreseen.seconds(group("gated delta", 16, 128, 1024), exact, "both") == 4.0
    assert foreseen.seconds(group("gated delta", tokens=2048), kernel, "both") == 2.0
    assert foreseen.seconds(small, exact, "forward") is None


def test_the_plan_is_listed_without_a_gpu_or_pytorch() -> None:
    """The list of the plan, in a process of its own.

    Nothing may import CuPy or PyTorch on the way.
    """
    code = (
        "import sys, json; from benchmarks.gpu import plan, __main__ as command;"
        "lines = list(command.listed(list(plan.groups(quick=False))));"
        "print(json.dumps([lines, sorted({'torch', 'cupy'} & set(sys.modules))]))"
    )
    made = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    lines, loaded = json.loads(made.stdout)
    assert loaded == []
    assert lines == list(command.listed(FULL))
    assert sum(not line.startswith("  ") or line.lstrip()[0].isdigit() for line in lines) == len(
        FULL
    )
    assert any("kernel: not run, not tried beyond T = 1024" in line for line in lines)


def test_triton_kernels_are_compiled_once_for_each_number_of_heads_and_d() -> None:
    shapes = warm.shapes(FULL)
    assert len(shapes) == len(set(shapes)) == 3 * 4  # gated delta in two formats, delta in one
    assert shapes[0] == ("fla gated delta", "float32", 8, 64)


def test_without_triton_nothing_is_compiled_in_advance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm.importlib.util, "find_spec", lambda name: None)
    assert warm.begin(FULL) == []
    assert warm.wait([]) == "0 of 0 shapes of Triton kernels"


@pytest.mark.slow
def test_a_process_that_compiles_too_long_is_ended() -> None:
    slow = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    quick = subprocess.Popen([sys.executable, "-c", ""])
    assert warm.wait([quick, slow], patience=3.0) == "1 of 2 shapes of Triton kernels"
    assert slow.poll() is not None


def test_useful_bytes_are_inputs_and_results_once() -> None:
    delta = memories.sized(memories.FLA_DELTA, 4)
    assert useful.bytes_moved(delta, 2, 10, "forward") == 4 * 2 * 10 * (4 + 4 + 4 + 1 + 4)
    assert useful.bytes_moved(delta, 2, 10, "both") == 4 * 2 * 10 * (3 * (4 + 4 + 4 + 1) + 2 * 4)
    assert (
        useful.bytes_moved(delta, 2, 10, "both", 2) == useful.bytes_moved(delta, 2, 10, "both") / 2
    )


def test_useful_multiply_adds_of_an_exact_chunk_by_hand() -> None:
    """Count of 16 tokens at d = 8 without momentum.

    Keys by keys, queries by keys, two products with M, substitution, reads, end state.
    """
    assert (
        useful.exact(8, 1, 16, momentum=False)
        == 16 * 16 * 8 * 2 + 16 * 8 * 8 * 3 + 16 * 16 * 8 // 2 + 16 * 16 * 8
    )
    assert (
        useful.exact(8, 1, 16, momentum=True) - useful.exact(8, 1, 16, momentum=False)
        == 3 * 16 * 8 * 8
    )


@pytest.mark.parametrize(
    ("memory", "products"), [(memories.FLA_DELTA, 3), (memories.FLA_MOMENTUM_DELTA, 4)], ids=str
)
def test_a_sequence_is_counted_in_the_form_that_needs_fewest(
    memory: memories.Memory, products: int
) -> None:
    """In chunks of the best size, or token after token: products with the state."""
    for d in (64, 8):
        momentum = products == 4
        counts = [128 * useful.exact(d, 1, 2**n, momentum=momentum) // 2**n for n in range(1, 9)]
        fewest = min(*counts, 128 * products * d * d)
        sized = memories.sized(memory, d)
        assert useful.multiply_adds(sized, 3, 128, "forward") == 3 * fewest
        assert useful.multiply_adds(sized, 3, 128, "both") == 9 * fewest


def test_newton_schulz_counts_three_products_a_step_and_token() -> None:
    memory = memories.sized(memories.FROZEN_NEWTON_SCHULZ, 16)
    assert useful.multiply_adds(memory, 1, 1, "forward") == 15 * 16**3 + 2 * 16 * 16**2 + 16**2
