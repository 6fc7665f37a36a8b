"""Omega with a frozen reference as plain loops and through the package, for the errata."""

import numpy as np

import atlas_ref


def omega(
    keys,
    values,
    retain,
    momentum,
    rate,
    window,
    span=1,
    boundary="recompute",
    memory=None,
    trace=None,
):
    """Memories and momenta (M, S) of the Omega rule without Newton-Schulz, with uniform weights.

    The reference is refreshed every `span` tokens.
    """
    memory = np.zeros((values.shape[1], keys.shape[1])) if memory is None else memory
    trace = np.zeros_like(memory) if trace is None else trace
    memories, traces, stored = [], [], []
    for t in range(len(keys)):
        if t % span == 0:
            reference = memory
        stored.append(reference @ keys[t] - values[t])  # the residual of the token's own span
        gradient = np.zeros_like(memory)
        for i in range(max(0, t - window + 1), t + 1):
            residual = reference @ keys[i] - values[i]
            if i < t - t % span and boundary == "carry":
                residual = stored[i]
            if i < t - t % span and boundary == "cut":
                residual = 0 * residual
            gradient = gradient + np.outer(residual, keys[i]) / window
        trace = momentum[t] * trace + rate[t] * gradient
        memory = retain[t] * memory - trace
        memories.append(memory)
        traces.append(trace)
    return np.array(memories), np.array(traces)


def constant(count, *numbers):
    return [np.full(count, number) for number in numbers]


def ours(
    keys,
    values,
    retain,
    momentum,
    rate,
    window,
    span=1,
    boundary="recompute",
    rule="omega",
    masks=None,
    **state,
):
    """Results of the package, by name, under the reference that a span refreshes, without
    Newton-Schulz.
    """
    convention = {
        "newton_schulz": "none",
        "reference": "chunk_start",
        "window_at_boundary": boundary,
    }
    header = {"schema": 1, "rule": rule, "convention": convention, "window": window, "span": span}
    tensors = {
        "k": keys,
        "v": values,
        "q": keys,
        "retain": retain,
        "momentum": momentum,
        "step_size": rate,
    }
    tensors |= (masks or {}) | {name: value for name, value in state.items() if value is not None}
    results = atlas_ref.evaluate(
        atlas_ref.make(
            header, {f"in/{name}": np.asarray(tensor) for name, tensor in tensors.items()}
        )
    )
    return {name.removeprefix("out/"): tensor for name, tensor in results.tensors.items()}


def call_start(keys, values, retain, momentum, rate, window=1, **more):
    """Results of the package under the reference of the call."""
    header = {
        "schema": 1,
        "rule": "omega",
        "convention": {"newton_schulz": "none", "reference": "call_start"},
        "window": window,
    }
    tensors = {
        "k": keys,
        "v": values,
        "q": keys,
        "retain": retain,
        "momentum": momentum,
        "step_size": rate,
    } | more
    results = atlas_ref.evaluate(
        atlas_ref.make(
            header, {f"in/{name}": np.asarray(tensor) for name, tensor in tensors.items()}
        )
    )
    return {name.removeprefix("out/"): tensor for name, tensor in results.tensors.items()}
