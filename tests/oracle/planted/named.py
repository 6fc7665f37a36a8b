"""Which mistakes of the kill matrices identify names: a table (IDENT-17).

    python -m tests.oracle.planted.named [RULE ...] [--dtype FORMAT] [--part WORD]

Every mistake that some vector of v1 or v2 rejects is made on the smallest one that rejects it, and
identify is asked about its results at depth 1. A line says how it names them: by the mistake itself,
by another mistake or setting that gives the same numbers on this case, or not at all. The last lines
count, and the exit code is 1 where one is not named. Specified in specs/identify.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.cases.case import Case, CaseError, load
from atlas_ref.oracle.cases.inputs import round_inputs
from atlas_ref.oracle.family.mistake import Mistake, compute
from atlas_ref.oracle.identify.answer import Identification
from atlas_ref.oracle.identify.identify import identify
from atlas_ref.oracle.identify.observation import observe
from atlas_ref.oracle.norms import FORMATS
from atlas_ref.vectors.mutants.mutants import selected
from atlas_ref.vectors.sets import locate, manifest

RULES = ("omega", "titans_lmm", "delta", "hebbian", "newton_schulz")

#: It has gradients that no case of a frozen map has, and so is refused by their name.
REFUSED = "gradient of a frozen map"


class Planted(NamedTuple):
    """A mistake of the kill matrices, and the vectors that reject it, smallest first."""

    rule: str
    name: str
    vectors: tuple[tuple[str, Path], ...]


class Made(NamedTuple):
    """A mistake that was made on a vector, with what a kernel with it gives."""

    vector: str
    case: Case
    mistake: Mistake
    results: dict[str, Any]


def planted(rule: str, dtype: str = "float32") -> list[Planted]:
    """Mistakes that vectors of a rule reject, by their names."""
    found: dict[str, list[tuple[int, str, Path]]] = {}
    for name in ("v1", "v2"):
        folder = next(root / name for root in locate.SHIPPED if (root / name).is_dir())
        for each in (one for one in manifest.load(folder).vectors if one.rule == rule):
            path = folder / each.file
            for killed in (one for one in each.kills[dtype] if "=" not in one):
                row = (path.stat().st_size, f"{name}:{each.name}", path)
                found.setdefault(killed, []).append(row)
    return [
        Planted(rule, name, tuple((vector, path) for _, vector, path in sorted(rows)))
        for name, rows in sorted(found.items())
    ]


def made(each: Planted, dtype: str = "float32") -> Made | None:
    """The mistake, made on the smallest vector that rejects it and on which its results are finite."""
    for vector, path in each.vectors:
        case = load(path)
        inside = round_inputs(case, dtype)
        mistake = next(one for one in selected(inside) if one.name == each.name)
        found = compute(inside, mistake, dtype)
        kind = FORMATS[dtype][0]
        results = {n: np.asarray(x).astype(kind) for n, x in found.items() if _observed(case, n, x)}
        if all(np.isfinite(x.astype(np.float64)).all() for x in results.values()):
            return Made(vector, case, mistake, results)
    return None


def _observed(case: Case, name: str, value: Any) -> bool:
    """Whether a result is one that identify compares."""
    try:
        return not observe(case, {name: np.asarray(value)}, None).unused
    except CaseError:  # a result that this case has not, or of which nothing is compared
        return False


def said(mistake: Mistake, answer: Identification) -> str:
    """How an answer names a mistake; "" where it does not."""
    words = [each.words for each in answer.departures if each.own]
    if mistake.as_if in words:
        return "itself"
    if words:
        return f"as if {words[0]}"
    fits = answer.verdict in ("MATCH", "UNDECIDABLE")
    return f"convention {answer.from_own}" if fits and not answer.own else ""


def main(arguments: list[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("rules", nargs="*", default=RULES)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--part", default="")
    asked = parser.parse_args(arguments)
    missed = 0
    for rule in asked.rules:
        counts = {"itself": 0, "another": 0, "-": 0}
        for each in planted(rule, asked.dtype):
            if each.name == REFUSED or asked.part not in each.name:
                continue
            one = made(each, asked.dtype)
            if one is None:
                print(f"{rule:13} {each.name:44} gives no finite results")
                continue
            start = time.process_time()
            words = said(one.mistake, identify(one.case, one.results, depth=1)) or "-"
            counts[words if words in counts else "another"] += 1
            seconds = time.process_time() - start
            print(f"{rule:13} {each.name:44} {one.vector:38} {seconds:6.2f} s  {words}", flush=True)
        missed += counts["-"]
        print(f"{rule}: {counts['itself']} by themselves, {counts['another']} by what gives the "
              f"same numbers, {counts['-']} not")  # fmt: skip
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
