"""JSON Schemas of what commands print with `--json` (CASE-28).

Keys may be added within a version of the format; one that goes, or changes its meaning, raises it.
"""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from atlas_ref.cli.formats import cases, models, parts, probes, proofs, training, verdicts
from atlas_ref.messages import meant
from atlas_ref.oracle.cases.case import CaseError

#: Command -> what it prints where nothing is refused.
REPLIES: dict[str, Any] = {
    "new": cases.File,
    "show": cases.File,
    "conventions": cases.Conventions | cases.Preset,
    "forms": cases.Forms,
    "eval": cases.Evaluated,
    "try": verdicts.Tried,
    "check": verdicts.Checked,
    "identify": verdicts.Identified,
    "tolerance": verdicts.Tolerance,
    "levels": cases.Levels,
    "replay": verdicts.Replayed,
    "sweep": verdicts.Swept,
    "certify": proofs.Certified,
    "trace-spec": proofs.Traced,
    "vectors make": proofs.MadeSet,
    "vectors list": proofs.Sets | proofs.ListedSet,
    "vectors verify": proofs.VerifiedSet,
    "vectors kill-matrix": proofs.KillMatrix,
    "vectors diff": proofs.Differences,
    "vectors search": proofs.SearchedSet,
    "model import": models.Imported,
    "model export": models.Exported,
    "model show": models.Model,
    "model replay": models.ReplayedModules,
    "model identify": models.IdentifiedModules,
    "train": training.Trained,
    "plot": training.Plotted,
    "evaluate": training.Evaluated | training.Watched,
    "generate": training.Generated,
    "probe capacity": probes.Capacity,
    "probe needle": probes.Needle,
    "probe recall": probes.Recall,
}


def schema(command: str) -> dict[str, Any]:
    """The JSON Schema of what a command prints with `--json`, refusals and faults too.

    Raises:
        CaseError: no command of that name prints an object of its own.
    """
    if command not in REPLIES:
        raise CaseError(
            f"schema: command {command!r} has none; {', '.join(REPLIES)} have"
            f"{meant(command, REPLIES)}"
        )
    types = TypeAdapter(REPLIES[command] | parts.BadInput | parts.NotSupported | parts.Fault)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"what atlas-ref {command} --json prints",
        **types.json_schema(),
    }
