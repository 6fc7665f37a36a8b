"""Errata of the special cases: containments of rules and their conditions."""

import numpy as np
import pytest

from tests.truth.running_loops import near, omega, ours, relative, titans, tokens


@pytest.mark.clause("E-A10")
def test_e_a10_the_printed_single_token_form_is_not_the_delta_rule():
    _, keys, values = tokens(count=30, d_in=6, d_out=6)
    printed, delta, corrected = np.zeros((6, 6)), np.zeros((6, 6)), np.zeros((6, 6))
    for key, value in zip(keys, values, strict=True):
        printed = (0.98 * np.eye(6) - np.outer(key, key)) @ printed - np.outer(value, key)
        delta = 0.98 * delta - np.outer(delta @ key - value, key)
        corrected = corrected @ (0.98 * np.eye(6) - np.outer(key, key)) + np.outer(value, key)
    cosine = np.vdot(printed, delta) / np.linalg.norm(printed) / np.linalg.norm(delta)
    assert (relative(printed, delta), cosine) == near((1.65, -0.692), 0.01)
    assert relative(corrected, delta) < 1e-12
    assert (
        relative(ours("delta", keys, values, np.full(30, 0.98), rate=np.ones(30))["M"], corrected)
        < 1e-12
    )


@pytest.mark.clause("E-A24")
def test_e_a24_one_token_without_newton_schulz_is_titans_only_under_conditions():
    random, keys, values = tokens()
    count, one = len(keys), np.ones(len(keys))
    momentum, rate = 0.5 + 0.4 * random.random(count), np.full(count, 0.2)
    varying, forget = 0.05 + 0.3 * random.random(count), 0.02 + 0.05 * random.random(count)
    start = random.standard_normal((5, 6))
    for h, literal, retained, outside in (
        (rate, 0.969, 0.786, 0.0),
        (varying, 0.964, 0.763, 0.375),
    ):
        truth = titans(keys, values, forget, momentum, h)
        assert relative(omega(keys, values, forget, momentum, h, h), truth) == near(literal)
        assert relative(omega(keys, values, 1 - forget, momentum, h, h), truth) == near(retained)
        assert relative(omega(keys, values, 1 - forget, momentum, one, h), truth) == pytest.approx(
            outside, rel=0.02, abs=1e-12
        )
        for trace in (np.zeros((5, 6)), start):  # rate "momentum": any S_0, any rate
            inside = omega(keys, values, 1 - forget, momentum, h, one, trace=trace)
            assert relative(inside, titans(keys, values, forget, momentum, h, -trace)) < 1e-12
            got = ours(
                "omega", keys, values, 1 - forget, momentum, h, {"newton_schulz": "none"}, S0=trace
            )
            same = ours(
                "titans_lmm",
                keys,
                values,
                forget,
                momentum,
                h,
                {"gate": "forget", "momentum_sign": "minus"},
                S0=-trace,
            )
            assert relative(got["M"], inside[-1]) < 1e-12
            assert relative(same["M"], inside[-1]) < 1e-12
            assert relative(same["S"], -got["S"]) < 1e-12
    # with an initial momentum even a constant rate shows its place
    outside = omega(keys, values, 1 - forget, momentum, one, rate, trace=start)
    assert relative(outside, titans(keys, values, forget, momentum, rate, -start)) == near(0.683)


@pytest.mark.clause("E-A25")
def test_e_a25_the_delta_row_needs_one_rate_and_a_true_zero():
    random, keys, values = tokens()
    count = len(keys)
    forget, rate, none = (
        0.02 + 0.05 * random.random(count),
        0.05 + 0.3 * random.random(count),
        np.zeros(count),
    )
    delta = titans(keys, values, forget, none, rate)
    assert relative(omega(keys, values, 1 - forget, none, rate, rate), delta) == near(0.694)
    assert relative(omega(keys, values, 1 - forget, none, rate, np.ones(count)), delta) < 1e-12
    assert relative(ours("delta", keys, values, 1 - forget, rate=rate)["M"], delta[-1]) < 1e-12
    assert (
        relative(
            ours(
                "omega", keys, values, 1 - forget, rate=rate, convention={"newton_schulz": "none"}
            )["M"],
            delta[-1],
        )
        < 1e-12
    )
    assert 1 / (1 + np.exp(20.0)) == near(2.1e-9)  # a computed gate never reaches zero


@pytest.mark.clause("E-A26")
def test_e_a26_hebbian_is_not_a_gate_setting_of_the_delta_rule():
    _, keys, values = tokens()
    forget, rate = 0.03, 0.2
    hebbian, without_memory = np.zeros((5, 6)), np.zeros((5, 6))
    for key, value in zip(keys, values, strict=True):
        hebbian = (1 - forget) * hebbian + np.outer(value, key)
        without_memory = (1 - forget) * without_memory - rate * np.outer(0 * value - value, key)
    count = len(keys)
    delta = titans(keys, values, np.full(count, forget), np.zeros(count), np.full(count, rate))[-1]
    assert relative(delta, hebbian) == near(0.86)
    assert relative(without_memory / rate, hebbian) < 1e-12
    retain, one = np.full(count, 1 - forget), np.ones(count)
    assert relative(ours("hebbian", keys, values, retain)["M"], hebbian) < 1e-12
    assert (
        relative(
            ours("delta", keys, values, retain, rate=one, convention={"reference": "zero"})["M"],
            hebbian,
        )
        < 1e-12
    )

    def limit(h):
        return titans(keys, values / h, np.full(count, forget), np.zeros(count), np.full(count, h))[
            -1
        ]

    ratio = relative(limit(1e-4), hebbian) / relative(limit(1e-5), hebbian)
    # the limit h -> 0 of Delta with v / h: an error of first order
    assert ratio == near(10.0, 0.01)


@pytest.mark.clause("E-A27")
def test_e_a27_a_uniform_window_does_not_contain_the_delta_rule():
    _, keys, values = tokens(count=200)
    none, one, rate = np.zeros(200), np.ones(200), np.full(200, 0.5)

    def newest_error(memories):
        return np.mean([np.sum((memories[t] @ keys[t] - values[t]) ** 2) for t in range(50, 200)])

    errors = [
        newest_error(omega(keys, values, one, none, rate, one, window)) for window in (1, 4, 16)
    ]
    assert errors == near([1.76, 5.04, 5.72], 0.01)
    memory = np.zeros((5, 6))
    for t in range(200):  # weights (1, 0, 0, 0) by lag: the delta rule inside a window of 4
        weights = (1, 0, 0, 0)
        memory = memory - 0.5 * sum(
            weights[j] * np.outer(memory @ keys[t - j] - values[t - j], keys[t - j])
            for j in range(4)
            if t >= j
        )
    delta = titans(keys, values, none, none, rate)[-1]
    assert relative(memory, delta) < 1e-12
    newest = np.tile([1.0, 0.0, 0.0, 0.0], (200, 1))
    got = ours(
        "omega",
        keys,
        values,
        one,
        rate=rate,
        convention={"newton_schulz": "none"},
        window=4,
        window_weights=newest,
    )
    assert relative(got["M"], delta) < 1e-12


@pytest.mark.clause("E-D01")
def test_e_d01_the_delta_rule_is_affine_in_the_memory():
    random, keys, values = tokens(count=33)
    forget, rate = 0.02 + 0.1 * random.random(33), 0.1 + 0.5 * random.random(33)
    maps = [(1 - forget[t]) * np.eye(6) - rate[t] * np.outer(keys[t], keys[t]) for t in range(33)]
    writes, reach = [rate[t] * np.outer(values[t], keys[t]) for t in range(33)], 1
    while reach < 33:  # log-depth composition of pairs, any length
        old_maps, old_writes = list(maps), list(writes)
        for t in range(reach, 33):
            maps[t], writes[t] = (
                old_maps[t - reach] @ old_maps[t],
                old_writes[t - reach] @ old_maps[t] + old_writes[t],
            )
        reach *= 2
    assert relative(np.array(writes), titans(keys, values, forget, np.zeros(33), rate)) < 1e-12
    assert relative(writes[-1], ours("delta", keys, values, 1 - forget, rate=rate)["M"]) < 1e-12

    def residual_of_affinity(update):
        one, two = np.random.default_rng(1).standard_normal((2, 5, 6))
        return np.abs(update(0.3 * one + 0.7 * two) - 0.3 * update(one) - 0.7 * update(two)).max()

    def delta(memory):
        return ours(
            "delta", keys[:1], values[:1], np.full(1, 0.9), rate=np.full(1, 0.3), M0=memory
        )["M"]

    def with_newton_schulz(memory):
        return ours(
            "omega",
            keys[:1],
            values[:1],
            np.full(1, 0.9),
            rate=np.full(1, 0.3),
            convention="atlas-paper",
            M0=memory,
        )["M"]

    assert residual_of_affinity(delta) < 1e-12
    # what is not affine is Newton-Schulz
    assert residual_of_affinity(with_newton_schulz) == near(5.03e-3)


@pytest.mark.clause("E-D06")
def test_e_d06_a_delta_update_depends_on_the_history():
    _, keys, values = tokens(count=20)
    none, rate = np.zeros(20), np.full(20, 0.5)
    changed = values.copy()
    changed[0] += 1
    last = [np.diff(titans(keys, v, none, none, rate), axis=0)[-1] for v in (values, changed)]
    assert relative(last[1], last[0]) == near(0.0158)  # the first value moves the last update
    # what does hold: given the memory before it, the update needs the token alone; with momentum it
    # does not
    for momentum, number in ((none, 0.0), (np.full(20, 0.9), 0.609)):
        before, after = titans(keys, values, none, momentum, rate)[-2:]
        alone = before - 0.5 * np.outer(before @ keys[-1] - values[-1], keys[-1])
        assert relative(alone - before, after - before) == pytest.approx(
            number, rel=0.02, abs=1e-12
        )
        one = np.ones(20)
        rule, gates = ("delta", (one, None)) if number == 0 else ("titans_lmm", (one, momentum))
        assert relative(ours(rule, keys, values, *gates, rate)["M"], after) < 1e-12


@pytest.mark.clause("E-P10")
def test_e_p10_titans_without_decay_and_momentum_is_deltanet():
    _, keys, values = tokens(count=20)
    none, rate = np.zeros(20), np.full(20, 0.3)
    titans_memory = titans(keys, values, none, none, rate)[-1]
    linear_attention = 0.3 * sum(np.outer(values[t], keys[t]) for t in range(20))
    assert relative(titans_memory, linear_attention) == near(0.40)
    delta_net = np.zeros((5, 6))
    for key, value in zip(keys, values, strict=True):
        delta_net = delta_net @ (np.eye(6) - 0.3 * np.outer(key, key)) + 0.3 * np.outer(value, key)
    assert relative(titans_memory, delta_net) < 1e-12
    got = ours("titans_lmm", keys, values, none, none, rate, {"gate": "forget"})["M"]
    assert relative(got, delta_net) < 1e-12


@pytest.mark.clause("E-R10")
def test_e_r10_the_boxed_titans_form_has_no_momentum():
    _, keys, values = tokens(count=64, d_in=8, d_out=8)
    retain, momentum, rate, one = (
        np.full(64, 0.98),
        np.full(64, 0.88),
        np.full(64, 0.3),
        np.ones(64),
    )
    boxed = omega(keys, values, retain, 0 * momentum, one, rate)
    full = omega(keys, values, retain, momentum, one, rate)
    assert relative(boxed[-1], full[-1]) == near(0.963)
    # "requiring O(T) sequential steps" (E-R10b): the form with momentum is one affine map a token
    # on [M S]
    forget, state, memories = 1 - retain, np.zeros((8, 16)), []
    for t in range(64):
        gram = rate[t] * np.outer(keys[t], keys[t])
        step = np.block(
            [
                [(1 - forget[t]) * np.eye(8) - gram, -gram],
                [momentum[t] * np.eye(8), momentum[t] * np.eye(8)],
            ]
        )
        state = state @ step + rate[t] * np.outer(values[t], np.concatenate([keys[t], keys[t]]))
        memories.append(state[:, :8])
    assert relative(np.array(memories), titans(keys, values, forget, momentum, rate)) < 1e-12
    assert (
        relative(memories[-1], ours("titans_lmm", keys, values, retain, momentum, rate)["M"])
        < 1e-12
    )
    assert (
        relative(
            full[-1],
            ours("titans_lmm", keys, values, retain, momentum, rate, {"rate": "memory"})["M"],
        )
        < 1e-12
    )


@pytest.mark.clause("E-R11")
def test_e_r11_linear_attention_is_not_gradient_descent_on_the_squared_error():
    random, keys, values = tokens(count=10)
    memory, key, value, step = random.standard_normal((5, 6)), keys[0], values[0], 1e-30
    squared_error = memory - 0.3 * np.outer(memory @ key - value, key)
    linear_attention = memory + 0.3 * np.outer(value, key)
    assert relative(squared_error, linear_attention) == near(0.17)
    rules = [
        ours(
            "delta",
            keys[:1],
            values[:1],
            np.ones(1),
            rate=np.full(1, 0.3),
            convention={"reference": kind},
            M0=start,
        )["M"]
        for start in (memory, 0 * memory)
        for kind in ("running", "zero")
    ]
    assert relative(rules[0], squared_error) < 1e-12
    assert relative(rules[1], linear_attention) < 1e-12
    assert relative(rules[2], rules[3]) < 1e-12  # equal from zero
    direction = random.standard_normal((5, 6))
    inner_product = -(((memory + 1j * step * direction) @ key) @ value).imag / step
    # it descends on -<M k, v>
    assert np.vdot(-np.outer(value, key), direction) == near(inner_product, 1e-12)
