"""The Omega rule with a running reference as plain loops, and the rules through the package.

Shared by the errata of rules.
"""

import numpy as np
import pytest

import atlas_ref


def relative(got, want):
    return np.linalg.norm(got - want) / np.linalg.norm(want)


def near(number, share=0.02):
    return pytest.approx(number, rel=share)


def tokens(count=32, d_in=6, d_out=5, seed=0):
    """A generator, keys of unit length and values."""
    random = np.random.default_rng(seed)
    keys, values = random.standard_normal((count, d_in)), random.standard_normal((count, d_out))
    return random, keys / np.linalg.norm(keys, axis=1, keepdims=True), values


def omega(
    keys, values, retain, momentum, inner, outer, window=1, update=None, memory=None, trace=None
):
    """Memories of S = m S + inner g, M = r M - outer U with the running reference.

    The weights are uniform.
    """
    memory = np.zeros((values.shape[1], keys.shape[1])) if memory is None else memory
    trace = np.zeros_like(memory) if trace is None else trace
    memories = []
    for t in range(len(keys)):
        gradient = np.zeros_like(memory)
        for i in range(max(0, t - window + 1), t + 1):
            gradient = gradient + np.outer(memory @ keys[i] - values[i], keys[i]) / window
        trace = momentum[t] * trace + inner[t] * gradient
        memory = retain[t] * memory - outer[t] * (trace if update is None else update(trace))
        memories.append(memory)
    return np.array(memories)


def titans(keys, values, forget, momentum, rate, trace=None):
    """Memories of S = m S - h g, M = (1 - f) M + S.

    This is the seeds' Titans LMM and, for m = 0, their Delta rule.
    """
    memory = np.zeros((values.shape[1], keys.shape[1]))
    trace = np.zeros_like(memory) if trace is None else trace
    memories = []
    for t in range(len(keys)):
        trace = momentum[t] * trace - rate[t] * np.outer(memory @ keys[t] - values[t], keys[t])
        memory = (1 - forget[t]) * memory + trace
        memories.append(memory)
    return np.array(memories)


def ours(
    rule,
    keys,
    values,
    retain,
    momentum=None,
    rate=None,
    convention="spec",
    window=1,
    span=None,
    **more,
):
    """Results of the package: y (with q = k), M and S, by name."""
    header = {"schema": 1, "rule": rule, "convention": convention, "window": window} | (
        {"span": span} if span else {}
    )
    gates = {"retain": retain, "momentum": momentum, "step_size": rate}
    tensors = (
        {"k": keys, "v": values, "q": keys}
        | {name: gate for name, gate in gates.items() if gate is not None}
        | more
    )
    results = atlas_ref.evaluate(
        atlas_ref.make(
            header, {f"in/{name}": np.asarray(tensor) for name, tensor in tensors.items()}
        )
    )
    return {name.removeprefix("out/"): tensor for name, tensor in results.tensors.items()}
