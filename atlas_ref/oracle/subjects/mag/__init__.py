"""Modules of Atlas-MAG as layers of cases: `PARTS` is the only list of them."""

from __future__ import annotations

from atlas_ref.oracle.subjects.layer_modules import Entry
from atlas_ref.oracle.subjects.mag import modules, parts, systems

#: Name in the header -> module.
PARTS: dict[str, Entry] = parts.PARTS | modules.PARTS | systems.PARTS
