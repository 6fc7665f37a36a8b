"""Layers and models that cases know: `ENTRIES` is the only list of them (LAYER-2)."""

from __future__ import annotations

from atlas_ref.oracle.subjects import layer_modules, layer_systems, layer_titans, mag
from atlas_ref.oracle.subjects.layer_modules import Entry

#: Name in the header -> layer or model.
ENTRIES: dict[str, Entry] = {
    **layer_modules.PARTS,
    **layer_systems.SYSTEMS,
    **mag.PARTS,
    **layer_titans.PARTS,
}
