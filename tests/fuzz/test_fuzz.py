"""No malformed input ends a command in anything but a documented way.

Each input is drawn from a seed and its number: files, options and implementations. It may end in an
exit code of CASE-26 that is no fault, prints no traceback and nothing that a terminal acts upon,
ends in time, stays below 1 GiB, leaves what it reads as it is, and writes files whole or not.
`ATLAS_REF_FUZZ_SEED` draws other inputs than those of seed 0.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz import attempt, commands, corpus, planted, runner
from tests.fuzz.room import Room, loaded

SEED = os.environ.get("ATLAS_REF_FUZZ_SEED", "0")

#: Inputs of `make test`, each of another command.
FEW = 12
#: Inputs of a batch, and batches; those of the last batches have processes of their own.
SIZE, BATCHES, APART, APART_SIZE = 270, 11, 2, 15
#: Inputs of each command of which one at least is taken.
TURNS = 16

pytestmark = pytest.mark.host("runs commands of its own processes")

Tried = Callable[..., runner.Outcome]


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus.write(tmp_path_factory.mktemp("good") / "files")


@pytest.fixture
def tried(good: Path, tmp_path: Path) -> Tried:
    def run(first: int, last: int, seed: str = SEED, **how: str) -> runner.Outcome:
        outcome = runner.run(seed, first, last, good, tmp_path / "base", **how)
        assert outcome.failures == [], "\n".join(("", *outcome.failures))
        assert len(outcome.lines) == last - first
        return outcome

    return run


@pytest.mark.clause("CASE-17", "CASE-19", "CASE-26", "CASE-28", "CASE-34", "SRC-1")
def test_one_malformed_input_of_some_commands_ends_as_documented(tried: Tried) -> None:
    """The first inputs of the first batch, which `make slow` runs to its end."""
    outcome = tried(0, FEW)
    assert [line["command"] for line in outcome.lines] == list(attempt.ORDER[:FEW])


@pytest.mark.slow
@pytest.mark.clause("CASE-17", "CASE-19", "CASE-26", "CASE-28", "CASE-34", "SRC-1")
@pytest.mark.parametrize("batch", range(BATCHES))
def test_malformed_inputs_end_as_documented(batch: int, tried: Tried) -> None:
    outcome = tried(batch * SIZE, (batch + 1) * SIZE)
    assert {line["command"] for line in outcome.lines} == set(commands.COMMANDS)


@pytest.mark.slow
@pytest.mark.clause("CASE-17", "CASE-19", "CASE-26", "CASE-28", "SRC-5")
@pytest.mark.parametrize("batch", range(APART))
def test_malformed_inputs_with_odd_streams_end_as_documented(batch: int, tried: Tried) -> None:
    first = BATCHES * SIZE + batch * APART_SIZE
    tried(first, first + APART_SIZE, how="apart")


@pytest.mark.slow
def test_every_command_takes_some_of_its_inputs(tried: Tried) -> None:
    """Inputs that are all refused at the door would say little about the rooms behind it."""
    wanted, count = set(commands.COMMANDS) - set(commands.REFUSED), len(attempt.ORDER)
    for turn in range(TURNS):
        outcome = tried(turn * count, (turn + 1) * count, seed="taken")
        wanted -= {line["command"] for line in outcome.lines if line["code"] != 2}
        if not wanted:
            break
    assert not wanted


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", range(len(planted.FAULTS)), ids=[each.__name__ for each, _ in planted.FAULTS]
)
def test_a_planted_fault_is_told(number: int, good: Path, tmp_path: Path) -> None:
    outcome = runner.run(
        "0",
        number,
        number + 1,
        good,
        tmp_path / "base",
        module="tests.fuzz.planted",
        failures_in=tmp_path / "failures",
    )
    (failure,) = outcome.failures
    assert failure.startswith(f"seed 0, input {number}: ")
    assert planted.FAULTS[number][1] in failure
    assert f"-m tests.fuzz 0 {number}" in failure
    assert (tmp_path / "failures" / f"0-{number}").is_dir()


def test_the_same_seed_and_number_draw_the_same_input(good: Path, tmp_path: Path) -> None:
    files = loaded(good)
    folders = [tmp_path / name for name in ("a", "b")]
    for number in range(len(attempt.ORDER)):
        one, other = (attempt.drawn("0", number, folder, files) for folder in folders)
        assert (one.command, one.words, one.before) == (other.command, other.words, other.before)


@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        ("out.safetensors", b"\x10\0\0\0\0\0\0\0{", "'out.safetensors' is not complete"),
        ("out.json", b'{"a": ', "'out.json' is not complete"),
        ("out.xml", b"<a><b></a>", "'out.xml' is not complete"),
        ("out.html", b"<html>", "'out.html' is not complete"),
        ("out.svg", b"<svg><g></svg>", "'out.svg' is not complete"),
        ("out.png", b"\x89PNG\r\n", "'out.png' is not complete"),
        ("out.tfevents.1", b"\x18" + bytes(14), "'out.tfevents.1' is not complete"),
        ("out.json", b"{}", "'out.json' was written beside exit code 2"),
        (".atlas-ref-abc", b"{}", "'.atlas-ref-abc' was left behind"),
        ("in.safetensors", b"other", "'in.safetensors' was changed"),
    ],
)
def test_what_a_command_leaves_behind_is_told(
    name: str, data: bytes, problem: str, tmp_path: Path
) -> None:
    room = Room(attempt.Random("0"), tmp_path, {})
    room.written |= {name} if name.startswith("out") else set()
    (tmp_path / "in.safetensors").write_bytes(b"as it was")
    each = attempt.Input("eval", ["eval"], room, {"in.safetensors": b"as it was"})
    (tmp_path / name).write_bytes(data)
    assert [found[: len(problem)] for found in attempt.left(each, attempt.Ran(2, "", ""))] == [
        problem
    ]
