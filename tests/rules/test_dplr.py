"""The rule dplr, DPLR-1 to DPLR-11: refusals, split calls, gates of 0, reductions with their twins,
the backward written out.
"""

from typing import Any

import numpy as np
import pytest

import tape
from atlas_ref.forms import dplr as forms
from atlas_ref.forms.dplr import FORMS
from atlas_ref.rules import delta, dplr, hebbian, sequence
from tape import ops
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs
from tests.support.counting import counted, multiply_adds
from tests.support.linear_family import computed, drawn

T, K, V = 5, 4, 3
DRAW = np.random.default_rng(11)
ARRAYS = {
    "k": (2, T, K),
    "v": (2, T, V),
    "q": (2, T, K),
    "retain": (2, T, K),
    "erase_read": (2, T, K),
    "erase_write": (2, T, K),
}


def arrays(seed: int = 0, **changes: Any) -> dict[str, Any]:
    """Tokens of two memories, with the changes; None leaves an array out."""
    draw = np.random.default_rng(seed)
    made = {name: 0.5 * draw.standard_normal(shape) for name, shape in ARRAYS.items()}
    made["retain"] = draw.uniform(0.2, 1.0, ARRAYS["retain"])
    return {name: value for name, value in (made | changes).items() if value is not None}


def run(tokens: dict[str, Any], M: Any = None, **settings: Any) -> dict[str, Any]:
    config = dplr.Config(**({"d_in": K, "d_out": V} | settings))
    leading = tokens["v"].shape[:-2]
    state = dplr.start(config, leading) if M is None else dplr.State(M=M)
    state, y = dplr.run(config, dplr.Tokens(**tokens), state)
    return {"y": y, "M": state.M}


def same(got: dict[str, Any], want: dict[str, Any], tolerance: Any = ANALYTIC) -> None:
    for name, value in want.items():
        assert_close(name, got[name], value, tolerance)


# -- the step --------------------------------------------------------------------------------------


@pytest.mark.clause("DPLR-1", "DPLR-2", "DPLR-3", "DPLR-5")
def test_two_tokens_by_hand():
    """One number each.

    w 1/2, a 2, b 1: M = 4 (1/2 - 2) + 3 = -3; before_error 4 (1/2)(1 - 2) + 3 = 1.
    """
    tokens = {
        "k": np.ones((1, 1)),
        "v": np.full((1, 1), 3.0),
        "q": np.full((1, 1), 2.0),
        "retain": np.full((1, 1), 0.5),
        "erase_read": np.full((1, 1), 2.0),
        "erase_write": np.ones((1, 1)),
    }
    M = np.full((1, 1), 4.0)
    sizes = {"d_in": 1, "d_out": 1}
    same(run(tokens, M, **sizes), {"y": np.full((1, 1), -6.0), "M": np.full((1, 1), -3.0)}, EXACT)
    after = run(tokens, M, decay="before_error", **sizes)
    same(after, {"y": np.full((1, 1), 2.0), "M": np.full((1, 1), 1.0)}, EXACT)
    seen = run(tokens | {"bonus": np.full(1, 0.5)}, M, **sizes)
    assert seen["y"] == (4.0 + 3.0 * 0.5) * 2.0


@pytest.mark.clause("DPLR-1")
def test_the_memory_starts_at_zero_and_an_absent_gate_is_one():
    bare = arrays(retain=None)
    assert_close("M", run(bare)["M"], run(bare, np.zeros((2, V, K)))["M"], EXACT)
    same(run(bare), run(bare | {"retain": np.ones((2, T))}), EXACT)


@pytest.mark.clause("DPLR-1", "DPLR-4", "DPLR-6")
@pytest.mark.parametrize(
    ("changes", "settings", "message"),
    [
        ({"retain": np.full((2, T, V), 0.5)}, {}, r"retain: shape \(2, 5, 3\), expected \(2, 5\) or \(2, 5, 4\)"),
        ({"retain": np.full((2, T, K), 1.5)}, {}, "retain: "),
        ({"retain": np.full((2, T, K), -0.5)}, {}, "retain: "),
        ({"k": np.full((2, T, K), np.nan)}, {}, "k: every entry must be finite"),
        ({"q": None}, {}, "q\n  Field required"),
        ({"erase_read": None}, {}, "erase_read: missing, an erase has both of its vectors"),
        ({"erase_write": None}, {}, "erase_write: missing, an erase has both of its vectors"),
        ({"erase_write": np.ones((2, T, V))}, {}, r"erase_write: shape \(2, 5, 3\), expected \(2, 5, 4\)"),
        ({"v": np.ones((2, T, K))}, {}, r"v: shape \(2, 5, 4\), expected \(2, 5, 3\)"),
        ({"v": np.ones((2, 0, V))}, {}, "v: shape .*, expected rows for whole tokens of steps = 1"),
        ({}, {"steps": 2}, r"v: shape \(2, 5, 3\), expected rows for whole tokens of steps = 2"),
        ({}, {"steps": 5, "groups": 1}, r"q: shape \(2, 5, 4\), expected \(2, 1, 4\)"),
        ({"q": np.ones((2, 1, K)), "retain": None, "bonus": np.ones(K)}, {"steps": 5}, "bonus: a read before the write has one"),
        ({"bonus": np.ones(V)}, {}, r"bonus: shape \(3,\), expected \(2, 4\) or \(4,\)"),
        ({}, {"groups": 2}, r"k: shape \(2, 5, 4\), expected \(1, 5, 4\)"),
        ({}, {"groups": 3}, r"v: leading axes \(2,\), expected value heads in whole groups of 3"),
        ({"active": np.ones(T)}, {}, "active: float64, expected bool"),
        ({"reset": np.ones(T + 1, bool)}, {}, r"reset: shape \(6,\), expected \(5,\)"),
        ({"k": np.ones((2, T, K), np.float32)}, {}, "v: float64, but k is float32"),
    ],
)  # fmt: skip
def test_what_contradicts_the_configuration_is_refused(changes, settings, message):
    with pytest.raises(ValueError, match=message):
        run(arrays(**changes), **settings)


@pytest.mark.clause("DPLR-18")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"erase_scale": np.ones((2, T, K))}, r"erase_scale: shape \(2, 5, 4\), expected \(2, 5, 3\)"),
        ({"erase_scale": np.full((2, T, V), np.inf)}, "erase_scale: every entry must be finite"),
        ({"erase_scale": np.ones((2, T, V)), "erase_read": None, "erase_write": None}, "erase_scale: belongs to an erase, there is none"),
    ],
)  # fmt: skip
def test_factors_of_rows_of_another_shape_or_without_an_erase_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        run(arrays(**changes))


@pytest.mark.clause("DPLR-18")
@pytest.mark.parametrize("decay", ["after_error", "before_error"])
def test_factors_of_rows_are_the_loop_that_the_clause_prints_and_equal_ones_no_factors(decay):
    x = arrays(9, erase_scale=DRAW.uniform(0.0, 1.0, (2, T, V)))
    M = DRAW.standard_normal((2, V, K))
    for h in range(2):
        row = M[h].copy()
        for t in range(T):
            w, a, b = x["retain"][h, t], x["erase_read"][h, t], x["erase_write"][h, t]
            for o in range(V):
                found = np.sum(row[o] * (a if decay == "after_error" else w * a))
                own = x["erase_scale"][h, t, o] * found
                row[o] = row[o] * w - own * b + x["v"][h, t, o] * x["k"][h, t]
            assert_close("y", run(x, M, decay=decay)["y"][h, t], row @ x["q"][h, t], ANALYTIC)
    even = but(x, erase_scale=np.repeat(x["erase_scale"][..., :1], V, axis=-1))
    taken = but(x, "erase_scale", erase_write=x["erase_scale"][..., :1] * x["erase_write"])
    same(run(even, M, decay=decay), run(taken, M, decay=decay))
    assert_differs("y", run(x, M, decay=decay)["y"], run(taken, M, decay=decay)["y"], 1e-3)


@pytest.mark.clause("DPLR-18", "DPLR-10")
def test_gradients_of_factors_of_rows_are_their_complex_steps():
    x = arrays(9, erase_scale=DRAW.uniform(0.0, 1.0, (2, T, V)))

    def loss(inputs):
        got = run(inputs, decay="before_error")
        return ops.sum(got["y"] * got["y"]) + ops.sum(got["M"])

    own, want = tape.grad(loss)(x), tape.check.complex_step(loss, x)
    for name, value in want.items():
        assert_close(name, own[name], value, ANALYTIC)


@pytest.mark.clause("DPLR-1")
def test_a_memory_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"state.M: shape \(2, 4, 3\), expected \(2, 3, 4\)"):
        run(arrays(), np.zeros((2, K, V)))


@pytest.mark.clause("DPLR-1")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(2, T), (2, T, K)])
def test_a_log_stands_for_its_gate_and_its_minus_infinity_for_a_gate_of_zero(shape, form):
    logs = -DRAW.uniform(0.0, 3.0, shape)
    logs[0, 1], logs[1, 2] = -np.inf, 0.0
    tokens = arrays(retain=None)

    def loss(x):
        config = dplr.Config(d_in=K, d_out=V, decay="before_error")
        state, y = forms.run(form, config, dplr.Tokens(**x), dplr.start(config, (2,)))
        return ops.sum(y * y) + ops.sum(state.M)

    own = tape.grad(loss)(tokens | {"log_retain": logs})
    gate = tape.grad(loss)(tokens | {"retain": np.exp(logs)})
    if form == "sequential":
        same(run(tokens | {"log_retain": logs}), run(tokens | {"retain": np.exp(logs)}), EXACT)
        assert_close(
            "g",
            own["log_retain"],
            tape.check.complex_step(loss, tokens | {"log_retain": logs})["log_retain"],
            ANALYTIC,
        )
    assert_close("g", own["log_retain"], np.exp(logs) * gate["retain"], ANALYTIC)
    assert np.all(own["log_retain"][0, 1] == 0.0)
    assert np.abs(own["log_retain"][1, 2]).min() > 0.0


@pytest.mark.clause("DPLR-1")
@pytest.mark.parametrize(
    ("logs", "message"),
    [
        (np.full((2, T), 0.1), r"log_retain: entries must be at most 0, found 0.1 at \(0, 0\)"),
        (np.full((2, T), np.nan), "log_retain: entries must be at most 0, found nan"),
        (np.full((2, T), -1.0, np.float32), "log_retain"),
        (np.zeros((2, T + 1)), r"log_retain: shape \(2, 6\), expected \(2, 5\) or \(2, 5, 4\)"),
        ("-1", "log_retain: an array is needed"),
    ],
)
def test_a_log_of_another_range_or_shape_is_refused(logs, message):
    with pytest.raises(ValueError, match=message):
        run(arrays(retain=None, log_retain=logs))


@pytest.mark.clause("DPLR-1")
def test_a_log_beside_its_gate_is_refused():
    with pytest.raises(ValueError, match="log_retain: stands in place of retain, both were given"):
        run(arrays(log_retain=np.zeros((2, T))))


@pytest.mark.clause("DPLR-2", "DPLR-3")
@pytest.mark.parametrize("decay", ["after_error", "before_error"])
def test_a_gate_of_zero_and_of_the_smallest_numbers_leaves_values_and_gradients_finite(decay):
    gates = np.ones((2, T, K))
    gates[0, 1], gates[1, 2, 0], gates[:, 3, 1] = 0.0, 5e-324, np.exp(-100.0)
    tokens = arrays(retain=gates)

    def loss(x):
        return ops.sum(run(x, decay=decay)["y"])

    got, own = run(tokens, decay=decay), tape.grad(loss)(tokens)
    assert all(np.isfinite(value).all() for value in (*got.values(), *own.values()))
    assert_close("retain", own["retain"], tape.check.complex_step(loss, tokens)["retain"], ANALYTIC)


@pytest.mark.clause("DPLR-7")
@pytest.mark.parametrize("cut", range(1, T))
def test_a_split_call_is_the_whole_one_bit_for_bit(cut):
    tokens, M = arrays(), DRAW.standard_normal((2, V, K))
    whole = run(tokens, M)
    first = run({name: value[:, :cut] for name, value in tokens.items()}, M)
    second = run({name: value[:, cut:] for name, value in tokens.items()}, first["M"])
    y = np.concatenate([first["y"], second["y"]], axis=1)
    same({"y": y, "M": second["M"]}, whole, EXACT)


@pytest.mark.clause("DPLR-7", "DPLR-5")
@pytest.mark.parametrize("bonus", [None, np.full(K, 0.3)])
def test_an_inactive_token_writes_nothing_and_reads_the_memory_as_it_is(bonus):
    tokens, M = arrays(bonus=bonus), DRAW.standard_normal((2, V, K))
    silent = run(tokens | {"active": np.zeros(T, bool)}, M)
    assert_close("M", silent["M"], M, EXACT)
    assert_close("y", silent["y"], np.einsum("hvk,htk->htv", M, tokens["q"]), ANALYTIC)
    assert_differs("y", run(tokens, M)["y"], silent["y"], 1e-3)


@pytest.mark.clause("DPLR-7")
def test_a_reset_restores_the_memory_of_the_start_of_the_call():
    tokens, M = arrays(), DRAW.standard_normal((2, V, K))
    packed = run(tokens | {"reset": np.arange(T) == 3}, M)
    alone = run({name: value[:, 3:] for name, value in tokens.items()}, M)
    same({"y": packed["y"][:, 3:], "M": packed["M"]}, alone, EXACT)
    assert_differs("M", run(tokens, M)["M"], packed["M"], 1e-3)


@pytest.mark.clause("DPLR-6")
def test_a_group_is_its_heads_repeated_and_its_gradient_their_sum():
    wide = arrays()
    narrow = wide | {name: wide[name][:1] for name in ("k", "q")}
    repeated = wide | {name: np.repeat(narrow[name], 2, axis=0) for name in ("k", "q")}
    same(run(narrow, groups=2), run(repeated), EXACT)
    own = tape.grad(lambda x: ops.sum(run(x, groups=2)["y"]))(narrow)
    each = tape.grad(lambda x: ops.sum(run(x)["y"]))(repeated)
    for name in ("k", "q"):
        assert_close(name, own[name], each[name].sum(axis=0, keepdims=True), ANALYTIC)


@pytest.mark.clause("DPLR-6")
def test_value_head_i_reads_key_head_i_over_the_size_of_a_group():
    x = np.arange(2.0)[:, None, None]
    assert dplr.of_groups(x, 3).ravel().tolist() == [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]


# -- reductions ------------------------------------------------------------------------------------


def equal(one: str, other: str, given: Any, twin: Any, seed: int = 3) -> None:
    """`one` is `other` on inputs that fulfil a condition, and differs where the twin breaks it."""
    x = drawn(one, seed)
    same(computed(one, x), computed(other, given(x)))
    broken = twin(x)
    x, y = broken if isinstance(broken, tuple) else (x, broken)
    assert_differs("y", computed(one, x)["y"], computed(other, y)["y"], 1e-3)


def channels(x: dict[str, Any]) -> Any:
    """A scalar log gate in every channel."""
    return np.repeat(x["log_decay"][..., None], K, axis=-1)


def uneven(x: dict[str, Any]) -> Any:
    return channels(x) * np.linspace(0.5, 1.5, K)


def but(x: dict[str, Any], *names: str, **more: Any) -> dict[str, Any]:
    return {name: value for name, value in x.items() if name not in names} | more


def column(x: Any) -> Any:
    return x[..., None]


@pytest.mark.clause("DPLR-8")
@pytest.mark.parametrize(("one", "per_channel"), [("gated_delta", "kda"), ("simple_gla", "gla")])
def test_equal_channels_are_one_gate_for_all(one, per_channel):
    equal(
        one,
        per_channel,
        lambda x: but(x, log_decay=channels(x)),
        lambda x: but(x, log_decay=uneven(x)),
    )


@pytest.mark.clause("DPLR-8")
def test_gated_delta_with_gate_one_is_delta():
    def gate(log):
        return lambda x: but(x, log_decay=np.full(x["beta"].shape, log))

    equal("delta", "gated_delta", gate(0.0), gate(-0.1))


@pytest.mark.clause("DPLR-8")
def test_one_step_of_a_product_is_gated_delta_and_two_are_not():
    def twice(x):
        return but(x, **{name: np.repeat(x[name], 2, axis=2) for name in ("k", "v", "beta")})

    equal("gated_delta", "gated_delta_product", dict, twice)


@pytest.mark.clause("DPLR-8")
def test_gdn2_with_both_gates_beta_is_kda():
    def gates(factor):
        return lambda x: but(
            x,
            "beta",
            erase_gate=np.repeat(column(factor * x["beta"]), K, axis=-1),
            write_gate=np.repeat(column(x["beta"]), V, axis=-1),
        )

    equal("kda", "gdn2", gates(1.0), gates(0.5))


@pytest.mark.clause("DPLR-8")
def test_dplr_with_a_decayed_key_is_kda():
    def vectors(decayed):
        return lambda x: but(
            x,
            alpha=-x["k"] * (np.exp(x["log_decay"]) if decayed else 1.0),
            beta=column(x["beta"]) * x["k"],
            v=column(x["beta"]) * x["v"],
        )

    equal("kda", "dplr", vectors(True), vectors(False))


@pytest.mark.clause("DPLR-8")
def test_dplr_with_gate_one_is_iplr():
    def gate(log):
        return lambda x: but(x, log_decay=np.full(x["k"].shape, log))

    equal("iplr", "dplr", gate(0.0), gate(-0.1))


@pytest.mark.clause("DPLR-8")
def test_iplr_along_the_key_is_delta():
    def vectors(sign):
        return lambda x: but(
            x,
            alpha=sign * x["k"],
            beta=column(x["beta"]) * x["k"],
            v=column(x["beta"]) * x["v"],
        )

    equal("delta", "iplr", vectors(-1.0), vectors(1.0))


@pytest.mark.clause("DPLR-8")
def test_rwkv7_is_dplr_with_its_vectors_but_for_the_scale():
    def vectors(scale):
        return lambda x: but(x, "kk", "a", alpha=-x["kk"], beta=x["kk"] * x["a"], q=x["q"] * scale)

    equal("rwkv7", "dplr", vectors(K**0.5), vectors(1.0))


@pytest.mark.clause("DPLR-8", "DPLR-5")
def test_rwkv6_under_a_bonus_of_one_reads_as_gla_does_where_nothing_decays():
    def gla(log):
        return lambda x: but(x, "bonus", log_decay=np.full(x["k"].shape, log))

    x = drawn("rwkv6", 3)
    still = but(x, log_decay=np.zeros(x["k"].shape), bonus=np.ones((2, K)))
    same(computed("rwkv6", still), computed("gla", gla(0.0)(x)))
    assert_differs(
        "y",
        computed("rwkv6", but(x, bonus=np.ones((2, K))))["y"],
        computed("gla", but(x, "bonus"))["y"],
        1e-3,
    )


@pytest.mark.clause("DPLR-8", "DPLR-9")
def test_comba_with_the_key_is_gated_delta_only_where_the_decay_comes_first():
    x = drawn("gated_delta", 3)
    own = but(x, erase_key=x["k"])
    same(computed("comba_decay_before_erase", own), computed("gated_delta", x))
    op = computed("comba_decay_after_erase", own)
    assert_differs("y", op["y"], computed("gated_delta", x)["y"], 1e-2)
    decayed = but(x, erase_key=x["k"] * np.exp(column(x["log_decay"])))
    same(computed("comba_decay_after_erase", decayed), computed("gated_delta", x))


@pytest.mark.clause("DPLR-9", "DPLR-8")
@pytest.mark.parametrize("decay", ["after_error", "before_error"])
def test_delta_under_either_decay_is_the_rule_with_a_scalar_gate(decay):
    """The rule delta, which shares no code with this one, and its twin under the other decay."""
    x = arrays(retain=DRAW.uniform(0.2, 1.0, (2, T)), erase_read=None, erase_write=None)
    beta = DRAW.uniform(0.0, 1.0, (2, T))
    config = delta.Config(d_in=K, d_out=V, convention={"gate": "retain", "decay": decay})
    tokens = sequence.Tokens(**x, step_size=beta)
    state, y = sequence.run(delta.RULE, config, tokens, delta.start(config, (2,)))
    own = x | {
        "erase_read": x["k"],
        "erase_write": column(beta) * x["k"],
        "v": column(beta) * x["v"],
    }
    same(run(own, decay=decay), {"y": y, "M": state.M})
    other = "before_error" if decay == "after_error" else "after_error"
    assert_differs("y", run(own, decay=other)["y"], y, 1e-3)


@pytest.mark.clause("DPLR-8")
def test_without_an_erase_it_is_the_rule_hebbian():
    x = arrays(retain=DRAW.uniform(0.2, 1.0, (2, T)), erase_read=None, erase_write=None)
    config = hebbian.Config(d_in=K, d_out=V, convention={"gate": "retain"})
    state, y = sequence.run(hebbian.RULE, config, sequence.Tokens(**x), hebbian.start(config, (2,)))
    same(run(x), {"y": y, "M": state.M})
    channel = but(x, retain=x["retain"][..., None] ** np.linspace(0.5, 1.5, K))
    assert_differs("y", run(channel)["y"], y, 1e-3)


# -- gradients and cost ----------------------------------------------------------------------------


@pytest.mark.clause("DPLR-10", "DPLR-2", "DPLR-5")
def test_the_pullback_is_the_one_written_out():
    x, M0 = arrays(), DRAW.standard_normal((2, V, K))
    y_bar, M_bar = DRAW.standard_normal((2, T, V)), DRAW.standard_normal((2, V, K))

    def called(inputs):
        tokens = {name: value for name, value in inputs.items() if name != "M0"}
        got = run(tokens, inputs["M0"])
        return ops.sum(y_bar * got["y"]) + ops.sum(M_bar * got["M"])

    own = tape.grad(called)({**x, "M0": M0})
    for h in range(2):
        at = {name: value[h] for name, value in x.items()}
        memories = [M0[h]]
        for t in range(T):
            memories.append(
                run({name: value[h : h + 1, : t + 1] for name, value in x.items()}, M0[h : h + 1])[
                    "M"
                ][0]
            )
        carry = M_bar[h]
        for t in reversed(range(T)):
            before, after = memories[t], memories[t + 1]
            a, b, w = at["erase_read"][t], at["erase_write"][t], at["retain"][t]
            total = carry + np.outer(y_bar[h, t], at["q"][t])
            want = {
                "q": after.T @ y_bar[h, t],
                "v": total @ at["k"][t],
                "k": total.T @ at["v"][t],
                "retain": (total * before).sum(axis=0),
                "erase_write": -total.T @ (before @ a),
                "erase_read": -before.T @ (total @ b),
            }
            for name, value in want.items():
                assert_close(f"{name} {t}", own[name][h, t], value, ANALYTIC)
            carry = total @ (np.diag(w) - np.outer(b, a))
        assert_close("M0", own["M0"][h], carry, ANALYTIC)


@pytest.mark.clause("DPLR-10")
@pytest.mark.parametrize("bonus", [None, (K,), (2, K)])
@pytest.mark.parametrize("decay", ["after_error", "before_error"])
@pytest.mark.parametrize("scalar", [False, True])
def test_every_gradient_is_its_complex_step(decay, scalar, bonus):
    x = arrays(retain=DRAW.uniform(0.1, 1.0, (2, T) if scalar else (2, T, K)))
    x |= {} if bonus is None else {"bonus": DRAW.standard_normal(bonus)}
    weights = DRAW.standard_normal((2, T, V))

    def loss(inputs):
        got = run(inputs, decay=decay, query_scale="1/sqrt(d_in)")
        return ops.sum(weights * got["y"]) + ops.sum(got["M"] * got["M"])

    own, want = tape.grad(loss)(x), tape.check.complex_step(loss, x)
    for name, value in want.items():
        assert_close(name, own[name], value, ANALYTIC)


@pytest.mark.clause("DPLR-11")
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("erases", [True, False])
@pytest.mark.host("counts products of NumPy arrays")
def test_a_token_costs_three_products_a_step_and_a_read(steps, erases):
    config = dplr.Config(d_in=K, d_out=V, steps=steps)
    vectors = [counted(np.ones(size)) for size in (K, V, K, K)]
    step = dplr.Step(*vectors) if erases else dplr.Step(*vectors[:2])
    M, retain = counted(np.zeros((V, K))), np.ones((1, K))
    work = multiply_adds(
        lambda: dplr.read(config, dplr.write(config, M, retain, [step] * steps), vectors[0])
    )
    assert work == (3 * steps + 1 if erases else steps + 1) * V * K
    assert dplr.start(config).M.size == V * K
