"""Every rule fulfils one contract: the same questions to each of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tape
from atlas_ref import forms
from atlas_ref.conventions import Convention, resolve
from atlas_ref.forms import tnt
from atlas_ref.forms.support import FORMS
from atlas_ref.layers import projection
from atlas_ref.levels import contract
from atlas_ref.parts.gates import Gates
from atlas_ref.rules import FAMILY, RULES, rule_of, sequence
from atlas_ref.types import Pulse, same_bits
from tape import ops
from tests.support.close import EXACT, assert_close, reordered

ROOT = Path(__file__).parents[2]
SIZES = {"d_in": 4, "d_out": 3, "d_model": 5, "heads": 2}
B, T = 2, 7

every = pytest.mark.parametrize("name", RULES)
family = pytest.mark.parametrize("name", FAMILY)


def config_of(name: str, **settings: Any) -> Any:
    """Settings of a rule: small, with a window and spans where it has them."""
    own = {"window": 3} if name in ("omega", "deep_memory") else {}
    chunks = {"chunk": 2} if name == "deep_memory" else {}
    return RULES[name].Config(**SIZES | own | chunks | settings)


def tokens() -> Any:
    return np.random.default_rng(3).standard_normal((B, T, SIZES["d_model"]))


def of_one(draw: Any, *shape: int) -> Any:
    return draw.standard_normal((B, 2, *shape))


def written(name: str) -> tuple[Any, Any, Any, Any]:
    """A contract, its settings, and the state after two writes, with the gates of the second."""
    own, config, draw = contract.contract(RULES[name]), config_of(name), np.random.default_rng(0)
    state = own.start(config, (B, 2))
    column = (B, 2, 1, 1)
    values = {"retain": 0.9, "momentum": 0.5, "step_size": 0.1}
    gates = Gates(**{gate: np.full(column, values[gate]) for gate in own.rule.gates})
    if own.rule.has_window:
        gates = gates.replaced(window_weights=np.full((B, 2, 3, 1), 1.0))
    for _ in range(2):
        k, v = of_one(draw, 4), of_one(draw, 3)
        entered = next(iter(own.rule.enter(config, state, k[..., None, :], v[..., None, :])))
        state = own.write(config, state, *entered, gates)
    return own, config, state, gates


@every
@pytest.mark.clause("CONTRACT-1")
def test_init_and_start_are_made_of_settings_and_seed_alone(name: str) -> None:
    own, config = contract.contract(RULES[name]), config_of(name)
    for dtype in (np.float64, np.float32):
        params = own.init(config, 7, dtype=dtype)
        assert params == own.init(config, 7, dtype=dtype)
        assert params != own.init(config, 8, dtype=dtype)
        state = own.start(config, (B, 2), dtype=dtype)
        assert state == own.start(config, (B, 2), dtype=dtype)
        leaves = [*tape.nested.flatten(params)[0], *tape.nested.flatten(state)[0]]
        assert {leaf.dtype for leaf in leaves} == {np.dtype(dtype)}
        assert all(np.isfinite(leaf).all() for leaf in leaves)
    with pytest.raises(ValueError, match="d_model is needed"):
        own.init(RULES[name].Config(d_in=4, d_out=3), 0)
    with pytest.raises(ValueError, match="the Config of a rule is needed"):
        own.init(SIZES, 0)


@family
@pytest.mark.clause("CONTRACT-2", "CONTRACT-3")
def test_write_makes_another_state_and_read_makes_none(name: str) -> None:
    own, config, state, gates = written(name)
    before = {field: np.copy(each) for field, each in vars(state).items() if np.ndim(each)}
    draw = np.random.default_rng(1)
    q, k, v = of_one(draw, 4), of_one(draw, 4), of_one(draw, 3)
    first, second = own.read(config, state, q), own.read(config, state, q)
    assert same_bits(first, second)
    entered = next(iter(own.rule.enter(config, state, k[..., None, :], v[..., None, :])))
    after = own.write(config, state, *entered, gates)
    assert type(after) is own.rule.State
    assert not np.array_equal(after.M, state.M)
    for field, value in before.items():
        assert_close(field, getattr(state, field), value, EXACT)
    assert same_bits(own.read(config, state, q), first)
    assert_close("y", first, (state.M @ q[..., None])[..., 0], reordered(4))


@pytest.mark.clause("CONTRACT-2")
def test_a_rule_of_whole_chunks_says_that_it_has_no_write_of_one_token() -> None:
    without = [name for name, rule in RULES.items() if contract.contract(rule).write is None]
    assert without == ["deep_memory"]
    assert contract.contract(RULES["deep_memory"]).read is None


@every
@pytest.mark.clause("CONTRACT-4", "CONTRACT-5")
@pytest.mark.parametrize("level", [0, 2])
def test_steps_at_any_level_equal_one_run(name: str, level: int) -> None:
    own, config, x = contract.contract(RULES[name]), config_of(name), tokens()
    params, active = own.init(config, 1), np.arange(T) % 3 != 1
    state = own.start(config, (B, 2))
    whole, want = projection.run_tokens(own.rule, config, params, x, state, active=active)
    for t in range(T):
        others = [not active[t]] * 3
        others[level] = bool(active[t])
        pulse = Pulse(step=t, active=tuple(others))
        state, y = own.step(config, params, state, x[:, t], pulse, level=level)
        assert_close(f"y {t}", y, want[:, :, t], reordered(T, amplification=1e5))
    assert_close("M", after_of(state), after_of(whole), reordered(T, amplification=1e5))


def after_of(state: Any) -> Any:
    """One array of a state that every write changes."""
    return next(iter(state.weights.values())) if hasattr(state, "weights") else state.M


@every
@pytest.mark.clause("CONTRACT-5")
def test_a_level_that_the_pulse_freezes_keeps_its_memory_and_one_it_lacks_is_refused(
    name: str,
) -> None:
    own, config, x = contract.contract(RULES[name]), config_of(name), tokens()
    params = own.init(config, 1)
    state, _ = projection.run_tokens(own.rule, config, params, x[:, :6], own.start(config, (B, 2)))
    frozen = Pulse(step=6, active=(True, False))
    after, y = own.step(config, params, state, x[:, 6], frozen, level=1)
    assert_close("M", after_of(after), after_of(state), EXACT)
    assert np.isfinite(y).all()
    for wrong in (2, -1):
        with pytest.raises(ValueError, match=f"level: {wrong}, expected one of 2"):
            own.step(config, params, state, x[:, 6], frozen, level=wrong)


@pytest.mark.clause("CONTRACT-4", "CONTRACT-5")
def test_a_step_without_tokens_or_a_pulse_is_refused_by_name() -> None:
    own, config, x = contract.contract(RULES["delta"]), config_of("delta"), tokens()
    params, state, pulse = own.init(config, 1), own.start(config, (B, 2)), Pulse()
    for wrong, words in [
        ((x[0, 0], pulse), r"x: shape \(5,\), expected \(batch, d_model\)"),
        ((x, pulse), r"x: shape \(2, 7, 5\), expected \(batch, d_model\)"),
        ((None, pulse), "x: an array is needed, found NoneType"),
        ((x[:, 0], None), "pulse: a Pulse is needed, found NoneType"),
    ]:
        with pytest.raises(ValueError, match=rf"^{words}$"):
            own.step(config, params, state, *wrong)


@pytest.mark.clause("CONTRACT-6")
def test_a_name_is_no_rule_and_no_convention() -> None:
    name: Any = "delta"
    with pytest.raises(ValueError, match=r"^rule: a Rule is needed, found 'delta'$"):
        contract.contract(name)
    with pytest.raises(ValueError, match=r"^convention: a Convention is needed, found 'delta'$"):
        contract.contract(RULES["delta"]).supported_parallelization(name)


#: Conventions under which forms differ: those of a running reference, a frozen one, no Newton-Schulz.
CONVENTIONS = {
    "spec": ({}, None),
    "linear": ({"newton_schulz": "none"}, None),
    "frozen": ({"newton_schulz": "none", "reference": "chunk_start"}, 2),
    "zero": ({"newton_schulz": "none", "reference": "zero"}, None),
}


@every
@pytest.mark.clause("CONTRACT-6")
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_each_form_computes_the_rule_or_refuses_it(name: str, convention: str) -> None:
    axes, span = CONVENTIONS[convention]
    if name == "deep_memory" and axes.get("reference") == "zero":
        axes = {"newton_schulz": "none"}
    config = config_of(name, span=span, convention=axes)
    own, x = contract.contract(RULES[name]), tokens()
    projected = projection.project(config, own.init(config, 1), x)
    phi = own.init(config, 1).phi
    call = (own.rule, projection.of_computed(config), sequence.Tokens(**projected))
    state, y = forms.run(*call, own.start(config, (B, 2)), phi=phi)
    supported = own.supported_parallelization(config.convention)
    assert set(supported) <= set(own.supported_parallelization())
    assert supported[0] == "sequential"
    for form in FORMS:
        if form in supported:
            after, got = forms.run(*call, own.start(config, (B, 2)), form=form, phi=phi)
            assert_close(f"y {form}", got, y, reordered(T, amplification=1e6))
            assert_close(
                f"M {form}", after_of(after), after_of(state), reordered(T, amplification=1e6)
            )
        else:
            with pytest.raises(ValueError, match=rf"^form {form}: "):
                forms.run(*call, own.start(config, (B, 2)), form=form, phi=phi)


@pytest.mark.clause("CONTRACT-6")
def test_the_forms_of_each_rule_are_these() -> None:
    supported = {
        name: contract.contract(rule).supported_parallelization() for name, rule in RULES.items()
    }
    one_matrix = ("sequential", "chunkwise", "exact", "scan", "atlas_parallel", "kernel", "tnt")
    assert supported == dict.fromkeys(FAMILY, one_matrix) | {"deep_memory": ("sequential", "tnt")}
    titans = contract.contract(RULES["titans_lmm"])
    spec = resolve("spec", rule="titans_lmm")
    assert isinstance(spec, Convention)
    assert titans.supported_parallelization(spec) == ("sequential", "exact", "scan", "kernel")


@every
@pytest.mark.clause("CONTRACT-6", "TNT-1")
def test_a_tnt_takes_memories_of_each_rule_and_is_no_form_of_one(name: str) -> None:
    axes = {"newton_schulz": "none", "gate": "retain"}
    config = config_of(name, heads=1, convention=axes)
    assert contract.contract(RULES[name]).supported_parallelization()[-1] == "tnt"
    made = tnt.Config(global_memory=tnt.Global(config=config, span=2), local_memories=())
    x = tokens()[..., :4]
    like = np.full(x.shape[:-1], 0.5)
    given = {gate: like for gate in RULES[name].gates if gate != "window_weights"}
    call = sequence.Tokens(k=x, v=x[..., :3], q=x, **given)
    phi = contract.contract(RULES[name]).init(config, 1).phi
    initial = tnt.Initial(phi={each: tensor[0] for each, tensor in phi.items()})
    params = tnt.Params(memories=(initial,))
    _, y = tnt.run(made, params, call, tnt.start(made, params, (B,)))
    assert y.shape == (B, T, 3)
    assert np.isfinite(y).all()


@every
@pytest.mark.clause("CONTRACT-7")
def test_the_knobs_are_those_of_the_rule(name: str) -> None:
    knobs = contract.contract(RULES[name]).knobs
    assert list(knobs) == ["structure", "bias", "retention", "algorithm"]
    assert all(knobs.values())
    assert (name in FAMILY) == (knobs["structure"] == ("matrix",))


@pytest.mark.clause("CONTRACT-8")
def test_delta_takes_the_parameters_of_titans_and_its_momentum_has_no_gradient() -> None:
    of_titans, of_delta = config_of("titans_lmm"), config_of("delta")
    params, x = projection.init(of_titans, 1), tokens()

    def loss(params: Any, config: Any) -> Any:
        rule = rule_of(config)
        y = projection.run_tokens(rule, config, params, x, rule.start(config, (B, 2)))[1]
        return ops.sum(ops.tanh(y))

    bare = params.replaced(gates=params.gates.replaced(momentum=None))
    assert loss(params, of_delta) == loss(bare, of_delta)
    gradient = tape.grad(loss)(params, of_delta)
    assert not gradient.gates.momentum.W.any()
    assert not gradient.gates.momentum.b.any()
    assert same_bits(gradient.W_K, tape.grad(loss)(bare, of_delta).W_K)
    assert tape.grad(loss)(params, of_titans).gates.momentum.W.any()
    closed = params.gates.momentum
    closed = closed.replaced(W=np.zeros_like(closed.W), b=np.full_like(closed.b, -1e4))
    shut = params.replaced(gates=params.gates.replaced(momentum=closed))
    assert loss(shut, of_titans) == pytest.approx(loss(params, of_delta), rel=1e-14)


@every
@pytest.mark.clause("CONTRACT-9")
def test_the_spec_of_each_rule_has_what_a_header_promises(name: str) -> None:
    text = (ROOT / "specs" / f"{name}.md").read_text()
    sections = set(re.findall(r"^## (.*)$", text, re.MULTILINE))
    headings = " ".join(re.findall(r"^### (.*)$", text, re.MULTILINE)).lower()
    assert text.startswith("# ")
    assert re.search(r"\bstate\b", headings)
    assert sections & {"Guarantees", "Properties"}
    assert re.search(r"\b(cost|work)\b", headings)
    assert "**Errors.**" in text
    rows = (ROOT / "docs" / "statements.tsv").read_text()
    assert f"{RULES[name].clauses['M'].partition('-')[0]}-" in rows
