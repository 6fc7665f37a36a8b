"""Memory layers, blocks and language models of Atlas-RNN as modules of cases.

Arguments are those of `import_atlas_rnn`, names those of `atlas_rnn_names`. Specified in specs/layer_cases.md.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Annotated, Any

from pydantic import Field, create_model

from atlas_ref.blocks import lmm, mac, mag, mal
from atlas_ref.layers import memory
from atlas_ref.models import atlas_rnn_names, import_atlas_rnn, language_model
from atlas_ref.models.atlas_rnn import EVERYTHING, Called, Calls, Constants, Module, general, sizes
from atlas_ref.models.import_atlas_rnn import Settings
from atlas_ref.models.public.names import Table
from atlas_ref.types import Count, Frozen

Part = Annotated[float, Field(ge=0, le=1)]
#: Blocks of a model: a bound that keeps the table of names, made before any tensor is read, small.
Depth = Annotated[int, Field(ge=1, le=1000)]

_MEMORY = (
    "dim",
    "dim_head",
    "heads",
    "omega_window",
    "use_omega_gate",
    "use_momentum",
    "poly_degree",
    "poly_mode",
    "qkv_conv_kernel",
    "conv",
)
_BLOCK = (*_MEMORY, "ff_mult", "num_persist_mem_tokens", "window_size", "rotary_base")
_MAC = (*_BLOCK, "segment_len", "num_longterm_mem_tokens")


def arguments(name: str, about: str, of: tuple[str, ...], **more: Any) -> type[Frozen]:
    """A model with some of the arguments of `Settings`, and others."""
    own = {each: Settings.model_fields[each] for each in of}
    fields: dict[str, Any] = {each: (info.rebuild_annotation(), info) for each, info in own.items()}
    base = Called if "calls" in more else Frozen
    return create_model(name, __base__=base, __doc__=about, **fields, **more)


RnnMemory = arguments(
    "RnnMemory",
    "Arguments of RNNMemory.",
    (*_MEMORY, "qk_norm", "scan_chunk_len"),
    calls=(Calls, None),
)
Block = arguments("Block", "Arguments of a MAG, MAL or LMM block.", _BLOCK, calls=(Calls, None))
MacBlock = arguments("MacBlock", "Arguments of MACBlock.", _MAC, calls=(Calls, None))
LanguageModel = arguments(
    "LanguageModel",
    "Arguments of RNNMemoryTransformer, of its generation, and calls that follow each other.",
    (*_MAC, "block_type"),
    vocab=(Count, ...),
    depth=(Depth, ...),
    max_length=(Count | None, None),
    min_p=(Part, 0.1),
    temperature=(Annotated[float, Field(gt=0, allow_inf_nan=False)], 1.0),
    repeat_calls=(Annotated[list[Count], Field(min_length=1, max_length=1000)] | None, None),
)
MemoryLanguageModel = arguments(
    "MemoryLanguageModel",
    "Arguments of RNNMemoryLM.",
    _MEMORY,
    vocab=(Count, ...),
    depth=(Depth, ...),
)
Sampling = create_model(
    "Sampling",
    __base__=Frozen,
    __doc__="Settings of the choice of the next token.",
    min_p=(Annotated[list[Part], Field(min_length=1)], ...),
    temperature=(
        Annotated[list[Annotated[float, Field(ge=0, allow_inf_nan=False)]], Field(min_length=1)],
        ...,
    ),
)


def _frequencies(constants: Constants, place: str = "") -> Any:
    return constants.get(f"{place}attention.rotary_emb.freqs")


def _block(kind: str, module: Any, arguments_of: type[Frozen]) -> Module:
    def names(settings: Any) -> Table:
        return atlas_rnn_names.block(general(settings, block_type=kind))

    def config(settings: Any, eps: float, constants: Constants) -> Any:
        s = general(settings, block_type=kind, norm_eps=eps)
        return import_atlas_rnn.block_config(s, _frequencies(constants))

    return Module(module, arguments_of, sizes, names, config)


def _model(arguments_of: type[Frozen], *, memory_only: bool) -> Module:
    def of(s: Settings) -> Table:
        return atlas_rnn_names.model(s, memory_only=memory_only)

    def names(settings: Any) -> Table:
        if settings is not None:
            return of(general(settings))
        every: Table = {}
        for kind in atlas_rnn_names.BLOCKS:
            every |= of(EVERYTHING.replaced(block_type=kind))
        return {name.replace("layers.0.", "layers.N."): each for name, each in every.items()}

    def config(settings: Any, eps: float, constants: Constants) -> Any:
        s = general(settings, norm_eps=eps)
        attends = not memory_only and s.block_type != "lmm"
        layers = range(s.depth or 1) if attends else ()
        rows = [_frequencies(constants, f"layers.{i}.") for i in layers]
        return import_atlas_rnn.model_config(s, rows, memory_only=memory_only)

    return Module(language_model, arguments_of, sizes, names, config)


def nothing(*_: Any) -> dict[str, Any]:
    """No tensor, no size."""
    return {}


def _no_params(config: Any) -> tuple[()]:
    """Sampling has none."""
    return ()


#: Name in this project -> module.
SYSTEMS: dict[str, Module] = {
    "rnn_memory": Module(
        memory,
        RnnMemory,
        sizes,
        lambda settings: atlas_rnn_names.memory(general(settings)),
        lambda settings, eps, constants: import_atlas_rnn.memory_config(
            general(settings, norm_eps=eps)
        ),
    ),
    "mag_block": _block("mag", mag, Block),
    "mal_block": _block("mal", mal, Block),
    "mac_block": _block("mac", mac, MacBlock),
    "lmm_block": _block("lmm", lmm, Block),
    "language_model": _model(LanguageModel, memory_only=False),
    "memory_language_model": _model(MemoryLanguageModel, memory_only=True),
    "sampling": Module(
        SimpleNamespace(init=_no_params), Sampling, nothing, nothing, lambda *_: None
    ),
}
