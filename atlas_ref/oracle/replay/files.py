"""A replay from a file: somebody's trace, read and held against its case. Specified in specs/replay.md (REPLAY-9)."""

from __future__ import annotations

import os

from atlas_ref.oracle.cases.case import Case, load_results
from atlas_ref.oracle.replay.recorded import check_header
from atlas_ref.oracle.replay.replay import Finding, replay, require_replayable


def replay_file(case: Case, path: str | os.PathLike[str], *, dtype: str | None = None, nearest: bool = True) -> list[Finding]:
    """`replay` on a file's tensors.

    Raises:
        CaseError: not a whole case file, a header of another case, and whatever `replay` refuses.
    """
    require_replayable(case)
    label = os.fspath(path)
    header, tensors = load_results(label)
    check_header(case, header, label)
    if header.chunk is not None and case.header.chunk is None:
        case = case.replaced(header=case.header.replaced(chunk=header.chunk))
    return replay(case, tensors, dtype=dtype, label=label, nearest=nearest)
