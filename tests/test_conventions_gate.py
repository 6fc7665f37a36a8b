"""What the retain gate of a configuration means: stated, or refused where it is given; CONV-4."""

import numpy as np
import pytest

import atlas_ref
from atlas_ref.conventions import resolve
from atlas_ref.layers import projection
from atlas_ref.rules import delta, hebbian, sequence, titans_lmm
from tests.support.casefiles import PEERS
from tests.support.close import EXACT, assert_close, assert_differs
from tests.support.sequences import drawn, results, without

MODULES = {"titans_lmm": titans_lmm, "delta": delta, "hebbian": hebbian}
#: Recorded runs of implementations, and the presets that are named after them.
RECORDED = {
    "fla_delta_11": "fla-delta",
    "fla_gated_delta_11": "fla-gated-delta",
    "fla_momentum_delta_11": "fla-momentum-delta",
    "atlas_rnn_delta_11": "atlas-rnn",
    "atlas_rnn_titans_11": "atlas-rnn",
}


def given(rule, convention):
    """A call of a rule with given gates: y."""
    p = {name: x for name, x in drawn(rule).items() if name not in ("M0", "S0")}
    module = MODULES[rule]
    config = module.Config(d_in=4, d_out=3, convention=convention)
    return sequence.run(module.RULE, config, sequence.Tokens(**p), module.start(config))[1]


@pytest.mark.clause("CONV-4", "GATES-2")
@pytest.mark.parametrize("rule", MODULES)
@pytest.mark.parametrize("convention", ["spec", {}, {"read": "before"}, "atlas-paper"], ids=str)
def test_a_given_gate_is_refused_where_nobody_said_what_it_is(rule, convention):
    with pytest.raises(ValueError, match=r"^convention: gate: not stated.*state it in the Config"):
        given(rule, convention)
    axes = {"preset": convention} if isinstance(convention, str) else convention
    keeps, forgets = (given(rule, {**axes, "gate": gate}) for gate in ("retain", "forget"))
    assert_differs("y", forgets, keeps, 1e-2)
    p = without(drawn(rule), "M0", "S0")
    assert_close("a case's default", keeps, results(rule, p, convention)["y"], EXACT)


@pytest.mark.clause("CONV-4", "GATES-2")
@pytest.mark.parametrize("rule", MODULES)
def test_a_convention_that_says_it_is_taken_and_computed_gates_are_of_level_token(rule):
    module = MODULES[rule]
    for complete in (resolve("spec", rule=rule), resolve("spec", rule=rule, level="token")):
        assert given(rule, complete).shape == (6, 3)
    sizes = {"d_in": 4, "d_out": 3, "d_model": 5}
    config = module.Config(**sizes)
    config = config.replaced(convention=config.convention.replaced(read="before"))
    x = np.random.default_rng(0).standard_normal((1, 6, 5))
    params = projection.init(config, 0)

    def y(config):
        return projection.run_tokens(module.RULE, config, params, x, module.start(config, (1, 1)))[
            1
        ]

    stated = module.Config(**sizes, convention={"gate": "forget", "read": "before"})
    assert_close("computed", y(config), y(stated), EXACT)
    tokens = sequence.Tokens(**without(drawn(rule), "M0", "S0"))
    with pytest.raises(ValueError, match="gate: not stated"):
        sequence.run(module.RULE, config, tokens, module.start(config))
    assert config.convention.replaced(gate="none") == stated.convention.replaced(gate="none")


@pytest.mark.clause("CONV-26", "CONV-4")
@pytest.mark.parametrize("name", RECORDED)
def test_a_preset_named_after_code_that_retains_retains_at_both_levels(name):
    """The recorded run of that code passes under its preset, and not where the gate forgets."""
    recorded = atlas_ref.load(PEERS / f"{name}.safetensors")
    rule, own = recorded.header.rule, dict(recorded.header.convention)
    assert own.pop("gate") == "retain"
    for level in ("projected", "token"):
        named = {"preset": RECORDED[name], **own}
        assert resolve(named, rule=rule, level=level) == recorded.convention
        assert resolve(RECORDED[name], rule=rule, level=level).gate == "retain"
    for gate, verdict in (("retain", True), ("forget", False)):
        header = recorded.header.plain() | {"convention": {**named, "gate": gate}}
        verdicts = atlas_ref.check(atlas_ref.make(header, {**recorded.inputs, **recorded.recorded}))
        assert all(each.verdict == "PASS" for each in verdicts) is verdict
