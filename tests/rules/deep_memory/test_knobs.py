"""The four knobs of MIRAS: every combination runs, and each moves only what it must."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from atlas_ref.parts import memory_functions
from atlas_ref.rules import RULES, deep_memory, sequence
from atlas_ref.rules.deep_memory.write import Rates, Rows, update
from atlas_ref.rules.sequence import Tokens
from tape import grad, ops
from tests.support.close import EXACT, assert_close, assert_differs, reordered
from tests.truth import miras_loops

D, T = 3, 3
RULE = RULES["deep_memory"]

STRUCTURES: dict[str, dict[str, Any]] = {
    "linear": {"kind": "linear"},
    "mlp": {"kind": "mlp", "expansion": 2.0},
    "polynomial": {"kind": "polynomial", "key_width": 2, "expansion": 2.0},
}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "gradient_descent": {"momentum": False, "newton_schulz": "none"},
    "momentum": {"momentum": True, "newton_schulz": "none"},
    "newton_schulz": {"momentum": True, "newton_schulz": {"steps": 3}},
}
#: A Huber of which each piece counts; behind one threshold it is l1, to which some are blind.
BIASES: dict[str, dict[str, Any]] = {
    "huber": {"kind": "huber", "form": "coordinate", "threshold": 0.7}
}
BOTH = list(itertools.product(STRUCTURES, ALGORITHMS))


def config(structure: str, bias: str, retention: str, algorithm: str) -> Any:
    return deep_memory.Config(
        d_in=D,
        d_out=D,
        memory=STRUCTURES[structure],
        bias=BIASES.get(bias, {"kind": bias}),
        retention={"kind": retention},
        window=2,
        convention={"newton_schulz": ALGORITHMS[algorithm]["newton_schulz"]},
    )


def drawn(own: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Rows of tokens, and tensors of the memory, positive so that each has a logarithm."""
    rng = np.random.default_rng(8)
    rows = dict(zip("kvq", rng.standard_normal((3, T, D)), strict=True))
    rows |= {"retain": rng.uniform(0.8, 1.0, T), "momentum": rng.uniform(0.2, 0.9, T)}
    rows["step_size"] = rng.uniform(0.02, 0.1, T)
    shapes = memory_functions.tensors(own.memory, D, D)
    return rows, {name: np.exp(rng.standard_normal(shape)) for name, shape in shapes.items()}


@pytest.mark.clause("DEEP-35")
def test_the_knobs_are_facts_of_every_rule() -> None:
    for name, rule in RULES.items():
        assert rule.algorithm[0] == "gradient_descent"
        assert ("momentum" in rule.algorithm) == rule.has_momentum
        assert ("newton_schulz" in rule.algorithm) == rule.has_newton_schulz
        if rule.in_family:
            assert (rule.structure, rule.retention) == (("matrix",), ("l2",))
            assert rule.bias == (("dot_product",) if name == "hebbian" else ("l2",))
    assert set(RULE.structure) == set(STRUCTURES)
    assert set(RULE.algorithm) == set(ALGORITHMS)
    assert RULE.bias == ("l2", "l1", "lp", "huber", "kl")
    assert RULE.retention == ("l2", "elastic_net", "kl", "sphere", "ftrl", "lq")


@pytest.mark.clause("DEEP-35")
@pytest.mark.parametrize(("structure", "algorithm"), BOTH)
def test_every_combination_runs_and_has_gradients(structure: str, algorithm: str) -> None:
    reads = {}
    for bias, retention in itertools.product(RULE.bias, RULE.retention):
        own = config(structure, bias, retention, algorithm)
        rows, W0 = drawn(own)
        if not ALGORITHMS[algorithm]["momentum"]:
            del rows["momentum"]

        def y(at: Any, own: Any = own) -> Any:
            tokens = Tokens.trusted(**dict.fromkeys(Tokens.model_fields) | at["rows"])
            start = deep_memory.start(own, ())
            return sequence.run(RULE, own, tokens, start, phi=at["W0"])[1]

        at = {"rows": rows, "W0": W0}
        reads[bias, retention] = y(at)
        assert np.isfinite(reads[bias, retention]).all(), (bias, retention)
        found = grad(lambda at, y=y: ops.sum(y(at)))(at)
        for name, x in (found["rows"] | found["W0"]).items():
            assert np.isfinite(x).all(), (bias, retention, name)
    for one, other in itertools.combinations(reads, 2):
        assert_differs(f"{one}, {other}", reads[one], reads[other], 1e-9)


def written(*choice: str) -> Any:
    """One write from weights, momentum and tokens that are the same for every choice."""
    own = config(*choice)
    rows, W0 = drawn(own)
    fast = {name: W0[name] for name in own.fast_shapes}
    S = {name: 0.01 * x for name, x in fast.items()}
    slow = {name: x for name, x in W0.items() if name not in fast}
    at = Rows(rows["k"][:2], rows["v"][:2], np.array([0.7, 1.0]), slow)
    momentum = rows["momentum"][0] if ALGORITHMS[choice[3]]["momentum"] else None
    rates = Rates(rows["retain"][0], momentum, rows["step_size"][0], None)
    return update(own, fast, S, fast, at, rates)


def same(one: Any, other: Any, *names: str) -> None:
    for name in names:
        a, b = getattr(one, name), getattr(other, name)
        pairs = {name: (a, b)} if not isinstance(a, dict) else {n: (a[n], b[n]) for n in a}
        for label, (x, y) in pairs.items():
            assert_close(label, x, y, EXACT)


def moved(one: Any, other: Any, name: str) -> bool:
    a, b = getattr(one, name), getattr(other, name)
    return any(not np.array_equal(a[n], b[n]) for n in a)


@pytest.mark.clause("DEEP-35")
@pytest.mark.parametrize(("structure", "algorithm"), BOTH)
def test_a_bias_changes_nothing_before_the_slope_of_its_error(
    structure: str, algorithm: str
) -> None:
    for retention in RULE.retention:
        one = written(structure, "l2", retention, algorithm)
        for bias in RULE.bias[1:]:
            other = written(structure, bias, retention, algorithm)
            same(one, other, "predicted", *(() if bias == "kl" else ("residual",)))
            assert moved(one, other, "gradient"), bias


@pytest.mark.clause("DEEP-35")
@pytest.mark.parametrize(("structure", "algorithm"), BOTH)
def test_a_retention_changes_nothing_before_the_weights_after_the_write(
    structure: str, algorithm: str
) -> None:
    for bias in RULE.bias:
        one = written(structure, bias, "l2", algorithm)
        for retention in RULE.retention[1:]:
            other = written(structure, bias, retention, algorithm)
            if retention in ("ftrl", "lq"):  # the function has other weights
                assert not np.array_equal(one.predicted, other.predicted)
                continue
            same(one, other, "predicted", "residual", "gradient", "momentum", "direction")
            assert moved(one, other, "weights"), retention


@pytest.mark.clause("DEEP-35")
@pytest.mark.parametrize("structure", STRUCTURES)
def test_an_algorithm_changes_nothing_before_the_momentum(structure: str) -> None:
    for bias, retention in itertools.product(RULE.bias, RULE.retention):
        plain, momentum, both = (written(structure, bias, retention, each) for each in ALGORITHMS)
        same(plain, momentum, "predicted", "residual", "gradient")
        same(momentum, both, "predicted", "residual", "gradient", "momentum")
        assert moved(plain, momentum, "momentum")
        assert moved(momentum, both, "direction")


@pytest.mark.clause("DEEP-34")
@pytest.mark.parametrize("name", deep_memory.PRESETS)
def test_a_preset_is_its_settings_and_each_may_be_changed(name: str) -> None:
    own = deep_memory.preset(name, d=D)
    assert own.memory.residual_norm
    assert (own.span, own.convention.reference) == (16, "chunk_start")
    assert not own.convention.has_newton_schulz
    kinds = {"moneta": ("lp", "lq"), "yaad": ("huber", "l2"), "memora": ("l2", "kl")}
    assert (own.bias.kind, own.retention.kind) == kinds[name]
    other = deep_memory.preset(
        name, d=D, span=64, bias={"kind": "l1"}, convention={"reference": "running"}
    )
    assert (other.span, other.bias.kind, other.convention.reference) == (64, "l1", "running")
    with pytest.raises(ValueError, match="monetta"):
        deep_memory.preset("monetta", d=D)


@pytest.mark.host("plain loops of the tests")
@pytest.mark.clause("DEEP-34")
@pytest.mark.parametrize("name", deep_memory.PRESETS)
def test_a_preset_of_a_matrix_is_the_printed_equations(name: str) -> None:
    rng = np.random.default_rng(9)
    k, v, q = rng.standard_normal((3, 20, D))
    retain, step = rng.uniform(0.9, 1.0, 20), rng.uniform(0.01, 0.05, 20)
    W0 = rng.uniform(0.1, 1.0, (D, D))
    W0 = W0 / W0.sum() if name == "memora" else W0
    own = deep_memory.preset(name, d=D, memory={"kind": "linear"})
    tokens = Tokens(k=k, v=v, q=q, retain=retain, step_size=step)
    start = deep_memory.start(own, ())
    state, y = sequence.run(RULE, own, tokens, start, phi={"W": W0})
    want, W = miras_loops.run(name, W0, k, v, q, retain, step, span=16)
    assert_close("y", y, want, reordered(64))
    assert_close("W", state.weights["W"], W, reordered(64))
