"""What a vector is able to show: the properties without which some mistakes stay hidden, read off its numbers (VEC-5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from atlas_ref import window
from atlas_ref.oracle.case import Case
from atlas_ref.oracle.lattice import facts
from atlas_ref.oracle.trace import trace
from atlas_ref.parallel.support import FORMS, refusal
from atlas_ref.rules.run import RULES as SEQUENCES  # noqa: F401
