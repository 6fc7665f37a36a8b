"""Headers of recordings of earlier days, whole and broken."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

import atlas_ref
from atlas_ref.oracle.cases.recorded_headers import EARLIER, in_later_words
from tests.support.casefiles import PEERS, raw

FILES = {
    "ttl": PEERS / "mag_ttl_rank12_11.safetensors",
    "qk_projection": PEERS / "mag_qk_projection_11.safetensors",
}


def text_of(rule: str, **changes: object) -> str:
    with safe_open(FILES[rule], "np") as file:
        data = json.loads(file.metadata()["atlas_ref"])
    return json.dumps(data | {"parameters": data["parameters"] | changes})


@pytest.mark.clause("LAYER-17")
@pytest.mark.parametrize("rule", EARLIER)
def test_another_header_is_left_as_it_is(rule: str) -> None:
    tensors = load_file(FILES[rule])
    for text in (
        text_of(rule, other=1),
        json.dumps({"schema": 1, "rule": rule, "parameters": {}}),
        json.dumps({"schema": 1, "rule": rule, "config": {}}),
        json.dumps([rule]),
        f'"{rule}',
        text_of(rule) + " " * 10**6,
    ):
        assert in_later_words(text, tensors) == (text, tensors)
    later, _ = in_later_words(text_of(rule), tensors)
    assert "config" in json.loads(later)


@pytest.mark.clause("LAYER-17", "CASE-25")
@pytest.mark.parametrize(
    ("rule", "changes"),
    [
        ("qk_projection", {"context_window": 0}),
        ("qk_projection", {"context_window": True}),
        ("qk_projection", {"context_window": 10**12}),
        ("qk_projection", {"decay_base": "x"}),
        ("qk_projection", {"decay_base": 2.0}),
        ("ttl", {"steps": "x"}),
        ("ttl", {"dim": 15}),
        ("ttl", {"alpha": -1.0}),
    ],
)
def test_values_that_cannot_be_are_refused_or_not_supported(rule, changes, tmp_path) -> None:
    """None of them is a crash."""
    metadata = {"atlas_ref": text_of(rule, **changes)}
    path = raw(tmp_path / "case.safetensors", load_file(FILES[rule]), metadata)
    try:
        (verdict, *_) = atlas_ref.check(atlas_ref.load(path))
    except atlas_ref.CaseError:
        return
    assert verdict.verdict == "NOT SUPPORTED"


@pytest.mark.clause("LAYER-17")
@pytest.mark.parametrize("rule", EARLIER)
def test_a_value_that_is_off_is_wrong(rule: str, tmp_path) -> None:
    tensors = load_file(FILES[rule])
    name = "out/read" if rule == "ttl" else "out/q_projected"
    moved = tensors | {name: tensors[name] + 1e-6 * np.abs(tensors[name])}
    path = raw(tmp_path / "case.safetensors", moved, {"atlas_ref": text_of(rule)})
    assert "WRONG" in {each.verdict for each in atlas_ref.check(atlas_ref.load(path))}
