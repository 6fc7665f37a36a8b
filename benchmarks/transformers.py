"""PyTorch models of the sizes of `benchmarks.models`, each as a training step on one thread.

Runs in a process of its own (`benchmarks.process`).
"""

from __future__ import annotations

import logging
from typing import Any

from benchmarks.public import module


class Step:
    """A forward, or a training step without an optimiser, of a model.

    Attributes:
        loss: ids -> the mean cross-entropy of the next tokens.
    """

    def __init__(self, loss: Any, parameters: Any, ids: Any) -> None:
        self.loss, self.ids = loss, module("torch").tensor(ids)
        self.parameters = [each for each in parameters if each.requires_grad]

    def forward(self) -> Any:
        """The loss, without a graph."""
        with module("torch").no_grad():
            return self.loss(self.ids)

    def both(self) -> Any:
        """The loss, and its gradient by every parameter that it depends on."""
        loss = self.loss(self.ids)
        grad = module("torch").autograd.grad
        return loss, grad(loss, self.parameters, allow_unused=True)

    def plain(self, value: Any) -> Any:
        """The loss as it is."""
        return value


def plain_transformer(arrays: Any, _: Any, *, d: int, heads: int, depth: int, symbols: int) -> Any:
    """RMSNorm, causal attention by PyTorch's own function, SwiGLU, embedding, head."""
    torch = module("torch")
    nn, functional = torch.nn, torch.nn.functional
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inner = int(d * 4 * 2 / 3)

    class Block(nn.Module):  # type: ignore[misc,name-defined]  # of a library that may be absent
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList([nn.RMSNorm(d), nn.RMSNorm(d)])
            self.qkv, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
            self.w_in, self.w_out = nn.Linear(d, 2 * inner), nn.Linear(inner, d)

        def forward(self, x: Any) -> Any:
            B, T, _ = x.shape
            qkv = self.qkv(self.norms[0](x)).view(B, T, 3, heads, d // heads)
            y = functional.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4), is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(B, T, d))
            value, gate = self.w_in(self.norms[1](x)).chunk(2, dim=-1)
            return x + self.w_out(value * functional.silu(gate))

    model = nn.Sequential(
        nn.Embedding(symbols, d),
        *(Block() for _ in range(depth)),
        nn.RMSNorm(d),
        nn.Linear(d, symbols, bias=False),
    )

    def loss(ids: Any) -> Any:
        logits = model(ids[:, :-1])
        return functional.cross_entropy(logits.reshape(-1, symbols), ids[:, 1:].reshape(-1))

    return Step(loss, model.parameters(), arrays["ids"])


def atlas_rnn_mag(
    arrays: Any, _: Any, *, d: int, heads: int, depth: int, symbols: int, window: int
) -> Any:
    """The language model of atlas-rnn with MAG blocks around its Titans memory."""
    torch, models = module("torch"), module("atlas_pytorch.rnn_transformer")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = models.RNNMemoryTransformer(
        num_tokens=symbols,
        dim=d,
        depth=depth,
        block_type="mag",
        heads=heads,
        dim_head=d // heads,
        window_size=window,
        omega_window=1,
    )
    return Step(lambda ids: model(ids, return_loss=True), model.parameters(), arrays["ids"])


def atlas_mag(
    arrays: Any, _: Any, *, d: int, heads: int, depth: int, symbols: int, window: int
) -> Any:
    """The model of Atlas-MAG in training: compression of rank 0, 5 steps of Newton-Schulz."""
    torch, skeleton = module("torch"), module("src.model.skeleton")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    logging.getLogger("src.model.skeleton").setLevel(logging.ERROR)
    model = skeleton.AtlasMAGSkeleton(vocab_size=symbols, dim=d, n_layers=depth, n_heads=heads)
    for block in model.blocks:
        block.attn_window_size = window
    cross_entropy = torch.nn.functional.cross_entropy

    def loss(ids: Any) -> Any:
        logits = model(ids[:, :-1])
        return cross_entropy(logits.reshape(-1, symbols), ids[:, 1:].reshape(-1))

    return Step(loss, model.parameters(), arrays["ids"])
