"""Gates of Kimi Delta Attention as cases of a layer: recorded files, mistakes, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy

import atlas_ref
from atlas_ref.oracle.cases.case import save
from tests.support.layer_cases import GATES


def parts(file: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header as recorded, and tensors."""
    with safetensors.safe_open(file, "np") as opened:
        header = json.loads(opened.metadata()["atlas_ref"])
    return header, safetensors.numpy.load_file(file)


@pytest.mark.clause("LAYER-23", "GATES-22")
@pytest.mark.parametrize("file", GATES, ids=lambda file: file.stem)
def test_values_and_every_gradient_of_a_recording_pass(file: Any) -> None:
    case = atlas_ref.load(file)
    rows = atlas_ref.check(case)
    names = {"out/y", "grad/x", "grad/param/A_log", "grad/param/dt_bias"}
    assert {row.tensor for row in rows} == set(case.recorded) == names
    for row in rows:
        assert (row.verdict, row.tolerance, row.allowed) == ("PASS", 1e-10, 1.0), row
        assert row.error < 1e-13, row
    assert len(GATES) == 2
    bound = -5.0 if "lower_bound" in file.stem else None
    sizes = {"heads": 2, "head_dim": 4}
    own = case.header.parameters
    assert (own.get("lower_bound"), {n: own[n] for n in sizes}) == (bound, sizes)


def test_a_case_that_was_written_is_read_as_the_same(tmp_path: Any) -> None:
    case = atlas_ref.load(GATES[0])
    save(tmp_path / "again.safetensors", case.header, {**case.inputs, **case.recorded})
    again = atlas_ref.load(tmp_path / "again.safetensors")
    assert again.header == case.header
    assert {row.verdict for row in atlas_ref.check(again)} == {"PASS"}


def softplus32(x: Any) -> Any:
    """log(1 + e^x) as it is printed, in float32."""
    with np.errstate(over="ignore"):
        power = np.exp(x.astype(np.float32))
    return np.where(x > 20, x, np.log(np.float32(1) + power))


@pytest.mark.clause("LAYER-23", "LAYER-11")
def test_a_softplus_as_it_is_printed_loses_gates_in_float32() -> None:
    """At arguments around -15, where float32 has few values above 1: PASS with log1p, else WRONG."""
    case = atlas_ref.load(GATES[1])
    assert case.name.endswith("gate_softplus_11.safetensors")
    x = case.inputs["in/x"] / 8 - 17.0
    header, A = case.header.plain(), np.exp(case.inputs["in/param/A_log"])[:, None]
    z = x + case.inputs["in/param/dt_bias"].reshape(2, 4)
    assert (z.min() < -16, z.max() < -13) == (True, True)
    inputs = {**case.inputs, "in/x": x}
    for name, size, verdict in (
        ("log1p", np.logaddexp(0.0, z), "PASS"),
        ("printed", softplus32(z), "WRONG"),
    ):
        mine = {"out/y": (-A * size).astype(np.float32)}
        (row,) = atlas_ref.check(atlas_ref.oracle.cases.case.make(header, {**inputs, **mine}))
        assert row.verdict == verdict, (name, row)


@pytest.mark.clause("LAYER-23")
def test_headers_and_tensors_that_do_not_fit_are_refused(tmp_path: Any) -> None:
    header, tensors = parts(GATES[0])
    file = tmp_path / "case.safetensors"

    def refused(words: str, header: Any = header, **changes: Any) -> None:
        given = {**tensors, **{f"in/{name}": x for name, x in changes.items()}}
        given = {name: x for name, x in given.items() if x is not None}
        text = {"atlas_ref": header if isinstance(header, str) else json.dumps(header)}
        safetensors.numpy.save_file(given, file, text)
        with pytest.raises(atlas_ref.CaseError, match=words):
            atlas_ref.load(file)

    own = header["parameters"]
    refused("parameters.lower_bound: ", {**header, "parameters": {**own, "lower_bound": 1.0}})
    refused("in/param/dt_bias: ", dt_bias=tensors["in/dt_bias"][:-1].copy())
    refused("in/param/A_log: missing", A_log=None)
    refused("in/param/A_log: ", A_log=np.ones(3))
    refused("parameters.heads: missing", x=None)
    refused("parameters.heads: missing", x=np.ones(3))
    refused("not JSON", '{"gate_softplus": ')
    refused("must be a JSON object", '["gate_softplus"]')
