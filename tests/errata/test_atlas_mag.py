"""Errata of the Atlas-MAG README: projection, persistent memory, counts, probes and commands."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from atlas_ref.blocks import mix
from atlas_ref.layers import norm, query_key
from atlas_ref.models import atlas_mag as model
from atlas_ref.parts import memory_functions
from atlas_ref.rules import deep_memory, sequence
from atlas_ref.rules.sequence import Tokens
from tape import grad, ops
from tests.support import atlas_mag
from tests.support.atlas_mag import below, named, recorded
from tests.support.close import ANALYTIC, EXACT, assert_close, relative_error
from tests.truth import atlas_mag_parts as parts

SMALL, BASE = {"dim": 512, "n_layers": 6, "n_heads": 8}, {"dim": 768, "n_layers": 12, "n_heads": 12}


def near(value: Any, relative: float = 0.02) -> Any:
    return pytest.approx(value, rel=relative)


@pytest.mark.clause("E-G01")
def test_e_g01_a_sum_of_keys_learns_no_value():
    draw, d, T = np.random.default_rng(0), 8, 40
    keys = draw.standard_normal((T, d))
    W = draw.standard_normal((d, d))
    values = keys @ W.T
    weights = np.array([0.95 ** (T - 1 - i) for i in range(T)])
    M = sum(w * np.outer(k, k) for w, k in zip(weights, keys, strict=True))
    size = sum(w * (k @ k) for w, k in zip(weights, keys, strict=True))

    def loss(matrix: Any) -> float:
        return float(np.sum(weights * np.sum((keys @ matrix.T - values) ** 2, axis=1)))

    best = np.linalg.lstsq(np.sqrt(weights)[:, None] * keys, np.sqrt(weights)[:, None] * values)[
        0
    ].T
    assert (loss(M / size), loss(0.0 * M)) == near((1080.1, 1076.8), 1e-3)
    assert loss(best) < 1e-20
    # ours: the same matrix is a projection of queries, and knows no values
    config = query_key.Config(d=d, window=T, keys_seen="inclusive", weights="decay", rows=1)
    params = query_key.Params(keys=np.zeros((1, d)))
    q = np.zeros((d, T, d))
    q[:, -1] = np.eye(d)
    k = np.broadcast_to(keys, (d, T, d))
    _, y = query_key.apply(config, params, query_key.start(config, d), q, k)
    assert_close("M", y[:, -1].T, M / (size + 1e-6), ANALYTIC)
    # and what descends the loss is the rule
    settings = deep_memory.Config(
        d_in=d,
        d_out=d,
        memory={"kind": "linear"},
        window=T,
        window_weights={"kind": "decay", "base": 0.95},
        convention={"newton_schulz": "none"},
    )
    gates = {name: np.full((1, T), x) for name, x in {"retain": 1.0, "step_size": 0.005}.items()}
    gates["momentum"] = np.zeros((1, T))
    run = Tokens(k=keys[None], v=values[None], q=keys[None], **gates)
    start = deep_memory.start(settings, (1,))
    state, _ = sequence.run(deep_memory.RULE, settings, run, start, phi={"W": 0.0 * W})
    assert loss(state.weights["W"][0]) == near(3.53)


@pytest.mark.clause("E-G02")
def test_e_g02_a_query_meets_its_own_key_in_print_and_not_in_code():
    file = recorded("mag_qk_plain")
    q, k = (parts.merge(file[f"in/{name}"]) for name in "qk")
    params = query_key.Params(keys=file["in/persistent_keys"])
    reads, changes = {}, {}
    for seen in ("strict", "inclusive"):
        config = query_key.Config(
            d=16, window=5, keys_seen=seen, decay=0.9, weights="decay", rows=3
        )
        other = k.copy()
        other[:, 7] += 1.0
        runs = [
            query_key.apply(config, params, query_key.start(config, 2), q, x)[1] for x in (k, other)
        ]
        reads[seen] = runs[0]
        changes[seen] = np.flatnonzero((runs[0] != runs[1]).any(axis=(0, 2)))
    assert_close("code", parts.split(reads["strict"], 2), file["out/y_chunked"], ANALYTIC)
    assert relative_error(reads["inclusive"], reads["strict"]) == near(0.890)
    assert changes["strict"].tolist() == [8, 9, 10, 11]
    assert changes["inclusive"].tolist() == [7, 8, 9, 10, 11]
    assert query_key.PRESETS["atlas-mag text"]["keys_seen"] == "inclusive"


@pytest.mark.clause("E-G03")
def test_e_g03_the_persistent_memory_is_not_wired():
    file = recorded("mag_qk_default_persistent")
    P, n_0 = file["in/buffer/m_persistent"], float(file["in/buffer/norm_persistent"])
    assert_close("P", P, 0.1 * np.eye(16), ANALYTIC)  # no learned key
    assert np.trace(P) / n_0 == near(10.0, 1e-12)
    draw = np.random.default_rng(0)
    config = query_key.Config(d=64, window=8, rows=64)
    params = query_key.init(config, 0)
    rows = np.asarray(params.keys)
    matrix = query_key.persistent_matrix(config, params)
    assert np.trace(matrix) / np.sum(rows**2) == near(1.0, 1e-12)
    q, k = draw.standard_normal((2, 100, 1, 64))
    gate = np.full((100, 1), 0.5)
    first = {}
    for name in ("learned", "identity"):
        own = query_key.Config(d=64, window=8, rows=64, persistent=name, eps=1e-12)
        p = params if name == "learned" else query_key.Params()
        _, first[name] = query_key.apply(own, p, query_key.start(own, 100), q, k, gate)
    along = {
        name: np.mean(np.sum(y * q, axis=-1) / np.sum(q * q, axis=-1)) for name, y in first.items()
    }
    assert along["identity"] / along["learned"] == near(10.0)

    def loss(at: Any) -> Any:
        own = query_key.Params.trusted(keys=at)
        y = query_key.apply(config, own, query_key.start(config, 100), q, k, gate)[1]
        return ops.sum(y * y)

    assert np.linalg.norm(grad(loss)(rows)) > 1e-3  # learned keys learn


@pytest.mark.clause("E-G06")
def test_e_g06_the_counts_belong_to_other_settings_than_the_command():
    def counts(**more: Any) -> tuple[int, ...]:
        return tuple(model.count(model.Settings(**size, **more)) for size in (SMALL, BASE))

    assert counts(memory_mlp="geglu") == (42_569_990, 124_741_644)  # 42.6M and 124.7M as printed
    assert counts(memory_mlp="geglu", poly_rank=512) == (44_142_854, 127_887_372)  # the command
    assert counts() == (39_276_806, 118_155_276)  # the code of today
    assert counts(poly_rank=512) == (43_356_422, 126_314_508)


@pytest.mark.clause("E-G10")
def test_e_g10_the_needle_probe_measures_half_of_attention():
    x, a = np.random.default_rng(0).standard_normal((2, 1, 16, 6))
    unused = norm.Config(kind="none", d=6)
    config = mix.Config(kind="attention_times_gate", gate_norm=unused, branch_norm=unused)
    nothing = mix.mixed(config, mix.Params(norm=None), x, a, np.zeros_like(a))
    assert_close("a memory that returns nothing", nothing, a / 2, EXACT)
    on, off = x + nothing, x + a  # as the probe switches it
    assert relative_error(on, off) == near(0.332)
    # ours: the same model whose memory writes, and does not write
    tensors = named(below(recorded("mag_ttl_plain"), "in/param/"))
    k, v = np.random.default_rng(0).standard_normal((2, 2, 9, 16))
    reads = {}
    for phase in ("both", "off"):
        settings = atlas_mag.config(tensors, 9, phase=phase)
        empty = tensors | {"read_scale": np.zeros(())}
        for name, p in (("whole", tensors), ("empty", empty)):
            fixed = atlas_mag.config(tensors, 9, phase=phase, fast="matrices", vectors="frozen")
            _, reads[phase, name] = atlas_mag.run(settings if name == "whole" else fixed, p, k, v)
    assert np.array_equal(reads["both", "empty"], reads["off", "empty"])  # nothing to recall
    assert relative_error(reads["both", "whole"], reads["off", "whole"]) > 1e-3


@pytest.mark.clause("E-G11")
def test_e_g11_a_checkpoint_of_the_training_script_does_not_fit_the_inference_script():
    trained = model.shapes(model.Settings(**BASE, poly_rank=512))
    built = model.shapes(model.Settings(**BASE))  # the script passes no rank
    name = "blocks.0.memory.w2.weight"
    assert (trained[name], built[name]) == ((256, 512), (256, 2144))
    assert set(trained) - set(built) == {
        f"blocks.{i}.memory.poly_compress.weight" for i in range(12)
    }
    # ours: refused by name
    function = {"kind": "polynomial", "key_width": 8}
    kinds = [memory_functions.MemoryFunction(**function, compress=c) for c in (12, None)]
    saved = memory_functions.initial(kinds[0], 16, 16, seed=0)
    memory_functions.check(kinds[0], saved, 16, 16)
    with pytest.raises(ValueError, match=r"W_compress: unknown"):
        memory_functions.check(kinds[1], saved, 16, 16)
    rest = {key: a for key, a in saved.items() if key != "W_compress"}
    with pytest.raises(ValueError, match=r"W_in: shape \(32, 12\), expected \(32, 44\)"):
        memory_functions.check(kinds[1], rest, 16, 16)


@pytest.mark.clause("E-G13")
def test_e_g13_the_ablation_is_of_another_size():
    def count(size: dict[str, int], **more: Any) -> int:
        return model.count(model.Settings(**size, memory_mlp="geglu", **more))

    whole, command = count(SMALL), count(BASE, disable_memory=True)
    matched = count(SMALL, disable_memory=True)
    assert (command, matched) == (109_532_160, 35_263_232)
    assert command / whole == near(2.57)
    assert 1 - matched / whole == near(0.172)
    # ours: the difference is the memories alone
    tensors = model.shapes(model.Settings(**SMALL, memory_mlp="geglu"))
    memories = [math.prod(a) for n, a in tensors.items() if ".memory." in n or ".gamma_gate." in n]
    assert whole - matched == sum(memories)


@pytest.mark.clause("E-G15")
def test_e_g15_the_memory_takes_projected_queries_and_no_token():
    file = recorded("mag_block_ttl_off")
    tensors = named(below(file, "in/param/memory."))
    function = memory_functions.MemoryFunction(**atlas_mag.function(tensors))
    projected = parts.merge(file["out/q_projected"])
    y = memory_functions.apply(function, tensors, projected)
    assert_close("memory of q'", y, file["out/mem_out"], ANALYTIC)
    of_tokens = memory_functions.apply(function, tensors, file["in/x"])
    assert relative_error(of_tokens, file["out/mem_out"]) == near(1.34)


@pytest.mark.clause("E-G17")
def test_e_g17_a_call_reads_what_the_calls_before_it_wrote():
    file = recorded("mag_ttl_plain")
    tensors, draw = named(below(file, "in/param/")), np.random.default_rng(0)
    k, v = draw.standard_normal((2, 2, 9, 16))
    changes = {}
    for reset in ("never", "sequence"):
        settings = atlas_mag.config(
            tensors, 9, memory_reset=reset, momentum_reset=reset, unfinished="flush"
        )
        reads = []
        for seed in (1, 2):  # of other text before it
            other = np.random.default_rng(seed).standard_normal((2, 2, 9, 16))
            pair = [np.concatenate(each, axis=1) for each in zip(other, (k, v), strict=True)]
            names = {"retain": 0.999, "momentum": 0.9, "step_size": 0.01}
            gates = {name: np.full((2, 18), rate) for name, rate in names.items()}
            run = Tokens(k=pair[0], v=pair[1], q=pair[0], **gates, reset=np.arange(18) == 9)
            start = deep_memory.start(settings, (2,))
            _, y = sequence.run(deep_memory.RULE, settings, run, start, phi=tensors)
            reads.append(y[:, 9:])
        changes[reset] = relative_error(reads[0], reads[1])
    assert changes == {"never": near(0.148), "sequence": 0.0}
