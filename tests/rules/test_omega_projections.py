"""Derivatives of key, value and query at projections, gates, map and tokens: OMEGA-27 and its
references.
"""

import numpy as np
import pytest

from tests.support.close import ANALYTIC, assert_close
from tests.support.sequences import results, without
from tests.truth.longhand import STEP, Setting, backward, forward

T, H, D_MODEL, D_IN, D_OUT, D_PHI, HIDDEN = 4, 2, 5, 3, 2, 4, 3
SETTINGS = {
    "running": Setting(c=3),
    "carry": Setting(c=3, reference="chunk_start", span=2, boundary="carry", decay="before_error"),
    "newton_schulz": Setting(c=2, rate="both", argument="S"),
    "momentum_first": Setting(c=3, order="momentum_then_window", rate="memory"),
}


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def parameters(o, n, seed=0):
    """Parameters and tokens of two heads; n gates of a kind per head."""
    random = np.random.default_rng(seed)
    p = {
        "x": random.standard_normal((1, T, D_MODEL)),
        "phi/W": random.standard_normal((D_PHI, D_IN)) / 2,
    }
    for name, d in (("W_K", D_IN), ("W_V", D_OUT), ("W_Q", D_IN)):
        p[f"param/{name}"] = random.standard_normal((H, d, D_MODEL)) / 2
    for gate, bias in (("retain", 2.0), ("momentum", 0.5), ("step_size", -1.0)):
        p[f"param/W_{gate}"] = random.standard_normal((H, n, D_IN + D_OUT)) / 2
        p[f"param/b_{gate}"] = bias + random.standard_normal((H, n)) / 4
    p |= {
        "param/window_W1": random.standard_normal((H, HIDDEN, D_MODEL)),
        "param/window_b1": random.standard_normal((H, HIDDEN)),
    }
    p |= {
        "param/window_W2": random.standard_normal((H, HIDDEN)),
        "param/window_b2": random.standard_normal(H),
    }
    p |= {"param/window_logits": random.standard_normal((H, o.c))}
    for name in ("M0", "S0", "M_bar", "S_bar"):
        p[name] = random.standard_normal((1, H, D_OUT, D_PHI)) / 2
    return p | {"y_bar": random.standard_normal((1, H, T, D_OUT))}


def project(p, o, h):
    """One head's sequence for the loop over tokens, and its sources."""
    x = p["x"][0]
    sources = {
        "k": [],
        "v": [],
        "q": [],
        "retain": [],
        "momentum": [],
        "step_size": [],
        "u": [],
        "z": [],
    }
    for t in range(T):
        k, v, q = (p[f"param/{W}"][h] @ x[t] for W in ("W_K", "W_V", "W_Q"))
        z = {
            g: p[f"param/W_{g}"][h] @ np.concatenate([k, v]) + p[f"param/b_{g}"][h]
            for g in ("retain", "momentum", "step_size")
        }
        hidden = p["param/window_W1"][h] @ x[t] + p["param/window_b1"][h]
        u = sigmoid(p["param/window_W2"][h] @ (hidden * sigmoid(hidden)) + p["param/window_b2"][h])
        gates = {
            "retain": sigmoid(z["retain"]),
            "momentum": sigmoid(z["momentum"]),
            "step_size": np.log(1 + np.exp(z["step_size"])),
        }
        gates = {name: value if len(value) > 1 else value[0] for name, value in gates.items()}
        for name, value in {"k": k, "v": v, "q": q, "u": u, "z": z, **gates}.items():
            sources[name].append(value)
    soft = np.exp(p["param/window_logits"][h])
    soft = soft / np.sum(soft)
    weights = np.array(
        [[soft[j] * (sources["u"][t - j] if j <= t else 0) for j in range(o.c)] for t in range(T)]
    )
    features = {name: np.array([p["phi/W"] @ x for x in sources[name]]) for name in ("k", "q")}
    inputs = {
        name: np.array(sources[name]) for name in ("v", "retain", "momentum", "step_size")
    } | features
    inputs |= {name: p[name][0, h] for name in ("M0", "S0", "M_bar", "S_bar", "y_bar")}
    return inputs | {"window_weights": weights}, sources | {"soft": soft}


def value(p, o):
    total = 0
    for h in range(H):
        inputs, _ = project(p, o, h)
        out, _ = forward(inputs, o)
        total = total + sum(np.sum(out[name] * inputs[f"{name}_bar"]) for name in ("y", "M", "S"))
    return total


def chained(p, o):
    """The backward of OMEGA-27, GATES-12 and WINDOW-22 after that of the token loop."""
    bar = {name: np.zeros(tensor.shape) for name, tensor in p.items() if not name.endswith("_bar")}
    W_phi = p["phi/W"]
    for h in range(H):
        inputs, sources = project(p, o, h)
        token = backward(inputs, o)
        bar["M0"][0, h], bar["S0"][0, h] = token["M0"], token["S0"]
        weights_bar, soft = token["window_weights"], sources["soft"]
        soft_bar = sum(
            np.array(
                [weights_bar[t, j] * (sources["u"][t - j] if j <= t else 0) for j in range(o.c)]
            )
            for t in range(T)
        )
        bar["param/window_logits"][h] = soft * (soft_bar - np.sum(soft * soft_bar))
        for t in range(T):
            x, k, v, q = p["x"][0, t], sources["k"][t], sources["v"][t], sources["q"][t]
            k_bar, v_bar, q_bar = (
                W_phi.T @ token["k"][t],
                token["v"][t].copy(),
                W_phi.T @ token["q"][t],
            )
            # from keys and queries alike
            bar["phi/W"] += np.outer(token["k"][t], k) + np.outer(token["q"][t], q)
            for gate in ("retain", "momentum", "step_size"):
                u, z = np.atleast_1d(sources[gate][t]), sources["z"][t][gate]
                z_bar = np.atleast_1d(token[gate][t]) * (
                    sigmoid(z) if gate == "step_size" else u * (1 - u)
                )
                bar[f"param/W_{gate}"][h] += np.outer(z_bar, np.concatenate([k, v]))
                bar[f"param/b_{gate}"][h] += z_bar
                back = p[f"param/W_{gate}"][h].T @ z_bar
                k_bar, v_bar = k_bar + back[:D_IN], v_bar + back[D_IN:]
            for name, x_bar in (("W_K", k_bar), ("W_V", v_bar), ("W_Q", q_bar)):
                bar[f"param/{name}"][h] += np.outer(x_bar, x)
                bar["x"][0, t] += p[f"param/{name}"][h].T @ x_bar
            # the times whose window holds token t
            u_bar = sum(weights_bar[t + j, j] * soft[j] for j in range(o.c) if t + j < T)
            hidden = p["param/window_W1"][h] @ x + p["param/window_b1"][h]
            last_bar = u_bar * sources["u"][t] * (1 - sources["u"][t])
            slope = sigmoid(hidden) * (1 + hidden * (1 - sigmoid(hidden)))
            hidden_bar = last_bar * p["param/window_W2"][h] * slope
            bar["param/window_b2"][h] += last_bar
            bar["param/window_W2"][h] += last_bar * hidden * sigmoid(hidden)
            bar["param/window_b1"][h] += hidden_bar
            bar["param/window_W1"][h] += np.outer(hidden_bar, x)
            bar["x"][0, t] += p["param/window_W1"][h].T @ hidden_bar
    return bar


@pytest.mark.clause("OMEGA-27", "GATES-12", "WINDOW-6", "WINDOW-7", "WINDOW-22", "CONV-28")
@pytest.mark.parametrize("n", [1, D_OUT], ids=["scalar gates", "gates per output dimension"])
@pytest.mark.parametrize("name", SETTINGS)
def test_projections_gates_map_and_tokens_receive_what_is_written_out(name, n):
    o = SETTINGS[name]
    p = parameters(o, n)
    kinds = {"kind": "product", "of": [{"kind": "softmax"}, {"kind": "gate"}]}
    header = {
        "level": "token",
        "feature_map": {"kind": "linear"},
        "window_weights": kinds,
        **o.header,
    }
    result = results("omega", p, o.convention, grad=True, **header)
    assert_close(
        "value",
        np.sum(result["y"] * p["y_bar"]) + sum(np.sum(result[n] * p[f"{n}_bar"]) for n in "MS"),
        value(p, o),
        ANALYTIC,
    )
    for tensor, want in chained(p, o).items():
        assert_close(f"tape, {tensor}", result[f"grad/{tensor}"], want, ANALYTIC)


@pytest.mark.clause("OMEGA-27")
@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_written_out_is_the_complex_step(name):
    o = SETTINGS[name]
    p = parameters(o, D_OUT, seed=1)
    random = np.random.default_rng(2)
    for tensor, bar in chained(p, o).items():
        direction = random.standard_normal(bar.shape)
        derivative = np.imag(value({**p, tensor: p[tensor] + 1j * STEP * direction}, o)) / STEP
        assert_close(tensor, np.sum(bar * direction), derivative, ANALYTIC)


@pytest.mark.clause("OMEGA-27", "TITANS-15", "DELTA-14", "HEBBIAN-11", "CONV-28")
@pytest.mark.parametrize("n", [1, D_OUT], ids=["scalar gates", "gates per output dimension"])
@pytest.mark.parametrize(
    ("rule", "axes", "lost"),
    [
        ("titans_lmm", {}, ()),
        ("delta", {}, ("param/W_momentum", "param/b_momentum", "S0", "S_bar")),
        (
            "hebbian",
            {"reference": "zero", "rate": "none"},
            (
                "param/W_momentum",
                "param/b_momentum",
                "param/W_step_size",
                "param/b_step_size",
                "S0",
                "S_bar",
            ),
        ),
    ],
)
def test_the_other_rules_pull_back_to_the_same_projections_and_gates(rule, axes, lost, n):
    # Omega with one token is each of them (OMEGA-19 to OMEGA-21), and its derivatives are proved
    # above
    o = Setting(c=1)
    p = without(
        parameters(o, n, seed=3),
        *lost,
        "phi/W",
        *(f"param/window_{name}" for name in ("W1", "b1", "W2", "b2", "logits")),
    )
    random = np.random.default_rng(4)
    p |= {
        name: random.standard_normal((1, H, D_OUT, D_IN))
        for name in ("M0", "S0", "M_bar", "S_bar")
        if name in p
    }
    header = {"level": "token"}
    result = results(rule, p, grad=True, **header)
    want = results(
        "omega", p, {"newton_schulz": "none", "gate": "forget", **axes}, grad=True, **header
    )
    assert result.keys() == want.keys()
    for name in result:
        assert_close(name, result[name], want[name], ANALYTIC)
