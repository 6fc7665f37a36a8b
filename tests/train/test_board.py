"""Lines of a run as scalars of TensorBoard."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from atlas_ref.train import board

pytestmark = pytest.mark.host("writes events of another program")

STEP = {"step": 4, "tokens": 64, "loss": 2.5, "bits_per_byte": 3.5, "norm": None}
STEP |= {"rate": 0.01, "tokens_per_second": 9.0}
HELD = {"step": 4, "held_out": {"loss": 2.25, "bits_per_byte": 3.25, "tokens": 32}}


class FakeWriter:
    """What `tensorboardX.SummaryWriter` takes."""

    def __init__(self, folder, purge_step):
        self.folder, self.purge_step, self.told, self.closed = folder, purge_step, [], False
        FakeWriter.last = self

    def add_scalar(self, *told):
        self.told.append(told)

    def close(self):
        self.closed = True


@pytest.mark.clause("TRAIN-19")
def test_lines_of_a_log_are_scalars(tmp_path, monkeypatch):
    package = ModuleType("tensorboardX")
    package.SummaryWriter = FakeWriter
    monkeypatch.setitem(sys.modules, "tensorboardX", package)
    with board.board(tmp_path, 3) as tell:
        tell(STEP)
        tell(HELD)
        assert not FakeWriter.last.closed
    found = FakeWriter.last
    assert (found.folder, found.purge_step, found.closed) == (str(tmp_path), 4, True)
    assert found.told == [
        ("loss", 2.5, 4),
        ("bits_per_byte", 3.5, 4),
        ("rate", 0.01, 4),
        ("tokens_per_second", 9.0, 4),
        ("held_out/loss", 2.25, 4),
        ("held_out/bits_per_byte", 3.25, 4),
    ]
    with board.board(tmp_path, 0):
        assert FakeWriter.last.purge_step is None


@pytest.mark.clause("TRAIN-19")
def test_the_library_writes_them(tmp_path):
    pytest.importorskip("tensorboardX", reason="the extra tensorboard is not installed")
    from tensorboardX.proto.event_pb2 import Event

    with board.board(tmp_path / "events", 0) as tell:
        tell(STEP)
        tell(HELD)
    (file,) = (tmp_path / "events").iterdir()
    data, found = file.read_bytes(), {}
    while data:  # length, its checksum, the event, its checksum
        size = int.from_bytes(data[:8], "little")
        event = Event.FromString(data[12 : 12 + size])
        found |= {(each.tag, event.step): each.simple_value for each in event.summary.value}
        data = data[16 + size :]
    assert found["held_out/loss", 4] == 2.25
    assert found["loss", 4] == 2.5
    assert len(found) == 6
    with pytest.raises(ValueError, match="cannot be written"), board.board(file, 0):
        pass


@pytest.mark.clause("TRAIN-19")
def test_without_the_extra_the_message_says_how_to_add_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with (
        pytest.raises(ValueError, match=r"needs the package tensorboardX: .*\[tensorboard\]"),
        board.board(tmp_path, 0),
    ):
        pass
