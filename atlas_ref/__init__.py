"""Rules by which neural memories learn at test time, and an oracle for implementations of them.

import atlas_ref

case = atlas_ref.load("case.safetensors")
results = atlas_ref.evaluate(case, grad=True)
verdicts = atlas_ref.check(case)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atlas_ref.backend import BackendError
    from atlas_ref.oracle.cases.case import Case, CaseError, load, make, save
    from atlas_ref.oracle.evaluate import Results, evaluate
    from atlas_ref.oracle.judge.compare import Comparison, check

__version__ = "0.1.0"

__all__ = [
    "BackendError",
    "Case",
    "CaseError",
    "Comparison",
    "Results",
    "check",
    "evaluate",
    "load",
    "make",
    "save",
]


#: Module of each of these names.
_HOMES = {
    "BackendError": "backend",
    "Comparison": "oracle.judge.compare",
    "Results": "oracle.evaluate",
    "check": "oracle.judge.compare",
    "evaluate": "oracle.evaluate",
} | dict.fromkeys(("Case", "CaseError", "load", "make", "save"), "oracle.cases.case")


def _of_the_oracle(name: str) -> Any:
    """Import a name at its first use.

    So `atlas-ref --help`, and an import of one part, load no array library.
    """
    if name in _HOMES:
        return getattr(import_module(f"atlas_ref.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if not TYPE_CHECKING:  # a checker sees the imports above, and so refuses other names
    __getattr__ = _of_the_oracle
