"""Errata of parallel forms: scans, chunks, their reads and their distance from the running rule."""

import itertools

import numpy as np
import pytest

from atlas_ref import forms as run
from atlas_ref.engine import associative_scan
from atlas_ref.forms.support import refusal
from atlas_ref.oracle.cases.case import make
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.rules import FAMILY, delta, omega, titans_lmm
from atlas_ref.rules.sequence import Tokens
from tests.truth.frozen_loops import constant
from tests.truth.frozen_loops import omega as frozen
from tests.truth.running_loops import near, relative, titans, tokens

MODULES = {"omega": omega, "titans_lmm": titans_lmm, "delta": delta}


def through(
    form,
    rule,
    keys,
    values,
    retain,
    momentum,
    rate,
    convention,
    chunk=None,
    span=None,
    window=1,
    q=None,
    weights=None,
    **start,
):
    """The final state and the reads by one form of the package."""
    module, sizes = MODULES[rule], {"d_in": keys.shape[1], "d_out": values.shape[1], "span": span}
    sizes |= {"window": window} if rule == "omega" else {}
    convention = (
        {"gate": "retain"} | ({"newton_schulz": "none"} if rule == "omega" else {}) | convention
    )
    config = module.Config(**sizes, convention=convention)
    gates = {"retain": retain, "momentum": momentum, "step_size": rate, "window_weights": weights}
    given = Tokens(k=keys, v=values, q=keys if q is None else q, **gates)
    return run.run(
        module.RULE, config, given, module.start(config, **start), form=form, chunk=chunk
    )


def cubic(matrix, steps=10):
    x = matrix / np.linalg.norm(matrix)
    for _ in range(steps):
        x = 1.5 * x - 0.5 * x @ x.T @ x
    return x


def prefixes(pairs, start):
    """Inclusive states of x = a x + b by a parallel scan, and the number of its rounds.

    Neighbours at distance 1, 2, 4, ... are composed.
    """
    pairs, reach, rounds = list(pairs), 1, 0
    while reach < len(pairs):
        old = list(pairs)
        for t in range(reach, len(pairs)):
            (a, b), (later_a, later_b) = old[t - reach], old[t]
            pairs[t] = (later_a * a, later_a * b + later_b)
        reach, rounds = 2 * reach, rounds + 1
    return np.array([a * start + b for a, b in pairs]), rounds


# -- scans -----------------------------------------------------------------------------------------


@pytest.mark.clause("E-P01", "SCAN-1")
def test_e_p01_the_printed_scan_composes_in_the_wrong_order():
    random = np.random.default_rng(0)
    gate, step, start = random.random(8), random.standard_normal(8), 0.7
    truth, x = [], start
    for t in range(8):
        x = gate[t] * x + step[t]
        truth.append(x)
    truth = np.array(truth)

    def printed(left, right):
        return left[0] * right[0], left[0] * right[1] + left[1]

    def sweeps(
        swapped, gate=gate, step=step
    ):  # the pseudo-code: up, the start in the last place, down
        pairs, levels = list(zip(gate, step, strict=True)), int(np.log2(len(gate)))
        for level in range(levels):
            for i in range(2 ** (level + 1) - 1, len(pairs), 2 ** (level + 1)):
                earlier, later = pairs[i - 2**level], pairs[i]
                pairs[i] = printed(later, earlier) if swapped else printed(earlier, later)
        pairs[-1] = (1.0, start)
        for level in reversed(range(levels)):
            for i in range(2 ** (level + 1) - 1, len(pairs), 2 ** (level + 1)):
                j = i - 2**level
                pairs[j], pairs[i] = pairs[i], printed(pairs[j], pairs[i])
        return np.array([b for _, b in pairs])

    assert np.abs(sweeps(swapped=False) - truth).max() == near(1.32)
    before = np.array([start, *truth[:-1]])
    # the states before each token, where the text promises those after it
    assert np.abs(sweeps(swapped=True) - before).max() < 1e-12
    assert np.abs(sweeps(swapped=True) - truth).max() == near(2.33)
    # and only for a power of two
    assert np.abs(sweeps(True, gate[:6], step[:6]) - before[:6]).max() > 0.5
    for count in range(1, 9):
        assert (
            np.abs(
                prefixes(zip(gate[:count], step[:count], strict=True), start)[0] - truth[:count]
            ).max()
            < 1e-12
        )
        assert (
            np.abs(
                associative_scan.scan(gate[:count], step[:count], initial=np.array(start))
                - truth[:count]
            ).max()
            < 1e-12
        )


@pytest.mark.clause("E-D01", "SCAN-6")
def test_e_d01_a_scan_computes_the_delta_rule():
    random, keys, values = tokens(count=33)
    forget, rate, none = 0.02 + 0.1 * random.random(33), 0.1 + 0.5 * random.random(33), np.zeros(33)
    memories = titans(keys, values, forget, none, rate)
    state, y = through("scan", "delta", keys, values, 1 - forget, None, rate, {})
    assert relative(state.M, memories[-1]) < 1e-12
    assert relative(y, np.einsum("tod,td->to", memories, keys)) < 1e-12
    with_momentum = titans(keys, values, forget, 0.3 + none, rate)
    state, y = through("scan", "titans_lmm", keys, values, 1 - forget, 0.3 + none, rate, {})
    # "partial": the memory as well as the momentum
    assert relative(y, np.einsum("tod,td->to", with_momentum, keys)) < 1e-12
    with pytest.raises(ValueError, match="Newton-Schulz is not affine"):
        through("scan", "omega", keys, values, 1 - forget, none, rate, {"newton_schulz": {}})


@pytest.mark.clause("E-P07", "SCAN-3", "ATLASP-12")
def test_e_p07_a_scan_has_logarithmic_depth_and_matrices():
    random, keys, values = tokens(count=64, d_in=8, d_out=8)
    start = random.standard_normal((8, 8))
    residuals = keys @ start.T - values
    gradients = np.einsum("to,td->tod", residuals, keys)
    truth, trace = [], np.zeros((8, 8))
    for t in range(64):
        trace = 0.9 * trace + 0.1 * gradients[t]
        truth.append(trace)
    scanned, rounds = prefixes([(0.9, 0.1 * gradient) for gradient in gradients], 0.0)
    assert relative(scanned, np.array(truth)) < 1e-12
    assert rounds == 6  # not O(1)
    assert prefixes([(0.9, 0.0)] * 65, 0.0)[1] == 7
    # nor can it be: two operands a round, so after k rounds a result has seen 2^k tokens
    seen, counts = [{t} for t in range(64)], []
    for reach in (1, 2, 4, 8, 16, 32):
        seen = [seen[t] | seen[t - reach] if t >= reach else seen[t] for t in range(64)]
        counts.append(len(seen[-1]))
    assert counts == [2, 4, 8, 16, 32, 64]
    # "O(C d)": the momenta are matrices of full rank, d^2 numbers each, and so are the memories
    # after them
    assert [np.linalg.matrix_rank(truth[t]) for t in (0, 3, 7, 63)] == [1, 4, 8, 8]
    assert scanned.size == 64 * 8**2
    # "better than Titans' scan": Titans with the reference frozen takes the same one (c = 1 here)
    # and is as exact
    gates = constant(64, 0.95, 0.9, 0.1)
    memories = frozen(keys, values, *gates, 1, 64, memory=start)[0]
    state, y = through(
        "atlas_parallel", "titans_lmm", keys, values, *gates, {"reference": "call_start"}, M=start
    )
    assert relative(state.S, truth[-1]) < 1e-12
    assert relative(y, np.einsum("tod,td->to", memories, keys)) < 1e-12


@pytest.mark.clause("E-A16", "ATLASP-1", "ATLASP-4")
def test_e_a16_the_four_steps_omit_newton_schulz_and_the_rate():
    _, keys, values = tokens(count=8, d_in=6, d_out=6)
    window, rate = 4, 0.1
    gradients = [
        sum(np.outer(-values[i], keys[i]) for i in range(max(0, t - window + 1), t + 1)) / window
        for t in range(8)
    ]

    def steps(update, outer, inner=lambda g: g):  # 1 all gradients, 2a scan, 2b, 3 scan
        momenta, _ = prefixes([(0.8, rate * inner(gradient)) for gradient in gradients], 0.0)
        return prefixes([(0.98, -outer * update(trace)) for trace in momenta], 0.0)[0]

    sequential, trace, memory = [], np.zeros((6, 6)), np.zeros((6, 6))
    for gradient in gradients:  # the pseudo-code, token by token, under the reference M_0 = 0
        trace = 0.8 * trace + rate * gradient
        memory = 0.98 * memory - rate * cubic(trace)
        sequential.append(memory)
    sequential = np.array(sequential)
    corrected = steps(cubic, rate)
    assert relative(corrected, sequential) < 1e-12
    # no step 2b
    assert relative(steps(lambda trace: trace, rate)[-1], sequential[-1]) == near(0.87)
    # as printed: M = alpha M + S
    assert relative(steps(lambda trace: -trace, 1.0)[-1], sequential[-1]) == near(2.40)
    # Newton-Schulz before the first scan
    assert relative(steps(lambda trace: trace, rate, cubic)[-1], sequential[-1]) == near(0.788)
    accumulated = steps(lambda trace: trace, rate)[-1]
    # Newton-Schulz after the second
    assert relative(cubic(accumulated), sequential[-1]) == near(1.29)
    settings = {
        "reference": "call_start",
        "newton_schulz": {"coefficients": "cubic", "steps": 10, "eps": 0.0},
    }
    for form in ("atlas_parallel", "chunkwise"):
        weights = np.full((8, window), 1 / window)
        state, y = through(
            form,
            "omega",
            keys,
            values,
            *constant(8, 0.98, 0.8, rate),
            settings,
            3,
            None,
            window,
            weights=weights,
        )
        assert relative(state.M, sequential[-1]) < 1e-12
        assert relative(y, np.einsum("tod,td->to", sequential, keys)) < 1e-12


# -- chunks ----------------------------------------------------------------------------------------


@pytest.mark.clause("E-P04", "CHUNK-27")
def test_e_p04_a_chunk_of_one_token_is_sequential_only_if_the_token_reads_itself():
    random, keys, values = tokens(count=12)
    queries, none, rate = random.standard_normal((12, 6)), np.zeros(12), np.full(12, 0.3)
    memories = titans(keys, values, none + 0.02, none, rate)
    at_boundary = np.concatenate([np.zeros((1, 5, 6)), memories[:-1]])
    own, boundary = (np.einsum("tod,td->to", each, queries) for each in (memories, at_boundary))
    assert relative(boundary, own) == near(0.41)  # the states are the same, what is read is not
    span_of_one = {"reference": "chunk_start"}
    for read, truth in (("after", own), ("chunk_start", boundary), ("before", boundary)):
        state, y = through(
            "chunkwise",
            "delta",
            keys,
            values,
            none + 0.98,
            None,
            rate,
            span_of_one | {"read": read},
            span=1,
            q=queries,
        )
        assert relative(state.M, memories[-1]) < 1e-12
        assert relative(y, truth) < 1e-12


@pytest.mark.clause("E-P06", "ATLASP-10")
def test_e_p06_the_error_of_a_frozen_reference_is_linear_in_the_rate_and_not_in_the_span():
    _, keys, values = tokens(count=64, d_in=8, d_out=8)
    distance = {}
    for rate in (0.2, 0.1, 0.05):
        gates = constant(64, 0.99, 0.0, rate)
        running = frozen(keys, values, *gates, 1)[0]
        distance[rate] = np.array(
            [
                relative(frozen(keys, values, *gates, 1, span)[0], running)
                for span in (2, 4, 8, 16, 32)
            ]
        )
    assert distance[0.2] == near(np.array([0.0490, 0.1013, 0.1603, 0.2691, 0.3928]), 0.01)
    assert distance[0.2] / distance[0.1] == near(2.0, 0.05)
    assert distance[0.1] / distance[0.05] == near(2.0, 0.05)
    growth = distance[0.05][1:] / distance[0.05][:-1]
    # a doubling of the span, not a factor of two
    assert growth == near(np.array([2.08, 1.65, 1.59, 1.46]), 0.01)
    # where the frozen rule is unstable the distance is neither linear nor monotone
    gates = constant(64, 0.99, 0.5, 0.4)
    running = frozen(keys, values, *gates, 4)[0]
    wild = [relative(frozen(keys, values, *gates, 4, span)[0], running) for span in (16, 64)]
    assert wild == near([1.9, 1.4], 0.03)
    # a span of b equal keys multiplies the error by 1 - h b, so no constant holds for every
    # sequence
    for span, factor in ((2, 0.2), (4, -0.6), (8, -2.2)):
        key, one = np.array([[0.6, 0.8]] * 2 * span), np.ones(2 * span)
        state, _ = through(
            "chunkwise",
            "delta",
            key,
            0 * key,
            one,
            None,
            0.4 * one,
            {"reference": "chunk_start"},
            5,
            span,
            M=np.eye(2),
        )
        assert relative(state.M @ key[0], factor**2 * key[0]) < 1e-12


@pytest.mark.clause("E-A13", "ATLASP-7")
def test_e_a13_forms_are_exact_for_the_rule_they_state():
    random, keys, values = tokens(count=19, d_in=8, d_out=8)
    retain, momentum, rate = (
        0.9 + 0.1 * random.random(19),
        0.5 + 0.4 * random.random(19),
        0.05 + 0.1 * random.random(19),
    )
    start = {"M": 0.3 * random.standard_normal((8, 8)), "S": 0.1 * random.standard_normal((8, 8))}
    literal = {"memory": start["M"], "trace": start["S"]}
    weights = np.full((19, 4), 0.25)
    for form, reference, span in (
        ("chunkwise", "chunk_start", 7),
        ("atlas_parallel", "chunk_start", 7),
        ("exact", "running", None),
    ):
        memories, traces = frozen(keys, values, retain, momentum, rate, 4, span or 1, **literal)
        settings = {"reference": reference}
        state, y = through(
            form,
            "omega",
            keys,
            values,
            retain,
            momentum,
            rate,
            settings,
            3,
            span,
            4,
            weights=weights,
            **start,
        )
        assert relative(state.M, memories[-1]) < 1e-12
        assert relative(state.S, traces[-1]) < 1e-12
        assert relative(y, np.einsum("tod,td->to", memories, keys)) < 1e-12
    for form, reference, needed in (
        ("chunkwise", "running", "running"),
        ("atlas_parallel", "running", "running"),
        ("exact", "zero", "not run"),
    ):
        with pytest.raises(ValueError, match=f"the reference is {needed}"):
            through(
                form,
                "omega",
                keys,
                values,
                retain,
                momentum,
                rate,
                {"reference": reference},
                window=4,
                weights=weights,
            )


@pytest.mark.clause("E-A15", "CHUNK-14")
def test_e_a15_a_chunk_shorter_than_the_window_changes_nothing():
    _, keys, values = tokens(count=32, d_in=8, d_out=8)
    gates = constant(32, 0.98, 0.0, 0.3)
    for window in (1, 2, 4, 8):
        truth = frozen(keys, values, *gates, window, 8)[0][-1]
        weights = np.full((32, window), 1 / window)
        for chunk in (1, 3, 8):  # c <= C and c > C alike
            settings = {"reference": "chunk_start"}
            state, _ = through(
                "chunkwise",
                "omega",
                keys,
                values,
                *gates,
                settings,
                chunk,
                8,
                window,
                weights=weights,
            )
            assert relative(state.M, truth) < 1e-12


@pytest.mark.clause("E-R05", "CHUNK-9")
def test_e_r05_the_gradient_buffer_is_carry_in_chunk_forms_too():
    _, keys, values = tokens(count=16, d_in=8, d_out=8)
    gates, weights = constant(16, 0.98, 0.0, 0.1), np.full((16, 4), 0.25)
    memory, buffer = np.zeros((8, 8)), []
    for t in range(16):  # one buffer of gradients, each under the reference of its own span
        if t % 8 == 0:
            reference = memory
        buffer = [*buffer, np.outer(reference @ keys[t] - values[t], keys[t])][-4:]
        memory = 0.98 * memory - 0.1 * sum(buffer) / 4
    for form in ("chunkwise", "atlas_parallel"):
        settings = {"reference": "chunk_start", "window_at_boundary": "carry"}
        kept, _ = through(form, "omega", keys, values, *gates, settings, 3, 8, 4, weights=weights)
        assert relative(kept.M, memory) < 1e-12
        settings = {"reference": "chunk_start", "window_at_boundary": "recompute"}
        moved, _ = through(form, "omega", keys, values, *gates, settings, 3, 8, 4, weights=weights)
        assert relative(moved.M, memory) == near(0.0213)


# -- corrections to the design pages ---------------------------------------------------------------


@pytest.mark.clause("E-M09", "CHUNK-11", "EXACT-11")
def test_e_m09_momentum_before_the_window_moves_the_scale_and_the_start():
    random, keys, values = tokens(count=6, d_in=4, d_out=3)
    queries, weights = random.standard_normal((6, 4)), random.uniform(0.2, 1.0, (6, 3))
    retain, momentum, rate = (
        random.uniform(0.5, 0.9, 6),
        random.uniform(0.3, 0.8, 6),
        random.uniform(0.2, 0.5, 6),
    )
    start, trace = random.standard_normal((2, 3, 4))
    residuals, scores = keys @ start.T - values, queries @ keys.T

    def literal(s):
        memory, momenta, reads = start, [trace], []
        for t in range(6):
            momenta.append(
                momentum[t] * momenta[-1] + rate[t] * s * np.outer(residuals[t], keys[t])
            )
            memory = retain[t] * memory - sum(
                weights[t, j] * momenta[-1 - j] for j in range(3) if j <= t
            )
            reads.append(memory @ queries[t])
        return np.array(reads)

    def coefficients(in_weights, in_momenta, windowed_start):
        """Reads from rows of coefficients.

        s is in the weights or in the momenta, f starts from the windowed n or from n itself.
        """
        own, n, c, f, mask, single, decays, reads = (
            np.zeros(6),
            1.0,
            1.0,
            0.0,
            np.zeros(6),
            [],
            [],
            [],
        )
        for t in range(6):
            own, n = momentum[t] * own + in_momenta * rate[t] * np.eye(6)[t], momentum[t] * n
            single, decays = [own, *single][:3], [n, *decays][:3]
            lags = in_weights * weights[t, : len(single)]
            c, f = retain[t] * c, retain[t] * f - (lags @ decays if windowed_start else n)
            mask = retain[t] * mask + lags @ single
            reads.append(
                c * start @ queries[t] + f * trace @ queries[t] - (mask * scores[t]) @ residuals
            )
        return np.array(reads)

    for s in (1.0, 2.0):
        truth = literal(s)
        assert relative(coefficients(1.0, s, windowed_start=True), truth) < 1e-12
        for form, reference in (
            ("chunkwise", "call_start"),
            ("atlas_parallel", "call_start"),
            ("kernel", "call_start"),
            ("exact", "running"),
        ):
            settings = {
                "order": "momentum_then_window",
                "gradient_scale": s,
                "reference": reference,
            }
            given = {"window": 3, "q": queries, "weights": weights, "M": start, "S": trace}
            _, y = through(
                form, "omega", keys, values, retain, momentum, rate, settings, 4, **given
            )
            if reference == "running":
                truth = through(
                    "sequential", "omega", keys, values, retain, momentum, rate, settings, **given
                )[1]
            assert relative(y, truth) < 1e-12
    # W N in place of N W, and nothing else: f as in the other order
    assert relative(coefficients(1.0, 1.0, windowed_start=False), literal(1.0)) == near(0.467)
    # s in the weights weighs the momentum at the start as well, which holds its s already
    assert relative(coefficients(2.0, 1.0, windowed_start=True), literal(2.0)) == near(0.780)


@pytest.mark.clause("E-M10", "EXACT-5")
def test_e_m10_powers_of_the_matrix_fail_by_the_step_size():
    count = 64

    def by_halves(matrix):
        if len(matrix) == 1:
            return np.ones((1, 1))
        half = len(matrix) // 2
        first, second = by_halves(matrix[:half, :half]), by_halves(matrix[half:, half:])
        return np.block(
            [
                [first, np.zeros((half, len(matrix) - half))],
                [-second @ matrix[half:, :half] @ first, second],
            ]
        )

    def by_squaring(matrix):
        power, found = np.eye(count) - matrix, 2 * np.eye(count) - matrix
        for _ in range(5):
            power = power @ power
            found = found + found @ power
        return found

    def by_sum(matrix):
        power, found = np.eye(count), np.eye(count)
        for _ in range(count - 1):
            power = power @ (np.eye(count) - matrix)
            found = found + power
        return found

    lag = np.arange(count)[:, None] - np.arange(count)
    for step, squaring, total in (
        (0.5, 3.7e-8, 2.5e-6),
        (1.0, 32.0, 118.0),
        (1.5, 5.0e7, 5.7e8),
        (1.9, 1.7e12, 5.9e12),
    ):
        # 64 equal unit keys, retain 1, no momentum
        matrix = np.eye(count) + step * np.tril(np.ones((count, count)), -1)
        inverse = np.where(lag > 0, -step * (1 - step) ** np.maximum(lag - 1.0, 0), np.eye(count))
        errors = [
            np.abs(found(matrix) - inverse).max() for found in (by_halves, by_squaring, by_sum)
        ]
        assert errors[0] < 1e-12
        assert [
            number / 10 < error < number * 10
            for error, number in zip(errors[1:], (squaring, total), strict=True)
        ] == [True, True]
    # the form itself, on those keys
    key, value, one = (
        np.array([[0.6, 0.8]] * 64),
        np.random.default_rng(0).standard_normal((64, 3)),
        np.ones(64),
    )
    for step in (0.5, 1.0, 1.9):
        memories = titans(key, value, 0 * one, 0 * one, step * one)
        for chunk in (16, 64):
            state, y = through("exact", "delta", key, value, one, None, step * one, {}, chunk)
            assert relative(y, np.einsum("tod,td->to", memories, key)) < 1e-12
            assert relative(state.M, memories[-1]) < 1e-12


@pytest.mark.clause("E-M11", "NOTATION-9", "EXACT-13")
def test_e_m11_decay_narrows_the_stable_range():
    key, none, start = np.array([[0.6, 0.8]] * 20), np.zeros((20, 1)), np.array([[0.6, 0.8]])
    for retain, step, decay, factor in (
        (0.1, 1.9, "after_error", -1.8),
        (0.1, 1.9, "before_error", -0.09),
        (0.1, 1.1, "after_error", -1.0),
        (1.0, 2.0, "after_error", -1.0),
    ):
        memory = start[0]
        for _ in range(20):
            seen = retain * memory if decay == "before_error" else memory
            memory = retain * memory - step * (seen @ key[0]) * key[0]
        assert memory @ key[0] == near(factor**20, 1e-9)
        for form in ("sequential", "exact", "scan"):
            gates = np.full(20, retain), None, np.full(20, step)
            state, _ = through(form, "delta", key, none, *gates, {"decay": decay}, M=start)
            assert state.M[0] @ key[0] == near(factor**20, 1e-9)
    # with momentum: the roots of z^2 - (r + m - h) z + r m leave the unit circle at h = (1 + r)(1 +
    # m)
    key, none = np.array([[0.6, 0.8]] * 400), np.zeros((400, 1))
    for step, stable in ((2.35, True), (2.45, False)):
        assert (np.abs(np.roots([1.0, -(0.5 + 0.6 - step), 0.5 * 0.6])).max() < 1) == stable
        memory, trace = 1.0, 0.0
        for _ in range(400):
            trace = 0.6 * trace + step * memory
            memory = 0.5 * memory - trace
        assert (abs(memory) < 1e-3) == stable
        assert (abs(memory) > 1e3) == (not stable)
        state, _ = through(
            "exact", "titans_lmm", key, none, *constant(400, 0.5, 0.6, step), {}, 16, M=start
        )
        assert state.M[0] @ key[0] == near(memory, 1e-9)


def computed_by_a_form():
    """Cases with every token silent, and each form that computes them."""
    for rule, reference in itertools.product(FAMILY, ("running", "chunk_start")):
        axes = {"preset": "spec", "reference": reference}
        axes |= {"newton_schulz": "none"} if rule == "omega" else {}
        span = 2 if reference == "chunk_start" else None
        drawn = new(
            Request(rule=rule, draw=1, tokens=5, cotangent=True, span=span, convention=axes)
        )
        silent = {**drawn.inputs, "in/active": np.zeros(5, np.uint8)}
        case = make(drawn.header.plain(), silent, name=f"{rule} {reference}")
        for form in run.FORMS:
            if refusal(rule, case.convention, form) is None:
                yield case, form


@pytest.mark.clause("E-R22")
def test_e_r22_a_frozen_level_needs_no_backward_of_its_own():
    count = 0
    for case, form in computed_by_a_form():
        M, q, y_bar = (case.inputs[f"in/{name}"] for name in ("M0", "q", "y_bar"))
        got = dict(evaluate(case, grad=True, form=form).tensors)
        assert got.pop("out/M").tobytes() == M.tobytes()
        for name, want in (
            ("out/y", np.einsum("hij,htj->hti", M, q)),
            ("grad/q", np.einsum("hij,hti->htj", M, y_bar)),
            ("grad/M0", np.einsum("hti,htj->hij", y_bar, q)),
        ):
            assert relative(got.pop(name), want) < 1e-15
        others = {name: x for name, x in got.items() if name.startswith("grad/")}
        assert {"grad/k", "grad/v"} <= others.keys()
        assert not any(x.any() for x in others.values())
        count += 1
    assert count == 36
