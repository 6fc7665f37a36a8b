"""Start-up time of the command line and the library, against the interpreter with their
libraries.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

from benchmarks.measure import Row, Spread, bracketed

CASES = Path(__file__).parents[1] / "vectors"
#: What every command that reads a case needs of others.
LIBRARIES = "import ml_dtypes, numpy, pydantic, safetensors.numpy, typer.rich_utils"


def _run(*words: str) -> str:
    """A program that runs the command line."""
    return (
        f"import sys; sys.argv = {['atlas-ref', *words]}; "
        "from atlas_ref.cli.main import main; main()"
    )


HELP = _run("--help")
COMMANDS = {
    "atlas-ref --help": (HELP, "typer with rich", "import typer.rich_utils"),
    "atlas-ref check, a small case": (
        _run("check", str(CASES / "v1/cases/delta-edges.safetensors")),
        "the libraries that it needs",
        LIBRARIES,
    ),
    "atlas-ref identify, a small case of dplr": (
        _run("identify", str(CASES / "v2/cases/dplr-65-gradient.safetensors")),
        "the libraries that it needs",
        LIBRARIES,
    ),
    "import atlas_ref": ("import atlas_ref", "bare interpreter", "pass"),
    "import atlas_ref, first use": (
        "import atlas_ref; atlas_ref.evaluate",
        "the libraries that it needs",
        "import ml_dtypes, numpy, pydantic, safetensors.numpy",
    ),
}


def rows() -> list[Row]:
    """CPU time of whole processes."""
    result = []
    for name, (ours, reference, theirs) in COMMANDS.items():
        timing = bracketed(
            partial(_python, ours), partial(_python, theirs), samples=5, clock=_children
        )
        times = Spread.of(timing.ours, 1e3), Spread.of(timing.theirs, 1e3)
        result.append(
            Row(
                name,
                "ms",
                times[0],
                reference,
                times[1],
                Spread.of(timing.ratio),
                note="CPU time of the process",
            )
        )
    return result


def _python(program: str) -> None:
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


def _children() -> float:
    """CPU seconds of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
