"""A watch over checkpoints: each once, in order, through stops, torn files and removals."""

from __future__ import annotations

import json

import pytest

from atlas_ref.train import checkpoint, run
from atlas_ref.train.use.measure import Unfit
from atlas_ref.train.use.watch import RESULTS, watch

pytestmark = pytest.mark.host("writes in folders")


def made(folder, *steps):
    for step in steps:
        (folder / checkpoint.NAME.format(step)).write_bytes(b"x")


def cost(path):
    return {"loss": float(checkpoint.NAMED.fullmatch(path.name)[1])}


def names(lines):
    return [each["step"] for each in lines]


@pytest.mark.clause("EVAL-5")
def test_each_checkpoint_is_evaluated_once_in_the_order_of_steps(tmp_path):
    made(tmp_path, 30, 4, 100)
    (tmp_path / "model.safetensors").touch()
    told = []
    results = tmp_path / RESULTS
    new = watch(tmp_path, results, cost, told=told.append, once=True)
    assert names(new) == names(told) == [4, 30, 100]
    assert run.lines(results) == new
    assert new[1] == {"checkpoint": "step-00000030.safetensors", "step": 30, "loss": 30.0}
    made(tmp_path, 7)
    assert names(watch(tmp_path, results, cost, once=True)) == [7]
    assert names(run.lines(results)) == [4, 30, 100, 7]
    assert watch(tmp_path, results, cost, once=True) == []


@pytest.mark.clause("EVAL-5")
def test_an_end_that_was_cut_off_counts_for_nothing_and_stays(tmp_path):
    made(tmp_path, 1, 2)
    results = tmp_path / "some.jsonl"
    whole = json.dumps({"checkpoint": checkpoint.NAME.format(1), "step": 1})
    results.write_text(f'{whole}\n{{"checkpoint": "step-00000002.saf')
    assert names(watch(tmp_path, results, cost, once=True)) == [2]
    assert results.read_text().splitlines()[1] == '{"checkpoint": "step-00000002.saf'
    assert names(run.lines(results)) == [1, 2]


@pytest.mark.clause("EVAL-5")
def test_a_checkpoint_that_is_wrong_has_its_error_and_one_that_went_has_no_line(tmp_path):
    made(tmp_path, 1, 2, 3)

    def fail(path):
        if path.name.endswith("2.safetensors"):
            path.unlink()
        if not path.name.endswith("3.safetensors"):
            raise ValueError("it is\nbroken")
        return cost(path)

    new = watch(tmp_path, tmp_path / RESULTS, fail, once=True)
    assert [(each["step"], each.get("error")) for each in new] == [(1, "it is broken"), (3, None)]
    assert watch(tmp_path, tmp_path / RESULTS, cost, once=True) == []


@pytest.mark.clause("EVAL-5")
def test_text_that_fits_no_checkpoint_ends_a_watch_without_a_line(tmp_path):
    made(tmp_path, 1, 2)

    def unfit(path):
        raise Unfit("no text")

    with pytest.raises(Unfit, match="no text"):
        watch(tmp_path, tmp_path / RESULTS, unfit, once=True)
    assert not (tmp_path / RESULTS).exists()


@pytest.mark.clause("EVAL-5")
def test_a_watch_goes_on_until_it_is_stopped(tmp_path):
    """It sees what comes while it waits, and evaluates nothing after it was stopped."""
    made(tmp_path, 1)
    asked = []

    def stopped():
        asked.append(None)
        if len(asked) == 4:
            made(tmp_path, 2)
        return len(asked) > 12

    new = watch(tmp_path, tmp_path / RESULTS, cost, stopped=stopped, poll=0.0)
    assert names(new) == [1, 2]
    made(tmp_path, 3, 4)
    first = iter((False, False, True, True, True, True))
    again = watch(tmp_path, tmp_path / RESULTS, cost, stopped=lambda: next(first), poll=60.0)
    assert names(again) == [3]


@pytest.mark.clause("EVAL-5")
@pytest.mark.parametrize("held", [b"\x98\x01\0\0{}", b"# a text\n{}\n", b'{"step": 1}\n\x7fELF'])
def test_a_file_of_something_else_is_not_written_to(held, tmp_path):
    made(tmp_path, 1)
    other = tmp_path / "step-00000009.safetensors"
    other.write_bytes(held)
    with pytest.raises(ValueError, match="has other lines than results"):
        watch(tmp_path, other, cost, once=True)
    assert other.read_bytes() == held


@pytest.mark.clause("EVAL-5")
def test_a_folder_or_a_file_that_cannot_be_used_is_one_line(tmp_path):
    with pytest.raises(ValueError, match="none: cannot be read: No such file"):
        watch(tmp_path / "none", tmp_path / RESULTS, cost, once=True)
    (tmp_path / "a").mkdir()
    with pytest.raises(ValueError, match="a: is a folder"):
        watch(tmp_path, tmp_path / "a", cost, once=True)
    with pytest.raises(ValueError, match="does not exist"):
        watch(tmp_path, tmp_path / "no" / "a", cost, once=True)
