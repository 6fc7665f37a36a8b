"""How many planted mistakes of servers are found and named, and alarms on right ones.

python -m tests.oracle.serving             the planted mistakes, and their right twins
python -m tests.oracle.serving legal 1000  random legal schedules of five kernels
"""

from __future__ import annotations

import sys

from atlas_ref.oracle.judge.compare import checked
from atlas_ref.oracle.report.failures import explain
from atlas_ref.oracle.serving.draw import full
from tests.oracle.serving.kernels import KERNELS, case_of, legal, source
from tests.oracle.serving.server import FAULTS


def planted() -> None:
    """A line for each planted mistake, and the counts."""
    found = named = right = 0
    for fault, (member, words) in FAULTS.items():
        case = case_of(member, full())
        right += {row.verdict for row in checked(case, source=source()).rows} == {"PASS"}
        got = checked(case, source=source(fault))
        failure = explain(got, got.rows, "")
        found += failure is not None
        named += failure is not None and words in failure.nearest
        print(f"{fault}: {failure and failure.why}: {failure and failure.nearest}")
    print(f"{found} of {len(FAULTS)} found, {named} named, {right} right twins pass")


def alarms(count: int, first: int = 0) -> int:
    """Alarms on a right server under so many schedules."""
    members, found = list(KERNELS), 0
    for seed in range(first, first + count):
        case = case_of(members[seed % len(members)], legal(seed), seed)
        verdicts = {row.verdict for row in checked(case, source=source()).rows}
        if verdicts != {"PASS"}:
            print(f"schedule {seed}: {', '.join(sorted(verdicts))}")
            found += 1
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["legal"]:
        many = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
        print(f"{alarms(many)} alarms of {many} legal schedules of {len(KERNELS)} kernels")
    else:
        planted()
