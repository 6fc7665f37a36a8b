"""`python -m tests.fuzz SEED [FIRST [LAST]]`: run inputs of any seed, one or many."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

from tests.fuzz import corpus, runner


def main(seed: str, first: int = 0, last: int | None = None) -> int:
    """Run a range of inputs, and print failures, exit codes of each command, and times."""
    with tempfile.TemporaryDirectory() as folder:
        good = corpus.write(Path(folder, "good"))
        end = first + 1 if last is None else last
        outcome = runner.run(seed, first, end, good, Path(folder, "base"))
    codes: dict[str, Counter[str]] = defaultdict(Counter)
    seconds: Counter[str] = Counter()
    for line in outcome.lines:
        codes[line["command"]][str(line["code"])] += 1
        seconds[line["command"]] += line["seconds"]
    for failure in outcome.failures:
        print(failure)
    for command, count in codes.items():
        print(f"{command:20} {seconds[command]:7.2f} s  {dict(sorted(count.items()))}")
    if len(outcome.lines) == 1:
        print(outcome.lines[0])
    slow = sorted(outcome.lines, key=lambda line: -line["seconds"])[:5]
    print(*(f"{each['seconds']:.2f} s: {each['words'][:150]}" for each in slow), sep="\n")
    print(f"{len(outcome.lines)} inputs, {len(outcome.failures)} failures")
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
