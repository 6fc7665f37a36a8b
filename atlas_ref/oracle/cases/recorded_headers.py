"""Headers of recordings of public projects, which are read as those of layers.

Specified in specs/layer_cases.md (LAYER-17, LAYER-18).
"""

from __future__ import annotations

from typing import Any

from atlas_ref.messages import shown
from atlas_ref.oracle.subjects import LAYER

#: Word of the key `rule` in such a recording -> layer of a case.
NAMES = {
    "rms_norm": "atlas_mag_rms_norm",
    "rotary": "atlas_mag_rotary",
    "causal_conv": "atlas_mag_causal_conv",
    "swiglu": "atlas_mag_swiglu",
    "attention_block": "atlas_mag_attention_block",
    "neural_memory": "titans_neural_memory",
}

#: Public projects by what names of their layers begin with.
PROJECTS = {"atlas_mag": "Atlas-MAG", "titans": "titans-pytorch"}

#: Keys of such a recording that say where it is from.
ORIGIN = ("repo", "commit", "seed", "dtype")
KEYS = ("schema", "rule", "config", *ORIGIN, "float32_inside", "note")


def as_layer(data: dict[str, Any]) -> dict[str, Any]:
    """The header of a case in place of that of such a recording; any other as it is.

    Raises:
        ValueError: names a key that such a recording does not have, or a value.
    """
    rule = data.get("rule")
    if not isinstance(rule, str) or rule not in NAMES or "config" not in data:
        return data
    layer = NAMES[rule]
    for key in data:
        if key not in KEYS:
            project = next(each for start, each in PROJECTS.items() if layer.startswith(start))
            raise ValueError(f"{key}: unknown key of a recording of {project}: {', '.join(KEYS)}")
    if not isinstance(data["config"], dict):
        raise ValueError(f"config: must be an object, found {shown(data['config'])}")
    if data.get("float32_inside", False) is not False:
        raise ValueError(
            f"float32_inside: {shown(data['float32_inside'])}; results that were rounded to "
            "float32 on the way have no tolerance"
        )
    note = data.get("note", "")
    if not isinstance(note, str):
        raise ValueError(f"note: must be a string, found {shown(note)}")
    origin = " ".join(str(data[key]) for key in ORIGIN if isinstance(data.get(key), str | int))
    header = {key: data[key] for key in ("schema",) if key in data}
    return header | {
        "rule": LAYER,
        "layer": layer,
        "parameters": data["config"],
        "note": "; ".join(each for each in (origin, note) if each),
    }
