"""Evaluate a case: what the spec says its results are, and their gradients.

Level token first projects; then both levels run the rule over the sequence. Specified in specs/case.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from pydantic import ValidationError

from atlas_ref import backend, feature_maps
from atlas_ref.gates import GateParams, GateSet
from atlas_ref.newton_schulz import newton_schulz
from atlas_ref.oracle import levels
from atlas_ref.oracle.case import Case, CaseError, differentiable, make, named
from atlas_ref.oracle.header import BLOCK
from atlas_ref.oracle.inputs import DTYPES, STORED, check_size, converted, rounded
from atlas_ref.oracle.tensors import COTANGENTS, LOGARITHMS, bare
from atlas_ref.parallel import run as parallel
from atlas_ref.parallel.support import require
from atlas_ref.rules import delta, hebbian, omega, run, titans_lmm
from atlas_ref.types import Array, Frozen
from tape import ops, vjp

MODULES: dict[str, Any] = {"omega": omega, "titans_lmm": titans_lmm, "delta": delta, "hebbian": hebbian}
GATE_NAMES = ("retain", "momentum", "step_size")

#: Results that a cotangent may weigh, and its name.
WEIGHED = {"out/y": "in/y_bar", "out/M": "in/M_bar", "out/S": "in/S_bar", "out/X": "in/X_bar", "out/phi": "in/phi_bar"}


class Results(Frozen):
    """What a case evaluates to.

    Attributes:
        tensors: `out/...` and, when asked for, `grad/...`.
        header: the case's header as a JSON object, with the phase that a continuation starts at.
        void: settings that cannot matter in this case, each with the reason.
    """

    tensors: dict[str, Any]
    header: dict[str, Any]
    void: dict[str, str]

    @property
    def not_finite(self) -> list[str]:
        """Results that overflowed, where the rule itself grows beyond float64."""
        return [name for name, value in self.tensors.items() if not np.isfinite(value).all()]


#: Where a call ends in its span: None without spans; of a block, that of each level.
Position = int | None | list[int | None]


class Unsupported(CaseError):
    """A rule that the format reserves and this version does not compute."""


def evaluate(
    case: Case,
    *,
    grad: bool = False,
    dtype: str = "float64",
    convention: str | Mapping[str, Any] | None = None,
    form: str = "sequential",
    chunk: int | None = None,
) -> Results:
    """Results of a case, and gradients of <y, y_bar> + <M, M_bar> + <S, S_bar> by every floating input (CASE-12, CASE-14).

    Computed in the backend in use, from inputs that are copied there; the results are NumPy's (BACKEND-8).

    Args:
        grad: also compute `grad/...`; needs in/y_bar (in/X_bar, in/phi_bar).
        dtype: arithmetic: float64, which is the truth, or float32; under bfloat16 and float16 inputs and results are rounded to
            it around arithmetic in float32 (CASE-22).
        convention: evaluate under this convention instead of the case's.
        form: compute in this form; that of the case says how its results were made, and the truth is sequential (CASE-29).
        chunk: tokens that the form takes at once; never changes results.

    Raises:
        CaseError: no cotangent, an unknown dtype or convention, a form that does not compute this case.
        Unsupported: a reserved rule.
    """
    if not case.supported:
        raise Unsupported(f"{case.name}: rule {case.header.rule}: not yet supported")
    if dtype not in STORED:
        raise CaseError(f"{case.name}: dtype {dtype!r} is not available; {', '.join(STORED)} are")
    if convention is not None:
        case = under(case, convention)
    narrow = dtype not in DTYPES
    case = rounded(case, dtype) if narrow else case
    _check_form(case, form, chunk)
    check_size(case)
    inputs = backend.device(converted(case, "float32" if narrow else dtype))
    names = differentiable(case) if grad else []
    bars = {weighed(name): inputs[name] for name in inputs if bare(name) in COTANGENTS}
    if grad and not bars.keys() & {"out/y", "out/X", "out/phi"}:
        raise CaseError(f"{case.name}: {_first_cotangent(case)}: missing, gradients need it")
    after: list[Position] = []

    def forward(chosen: dict[str, Array]) -> dict[str, Array]:
        outputs, position = results({**inputs, **chosen}, case, form=form, chunk=chunk)
        after[:] = [position]
        return outputs

    try:
        with np.errstate(all="ignore"):  # what overflows shows in the results
            tensors = _with_gradients(forward, inputs, names, bars) if grad else forward({})
    except ValidationError as error:  # a sequence computed from x is not finite
        raise named(case.name, error) from None
    except MemoryError as error:
        raise CaseError(f"{case.name}: needs more memory than there is: {error}") from None
    header = _header_out(case, after[0])
    if form != "sequential":
        header |= {"form": form} | ({} if chunk is None else {"chunk": chunk})
    kind = STORED[dtype] if narrow else None
    return Results.trusted(tensors={name: _settled(value, kind) for name, value in tensors.items()}, header=header, void=case.void)


def _with_gradients(
    forward: Callable[[dict[str, Array]], dict[str, Array]], inputs: Mapping[str, Array], names: list[str], bars: Mapping[str, Array]
) -> dict[str, Array]:
    outputs, pullback = vjp(forward, {name: inputs[name] for name in names})
    seeds = {name: bars[name] if name in bars else np.zeros_like(value) for name, value in outputs.items()}
    (gradients,) = pullback(seeds)
    return {**outputs} | {"grad/" + name.removeprefix("in/"): g for name, g in gradients.items()}


def _settled(value: Array, kind: Any) -> np.ndarray[Any, Any]:
    with np.errstate(over="ignore"):
        found = backend.of(value).to_host(value)
        array = found if kind is None else found.astype(kind)
    array = array.view()
    array.flags.writeable = False
    return array


def under(case: Case, convention: str | Mapping[str, Any]) -> Case:
    """The same inputs under another convention: a preset, or axes that change the case's own.

    Raises:
        CaseError: the convention does not exist, or the inputs do not fit it.
    """
    case.require_one_memory("another convention")
    own = case.header.convention
    base = {"preset": own} if isinstance(own, str) else dict(own)
    if isinstance(convention, str) or "preset" in convention:
        base = {}
    changes = {"preset": convention} if isinstance(convention, str) else dict(convention)
    header = case.header.plain()
    header["convention"] = _merged(base, changes)
    return make(header, {**case.inputs, **case.recorded}, name=case.name)


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = {**base, **changes}
    if isinstance(base.get("newton_schulz"), Mapping) and isinstance(changes.get("newton_schulz"), Mapping):
        merged["newton_schulz"] = {**base["newton_schulz"], **changes["newton_schulz"]}
    return merged


def weighed(cotangent: str) -> str:
    """The result that a cotangent weighs: `out/M` of `in/M_bar`, `out/level1/M` of `in/level1/M_bar`."""
    return "out/" + cotangent.removeprefix("in/").removesuffix("_bar")


def _header_out(case: Case, after: Position) -> dict[str, Any]:
    """The header that a continuation starts from: where spans and schedules then stand (CASE-13, CASE-30)."""
    header = case.header.plain()
    if isinstance(after, list):
        header["levels"] = [
            level if position is None else {**level, "phase": position} for level, position in zip(header["levels"], after, strict=True)
        ]
    elif after is not None:
        header["phase"] = after
    if case.header.schedule is not None:
        tokens = case.inputs["in/x" if case.header.level == "token" else "in/k"].shape[-2]
        header["schedule"] = {**header["schedule"], "first_step": case.header.schedule.first_step + tokens}
    return header


def _first_cotangent(case: Case) -> str:
    return {"newton_schulz": "in/X_bar", "feature_map": "in/phi_bar"}.get(case.header.rule, "in/y_bar")


def _check_form(case: Case, form: str, chunk: int | None) -> None:
    """Refuse a form that does not compute this case (CHUNK-20)."""
    if case.header.rule == BLOCK:
        for number, part in enumerate(levels.parts(case)):
            _check_form(part.replaced(name=f"{case.name}: level{number}"), form, chunk)
        return
    if case.header.rule not in MODULES:
        if form != "sequential" or chunk is not None:
            raise CaseError(f"{case.name}: form: the rule {case.header.rule} has no sequence")
        return
    try:
        require(case.header.rule, case.convention, form, chunk)
    except ValueError as error:
        raise CaseError(f"{case.name}: {error}") from None


def results(
    inputs: Mapping[str, Array], case: Case, *, form: str = "sequential", chunk: int | None = None
) -> tuple[dict[str, Array], Position]:
    """`out/...` of a case from its inputs (arrays or tape variables), and the position in the span after it (CASE-12, CASE-13)."""
    rule = case.header.rule
    if rule == BLOCK:
        positions: list[int | None] = []

        def one(given: Mapping[str, Array], part: Case, number: int) -> dict[str, Array]:
            out, position = results(given, part, form=form, chunk=chunk)
            positions.append(position if isinstance(position, int) else None)
            return out

        return levels.results(inputs, case, one), positions
    if rule == "newton_schulz":
        return {"out/X": newton_schulz(inputs["in/G"], case.convention.newton_schulz_settings)}, None
    if rule == "feature_map":
        return {"out/phi": feature_maps.apply(case.header.feature_map, _phi(inputs), inputs["in/x"])}, None
    module = MODULES[rule]
    config, tokens = _sequence(module, inputs, case)
    state = _initial_state(module, config, inputs, case, tokens)
    state, y = parallel.run(module.RULE, config, tokens, state, form=form, chunk=chunk, phi=_phi(inputs))
    return _outputs(config, inputs, case, tokens, state, y)


def _phi(inputs: Mapping[str, Array]) -> dict[str, Array]:
    named = {name.removeprefix("in/phi/"): value for name, value in inputs.items() if name.startswith("in/phi/")}
    return named | ({"proj": inputs["in/proj"]} if "in/proj" in inputs else {})


def _masks(inputs: Mapping[str, Array]) -> dict[str, Array]:
    return {name: inputs[f"in/{name}"].astype(bool) for name in ("active", "reset") if f"in/{name}" in inputs}


def _sequence(module: Any, inputs: Mapping[str, Array], case: Case) -> tuple[Any, run.Tokens]:
    """The rule's configuration and the projected sequence, at either level (CONV-36)."""
    token = case.header.level == "token"
    k, v = ("in/param/W_K", "in/param/W_V") if token else ("in/k", "in/v")
    sizes: dict[str, Any] = {"d_in": inputs[k].shape[-2 if token else -1], "d_out": inputs[v].shape[-2 if token else -1]}
    header = case.header
    if module is omega:
        sizes |= {"window": header.window, "feature_map": header.feature_map}
        if header.feature_map.kind in ("linear", "random_fourier", "sketch"):
            sizes["features"] = feature_maps.d_phi(header.feature_map, sizes["d_in"], _phi(inputs))
        if header.window_weights is not None:
            sizes["window_weights"] = header.window_weights
    if token:
        sizes |= {"heads": inputs["in/param/W_K"].shape[0], "d_model": inputs["in/x"].shape[-1]}
    config = module.Config(**sizes, span=header.span, convention=case.convention)
    if not token:
        names = ("k", "v", "q", "retain", "momentum", "step_size", "step_size_memory", "window_weights", "window_gate")
        given = {name: inputs[f"in/{name}"] for name in names if f"in/{name}" in inputs}
        logs = {name.removeprefix("in/"): ops.exp(inputs[log]) for log, name in LOGARITHMS.items() if log in inputs}
        return config, run.Tokens(**given, **logs, **_masks(inputs))
    gates = GateSet(
        **{
            name: GateParams(W=inputs[f"in/param/W_{name}"], b=inputs[f"in/param/b_{name}"])
            for name in GATE_NAMES
            if f"in/param/W_{name}" in inputs
        }
    )
    projections = {name: inputs[f"in/param/{name}"] for name in ("W_K", "W_V", "W_Q")}
    extra: dict[str, Any] = {}
    if module is omega:
        window = {name.removeprefix("in/param/"): value for name, value in inputs.items() if name.startswith("in/param/window_")}
        extra = {"phi": _phi(inputs), "window": window}
    params = module.Params(**projections, gates=gates, **extra)
    return config, run.Tokens(**run.project(config, params, inputs["in/x"]), **_masks(inputs))


def _plain_layout(x: Array, case: Case) -> Array:
    """To and from the layout of the file: transposition is its own inverse (CONV-25)."""
    return ops.transpose(x) if case.convention.layout == "transposed" else x


def _initial_state(module: Any, config: Any, inputs: Mapping[str, Array], case: Case, tokens: run.Tokens) -> Any:
    """The state before the first token, with what the case gives (CONV-34)."""
    leading = tokens.k.shape[:-2]
    d_phi = config.d_phi if module is omega else config.d_in
    M = ops.zeros_like(tokens.k, shape=(*leading, config.d_out, d_phi))
    if "in/M0" in inputs:
        M = _plain_layout(inputs["in/M0"], case)
    given = {"S": _plain_layout(inputs["in/S0"], case)} if "in/S0" in inputs else {}
    state = module.start(config, leading, M=M, **given)
    if "in/M_ref" in inputs:
        state = state.replaced(reference=_plain_layout(inputs["in/M_ref"], case))
    if case.header.phase is not None:
        state = state.replaced(position=case.header.phase)
    return _with_window(config, inputs, case, tokens, state) if module is omega else state


def _with_window(config: Any, inputs: Mapping[str, Array], case: Case, tokens: run.Tokens, state: Any) -> Any:
    """Omega's state with the initial window contents as its newest rows (CONV-34, WINDOW-15)."""

    def newest(empty: Array, rows: Array, axis: int) -> Array:
        n = rows.shape[axis]
        if n == 0:
            return empty
        key = (..., slice(n, None), *[slice(None)] * (-axis - 1))
        return ops.concatenate([empty[key], rows], axis=axis)

    if "in/window_k" in inputs:
        keys = run.mapped(config, _phi(inputs), inputs["in/window_k"], config.convention.k_norm)
        n = keys.shape[-2]
        state = state.replaced(keys=newest(state.keys, keys, -2), values=newest(state.values, inputs["in/window_v"], -2), filled=n)
        if state.residuals is not None:
            state = state.replaced(residuals=newest(state.residuals, inputs["in/window_residual"], -2))
        if "in/window_gate_before" in inputs:
            before = inputs["in/window_gate_before"]
            empty = ops.zeros_like(before, shape=(*before.shape[:-1], config.window))
            state = state.replaced(token_gates=newest(empty, before, -1))
    if "in/window_momentum" in inputs:
        momenta = newest(state.momenta, _plain_layout(inputs["in/window_momentum"], case), -3)
        state = state.replaced(momenta=momenta)
        if tokens.momentum is None:
            state = state.replaced(S=momenta[..., -1, :, :])  # an inactive first token repeats it
    return state


def _outputs(
    config: Any, inputs: Mapping[str, Array], case: Case, tokens: run.Tokens, state: Any, y: Array
) -> tuple[dict[str, Array], int | None]:
    """Results, and what lets a run continue: OUT of one call feeds the next (CONV-37)."""
    out: dict[str, Array] = {"out/y": y, "out/M": _plain_layout(state.M, case)}
    if tokens.momentum is not None:
        out["out/S"] = _plain_layout(state.S, case)
    convention = config.convention
    resumes = convention.frozen_reference or convention.read == "chunk_start"
    if resumes:
        out["out/M_ref"] = _plain_layout(state.reference, case)
    if case.header.rule == "omega" and case.header.window > 1:
        out |= _window_outputs(config, inputs, case, tokens, state)
    return out, state.position if resumes else None


def _window_outputs(config: Any, inputs: Mapping[str, Array], case: Case, tokens: run.Tokens, state: Any) -> dict[str, Array]:
    """What a call that goes on needs of the window (CONV-37, WINDOW-25)."""
    n = min(state.filled, config.window - 1)
    starts = [] if tokens.reset is None else np.nonzero(tokens.reset)[0].tolist()
    first = starts[-1] if starts else 0  # tokens of the last packed sequence alone remain

    def tail(before: str, rows: Array) -> Array:
        earlier = [inputs[before]] if before in inputs and not starts else []
        return ops.concatenate([*earlier, rows[..., first:, :]], axis=-2)[..., -n:, :]

    out = {"out/window_k": tail("in/window_k", tokens.k), "out/window_v": tail("in/window_v", tokens.v)}
    if state.token_gates is not None:
        out["out/window_gate_before"] = state.token_gates[..., -n:]
    if state.residuals is not None:
        out["out/window_residual"] = state.residuals[..., -n:, :]
    if state.momenta is not None:
        given = inputs["in/window_momentum"].shape[-3] if "in/window_momentum" in inputs and not starts else 0
        m = min(given + tokens.k.shape[-2] - first, config.window - 1)
        out["out/window_momentum"] = _plain_layout(state.momenta[..., -m:, :, :], case)
    return out
