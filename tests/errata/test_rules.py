"""Errata of the update rules: shapes, rates, signs, gates and the read, proved with literal
loops.
"""

import numpy as np
import pytest

import atlas_ref
from atlas_ref.conventions import resolve
from atlas_ref.parts.gates import INITIAL_BIAS
from tests.truth.running_loops import near, omega, ours, relative, titans, tokens


def orthogonalise(matrix, steps=5, coefficients=(3.4445, -4.7750, 2.0315)):
    """Newton-Schulz without an epsilon in the norm."""
    a, b, c = coefficients
    x = matrix / np.linalg.norm(matrix)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


@pytest.mark.clause("E-A01")
def test_e_a01_the_query_projection_has_the_wrong_first_dimension():
    d_out, d_in, d_model = 5, 7, 9
    random = np.random.default_rng(0)
    memory, x = random.standard_normal((d_out, d_in)), random.standard_normal(d_model)
    literal = random.standard_normal((d_out, d_model)) @ x
    with pytest.raises(ValueError, match="matmul"):
        memory @ literal
    assert (memory @ (random.standard_normal((d_in, d_model)) @ x)).shape == (d_out,)
    tensors = {
        "in/x": np.ones((1, 2, d_model)),
        "in/param/W_K": np.ones((1, d_in, d_model)),
        "in/param/W_V": np.ones((1, d_out, d_model)),
    }
    for gate in ("retain", "step_size"):
        tensors |= {
            f"in/param/W_{gate}": np.zeros((1, 1, d_in + d_out)),
            f"in/param/b_{gate}": np.zeros((1, 1)),
        }
    header = {"schema": 1, "rule": "delta", "level": "token"}
    right, wrong = (
        tensors | {"in/param/W_Q": np.ones((1, rows, d_model))} for rows in (d_in, d_out)
    )
    assert atlas_ref.evaluate(atlas_ref.make(header, right)).tensors["out/y"].shape == (
        1,
        1,
        2,
        d_out,
    )
    with pytest.raises(atlas_ref.CaseError, match="W_Q"):
        atlas_ref.make(header, wrong)


@pytest.mark.clause("E-A03")
def test_e_a03_the_rate_is_applied_twice():
    _, keys, values = tokens()
    count = len(keys)
    retain, momentum, rate, one = (
        np.full(count, 0.98),
        np.full(count, 0.8),
        np.full(count, 0.1),
        np.ones(count),
    )
    twice, inside, outside = (
        omega(keys, values, retain, momentum, *rates)[-1]
        for rates in ((rate, rate), (rate, one), (one, rate))
    )
    assert np.linalg.norm(twice) == near(0.376)
    assert np.linalg.norm(inside) == near(2.186)
    # constant rate, no initial momentum: the place is invisible
    assert relative(outside, inside) < 1e-12
    varying = 0.02 + 0.2 * np.random.default_rng(3).random(count)
    inside, outside = (
        omega(keys, values, retain, momentum, *rates)[-1]
        for rates in ((varying, one), (one, varying))
    )
    assert relative(outside, inside) == near(0.471)
    # Newton-Schulz erases a constant inner rate, so there the outer rate has to stay
    small, large = (
        omega(keys, values, retain, momentum, scale * one, rate, 4, orthogonalise)[-1]
        for scale in (0.1, 10.0)
    )
    assert relative(large, small) < 1e-12
    halved = omega(keys, values, retain, momentum, rate, rate / 2, 4, orthogonalise)[-1]
    assert relative(halved, small) == near(0.427)
    # resolution: both places under Newton-Schulz, the momentum alone without it
    literal = omega(keys, values, retain, momentum, varying, varying, 4, orthogonalise)[-1]
    settings = {"newton_schulz": {"eps": 0.0}}
    assert (
        relative(ours("omega", keys, values, retain, momentum, varying, settings, 4)["M"], literal)
        < 1e-12
    )
    for place, literal in (("momentum", inside), ("memory", outside)):
        got = ours(
            "omega",
            keys,
            values,
            retain,
            momentum,
            varying,
            {"newton_schulz": "none", "rate": place},
        )
        assert relative(got["M"], literal) < 1e-12
    assert resolve("spec", rule="omega").rate == "both"
    assert resolve({"newton_schulz": "none"}, rule="omega").rate == "momentum"
    assert resolve("atlas-paper", rule="omega").rate == "memory"


@pytest.mark.clause("E-A04")
def test_e_a04_symbols_swap_meaning_between_the_documents():
    _, keys, values = tokens()
    count = len(keys)
    theta, eta, alpha, one = (
        np.full(count, 0.9),
        np.full(count, 0.01),
        np.full(count, 0.98),
        np.ones(count),
    )
    # theta is the momentum, eta the rate
    ttl_names = omega(keys, values, alpha, theta, one, eta, 4)[-1]
    # the same letters in the Omega seed
    omega_names = omega(keys, values, alpha, eta, one, theta, 4)[-1]
    assert relative(omega_names, ttl_names) == near(3.54)
    role_names = {"retain": alpha, "momentum": theta, "inner": one, "outer": eta}
    assert np.array_equal(omega(keys, values, **role_names, window=4)[-1], ttl_names)
    got = ours(
        "omega", keys, values, alpha, theta, eta, {"newton_schulz": "none", "rate": "memory"}, 4
    )
    assert relative(got["M"], ttl_names) < 1e-12


@pytest.mark.clause("E-A05")
def test_e_a05_the_factor_two_comes_and_goes():
    random, keys, values = tokens()
    memory, key, value = random.standard_normal((5, 6)), keys[0], values[0]
    derivative, step = np.zeros_like(memory), 1e-30
    for place in np.ndindex(memory.shape):
        moved = memory.astype(complex)
        moved[place] += 1j * step
        derivative[place] = np.sum((moved @ key - value) ** 2).imag / step
    pseudo_code = np.outer(memory @ key - value, key)
    # the prose (Eq 9) has the 2, the pseudo-code does not
    assert relative(derivative, 2 * pseudo_code) < 1e-12
    assert relative(derivative, pseudo_code) == near(0.5 * 2, 1e-9)

    def error_after_60_steps(rate, factor):
        memory = 0.0
        for _ in range(60):
            memory = memory - rate * factor * (memory - 1.0)
        return abs(memory - 1.0)

    assert error_after_60_steps(1.5, factor=1) < 1e-12
    assert error_after_60_steps(1.5, factor=2) == near(1.15e18)
    same, one = np.ones((60, 1)), np.ones(60)
    for scale, error in ((1, 0.0), (2, 1.15e18)):
        got = ours("delta", same, same, one, rate=1.5 * one, convention={"gradient_scale": scale})
        assert abs(got["M"][0, 0] - 1) == pytest.approx(error, rel=0.02, abs=1e-12)
    # s h is all that counts
    assert error_after_60_steps(1.5 / 2, factor=2) == error_after_60_steps(1.5, factor=1)


@pytest.mark.clause("E-A06")
def test_e_a06_the_retain_gate_is_used_as_a_forget_gate():
    gate = 1 / (1 + np.exp(-3.0))
    assert gate == near(0.9526, 1e-4)
    assert gate**10 == near(0.615, 1e-2)  # share of M left after 10 tokens of alpha M
    assert (1 - gate) ** 10 == near(5.8e-14, 1e-2)  # and of (1 - alpha) M with the same bias
    levels = 1 / (1 + np.exp(-np.array([3.0, 4.0, 4.5, 5.0])))
    assert np.all(np.diff(levels) > 0)
    assert np.all(np.diff(1 - levels) < 0)  # slower levels keep less
    # resolution: a forget gate starts at the negative bias
    assert (INITIAL_BIAS["retain"], INITIAL_BIAS["forget"]) == (
        3.0,
        -3.0,
    )
    forget = 1 / (1 + np.exp(-INITIAL_BIAS["forget"]))
    assert abs((1 - forget) - gate) < 1e-12
    _, keys, values = tokens(count=10)
    gates = {"retain": np.full(10, gate), "forget": np.full(10, forget)}
    kept = [
        ours(
            "hebbian", keys, 0 * values, gates[kind], convention={"gate": kind}, M0=np.ones((5, 6))
        )["M"]
        for kind in gates
    ]
    assert relative(kept[0], np.full((5, 6), gate**10)) < 1e-12
    assert relative(kept[1], kept[0]) < 1e-12


@pytest.mark.clause("E-A07")
def test_e_a07_a_per_dimension_gate_acts_on_rows():
    random, keys, values = tokens(count=12)
    memory, gram = random.standard_normal((5, 6)), keys.T @ keys
    rows, columns = random.uniform(0.1, 1, 5)[:, None], random.uniform(0.1, 1, 6)
    # rows commute with the Gram of the keys
    assert relative((rows * memory) @ gram, rows * (memory @ gram)) < 1e-12
    # columns do not
    assert relative((memory * columns) @ gram, (memory @ gram) * columns) == near(0.526)
    retain, count = random.uniform(0.5, 1, (12, 5)), len(keys)
    memories = np.zeros((5, 6))
    for t in range(count):
        memories = retain[t][:, None] * memories + np.outer(values[t], keys[t])
    by_row = np.array(
        [
            sum(np.prod(retain[j + 1 :, o]) * values[j, o] * keys[j] for j in range(count))
            for o in range(5)
        ]
    )
    by_mean = sum(
        np.prod(retain[j + 1 :].mean(axis=1)) * np.outer(values[j], keys[j]) for j in range(count)
    )
    assert relative(ours("hebbian", keys, values, retain)["M"], memories) < 1e-12
    assert relative(by_row, memories) < 1e-12  # d_out scalar recurrences, one a row
    assert relative(by_mean, memories) > 0.03  # "alpha_t I" is another rule


@pytest.mark.clause("E-A08")
def test_e_a08_equation_34_climbs_and_drops_newton_schulz():
    random = np.random.default_rng(0)
    teacher, keys = random.standard_normal((5, 6)), random.standard_normal((400, 6))
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    values, window, span = keys @ teacher.T, 4, 8

    def last_losses(sign, update):
        memory, trace, losses, memories = np.zeros((5, 6)), np.zeros((5, 6)), [], []
        for t in range(400):
            if t % span == 0:
                reference = memory
            seen = range(max(0, t - window + 1), t + 1)
            trace = (
                0.5 * trace
                + 0.1
                * sum(np.outer(reference @ keys[i] - values[i], keys[i]) for i in seen)
                / window
            )
            memory = memory + sign * update(trace)
            losses.append(np.sum((memory @ keys[t] - values[t]) ** 2))
            memories.append(memory)
        return np.mean(losses[:20]), np.mean(losses[-20:]), memories

    one, gates = np.ones(400), (np.ones(400), np.full(400, 0.5), np.full(400, 0.1))
    frozen = {"newton_schulz": "none", "reference": "chunk_start"}
    *losses, memories = last_losses(+1, lambda trace: trace)  # as printed: M = alpha M + S
    assert losses == near([8.26, 2.02e10])
    assert (
        relative(
            ours("omega", keys, values, *gates, frozen | {"direction": "ascent"}, window, span)[
                "M"
            ],
            memories[-1],
        )
        < 1e-12
    )
    *losses, memories = last_losses(-1, lambda trace: trace)
    assert losses == near([2.14, 3.95e-13], 0.05)
    assert (
        relative(ours("omega", keys, values, *gates, frozen, window, span)["M"], memories[-1])
        < 1e-12
    )
    *losses, memories = last_losses(
        -1, lambda trace: 0.02 * orthogonalise(trace, 8, (1.5, -0.5, 0))
    )
    assert losses == near([3.56, 3.47e-3], 0.05)
    settings = {
        "reference": "chunk_start",
        "rate": "split",
        "newton_schulz": {"coefficients": "cubic", "steps": 8, "eps": 0.0},
    }
    # later rounding has been amplified to 1e-11
    early = [each[:40] for each in (keys, values, *gates)]
    got = ours("omega", *early, settings, window, span, step_size_memory=0.02 * one[:40])
    assert relative(got["M"], memories[39]) < 1e-12


@pytest.mark.clause("E-A09")
def test_e_a09_equation_11_has_the_wrong_side_and_sign():
    random = np.random.default_rng(0)
    wide, wide_key = random.standard_normal((5, 7)), random.standard_normal(7)
    with pytest.raises(ValueError, match="matmul"):
        np.outer(wide_key, wide_key) @ wide
    random, keys, values = tokens(count=1, d_in=6, d_out=6)
    memory, key, value, retain, rate = random.standard_normal((6, 6)), keys[0], values[0], 0.97, 0.3
    gradient_step = retain * memory - rate * np.outer(memory @ key - value, key)
    decay, write = retain * np.eye(6) - rate * np.outer(key, key), rate * np.outer(value, key)
    assert relative(memory @ decay + write, gradient_step) < 1e-12
    gates = np.full(1, retain), None, np.full(1, rate)
    assert relative(ours("delta", keys, values, *gates, M0=memory)["M"], gradient_step) < 1e-12
    assert (
        relative(
            ours("delta", keys, values, *gates, {"value_sign": "plus"}, M0=memory)["M"],
            memory @ decay - write,
        )
        < 1e-12
    )
    # the left form holds for the transposed memory
    assert relative((decay @ memory.T + write.T).T, gradient_step) < 1e-12
    assert relative(decay @ memory + write, gradient_step) == near(0.163)  # wrong side
    assert relative(memory @ decay - write, gradient_step) == near(0.262)  # wrong sign
    assert relative(decay @ memory - write, gradient_step) == near(0.351)  # as printed, with a rate
    stored = np.zeros((6, 6))
    for _ in range(200):
        stored = stored @ (np.eye(6) - 0.5 * np.outer(key, key)) - 0.5 * np.outer(value, key)
    assert relative(stored @ key, -value) < 1e-12  # the printed sign stores -v


@pytest.mark.clause("E-A12")
def test_e_a12_omega_names_three_quantities():
    random = np.random.default_rng(0)
    key, value = random.standard_normal(6), random.standard_normal(6)
    weight = random.uniform(-1, 1, (6, 12)) * np.sqrt(1 / 12)
    both = np.concatenate([key, value])
    surrogate = np.outer(weight @ (both / (1 + np.exp(-both))), key)  # learned, sees no memory
    memory = random.standard_normal((6, 6))
    windowed = np.outer(memory @ key - value, key)
    cosine = np.vdot(surrogate, windowed) / np.linalg.norm(surrogate) / np.linalg.norm(windowed)
    assert cosine == near(-0.291)
    frozen = np.outer(np.zeros((6, 6)) @ key - value, key)  # under a memory frozen at zero
    assert relative(frozen, windowed) == near(0.746)
    # they differ by the reference alone
    assert relative(windowed - frozen, memory @ np.outer(key, key)) < 1e-12


@pytest.mark.clause("E-D02")
def test_e_d02_the_delta_gradient_belongs_to_half_the_loss():
    random, keys, values = tokens(count=1)
    memory, key, value, step = random.standard_normal((5, 6)), keys[0], values[0], 1e-30
    direction = random.standard_normal((5, 6))
    error = (memory + 1j * step * direction) @ key - value
    printed = np.vdot(np.outer(memory @ key - value, key), direction)
    assert np.sum(error**2).imag / step == near(2 * printed, 1e-12)  # the objective as written
    assert 0.5 * np.sum(error**2).imag / step == near(printed, 1e-12)
    for scale, factor in ((1, 1.0), (2, 2.0)):
        moved = (
            memory
            - ours(
                "delta",
                keys,
                values,
                np.ones(1),
                rate=np.ones(1),
                convention={"gradient_scale": scale},
                M0=memory,
            )["M"]
        )
        assert np.vdot(moved, direction) == near(factor * printed, 1e-12)


@pytest.mark.clause("E-D03")
def test_e_d03_the_delta_rule_forgets_with_the_retain_bias():
    bias_of_the_interface, bias_of_a_forget_gate = 1 / (1 + np.exp(-3.0)), 1 / (1 + np.exp(3.0))
    memory = np.eye(3)
    for _ in range(4):
        memory = (1 - bias_of_the_interface) * memory
    assert memory[0, 0] == near(5.06e-6)
    retained, forgotten = np.eye(3), np.eye(3)
    for _ in range(4):
        retained, forgotten = (
            bias_of_the_interface * retained,
            (1 - bias_of_a_forget_gate) * forgotten,
        )
    assert relative(forgotten, retained) < 1e-12
    assert resolve("spec", rule="delta", level="token").gate == "forget"
    assert resolve("spec", rule="omega", level="token").gate == "retain"
    none = np.zeros((4, 3))
    got = ours(
        "delta",
        none,
        none,
        np.full(4, bias_of_a_forget_gate),
        rate=np.ones(4),
        convention={"gate": "forget"},
        M0=np.eye(3),
    )
    assert relative(got["M"], retained) < 1e-12


@pytest.mark.clause("E-D05")
def test_e_d05_reading_before_the_write_is_not_what_makes_a_read_causal():
    _, keys, values = tokens(count=20)
    none, one = np.zeros(20), np.ones(20)

    def reads(values, place):
        memories = np.concatenate([np.zeros((1, 5, 6)), titans(keys, values, none, none, one)])
        chosen = {"after": memories[1:], "before": memories[:-1], "call_end": memories[[-1] * 20]}[
            place
        ]
        return np.array([chosen[t] @ keys[t] for t in range(20)])

    errors = {
        place: np.mean(np.linalg.norm(reads(values, place) - values, axis=1))
        for place in ("after", "before")
    }
    assert errors["after"] < 1e-12
    assert errors["before"] == near(2.87)
    changed = values.copy()
    changed[-1] += 1
    moved = {
        place: np.abs(reads(changed, place) - reads(values, place))[:-1].max()
        for place in ("after", "before", "call_end")
    }
    assert moved["after"] == moved["before"] == 0  # both see no future token
    for place in ("after", "before", "call_end"):
        got = ours("delta", keys, values, one, rate=one, convention={"read": place})["y"]
        assert np.abs(got - reads(values, place)).max() < 1e-12
    assert moved["call_end"] == near(0.682)  # the TTL document's read does


@pytest.mark.clause("E-G18")
def test_e_g18_the_momentum_takes_the_windowed_gradient():
    _, keys, values = tokens()
    count = len(keys)
    retain, momentum, rate, one = (
        np.full(count, 0.98),
        np.full(count, 0.8),
        np.full(count, 0.1),
        np.ones(count),
    )
    single, windowed = (
        omega(keys, values, retain, momentum, one, rate, window)[-1] for window in (1, 8)
    )
    assert relative(single, windowed) == near(0.417)
    got = ours(
        "omega",
        keys,
        values,
        retain,
        momentum,
        rate,
        {"newton_schulz": "none", "rate": "memory"},
        8,
    )["M"]
    assert relative(got, windowed) < 1e-12
