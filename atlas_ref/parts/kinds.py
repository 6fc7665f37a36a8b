"""Settings with a kind, some of which only certain kinds read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def check_read(settings: Any, read_by: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse a setting that the kind does not read and that is not the default.

    Args:
        settings: data with a field `kind`.
        read_by: name of a setting -> the kinds that read it.

    Raises:
        ValueError: names the setting, the kinds it belongs to and the one that was found.
    """
    fields = type(settings).model_fields
    for name, kinds in read_by.items():
        value = getattr(settings, name)
        if settings.kind not in kinds and value != fields[name].default:
            raise ValueError(
                f"{name}: {value!r} belongs to kind {' or '.join(kinds)}, found kind "
                f"{settings.kind}"
            )
