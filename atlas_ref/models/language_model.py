"""Language models: embedding, blocks, norms and a head over token ids.

    h = norm_e(E[ids] + b),    h = blocks(h),    logits = W norm(h),    W = E where tied

Specified in specs/language_model.md.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from atlas_ref.backend.scratch import keep_freed_pages
from atlas_ref.blocks import BLOCKS, module_of
from atlas_ref.engine.layers import cross_entropy as engine
from atlas_ref.layers import checks, norm
from atlas_ref.layers.convention import LayerConvention
from atlas_ref.layers.feed_forward import check_norm
from atlas_ref.layers.projection import cast, linear
from atlas_ref.rules.checks import generator, require_floating
from atlas_ref.types import Array, Count, Dims, Frozen
from tape import ops, plain


class Config(Frozen):
    """Settings of a language model (MODEL-1).

    Attributes:
        vocabulary: V, number of token ids.
        blocks: settings of the blocks, each of any kind.
        embed_norm, norm: of the embeddings and before the head; kind none for none.
        tied: whether the head is the embedding.
        embedding_bias: whether one vector is added to every embedding.
        sampling: min_p_first, temperature_first: the order of filters and temperature (MODEL-8).
    """

    vocabulary: Count
    blocks: Annotated[tuple[Any, ...], Field(min_length=1)]
    embed_norm: norm.Config
    norm: norm.Config
    tied: bool = False
    embedding_bias: bool = False
    sampling: Literal["min_p_first", "temperature_first"] = "min_p_first"

    @model_validator(mode="after")
    def _agree(self) -> Self:
        for i, block in enumerate(self.blocks):
            if not any(isinstance(block, module.Config) for module in BLOCKS.values()):
                raise ValueError(f"blocks: {i}: {type(block).__name__} is no block's settings")
            if block.d_model != self.d_model:
                raise ValueError(
                    f"blocks: {i}: d_model {block.d_model}, expected {self.d_model} of embed_norm"
                )
        check_norm(self.embed_norm, self.d_model)
        check_norm(self.norm, self.d_model)
        return self

    @property
    def d_model(self) -> int:
        return self.embed_norm.d

    @property
    def causal(self) -> bool:
        """Whether no id changes logits before it (MODEL-4)."""
        return all(block.causal for block in self.blocks)


class Params(Frozen):
    """Parameters of a language model, which the outer loop learns (MODEL-2).

    Attributes:
        embedding (V, d_model): a row for each token id.
        head (V, d_model): None where tied.
        embedding_bias (d_model,): b, None where there is none.
        blocks: of each block.
        embed_norm, norm: of the norms.
    """

    embedding: Annotated[Array, Dims("V d_model")]
    head: Annotated[Array | None, Dims("V d_model", optional=True)] = None
    embedding_bias: Annotated[Array | None, Dims("d_model", optional=True)] = None
    blocks: tuple[Any, ...]
    embed_norm: norm.Params
    norm: norm.Params


class State(Frozen):
    """States of the blocks (MODEL-3)."""

    blocks: tuple[Any, ...]


def configured(
    convention: LayerConvention,
    blocks: Any,
    *,
    vocabulary: int,
    tied: bool = False,
) -> Config:
    """The model of a convention around blocks (LAYERS-3).

    Raises:
        ValueError: no block.
    """
    c, blocks = convention, tuple(blocks)
    if not blocks:
        raise ValueError("blocks: none, expected at least one")
    d_model = blocks[0].d_model
    return Config(
        vocabulary=vocabulary,
        blocks=blocks,
        embed_norm=norm.configured(c.model_norm, d_model, c.model_norm_eps),
        norm=norm.configured(c.model_norm, d_model, c.model_norm_eps),
        tied=tied,
        sampling=c.sampling,
    )


def init(config: Config, seed: int = 0, *, dtype: Any = np.float64) -> Params:
    """Embedding and head from N(0, 0.02^2), their bias 0, blocks at their starts (MODEL-2)."""
    require_floating(dtype)
    draw, shape = generator(seed), (config.vocabulary, config.d_model)
    seeds = [int(each) for each in draw.integers(2**62, size=len(config.blocks))]
    blocks = [
        module_of(block).init(block, each) for block, each in zip(config.blocks, seeds, strict=True)
    ]
    params = Params(
        embedding=0.02 * draw.standard_normal(shape),
        head=None if config.tied else 0.02 * draw.standard_normal(shape),
        embedding_bias=np.zeros(config.d_model) if config.embedding_bias else None,
        blocks=tuple(blocks),
        embed_norm=norm.init(config.embed_norm),
        norm=norm.init(config.norm),
    )
    return cast(params, dtype)


def start(config: Config, batch: int = 1, *, dtype: Any = np.float64, initial: Any = ()) -> State:
    """The state before the first token (MODEL-3).

    Args:
        initial: for each block None, or memories of its shared memory; () for none (MODEL-16).

    Raises:
        ValueError: another number of entries, or memories of a block that takes none.
    """
    given = tuple(initial) or (None,) * len(config.blocks)
    if len(given) != len(config.blocks):
        raise ValueError(f"initial: {len(given)} entries, expected {len(config.blocks)}")
    states = []
    for i, (block, own) in enumerate(zip(config.blocks, given, strict=True)):
        module = module_of(block)
        if own is not None and module is not BLOCKS["mag"]:
            raise ValueError(f"initial: block {i} has no memory that shares attention")
        memories = {} if own is None else {"initial": own}
        states.append(module.start(block, batch, dtype=dtype, **memories))
    return State(blocks=tuple(states))


def apply(
    config: Config, params: Params, state: State, ids: Array, *, reset: Array | None = None
) -> tuple[State, Array]:
    """Logits of the next token at each token (MODEL-1).

    Args:
        ids (B, T): whole numbers from 0 to V - 1.
        reset (T,): True where a document starts.

    Returns:
        state, logits (B, T, V).

    Raises:
        ValueError: arguments that contradict the settings.
    """
    ids = check(config, params, state, ids)
    keep_freed_pages()
    x, states = embedded(config, params, ids), []
    parts = zip(config.blocks, params.blocks, state.blocks, strict=True)
    for i, (block, own, before) in enumerate(parts):
        with checks.within(f"blocks.{i}"):
            after, x = module_of(block).apply(block, own, before, x, reset=reset)
        states.append(after)
    return State.trusted(blocks=tuple(states)), headed(config, params, x)


def embedded(config: Config, params: Params, ids: Any) -> Array:
    """Rows (B, T, d_model) of ids that were checked, before the first block (MODEL-1)."""
    x = ops.index(params.embedding, ids)
    x = x if params.embedding_bias is None else x + params.embedding_bias
    return norm.normed(config.embed_norm, params.embed_norm, x)


def headed(config: Config, params: Params, x: Array) -> Array:
    """Logits (B, T, V) of rows (B, T, d_model) after the last block (MODEL-1)."""
    head: Any = params.embedding if config.tied else params.head
    return linear(norm.normed(config.norm, params.norm, x), head)


def loss(
    config: Config,
    params: Params,
    state: State,
    ids: Array,
    *,
    targets: Array | None = None,
    reset: Array | None = None,
) -> tuple[State, Array]:
    """Mean cross-entropy, in nats per predicted token (MODEL-5).

    Args:
        ids (B, T): tokens.
        targets (B, T): the next token of each; None for ids one place on, so that T - 1 tokens of
            each row run and are predicted.
        reset (T,): True where a document starts.

    Returns:
        state, the mean over all predicted tokens, a number.
    """
    if targets is None:
        if np.ndim(ids) != 2 or np.shape(ids)[1] < 2:
            raise ValueError(f"ids: shape {np.shape(ids)}, expected (batch, at least 2 tokens)")
        ids = check_ids("ids", ids, config.vocabulary)
        documents = checks.check_reset(reset, ids.shape[1])
        reset = None if documents is None else documents[:-1]
        ids, targets = ids[:, :-1], ids[:, 1:]
    if np.shape(ids)[0] == 0:
        raise ValueError(f"ids: shape {np.shape(ids)}, a mean needs at least one sequence")
    state, logits = apply(config, params, state, ids, reset=reset)
    targets = check_ids("targets", targets, config.vocabulary)
    if targets.shape != logits.shape[:2]:
        raise ValueError(f"targets: shape {targets.shape}, expected {logits.shape[:2]}")
    return state, cross_entropy(logits, targets)


def cross_entropy(logits: Array, targets: Array) -> Array:
    """-mean log softmax(logits)[target] (MODEL-5).

    Args:
        logits (B, T, V): before the softmax.
        targets (B, T): ids.
    """
    return _block(targets)(logits)


def _block(targets: Array) -> Any:
    def mean_cross_entropy(logits: Array) -> Array:
        return plain_cross_entropy(logits, targets)

    return engine.block(mean_cross_entropy, targets)


def plain_cross_entropy(logits: Array, targets: Array) -> Array:
    """The same in tape ops."""
    B, T, V = logits.shape
    rows = ops.reshape(logits, (B * T, V))
    chosen = ops.index(rows, (np.arange(B * T), np.reshape(targets, -1)))
    return ops.mean(ops.logsumexp(rows) - chosen)


def check_ids(name: str, ids: Any, vocabulary: int) -> np.ndarray[Any, Any]:
    """Token ids on the host.

    Raises:
        ValueError: no whole numbers (B, T), or one outside the vocabulary.
    """
    array = np.asarray(plain(ids))
    if array.ndim != 2 or array.dtype.kind not in "iu":
        raise ValueError(
            f"{name}: {array.dtype} of shape {array.shape}, expected whole numbers (batch, tokens)"
        )
    if array.size and not (int(array.min()) >= 0 and int(array.max()) < vocabulary):
        bad = int(array.min()) if int(array.min()) < 0 else int(array.max())
        raise ValueError(f"{name}: {bad}, expected 0 to {vocabulary - 1}")
    return array


def check(config: Config, params: Params, state: State, ids: Any) -> np.ndarray[Any, Any]:
    """Token ids on the host, where the arguments of a call outside of its blocks agree (NORM-2).

    Raises:
        ValueError: what contradicts the settings.
    """
    checks.check_call(__name__, config, (Config, Params, State), params, state)
    array = check_ids("ids", ids, config.vocabulary)
    if array.shape[1] == 0:
        raise ValueError(f"ids: shape {array.shape}, at least one token is needed")
    shape = (config.vocabulary, config.d_model)
    checks.check_shape("params.embedding", params.embedding, shape, "vocabulary, d_model")
    optional = {
        "head": (not config.tied, shape),
        "embedding_bias": (config.embedding_bias, shape[1:]),
    }
    axes = {"head": "vocabulary, d_model", "embedding_bias": "d_model"}
    says = {
        "head": f"tied is {config.tied}",
        "embedding_bias": f"embedding_bias is {config.embedding_bias}",
    }
    for name, (needed, size) in optional.items():
        own = getattr(params, name)
        checks.check_presence(f"params.{name}", own, needed, says[name])
        if own is not None:
            checks.check_shape(f"params.{name}", own, size, axes[name])
            checks.check_precision(params.embedding, {f"params.{name}": own})
    for name, settings in (("embed_norm", config.embed_norm), ("norm", config.norm)):
        norm.check_params(settings, getattr(params, name), params.embedding, f"params.{name}")
    for name, value in (("params", params.blocks), ("state", state.blocks)):
        if len(value) != len(config.blocks):
            raise ValueError(f"{name}.blocks: {len(value)}, expected {len(config.blocks)}")
    return array
