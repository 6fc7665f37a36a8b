"""Errata of a network in the place of a momentum: Nested Learning Eq 50, and public code of it."""

import numpy as np
import pytest

from atlas_ref.rules import deep_memory, sequence
from atlas_ref.rules.deep_memory.deep_momentum import step
from tape import grad, ops
from tests.truth import deep_memory_functions as functions
from tests.truth.deep_memory_write import deep_momentum

SILU = {"kind": "mlp", "activation": "silu"}


#: The memory that deep_momentum_step of NL_Hecate 4746606, compiled and run in float32, leaves of the
#: pair of `repeated` after 60 writes, where the memory adds its step and where it subtracts it.
OF_PUBLIC_CODE = {
    "ascent": (
        (4.8273773, 11.476976, 4.6157913),
        (-3.3537748, -7.9735184, -3.2067769),
        (-1.653537, -3.9312458, -1.581062),
    ),
    "descent": (
        (-0.33674008, -0.80059135, -0.3219806),
        (0.23394686, 0.5562031, 0.22369286),
        (0.11534467, 0.27422923, 0.11028904),
    ),
}


def relative(got, want):
    return np.linalg.norm(got - want) / np.linalg.norm(want)


def near(number, share=0.02):
    return pytest.approx(number, rel=share)


def network_step(network, u, momentum, rate, objective="l2", sign="plus", function=SILU):
    """V after a write and its step, by the loops."""
    after, found = deep_momentum(network, {"W": u}, momentum, rate, function, objective, sign)
    return after, found["W"]


def settings(rows, columns, hidden, **more):
    """A matrix memory with a network of so many hidden units, a linear one for none."""
    fields = {**SILU, "expansion": hidden / (rows * columns)} if hidden else {"kind": "linear"}
    return deep_memory.Config(
        d_in=columns,
        d_out=rows,
        memory={"kind": "linear"},
        deep_momentum={"function": fields, **more},
        convention={"newton_schulz": "none", "rate": "momentum"},
    )


@pytest.mark.clause("E-P29", "DEEP-37")
def test_e_p29_a_linear_network_is_not_the_momentum_that_it_extends():
    gradients = np.random.default_rng(0).standard_normal((6, 12))
    forget, rate = 0.9, 0.1
    of_sums, total = np.zeros(12), np.zeros(12)
    for u in gradients:
        total = forget * total - rate * u
        of_sums = of_sums + total

    def memory(objective):
        moved, network = np.zeros(12), {"W": np.zeros((12, 12))}
        for u in gradients:
            linear = {"kind": "linear"}
            network, s = network_step(network, u, forget, rate, objective, "minus", linear)
            moved = moved + s
        return moved, s

    (ones, _), (dots, last) = memory("ones"), memory("dot")
    assert relative(ones, of_sums) == near(9.21)
    assert relative(dots, of_sums) == near(4.08)
    attended = -rate * sum(
        forget ** (5 - i) * (u @ gradients[5]) * u for i, u in enumerate(gradients)
    )
    assert relative(last, attended) < 1e-12
    of = deep_memory.Config(
        d_in=4,
        d_out=3,
        memory={"kind": "linear"},
        deep_momentum={"function": {"kind": "linear"}, "objective": "dot"},
        convention={"newton_schulz": "none", "rate": "momentum", "momentum_sign": "minus"},
    )
    network = {"W": np.zeros((12, 12))}
    for u in gradients:
        m, h = np.asarray(forget), np.asarray(rate)
        network, s = step(of, m, network, h, {"W": u.reshape(3, 4)})
    assert relative(s["W"].ravel(), attended) < 1e-12


@pytest.mark.clause("E-P30", "DEEP-38")
@pytest.mark.parametrize("hidden", [0, 8])
def test_e_p30_a_sum_of_entries_moves_all_entries_alike(hidden):
    rng = np.random.default_rng(1)
    gradients = rng.standard_normal((5, 12))
    gradients[-1] -= gradients[-1].mean()
    network, function = {"W": np.zeros((12, 12))}, {"kind": "linear"}
    if hidden:
        network = {"W_1": rng.standard_normal((hidden, 12)), "W_2": np.zeros((12, hidden))}
        function = SILU
    of = settings(3, 4, hidden, objective="ones")
    ours = network
    for u in gradients:
        network, s = network_step(network, u, 0.9, 0.1, "ones", function=function)
        m, h = np.asarray(0.9), np.asarray(0.1)
        ours, found = step(of, m, ours, h, {"W": u.reshape(3, 4)})
        assert relative(found["W"].ravel(), s) < 1e-12
        assert np.ptp(s) <= 1e-15 * np.abs(s).max()
        assert np.abs(s).max() > 1e-3
    assert abs(s @ u) < 1e-14 * np.linalg.norm(s) * np.linalg.norm(u)


def repeated(adds, d=3, hidden=12, writes=60):
    """Losses of one pair that is written again and again, and the first matrix at the end."""
    N, rng = d * d, np.random.default_rng(1)
    even = np.arange(hidden * N) % 2 == 0
    first = np.where(even, 1.0, -1.0).reshape(hidden, N) / np.sqrt(N)
    network, M = {"W_1": first, "W_2": np.zeros((N, hidden))}, np.zeros((d, d))
    k = rng.standard_normal(d)
    k, v, losses = k / np.linalg.norm(k), rng.standard_normal(d), []
    for _ in range(writes):
        error = M @ k - v
        losses.append(0.5 * error @ error)
        network, s = network_step(network, np.outer(error, k), 0.95, 0.1)
        M = M + s if adds else M - s
    return losses, network["W_1"], M, (k, v)


@pytest.mark.clause("E-P31", "DEEP-37", "DEEP-38")
def test_e_p31_a_memory_that_adds_what_learns_the_gradient_climbs():
    ends = {}
    for direction, adds in (("ascent", True), ("descent", False)):
        losses, _, M, (k, v) = repeated(adds=adds)
        ends[direction] = losses[-1]
        assert losses[0] == near(1.36)
        assert relative(M, np.array(OF_PUBLIC_CODE[direction])) < (
            1e-6 if direction == "descent" else 1e-4
        )
        state = _written(direction, k, v)
        assert relative(state.weights["W"], M) < 1e-9  # climbing, roundings grow as the loss does
    assert (ends["ascent"], ends["descent"]) == near((170, 0.115))


def _written(direction, k, v, writes=60):
    """The package's state after the same writes."""
    of = settings(3, 3, 12)
    of = of.replaced(
        convention=of.convention.replaced(direction=direction, gradient_scale=1.0, gate="none")
    )
    keys, values = (np.tile(x, (writes, 1)) for x in (k, v))
    gates = {"momentum": np.full(writes, 0.95), "step_size": np.full(writes, 0.1)}
    tokens = sequence.Tokens(k=keys, v=values, q=keys, **gates)
    even = np.arange(12 * 9) % 2 == 0
    network = {"W_1": np.where(even, 1.0, -1.0).reshape(12, 9) / 3.0, "W_2": np.zeros((9, 12))}
    phi = {"W": np.zeros((3, 3))} | {f"momentum/{name}": x for name, x in network.items()}
    state, _ = sequence.run(deep_memory.RULE, of, tokens, deep_memory.start(of), phi=phi)
    return state


@pytest.mark.clause("E-P32", "DEEP-37")
def test_e_p32_hidden_units_that_start_alike_stay_alike():
    _, even, *_ = repeated(adds=False, d=4, hidden=16)
    assert (even == even[:1]).all()
    _, odd, *_ = repeated(adds=False, d=3, hidden=12)
    assert (odd[::2] == odd[:1]).all()
    assert (odd[1::2] == odd[1:2]).all()
    assert relative(odd[1], odd[0]) > 0.1
    drawn = deep_memory.RULE.draw(settings(4, 4, 16), 0)["momentum/W_1"][0]
    assert np.linalg.matrix_rank(drawn) == 16


@pytest.mark.clause("E-P33", "DEEP-37")
def test_e_p33_the_backward_of_a_network_stops_at_its_last_evaluation():
    rng = np.random.default_rng(4)
    network = {"W_1": 0.1 * rng.standard_normal((12, 9)), "W_2": 0.1 * rng.standard_normal((9, 12))}
    u, bar, f = rng.standard_normal(9), rng.standard_normal(9), functions.Function(**SILU)
    of = settings(3, 3, 12)

    def stepped(u, rate):
        return network_step(network, u, 0.9, rate)

    for rate, off in ((0.01, 0.18), (0.1, 0.81), (0.3, 0.93)):
        ways = 1e-40j * np.eye(9)
        true = np.array([np.imag(bar @ stepped(u + way, rate)[1]) / 1e-40 for way in ways])
        _, held = functions.gradient(stepped(u, rate)[0], u, bar, f)
        assert relative(held, true) == near(off)

        def loss(g, rate=rate):
            m, h = np.asarray(0.9), np.asarray(rate)
            return ops.sum(bar.reshape(3, 3) * step(of, m, network, h, {"W": g})[1]["W"])

        assert relative(grad(loss)(u.reshape(3, 3)).ravel(), true) < 1e-12

    second = rng.standard_normal(9)

    def of_first_gate(m):
        after, _ = network_step(network, u, m, 0.1)
        return bar @ network_step(after, second, 0.9, 0.1)[1]

    assert abs(np.imag(of_first_gate(0.9 + 1e-40j)) / 1e-40) > 0.01
