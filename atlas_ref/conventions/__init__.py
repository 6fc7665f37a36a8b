"""Conventions: every point on which the papers and the public implementations disagree, as data.

One frozen model names each point and its legal values; presets hold the values of a source or of an
implementation. Specified, with the equations behind every value, in specs/conventions.md.
"""

from atlas_ref.conventions.axes import AXES, NEWTON_SCHULZ_KEYS, Convention, OpenGate
from atlas_ref.conventions.presets import DEFAULTS, PRESETS, SOURCES
from atlas_ref.conventions.resolve import axes_of, of_config, resolve
from atlas_ref.conventions.void import effective, void_axes

__all__ = [
    "AXES",
    "DEFAULTS",
    "NEWTON_SCHULZ_KEYS",
    "PRESETS",
    "SOURCES",
    "Convention",
    "OpenGate",
    "axes_of",
    "effective",
    "of_config",
    "resolve",
    "void_axes",
]
