"""Check that NumPy's BLAS runs the widest kernels of this processor; others halve the speed of
products.

OpenBLAS takes its kernels by the family of the processor. 0.3.31, which NumPy 2.4 brings, does not
know the family of AMD Zen 5 and 6 and may take those of Haswell, of 2013, or even of Prescott, of
2004 (OpenMathLib/OpenBLAS, issue 6029 and pull request 6033).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

# kernels with registers of 512 bits, the oldest first
WIDE = (
    "SkylakeX",
    "Cooperlake",
    "SapphireRapids",
)


def advice(
    libraries: Sequence[dict[str, Any]] | None = None, features: Sequence[str] | None = None
) -> str | None:
    """Advice where the processor has wider registers than the kernels of an OpenBLAS use, else
    None.

    Args:
        libraries: as threadpoolctl lists them; those of this process unless given.
        features: of the processor, as NumPy names them; this one's unless given.
    """
    openblas = [
        each
        for each in (threadpool_info() if libraries is None else libraries)
        if each.get("internal_api") == "openblas"
    ]
    named = [each["architecture"] for each in openblas if each.get("architecture")]
    older = next(
        (name for name in named if name.lower() not in {wide.lower() for wide in WIDE}), None
    )
    has_wide = any(
        name == "X86_V4" or name.startswith("AVX512")
        for name in (_features() if features is None else features)
    )
    if older is None or not has_wide:
        return None
    return (
        f"OpenBLAS runs its kernels for {older}, but this processor has AVX-512: with "
        f"OPENBLAS_CORETYPE={WIDE[0]} in the environment "
        "products may take half of the time"
    )


def _features() -> list[str]:
    """Features of this processor that NumPy's own kernels can use."""
    config: Any = np.show_config(mode="dicts")
    return list(config.get("SIMD Extensions", {}).get("found", []))
