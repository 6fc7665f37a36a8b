"""Modules of atlas-rnn and ours on the same numbers: attention, memory, blocks, language models.

Parameters are drawn here with NumPy and carry the names of its state_dict. It computes in float32,
as its users do, unless told otherwise; ours in float64. Its code is called, and nothing of it is
copied; where it is not on the path, ours alone is measured.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.blocks import lmm, mac, mag, mal
from atlas_ref.layers import attention, convention, memory
from atlas_ref.models import atlas_rnn_names, import_atlas_rnn, language_model
from atlas_ref.models.import_atlas_rnn import Settings
from atlas_ref.models.public import names
from benchmarks.survey.catalogue import helper
from tape.nested import flatten

Array = np.ndarray[Any, Any]
Tensors = Mapping[str, Array]
Change = Callable[[dict[str, Array]], Mapping[str, Array]]

BLOCKS = {"mag": mag, "mal": mal, "mac": mac, "lmm": lmm}
SEED = 11

#: Digest of the two files of its layers, and the commit that has them.
KNOWN = {"ffd0ab9dde44": "1a2cf8a"}
FILES = ("rnn_memory.py", "rnn_transformer.py")


class Result(NamedTuple):
    """The result of each call, and the memory after the last one, None where there is none."""

    outputs: list[Array]
    memory: Array | None

    @property
    def last(self) -> Array:
        return self.outputs[-1]


class Ours:
    """Our modules under a preset of layers.

    Args:
        readings: of the layers.
        rule: convention of the memory's rule, Omega with a window of 1 unless settings say so.
    """

    def __init__(self, readings: Any, rule: Any) -> None:
        self.readings, self.rule = convention.resolve(readings), rule

    def memory_config(self, s: Settings) -> memory.Config:
        """The memory layer of settings."""
        return import_atlas_rnn.memory_config(s, self.readings, self.rule)

    def block_config(self, s: Settings) -> Any:
        """The block of settings, by its block_type."""
        own, c = self.memory_config(s), self.readings
        if s.block_type == "lmm":
            return lmm.configured(c, own, d_model=s.dim, d_inner=s.d_inner)
        sizes: dict[str, Any] = {
            "d_model": s.dim,
            "heads": s.heads,
            "d_head": s.d_head,
            "persistent": s.num_persist_mem_tokens,
            "d_inner": s.d_inner,
        }
        if s.block_type == "mac":
            return mac.configured(
                c, own, segment=s.segment_len, longterm=s.num_longterm_mem_tokens, **sizes
            )
        module = mag if s.block_type == "mag" else mal
        return module.configured(c, own, window=s.window_size, **sizes)

    def built(self, kind: str, s: Settings, change: Change | None = None) -> tuple[Any, Any, Any]:
        """A module with its settings and parameters, away from their start."""
        module, config = self._configured(kind, s)
        leaves, _, build = flatten(module.init(config, SEED), "params")
        draw = np.random.Generator(np.random.Philox(SEED))
        params = build([each + 0.3 * draw.standard_normal(each.shape) for each in leaves])
        if change is not None:
            table = NAMES[kind](s)
            tensors = names.tensors_of(params, table, atlas_rnn_names.sizes(s))
            params = names.parameters(params, table, {**tensors, **change(dict(tensors))})
        return module, config, params

    def _configured(self, kind: str, s: Settings) -> tuple[Any, Any]:
        if kind == "attention":
            return attention, attention.configured(
                self.readings,
                d_model=s.dim,
                heads=s.heads,
                d_head=s.d_head,
                window=s.window_size,
                persistent=s.num_persist_mem_tokens,
            )
        if kind == "memory":
            return memory, self.memory_config(s)
        if kind == "block":
            return BLOCKS[s.block_type], self.block_config(s)
        blocks = [self.block_config(s) for _ in range(s.depth or 1)]
        config = language_model.configured(self.readings, blocks, vocabulary=s.vocab or 1)
        return language_model, config

    def run(
        self, kind: str, s: Settings, calls: Sequence[Array], change: Change | None = None
    ) -> Result:
        """Calls that follow each other, from a fresh state."""
        module, config, params = self.built(kind, s, change)
        state, outputs = module.start(config, calls[0].shape[0]), []
        for x in calls:
            state, y = module.apply(config, params, state, x)
            outputs.append(y)
        own = {"memory": lambda: state, "block": lambda: state.memory}.get(kind)
        M = None if own is None else own().levels.states[0].M
        return Result(outputs, None if M is None else M.reshape(-1, *M.shape[-2:]))


class Package:
    """The modules of atlas-rnn, in a float format.

    Raises:
        ImportError: it is not on the path, or what it imports is not installed.
    """

    def __init__(self, dtype: str = "float32") -> None:
        calls = helper("torch_calls")
        self.torch = calls.pytorch()
        self.models = calls.imported("atlas_pytorch.rnn_transformer")
        self.cells = calls.imported("atlas_pytorch.rnn_memory")
        self.dtype = getattr(self.torch, dtype)

    def tensor(self, x: Array) -> Any:
        """An array as a tensor of this format; whole numbers stay so."""
        own = self.torch.tensor(np.ascontiguousarray(x))
        return own.to(self.dtype) if own.is_floating_point() else own

    def built(self, kind: str, s: Settings, change: Change | None = None) -> Any:
        """A module of it with the parameters that ours under preset atlas-rnn draws."""
        module = self._made(kind, s).to(self.dtype)
        _, _, params = ours().built(kind, s)
        tensors = names.tensors_of(params, NAMES[kind](s), atlas_rnn_names.sizes(s))
        if change is not None:
            tensors |= change(dict(tensors))
        given = {name: self.tensor(each) for name, each in tensors.items()}
        left = module.load_state_dict(given, strict=False)
        rest = {name.rpartition(".")[2] for name in left.missing_keys}
        if left.unexpected_keys or not rest <= {"_dummy", "freqs"}:
            raise ImportError(f"atlas_pytorch: another state_dict, {left}")
        return module

    def _made(self, kind: str, s: Settings) -> Any:
        own = {"dim": s.dim, "dim_head": s.d_head, "heads": s.heads}
        cell = {"use_momentum": s.use_momentum, "qkv_conv_kernel": s.qkv_conv_kernel}
        attends = {
            "window_size": s.window_size,
            "num_persist_mem_tokens": s.num_persist_mem_tokens,
        }
        if kind == "attention":
            return self.models.SlidingWindowAttention(**own, **attends)
        if kind == "memory":
            return self.cells.RNNMemoryCell(**own, **cell)
        if kind == "block":
            made = {each: getattr(self.models, f"{each.upper()}Block") for each in BLOCKS}
            more = {} if s.block_type == "lmm" else attends
            return made[s.block_type](**own, **cell, **more)
        sizes = {"num_tokens": s.vocab, "depth": s.depth, "block_type": s.block_type}
        return self.models.RNNMemoryTransformer(**sizes, **own, **cell, **attends)

    def run(
        self, kind: str, s: Settings, calls: Sequence[Array], change: Change | None = None
    ) -> Result:
        """Calls that follow each other, from no state."""
        module, outputs = self.built(kind, s, change), []
        state = cache = None
        with self.torch.no_grad():
            for x in calls:
                y, state, cache = self._called(kind, s, module, self.tensor(x), state, cache)
                outputs.append(y.double().numpy())
        last = state if kind == "memory" or (kind == "block" and s.block_type != "mac") else None
        return Result(outputs, None if last is None else last.S.double().numpy())

    def _called(
        self, kind: str, s: Settings, module: Any, x: Any, state: Any, cache: Any
    ) -> tuple[Any, Any, Any]:
        if kind == "attention":
            y, cache = module(x, cache=cache, return_cache=True)
            return y, None, cache
        if kind == "memory":
            return (*module(x, state=state), None)
        if kind == "block":
            if s.block_type == "lmm":
                return (*module(x, mem_state=state), None)
            y, state, cache = module(x, mem_state=state, attn_cache=cache, return_cache=True)
            return y, state, cache
        y, state, cache = module(x, mem_states=state, attn_caches=cache, return_cache=True)
        return y, state, cache


#: Kind -> settings -> names of its state_dict.
NAMES: dict[str, Callable[[Settings], names.Table]] = {
    "attention": atlas_rnn_names.attention,
    "memory": lambda s: atlas_rnn_names.memory(s, ""),
    "block": atlas_rnn_names.block,
    "model": atlas_rnn_names.model,
}


@functools.cache
def ours() -> Ours:
    """Ours under the presets of the public code."""
    return Ours("atlas-rnn", "atlas-rnn")


@functools.cache
def causal() -> Ours:
    """Ours under the causal preset, with the public mix of MAG and the rule's other axes."""
    return Ours(
        {"preset": "causal", "mag": "gate_mix"}, {"preset": "atlas-rnn", "reference": "running"}
    )


def version() -> str:
    """The commit of the package on the path; empty where there is none.

    A package whose files are others is named by their digest.
    """
    try:
        root = Path(helper("torch_calls").imported("atlas_pytorch").__file__).parent
    except ImportError:
        return ""
    digest = hashlib.sha256(b"".join((root / each).read_bytes() for each in FILES)).hexdigest()
    return KNOWN.get(digest[:12], f"of digest {digest[:12]}")


def tokens(count: int, dim: int, seed: int = 0, batch: int = 1) -> Array:
    """Tokens (batch, count, dim) from a standard normal."""
    draw = np.random.Generator(np.random.Philox(seed))
    return draw.standard_normal((batch, count, dim))


def ids(count: int, vocabulary: int, seed: int = 0) -> Array:
    """Token ids (1, count)."""
    draw = np.random.Generator(np.random.Philox(seed))
    return draw.integers(vocabulary, size=(1, count))
