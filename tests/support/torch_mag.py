"""A MAG language model in PyTorch, written from its mathematics, with mistakes that can be switched on.

It imports nothing from the package. Memory is a loop over tokens; state goes in and comes out, so
that a sequence may come in calls. `how` names mistakes and other right ways to compute.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Tensor = torch.Tensor


class Sizes:
    """Sizes of a model, and how it is computed."""

    def __init__(self, how: frozenset[str], **sizes: Any) -> None:
        self.how = how
        self.dim, self.heads, self.d, self.kernel = 6, 2, 4, 4
        self.window, self.persistent, self.omega = 4, 2, 2
        self.inner, self.vocab, self.depth = 5, 11, 2
        self.mag = "attention_times_gate"
        self.__dict__.update(sizes)


class Part(nn.Module):
    """A module that knows the sizes."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.s = sizes

    def does(self, *names: str) -> bool:
        return bool(self.s.how & set(names))


class RMSNorm(Part):
    def __init__(self, sizes: Sizes, place: str) -> None:
        super().__init__(sizes)
        self.weight, self.place = nn.Parameter(torch.ones(sizes.dim)), place

    def forward(self, x: Tensor) -> Tensor:
        mean = x.square().mean(-1, keepdim=True)
        mean = mean.detach() if self.does(f"{self.place}: mean detached") else mean
        if self.does(f"{self.place}: eps outside"):
            return x / (mean.sqrt() + 1e-6) * self.weight
        eps = 1e-5 if self.does(f"{self.place}: eps 1e-5") else 1e-6
        if self.does(f"{self.place}: no gain"):
            return x * torch.rsqrt(mean + eps)
        if self.does(f"{self.place}: 1 + gain"):
            return x * torch.rsqrt(mean + eps) * (1.0 + self.weight)
        if self.does("einsum"):
            return torch.einsum("btd,d,bt->btd", x, self.weight, (mean[..., 0] + eps).rsqrt())
        return x * torch.rsqrt(mean + eps) * self.weight


class LayerNorm(Part):
    def __init__(self, sizes: Sizes, place: str) -> None:
        super().__init__(sizes)
        self.weight, self.place = nn.Parameter(torch.ones(sizes.dim)), place
        self.bias = nn.Parameter(torch.zeros(sizes.dim))

    def forward(self, x: Tensor) -> Tensor:
        if self.does(f"{self.place}: rms"):
            return x / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight
        if self.does(f"{self.place}: unbiased"):
            x = x - x.mean(-1, keepdim=True)
            return x / torch.sqrt(x.var(-1, keepdim=True) + 1e-5) * self.weight + self.bias
        return F.layer_norm(x, (self.s.dim,), self.weight, self.bias, 1e-5)


class HeadNorm(Part):
    def __init__(self, sizes: Sizes, place: str) -> None:
        super().__init__(sizes)
        self.gamma, self.place = nn.Parameter(torch.ones(sizes.heads, 1, sizes.d)), place

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        if self.does(f"{self.place}: identity"):
            return x
        axes = (1, -1) if self.does(f"{self.place}: over all heads") else (-1,)
        rms = x.square().mean(axes, keepdim=True).sqrt()
        if self.does(f"{self.place}: l2"):
            rms = rms * self.s.d**0.5
        gamma = self.gamma if other is None else other
        return x / rms.clamp(min=1e-8) * gamma


class Conv(Part):
    """A depthwise convolution with its tail as state."""

    def __init__(self, sizes: Sizes, place: str) -> None:
        super().__init__(sizes)
        self.weight, self.place = nn.Parameter(torch.zeros(sizes.dim, 1, sizes.kernel)), place

    def forward(self, x: Tensor, tail: Tensor | None) -> tuple[Tensor, Tensor]:
        K, D = self.s.kernel, self.s.dim
        if tail is None or self.does(f"{self.place}: tail lost"):
            tail = x.new_zeros(x.shape[0], K - 1, D)
        rows = torch.cat([tail, x], dim=1)
        if self.does(f"{self.place}: centred"):
            padded = F.pad(x.mT, (K // 2, K - 1 - K // 2))
            return F.conv1d(padded, self.weight, groups=D).mT, rows[:, 1 - K :]
        weight = self.weight.flip(-1) if self.does(f"{self.place}: taps reversed") else self.weight
        y = F.conv1d(rows.mT, weight, groups=D).mT
        if self.does("unfold"):
            y = (rows.unfold(1, K, 1) * weight[:, 0]).sum(-1)
        if self.does(f"{self.place}: silu"):
            y = F.silu(y)
        return y, rows[:, 1 - K :]


class Gate(nn.Sequential):
    def __init__(self, sizes: Sizes, rows: int, place: str) -> None:
        super().__init__(nn.Linear(sizes.dim, rows))
        self.s, self.place = sizes, place

    def forward(self, x: Tensor) -> Tensor:
        z = super().forward(x)
        if f"{self.place}: without sigmoid" in self.s.how:
            return z
        if f"{self.place}: softplus" in self.s.how:
            return F.softplus(z)
        if f"{self.place}: no bias" in self.s.how:
            return torch.sigmoid(z - self[0].bias)
        y = torch.sigmoid(z)
        if f"{self.place}: straight through" in self.s.how:
            return z + (y - z).detach()
        return 1.0 - y if f"{self.place}: one minus" in self.s.how else y


class Cell(Part):
    """The memory itself, token after token: a window of errors, momentum, decay, rate."""

    def forward(self, q, k, v, step_size, retain, momentum, window_gate, state):
        B, H, T, d = q.shape
        zero = q.new_zeros(B, H, d, d)
        M, S, window = (zero, zero, []) if state is None else state
        if self.does("momentum lost"):
            S = zero
        if self.does("window lost"):
            window = []
        reads, length = [], self.s.omega - self.does("window short")
        for t in range(T):
            before = M
            key, value = k[:, :, t], v[:, :, t]
            u = torch.ones_like(window_gate[:, :, t]) if self.does("no window gate") else None
            window = [*window, (key, value, window_gate[:, :, t] if u is None else u)][-length:]
            G = zero
            for key, value, weight in window:
                held = M.detach() if self.does("memory detached") else M
                residual = torch.einsum("bhij,bhj->bhi", held, key) - value
                if self.does("value sign"):
                    residual = residual + 2 * value
                G = G + weight[..., None, None] * residual[..., :, None] * key[..., None, :]
            if self.does("mean over window"):
                G = G / len(window)
            decay, mu, rate = (g[:, :, t, None, None] for g in (retain, momentum, step_size))
            if self.does("gates swapped inside"):
                decay, mu = mu, decay
            if self.does("momentum one minus"):
                mu = 1.0 - mu
            if self.does("decay one minus"):
                decay = 1.0 - decay
            S = mu * S + (rate * G if self.does("rate in momentum") else G)
            M = decay * M - (S if self.does("rate in momentum") else rate * S)
            if self.does("decay after write"):
                M = decay * (before - rate * S)
            memory = M if self.does("read after") else before
            query = k[:, :, t] if self.does("read with keys") else q[:, :, t]
            reads.append((memory @ query[..., None])[..., 0])
        return torch.stack(reads, 2), M, S, window


class Memory(Part):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        D, rows = sizes.dim, sizes.heads * sizes.d
        self.pre_norm = RMSNorm(sizes, "memory")
        for each in "qkv":
            self.add_module(f"{each}_conv", Conv(sizes, f"{each}_conv"))
            self.add_module(f"to_{each}", nn.Linear(D, rows, bias=False))
        self.q_norm, self.k_norm = HeadNorm(sizes, "q_norm"), HeadNorm(sizes, "k_norm")
        for each in ("lr", "decay", "momentum", "omega_gate"):
            self.add_module(f"to_{each}", Gate(sizes, sizes.heads, f"to_{each}"))
        self.cell = Cell(sizes)
        self.to_out = nn.Linear(rows, D, bias=False)

    def heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.s.heads, self.s.d)).transpose(1, 2)

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        tails, memory = ((None,) * 3, None) if state is None else state
        n = self.pre_norm(x)
        convs = (self.q_conv, self.k_conv, self.v_conv)
        (cq, tq), (ck, tk), (cv, tv) = (c(n, t) for c, t in zip(convs, tails, strict=True))
        if self.does("convolution skipped for v"):
            cv = n
        if self.does("fused qkv"):
            rows = torch.cat([cq, ck, cv], -1)
            weight = torch.block_diag(self.to_q.weight, self.to_k.weight, self.to_v.weight)
            q, k, v = map(self.heads, (rows @ weight.mT).chunk(3, -1))
        else:
            q, k, v = map(self.heads, (self.to_q(cq), self.to_k(ck), self.to_v(cv)))
        if not self.does("head norm left out"):
            wrong = self.k_norm.gamma if self.does("k norm weight for q") else None
            q, k = self.q_norm(q, wrong), self.k_norm(k)
        if self.does("value normed"):
            v = F.normalize(v, dim=-1)
        if self.does("gates of x"):
            n = x
        n = n.detach() if self.does("gates detached") else n
        if self.does("fused gates"):
            of = (self.to_lr, self.to_momentum, self.to_decay, self.to_omega_gate)
            weight, bias = (torch.cat([getattr(g[0], f) for g in of]) for f in ("weight", "bias"))
            gates = list(torch.sigmoid(F.linear(n, weight, bias)).mT.chunk(4, 1))
        else:
            gates = [
                g(n).mT for g in (self.to_lr, self.to_momentum, self.to_decay, self.to_omega_gate)
            ]
        rate, momentum, decay, weight = gates
        if self.does("gates swapped"):
            momentum, decay = decay, momentum
        y, *memory = self.cell(q, k, v, rate, decay, momentum, weight, memory)
        return self.to_out(y.transpose(1, 2).flatten(2)), ((tq, tk, tv), memory)


class Rotary(Part):
    def turn(self, x: Tensor, first: int) -> Tensor:
        d = self.s.d
        base = 1000.0 if self.does("rotary base") else 10000.0
        w = base ** (-2.0 * torch.arange(d // 2, dtype=torch.float64) / d)
        angles = (first + torch.arange(x.shape[-2], dtype=torch.float64))[:, None] * w
        angles = -angles if self.does("rotary other way") else angles
        cos, sin = angles.cos().to(x), angles.sin().to(x)
        if self.does("complex rotary"):
            turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
            return torch.view_as_real(turned * torch.complex(cos, sin)).flatten(-2)
        if self.does("rotary halves"):
            a, b = x.chunk(2, -1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)

    def forward(self, q: Tensor, k: Tensor, first: int) -> tuple[Tensor, Tensor]:
        first = 0 if self.does("rotary restarts") else first
        if self.does("rotary from 1"):
            first = first + 1
        turned = k if self.does("keys not turned") else self.turn(k, first)
        if self.does("keys straight through"):
            turned = k + (turned - k).detach()
        return self.turn(q, first), turned


class Attend(Part):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.persist: Any = None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, cache: Any) -> tuple[Tensor, Any]:
        if cache is not None and not self.does("cache lost"):
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        T, J, W = q.shape[2], k.shape[2], self.s.window
        t, j = torch.arange(J - T, J)[:, None], torch.arange(J)
        reach = W + self.does("window long") - self.does("window short by one")
        seen = (j <= t + self.does("sees the next")) & (j > t - reach)
        if self.does("sees not itself"):
            seen = (j < t) & (j >= t - reach)
        rows = self.persist.expand(q.shape[0], -1, -1, -1)
        P = rows.shape[2]
        always = torch.ones(T, P, dtype=torch.bool)
        if self.does("persistent masked"):
            always = torch.arange(P) >= P - 1 - t
        if self.does("persistent turned"):
            w = 10000.0 ** (-2.0 * torch.arange(self.s.d // 2, dtype=q.dtype) / self.s.d)
            angle = torch.arange(P, dtype=q.dtype)[:, None] * w
            a, b = rows[..., 0::2], rows[..., 1::2]
            turned = [a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()]
            keys = torch.stack(turned, -1).flatten(-2)
        else:
            keys = rows
        keys, values = torch.cat([keys, k], 2), torch.cat([rows, v], 2)
        y = self.reads(q, keys, values, torch.cat([always, seen], 1))
        return y, (k[:, :, max(0, J - W) :], v[:, :, max(0, J - W) :])

    def reads(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
        scale = 1.0 / self.s.d if self.does("scale 1/d") else self.s.d**-0.5
        scale = 1.0 if self.does("no scale") else scale
        if self.does("sdpa"):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        if self.does("chunked attention"):
            rows = zip(q.split(2, 2), seen.split(2, 0), strict=True)
            return torch.cat([self.plain(part, k, v, mask, scale) for part, mask in rows], 2)
        return self.plain(q, k, v, seen, scale)

    def plain(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float) -> Tensor:
        scores = (q * scale) @ k.mT
        if self.does("einsum"):
            scores = torch.einsum("bhtd,bhjd->bhtj", q, k) * scale
        scores = scores.masked_fill(~seen, -math.inf)
        if self.does("max subtracted"):
            e = torch.exp(scores - scores.amax(-1, keepdim=True))
            return (e @ v) / e.sum(-1, keepdim=True)
        if self.does("masked after softmax"):
            return (torch.softmax((q * scale) @ k.mT, -1) * seen) @ v
        weights = torch.softmax(scores, -1)
        return (weights.detach() if self.does("weights detached") else weights) @ v


class Attention(Part):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        rows = sizes.heads * sizes.d
        self.norm, self.to_qkv = (
            RMSNorm(sizes, "attention"),
            nn.Linear(sizes.dim, 3 * rows, bias=False),
        )
        self.persist_mem = nn.Parameter(torch.zeros(sizes.heads, sizes.persistent, sizes.d))
        self.rotary, self.attend = Rotary(sizes), Attend(sizes)
        self.to_out = nn.Linear(rows, sizes.dim, bias=False)

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        cache, first = (None, 0) if state is None else state
        rows = self.to_qkv(self.norm(x)).chunk(3, -1)
        if self.does("heads in wrong order"):
            q, k, v = (r.unflatten(-1, (self.s.d, -1)).permute(0, 3, 1, 2) for r in rows)
        else:
            q, k, v = (r.unflatten(-1, (self.s.heads, self.s.d)).transpose(1, 2) for r in rows)
        if self.does("q and k swapped"):
            q, k = k, q
        q, k = self.rotary(q, k, first)
        if self.does("value turned"):
            v = self.rotary.turn(v, first)
        self.attend.persist = self.persist_mem
        y, cache = self.attend(q, k, v, cache)
        order = (0, 2, 3, 1) if self.does("heads merged in wrong order") else (0, 2, 1, 3)
        y = y.permute(*order).flatten(2)
        return self.to_out(y), (cache, first + x.shape[1])


class GatedHalf(Part):
    """One half of a hidden layer times an activation of the other."""

    def forward(self, h: Tensor) -> Tensor:
        value, gate = h.chunk(2, -1)
        if self.does("ff halves"):
            value, gate = gate, value
        if self.does("gelu by erf"):
            return value * F.gelu(gate)
        return value * (F.gelu(gate, approximate="tanh") if self.does("gelu") else F.silu(gate))


class FeedForward(nn.Sequential):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__(
            RMSNorm(sizes, "ff"),
            nn.Linear(sizes.dim, 2 * sizes.inner),
            GatedHalf(sizes),
            nn.Linear(sizes.inner, sizes.dim),
        )


class Mix(Part):
    def forward(self, a: Tensor, m: Tensor, g: Tensor | None = None) -> Tensor:
        if self.does("sigmoid of attention"):
            return m * torch.sigmoid(a)
        if self.does("mix is a sum"):
            return a + m if g is None else a + g * m
        if g is None:
            return a * torch.sigmoid(m)
        if self.does("mix halves"):
            g = 1.0 - g
        return torch.lerp(m, a, g) if self.does("lerp") else g * a + (1.0 - g) * m


def detached(state: Any) -> Any:
    """A state without its history."""
    if isinstance(state, tuple | list):
        return type(state)(detached(each) for each in state)
    return state.detach() if isinstance(state, Tensor) else state


class Scaled(torch.autograd.Function):
    """Its input, of which half of the gradient comes back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 0.5 * g


class Block(Part):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.memory, self.attention = Memory(sizes), Attention(sizes)
        if sizes.mag == "gate_mix":
            self.gate = Gate(sizes, sizes.dim, "gate")
        self.mix, self.ff = Mix(sizes), FeedForward(sizes)

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        of_attention, of_memory = (None, None) if state is None else state
        if self.does("state detached"):
            of_attention, of_memory = detached(of_attention), detached(of_memory)
        a, of_attention = self.attention(x, of_attention)
        m, of_memory = self.memory(
            self.attention.norm.forward(x) if self.does("memory of normed x") else x, of_memory
        )
        gate = []
        if self.s.mag == "gate_mix":
            gate = [
                self.gate(self.memory.pre_norm.forward(x) if self.does("gate of normed x") else x)
            ]
        y = self.mix(a, m, *gate)
        stream = x.detach() if self.does("residual detached") else x
        x = y if self.does("residual missing") else stream + y
        x = x + y if self.does("branch twice") else x
        after = self.ff(x)
        after = Scaled.apply(after) if self.does("gradient halved") else after
        x = after if self.does("residual of ff missing") else x + after
        return x, (of_attention, of_memory)


class Loss(Part):
    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        by = 1 if self.does("loss shifted by two") else 0
        logits, targets = logits[:, : logits.shape[1] - by], targets[:, by:]
        if self.does("loss summed over rows"):
            return F.cross_entropy(logits.mT, targets, reduction="none").sum(0).mean()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Head(nn.Linear):
    """The head; `other` holds the embedding's weight where a mistake takes that."""

    other: tuple[Tensor, ...] = ()
    capped = False

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x, *self.other) if self.other else super().forward(x)
        return 30.0 * torch.tanh(y / 30.0) if self.capped else y


class MAG(Part):
    """The language model."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.embed = nn.Embedding(sizes.vocab, sizes.dim)
        self.embed_norm, self.norm = LayerNorm(sizes, "embed_norm"), LayerNorm(sizes, "norm")
        self.layers = nn.ModuleList(Block(sizes) for _ in range(sizes.depth))
        self.to_logits = Head(sizes.dim, sizes.vocab, bias=False)
        self.loss = Loss(sizes)

    def forward(self, ids: Tensor, states: Any = None) -> tuple[Tensor, Any]:
        x = self.embed(ids)
        self.to_logits.other = (self.embed.weight,) if self.does("weights tied") else ()
        self.to_logits.capped = self.does("logits capped")
        if self.does("embedding scaled"):
            x = x * self.s.dim**0.5
        x = x.detach() if self.does("embedding detached") else x
        if not self.does("embed_norm missing"):
            x = self.embed_norm(x)
        after = []
        for i, layer in enumerate(self.layers):
            x, state = layer(x, None if states is None else states[i])
            after.append(state)
        return self.to_logits(self.norm(x)), after


def drawn(how: tuple[str, ...] = (), dtype: torch.dtype = torch.float64, **sizes: Any) -> MAG:
    """A model whose every parameter is drawn, so that each shows."""
    model = MAG(Sizes(frozenset(how), **sizes)).to(torch.float64)
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, each in model.named_parameters():
            start = 1.0 if name.endswith(("norm.weight", "gamma", "ff.0.weight")) else 0.0
            each.copy_(start + 0.4 * torch.randn(each.shape, generator=draw, dtype=torch.float64))
    return model.to(dtype)
