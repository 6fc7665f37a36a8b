"""Lines of a run's log as scalars of TensorBoard, by the extra `tensorboard`.

Specified in specs/train.md (TRAIN-19).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from atlas_ref import messages
from atlas_ref.train.run import Told

#: Keys of the log that are drawn, of a step and of an evaluation.
STEP = ("loss", "bits_per_byte", "norm", "rate", "tokens_per_second")
HELD_OUT = ("loss", "bits_per_byte")


def writers() -> Any:
    """The class that writes events.

    Raises:
        ValueError: the extra is missing, with the command that adds it.
    """
    try:
        from tensorboardX import SummaryWriter
    except ModuleNotFoundError:
        raise ValueError(
            f"TensorBoard needs the package tensorboardX: {messages.install('tensorboard')}"
        ) from None
    return SummaryWriter


@contextmanager
def board(folder: Path, step: int) -> Iterator[Told]:
    """A function that writes each line of the log into a folder of events (TRAIN-19).

    Args:
        step: from which the run goes on; TensorBoard drops what is there of later ones.

    Raises:
        ValueError: the extra that is missing, or a folder that cannot be written.
    """
    kind = writers()
    try:
        writer = kind(str(folder), purge_step=step + 1 if step else None)
    except OSError as error:
        raise ValueError(f"{folder}: cannot be written: {error.strerror or error}") from None
    try:
        yield lambda line: _write(writer, line)
    finally:
        writer.close()


def _write(writer: Any, line: Mapping[str, Any]) -> None:
    held = line.get("held_out")
    keys, values, start = (STEP, line, "") if held is None else (HELD_OUT, held, "held_out/")
    for key in keys:
        if values[key] is not None:
            writer.add_scalar(start + key, values[key], line["step"])
