"""Plain loops of Atlas-MAG against every recorded file of it: values, states and gradients."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from tests.support.close import ANALYTIC, assert_close, reordered
from tests.truth import atlas_mag_loops as loops
from tests.truth import atlas_mag_parts as parts

pytestmark = pytest.mark.host("plain loops of the tests")

RECORDED = Path(__file__).parents[1] / "data" / "peers_atlas_mag"
FILES = sorted(path.name for path in RECORDED.glob("mag_*.safetensors"))
Tensors = dict[str, Any]


def header(name: str) -> dict[str, Any]:
    with safetensors.safe_open(RECORDED / name, "np") as file:
        found: dict[str, Any] = json.loads(file.metadata()["atlas_ref"])
    return found


def below(tensors: Tensors, start: str) -> Tensors:
    return loops.below({n: a for n, a in tensors.items() if n.startswith(start)}, start)


def results(g: Tensors, **renamed: str) -> Tensors:
    """Gradients by the names of the files: inputs as renamed, the others as parameters."""
    return {f"grad/{renamed[n]}" if n in renamed else f"grad/param/{n}": a for n, a in g.items()}


def rms_norm(c: Tensors, f: Tensors) -> Tensors:
    x, weight = f["in/x"], f["in/param/weight"]
    if "in/y_bar" not in f:
        return {"out/y": parts.single_rms_norm(x, weight)}
    y, back = parts.rms_norm(x, weight, c["eps"])
    return {"out/y": y} | results(back(f["in/y_bar"]), x="x")


def swiglu(c: Tensors, f: Tensors) -> Tensors:
    p = below(f, "in/param/")
    if c["fused"]:
        half = len(p["w12.weight"]) // 2
        p |= {"w1.weight": p["w12.weight"][:half], "w2.weight": p["w12.weight"][half:]}
    y, back = parts.swiglu(f["in/x"], *(p[f"w{i}.weight"] for i in (1, 2, 3)))
    g = back(f["in/y_bar"])
    found = {"out/y": y, "grad/x": g["x"], "grad/param/w3.weight": g["w3"]}
    if c["fused"]:
        return found | {"grad/param/w12.weight": np.concatenate([g["w1"], g["w2"]])}
    return found | {f"grad/param/w{i}.weight": g[f"w{i}"] for i in (1, 2)}


def causal_conv(c: Tensors, f: Tensors) -> Tensors:
    p = below(f, "in/param/conv.")
    y, back = parts.causal_convolution(f["in/x"], p["weight"], p["bias"])
    g = back(f["in/y_bar"])
    named = {f"grad/param/conv.{name}": g[name] for name in ("weight", "bias")}
    return {"out/y": y, "grad/x": g["x"]} | named


def rotary(c: Tensors, f: Tensors) -> Tensors:
    how = {"first": c["seq_offset"], "base": c["base"]}
    found = {f"out/{n}": parts.rotary(f[f"in/{n}"], **how) for n in "qk"}
    return found | {f"grad/{n}": parts.rotary(f[f"in/{n}_bar"], **how, turn=-1) for n in "qk"}


def qkv_projection(c: Tensors, f: Tensors) -> Tensors:
    rows, back = parts.qkv(f["in/x"], below(f, "in/param/"), c["n_heads"])
    g = back([f[f"in/{name}_bar"] for name in "qkv"])
    return {f"out/{n}": row for n, row in zip("qkv", rows, strict=True)} | results(g, x="x")


def gamma_gate(c: Tensors, f: Tensors) -> Tensors:
    p = below(f, "in/param/")
    y, back = parts.gamma_gate(f["in/x"], p["gate.0.weight"], p["gate.2.weight"])
    return {"out/y": y} | results(back(f["in/y_bar"]), x="x")


def qk_projection(c: Tensors, f: Tensors) -> Tensors:
    q, k = parts.merge(f["in/q"]), parts.merge(f["in/k"])
    P, n0 = f["in/buffer/m_persistent"], float(f["in/buffer/norm_persistent"])
    keys = f.get("in/persistent_keys", np.zeros((0, 0)))
    if len(keys):
        assert_close("P", sum(key[:, None] * key for key in keys), P, ANALYTIC)
        assert_close("n0", sum(sum(keys**2)), n0, ANALYTIC)
    else:
        d = len(P)
        assert_close("P", 0.1 * np.eye(d), P, ANALYTIC)
        assert_close("n0", 0.01 * d, n0, ANALYTIC)
    gate = f["in/gamma"][:, :, 0] if c["gates"] else None
    c32 = f["in/buffer/decay_weights"].astype(np.float64)
    found: Tensors = {}
    forms = {"sequential": c32, "chunked": [c["decay_base"] ** lag for lag in range(len(c32))]}
    for form, powers in forms.items():
        y, back = parts.projection(q, k, gate, P, n0, c["context_window"], powers)
        g = back(parts.merge(f["in/y_bar"]))
        found[f"out/y_{form}"] = parts.split(y, c["n_heads"])
        found |= {f"grad/{form}/{n}": parts.split(g[n], c["n_heads"]) for n in "qk"}
        if c["gates"]:
            found[f"grad/{form}/gamma"] = g["gate"][:, :, None]
    return found


def deep_memory(c: Tensors, f: Tensors) -> Tensors:
    p = below(f, "in/param/")
    of = loops.function(p, c["poly_degree"], c["return_contribution"])
    y, back = loops.memory(f["in/x"], p, of)
    return {"out/y": y} | results(back(f["in/y_bar"]), x="x")


def weights(c: Tensors, f: Tensors) -> Any:
    if "in/gamma" in f:
        return f["in/gamma"][:, :, 0]
    return loops.decay_weights(*f["in/keys"].shape[:2], c["decay_base"])


def omega_loss(c: Tensors, f: Tensors) -> Tensors:
    p = below(f, "in/param/")
    of = loops.function(p, c["poly_degree"])
    loss, back = loops.omega_loss(
        f["in/keys"], f["in/values"], weights(c, f), c["context_window"], p, of
    )
    g = back(1.0)
    gate = g.pop("weights")
    found = {"out/loss": loss} | results(g, keys="keys", values="values")
    return found | ({"grad/gamma": gate[:, :, None]} if c["gamma"] else {})


def ttl_steps(c: Tensors, f: Tensors) -> Tensors:
    p, S = below(f, "in/param/"), below(f, "in/momentum/")
    of = loops.function(p, c["poly_degree"])
    s = loops.Settings(
        heads=1,
        window=1,
        context=c["context_window"],
        theta=c["theta"],
        alpha=c["alpha"],
        eta=c["eta"],
        adaptive=c.get("adaptive_eta", False),
        ns=c["ns_iterations"],
    )
    found: Tensors = {}
    for i in range(c["steps"]):
        done = loops.step(
            f["in/keys"], f["in/values"], weights(c, f), p, S, of, s, c["max_grad_norm"]
        )
        p, S = done.p, done.S
        at = f"out/step{i}/"
        found |= {f"{at}param/{n}": a for n, a in p.items()}
        found |= {f"{at}momentum/{n}": a for n, a in S.items()}
        found |= {f"{at}loss": done.loss}
        norms = {"grad": done.g, "momentum": done.S, "update": done.U}
        if c["max_grad_norm"] is not None:
            found[f"{at}grad_clip_ratio"] = done.share
        if s.adaptive:
            found |= {f"{at}effective_eta": done.eta, f"{at}total_grad_norm": done.size}
        for kind, each in norms.items():
            found |= {f"{at}stat/{n}_{kind}_norm": loops.norm(a) for n, a in each.items()}
    return found | {"out/read": loops.memory(f["in/keys"], p, of)[0]}


def settings(c: Tensors) -> loops.Settings:
    return loops.Settings(
        heads=c["n_heads"],
        window=c["attn_window_size"],
        degree=c["poly_degree"],
        memory=not c["disable_memory"],
        context=c["omega_context_window"],
        decay=c["omega_decay_base"],
        step=c["ttl_enabled"] and c["training"],
        theta=c["ttl_theta"],
        alpha=c["ttl_alpha"],
        eta=c["ttl_eta"],
        adaptive=c["ttl_adaptive_eta"],
        ns=c["ttl_ns_iters"],
    )


def attention_block(c: Tensors, f: Tensors) -> Tensors:
    s = loops.Settings(heads=c["n_heads"], window=c["attn_window_size"], memory=False)
    mask = f["in/attention_mask"][:, 0, 0] if c["attention_mask"] else None
    done, back = loops.block(f["in/x"], below(f, "in/param/"), {}, s, mask)
    between = {name: name for name in ("q", "k", "v", "attn", "attn_projected", "x")}
    found = {"out/y": done.y} | {f"out/{n}": a for n, a in done.seen.items()}
    return found | results(back(f["in/y_bar"]), **between)


def states(done: loops.Block, start: str, prefix: str = "memory.") -> Tensors:
    found = {f"{start}param/{prefix}{n}": a for n, a in done.p.items()}
    momentum = {loops.momentum_name(n): a for n, a in done.S.items()}
    return found | {f"{start}buffer/{prefix}{n}": a for n, a in momentum.items()}


def mag_block(c: Tensors, f: Tensors) -> Tensors:
    p, s = below(f, "in/param/"), settings(c)
    done, back = loops.block(f["in/x"], p, below(f, "in/buffer/"), s)
    g = {n: a for n, a in back(f["in/y_bar"]).items() if n in p or n == "x"}
    g = {n: np.zeros(a.shape) for n, a in p.items()} | g
    kept = ("attn_projected", "gamma", "q_projected", "mem_out", "omega_loss")
    found = {"out/y": done.y} | {f"out/{n}": a for n, a in done.seen.items() if n in kept}
    return found | results(g, x="x") | (states(done, "out/state/") if s.step and s.memory else {})


def mag_skeleton(c: Tensors, f: Tensors) -> Tensors:
    p, buffers, s = below(f, "in/param/"), below(f, "in/buffer/"), settings(c)
    found: Tensors = {}
    for i in range(c["calls"]):
        at = f"call{i}/" if c["calls"] > 1 else ""
        done = loops.model(f[f"in/{at}ids"], p, buffers, s)
        found |= {f"out/{at}logits": done.logits, f"out/{at}loss": done.loss}
        for layer, block in enumerate(done.blocks):
            if s.step and s.memory:
                prefix = f"blocks.{layer}.memory."
                kept = ["omega_loss", *(["effective_eta"] if s.adaptive else [])]
                found |= {f"out/{at}{n}/{layer}": block.seen[n] for n in kept}
                found |= states(block, f"out/{at}state/", prefix)
                p = p | {f"{prefix}{n}": a for n, a in block.p.items()}
                momentum = {loops.momentum_name(n): a for n, a in block.S.items()}
                buffers = buffers | {f"{prefix}{n}": a for n, a in momentum.items()}
    return found | results(done.gradients)


READERS: dict[str, Callable[[Tensors, Tensors], Tensors]] = {
    "rms_norm": rms_norm,
    "swiglu": swiglu,
    "causal_conv": causal_conv,
    "rotary": rotary,
    "qkv_projection": qkv_projection,
    "gamma_gate": gamma_gate,
    "qk_projection": qk_projection,
    "deep_memory": deep_memory,
    "omega_loss": omega_loss,
    "ttl_steps": ttl_steps,
    "attention_block": attention_block,
    "mag_block": mag_block,
    "mag_skeleton": mag_skeleton,
}


@pytest.mark.parametrize("name", FILES)
def test_the_loops_are_the_recorded_values_states_and_gradients(name: str) -> None:
    assert len(FILES) == 36
    head, tensors = header(name), safetensors.numpy.load_file(RECORDED / name)
    got = READERS[head["rule"]](head["config"], tensors)
    want = {n: a for n, a in tensors.items() if n.startswith(("out/", "grad/"))}
    assert set(got) == set(want)
    # A sum of squares in float32, whose order the definition leaves open.
    within = reordered(1, dtype=np.float32) if head.get("float32_inside") else ANALYTIC
    for of, array in want.items():
        assert_close(of, got[of], array, within)
