"""Memory layers and blocks against plain loops, in every reading: whole calls, cuts and documents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.blocks import lmm, mac, mag, mal
from atlas_ref.layers import convention, memory
from atlas_ref.models.public.names import Name, parameters
from atlas_ref.parts.feature_maps import IDENTITY, Elementwise, Sketch
from atlas_ref.parts.window import Ones
from atlas_ref.rules import omega
from tape.nested import flatten
from tests.layers.test_loop_readings import (
    BLOCKS,
    MEMORIES,
    WIDTH,
    D,
    T,
    of_block,
    of_memory,
    whole,
)
from tests.support import layer_files
from tests.support.close import ANALYTIC, assert_close
from tests.truth import block_loops
from tests.truth import memory_layer_loops as loops

pytestmark = pytest.mark.host("plain loops of the tests")

HEAD_NORMS = {
    "rms_clamp": {"head_norm": "rms"},
    "rms_add": {"head_norm": "rms", "head_norm_eps": 1e-6, "head_norm_guard": "add"},
    "l2": {"head_norm": "l2", "head_norm_eps": 1e-6, "head_norm_guard": "add"},
    "none": {"head_norm": "none"},
}
#: Under a running reference the rule recomputes its window; there is nothing to carry.
OURS = [name for name in MEMORIES if name != "window carried"]
KERNEL = 3
FF = ("0.weight", "1.weight", "1.bias", "3.weight", "3.bias")


def rule(r: loops.Reading) -> omega.Config:
    spans = isinstance(r.reference, int)
    return omega.Config(
        d_model=D,
        d_in=WIDTH,
        d_out=WIDTH,
        heads=r.heads,
        window=r.window,
        span=r.reference if spans else None,
        feature_map={
            "off": IDENTITY,
            "elementwise": Elementwise(degree=r.degree),
            "tensor": Sketch(),
        }[r.phi],
        window_weights=Ones(),
        convention={
            "gate": "retain",
            "rate": "memory",
            "newton_schulz": "none",
            "read": r.read,
            "reference": "chunk_start" if spans else r.reference,
            "window_at_boundary": r.boundary,
        },
    )


def readings(r: loops.Reading, **more: Any) -> convention.LayerConvention:
    return convention.resolve(
        {
            "norm_eps": r.norm_eps,
            "conv_place": r.conv_place,
            "conv_activation": r.conv_activation,
            "gate_input": "normed" if r.gate_input == "normed_x" else "key_value",
            "step_size": r.step_size,
            "memory_input": r.memory_input,
            **HEAD_NORMS[r.head_norm],
            **more,
        }
    )


def settings(r: loops.Reading) -> memory.Config:
    return memory.configured(
        readings(r), rule(r), kernel=KERNEL, momentum=r.momentum, window_gate=r.gated
    )


def as_params(module: Any, config: Any, p: dict[str, Any], names: dict[str, str]) -> Any:
    """Parameters of the loops as ours: every leaf of ours has a name of theirs."""
    template = module.init(config)
    paths = flatten(template, "params")[1]
    table = {names[path]: Name("", path) for path in paths}
    return parameters(template, table, p)


def of_memories(path: str = "", name: str = "") -> dict[str, str]:
    own = f"{path}.levels[0]"
    names = {
        f"{path}.norm.weight": f"{name}pre_norm.weight",
        f"{path}.W_out": f"{name}to_out.weight",
    }
    for each in "qkv":
        names[f"{own}.{each}_conv.weight"] = f"{name}{each}_conv.weight"
        names[f"{own}.projection.W_{each.upper()}"] = f"{name}to_{each}.weight"
        if each != "v":
            names[f"{own}.{each}_norm.weight"] = f"{name}{each}_norm.gamma"
    gates = {"step_size": "to_lr", "retain": "to_decay", "momentum": "to_momentum"}
    places = {f"{own}.projection.gates.{ours}": theirs for ours, theirs in gates.items()}
    for place, theirs in (places | {f"{own}.window_gate": "to_omega_gate"}).items():
        names[f"{place}.W"] = f"{name}{theirs}.0.weight"
        names[f"{place}.b"] = f"{name}{theirs}.0.bias"
    return names | {f"{own}.projection.phi['proj']": f"{name}phi.proj"}


def of_blocks(kind: str) -> dict[str, str]:
    names = of_memories(".memory", "memory.")
    names |= {
        ".attention.norm.weight": "attention.norm.weight",
        ".attention.W_qkv": "attention.to_qkv.weight",
        ".attention.W_out": "attention.to_out.weight",
        ".attention.persistent": "attention.persist_mem",
        ".mix.W": "gate.0.weight",
        ".mix.b": "gate.0.bias",
        ".mix.norm.weight": "gate_norm.weight",
        ".mix.attention_norm.weight": "attention_norm.weight",
        ".mix.memory_norm.weight": "memory_norm.weight",
    }
    pairs = {"feed_forward": "ff"} if kind != "mal" else {"ff_pre": "ff_pre", "ff_post": "ff_post"}
    for ours, theirs in pairs.items():
        for own, place in (("norm.weight", "0.weight"), ("W_in", "1.weight"), ("b_in", "1.bias")):
            names[f".{ours}.{own}"] = f"{theirs}.{place}"
        names |= {f".{ours}.W_out": f"{theirs}.3.weight", f".{ours}.b_out": f"{theirs}.3.bias"}
    return names


def ours_of_memory(name: str) -> tuple[Any, Any, Any]:
    r = loops.Reading(2, norm_eps=1e-6, **MEMORIES[name])
    p = layer_files.drawn_memory(r, D, WIDTH, 3, KERNEL)
    config = settings(r)
    return memory, config, as_params(memory, config, p, of_memories())


def ours_of_block(name: str) -> tuple[Any, Any, Any]:
    own = dict(BLOCKS[name])
    reference = own.pop("reference", "running")
    r = loops.Reading(2, norm_eps=1e-6, window=2, reference=reference)
    kind = own.pop("kind")
    if kind == "mac_segments":  # whose loop answers after the write
        r = r._replace(read="after")
    b = block_loops.Block(
        kind,
        r,
        **{"mode": "causal", "visible": "always", "position": "absolute", "window": 4, "eps": 1e-6}
        | own,
    )
    p = layer_files.drawn_block(b, D, WIDTH, 3)
    if b.order == "memory_attention_ff":
        p |= {f"ff_post.{name}": p[f"ff.{name}"] for name in FF}
    c = readings(
        r,
        mag=b.mix,
        mag_gate_input=b.gate_input,
        mal_order=b.order,
        window_counts_self=b.counts_self,
        rotary_pairs=b.pairs,
        rotary_base=100.0,
        ff_gate_half=b.gate_half,
        ff_activation=b.activation,
    )
    sizes: dict[str, Any] = {
        "d_model": D,
        "heads": 2,
        "d_head": WIDTH,
        "d_inner": 3,
        "persistent": 2,
    }
    if kind == "lmm":
        module: Any = lmm
        config: Any = lmm.configured(c, settings(r), d_model=D, d_inner=3)
    elif kind == "mac_segments":
        module, config = mac, mac.configured(c, settings(r), segment=b.segment, **sizes)
    else:
        module = mag if kind == "mag" else mal
        config = module.configured(c, settings(r), window=b.window, **sizes)
    return module, config, as_params(module, config, p, of_blocks(kind))


CASES = [(ours_of_memory, of_memory, name) for name in OURS] + [
    (ours_of_block, of_block, name) for name in BLOCKS if "their start" not in name
]


@pytest.mark.clause("MEMORY-2", "MEMORY-3", "MEMORY-4", "MEMORY-5", "MEMORY-6", "MEMORY-8")
@pytest.mark.clause("MEMORY-9", "BLOCKS-3", "BLOCKS-4", "BLOCKS-5", "BLOCKS-6", "BLOCKS-7")
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("ours", "theirs", "name"), CASES, ids=[each[2] for each in CASES])
def test_every_reading_is_its_loop(ours: Any, theirs: Any, name: str, packed: bool) -> None:
    module, config, params = ours(name)
    run, start = theirs(name)
    x = np.random.default_rng(5).standard_normal((2, T, D))
    reset = np.isin(np.arange(T), [3, 4, 8]) if packed else None
    want = np.stack([whole(run, start, each, [], reset)[0] for each in x])
    state, results = module.start(config, 2), []
    for part in np.split(np.arange(T), [1, 2, 6]):
        documents = None if reset is None else reset[part]
        state, y = module.apply(config, params, state, x[:, part], reset=documents)
        results.append(y)
    assert_close("y", np.concatenate(results, axis=1), want, ANALYTIC)
