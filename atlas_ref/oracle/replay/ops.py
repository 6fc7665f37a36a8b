"""The ops of a case in the order of the loop, each with its inputs.

Specified in specs/replay.md (REPLAY-2, REPLAY-3).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.replay.sequence import PROJECTED, traced_of
from atlas_ref.parts.newton_schulz import coefficient_table
from atlas_ref.rules import FAMILY

#: Ops whose last two axes are a matrix, which lies in the case's layout.
MATRICES = ("gradient", "S", "P", "U", "M")


class Op(NamedTuple):
    """One quantity of the loop.

    Attributes:
        name: S for trace/S.
        inputs: ops, `in/...` tensors, and the ops of earlier tokens ("M[t-1]").
        clause: where it is defined.
    """

    name: str
    inputs: tuple[str, ...]
    clause: str


def is_matrix(name: str) -> bool:
    """Whether an op is a matrix like M, which lies in the case's layout."""
    return name in MATRICES or is_iterate(name)


def is_iterate(name: str) -> bool:
    """Whether an op is one of X0, X1, ..."""
    return name[:1] == "X" and name[1:].isdigit()


def ops_of(case: Case) -> list[Op]:
    """The ops of a case in the order of the loop (REPLAY-2, REPLAY-3)."""
    return [Op(*each) for each in traced_of(case).ops(case)]


def of_newton_schulz(case: Case) -> list[Op]:
    """The ops of Newton-Schulz alone: every iterate, and the result."""
    settings, source = case.convention.newton_schulz_settings, ("in/G",)
    return [*_iterate_ops(settings, source), _image_op("X", settings, source)]


def of_feature_map(case: Case) -> list[Op]:
    """The one op of a feature map alone."""
    return [Op("phi", tuple(name for name in case.inputs if name != "in/phi_bar"), "PHI-1")]


def of_memory(case: Case) -> list[Op]:
    """The ops of one memory: projections, features, the write, the read."""
    sources = _Inputs(case)
    projected = _projection_ops(case, sources) if sources.token else []
    if learns(case):
        projected.append(_surrogate_op(case, sources))
    mapped = Op("phi_k", (sources("k"), *sources.phi), "CONV-35")
    return [*projected, mapped, *_write_ops(case, sources), *_read_ops(case, sources)]


def given_ops(case: Case) -> set[str]:
    """Ops whose value is a tensor of the case as it is."""
    return traced_of(case).given(case)


def feature_ops(case: Case) -> set[str]:
    """Of one memory the features, without norm and map."""
    c = case.convention
    if case.header.level == "token" or case.header.feature_map.kind != "identity":
        return set()
    plain = {"phi_k": c.k_norm == "none", "phi_q": c.q_norm == "none" and c.query_scale == 1.0}
    return {name for name, same in plain.items() if same}


def tokens_of(case: Case, name: str) -> tuple[int, ...] | None:
    """Tokens along the axis of an op's tensor; None for all of them (DEEPCASE-12)."""
    return traced_of(case).tokens(case, name)


class _Inputs:
    """The source of a quantity: an op at level token, else a tensor of the case."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.token = case.header.level == "token"
        self.phi = tuple(
            name for name in case.inputs if name.startswith("in/phi/") or name == "in/proj"
        )

    def __call__(self, name: str) -> str:
        if self.token:
            return name
        return f"in/log_{name}" if f"in/log_{name}" in self.case.inputs else f"in/{name}"

    def some(self, *names: str) -> tuple[str, ...]:
        """The sources of those names that the case has."""
        if self.token:
            params = self.case.inputs
            return tuple(
                n
                for n in names
                if f"in/param/W_{n}" in params
                or (n.startswith("window_") and _has_window(self.case, n))
            )
        return tuple(self(name) for name in names if self(name) in self.case.inputs)


def _has_window(case: Case, name: str) -> bool:
    from_kind = {"window_gate": "gate", "window_weights": "else"}[name]
    if not FAMILY[case.header.rule].has_window:
        return False
    kinds = _kinds(case.header.window_weights)
    return "gate" in kinds if from_kind == "gate" else any(kind != "gate" for kind in kinds)


def _kinds(weights: Any) -> list[str]:
    if weights is None:
        return ["uniform"]
    return (
        [kind for each in weights.of for kind in _kinds(each)]
        if weights.kind == "product"
        else [weights.kind]
    )


def _projection_ops(case: Case, sources: _Inputs) -> list[Op]:
    projections = [
        Op(name, ("in/x", f"in/param/W_{name.upper()}"), "CONV-28") for name in ("k", "v", "q")
    ]
    for name in sources.some(*PROJECTED[3:]):
        if name.startswith("window_"):
            parameters = tuple(
                key
                for key in case.inputs
                if key.startswith("in/param/window_")
                and ("logits" in key) == (name[7:] == "weights")
            )
            projections.append(
                Op(name, (*(("in/x",) if name == "window_gate" else ()), *parameters), "WINDOW-2")
            )
        else:
            projections.append(
                Op(name, ("k", "v", f"in/param/W_{name}", f"in/param/b_{name}"), "GATES-7")
            )
    return projections


def learns(case: Case) -> bool:
    """Whether a learned vector stands for the residual (SURROGATE-3)."""
    return FAMILY[case.header.rule].has_error and case.convention.reference == "surrogate"


def _surrogate_op(case: Case, sources: _Inputs) -> Op:
    """The learned residual, from the pair of the memory or from tokens (SURROGATE-2)."""
    names = tuple(name for name in case.inputs if name.endswith("_surrogate"))
    pair = ("in/x",) if len(names) > 1 else (sources("k"), sources("v"))
    return Op("surrogate", (*pair, *names), "SURROGATE-1")


def _write_ops(case: Case, sources: _Inputs) -> list[Op]:
    """The ops of the write, from the residual to the memory."""
    rule, convention = FAMILY[case.header.rule], case.convention
    clause = rule.clauses
    retain = sources.some("retain")
    if not (rule.has_error or rule.has_momentum):
        return [Op("M", ("M[t-1]", "phi_k", sources("v"), *retain), clause["M"])]
    first_momentum = rule.has_window and convention.order == "momentum_then_window"
    target = "surrogate" if learns(case) else sources("v")
    pairs = (
        ("phi_k", target)
        if case.header.window == 1 or first_momentum
        else ("phi_k[t-j]", f"{target}[t-j]")
    )
    reference = (
        {"running": ("M[t-1]",), "zero": (), "surrogate": ()}.get(
            convention.reference, ("M[start]",)
        )
        if rule.has_error
        else ()
    )
    decays = retain if convention.decay == "before_error" and reference else ()
    carried = (
        ("residual[t-j]",)
        if convention.window_at_boundary == "carry"
        and convention.frozen_reference
        and case.header.window > 1
        else ()
    )
    weights = sources.some("window_weights", "window_gate") if rule.has_window else ()
    inner, outer = _rate_inputs(case, sources)
    listed = [
        Op(
            "residual",
            (*reference, *pairs, *decays, *(() if first_momentum else carried)),
            clause["residual"],
        ),
        Op(
            "gradient",
            ("residual", pairs[0], *(() if first_momentum else weights)),
            clause["gradient"],
        ),
    ]
    if not rule.has_momentum:
        return [*listed, Op("M", ("M[t-1]", "gradient", *inner, *outer, *retain), clause["M"])]
    momentum = sources.some("momentum")
    listed.append(
        Op("S", ("gradient", *(("S[t-1]", *momentum) if momentum else ()), *inner), clause["S"])
    )
    momenta = "S"
    if first_momentum:
        momenta = "P"
        listed.append(Op("P", ("S[t-j]", *weights), clause["P"]))
    if not rule.has_newton_schulz:
        return [*listed, Op("M", ("M[t-1]", "S", *outer, *retain), clause["M"])]
    if convention.has_newton_schulz and convention.argument != "accumulated":
        nesterov = (
            (momenta, "gradient", *momentum) if convention.argument == "nesterov" else (momenta,)
        )
        settings = convention.newton_schulz_settings
        listed += [*_iterate_ops(settings, nesterov), _image_op("U", settings, nesterov)]
    else:
        listed.append(Op("U", (momenta,), clause["U"]))
    return [*listed, Op("M", ("M[t-1]", "U", *outer, *retain), clause["M"])]


def _rate_inputs(case: Case, sources: _Inputs) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Tensors of a_t and of b_t (OMEGA-7)."""
    rate, h = case.convention.rate, sources("step_size")
    inner = (h,) if rate in ("momentum", "both", "split") else ()
    outer = (
        (h,)
        if rate in ("memory", "both")
        else (sources("step_size_memory"),)
        if rate == "split"
        else ()
    )
    return inner, outer


def _iterate_ops(settings: Any, argument: tuple[str, ...]) -> list[Op]:
    later = [Op(f"X{i + 1}", (f"X{i}",), "NS-1") for i in range(len(coefficient_table(settings)))]
    return [Op("X0", argument, "NS-6"), *later]


def _image_op(name: str, settings: Any, argument: tuple[str, ...]) -> Op:
    """The result of Newton-Schulz, which reads the argument again for its scale or guard."""
    again = argument if settings.scale == "norm" or settings.guard == "return" else ()
    return Op(name, (f"X{len(coefficient_table(settings))}", *again), "NS-9")


def _read_ops(case: Case, sources: _Inputs) -> list[Op]:
    """The query's features and the read.

    Where memories are accumulated, Newton-Schulz belongs to the read (OMEGA-9).
    """
    convention = case.convention
    memory = (
        {"after": "M", "before": "M[t-1]", "chunk_start": "M[start]", "call_end": "M[end]"}[
            convention.read
        ],
    )
    query = Op("phi_q", (sources("q"), *sources.phi), "CONV-35")
    clause = FAMILY[case.header.rule].clauses["y"]
    if convention.argument != "accumulated":
        return [query, Op("y", (*memory, "phi_q"), clause)]
    image = _image_op("y", convention.newton_schulz_settings, memory)
    return [
        *_iterate_ops(convention.newton_schulz_settings, memory),
        query,
        Op("y", (*image.inputs, "phi_q"), "OMEGA-9"),
    ]
