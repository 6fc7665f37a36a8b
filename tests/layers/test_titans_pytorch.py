"""The neural memory beside the installed titans-pytorch: values, states and gradients."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import tape
from atlas_ref.models.public import titans_pytorch
from tape import ops
from tests.support import neural_memories as neural
from tests.support.close import Tolerance, assert_close, relative_error

torch = pytest.importorskip("torch", reason="torch is not installed")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    public = pytest.importorskip("titans_pytorch", reason="titans-pytorch is not installed")

pytestmark = pytest.mark.host("arrays of torch")
#: Two programs of the same sums; LAYER-10 allows cases of layers as much.
RECORDED = Tolerance("RECORDED", 1e-10)

#: Newton-Schulz makes small singular values large, and roundings with them: two mild settings have it.
PLAIN: dict[str, Any] = {"spectral_norm_surprises": False}
NEWTON_SCHULZ: dict[int, dict[str, Any]] = {
    100: {"spectral_norm_surprises": True, "depth": 2, "momentum": True, "batch_size": None},
    103: {"spectral_norm_surprises": True, "depth": 1, "chunk_size": 5, "batch_size": "chunk"},
}


def module_of(settings: titans_pytorch.NeuralMemory, at: Any) -> Any:
    """The module of the package with these parameters, in float64."""
    module = public.NeuralMemory(
        dim=settings.dim,
        heads=settings.heads,
        dim_head=settings.inner,
        chunk_size=settings.chunk_size,
        batch_size=settings.batch_size,
        default_step_transform_max_lr=settings.max_lr,
        momentum=settings.momentum,
        momentum_order=settings.momentum_order,
        max_grad_norm=settings.max_grad_norm,
        spectral_norm_surprises=settings.spectral_norm_surprises,
        mem_model_norm_add_residual=settings.mem_model_norm_add_residual,
        default_model_kwargs={
            "depth": settings.depth,
            "expansion_factor": settings.expansion_factor,
        },
    ).double()
    own = {name: torch.tensor(value) for name, value in at.items()}
    missing, unknown = module.load_state_dict(own, strict=False)
    assert not unknown
    assert all(name.startswith("memory_model.") for name in missing)
    return module


def whole(settings: titans_pytorch.NeuralMemory, tokens: int) -> int:
    """Tokens of whole chunks of about half of so many, after which the package goes on."""
    return tokens // 2 // settings.chunk_size * settings.chunk_size


@pytest.mark.sample(6)
@pytest.mark.clause("NEURAL-2", "NEURAL-6", "NEURAL-7", "NEURAL-8", "NEURAL-10")
@pytest.mark.parametrize("number", range(100, 112))
def test_the_installed_package_computes_the_same_numbers(number: int) -> None:
    settings = neural.drawn(number, **(NEWTON_SCHULZ.get(number) or PLAIN))
    rng = np.random.default_rng(number)
    at, x = neural.state_dict(settings, seed=number), rng.standard_normal((2, 11, 4))
    bar, first = rng.standard_normal(x.shape), whole(settings, 11)
    calls = [first, 11 - first] if first and number % 2 else [11]
    module = module_of(settings, at)
    tokens = torch.tensor(x, requires_grad=True)
    state, rows = None, []
    for part in torch.split(tokens, calls, dim=1):
        y, state = module(part, state=state)
        rows.append(y)
    theirs = torch.cat(rows, dim=1)
    (theirs * torch.tensor(bar)).sum().backward()

    got = neural.ours(settings, at, x, calls)
    assert_close("y", np.concatenate(got.y, axis=1), theirs.detach().numpy(), RECORDED)
    last, momentum = state.states
    for name, value in got.weights.items():
        assert_close(name, value, last[name].detach().numpy(), RECORDED)
        assert_close(name, got.reference[name], state.weights[name].detach().numpy(), RECORDED)
    for order, tensors in enumerate(got.momentum):
        for name, value in tensors.items():
            assert_close(f"S {name}", value, momentum[name][order].detach().numpy(), RECORDED)
    assert int(state.seq_index) == 11 - 11 % settings.chunk_size

    def loss(given: Any) -> Any:
        reads = neural.ours(settings, given["at"], given["x"], calls).y
        return ops.sum(ops.concatenate(reads, axis=1) * bar)

    gradient = tape.grad(loss)({"at": at, "x": x})
    assert_close("x", gradient["x"], tokens.grad.numpy(), RECORDED)
    for name, parameter in module.named_parameters():
        if name in at and parameter.grad is not None:
            assert_close(name, gradient["at"][name], parameter.grad.numpy(), RECORDED)
        else:
            assert name not in at or not np.any(gradient["at"][name]), name


@pytest.mark.clause("NEURAL-8")
def test_the_package_reads_the_reference_in_a_short_call_and_takes_no_longer_one() -> None:
    settings = neural.drawn(0, chunk_size=4, heads=1, batch_size=None, max_grad_norm=None)
    at, x = neural.state_dict(settings), np.random.default_rng(1).standard_normal((1, 12, 4))
    module, tokens = module_of(settings, at), torch.tensor(x)
    _, state = module(tokens[:, :6])
    with pytest.raises(RuntimeError):
        module(tokens[:, 6:], state=state)
    _, state = module(tokens[:, :4])
    short, _ = module(tokens[:, 4:6], state=state)
    fresh, _ = module(tokens[:, 4:6])  # which reads the first weights, and has written nothing
    assert relative_error(short.detach().numpy(), fresh.detach().numpy()) < 1e-12
    ours = neural.ours(settings, at, x, [4, 2]).y[1]
    assert relative_error(ours, short.detach().numpy()) > 1e-3
