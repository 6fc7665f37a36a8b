"""New cases: states and their cotangents, batches, packed sequences, and the gate of a member."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.dplr.members import MEMBERS, SECOND
from atlas_ref.oracle.drawing import starts
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.types import same_bits

#: Members whose public code has one gate a head: fla-core 0.6.0, and transformers for qwen3_next.
OF_HEADS = {
    "simple_gla",
    "gated_delta",
    "qwen3_next",
    "gated_delta_product",
    "comba_decay_after_erase",
    "comba_decay_before_erase",
    "precond_gated_delta",
    "momentum_delta",
}

#: A request -> first states and cotangents that its case has beyond one without them.
STATES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "omega": ({"window": 3}, {"M0", "S0", "M_bar", "S_bar"}),
    "delta": ({"convention": {"layout": "transposed"}}, {"M0", "M_bar"}),
    "hebbian": ({"level": "token", "batch": 2}, {"M0", "M_bar"}),
    "deep_memory": (
        {"parameters": {"memory": {"kind": "mlp"}}},
        {
            f"{place}/{kind}/{name}"
            for place, kind in (
                ("state", "momentum"),
                ("state_bar", "weights"),
                ("state_bar", "momentum"),
            )
            for name in ("W_1", "W_2")
        },
    ),
    "tnt": (
        {},
        {
            *("global/M0", "global/S0", "local0/M0"),
            *(f"state_bar/{name}/{key}" for name in ("global", "local0") for key in "MS"),
        },
    ),
    **{
        f"dplr {member}": (
            {"parameters": {"member": member}},
            {"M0", "M_bar", *(name[3:] for name in SECOND[MEMBERS[member].second])},
        )
        for member in ("kda", "linear_attn_normalized", "precond_kda", "momentum_delta")
    },
    "recurrence gsa": ({"parameters": {"member": "gsa"}}, {"K0", "M0", "K_bar", "M_bar"}),
    "recurrence mesa": ({"parameters": {"member": "mesa"}}, {"G0", "M0", "G_bar", "M_bar"}),
    "recurrence hgrn": ({"parameters": {"member": "hgrn"}}, {"h0", "h_bar"}),
    "recurrence log_linear": (
        {"parameters": {"member": "log_linear", "position": 5}},
        {"M0", "M_bar"},
    ),
    "recurrence ttt_linear": (
        {"parameters": {"member": "ttt_linear"}},
        {"M0", "bias0", "M_bar", "bias_bar"},
    ),
    "recurrence short_conv": (
        {"parameters": {"member": "short_conv", "columns": "W"}},
        {"window0", "window_bar"},
    ),
}


def request(name: str, **more: Any) -> Request:
    fields = {"rule": name.partition(" ")[0], "tokens": 7, "cotangent": True, **STATES[name][0]}
    return Request(**fields | more)


def found(case: Case) -> set[str]:
    return {name.removeprefix("in/") for name in case.inputs}


@pytest.mark.clause("CASE-39", "DPLRCASE-21")
@pytest.mark.parametrize("name", STATES)
def test_states_and_their_cotangents_are_drawn_and_move_nothing_else(name: str) -> None:
    whole, bare = new(request(name)), new(request(name, state=False))
    assert found(whole) - found(bare) == STATES[name][1]
    assert all(same_bits(x, whole.inputs[key]) for key, x in bare.inputs.items())
    drawn = [whole.inputs[f"in/{key}"] for key in STATES[name][1]]
    assert all(np.abs(x).max() > 0 for x in drawn)
    assert all("_bar" not in key for key in found(new(request(name, cotangent=False))))
    results = evaluate(whole, grad=True).tensors
    firsts = [key for key in STATES[name][1] if "_bar" not in key]
    assert all(np.abs(results[f"grad/{key}"]).max() > 0 for key in firsts)


@pytest.mark.clause("CASE-39", "DPLRCASE-21")
def test_a_state_is_one_that_the_recurrence_can_have_come_to() -> None:
    own = {"member": "linear_attn_normalized"}
    assert (new(Request(rule="dplr", parameters=own)).inputs["in/z0"] > 0).all()
    own = {"member": "precond_kda", "groups": 2, "state_layout": "(d_in, d_out)"}
    case = new(Request(rule="dplr", parameters=own))
    assert (case.inputs["in/A0"] >= 0).all()
    assert (case.inputs["in/A0"].shape, case.inputs["in/M0"].shape) == ((2, 4), (4, 4, 3))
    squares = new(Request(rule="recurrence", parameters={"member": "mesa"})).inputs["in/G0"]
    assert (np.linalg.eigvalsh(squares) > -1e-12).all()
    begun = new(Request(rule="recurrence", parameters={"member": "log_linear"}))
    assert "in/M0" not in begun.inputs  # no level holds a token before the first


@pytest.mark.clause("CASE-40")
@pytest.mark.parametrize("name", [name for name in STATES if name != "hebbian"])  # level token
def test_a_batch_is_an_axis_beside_heads_and_packs_as_one_row(name: str) -> None:
    case = new(request(name, batch=2, heads=3, packed=True))
    lead = {x.shape[:2] for key, x in case.inputs.items() if key in ("in/k", "in/x", "in/y_bar")}
    assert lead == {(2, 3)}
    results = evaluate(case).tensors
    names = {*results, *(f"in/{key}" for key in found(case))}
    rows = {key for key in names if ({**results, **case.inputs})[key].shape[:2] == (2, 3)}
    for row in range(2):
        own = {key: x[row] if key in rows else x for key, x in case.inputs.items()}
        alone = evaluate(case.replaced(inputs=own)).tensors
        np.testing.assert_allclose(alone["out/y"], results["out/y"][row], rtol=1e-12, atol=1e-14)
    reads = results["out/y"]
    bare = evaluate(new(request(name, batch=2, heads=3))).tensors["out/y"]
    assert not np.allclose(reads, bare)  # so that a kernel without resets shows


@pytest.mark.clause("CASE-40", "CONV-68")
@pytest.mark.parametrize(
    "settings", [{"rule": "omega"}, {"rule": "dplr"}, {"rule": "delta", "level": "token"}]
)
def test_rows_are_padded_in_front_or_behind(settings: dict[str, Any]) -> None:
    drawn = {**settings, "batch": 3, "tokens": 6}
    plain = new(Request(**drawn, packed=True))
    left, right = (new(Request(**drawn, packed=True, padded=side)) for side in ("left", "right"))
    silent = [0, 1, 2]
    assert left.inputs["in/active"].tolist() == [[0] * n + [1] * (6 - n) for n in silent]
    assert right.inputs["in/active"].tolist() == [[1] * (6 - n) + [0] * n for n in silent]
    reset = plain.inputs["in/reset"].tolist()
    assert reset == [0, 1, 0, 1, 0, 0]
    assert left.inputs["in/reset"].tolist() == [[0] * n + reset[: 6 - n] for n in silent]
    assert right.inputs["in/reset"].tolist() == [reset[: 6 - n] + [0] * n for n in silent]
    for case in (left, right):
        same = {name: x for name, x in case.inputs.items() if name not in ("in/active", "in/reset")}
        assert all(np.array_equal(x, plain.inputs[name]) for name, x in same.items())
        assert evaluate(case).tensors["out/y"].shape[:1] == (3,)
    alone = new(Request(**drawn, padded="right"))
    assert "in/reset" not in alone.inputs
    short = new(Request(**{**drawn, "tokens": 2}, padded="left"))
    assert short.inputs["in/active"].tolist() == [[1, 1], [0, 1], [1, 1]]


@pytest.mark.clause("CASE-40")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"rule": "omega"},
            "new: padded: a batch of 2 rows and 2 tokens are needed, found 1 and 8",
        ),
        ({"rule": "dplr", "batch": 2, "pulse": 2}, "new: padded and pulse: both say which tokens"),
        ({"rule": "deep_memory", "batch": 2}, "new: padded: belongs to rules omega, "),
        ({"rule": "recurrence", "batch": 2}, "new: padded: belongs to rules omega, "),
    ],
)
def test_padding_where_it_cannot_be_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(CaseError, match=message):
        new(Request(**settings, padded="left"))


@pytest.mark.clause("CASE-40")
def test_packed_sequences_have_unequal_lengths_and_no_silent_token() -> None:
    for tokens in (*range(3, 300), 1024):
        mask = starts(SimpleNamespace(packed=True, reset=0, tokens=tokens))
        assert mask is not None
        lengths = np.diff([0, *np.flatnonzero(mask), tokens]).tolist()
        assert len(set(lengths)) == len(lengths) == (3 if tokens >= 6 else 2), tokens
        assert min(lengths) > 0
    case = new(Request(rule="dplr", packed=True))
    assert case.inputs["in/reset"].tolist() == [0, 1, 0, 0, 1, 0, 0, 0]
    assert "in/active" not in case.inputs
    assert "in/M0" in case.inputs
    block = new(Request(rule="cms", packed=True))
    assert block.inputs["in/reset"].tolist() == case.inputs["in/reset"].tolist()


@pytest.mark.clause("CASE-39", "CASE-40", "DPLRCASE-20")
@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["delta", "--packed", "--reset", 3], "packed and reset: both say where sequences start"),
        (["dplr", "--packed", "--pulse", 2], "packed and pulse: no token is silent"),
        (["dplr", "--packed", "--tokens", 2], "packed: at least 3 tokens are needed, found 2"),
        (["newton_schulz", "--packed"], "packed: has no effect on a case of rule newton_schulz"),
        (["feature_map", "--no-state"], "state: has no effect on a case of rule feature_map"),
        (["newton_schulz", "--batch", 2], "batch: has no effect on a case of rule newton_schulz"),
        (["delta", "--groups", 2], "groups: the rule delta has none"),
        (["tnt", "--groups", 2], "parameters.groups: the rule tnt has none"),
        (
            ["dplr", "--groups", 2, "--parameter", "groups=2"],
            "groups and parameters.groups are one",
        ),
        (["delta", "--gate", "head"], "gate: belongs to rule dplr"),
        (["omega", "--log"], "log: belongs to rule dplr"),
        (
            ["dplr", "--parameter", "member=delta", "--gate", "head"],
            "gate: member delta has no tens",
        ),
        (
            ["dplr", "--parameter", "member=retention", "--no-log"],
            "log: member retention has no ten",
        ),
        (["dplr", "--parameter", "gate_formula=softplus", "--log"], "softplus makes the log"),
    ],
    ids=lambda each: " ".join(map(str, each)) if isinstance(each, list) else "",
)
def test_an_option_that_changes_nothing_is_refused(words: Any, error: str, cli, tmp_path) -> None:
    ran = cli("new", *words, "-o", tmp_path / "case")
    assert ran.code == 2
    assert error in ran.err
    assert not (tmp_path / "case").exists()


@pytest.mark.clause("DPLRCASE-20")
@pytest.mark.parametrize("member", [name for name in MEMBERS if MEMBERS[name].gated is True])
def test_a_case_has_the_gate_of_its_member(member: str) -> None:
    own = {"member": member}
    case = new(Request(rule="dplr", parameters=own, state=False))
    gate = "in/log_retain" if member in OF_HEADS else "in/retain"
    assert {"in/retain", "in/log_retain"} & case.inputs.keys() == {gate}
    axes = (2, 8) if member in OF_HEADS else (2, 8, 4)
    assert case.inputs[gate].shape == axes
    before = new(Request(rule="dplr", parameters=own, draw=1))
    others = case.inputs.keys() - {gate}
    assert others == before.inputs.keys() - {"in/retain"}
    assert all(same_bits(before.inputs[name], case.inputs[name]) for name in others)
    gates = before.inputs["in/retain"]
    for kind, first in (("head", gates[..., 0]), ("channel", gates)):
        for log, value in ((False, first), (True, np.log(first))):
            asked = new(Request(rule="dplr", parameters=own, gate=kind, log=log)).inputs
            assert same_bits(asked["in/log_retain" if log else "in/retain"], value)


@pytest.mark.clause("DPLRCASE-20")
def test_raw_numbers_have_the_channels_of_the_gate() -> None:
    own = {"gate_formula": "softplus", "beta_formula": "sigmoid"}
    sizes = {"heads": 2, "batch": 3, "groups": 2}
    head = new(Request(rule="dplr", parameters={"member": "gated_delta", **own}, **sizes)).inputs
    assert head["in/gate_input"].shape == (3, 4, 8)
    assert head["in/gate_bias"].shape == head["in/gate_log_rate"].shape == (4,)
    channel = new(Request(rule="dplr", parameters={"member": "kda", **own}, **sizes)).inputs
    assert channel["in/gate_input"].shape == (3, 4, 8, 4)
    assert (channel["in/gate_bias"].shape, channel["in/gate_log_rate"].shape) == ((4, 4), (4,))


@pytest.mark.clause("CASE-40", "DPLRCASE-20")
def test_the_command_draws_what_its_options_say(cli, tmp_path) -> None:
    words = ["--parameter", "member=gated_delta", "--batch", 2, "--groups", 2, "--packed"]
    ran = cli("new", "dplr", *words, "--cotangent", "-o", tmp_path / "case")
    assert (ran.code, ran.err) == (0, f"wrote {tmp_path / 'case'}\n")
    case = atlas_ref.load(tmp_path / "case")
    assert (case.header.parameters or {})["groups"] == 2
    shapes = {name: case.inputs[f"in/{name}"].shape for name in ("k", "v", "log_retain", "M0")}
    assert shapes == {
        "k": (2, 2, 8, 4),
        "v": (2, 4, 8, 3),
        "log_retain": (2, 4, 8),
        "M0": (2, 4, 3, 4),
    }
    assert {"in/M_bar", "in/reset"} <= case.inputs.keys()
    ran = cli("new", "dplr", "--gate", "bead", "-o", tmp_path / "other")
    assert (ran.code, "'head', 'channel'" in ran.err) == (2, True)
    with pytest.raises(CaseError, match="groups: the rule omega has none"):
        new(Request(rule="omega", groups=2))
