"""Gradients of a PyTorch model by the adapter: each planted mistake of backward is named with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from atlas_ref.oracle.modules.judge import first_wrong, judge

pytest.importorskip("torch", reason="torch is not installed")

from tests.oracle.modules.test_torch_modules import VARIANTS
from tests.support.recorded_modules import of_torch

LAYER = "layers.0."
BETWEEN = "backward between "
GATES = ("to_lr", "to_decay", "to_momentum", "to_omega_gate")


class Place(NamedTuple):
    """Where a mistake of backward is found, and what explains it.

    Attributes:
        first: words before the first wrong token in the order of backward.
    """

    fault: str
    tensor: str
    nearest: str = ""
    first: str = ""


def of(module: str, port: str, nearest: str = "", first: str = "") -> Place:
    return Place(f"backward of {LAYER}{module}", f"{LAYER}{module}/grad/in/{port}", nearest, first)


MISTAKES = {
    "attention: mean detached": of("attention.norm", "x", first="token 8"),
    "ff: mean detached": of("ff.0", "x"),
    "to_lr: straight through": of("memory.to_lr", "x"),
    "memory detached": of("memory.cell", "window_gate", first="token 6 (call 1, its token 1)"),
    "keys straight through": of("attention.rotary", "k", first="token 8"),
    "weights detached": of("attention.attend", "k", "passes nothing back", first="token 8"),
    "gates detached": Place(
        f"{BETWEEN}{LAYER}memory.pre_norm and "
        + " and ".join(f"{LAYER}memory.{each}" for each in ("q_conv", "k_conv", "v_conv", *GATES)),
        f"{LAYER}memory.pre_norm/grad/out/y",
        "passes nothing back from "
        + ", ".join(f"modules/{LAYER}memory.{each}/grad/in/x" for each in GATES),
    ),
    "residual detached": Place(
        f"{BETWEEN}{LAYER[:-1]} and {LAYER}attention and {LAYER}memory and {LAYER}ff",
        f"{LAYER[:-1]}/grad/in/x",
        f"passes nothing back from modules/{LAYER}ff/grad/in/x",
    ),
    "gradient halved": Place(
        f"{BETWEEN}{LAYER}ff and {LAYER[:-1]}",
        f"{LAYER}ff/grad/out/y",
        "multiplies what comes back by 1/2",
    ),
    "embedding detached": Place(
        f"{BETWEEN}embed and embed_norm", "embed/grad/out/y", "passes nothing back"
    ),
    "state detached": of(
        "memory.cell",
        "window_gate",
        "passes nothing back from a call to the one before",
        "token 4 (call 0, its token 4)",
    ),
}


@pytest.mark.sample(1)
@pytest.mark.clause("MODULES-10", "MODULES-20")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_single_mistake_of_backward_is_named_with_its_place(mistake: str, tmp_path: Path) -> None:
    place = MISTAKES[mistake]
    verdicts = judge(of_torch(tmp_path, (mistake,), depth=1, gradients=True))
    forward = [each for each in verdicts if "/grad/" not in each.tensor]
    assert {each.verdict for each in forward} == {"PASS"}
    first = first_wrong(verdicts)
    assert first is not None, f"{mistake}: nothing is wrong"
    print(f"{mistake}: {first.fault}: {first.tensor}, {first.place}; {first.nearest}")
    assert first.verdict == "WRONG"
    assert first.fault == place.fault
    assert first.tensor == f"modules/{place.tensor}"
    assert first.nearest == place.nearest
    assert place.first in first.place
    assert first.clause == "MODULES-20"


@pytest.mark.sample(2)
@pytest.mark.clause("MODULES-9", "MODULES-20")
@pytest.mark.parametrize("parts", [False, True], ids=["whole", "parts"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_another_right_way_to_compute_has_a_right_backward(
    variant: str, parts: bool, tmp_path: Path
) -> None:
    how: dict[str, Any] = dict(VARIANTS[variant])
    if parts:
        how["without"] = (*how.get("without", ()), "0", "memory", "attention", "ff")
    verdicts = judge(of_torch(tmp_path, depth=1, gradients=True, **how), nearest=False)
    assert {each.key: each.verdict for each in verdicts if each.verdict != "PASS"} == {}
    backward = [each for each in verdicts if "/grad/" in each.tensor]
    assert len(backward) >= (30 if parts else 8)


@pytest.mark.clause("MODULES-20")
def test_a_scaled_loss_is_the_users_own(tmp_path: Path) -> None:
    """Cotangents a thousand times larger, as a loss scale makes them, are right all the same."""
    recording = of_torch(tmp_path, depth=1, gradients=True)
    scaled = {key: 1000.0 * each for key, each in recording.cotangents.items()}
    verdicts = judge(recording._replace(cotangents=scaled), nearest=False)
    assert {each.verdict for each in verdicts} == {"PASS"}


@pytest.mark.slow
@pytest.mark.clause("MODULES-2", "MODULES-20")
def test_detached_calls_are_right_where_the_header_says_so(tmp_path: Path) -> None:
    detached = of_torch(tmp_path, ("state detached",), depth=1, gradients=True)
    own = detached._replace(recipe=detached.recipe._replace(detached=True))
    assert {each.verdict for each in judge(own, nearest=False)} == {"PASS"}
    whole = of_torch(tmp_path, depth=1, gradients=True)
    first = first_wrong(judge(whole._replace(recipe=whole.recipe._replace(detached=True))))
    assert first is not None
    assert first.nearest == "passes something back from a call to the one before"


@pytest.mark.clause("MODULES-20")
def test_without_a_backward_the_adapter_records_no_gradients(tmp_path: Path) -> None:
    import torch
    import torch_modules
    from torch import nn

    net, x = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)), torch.ones(1, 2, 3)
    names = {"0": "layer.first", "1": "layer.second"}
    recorder = torch_modules.Recorder(net, {}, names=names, parameters={}, gradients=True)
    with recorder:
        y = net(x)
    assert not any("/grad/" in name for name in recorder.tensors())
    y.sum().backward()
    tensors = recorder.tensors()
    grads = {name: each for name, each in tensors.items() if "/grad/" in name}
    assert sorted(grads) == [
        "modules/layer.first/grad/out/y",
        "modules/layer.second/grad/in/x",
        "modules/layer.second/grad/out/y",
    ]
    assert grads["modules/layer.second/grad/out/y"].tolist() == torch.ones(1, 2, 2).tolist()
    want = torch.ones(1, 2, 2) @ net[1].weight
    assert torch.allclose(grads["modules/layer.second/grad/in/x"], want)
    assert torch.equal(grads["modules/layer.first/grad/out/y"], want)
