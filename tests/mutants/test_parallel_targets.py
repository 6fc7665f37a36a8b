"""Small tests for mutants of the parallel forms: each form against the literal loops, one feature
at a time.

Values are compared with `tests/truth/literal.py`, gradients with its complex step, as in
`test_targets.py`; parts that no case reaches, with loops written here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import atlas_ref
import tape
from atlas_ref.engine import dispatch as engine_dispatch
from atlas_ref.engine import segment
from atlas_ref.engine.associative_scan import affine_scan, scan
from atlas_ref.engine.group import triangular
from atlas_ref.engine.group.layout import Arrays, Layout
from atlas_ref.forms import chunked, chunked_plain
from atlas_ref.oracle.cases.new import Request
from tests.mutants.test_targets import (
    NEAR_EPS,
    NONE,
    SPAN,
    Change,
    Tensors,
    made,
    request,
    resumed,
    scaled,
    signed_weights,
)
from tests.support.close import ANALYTIC, assert_close
from tests.truth.literal import evaluate
from tests.truth.literal_gradient import complex_step

# -- cases -----------------------------------------------------------------------------------------


class Formed(NamedTuple):
    """A case, and the form and chunk that it is computed in; `change` and `more` as in
    `test_targets.CASES`.
    """

    form: str
    chunk: int
    request: Request
    change: Change | None = None
    more: dict[str, Any] = {}


def four_weights(tensors: Tensors) -> Tensors:
    return tensors | {
        "in/window_weights": tensors["in/window_weights"] * np.array([1.0, -0.7, 2.0, 1.3])
    }


def one_gate_of_rows(tensors: Tensors) -> Tensors:
    """Retain with an entry for each row beside gates that have one for all."""
    return tensors | {"in/retain": tensors["in/retain"][..., None] * np.array([1.0, 0.6])}


def stored_momenta(tensors: Tensors) -> Tensors:
    return tensors | {"in/window_momentum": np.random.default_rng(2).standard_normal((1, 2, 2, 3))}


SPLIT: dict[str, Any] = {**NONE, "rate": "split"}
FROZEN: dict[str, Any] = {**SPAN, "rate": "split"}
CARRY: dict[str, Any] = {**FROZEN, "window_at_boundary": "carry"}
MOMENTUM_FIRST = {"order": "momentum_then_window"}
STEPS: dict[str, Any] = {"newton_schulz": {"steps": 2}}
NS_SPAN: dict[str, Any] = {**STEPS, "reference": "chunk_start", "rate": "split"}
BEFORE = {"decay": "before_error"}


def frozen(**fields: Any) -> Request:
    return request(**({"convention": FROZEN, "span": 4, "tokens": 9} | fields))


CASES: dict[str, Formed] = {
    "frozen": Formed("chunkwise", 2, frozen(), signed_weights),
    "frozen-groups": Formed(
        "chunkwise",
        3,
        frozen(convention={**FROZEN, "read": "before"}, span=5, tokens=8),
        signed_weights,
    ),
    "frozen-long": Formed("chunkwise", 2, frozen(window=6, span=6, tokens=7, history=5)),
    "frozen-carry": Formed(
        "chunkwise", 2, frozen(convention=CARRY, window=4, tokens=8, history=3), four_weights
    ),
    "frozen-carry-groups": Formed(
        "chunkwise",
        3,
        frozen(convention=CARRY, heads=2, window=4, span=5, tokens=8, history=3),
        four_weights,
    ),
    "frozen-cut": Formed(
        "chunkwise", 2, frozen(convention={**FROZEN, "window_at_boundary": "cut"}), signed_weights
    ),
    "frozen-titans": Formed(
        "chunkwise",
        3,
        frozen(rule="titans_lmm", convention={"reference": "chunk_start", "rate": "split"}, span=3),
    ),
    "frozen-delta": Formed(
        "chunkwise",
        2,
        frozen(rule="delta", convention={"reference": "chunk_start", "rate": "both"}),
    ),
    "frozen-rows": Formed(
        "chunkwise", 2, frozen(per_dimension_gates=True, tokens=5), signed_weights
    ),
    "frozen-mixed": Formed("chunkwise", 2, frozen(heads=2, tokens=5), one_gate_of_rows),
    "frozen-reads": Formed("chunkwise", 2, frozen(convention={**FROZEN, "read": "chunk_start"})),
    "frozen-call-end": Formed(
        "chunkwise", 2, frozen(convention={**FROZEN, "read": "call_end"}, reset=5)
    ),
    "frozen-before-error": Formed(
        "chunkwise",
        3,
        frozen(convention={**CARRY, **BEFORE}, window=4, span=5, tokens=8, history=3),
    ),
    "frozen-resumed": Formed("chunkwise", 2, frozen(tokens=5), resumed, {"phase": 1}),
    "frozen-carry-resumed": Formed(
        "chunkwise",
        2,
        frozen(convention=CARRY, window=4, tokens=5, history=3),
        resumed,
        {"phase": 1},
    ),
    "frozen-before-error-resumed": Formed(
        "chunkwise",
        2,
        frozen(convention={**CARRY, **BEFORE}, window=4, tokens=5, history=3),
        resumed,
        {"phase": 1},
    ),
    "frozen-pulse": Formed("chunkwise", 2, frozen(pulse=2, convention={**FROZEN, "rate": "both"})),
    "frozen-momentum-first": Formed(
        "chunkwise", 2, frozen(convention={**FROZEN, **MOMENTUM_FIRST}, tokens=6), stored_momenta
    ),
    "zero": Formed("chunkwise", 2, request(convention={**SPLIT, "reference": "zero"})),
    "hebbian": Formed("chunkwise", 3, request("hebbian", tokens=7)),
    "ns": Formed("chunkwise", 3, frozen(convention=NS_SPAN, tokens=6)),
    "ns-before": Formed(
        "chunkwise",
        3,
        frozen(convention={**NS_SPAN, "read": "before"}, heads=2, tokens=7, span=5),
        signed_weights,
    ),
    "ns-nesterov": Formed(
        "chunkwise",
        2,
        frozen(
            convention={**NS_SPAN, "newton_schulz": {"steps": 2, "argument": "nesterov"}}, tokens=5
        ),
    ),
    "ns-carry": Formed(
        "chunkwise",
        2,
        frozen(
            convention={**NS_SPAN, **BEFORE, "window_at_boundary": "carry"}, tokens=6, history=2
        ),
    ),
    "ns-momentum-first": Formed(
        "chunkwise", 2, frozen(convention={**NS_SPAN, **MOMENTUM_FIRST}, tokens=5), stored_momenta
    ),
    "exact-titans": Formed(
        "exact",
        3,
        request(
            "titans_lmm", heads=2, tokens=7, convention={"rate": "split", "momentum_sign": "minus"}
        ),
    ),
    "exact-delta": Formed("exact", 4, request("delta", tokens=9, convention={"rate": "both"})),
    "exact-ungated": Formed(
        "exact", 3, request("delta", tokens=8, heads=2, convention={"gate": "none", "rate": "both"})
    ),
    "exact-long": Formed("exact", 64, request("delta", tokens=24)),
    "exact-decay": Formed("exact", 3, request("titans_lmm", tokens=6, convention=BEFORE)),
    "exact-window": Formed("exact", 3, request(convention=SPLIT, tokens=6), signed_weights),
    "exact-window-decay": Formed(
        "exact",
        2,
        request(convention={**SPLIT, **BEFORE, "read": "before"}, history=2),
        signed_weights,
    ),
    "exact-rows": Formed(
        "exact",
        3,
        request(convention={**SPLIT, **BEFORE}, per_dimension_gates=True, tokens=5),
        signed_weights,
    ),
    "exact-rows-reads": Formed(
        "exact",
        2,
        request(
            convention={**SPLIT, "read": "chunk_start"}, per_dimension_gates=True, span=4, tokens=6
        ),
    ),
    "exact-reads": Formed(
        "exact", 2, request(convention={**SPLIT, "read": "chunk_start"}, span=4, tokens=6)
    ),
    "exact-momentum-first": Formed(
        "exact", 2, request(convention={**SPLIT, **MOMENTUM_FIRST, **BEFORE}), stored_momenta
    ),
    "exact-reset": Formed(
        "exact",
        2,
        request(convention={**SPLIT, "gradient_scale": 0.7}, reset=3, history=2, tokens=6),
    ),
    "exact-plus": Formed(
        "exact", 2, request(convention={**SPLIT, "value_sign": "plus"}, history=2)
    ),
    "scan": Formed("scan", 4, request(convention=SPLIT, tokens=6), signed_weights),
    "scan-decay": Formed("scan", 3, request(convention={**SPLIT, **BEFORE, "read": "before"})),
    "scan-delta": Formed("scan", 5, request("delta", tokens=7, convention={"rate": "both"})),
    "scan-rows": Formed("scan", 3, request(convention=SPLIT, per_dimension_gates=True)),
    "scan-reads": Formed(
        "scan", 3, request(convention={**SPLIT, "read": "chunk_start"}, span=2, tokens=6)
    ),
    "scan-hebbian": Formed("scan", 3, request("hebbian", tokens=6)),
    "atlas": Formed("atlas_parallel", 3, frozen(convention=NS_SPAN, tokens=6)),
    "atlas-plain": Formed(
        "atlas_parallel",
        3,
        frozen(convention={**FROZEN, "read": "before"}, tokens=7),
        signed_weights,
    ),
    "atlas-carry": Formed(
        "atlas_parallel",
        3,
        frozen(convention={**CARRY, **BEFORE}, tokens=6, history=2),
        signed_weights,
    ),
    "atlas-momentum-first": Formed(
        "atlas_parallel",
        3,
        frozen(convention={**NS_SPAN, **MOMENTUM_FIRST}, tokens=6),
        stored_momenta,
    ),
    "atlas-delta": Formed(
        "atlas_parallel", 3, frozen(rule="delta", convention={"reference": "chunk_start"}, tokens=6)
    ),
    "kernel": Formed("kernel", 1, request(convention={**STEPS, "rate": "split"}), signed_weights),
    "kernel-near-eps": Formed(
        "kernel",
        1,
        request(convention={**NEAR_EPS, "rate": "both"}, tokens=4),
        scaled(1e-2, "in/v", "in/M0", "in/S0"),
    ),
    "kernel-carry": Formed(
        "kernel", 1, frozen(convention={**CARRY, **BEFORE}, tokens=6, history=2), signed_weights
    ),
    "kernel-written-back": Formed(
        "kernel",
        1,
        request(convention={"newton_schulz": {"steps": 1, "argument": "written_back"}}, pulse=2),
    ),
    "kernel-accumulated": Formed(
        "kernel", 1, request(convention={"newton_schulz": {"steps": 2, "argument": "accumulated"}})
    ),
    "kernel-momentum-first": Formed(
        "kernel", 1, request(convention={**SPLIT, **MOMENTUM_FIRST}), stored_momenta
    ),
}

#: Cases of `folded_layout` once more with a gate for each row, which `masked_forward` computes.
IN_ROWS = (
    *(
        "frozen",
        "frozen-groups",
        "frozen-long",
        "frozen-carry",
        "frozen-carry-groups",
        "frozen-titans",
        "frozen-delta",
        "frozen-reads",
    ),
    *("zero", "hebbian"),
)
CASES |= {
    f"{name}-in-rows": CASES[name]._replace(
        request=CASES[name].request.model_copy(update={"per_dimension_gates": True})
    )
    for name in IN_ROWS
}


def built(name: str) -> tuple[Formed, dict[str, Any], Tensors]:
    """The evaluation of a case, its header and its tensors."""
    case = CASES[name]
    return case, *made(case.request, case.change, case.more)


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    case, header, tensors = built(name)
    want = evaluate(
        header, {key: value for key, value in tensors.items() if not key.endswith("_bar")}
    )
    found = atlas_ref.evaluate(atlas_ref.make(header, tensors), form=case.form, chunk=case.chunk)
    assert found.header.get("phase") == want.pop("phase", None)
    assert set(found.tensors) == set(want)
    for key, value in want.items():
        assert_close(f"{name}: {key}", found.tensors[key], value, ANALYTIC)


GRADIENTS = {
    "frozen": "k v q retain momentum step_size step_size_memory window_weights M0 S0",
    "frozen-groups": "retain momentum M0 S0",
    "frozen-long": "k v window_k",
    "frozen-carry": "k window_residual M0",
    "frozen-carry-groups": "v window_residual",
    "frozen-titans": "k q step_size_memory",
    "frozen-delta": "k retain step_size M0",
    "frozen-rows": "k retain window_weights",
    "frozen-mixed": "k retain momentum",
    "frozen-reads": "q M0",
    "frozen-resumed": "M_ref M0",
    "ns": "k momentum M0 S0",
    "ns-before": "k window_weights M0",
    "exact-titans": "k v retain momentum step_size M0 S0",
    "exact-delta": "k v retain step_size M0",
    "exact-ungated": "k v step_size M0",
    "exact-decay": "retain M0",
    "exact-window": "k v retain window_weights M0 S0",
    "exact-window-decay": "retain window_k",
    "exact-rows": "k v retain step_size M0 S0",
    "exact-rows-reads": "M0",
    "exact-reads": "M0",
    "scan": "k retain momentum M0 S0",
    "scan-delta": "k M0",
    "scan-hebbian": "retain M0",
    "atlas": "k S0",
    "kernel": "k M0",
}
GRADIENTS |= {f"{name}-in-rows": GRADIENTS[name] for name in IN_ROWS if name in GRADIENTS}


@pytest.mark.parametrize(
    ("name", "key"), [(name, key) for name, keys in GRADIENTS.items() for key in keys.split()]
)
def test_gradient(name: str, key: str) -> None:
    case, header, tensors = built(name)
    bars = {tensor: value for tensor, value in tensors.items() if tensor.endswith("_bar")}
    inputs = {tensor: value for tensor, value in tensors.items() if tensor not in bars}
    want = complex_step(header, inputs, f"in/{key}", bars)
    found = atlas_ref.evaluate(
        atlas_ref.make(header, tensors), grad=True, form=case.form, chunk=case.chunk
    )
    assert_close(f"{name}: grad/{key}", found.tensors[f"grad/{key}"], want, ANALYTIC)


# -- parts that no case reaches --------------------------------------------------------------------


@pytest.mark.parametrize("threads", [2, 3])
def test_memories_shared_out_over_threads_change_no_bit(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and gradients of four memories in groups of a span, by one thread and by several."""
    case = atlas_ref.make(*made(frozen(heads=4, window=3, tokens=9, span=4, history=2), None, {}))
    monkeypatch.setattr(engine_dispatch, "PARTITION_WORK", {True: 0, False: 0})
    monkeypatch.setattr(chunked, "GROUP_NUMBERS", 600)
    found = []
    for count in (1, threads):
        monkeypatch.setattr(engine_dispatch, "processors", lambda count=count: count)
        found.append(atlas_ref.evaluate(case, grad=True, form="chunkwise", chunk=2).tensors)
    for name, value in found[0].items():
        assert found[1][name].tobytes() == value.tobytes(), name


@pytest.mark.parametrize("momentum", [None, 0.5])
def test_a_block_of_shared_weights_has_their_gradient(momentum: float | None) -> None:
    """Weights that all leading axes share, with and without momentum: the sum of the gradients of
    each.
    """
    header, tensors = made(frozen(heads=2, tokens=4), None, {})
    tensors["in/window_weights"] = tensors["in/window_weights"][[0, 0]]
    if momentum is None:
        for name in ("in/momentum", "in/S0", "in/S_bar"):
            tensors.pop(name)
    bars = {name: tensors.pop(name) for name in [*tensors] if name.endswith("_bar")}
    want = complex_step(header, tensors, "in/window_weights", bars).sum(axis=0, keepdims=True)

    def after_nothing(name: str) -> Any:
        return np.concatenate([np.zeros_like(tensors[name][:, :2]), tensors[name]], axis=1)

    gates = {
        name: tensors[f"in/{name}"][..., None]
        for name in ("retain", "momentum", "step_size", "step_size_memory")
        if f"in/{name}" in tensors
    }
    given = Arrays(
        keys=after_nothing("in/k"),
        values=after_nothing("in/v"),
        queries=tensors["in/q"],
        retain=gates["retain"],
        momentum=gates.get("momentum"),
        rate_in=gates["step_size"],
        rate_out=gates["step_size_memory"],
        weights=tensors["in/window_weights"][:1],
        M=tensors["in/M0"],
        S=tensors.get("in/S0"),
        reference=tensors["in/M0"],
        residuals=None,
    )
    block = segment.block(
        [Layout(2, 3, (True, False), "frozen", False, "after", False, 0)], chunked_plain.plain
    )
    outputs, pullback = tape.vjp(
        lambda weights: segment.outputs(*block(given._replace(weights=weights))), given.weights
    )
    seeds = [
        bars["in/y_bar"],
        bars["in/M_bar"],
        *([] if momentum is None else [bars["in/S_bar"]]),
        np.zeros_like(outputs[-1]),
    ]
    assert_close("weights", pullback(tuple(seeds))[0], want, ANALYTIC)


@pytest.mark.parametrize("n", [3, 8, 20, 40])
def test_an_inverse_by_halves_is_that_by_substitution(n: int) -> None:
    strict = np.tril(np.random.default_rng(n).standard_normal((n, n)), -1)
    want = np.eye(n)
    for i in range(n):
        for j in range(i):
            want[i] -= strict[i, j] * want[j]
    assert_close(f"{n} rows", triangular.inverse_unit_lower(strict), want, ANALYTIC)


def scanned(kind: str, T: int) -> tuple[Any, Any, tuple[Any, Any, Any]]:
    """The scan, its loop, and the arguments of both."""
    draw = np.random.default_rng(T)
    b, initial = draw.standard_normal((T, 2, 3)), draw.standard_normal((2, 3))
    if kind == "scalar":
        return (
            lambda a, b, y: scan(a, b, initial=y),
            np.multiply,
            (draw.standard_normal((T, 1, 1)), b, initial),
        )
    return (
        lambda A, B, X: affine_scan(A, B, initial=X),
        np.matmul,
        (draw.standard_normal((T, 3, 3)), b, initial),
    )


def stepped(act: Any, a: Any, b: Any, initial: Any) -> Any:
    found = [initial]
    for t in range(len(b)):
        found.append(act(found[-1], a[t]) + b[t])
    return np.array(found[1:])


@pytest.mark.parametrize("T", [1, 2, 5, 7])
@pytest.mark.parametrize("kind", ["scalar", "affine"])
def test_a_scan_is_its_loop(kind: str, T: int) -> None:
    by_scan, act, given = scanned(kind, T)
    assert_close(kind, by_scan(*given), stepped(act, *given), ANALYTIC)


@pytest.mark.parametrize("kind", ["scalar", "affine"])
def test_the_gradient_of_a_scan_is_that_of_its_loop(kind: str) -> None:
    by_scan, act, given = scanned(kind, 5)
    bar = np.random.default_rng(0).standard_normal(given[1].shape)
    _, pullback = tape.vjp(by_scan, *given)
    for place, (name, got) in enumerate(zip(("a", "b", "initial"), pullback(bar), strict=True)):
        want = np.zeros_like(got)
        for index in np.ndindex(*got.shape):
            moved = [x.astype(complex) for x in given]
            moved[place][index] += 1e-30j
            want[index] = np.sum(stepped(act, *moved) * bar).imag / 1e-30
        assert_close(f"{kind}, {name}", got, want, ANALYTIC)
