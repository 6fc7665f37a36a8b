"""Deep memories in PyTorch on given keys, values, queries and gates, each on one thread.

Runs in a process of its own (`benchmarks.process`).
"""

from __future__ import annotations

from typing import Any

from atlas_ref.rules.deep_memory import Config
from benchmarks.public import Array, Arrays, Call, module
from benchmarks.survey.catalogue import helper


def titans_memory(arrays: Arrays, bar: Array, *, config: Config) -> Call:
    """NeuralMemory of titans-pytorch, whose projections hand on what they get."""
    module("titans_pytorch")
    adapter = helper("of_deep_memories")
    memory = adapter.neural_memory(config, momentum=True)
    return _call(arrays, bar, lambda x: adapter.titans_results(memory, x, config)["y"])


def token_loop(arrays: Arrays, bar: Array, *, config: Config, by_hand: bool) -> Call:
    """A loop over tokens, each of which writes an MLP of two matrices with residual and norm.

    Args:
        by_hand: whether the gradient of a write is written out, or that of torch.func.
    """
    torch = module("torch")
    functional, width, eps = torch.nn.functional, config.d_in, config.memory.norm_eps

    def value(W: Any, x: Any) -> Any:
        y = functional.gelu(x @ W["W_1"].mT) @ W["W_2"].mT
        return functional.layer_norm(y, (width,), eps=eps) * (W["norm/gain"] + 1) + x

    def loss(W: Any, x: Any, y: Any, weight: Any) -> Any:
        return weight * (value(W, x[None])[0] - y).square().mean()

    found = torch.func.vmap(torch.func.grad(loss))

    def written_out(W: Any, x: Any, y: Any, weight: Any) -> Any:
        key, a = x[:, None], x[:, None] @ W["W_1"].mT
        share = 0.5 + 0.5 * torch.erf(a * 0.5**0.5)
        s = a * share
        o = s @ W["W_2"].mT
        centred = o - o.mean(-1, keepdim=True)
        r = (centred.square().mean(-1, keepdim=True) + eps).rsqrt()
        n, above = centred * r, W["norm/gain"][:, None] + 1
        gy = (n * above + key - y[:, None]) * (weight[:, None, None] * (2 / width))
        g = gy * above
        g = r * (g - g.mean(-1, keepdim=True) - n * (g * n).mean(-1, keepdim=True))
        slope = share + a * torch.exp(-0.5 * a * a) * 0.3989422804014327
        of_a = (g @ W["W_2"]) * slope
        return {"W_1": of_a.mT * key, "W_2": g.mT * s, "norm/gain": (gy * n)[:, 0]}

    gradient = written_out if by_hand else found

    def reads(x: Any) -> Any:
        W = {name.removeprefix("memory/"): x[name] for name in x if name.startswith("memory/")}
        S, ys = {name: torch.zeros_like(each) for name, each in W.items()}, []
        for t in range(x["k"].shape[1]):
            g = gradient(W, x["k"][:, t], x["v"][:, t], x["window_gate"][:, t])
            for name, each in W.items():
                of_memory = (-1, *(1,) * (each.ndim - 1))
                S[name] = x["momentum"][:, t].view(of_memory) * S[name] - g[name]
                W[name] = (1 - x["retain"][:, t]).view(of_memory) * each + S[name]
            ys.append(
                value(
                    {n: each if n != "norm/gain" else each[:, None] for n, each in W.items()},
                    x["q"][:, t, None],
                )
            )
        return torch.cat(ys, 1)

    return _call(arrays, bar, reads)


def _call(arrays: Arrays, bar: Array, reads: Any) -> Call:
    torch = module("torch")
    torch.set_num_threads(1)
    leaves = {name: torch.tensor(array, requires_grad=True) for name, array in arrays.items()}
    return Call(leaves, reads, torch.tensor(bar), lambda y: y, lambda gradients: gradients)
