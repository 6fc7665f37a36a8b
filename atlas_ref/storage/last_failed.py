"""Which cases failed in the last run of a command in a folder: what --last-failed asks again.

They are noted in one small file of the user's cache folder, by the folder in which the command ran,
so that nothing is written beside somebody's work. Specified in specs/sources.md, SRC-32.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from atlas_ref.storage import files

#: Runs that are remembered; the oldest make way.
RUNS = 50

#: Cases that are named where some alone are asked again.
NAMED = 5


def _note() -> Path:
    """The file of all runs, in the cache folder of the user as the XDG directories say it."""
    stated = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(stated) if os.path.isabs(stated) else Path.home() / ".cache"
    return root / "atlas-ref" / "last-failed.json"


def _runs() -> dict[str, list[str]]:
    """Failed cases by run; none where the file is absent, or is not one of ours."""
    try:
        found = json.loads(_note().read_text("utf-8"))
    except (OSError, ValueError, RuntimeError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        str(run): [str(each) for each in cases]
        for run, cases in found.items()
        if isinstance(cases, list)
    }


def _run(command: Iterable[str]) -> str:
    """The name of a run: the current folder, "" of one that is gone, and the words of another run."""
    try:
        place = os.getcwd()
    except OSError:
        place = ""
    return json.dumps([place, *command])


def failed_last(command: Iterable[str]) -> set[str]:
    """The cases that failed in the last such run here; none where there was no run."""
    return set(_runs().get(_run(command), ()))


def note(command: Iterable[str], *, asked: Collection[str], failed: Iterable[str]) -> None:
    """Note what failed; cases of earlier runs that were not asked now stay noted.

    A cache folder that cannot be written loses the note and nothing else.
    """
    run, runs = _run(command), _runs()
    before = runs.pop(run, [])
    now = [*(each for each in before if each not in asked), *failed]
    if not now and not before:
        return
    kept = list(runs.items())[-RUNS + 1 :]
    try:
        _note().parent.mkdir(parents=True, exist_ok=True)
        files.write_bytes(_note(), json.dumps(dict([*kept, (run, now)])).encode())
    except (OSError, ValueError, RuntimeError):
        return


def passed_last(command: Iterable[str], cases: Mapping[str, str]) -> tuple[set[str], str]:
    """The cases that did not fail in the last run here, and what to say of those that did.

    Where no case failed there are none, so that all are asked.

    Args:
        cases: what is noted of each case -> what it is called.
    """
    known = failed_last(command)
    failed = [name for case, name in cases.items() if case in known]
    if not failed:
        return set(), "none of these cases failed in the last run here; all are asked"
    more = f" and {len(failed) - NAMED} more" if len(failed) > NAMED else ""
    return cases.keys() - known, f"{', '.join(failed[:NAMED])}{more}, of {len(cases)} cases"
