"""The report and files of `make bench`: verdicts, one JSON file without nan, and the figures."""

from __future__ import annotations

import json
import math
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atlas_ref.backend.threads import processors
from benchmarks import __main__ as bench
from benchmarks import awake, distance, kernels, measure, parallel, scaling
from benchmarks.measure import Report, Row, Spread, Target


def row(
    target: Target | None = None, ratio: float = 2.0, ours: float = 10.0, error: float | None = 1e-7
) -> Row:
    return Row(
        "what",
        "MB",
        Spread.one(ours),
        "reference",
        Spread.one(math.nan),
        Spread.one(ratio),
        target,
        error,
    )


@pytest.mark.parametrize(
    ("made", "word"),
    [
        (row(Target("at most", 2.5)), "met"),
        (row(Target("at most", 1.5)), "missed"),
        (row(Target("at least", 1.5)), "met"),
        (row(Target("at least", 2.5)), "missed"),
        (row(Target("between", 0.9, high=1.1), ratio=1.2), "missed"),
        (row(Target("between", 0.9, high=1.1)), "missed"),
        (row(Target("between", 0.9, high=2.1)), "met"),
        (row(Target("at most", None, 9)), "missed"),
        (row(Target("at most", None, 11)), "met"),
        (row(Target("at most", 2.5), error=0.1), "missed"),  # a wrong result keeps no target
        (row(Target("at most", 2.5), ratio=math.nan), "open"),
    ],
)
def test_a_target_is_met_missed_or_open(made: Row, word: str) -> None:
    (line,) = bench._targets([made, row()])
    assert line.replace("[green]", "").replace("[bold red]", "").startswith(word)


def test_everything_goes_to_one_json_file_and_a_figure_for_each_module_that_has_one(
    tmp_path: Path,
) -> None:
    reports = {
        "one": Report(
            [row(Target("at most", 2.5)), row()],
            {"points": [1, math.nan]},
            ("one.png", lambda path: path.write_bytes(b"drawn")),
        ),
        "two": Report([row(Target("at most", 2.5), ratio=math.nan)]),
    }
    paths = bench._written({"processors": 2}, reports, {"one": 1.0}, tmp_path / "new", None)
    assert paths == [tmp_path / "new" / "bench.json", tmp_path / "new" / "one.png"]
    assert paths[1].read_bytes() == b"drawn"
    found = json.loads(paths[0].read_text(), parse_constant=pytest.fail)
    assert [each["target"] and each["met"] for each in found["rows"]] == [True, None, None]
    assert found["rows"][0]["theirs"]["median"] is None
    assert found["data"] == {"one": {"points": [1, None]}}


def test_without_matplotlib_the_figure_alone_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    points = [
        scaling.Point(tokens, 1e-6 * tokens, 1e3 * tokens, 1e2 * tokens) for tokens in scaling.SIZES
    ]
    drawn = {
        "scaling": Report(
            [], None, ("scaling.png", lambda path: scaling._draw({"a form": points}, path))
        ),
        "distance": Report(
            [], None, ("distance.png", lambda path: distance._draw({1: [0.0], 2: [1e-3]}, path))
        ),
    }
    assert bench._written({}, drawn, {}, tmp_path, None) == [tmp_path / "bench.json"]
    assert capsys.readouterr().out.count("not drawn") == 2


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_slope_is_the_power_of_t_from_a_thousand_tokens_on(power: float) -> None:
    """A slope from the ratios alone: the seconds were measured minutes apart."""
    first = scaling.LINEAR_FROM
    points = [
        scaling.Point(n, 7.0, 1.0, 1.0, math.nan if n < first else (n / first) ** power)
        for n in scaling.SIZES
    ]
    assert math.isclose(scaling.slope(points), power, rel_tol=1e-9)


def test_a_longer_sequence_is_timed_between_two_runs_of_the_first_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, paces = [0.0], iter([1.0, 1.0, 5.0, 5.0, 5.0, 5.0])

    def short() -> None:
        clock[0] += 0.1 * next(paces, 5.0)

    def long(*_: Any) -> Any:
        return lambda: clock.__setitem__(0, clock[0] + 0.4 * next(paces, 5.0)) or np.zeros(1)

    monkeypatch.setattr(measure.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(measure.timer, "__defaults__", (lambda: clock[0], 0.0))
    monkeypatch.setattr(scaling, "work", long)
    monkeypatch.setattr(scaling.memories, "size_of", lambda made: 0)
    point = scaling._point(scaling.FORMS[0], 16, short)
    # although the machine has slowed down five times
    assert math.isclose(point.ratio, 4.0, rel_tol=1e-9)


@pytest.mark.parametrize(("lead", "untimed"), [(0.0, 0), (1.0, 4), (1.1, 5)])
def test_a_lead_runs_the_work_untimed_before_each_sample(
    lead: float, untimed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []

    def work() -> None:
        runs.append(1)

    def clock() -> float:
        return 0.25 * len(runs)

    monkeypatch.setattr(measure.time, "perf_counter", clock)
    seconds = measure.timer(work, clock, lead=lead)
    for count in (1, 2):
        assert seconds() == 0.25
        assert len(runs) == count * (untimed + 1)


@pytest.mark.sample(1)
@pytest.mark.parametrize("tokens", [scaling.SIZES[-2], scaling.SIZES[-1]])
@pytest.mark.parametrize("beside", [True, False])
def test_memory_is_touched_before_the_runs_of_a_point_and_outside_of_their_time(
    beside: bool, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, seen = [0.0], []

    def runs(what: Any, seconds: float) -> Any:
        def run(*_: Any) -> Any:
            seen.append(what)
            clock[0] += seconds
            return np.zeros(1)

        return run

    monkeypatch.setattr(measure.timer, "__defaults__", (lambda: clock[0], 0.0))
    monkeypatch.setattr(scaling, "touch", lambda size: runs(size, 100.0)())
    monkeypatch.setattr(scaling, "peak_memory", lambda once: 1.5)
    monkeypatch.setattr(scaling, "work", lambda *_: runs("run", 4.0))
    point = scaling._point(scaling.FORMS[0], tokens, runs("reference", 1.0) if beside else None)
    assert point.peak == 1.5e6
    assert point.seconds == 4.0
    after = seen[seen.index(1_500_000) + 1 :]
    assert after == (
        ["reference", *["run", "reference"] * (2 if tokens == scaling.SIZES[-1] else 3)]
        if beside
        else ["run"]
    )
    assert seen[: seen.index(1_500_000)].count("run") == (beside and tokens < scaling.SIZES[-1]), (
        "for the work space of the thread"
    )
    assert point.ratio == 4.0 if beside else math.isnan(point.ratio)


def test_touched_memory_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[slice] = []

    class Room:
        def __setitem__(self, where: slice, value: int) -> None:
            written.append(where)

    made: list[tuple[Any, ...]] = []
    monkeypatch.setattr(measure.np, "empty", lambda *given: made.append(given) or Room())
    measure.touch(2**20)
    assert made == [(2**20, np.uint8)]
    assert written == [slice(None, None, measure.mmap.PAGESIZE)]


HASWELL = {"internal_api": "openblas", "architecture": "Haswell"}


@pytest.mark.parametrize(
    ("libraries", "features", "given"),
    [
        ([HASWELL], ["X86_V3", "X86_V4"], True),
        (
            [{"internal_api": "openmp"}, HASWELL],
            ["AVX2", "AVX512F"],
            True,
        ),  # as older versions of NumPy name it
        ([HASWELL | {"architecture": "Zen"}], ["X86_V4"], True),
        ([HASWELL | {"architecture": "Prescott"}], ["X86_V4"], True),
        ([HASWELL | {"architecture": "COOPERLAKE"}], ["X86_V4"], False),
        ([HASWELL | {"architecture": None}], ["X86_V4"], False),
        ([HASWELL], ["X86_V3"], False),
        ([HASWELL | {"architecture": "SkylakeX"}], ["X86_V4"], False),
        ([{"internal_api": "mkl"}], ["X86_V4"], False),
        ([], ["X86_V4"], False),
    ],
)
def test_kernels_for_an_older_processor_are_told(
    libraries: list[dict[str, Any]], features: list[str], given: bool
) -> None:
    line = kernels.advice(libraries, features)
    assert (line is not None) == given
    assert line is None or ("OPENBLAS_CORETYPE" in line and libraries[-1]["architecture"] in line)


def test_this_machine_is_asked_for_its_kernels() -> None:
    """A machine with kernels and one without."""
    assert all(
        "architecture" in each
        for each in kernels.threadpool_info()
        if each["internal_api"] == "openblas"
    )
    assert kernels._features() or "x86" not in platform.machine()
    assert kernels.advice() == kernels.advice(kernels.threadpool_info(), kernels._features())


def test_useful_multiply_adds_are_those_of_the_products_alone() -> None:
    """Count by hand for 8 heads, T = 1024, d = 64 and chunks of 16 tokens: 31 columns."""
    each = 16 * 64 * 64 + 2 * 16 * 31 * 64 + 2 * 16 * 64 * 64 + 2 * 31 * 64 * 64
    assert 0.8 * 8 * 64 * each < parallel.useful() <= 8 * 64 * each


def test_the_course_after_a_sleep_has_a_rate_for_every_processor_and_moment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(awake, "MOMENTS", 3)
    monkeypatch.setattr(awake, "ROUNDS", 2)
    awake.main()
    first, *rounds = capsys.readouterr().out.strip().split("\n\n")
    assert f"each of {processors()} processors" in first
    assert len(rounds) == 2
    for lines in (each.splitlines() for each in rounds):
        assert [len(line.split()) for line in lines] == [3] * processors()
        assert all(float(rate) > 0 for line in lines for rate in line.split() if rate != "nan")
