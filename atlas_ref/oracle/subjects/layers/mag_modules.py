"""Modules of Atlas-MAG around its memory as layers of cases: gate, projections, memory, learning.

Specified in specs/layer_cases.md (LAYER-19, LAYER-20).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from atlas_ref import backend
from atlas_ref.layers import attention, query_key
from atlas_ref.layers.projection import hidden_gate
from atlas_ref.models import MODULES
from atlas_ref.models.atlas_mag import learning, names
from atlas_ref.models.atlas_mag.arguments import rates_of
from atlas_ref.models.atlas_mag.learning import Pairs
from atlas_ref.models.atlas_mag.modules import rule_of
from atlas_ref.oracle.cases.tensor_spec import Tensor
from atlas_ref.oracle.subjects.layers import GRADIENTS, Call, Entry, few, sequence, with_zero
from atlas_ref.parts import memory_functions
from atlas_ref.types import Array
from tape import ops, plain

#: The two forms of the projection, by the names of their results and gradients.
FORMS = ("chunked", "sequential")


def _gamma_gate(call: Call) -> dict[str, Array]:
    return {"out/y": ops.swapaxes(hidden_gate(call.params, call.inputs["in/x"]), 1, 2)}


# -- projections -----------------------------------------------------------------------------------


def _qkv_tensors(settings: Any) -> dict[str, Tensor]:
    bars = {f"in/{each}_bar": Tensor("B heads T dim_head", "no gradients") for each in "qkv"}
    return {"in/x": Tensor("B T dim"), **bars}


def _qkv(call: Call) -> dict[str, Array]:
    _, heads = attention.projected(call.config.attention, call.params, call.inputs["in/x"])
    return {f"out/{each}": heads[:, i] for i, each in enumerate("qkv")}


def _qk_tensors(settings: Any) -> dict[str, Tensor]:
    rows = Tensor("B heads T dim_head")
    tensors = {f"in/{each}": rows for each in "qk"}
    if settings is None or settings.gates:
        tensors["in/gamma"] = Tensor("B T 1", low=0)
    if settings is None or settings.persistent_keys:
        tensors["in/persistent_keys"] = Tensor("persistent dim")
    return tensors | {
        "in/buffer/m_persistent": Tensor("dim dim"),
        "in/buffer/norm_persistent": Tensor("", low=0),
        "in/buffer/decay_weights": Tensor("context", low=0),
        "in/y_bar": rows._replace(need="no gradients"),
    }


def _qk_between(settings: Any, inputs: Any) -> dict[str, tuple[int, ...]]:
    """Queries, keys and gates of each form, whose gradients are results."""
    own = {each: inputs[f"in/{each}"].shape for each in _with_gradients(settings)}
    return {f"{form}/{each}": own[each] for form in _forms(settings) for each in own}


def _with_gradients(settings: Any) -> tuple[str, ...]:
    """Inputs of the projection whose gradients each form has."""
    return ("q", "k", "gamma") if settings.gates else ("q", "k")


def _forms(settings: Any) -> tuple[str, ...]:
    """Forms of the projection that a case has (LAYER-19)."""
    return FORMS if settings.chunk_size else FORMS[1:]


def _of_form(settings: Any) -> str:
    """The main result: that of the first form."""
    return f"out/y_{_forms(settings)[0]}"


def _qk(call: Call) -> dict[str, Array]:
    """The forms of the projection, each of inputs of its own (LAYER-19)."""
    results: dict[str, Array] = {}
    params = call.params.replaced(keys=call.inputs.get("in/persistent_keys"))
    for form in _forms(call.settings):
        own = {
            each: with_zero(call, f"{form}/{each}", call.inputs[f"in/{each}"])
            for each in _with_gradients(call.settings)
        }
        q, k = (_flat(own[each]) for each in "qk")
        gate = own["gamma"][:, :, 0] if "gamma" in own else None
        config = call.config.replaced(powers="exact" if form == "chunked" else "float32")
        start = query_key.start(config, q.shape[0], dtype=plain(q).dtype)
        _, y = query_key.apply(config, params, start, q, k, gate)
        B, T, D = y.shape
        H = call.settings.n_heads
        results[f"out/y_{form}"] = ops.swapaxes(ops.reshape(y, (B, T, H, D // H)), 1, 2)
    return results


def _flat(x: Array) -> Array:
    """Heads (B, H, T, d) of a token one after the other."""
    B, H, T, d = x.shape
    return ops.reshape(ops.swapaxes(x, 1, 2), (B, T, H * d))


def _fits(settings: Any, inputs: Any) -> None:
    """Refuse constants of the projection that contradict its settings (LAYER-19)."""
    P = np.asarray(inputs["in/buffer/m_persistent"], np.float64)
    n_0 = float(np.asarray(inputs["in/buffer/norm_persistent"], np.float64))
    if settings.persistent_keys:
        K = np.asarray(inputs["in/persistent_keys"], np.float64)
        _near("in/buffer/m_persistent", P, K.T @ K, "the sum of products of in/persistent_keys")
        _near("in/buffer/norm_persistent", n_0, np.sum(K * K), "the sum of their squares")
    else:
        unit("in/buffer/m_persistent", P)
    powers = settings.decay_base ** np.arange(settings.context_window)
    _near(
        "in/buffer/decay_weights",
        np.asarray(inputs["in/buffer/decay_weights"], np.float64),
        powers,
        f"powers of decay_base = {settings.decay_base:g}",
    )


def unit(name: str, P: Any) -> None:
    """Refuse a matrix that is no multiple of the unit matrix."""
    factor = P[0, 0]
    _near(name, P, factor * np.eye(len(P)), f"the unit matrix times {factor:g}")


def _near(name: str, found: Any, want: Any, words: str) -> None:
    """Refuse a constant that is off by more than float32 rounds it."""
    if not np.allclose(found, want, rtol=2**-20, atol=2**-20 * np.max(np.abs(want))):
        raise ValueError(f"{name}: not {words}")


# -- the memory ------------------------------------------------------------------------------------


def _memory(call: Call) -> dict[str, Array]:
    function = call.settings.function
    return {"out/y": memory_functions.apply(function, call.params, call.inputs["in/x"])}


PAIRS = {f"in/{each}": Tensor("B T dim") for each in ("keys", "values")}


def _pair_tensors(settings: Any) -> dict[str, Tensor]:
    # of a table of names, whose settings are None, the gates are optional
    gated = settings is None or settings.gamma
    need = "powers of a decay" if settings is None else "yes"
    return PAIRS | ({"in/gamma": Tensor("B T 1", need, low=0)} if gated else {})


def _pairs(call: Call) -> Pairs:
    """Keys, values and weights: the gates, or a decay for each later token."""
    keys, gates = call.inputs["in/keys"], call.inputs.get("in/gamma")
    B, T, _ = keys.shape
    if gates is not None:
        weights = gates[:, :, 0]
    else:
        powers = call.settings.decay_base ** np.arange(T - 1, -1, -1.0)
        weights = backend.of(keys).from_host(powers) + ops.zeros_like(keys, shape=(B, T))
    return Pairs(keys, call.inputs["in/values"], weights)


def _omega_loss(call: Call) -> dict[str, Array]:
    return {"out/loss": learning.loss(rule_of(call.settings), call.params, _pairs(call))}


def _ttl_tensors(settings: Any) -> dict[str, Tensor]:
    axes = {name: each.axes for name, each in names.MEMORY.items() if _has(settings, each.when)}
    momenta = {f"in/momentum/{name}": Tensor(own) for name, own in axes.items()}
    return PAIRS | {"in/gamma": Tensor("B T 1", low=0)} | momenta


def _has(settings: Any, when: str) -> bool:
    return settings is None or not when or bool(getattr(settings, when))


def _ttl(call: Call) -> dict[str, Array]:
    """Steps one after the other, with their sizes, and a read of the keys after the last (LAYER-20)."""
    rule, pairs, ours = rule_of(call.settings), _pairs(call), names.MEMORY_NAMES
    public = {own: name for name, own in ours.items()}
    weights: Any = {name: ops.expand_dims(each, 0) for name, each in call.params.items()}
    momentum: Any = {
        own: ops.expand_dims(call.inputs[f"in/momentum/{name}"], 0)
        for name, own in ours.items()
        if own in weights
    }
    results: dict[str, Array] = {}
    for i in range(call.settings.steps):
        place = f"out/step{i}/"
        first = {name: each[0] for name, each in weights.items()}
        results[f"{place}loss"] = learning.loss(rule, first, pairs)
        done = learning.step(rule, weights, momentum, pairs, rates_of(call.settings))
        weights, momentum = done.weights, done.momentum
        results |= _sizes(call.settings, done, place)
        norms = {"grad": done.gradient, "momentum": momentum, "update": done.direction}
        for own, name in public.items():
            if own in weights:
                results[f"{place}param/{name}"] = weights[own][0]
                results[f"{place}momentum/{name}"] = momentum[own][0]
                for kind, each in norms.items():
                    results[f"{place}stat/{name}_{kind}_norm"] = _norm(each[own][0])
    final = {name: each[0] for name, each in weights.items()}
    results["out/read"] = memory_functions.apply(rule.memory, final, pairs.keys)
    return results


def _sizes(settings: Any, done: learning.Step, place: str) -> dict[str, Array]:
    """What the code reports of the gradients together."""
    if settings.adaptive_eta:
        return {
            f"{place}effective_eta": done.step_size[0],
            f"{place}total_grad_norm": done.size[0],
        }
    if settings.max_grad_norm is not None:
        share = ops.minimum(1.0, settings.max_grad_norm / (done.size[0] + 1e-8))
        return {f"{place}grad_clip_ratio": share}
    return {}


def _norm(x: Array) -> Array:
    return ops.sqrt(ops.sum(x * x))


def _numbers(settings: Any, inputs: Any) -> int:
    """Features and hidden entries of all tokens."""
    rows = inputs["in/x" if "in/x" in inputs else "in/keys"]
    f = settings.function
    width = max(f.features, f.hidden(settings.dim), settings.dim)
    return max(few(settings, inputs), int(rows.size // settings.dim * width))


def _of_projection(settings: Any, inputs: Any) -> int:
    """Scores of the queries of a chunk and their keys, of all chunks."""
    B, _, T, _ = inputs["in/q"].shape
    return max(few(settings, inputs), int(B * T * (settings.context_window + 64)))


#: Name in the header -> module.
PARTS: dict[str, Entry] = {
    "atlas_mag_gamma_gate": Entry(
        MODULES["atlas_mag_gamma_gate"],
        lambda settings: {
            "in/x": Tensor("B T dim"),
            "in/y_bar": Tensor("B T 1", "no gradients"),
        },
        _gamma_gate,
        {"out/y": "GATES-14", **GRADIENTS},
    ),
    "atlas_mag_qkv": Entry(
        MODULES["atlas_mag_qkv"],
        _qkv_tensors,
        _qkv,
        {"out": "ATTENTION-1", **GRADIENTS},
        result="out/q",
    ),
    "atlas_mag_query_key": Entry(
        MODULES["atlas_mag_query_key"],
        _qk_tensors,
        _qk,
        {"out": "QK-1", "grad": "QK-10"},
        result=_of_form,
        between=_qk_between,
        constants=("in/q", "in/k", "in/gamma", "in/persistent_keys"),
        weighs={"in/y_bar": tuple(f"out/y_{form}" for form in FORMS)},
        fits=_fits,
        numbers=_of_projection,
    ),
    "atlas_mag_memory": Entry(
        MODULES["atlas_mag_memory"],
        sequence("B T dim"),
        _memory,
        {"out/y": "MEMFUN-4", "grad": "MEMFUN-6"},
        numbers=_numbers,
    ),
    "atlas_mag_omega_loss": Entry(
        MODULES["atlas_mag_omega_loss"],
        _pair_tensors,
        _omega_loss,
        {"out/loss": "LAYER-20", "grad": "MEMFUN-6"},
        result="out/loss",
        loss="out/loss",
        numbers=_numbers,
    ),
    "atlas_mag_ttl": Entry(
        MODULES["atlas_mag_ttl"],
        _ttl_tensors,
        _ttl,
        {
            "out/param": "DEEP-13",
            "out/momentum": "DEEP-11",
            "out/effective_eta": "DEEP-10",
            "out/total_grad_norm": "DEEP-9",
            "out/grad_clip_ratio": "DEEP-9",
            "out/read": "MEMFUN-4",
            "out": "LAYER-20",
            **GRADIENTS,
        },
        result="out/read",
        no_loss=lambda inputs: (
            "the steps are outside of the graph, and nothing else has a gradient"
        ),
        numbers=_numbers,
    ),
}
