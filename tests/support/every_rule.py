"""A small case of every rule, member and layer that the oracle judges, by its registries."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import atlas_ref
from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.cases.tensor_spec import BLOCK, LAYER
from atlas_ref.oracle.dplr.members import MEMBERS as OF_DPLR
from atlas_ref.oracle.recurrences.members import MEMBERS as OF_RECURRENCE
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.serving.members import MEMBERS as OF_SCHEDULE
from atlas_ref.oracle.subjects.layer import ENTRIES
from tests.support import layer_cases

SIZES: dict[str, Any] = {"tokens": 4, "d_in": 3, "d_out": 3, "heads": 2, "cotangent": True}

#: What a case of a rule needs beside its sizes; "" for one that leaves the member open.
NEEDS: dict[str, dict[str, dict[str, Any]]] = {
    BLOCK: {"": {"levels": ("delta", "titans_lmm"), "periods": (1, 2)}},
    "newton_schulz": {"": {"cotangent": False}},
    "feature_map": {"": {"cotangent": False}},
    "dplr": {"": {}} | {member: {"parameters": {"member": member}} for member in OF_DPLR},
    "recurrence": {member: {"parameters": {"member": member}} for member in OF_RECURRENCE},
    "schedule": {
        member: {"cotangent": False, "parameters": {"preset": "full", "member": member}}
        for member in OF_SCHEDULE
    },
}


@functools.cache
def cases() -> dict[str, tuple[Case, ...]]:
    """Rule -> its cases, one for each member and each layer."""
    every = {rule: _of(rule) for rule in SUBJECTS if rule != LAYER}
    return every | {LAYER: _layers()}


def _of(rule: str) -> tuple[Case, ...]:
    wanted = NEEDS.get(rule, {"": {}})
    return tuple(
        new(Request(rule=rule, **{**SIZES, **request}), name=f"{rule}-{member}".rstrip("-"))
        for member, request in wanted.items()
    )


def _layers() -> tuple[Case, ...]:
    """The smallest recorded case of every layer."""
    files = (
        *layer_cases.FILES,
        *layer_cases.MAG,
        *layer_cases.ALL_MAG,
        *layer_cases.TITANS,
        *layer_cases.GATES,
    )
    found: dict[str, Case] = {}
    for file in sorted(files, key=lambda each: (each.stat().st_size, each.name)):
        case = atlas_ref.load(file)
        found.setdefault(str(case.header.layer), case)
    assert found.keys() == ENTRIES.keys()
    return tuple(case.replaced(name=name, recorded={}) for name, case in found.items())


def keys_and_values(case: Case) -> tuple[Any, Any]:
    """Keys and values of a case; twice its rows where it has none."""
    x = case.inputs
    return (x["in/k"], x["in/v"]) if "in/k" in x else (x["in/x"], x["in/x"])


def without_leading_axes(case: Case) -> Case:
    """The first memory of a case alone, whose tensors have no leading axes.

    Tensors with them are told by their first sizes, so no other size of the case is one of those.
    """
    lead = keys_and_values(case)[1].shape[:-2]
    inputs = {
        name: np.asarray(x[(0,) * len(lead)]) if lead and x.shape[: len(lead)] == lead else x
        for name, x in case.inputs.items()
    }
    return atlas_ref.make(case.header.plain(), inputs, name=f"{case.name}-alone")
