"""The plain loops of the deep memory rule are those of each rule that they reduce to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from tests.support.close import ANALYTIC, assert_close, assert_differs
from tests.truth import atlas_mag_loops, literal
from tests.truth import atlas_mag_parts as parts
from tests.truth import deep_memory_loops as loops
from tests.truth import test_atlas_mag_files as mag
from tests.truth import test_titans_files as titans
from tests.truth import titans_memory_loops as titans_loops

pytestmark = pytest.mark.host("plain loops of the tests")

Tensors = dict[str, Any]
LONG = 1000  # a chunk that no call fills


def mag_settings(c: Tensors, p: Tensors) -> Tensors:
    """Of a step of Atlas-MAG on the whole call, from a recorded header."""
    clip = c.get("max_grad_norm")
    return {
        "memory": {
            "kind": "polynomial",
            "degree": c["poly_degree"],
            "compress": "poly_compress.weight" in p,
            "gated": "w3.weight" in p,
        },
        "chunk": LONG,
        "window": c.get("context_window", c.get("omega_context_window")),
        "reduction": "mean",
        "coupling": "batch_shared",
        "fast": "all",
        "vectors": "unit",
        "newton_schulz": c.get("ns_iterations", c.get("ttl_ns_iters")),
        "ns_guard": "return",
        "ns_transpose": "never",
        "read": "call_end",
        "unfinished": "flush",
        "adaptive": c.get("adaptive_eta", c.get("ttl_adaptive_eta", False)),
        "clip": "none" if clip is None else "hard",
        "clip_norm": clip,
        "outer_gradient": "straight_through",
    }


def mag_tensors(p: Tensors, S: Tensors) -> Tensors:
    names = atlas_mag_loops.NAMES
    return {names[n]: a for n, a in p.items()} | {f"momentum/{names[n]}": S[n] for n in p}


@pytest.mark.parametrize("name", ["plain", "adaptive", "clip", "geglu"])
def test_calls_of_one_flushed_write_are_the_recorded_steps(name: str) -> None:
    file = f"mag_ttl_{name}_11.safetensors"
    c = mag.header(file)["config"]
    f = safetensors.numpy.load_file(mag.RECORDED / file)
    p, S = mag.below(f, "in/param/"), mag.below(f, "in/momentum/")
    T, steps = f["in/keys"].shape[1], c["steps"]
    k, v = (np.concatenate([f[f"in/{n}"]] * steps, axis=1) for n in ("keys", "values"))
    gates = {
        "retain": c["alpha"],
        "momentum": c["theta"],
        "step_size": c["eta"],
        "window_gate": np.concatenate([f["in/gamma"][:, :, 0]] * steps, axis=1),
    }
    y, state = loops.run(mag_settings(c, p), mag_tensors(p, S), k, v, k, gates, calls=[T] * steps)
    assert_close("read", y[:, -T:], f["out/read"], ANALYTIC)
    for of, ours in atlas_mag_loops.NAMES.items():
        if of in p:
            for kind, theirs in (("memory", "param"), ("momentum", "momentum")):
                want = f[f"out/step{steps - 1}/{theirs}/{of}"]
                for got in state[f"{kind}/{ours}"]:
                    assert_close(f"{kind}/{of}", got, want, ANALYTIC)


@pytest.mark.parametrize("name", ["ttl", "ttl_adaptive"])
def test_the_memory_of_a_recorded_block_is_one_flushed_write(name: str) -> None:
    file = f"mag_block_{name}_11.safetensors"
    c = mag.header(file)["config"]
    f = safetensors.numpy.load_file(mag.RECORDED / file)
    params, buffers = mag.below(f, "in/param/"), mag.below(f, "in/buffer/")
    done, _ = atlas_mag_loops.block(f["in/x"], params, buffers, mag.settings(c))
    p = mag.below(params, "memory.")
    S = {n: buffers[f"memory.{atlas_mag_loops.momentum_name(n)}"] for n in p}
    key = parts.merge(f["out/q_projected"])
    value = parts.merge(done.seen["v"])
    gates = {
        "retain": c["ttl_alpha"],
        "momentum": c["ttl_theta"],
        "step_size": c["ttl_eta"],
        "window_gate": f["out/gamma"][:, :, 0],
    }
    given = (mag_settings(c, p), mag_tensors(p, S), key, value, key, gates)
    y, state = loops.run(*given)
    assert_close("mem_out", y, f["out/mem_out"], ANALYTIC)
    # x + a sigmoid(m), then the feed-forward: the cotangent of m from that of y.
    middle = f["in/x"] + f["out/attn_projected"] * parts.sigmoid(y)
    n, n_back = parts.rms_norm(middle, params["norm2.weight"])
    z, z_back = parts.swiglu(n, *(params[f"ffn.w{i}.weight"] for i in (1, 2, 3)))
    assert_close("y", middle + z, f["out/y"], ANALYTIC)
    m, bar = parts.sigmoid(y), f["in/y_bar"] + n_back(z_back(f["in/y_bar"])["x"])["x"]
    g = loops.outer(*given, {"y": bar * f["out/attn_projected"] * m * (1.0 - m)})
    for of, ours in atlas_mag_loops.NAMES.items():
        if of in p:
            for kind, a in (("memory", done.p[of]), ("momentum", done.S[of])):
                assert_close(f"{kind}/{of}", state[f"{kind}/{ours}"][0], a, ANALYTIC)
            assert_close(f"grad {of}", g[ours], f[f"grad/param/memory.{of}"], ANALYTIC)
    assert not any(np.any(g[each]) for each in ("k", "v", "retain", "step_size", "window_gate"))


def test_a_memory_of_each_row_is_another_than_one_of_the_batch() -> None:
    """The negative twin: rows alone are not the batch together."""
    file = "mag_ttl_plain_11.safetensors"
    c = mag.header(file)["config"]
    f = safetensors.numpy.load_file(mag.RECORDED / file)
    p, S = mag.below(f, "in/param/"), mag.below(f, "in/momentum/")
    s, k = mag_settings(c, p), f["in/keys"]
    gates = {"retain": c["alpha"], "momentum": c["theta"], "step_size": c["eta"]}
    given = (mag_tensors(p, S), k, f["in/values"], k, gates)
    shared, _ = loops.run(s, *given)
    alone, _ = loops.run(s | {"coupling": "per_sample"}, *given)
    assert_differs("y", alone, shared, 1e-4)


def of_titans(name: str) -> tuple[Tensors, Tensors, Tensors, Any, titans_loops.Settings, list[int]]:
    """Settings, tensors of all rows and heads, k, v, q and gates of a recorded file, its calls."""
    s, calls = titans.settings(name)
    f = safetensors.numpy.load_file(titans.RECORDED / name)
    p = mag.below(f, "in/param/")
    own = {n: p[f"memory_model_parameters.{i}"] for i, n in enumerate(s.names)}
    depth = sum("weights." in n for n in s.names)
    x = np.concatenate([f[n] for n in sorted(f) if n.startswith("in/") and n.endswith("x")], axis=1)
    rows: Tensors = {n: [] for n in ("k", "v", "q", "retain", "momentum", "window_gate")}
    for row in x:
        stored = [titans_loops.rms(each, p["store_norm.weight"]) for each in row]
        read = [titans_loops.rms(each, p["retrieve_norm.weight"]) for each in row]
        for h in range(s.heads):
            for n, of, tokens in (
                ("k", "keys", stored),
                ("v", "values", stored),
                ("q", "queries", read),
            ):
                W = p[f"to_{of}.weight"]
                rows[n].append([titans_loops.projected(W, each, s.heads)[h] for each in tokens])
            lr = [titans_loops.gate(p, "to_adaptive_step", each)[h] for each in stored]
            rows["window_gate"].append(s.max_lr * titans_loops.sigmoid(np.array(lr)))
            decay, keep = [], []
            for t in range(len(row)):
                pooled = sum(stored[max(0, t + 1 - s.chunk) : t + 1]) / s.chunk
                decay.append(titans_loops.gate(p, "to_decay_factor", pooled)[h])
                keep.append(titans_loops.gate(p, "to_momentum", pooled)[h] if s.order else -np.inf)
            rows["retain"].append(1.0 - titans_loops.sigmoid(np.array(decay)))
            rows["momentum"].append(titans_loops.sigmoid(np.array(keep)))
    settings = {
        "memory": {"kind": "mlp", "depth": depth, "residual_norm": "norm.gamma" in s.names},
        "chunk": s.chunk,
        "span": s.batch,
        "reduction": "features",
        "fast": "all",
        "vectors": "raw",
        "rate": "momentum",
        "newton_schulz": 5 if s.newton_schulz else 0,
        "ns_guard": "clamp",
        "clip": "none" if s.clip is None else "softclamp",
        "clip_norm": s.clip,
    }
    tensors = {ours(n): np.concatenate([turned(n, a)] * len(x)) for n, a in own.items()}
    arrays = {n: np.array(a) for n, a in rows.items()}
    return settings, tensors, arrays, f, s, calls


def ours(name: str) -> str:
    if name == "norm.gamma":
        return "norm/gain"
    return f"W_{int(name.rpartition('.')[2]) + 1}"


def turned(name: str, a: Any) -> Any:
    """A tensor (rows, ...) of theirs as ours, whose matrices are (out, in)."""
    return np.swapaxes(a, -1, -2) if "weights." in name else a


@pytest.mark.parametrize("name", titans.FILES)
def test_writes_of_chunks_are_the_recorded_memory_of_titans(name: str) -> None:
    settings, tensors, arrays, f, s, calls = of_titans(name)
    k, v, q = (arrays.pop(n) for n in ("k", "v", "q"))
    arrays["step_size"] = np.array(1.0)
    y, state = loops.run(settings, tensors, k, v, q, arrays, calls=calls)
    last = "out/" if len(calls) == 1 else f"out/call{len(calls) - 1}/"
    for of in s.names:
        for kind, theirs, sign in (
            ("memory", "last_update", 1.0),
            ("momentum", "last_momentum", -1.0),
        ):
            if kind == "memory" or s.order:
                want = f[f"{last}{theirs}/{of}"]
                want = want if kind == "memory" else want[0]
                got = state[f"{kind}/{ours(of)}"]
                assert_close(f"{kind}/{of}", sign * got, turned(of, want), ANALYTIC)
        assert_close(
            "reference",
            state[f"reference/{ours(of)}"],
            turned(of, f[f"{last}weights/{of}"]),
            ANALYTIC,
        )
    if s.heads > 1:
        return
    want_y = [f[n] for n in sorted(f) if n.startswith("out/") and n.endswith("/y")]
    assert_close("y", y, np.concatenate(want_y, axis=1), ANALYTIC)
    bars = [f[n] for n in sorted(f) if n.endswith("y_bar")]
    cotangents, draw = {"y": np.concatenate(bars, axis=1)}, np.random.default_rng(5)
    for i, of in enumerate(s.names):
        way = draw.standard_normal(f[f"grad/param/memory_model_parameters.{i}"].shape)
        ways = {ours(of): np.concatenate([turned(of, way)] * len(k))}
        got = loops.along(settings, tensors, k, v, q, arrays, cotangents, ways)
        gradient = f[f"grad/param/memory_model_parameters.{i}"]
        gap = abs(got - np.sum(gradient * way))
        assert gap < ANALYTIC.bound * np.linalg.norm(gradient) * np.linalg.norm(way)


@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize("read", ["completed", "chunk_start"])
@pytest.mark.parametrize(
    ("rate", "newton_schulz", "span", "window"),
    [
        ("both", 5, 1, 4),
        ("memory", 5, 2, 3),
        ("momentum", 0, 1, 4),
        ("momentum", 0, 4, 5),
        ("momentum", 0, 1, 1),
    ],
)
def test_a_linear_memory_is_omega_with_a_pulse(
    rate: str, newton_schulz: int, span: int, window: int, read: str, chunk: int
) -> None:
    """Weights gamma / 2, a pulse at the last token of each chunk: the definition of the family."""
    (B, T), d = (2, 13), 4
    draw = np.random.default_rng(3)
    k, v, q = draw.standard_normal((3, B, T, d))
    W, S = 0.3 * draw.standard_normal((2, B, d, d))
    gates = {
        "retain": draw.uniform(0.8, 1.0, (B, T)),
        "momentum": draw.uniform(0.2, 0.9, (B, T)),
        "step_size": draw.uniform(0.02, 0.1, (B, T)),
    }
    gamma = draw.uniform(0.1, 1.0, (B, T))
    settings = {
        "chunk": chunk,
        "window": window,
        "window_decay": 0.9,
        "span": span * chunk,
        "rate": rate,
        "newton_schulz": newton_schulz,
        "read": read,
    }
    y, state = loops.run(
        settings, {"W": W, "momentum/W": S}, k, v, q, gates | {"window_gate": gamma / 2.0}
    )
    header = {
        "rule": "omega",
        "window": window,
        "span": span * chunk,
        "convention": {
            "rate": rate,
            "reference": "chunk_start",
            "read": "after" if read == "completed" else "before",
            "newton_schulz": {"steps": newton_schulz} if newton_schulz else "none",
        },
    }
    tensors = {f"in/{n}": a for n, a in gates.items()}
    tensors |= {"in/k": k, "in/v": v, "in/q": q, "in/M0": W, "in/S0": S, "in/window_gate": gamma}
    tensors["in/window_weights"] = np.broadcast_to(0.9 ** np.arange(window), (B, T, window))
    tensors["in/active"] = (np.arange(T) + 1) % chunk == 0
    want = literal.evaluate(header, tensors)
    assert_close("y", y, want["out/y"], ANALYTIC)
    assert_close("M", state["memory/W"], want["out/M"], ANALYTIC)
    assert_close("S", state["momentum/W"], want["out/S"], ANALYTIC)
