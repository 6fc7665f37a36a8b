"""Start-up time of the command line and the library, against the interpreter with their
libraries.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from functools import partial

from benchmarks.measure import Row, Spread, bracketed

HELP = "import sys; sys.argv = ['atlas-ref', '--help']; from atlas_ref.cli.main import main; main()"
COMMANDS = {
    "atlas-ref --help": (HELP, "typer with rich", "import typer.rich_utils"),
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
            partial(_python, ours), partial(_python, theirs), samples=3, clock=_children
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
