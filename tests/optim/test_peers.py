"""What PyTorch and optax computed, recorded, against ours: tests/data/peers_optim."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from atlas_ref.optim import adamw, clip, flat, muon, sgd
from atlas_ref.parts.newton_schulz import NewtonSchulz
from tests.support.close import (
    ANALYTIC,
    EXACT,
    assert_close,
    assert_differs,
    relative_error,
    reordered,
)
from tests.support.optimised import run

FOLDER = Path(__file__).parents[1] / "data" / "peers_optim"
MUON = muon.PRESETS

#: File -> our settings for it.
SETTINGS: dict[str, Any] = {
    "torch_sgd": sgd.Config(rate=0.05),
    "torch_sgd_momentum": sgd.Config(rate=0.05, momentum=0.9, decay=0.1),
    "torch_sgd_nesterov": sgd.Config(rate=0.05, momentum=0.9, nesterov=True),
    "torch_adam": adamw.Config(rate=0.05, decay=0.1, decoupled=False),
    "torch_adamw": adamw.Config(rate=0.05, decay=0.01),
    "torch_adamw_mag": adamw.Config(rate=0.05, b2=0.95, decay=0.1),
    "torch_adamw_float32": adamw.Config(rate=0.05, decay=0.01),
    "torch_muon": muon.Config(rate=0.05, **MUON["torch"]),
    "torch_muon_plain": muon.Config(rate=0.05, **MUON["torch"] | {"nesterov": False}),
    "torch_muon_rms": muon.Config(
        rate=0.05, rms=0.2, **MUON["torch"] | {"newton_schulz": NewtonSchulz(guard="clamp")}
    ),
    "optax_sgd_nesterov": sgd.Config(rate=0.05, momentum=0.9, nesterov=True),
    "optax_adam": adamw.Config(rate=0.05, b2=0.99, eps=1e-6),
    "optax_adamw": adamw.Config(rate=0.05, decay=0.1),
    "optax_adamw_float32": adamw.Config(rate=0.05, decay=0.1),
    "optax_muon": muon.Config(rate=0.05, decay=0.1, **MUON["optax"]),
    "optax_muon_plain": muon.Config(rate=0.05, **MUON["optax"] | {"nesterov": False}),
    "optax_muon_rms": muon.Config(
        rate=0.05, rms=0.2, **MUON["optax"] | {"newton_schulz": NewtonSchulz(eps=1e-8)}
    ),
}


def read(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """Package and call, and the tensors."""
    path = FOLDER / f"{name}.safetensors"
    with safetensors.safe_open(path, "np") as file:
        about = json.loads(file.metadata()["optimiser"])
    return about, safetensors.numpy.load_file(path)


def turned(x: Any, about: Any) -> Any:
    """A matrix of optax's Muon is inputs by outputs."""
    return x.swapaxes(-1, -2) if about["call"] == "contrib.muon" else x


def steps_of(name: str) -> tuple[Any, Any, list[Any], list[Any]]:
    """What ran, parameters, gradients of each step, parameters after each."""
    about, file = read(name)
    names = [key.removeprefix("in/grads/") for key in file if key.startswith("in/grads/")]
    params = {each: turned(file[f"in/{each}"], about) for each in names}
    per_step = [
        [
            {each: turned(file[f"{kind}/{each}"][step], about) for each in names}
            for step in range(len(file[f"out/{names[0]}"]))
        ]
        for kind in ("in/grads", "out")
    ]
    return about, params, per_step[0], per_step[1]


def test_every_recorded_run_is_compared() -> None:
    files = {path.stem for path in FOLDER.glob("*.safetensors")}
    others = {"torch_clip", "torch_clip_not", "optax_clip", "torch_muon_bfloat16"}
    assert files == SETTINGS.keys() | others


@pytest.mark.clause(
    "OPTIM-8",
    "OPTIM-9",
    "OPTIM-10",
    "OPTIM-11",
    "OPTIM-13",
    "OPTIM-15",
    "OPTIM-16",
    "OPTIM-17",
)
@pytest.mark.parametrize("name", SETTINGS)
def test_every_step_of_public_code(name: str) -> None:
    about, params, grads, want = steps_of(name)
    assert len(grads) == 6
    state = None
    for step, g in enumerate(grads):
        params, state = run(SETTINGS[name], params, [g], state, step)
        for each, p in params.items():
            single = p.dtype == np.float32
            tolerance = reordered(6, dtype=np.float32) if single else ANALYTIC
            assert_close(f"{about['call']} step {step} {each}", p, want[step][each], tolerance)


@pytest.mark.clause("OPTIM-24")
@pytest.mark.parametrize("name", [name for name in SETTINGS if "adamw" in name])
def test_adamw_on_one_buffer_is_public_code_too(name: str) -> None:
    _, params, grads, want = steps_of(name)
    config = flat.Config(**{**SETTINGS[name].__dict__, "kind": "adamw_flat"})
    found, _ = run(config, params, grads)
    plain, _ = run(SETTINGS[name], params, grads)
    for each, p in found.items():
        assert_close(each, p, plain[each], EXACT)
        assert_close(each, p, want[-1][each], reordered(6, dtype=p.dtype))


@pytest.mark.clause("OPTIM-17")
def test_pytorch_s_muon_rounds_to_bfloat16() -> None:
    """As published it is off by some units of bfloat16, 2^-8, and not by more."""
    _, params, grads, want = steps_of("torch_muon_bfloat16")
    found, _ = run(SETTINGS["torch_muon"], params, grads)
    for each, p in params.items():
        moved = found[each] - p
        assert_differs(each, want[-1][each] - p, moved, 2.0**-12)
        assert relative_error(want[-1][each] - p, moved) < 4 * 2.0**-8


@pytest.mark.clause("OPTIM-23")
@pytest.mark.parametrize("name", ["torch_clip", "torch_clip_not", "optax_clip"])
def test_clipping_of_public_code(name: str) -> None:
    about, file = read(name)
    grads = {key: file[f"in/{key}"] for key in ("wide", "tall", "b")}
    config = clip.Config(limit=about["limit"], eps=1e-6 if about["package"] == "torch" else 0.0)
    found, norm = clip.clipped(config, grads)
    for key, g in found.items():
        assert_close(key, g, file[f"out/{key}"], ANALYTIC)
    if about["package"] == "torch":
        assert_close("norm", norm, float(file["out/norm"][0]), ANALYTIC)
    assert (norm > about["limit"]) == (name != "torch_clip_not")


@pytest.mark.clause("OPTIM-15", "OPTIM-16")
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("optax_muon", {"correct": False}),
        ("optax_muon", {"nesterov": False}),
        ("torch_muon", {"correct": True}),
        ("torch_muon_rms", {"rms": None}),
        ("torch_muon", {"decay": 0.0}),
    ],
)
def test_another_reading_is_not_what_public_code_computes(name: str, changes: Any) -> None:
    _, params, grads, want = steps_of(name)
    found, _ = run(SETTINGS[name].replaced(**changes), params, grads)
    for each, p in params.items():
        assert_differs(each, found[each] - p, want[-1][each] - p, 1e-3)
