"""What the oracle answers today, as digests: run it before and after a change of its house.

    python -m tests.freeze write FOLDER        answers of this checkout, whole, and their digests
    python -m tests.freeze compare FOLDER      answers of this checkout beside those of FOLDER

Four hundred cases are asked: recorded peers, both sets of vectors, and a new one of each rule and
member. Each gives the files of `eval --grad --trace`, and what `check`, `identify`, `replay` and
`tolerance` print with --json for results that are right and for results with a mistake. Beside them
stand the first 200 draws of each rule, schemas, kill matrices, and `vectors verify`.

Digests are of whole bytes, so another processor or another NumPy has others in the last bits: there,
write a folder at the commit before the change, and compare with it. `--part SUBSTRING` takes those
parts alone, `--jobs N` so many processes. A difference is printed, with the place of both texts, and
the exit code is 1. CPU seconds of each command stand at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import io
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# The order of sums, and so the last bits, may change with the number of threads.
os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import numpy as np

ROOT = Path(__file__).resolve().parents[1]

#: Cases of each source, spread evenly over their names.
TAKEN = {"vectors/v1": 110, "vectors/v2": 150, "tests/data": 80}

#: Words of a new case of each rule that has no members and no presets.
NEW = (
    "omega", "omega --window 3 --span 4 --window-gate", "omega --level token --d-model 5",
    "titans_lmm", "titans_lmm --per-dimension --pulse 3", "delta", "delta --reset 4", "hebbian",
    "newton_schulz", "feature_map --feature-map relu", "tnt", "tnt --span 4",
    "cms --levels omega,delta --periods 1,2", "cms --levels delta,delta --periods 1,4 --nested",
    "deep_memory --parameter memory.kind=mlp", "deep_memory --pulse 2", "deep_memory --reset 4",
)  # fmt: skip

#: Draws of each rule.
DRAWS = 200

#: What no answer depends on: seconds, and where a file lies.
NOT_ASKED = re.compile(r'"(seconds|took)": [0-9.e+-]+')

Answers = dict[str, bytes]


def command(*words: Any) -> tuple[bytes, float]:
    """What a command prints and its exit code, and the CPU seconds that it took."""
    from atlas_ref.cli import main as command_line

    out, err = io.StringIO(), io.StringIO()
    arguments, began, code = sys.argv, time.process_time(), 0
    sys.argv = ["atlas-ref", *map(str, words)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            command_line.main()
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else 1
    finally:
        sys.argv = arguments
    text = NOT_ASKED.sub("", out.getvalue()) + err.getvalue() + f"\nexit {code}\n"
    return text.encode(), time.process_time() - began


def parts() -> Iterator[tuple[str, Callable[[], tuple[Answers, Counter[str]]]]]:
    """Every part by its name, with what computes its answers."""
    for name, path in sorted(recorded().items()):
        yield f"case {name}", lambda path=path: of_case(path)  # type: ignore[misc]
    for words in new_cases():
        yield f"new {words}", lambda words=words: of_new(words)  # type: ignore[misc]
    for rule in swept():
        yield f"draws {rule}", lambda rule=rule: of_draws(rule)  # type: ignore[misc]
    yield "schemas", of_schemas
    yield "vectors", of_vectors


def recorded() -> dict[str, Path]:
    """Recorded cases, of each source as many as TAKEN says, evenly spread over sorted names."""
    found: dict[str, Path] = {}
    for folder, count in TAKEN.items():
        files = sorted((ROOT / folder).rglob("*.safetensors"))
        files = [each for each in files if not {"large", "negative"} & set(each.parts)]
        places = np.linspace(0, len(files) - 1, min(count, len(files))).astype(int)
        found |= {str(files[i].relative_to(ROOT)): files[i] for i in places}
    return found


def new_cases() -> list[str]:
    """Words of `new` for each rule, and for each member and preset of one that has them."""
    from atlas_ref.oracle.dplr.members import MEMBERS
    from atlas_ref.oracle.recurrences.members import MEMBERS as RECURRENCES
    from atlas_ref.rules.deep_memory.presets import PRESETS

    words = list(NEW)
    words += [f"dplr --parameter member={name}" for name in MEMBERS]
    words += [f"recurrence --parameter member={name}" for name in RECURRENCES]
    words += [f"deep_memory --parameter preset={name}" for name in PRESETS]
    return [*words, "dplr --groups 2 --packed --batch 2 --parameter member=gated_delta"]


def swept() -> list[str]:
    from atlas_ref.oracle.sweep.draw import SWEPT

    return sorted(SWEPT)


def of_new(words: str) -> tuple[Answers, Counter[str]]:
    """A new case, byte for byte, and what is said of it."""
    path = Path("new.safetensors")
    said, seconds = command("new", *words.split(), "--cotangent", "--seed", 5, "-o", path)
    if not path.exists():
        return {"new": said}, Counter({"new": seconds})
    answers, spent = of_case(path)
    return {"new": said, "file": path.read_bytes(), **answers}, spent + Counter({"new": seconds})


def of_case(path: Path) -> tuple[Answers, Counter[str]]:
    """What every command says of a case, of right results and of results with a mistake."""
    case, answers, spent = Path("case.safetensors"), dict[str, bytes](), Counter[str]()
    if path != case:
        case.write_bytes(path.read_bytes())

    def ask(name: str, *words: Any) -> None:
        answers[name], seconds = command(*words)
        spent[name.split()[0]] += seconds

    right, wrong = Path("right.safetensors"), Path("wrong.safetensors")
    ask("eval trace", "eval", case, "--grad", "--trace", "-o", right)
    if not right.exists():
        ask("eval grad", "eval", case, "--grad", "-o", right)
    if not right.exists():
        ask("eval", "eval", case, "-o", right)
    if not right.exists():
        return answers, spent
    answers["results"] = right.read_bytes()
    for name in spoil(right, wrong):
        ask(f"tolerance {name}", "tolerance", f"{case}:{name}", "--dtype", "float32", "--json")
    ask("check right", "check", case, "--against", right, "--json")
    ask("check wrong", "check", case, "--against", wrong, "--json")
    ask("replay right", "replay", case, "--trace", right, "--json")
    ask("replay wrong", "replay", case, "--trace", wrong, "--json")
    ask("identify wrong", "identify", case, "--against", wrong, "--depth", 1, "--json")
    return answers, spent


def spoil(right: Path, wrong: Path) -> list[str]:
    """Write results whose main one comes a token late, and whose trace has one wrong op.

    Returns:
        names of results whose tolerance is asked.
    """
    from atlas_ref.oracle.cases.case import load_results, save

    header, tensors = load_results(right)
    main = next(name for name in sorted(tensors, reverse=True) if name.startswith("out/"))
    spoiled = dict(tensors)
    if tensors[main].ndim > 1:
        spoiled[main] = np.roll(tensors[main], 1, axis=-2)
    traced = sorted(name for name in tensors if name.startswith("trace/"))
    if traced:
        name = traced[len(traced) // 2]
        spoiled[name] = tensors[name] * 1.001
    save(wrong, header, spoiled)
    return [name.removeprefix("out/") for name in sorted(tensors) if name.startswith("out/")][-2:]


def of_draws(rule: str) -> tuple[Answers, Counter[str]]:
    """The first draws of a rule: request, regime, and the inputs of the case."""
    from atlas_ref.oracle.sweep.draw import draw_case

    lines = []
    for number in range(DRAWS):
        each = draw_case(rule, 0, number, {})
        digest = hashlib.sha256()
        for name, value in sorted(each.case.inputs.items()):
            digest.update(f"{name} {value.dtype} {value.shape}".encode() + value.tobytes())
        lines.append(json.dumps([each.request, each.regime, digest.hexdigest()], sort_keys=True))
    return {"draws": "\n".join(lines).encode()}, Counter()


def of_schemas() -> tuple[Answers, Counter[str]]:
    from atlas_ref.cli.formats import REPLIES

    asked = {"schema": command("schema")[0]}
    asked |= {name: command("schema", *name.split())[0] for name in REPLIES}
    return asked, Counter()


def of_vectors() -> tuple[Answers, Counter[str]]:
    """Bytes of both sets with their kill matrices, and what `vectors verify` says."""
    answers = {}
    for version in ("v1", "v2"):
        for path in sorted((ROOT / "vectors" / version).rglob("*.safetensors")):
            answers[str(path.relative_to(ROOT))] = hashlib.sha256(path.read_bytes()).digest()
        matrix = json.loads((ROOT / f"vectors/{version}-kill-matrix.json").read_text())
        for target, row in matrix["targets"].items():
            answers[f"{version} matrix {target}"] = json.dumps(row, sort_keys=True).encode()
        verified = command("vectors", "verify", ROOT / "vectors" / version)[0]
        answers[f"{version} verify"] = verified.rpartition(b"exit")[2]
    return answers, Counter()


def answered(name: str) -> tuple[str, Answers, Counter[str]]:
    """Answers of a part, asked in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        answers, spent = dict(parts())[name]()
        os.chdir(ROOT)
    return name, answers, spent


def place(folder: Path, name: str) -> Path:
    return folder / (re.sub(r"[^A-Za-z0-9=._-]+", "-", name) + ".json.gz")


def digests(answers: Answers) -> dict[str, str]:
    return {key: hashlib.sha256(value).hexdigest()[:16] for key, value in answers.items()}


def kept(answers: Answers) -> bytes:
    return gzip.compress(json.dumps({k: v.decode("latin-1") for k, v in answers.items()}).encode())


def run(task: str, folder: Path, only: str, jobs: int) -> int:
    """Ask every part, write or compare, and print what differs."""
    names = [name for name, _ in parts() if only in name]
    here = folder if task == "write" else Path(tempfile.gettempdir()) / "atlas-ref-freeze"
    here.mkdir(parents=True, exist_ok=True)
    published = json.loads((folder / "digests.json").read_text()) if task == "compare" else {}
    found, spent, wrong = {}, Counter[str](), 0
    with multiprocessing.Pool(jobs, maxtasksperchild=40) as pool:
        for name, answers, seconds in pool.imap_unordered(answered, names):
            place(here, name).write_bytes(kept(answers))
            found[name], spent = digests(answers), spent + seconds
            # What the answers before did not have is an addition, which nobody can have relied on.
            before = published.get(name, {})
            which = [key for key, digest in before.items() if found[name].get(key) != digest]
            if which:
                wrong += 1
                there = f" beside {place(folder, name)}" if folder else ""
                print(
                    f"differs: {name}: {', '.join(which)}: {place(here, name)}{there}", flush=True
                )
    if task == "write":
        (here / "digests.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    seconds = ", ".join(f"{name} {value:.0f}" for name, value in sorted(spent.items()))
    print(f"{len(names)} parts, {sum(map(len, found.values()))} answers, {wrong} parts differ")
    print(f"CPU seconds: {seconds}")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.freeze", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("task", choices=("write", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--part", default="")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    given = parser.parse_args()
    return run(given.task, given.folder.resolve(), given.part, given.jobs)


if __name__ == "__main__":
    sys.exit(main())
