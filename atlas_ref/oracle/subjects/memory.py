"""The subject of a memory: a rule over a sequence, at either level.

Level token first projects; then both levels run the rule. Specified in specs/case.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from atlas_ref import forms
from atlas_ref.conventions import Convention
from atlas_ref.forms.support import FORMS
from atlas_ref.layers import projection
from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.gate_axis import check_gate_axis, wide
from atlas_ref.oracle.cases.masks import by_row
from atlas_ref.oracle.cases.tensor_spec import LOGARITHMS, OF_TOKENS, phi_of
from atlas_ref.oracle.family import draw as family_draw
from atlas_ref.oracle.family import family, prepare, steps
from atlas_ref.oracle.family.state import Outputs
from atlas_ref.oracle.subjects import memory_inputs, memory_tensors
from atlas_ref.oracle.subjects.base import facts, hooks
from atlas_ref.oracle.subjects.base.checked import check_form, check_inputs, header_convention
from atlas_ref.oracle.subjects.base.header import check_header
from atlas_ref.oracle.subjects.base.search import CONVENTIONS
from atlas_ref.oracle.subjects.subject import Rounding, Subject, memory_shape
from atlas_ref.parts import feature_maps, surrogate
from atlas_ref.parts.gates import GateParams, GateSet
from atlas_ref.parts.norms import key_of_gates
from atlas_ref.rules import FAMILY, Rule, sequence
from atlas_ref.rules.sequence import Tokens, mapped, target_of
from atlas_ref.types import Array, read_only
from tape import ops

GATE_NAMES = ("retain", "momentum", "step_size")


def subject(rule: Rule) -> Subject:
    """The subject of a rule."""
    return Subject(
        name=rule.name,
        cotangent="in/y_bar",
        clauses=rule.clauses,
        evaluate=_evaluate,
        plain=_plain,
        check_header=partial(check_header, rule=rule, has_feature_map=rule.has_window),
        checked=_check_inputs,
        clause=lambda header, name: facts.clause(rule.clauses, name),
        numbers=facts.numbers,
        needs=facts.needs,
        void=lambda case: facts.void(case, memory_shape(case.header, case.inputs)),
        legal=memory_tensors.legal,
        draw=memory_inputs.draw,
        draw_states=memory_inputs.states,
        drawn=("padded",),
        rule=rule,
        has_axes=True,
        has_newton_schulz=rule.has_newton_schulz,
        has_feature_map=rule.has_window,
        has_gate_axis=True,
        has_convention=True,
        convention=header_convention,
        features=hooks.features,
        missed=hooks.missed,
        check_form=check_form,
        tried_forms=FORMS,
        traced=hooks.MEMORY,
        search=CONVENTIONS,
        drawing=family_draw.of_memory(rule),
        calls=hooks.CALLS,
    )


def _check_inputs(header: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs in order; refuse a convention, a tensor or a gate that the rule does not have."""
    convention = header_convention(header)
    _check_convention(header, convention)
    stated = feature_maps.stated_sizes(header.feature_map)
    sizes = {"c": (header.window, "window"), **stated}
    legal = memory_tensors.legal
    return check_inputs(header, inputs, convention, legal, sizes=sizes, check=check_gate_axis)


def _check_convention(header: Any, convention: Convention) -> None:
    sequence.require_span(convention, header.span)
    if (
        header.phase is not None
        and header.span is not None
        and header.phase >= header.span
        and facts.spans(header, convention)
    ):
        raise ValueError(f"phase: must be below the span {header.span}, found {header.phase}")
    if convention.rate == "split" and header.level == "token":
        raise ValueError("convention: rate split has no second rate at level token")
    if convention.argument == "written_back" and convention.order == "momentum_then_window":
        raise ValueError(
            "convention: newton_schulz.argument written_back is not defined for order "
            "momentum_then_window"
        )


def _evaluate(
    inputs: Mapping[str, Array], case: Case, form: str, chunk: int | None
) -> tuple[dict[str, Array], int | None]:
    rule = FAMILY[case.header.rule]
    config, tokens = sequence_of(rule, inputs, case)
    state = initial_state(rule, config, inputs, tokens, case.header.phase)
    state, y = forms.run(rule, config, tokens, state, form=form, chunk=chunk, phi=phi_of(inputs))
    return _outputs(config, inputs, case, tokens, state, y)


def _plain(inputs: Mapping[str, Array], case: Case, rounding: Rounding) -> dict[str, Array]:
    def of_rows(own: Mapping[str, Array]) -> dict[str, Array]:
        return name_results(case, plain(own, case, rounding))

    return by_row(case, inputs, of_rows)


def plain(
    inputs: Mapping[str, Array],
    case: Case,
    rounding: Rounding,
    *,
    touch: family.Touch | None = None,
    hook: family.Hook | None = None,
) -> Outputs:
    """The rule as a setting of the family, which shares no code with the rules (TOL-3).

    Args:
        touch, hook: of the loop, see `family.run`.
    """
    prepared = prepare.Prepared(case.header, inputs, way=rounding.way, touch=rounding.touch)

    def orthogonalise(S: Array, t: int) -> Array:
        return steps.newton_schulz(
            rounding.way, rounding.argument(S), case.convention.newton_schulz_settings
        )

    structure = prepare.structure(case.convention, case.header)
    return family.run(
        structure,
        prepared.stack([case.convention]),
        orthogonalise,
        way=rounding.way,
        store=rounding.store,
        touch=touch,
        hook=hook,
    )


def name_results(case: Case, outputs: Outputs) -> dict[str, Array]:
    """Results under their names in files, in the case's layout and momentum_sign (CASE-12).

    Results that the case does not have are left out.
    """
    c, h = case.convention, case.header

    def matrix(x: Any, *, signed: bool = False) -> Any:
        x = -x if signed and c.momentum_sign == "minus" else x
        return x.swapaxes(-1, -2) if c.layout == "transposed" else x

    results = {"out/y": outputs.y, "out/M": matrix(outputs.M)}
    momentum = {"in/momentum", "in/log_momentum", "in/param/W_momentum"} & set(case.inputs)
    if momentum and FAMILY[h.rule].has_momentum:
        results["out/S"] = matrix(outputs.S, signed=True)
    if outputs.M_ref is not None:
        results["out/M_ref"] = matrix(outputs.M_ref)
    return results


def _masks(inputs: Mapping[str, Array]) -> dict[str, Array]:
    return {
        name: inputs[f"in/{name}"].astype(bool)
        for name in ("active", "reset")
        if f"in/{name}" in inputs
    }


def sequence_of(rule: Rule, inputs: Mapping[str, Array], case: Case) -> tuple[Any, Tokens]:
    """The rule's configuration and the projected sequence, at either level (CONV-36)."""
    token = case.header.level == "token"
    k, v = ("in/param/W_K", "in/param/W_V") if token else ("in/k", "in/v")
    sizes: dict[str, Any] = {
        "d_in": inputs[k].shape[-2 if token else -1],
        "d_out": inputs[v].shape[-2 if token else -1],
    }
    header = case.header
    if rule.has_window:
        sizes |= {"window": header.window, "feature_map": header.feature_map}
        if header.feature_map.kind in feature_maps.OF_ANY_WIDTH:
            sizes["features"] = feature_maps.d_phi(
                header.feature_map, sizes["d_in"], phi_of(inputs)
            )
        if header.window_weights is not None:
            sizes["window_weights"] = header.window_weights
    if token:
        sizes |= {"heads": inputs["in/param/W_K"].shape[0], "d_model": inputs["in/x"].shape[-1]}
    # of d_out: a file that left it open was refused (GATES-15)
    sizes["per_dimension_gates"] = bool(wide(inputs)) or _computes_wide(inputs)
    config = rule.Config(**sizes, span=header.span, convention=case.convention)
    if not token:
        arrays = {name: inputs[f"in/{name}"] for name in OF_TOKENS if f"in/{name}" in inputs}
        logs = {
            name.removeprefix("in/"): ops.exp(inputs[log])
            for log, name in LOGARITHMS.items()
            if log in inputs
        }
        if rule.learns_residual(config):
            arrays["surrogate"] = surrogate_of(config, inputs, inputs["in/k"], inputs["in/v"])
        return config, Tokens(**arrays, **logs, **_masks(inputs))
    gates = GateSet(
        **{
            name: GateParams(W=inputs[f"in/param/W_{name}"], b=inputs[f"in/param/b_{name}"])
            for name in GATE_NAMES
            if f"in/param/W_{name}" in inputs
        }
    )
    projections = {name: inputs[f"in/param/{name}"] for name in ("W_K", "W_V", "W_Q")}
    window = {
        name.removeprefix("in/param/"): value
        for name, value in inputs.items()
        if name.startswith("in/param/window_")
    }
    params = projection.Params(
        **projections,
        gates=gates,
        phi=phi_of(inputs),
        window=window,
        surrogate=_surrogate_params(inputs),
    )
    return config, Tokens(**projection.project(config, params, inputs["in/x"]), **_masks(inputs))


def _surrogate_params(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Tensors of the learned residual, by name (SURROGATE-4)."""
    return {
        name: inputs[f"in/param/{name}_surrogate"]
        for name in surrogate.TENSORS
        if f"in/param/{name}_surrogate" in inputs
    }


def surrogate_of(config: Any, inputs: Mapping[str, Array], k: Array, v: Array) -> Array:
    """The learned residual of keys and values, or of a pair of its own (SURROGATE-2)."""
    k = key_of_gates(k, config.convention)
    if "in/param/W_K_surrogate" in inputs:
        x = ops.expand_dims(inputs["in/x"], 1)
        k, v = (
            x @ ops.transpose(inputs[f"in/param/{name}_surrogate"]) for name in surrogate.OWN_PAIR
        )
    pair = ops.silu(ops.concatenate([k, v], axis=-1))
    return pair @ ops.transpose(inputs["in/param/W_surrogate"])


def _computes_wide(inputs: Mapping[str, Array]) -> bool:
    """Whether a gate of level token has a weight for each output dimension."""
    biases = (inputs.get(f"in/param/b_{name}") for name in GATE_NAMES)
    return any(bias is not None and bias.shape[-1] > 1 for bias in biases)


def _plain_layout(x: Array, convention: Convention) -> Array:
    """Convert to or from the layout of the file: transposition is its own inverse (CONV-25)."""
    return ops.transpose(x) if convention.layout == "transposed" else x


def initial_state(
    rule: Rule, config: Any, inputs: Mapping[str, Array], tokens: Tokens, phase: int | None
) -> Any:
    """The state before the first token, from the initial tensors of a case (CONV-34).

    Args:
        phase: position of the first token in its span; None where no span goes on.
    """
    leading = tokens.k.shape[:-2]
    M = ops.zeros_like(tokens.k, shape=(*leading, config.d_out, rule.d_phi(config)))
    state = rule.start(config, leading, M=M)
    for name in ("M", "S"):  # checked as the file was read; a call before may have overflowed
        if f"in/{name}0" in inputs:
            state = state.replaced(
                **{name: read_only(_plain_layout(inputs[f"in/{name}0"], config.convention))}
            )
    if "in/M_ref" in inputs:
        state = state.replaced(reference=_plain_layout(inputs["in/M_ref"], config.convention))
    if phase is not None:
        state = state.replaced(position=phase)
    return _with_window(config, inputs, tokens, state) if rule.has_window else state


def _with_window(config: Any, inputs: Mapping[str, Array], tokens: Tokens, state: Any) -> Any:
    """Omega's state with the initial window contents as its newest rows (CONV-34, WINDOW-15)."""

    def newest(empty: Array, rows: Array, axis: int) -> Array:
        n = rows.shape[axis]
        if n == 0:
            return empty
        key = (..., slice(n, None), *[slice(None)] * (-axis - 1))
        return ops.concatenate([empty[key], rows], axis=axis)

    if "in/window_k" in inputs:
        keys = mapped(config, phi_of(inputs), inputs["in/window_k"], config.convention.k_norm)
        n, values = keys.shape[-2], inputs["in/window_v"]
        if config.convention.reference == "surrogate":
            learned = surrogate_of(config, inputs, inputs["in/window_k"], values)
            values = target_of(config, learned)
        state = state.replaced(
            keys=newest(state.keys, keys, -2),
            values=newest(state.values, values, -2),
            filled=n,
        )
        if state.residuals is not None:
            state = state.replaced(
                residuals=newest(state.residuals, inputs["in/window_residual"], -2)
            )
        if "in/window_gate_before" in inputs:
            before = inputs["in/window_gate_before"]
            empty = ops.zeros_like(before, shape=(*before.shape[:-1], config.window))
            state = state.replaced(token_gates=newest(empty, before, -1))
    if "in/window_momentum" in inputs:
        momenta = newest(
            state.momenta, _plain_layout(inputs["in/window_momentum"], config.convention), -3
        )
        state = state.replaced(momenta=momenta)
        if tokens.momentum is None:
            state = state.replaced(S=momenta[..., -1, :, :])  # an inactive first token repeats it
    return state


def _outputs(
    config: Any, inputs: Mapping[str, Array], case: Case, tokens: Tokens, state: Any, y: Array
) -> tuple[dict[str, Array], int | None]:
    """Results, and the tensors that a next call starts from (CONV-37)."""
    out: dict[str, Array] = {"out/y": y, "out/M": _plain_layout(state.M, case.convention)}
    if tokens.momentum is not None:
        out["out/S"] = _plain_layout(state.S, case.convention)
    convention = config.convention
    resumes = convention.frozen_reference or convention.read == "chunk_start"
    if resumes:
        out["out/M_ref"] = _plain_layout(state.reference, case.convention)
    if case.header.window > 1:
        out |= _window_outputs(config, inputs, case, tokens, state)
    return out, state.position if resumes else None


def _window_outputs(
    config: Any, inputs: Mapping[str, Array], case: Case, tokens: Tokens, state: Any
) -> dict[str, Array]:
    """Window contents that a next call starts from (CONV-37, WINDOW-25)."""
    T, most = tokens.k.shape[-2], config.window - 1
    resets = np.zeros((1, T)) if tokens.reset is None else np.reshape(tokens.reset, (-1, T))
    each = {tuple(np.nonzero(row)[0][-1:].tolist()) for row in resets}
    # tokens of the last packed sequence alone remain; rows that start apart have as many of their own
    starts = next(iter(each)) if len(each) == 1 else ()
    first = starts[-1] if starts else 0

    def lengths(before: str, axis: int) -> set[int]:
        earlier = inputs[before].shape[axis] if before in inputs else 0
        return {min(T - last[0] if last else earlier + T, most) for last in each}

    counts = lengths("in/window_k", -2)
    if len(counts) > 1 or len(lengths("in/window_momentum", -3)) > 1:
        return {}  # rows end with windows of other lengths
    n = counts.pop()

    def tail(before: str, rows: Array) -> Array:
        earlier = [inputs[before]] if before in inputs and not starts else []
        return ops.concatenate([*earlier, rows[..., first:, :]], axis=-2)[..., -n:, :]

    out = {
        "out/window_k": tail("in/window_k", tokens.k),
        "out/window_v": tail("in/window_v", tokens.v),
    }
    if state.token_gates is not None:
        out["out/window_gate_before"] = state.token_gates[..., -n:]
    if state.residuals is not None:
        out["out/window_residual"] = state.residuals[..., -n:, :]
    if state.momenta is not None:
        m = lengths("in/window_momentum", -3).pop()
        out["out/window_momentum"] = _plain_layout(state.momenta[..., -m:, :, :], case.convention)
    return out
