"""The benchmark of kernels, on the host: which calls it finds, times and leaves out."""

from __future__ import annotations

import numpy as np
import pytest
import typer

from atlas_ref.engine import cuda
from benchmarks.gpu import kernels, running
from benchmarks.gpu.devices import open_device
from benchmarks.gpu.plan import SUBJECTS, Group
from tests.engine.cuda import emulated

SIZE = (1, 8, 96)
FROZEN, GATED = SUBJECTS[:2]


@pytest.fixture
def host() -> emulated.Emulated:
    if emulated.compiler() is None:
        pytest.skip("g++ is not installed, which the kernels are compiled with on the host")
    return emulated.Emulated()


@pytest.mark.slow
def test_each_kernel_of_a_form_has_a_row_with_its_step_and_the_whole_form(
    host: emulated.Emulated,
) -> None:
    with cuda.running_on(host):
        found = {row.kernel: row for row in kernels.rows(GATED, SIZE, open_device("cpu"))}
    assert {"inverse_unit_lower", "coefficient_rows", "coefficient_rows_backward"} <= set(found)
    assert all(np.min(row[5:]) > 0 for row in found.values())
    assert len(kernels.verdicts(list(found.values()))) == len(found)
    assert kernels.table(list(found.values())).row_count == len(found)


def test_the_sequential_kernel_has_a_row_beside_its_plain_loop(host: emulated.Emulated) -> None:
    with cuda.running_on(host):
        row = kernels.sequential_row(SIZE, open_device("cpu"))
    assert (row.kernel, row.tokens) == ("steps", SIZE[2])
    assert min(row.step, row.twin) > 0


def test_a_kernel_that_is_left_out_launches_nothing_and_the_others_do(
    host: emulated.Emulated,
) -> None:
    arrays, bar = running.inputs(Group(FROZEN, *SIZE, ()), open_device("cpu"))

    def both() -> None:
        kernels.memories.both(kernels.memories.sized(FROZEN.memory, SIZE[1]), arrays, bar)

    with cuda.running_on(host):
        _, calls = kernels.recorded(both)
        host.launches.clear()
        kernels.left_out(both, "coefficient_rows")()
    ran = {each.partition("<")[0] for each in host.launches}
    assert calls["coefficient_rows"] == 1
    assert "coefficient_rows" not in ran
    assert "coefficient_rows_backward" in ran


def test_a_win_is_a_median_of_half_as_much_again() -> None:
    row = kernels.Row("m", 1, 8, 96, "k", 1, 1.0, 1.4, 1.0, 1.0)
    wins = row._replace(twin=1.6)
    assert kernels.verdicts([row]) == ["k: 1.40 to 1.40 times its twin: does not win"]
    assert kernels.verdicts([row, wins, wins]) == ["k: 1.40 to 1.60 times its twin: wins"]


def test_sizes_and_memories_are_chosen_by_name_and_bad_ones_refused() -> None:
    assert kernels.parsed_size("8, 64,1024") == (8, 64, 1024)
    assert kernels.chosen_subjects([GATED.name]) == (GATED,)
    assert kernels.chosen_subjects([]) == SUBJECTS
    for wrong in ("8,64", "8,64,0", "8,64,x"):
        with pytest.raises(typer.BadParameter, match="three counts"):
            kernels.parsed_size(wrong)
    with pytest.raises(typer.BadParameter, match="none of"):
        kernels.chosen_subjects(["nothing"])
