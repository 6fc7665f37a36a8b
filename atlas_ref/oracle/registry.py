"""The subjects of the oracle: `SUBJECTS` is the only list of them."""

from __future__ import annotations

from atlas_ref.oracle.subjects import (
    block,
    deep_memory,
    dplr,
    feature_map,
    layer,
    memory,
    newton_schulz,
    recurrence,
    tnt,
)
from atlas_ref.oracle.subjects.subject import BLOCK, LAYER, Subject
from atlas_ref.rules import FAMILY

_MEMORIES = {name: memory.subject(rule) for name, rule in FAMILY.items()}

#: Name in the header -> subject.
SUBJECTS: dict[str, Subject] = {
    **_MEMORIES,
    newton_schulz.SUBJECT.name: newton_schulz.SUBJECT,
    feature_map.SUBJECT.name: feature_map.SUBJECT,
    deep_memory.SUBJECT.name: deep_memory.SUBJECT,
    tnt.SUBJECT.name: tnt.SUBJECT,
    dplr.SUBJECT.name: dplr.SUBJECT,
    recurrence.SUBJECT.name: recurrence.SUBJECT,
    BLOCK: block.subject(_MEMORIES),
    LAYER: layer.SUBJECT,
}
