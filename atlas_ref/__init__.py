"""The rules by which neural memories learn at test time, and an oracle for implementations of them.

import atlas_ref

case = atlas_ref.load("case.safetensors")
results = atlas_ref.evaluate(case, grad=True)
verdicts = atlas_ref.check(case)
"""

from atlas_ref.oracle.case import Case, CaseError, load, make, save
from atlas_ref.oracle.compare import Comparison, check
from atlas_ref.oracle.evaluate import Results, evaluate

__version__ = "0.1.0"

__all__ = ["Case", "CaseError", "Comparison", "Results", "check", "evaluate", "load", "make", "save"]
