"""The references in plain PyTorch against the sequential rule: values and gradients in float64."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atlas_ref.parts.newton_schulz import NewtonSchulz, newton_schulz
from benchmarks import memories
from benchmarks.gpu import eager, peers, plan, running
from benchmarks.gpu.devices import Cpu
from benchmarks.public import Missing
from tests.support.close import ANALYTIC, assert_close, reordered

torch = pytest.importorskip("torch", reason="the references are written in PyTorch (extra bench)")
MEMORIES = {subject.name: subject.memory for subject in plan.SUBJECTS} | {
    "Delta": memories.DELTA,
    "Titans": memories.TITANS,
}
HEADS, TOKENS, CHUNK = 2, 64, 16


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", MEMORIES)
@pytest.mark.parametrize("chunk", [CHUNK, TOKENS])
def test_the_formula_in_pytorch_is_the_sequential_rule(name: str, chunk: int) -> None:
    memory = memories.sized(MEMORIES[name], 6)
    arrays = memories.sequence(memory, TOKENS, np.float64, heads=HEADS)
    bar = np.random.default_rng(1).standard_normal(arrays["v"].shape)
    y, gradient = memories.both(memory, arrays, bar, "sequential")
    leaves = {key: torch.tensor(value, requires_grad=True) for key, value in arrays.items()}
    found = eager.reads(memory, leaves, chunk)
    gradients = torch.autograd.grad(found, list(leaves.values()), torch.tensor(bar))
    tolerance = (
        reordered(TOKENS, amplification=1e4)
        if memory.config.convention.has_newton_schulz
        else ANALYTIC
    )
    assert_close("y", found.detach().numpy(), y, tolerance)
    for key, value in zip(leaves, gradients, strict=True):
        assert_close(key, value.numpy(), gradient[key], tolerance)


def test_newton_schulz_in_pytorch_is_ours() -> None:
    S = np.random.default_rng(0).standard_normal((3, 8, 8))
    found = eager.newton_schulz(torch.tensor(S), NewtonSchulz()).numpy()
    assert_close("U", found, newton_schulz(S, NewtonSchulz()), ANALYTIC)


def _call(name: str, label: str, tokens: int = 128) -> tuple[Any, Any]:
    device = Cpu()
    (subject,) = [each for each in plan.SUBJECTS if each.name == name]
    (candidate,) = [each for each in subject.candidates if each.label == label]
    group = plan.Group(subject, 2, 8, tokens, (candidate,))
    arrays, bar = running.inputs(group, device)
    true = running.truth(group, arrays, bar, device)
    assert true is not None
    return peers.results(peers.call(candidate, group, arrays, bar, device), device), true


def test_a_reference_is_held_against_the_truth_in_our_layout() -> None:
    (y, gradient), true = _call("gated delta", "PyTorch eager")
    assert running.error((y, gradient), true) < 1e-5
    assert running.error((y, {**gradient, "k": 2 * gradient["k"]}), true) > 0.1


@pytest.mark.skipif(
    importlib.util.find_spec("atlas_pytorch") is None,
    reason="the cell of atlas-rnn is not on the path",
)
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # its own
@pytest.mark.parametrize("label", ["atlas-rnn cell", "atlas-rnn cell, scan in chunks of 64"])
def test_the_public_cell_computes_the_rule_that_it_is_held_against(label: str) -> None:
    found, true = _call("frozen Omega", label)
    assert running.error(found, true) < 1e-5


@pytest.mark.parametrize("label", ["fla Triton chunk, float32", "fla Triton chunk, bfloat16"])
def test_without_a_gpu_triton_kernels_say_so(label: str) -> None:
    with pytest.raises(Missing, match="need a GPU"):
        _call("gated delta", label)


@pytest.mark.skipif(
    importlib.util.find_spec("fla") is None, reason="fla-core is not installed (extra bench)"
)
@pytest.mark.parametrize("peer", peers.FLA)
def test_calls_of_fla_core_name_arguments_that_it_has(peer: str) -> None:
    """A check against the text of the function, since importing its kernels needs a GPU."""
    made = ast.parse(Path(peers.__file__).read_text())
    function = next(
        each for each in made.body if getattr(each, "name", "") == peers.FLA[peer].__name__
    )
    names = [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Constant) and str(node.value).startswith("fla.ops")
    ]
    call = next(
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "kernel"
    )
    attribute = next(
        node.attr
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and node.attr.startswith("chunk_")
    )
    spec = importlib.util.find_spec("fla")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    file = Path(spec.submodule_search_locations[0], *names[0].split(".")[1:], "chunk.py")
    theirs = next(
        each for each in ast.parse(file.read_text()).body if getattr(each, "name", "") == attribute
    )
    assert isinstance(theirs, ast.FunctionDef)
    assert {keyword.arg for keyword in call.keywords} <= {
        argument.arg for argument in theirs.args.args
    }
