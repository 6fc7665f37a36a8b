"""The kernel (dual) form: a memory as a sum over the keys so far.

Keys enter through a kernel of two keys alone.

    M_t = B_t Phi,    S_t = Z_t Phi,    row i of Phi = phi(k_i)
    M_t phi(q) = B_t kappa(keys, q),    kappa(k, k') = <phi(k), phi(k')>

A step moves coefficients: the gradient has a column for each window token, gates scale rows,
Newton-Schulz acts on Z K Z^T. It is another program for every rule, and the only one for a map with
infinitely many features. Specified in specs/kernel.md.

Its properties, cost, special cases and derivatives: KERNEL-7 to KERNEL-13.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from pydantic import ValidationError

from atlas_ref.conventions import Convention, resolve
from atlas_ref.forms.kernel_steps import Coefficients, Kernels, evaluated
from atlas_ref.forms.recurrence import Memory, Recurrence
from atlas_ref.messages import first_problem
from atlas_ref.parts.newton_schulz import NewtonSchulz
from atlas_ref.rules import omega
from atlas_ref.rules.checks import stores_residuals
from atlas_ref.rules.sequence import Tokens
from atlas_ref.types import Array, Dims, bind_dims, check_array
from tape import ops

__all__ = ["Coefficients", "Kernel", "attend", "exponential", "inner", "polynomial", "run"]

#: kappa(k (..., m, d), k' (..., n, d)) -> (..., m, n)
Kernel = Callable[[Array, Array], Array]


def inner(x: Array, y: Array) -> Array:
    """kappa(x, y) = <x, y> (..., m, n): that of the identity map, or of features at hand."""
    return x @ ops.transpose(y)


def exponential(x: Array, y: Array, *, scale: float = 1.0) -> Array:
    """Kernel exp(scale <x, y>) (..., m, n) of all monomials, degree i weighted by scale^i / i!.

    Source: KERNEL-6.
    """
    return ops.exp(scale * inner(x, y))


def polynomial(x: Array, y: Array, *, coefficients: tuple[float, ...]) -> Array:
    """kappa(x, y) = sum_i coefficients[i] <x, y>^i (..., m, n), without its monomials.

    Source: KERNEL-6.
    """
    product = inner(x, y)
    total = coefficients[-1] * ops.ones_like(product)
    for a in reversed(coefficients[:-1]):
        total = a + product * total
    return total


# -- features at hand ------------------------------------------------------------------------------


def run(
    config: Any, sequence: Recurrence, memory: Memory, chunk: int | None
) -> tuple[Memory, Array]:
    """Run a packed sequence in dual form (KERNEL-1 to KERNEL-5).

    The states before it are written over the unit vectors, as if each had been a key: M_0 = M_0 I.

    Args:
        chunk: accepted as in every form; tokens are taken one by one.

    Returns:
        memory after the sequence, y (..., T, d_out).
    """
    sequence = sequence.whole()
    d_phi = sequence.keys.shape[-1]
    units = ops.tril(ops.triu(ops.ones_like(memory.M, shape=(*memory.M.shape[:-2], d_phi, d_phi))))
    Phi = ops.concatenate([units, sequence.keys], axis=-2)
    momenta = (
        None
        if memory.momenta is None
        else tuple(memory.momenta[..., i, :, :] for i in range(sequence.window - 1))
    )
    before = Coefficients(
        Phi, memory.M, memory.S, memory.reference, residuals=memory.residuals, momenta=momenta
    )
    convention: Convention = config.convention
    settings = convention.newton_schulz_settings if convention.has_newton_schulz else None
    kernels = Kernels(
        inner(Phi, Phi), inner(Phi, sequence.queries), d_phi, d_phi, settings, convention.read
    )
    after, y = evaluated(sequence, before, kernels)

    def matrix(coefficients: Array) -> Array:
        return coefficients @ Phi[..., : coefficients.shape[-1], :]

    memory_after = Memory(
        M=matrix(after.M),
        S=None if memory.S is None else matrix(after.S),
        reference=None if after.reference is None else matrix(after.reference),
        residuals=after.residuals,
        momenta=None
        if after.momenta is None
        else ops.stack([matrix(each) for each in after.momenta], axis=-3),
    )
    return memory_after, y


# -- any kernel ------------------------------------------------------------------------------------


def attend(
    kappa: Kernel,
    k: Array,
    v: Array,
    q: Array,
    retain: Array = None,
    momentum: Array = None,
    step_size: Array = None,
    step_size_memory: Array = None,
    window_weights: Array = None,
    *,
    before: Coefficients | None = None,
    active: Any = None,
    reference: str = "running",
    span: int | None = None,
    decay: str = "after_error",
    window_at_boundary: str = "recompute",
    order: str = "window_then_momentum",
    read: str = "after",
    newton_schulz: NewtonSchulz | None = None,
) -> tuple[Coefficients, Array]:
    """The Omega rule for any kernel, of finitely or infinitely many features.

        M_t = B_t Phi,    y_t = B_t kappa(keys, q_t)

    Args:
        kappa: (..., m, d), (..., n, d) -> (..., m, n) in tape ops: symmetric, without negative
            eigenvalues.
        k (..., T, d), v (..., T, d_out), q (..., T, d): keys, values and queries, as the kernel
            takes them.
        retain, momentum (..., T) or (..., T, d_out): r, the factor of M, 1 when not given; m, 0
            when not given.
        step_size, step_size_memory: a, the factor of the gradient, and b, the factor of the update,
            1 when not given (OMEGA-7).
        window_weights (..., T, c): weight at t of token t - j, a gradient scale in it; when not
            given, one token of weight 1.
        before: the coefficients of an earlier call, or any over earlier keys; None for M_0 = S_0 =
            0 and no key.
        active (T,): False where M and S stay.
        reference, span, decay, window_at_boundary, order, read: axes of the convention, spans
            counted from the first token.
        newton_schulz: its settings; None for none. Its scale `sqrt` takes d_phi to be infinite.

    Returns:
        coefficients over all keys, from which a later call continues; y (..., T, d_out).

    Raises:
        ValueError: arrays that do not fit each other or `before`, an axis without that value, a
            span that is missing, or a kernel whose result is not finite or has another shape.

    Source: KERNEL-1 to KERNEL-6, KERNEL-14; OMEGA-2 to OMEGA-13 with kappa(k, k') in place of
    <phi(k), phi(k')>.
    """
    axes = {
        "reference": reference,
        "decay": decay,
        "window_at_boundary": window_at_boundary,
        "order": order,
        "read": read,
    }
    gates = {
        "retain": retain,
        "momentum": momentum,
        "step_size": step_size,
        "step_size_memory": step_size_memory,
    }
    if reference == "surrogate":
        raise ValueError("reference: surrogate; pass -surrogate as v under reference zero")
    convention = resolve({**axes, "newton_schulz": newton_schulz or "none"}, rule=omega.RULE.name)
    try:
        tokens = Tokens(k=k, v=v, q=q, **gates, window_weights=window_weights, active=active)
        window = 1 if window_weights is None else window_weights.shape[-1]
        config = omega.Config(
            d_in=k.shape[-1], d_out=v.shape[-1], window=window, span=span, convention=convention
        )
    except ValidationError as error:
        raise ValueError(first_problem(error)) from None
    start = _start(config, tokens, before)
    sequence = _sequence(config, tokens, start)
    keys = ops.concatenate([start.keys, tokens.k], axis=-2)
    kernels = Kernels(
        _kernel(kappa, keys, keys), _kernel(kappa, keys, tokens.q), math.inf, 0, newton_schulz, read
    )
    after, y = evaluated(sequence, start, kernels)
    return _continuing(config, sequence, after._replace(keys=keys)), y


def _kernel(kappa: Kernel, x: Array, y: Array) -> Array:
    """kappa(x, y), after a check of its shape and that it is finite."""
    kernel_matrix, expected = kappa(x, y), (*x.shape[:-1], y.shape[-2])
    shape = getattr(kernel_matrix, "shape", type(kernel_matrix).__name__)
    if shape != expected:
        raise ValueError(
            f"kappa: {shape} for arguments {x.shape} and {y.shape}, expected {expected}"
        )
    check_array("kappa", kernel_matrix, Dims("..."))
    return kernel_matrix


def _start(config: omega.Config, tokens: Tokens, before: Coefficients | None) -> Coefficients:
    """The coefficients before the tokens, completed and checked against them."""
    *lead, _, d = tokens.k.shape
    nothing = ops.zeros_like(tokens.v, shape=(*lead, 0, config.d_out))
    entering = before or Coefficients(
        ops.zeros_like(tokens.k, shape=(*lead, 0, d)), ops.transpose(nothing)
    )
    convention = config.convention
    first = convention.order == "momentum_then_window"
    residuals = None
    if stores_residuals(config):
        residuals = nothing if entering.values is None else entering.residuals
        if residuals is None:
            raise ValueError(
                "before.residuals: missing, window_at_boundary carry needs one for each of "
                "before.values"
            )
    start = entering._replace(
        values=nothing if entering.values is None else entering.values,
        residuals=residuals,
        momenta=(entering.momenta or ()) if first else None,
    )
    sizes: dict[str, Any] = {"...": (tuple(lead), "k"), "d": (d, "k"), "d_out": (config.d_out, "v")}
    axes = {
        "keys": "n d",
        "M": "d_out n",
        "S": "d_out n",
        "reference": "d_out n",
        "values": "h d_out",
        "residuals": "h d_out",
    }
    arrays = {name: (getattr(start, name), dims) for name, dims in axes.items()}
    arrays |= {f"momenta[{i}]": (each, "d_out n") for i, each in enumerate(start.momenta or ())}
    for name, (value, dims) in arrays.items():
        if value is not None:
            check_array(f"before.{name}", value, Dims("..."))
            bind_dims(f"before.{name}", value.shape, f"... {dims}", sizes)
    if sizes["h"][0] > sizes["n"][0]:
        raise ValueError(f"before.values: {sizes['h'][0]} rows, but {sizes['n'][0]} keys")
    return start


def _sequence(config: omega.Config, tokens: Tokens, start: Coefficients) -> Recurrence:
    """The tokens as a recurrence after the window that `start` holds."""
    convention = config.convention
    *lead, T, _ = tokens.k.shape
    one = ops.ones_like(tokens.k, shape=(*lead, T, 1))

    def gate(value: Array, absent: Array = one) -> Array:
        return (
            absent
            if value is None
            else ops.expand_dims(value, -1)
            if value.shape == one.shape[:-1]
            else value
        )

    position = start.position + np.arange(T)
    if convention.reference != "call_start" and config.span is not None:
        position = position % config.span
    spans = convention.frozen_reference or convention.read == "chunk_start"
    refresh = (position == 0) & spans & (convention.reference != "call_start")
    refresh[0] |= spans and start.reference is None
    weights = one if tokens.window_weights is None else tokens.window_weights
    if (
        convention.window_at_boundary == "cut"
        and convention.frozen_reference
        and start.momenta is None
    ):
        weights = ops.where(np.arange(config.window) <= position[:, None], weights, 0.0)
    return Recurrence(
        keys=tokens.k,
        values=ops.concatenate([start.values, tokens.v], axis=-2),
        queries=tokens.q,
        retain=gate(tokens.retain),
        momentum=gate(tokens.momentum, absent=ops.zeros_like(one)),
        rate_in=gate(tokens.step_size),
        rate_out=gate(tokens.step_size_memory),
        weights=weights,
        scale=1.0,
        active=np.ones(T, bool) if tokens.active is None else np.asarray(tokens.active),
        position=position,
        refresh=refresh,
        reference="frozen" if convention.frozen_reference else convention.reference,
        before_error=convention.decay == "before_error",
    )


def _continuing(config: omega.Config, sequence: Recurrence, after: Coefficients) -> Coefficients:
    """The coefficients for a later call: of all keys, with the tokens its window can hold."""
    n, h = after.keys.shape[-2], config.window - 1

    def over_all(coefficients: Array) -> Array:
        missing = (*coefficients.shape[:-1], n - coefficients.shape[-1])
        return ops.concatenate([coefficients, ops.zeros_like(coefficients, shape=missing)], axis=-1)

    def last(rows: Array) -> Array:
        return rows[..., max(0, rows.shape[-2] - h) :, :]

    position = int(sequence.position[-1]) + 1
    if config.span is not None and config.convention.reference != "call_start":
        position %= config.span
    return after._replace(
        M=over_all(after.M),
        S=over_all(after.S),
        reference=None if after.reference is None else over_all(after.reference),
        values=last(sequence.values),
        residuals=None if after.residuals is None else last(after.residuals),
        momenta=None
        if after.momenta is None
        else tuple(over_all(each) for each in after.momenta[max(0, len(after.momenta) - h) :]),
        position=position,
    )
