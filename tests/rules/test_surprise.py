"""The surprise of each token, CONV-63: against plain loops, the rule's own residual and the
gradient that Titans calls momentary surprise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.tensor_spec import phi_of
from atlas_ref.oracle.subjects.memory import initial_state, sequence_of
from atlas_ref.rules import RULES, deep_memory, sequence, titans_lmm
from atlas_ref.rules.sequence import Tokens
from atlas_ref.rules.surprise import surprise
from tape import check, grad, ops
from tests.support import deep_memories as deep
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs, reordered
from tests.support.strategies import cases, header_of, repeatable
from tests.truth import deep_memory_loops, literal
from tests.truth.literal_parts import newton_schulz, resolve

RULES_OF_MATRICES = ("omega", "titans_lmm", "delta", "hebbian")


class Surprised(literal.Sequence):
    """The plain loop of a rule, which writes down what its memory answers before each write."""

    def push(self, state: Any, t: int, active: bool) -> None:
        own = self.convention["newton_schulz"]
        accumulated = own != "none" and own["argument"] == "accumulated"
        M = newton_schulz(state.M, own) if accumulated else state.M
        answer, v = M @ self.phi(self.tensors["in/k"][t], "k_norm"), self.tensors["in/v"][t]
        self.residuals = [*getattr(self, "residuals", []), answer - self.signed(v)]
        super().push(state, t, active)

    def signed(self, v: Any) -> Any:
        return -v if self.convention["value_sign"] == "plus" else v


def of_loops(case: Case) -> Any:
    """e_t of every token, one leading index after the other."""
    header = header_of(case)
    arrays = {name: np.asarray(value) for name, value in case.inputs.items()}
    rows = []
    for index in np.ndindex(*arrays["in/k"].shape[:-2]):
        own = {n: a if n.startswith(literal.SHARED) else a[index] for n, a in arrays.items()}
        loop = Surprised(header, resolve(header), own)
        loop.run()
        rows.append(loop.residuals)
    return np.reshape(rows, arrays["in/v"].shape)


def of_case(case: Case, inputs: Any = None) -> Any:
    """The surprise of a case of level projected."""
    inputs = case.inputs if inputs is None else inputs
    rule = RULES[case.header.rule]
    config, tokens = sequence_of(rule, inputs, case)
    state = initial_state(rule, config, inputs, tokens, case.header.phase)
    return surprise(rule, config, tokens, state, phi=phi_of(inputs))


@pytest.mark.clause("CONV-63")
@settings(repeatable, max_examples=80)
@given(cases(level="projected"))
def test_surprise_is_that_of_plain_loops_whatever_the_rule_and_the_convention(case: Case) -> None:
    got, want = of_case(case), of_loops(case)
    amplification = 1e7 if case.convention.has_newton_schulz else 1e4
    assert_close("e", got.residual, want, reordered(1, amplification=amplification))
    assert_close(
        "|e|^2",
        got.value,
        np.sum(want**2, axis=-1),
        reordered(1, amplification=amplification),
    )


@pytest.mark.clause("CONV-63")
@pytest.mark.parametrize("number", range(40))
def test_surprise_of_a_deep_memory_is_that_of_plain_loops(number: int) -> None:
    choice = deep.drawn(number, calls=False, read="before")
    given = deep.inputs(choice, seed=number)
    own = deep.config(choice)
    tokens = Tokens(k=given.k, v=given.v, q=given.q, reset=given.reset, **given.gates)
    state = deep_memory.start(own, given.k.shape[:1])
    got = surprise(deep_memory.RULE, own, tokens, state, phi=given.tensors)
    reset = None if given.reset is None else np.tile(given.reset, (len(given.k), 1))
    answers, _ = deep_memory_loops.run(
        deep.of_loops(choice),
        given.tensors,
        given.k,
        given.v,
        given.k,
        deep.kept(choice, given),
        reset=reset,
    )
    assert_close("e", got.residual, answers - given.v, reordered(64, amplification=1e4))


def memory(T: int = 6, **axes: Any) -> tuple[Any, Tokens, Any]:
    random = np.random.default_rng(5)
    config = titans_lmm.Config(d_in=3, d_out=2, convention={"gate": "retain", **axes})
    k, v = random.standard_normal((T, 3)), random.standard_normal((T, 2))
    gates = {
        "retain": random.uniform(0.8, 1.0, T),
        "momentum": random.uniform(0.1, 0.6, T),
        "step_size": random.uniform(0.1, 0.4, T),
    }
    state = titans_lmm.start(config, M=random.standard_normal((2, 3)))
    return config, Tokens(k=k, v=v, q=random.standard_normal((T, 3)), **gates), state


@pytest.mark.clause("CONV-63")
def test_it_is_the_residual_of_the_write_and_its_gradient_is_titans_momentary_surprise() -> None:
    config, tokens, state = memory()
    e = surprise(titans_lmm.RULE, config, tokens, state).residual
    one = state
    for t in range(6):
        gates = sequence.gates_by_token(config, tokens, state)[t]
        k, v = tokens.k[t], tokens.v[t]
        update = titans_lmm.update(config, one, k, v, gates)
        assert_close("e", e[t], update.residual, reordered(3))
        alone = Tokens(k=k[None], v=v[None], q=k[None], retain=np.ones(1), step_size=np.ones(1))

        def value(M: Any, alone: Tokens = alone) -> Any:
            before = titans_lmm.start(config).replaced(M=M)
            return ops.sum(surprise(titans_lmm.RULE, config, alone, before).value)

        momentary = grad(value)(one.M)
        assert_close("momentary", momentary, 2.0 * np.outer(e[t], k), ANALYTIC)
        assert_close(
            "norm",
            np.linalg.norm(momentary),
            2.0 * np.linalg.norm(e[t]) * np.linalg.norm(k),
            ANALYTIC,
        )
        one = update.state


@pytest.mark.clause("CONV-63")
def test_neither_queries_nor_the_tokens_own_write_enter() -> None:
    config, tokens, state = memory()
    first = surprise(titans_lmm.RULE, config, tokens, state)
    other = surprise(titans_lmm.RULE, config, tokens.replaced(q=tokens.q + 1.0), state)
    assert_close("queries", other.residual, first.residual, EXACT)
    still = tokens.replaced(active=np.array([True, True, False, True, True, True]))
    held = surprise(titans_lmm.RULE, config, still, state).residual
    assert_close("up to the token", held[:3], first.residual[:3], EXACT)
    assert_differs("after it", held[3:], first.residual[3:], 1e-3)


@pytest.mark.clause("CONV-63")
def test_a_frozen_reference_does_not_change_what_the_memory_answers() -> None:
    """The negative twin of the residual of the write, which is against the reference."""
    config, tokens, state = memory(reference="call_start")
    e = surprise(titans_lmm.RULE, config, tokens, state).residual
    frozen = tokens.k @ state.M.T - tokens.v
    assert_close("first", e[0], frozen[0], reordered(3))
    assert_differs("later", e[1:], frozen[1:], 1e-2)


@pytest.mark.clause("CONV-63")
@settings(repeatable, max_examples=12)
@given(cases(level="projected", newton_schulz=False, tokens=5))
def test_its_gradient_is_the_complex_step(case: Case) -> None:
    names = [name for name in ("in/k", "in/v", "in/retain", "in/M0") if name in case.inputs]

    def total(moved: dict[str, Any]) -> Any:
        return ops.sum(of_case(case, case.inputs | moved).value)

    check.check_gradient(total, {name: case.inputs[name] for name in names})


@pytest.mark.parametrize("rule", RULES_OF_MATRICES)
def test_what_run_refuses_is_refused(rule: str) -> None:
    own = RULES[rule]
    config = own.Config(d_in=3, d_out=2, convention={"gate": "retain"})
    with pytest.raises(ValueError, match="tokens: a Tokens is needed"):
        surprise(own, config, None, own.start(config))  # type: ignore[arg-type]
