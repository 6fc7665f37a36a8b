"""Mutants of a deep memory: networks in the place of momenta, and lag tokens."""

from __future__ import annotations

from tests.mutants.mutant import Edited, Mutant

_RULE = "atlas_ref.rules.deep_memory"
_TESTS = "tests/rules/deep_memory"


def edited(name: str, what: str, place: str, old: str, new: str, *tests: str) -> Mutant:
    """A mutant of a function; `place` is "module:function"."""
    named = tuple(f"{_TESTS}/test_deep_momentum.py::test_{test}" for test in tests)
    return Mutant(f"deep-momentum-{name}", what, place, Edited(old, new), named)


def lagged(name: str, what: str, place: str, old: str, new: str, *tests: str) -> Mutant:
    """A mutant of a function that knows lag tokens; `place` is "module:function"."""
    named = tuple(f"{_TESTS}/test_lag.py::test_{test}" for test in tests)
    return Mutant(f"lag-token-{name}", what, f"{_RULE}.{place}", Edited(old, new), named)


_LOOPS = "reads_and_states_are_those_of_plain_loops"
_OUTER = "outer_gradients_are_complex_steps_of_plain_loops"

_MOMENTUM = (
    edited(
        "maps-first",
        "the network maps a gradient before it learned of it",
        f"{_RULE}.deep_momentum:step",
        "settings.function, after, u",
        "settings.function, network, u",
        f"{_LOOPS}[silu-l2-plus-900]",
        "a_linear_network_attends_to_the_gradients_before",
    ),
    edited(
        "climbs-its-objective",
        "the network climbs its objective",
        f"{_RULE}.deep_momentum:step",
        "rank, minus=True)",
        "rank)",
        f"{_LOOPS}[silu-dot-plus-900]",
        "a_linear_network_attends_to_the_gradients_before",
    ),
    edited(
        "rate-left-out",
        "the network learns at a rate of 1",
        f"{_RULE}.deep_momentum:step",
        "found[name] if a is None else of_leading(a, rank) * found[name]",
        "found[name]",
        f"{_LOOPS}[silu-dot-plus-900]",
        "a_linear_network_attends_to_the_gradients_before",
    ),
    edited(
        "columns-first",
        "the entries of a gradient stand column by column",
        f"{_RULE}.deep_momentum:vector",
        "ops.reshape(g[name], (*leading",
        "ops.reshape(g[name].swapaxes(-1, -2), (*leading",
        f"{_LOOPS}[silu-l2-plus-900]",
    ),
    edited(
        "target-without-its-sign",
        "the network learns the gradient under both signs",
        "atlas_ref.parts.deep_momentum:slope",
        "target if minus else -target",
        "-target",
        f"{_LOOPS}[silu-l2-minus-900]",
        "the_slope_is_the_complex_step_of_the_objective[dot-minus]",
    ),
    edited(
        "prediction-left-out",
        "least squares forgets what the network predicts",
        "atlas_ref.parts.deep_momentum:slope",
        'predicted + away if settings.objective == "l2" else away',
        "away",
        f"{_LOOPS}[silu-l2-plus-900]",
        "the_slope_is_the_complex_step_of_the_objective[l2-plus]",
    ),
    edited(
        "first-network-at-each-call",
        "each call starts from the network that it brings",
        f"{_RULE}.run:_initial_momentum",
        "is None or state.momentum:",
        "is None:",
        "calls_cut_anywhere_carry_the_network[silu-sequence]",
        "calls_cut_anywhere_carry_the_network[linear-never]",
    ),
    edited(
        "step-without-a-gradient",
        "no cotangent goes through the step of the network",
        f"{_RULE}.deep_momentum:_tensors",
        "ops.reshape(s[..., 0, first:last]",
        "ops.reshape(ops.stop_gradient(s)[..., 0, first:last]",
        f"{_OUTER}[silu-l2-plus]",
    ),
    edited(
        "drawn-like-the-memory",
        "a network is drawn from the streams of the memory",
        f"{_RULE}:_draw_momentum",
        "seed=seed + 2**128 + 2**64 * head",
        "seed=seed + 2**64 * head",
        "a_network_is_drawn_for_each_head_from_streams_of_its_own",
    ),
)

_LAG = (
    lagged(
        "at-every-write",
        "logarithms act at every write",
        "write:retained",
        "config.retention.lag and not first",
        "False",
        "memora_of_a_matrix_with_lag_tokens_is_the_printed_equations",
    ),
    lagged(
        "reference-left",
        "gradients stay at the weights before the lag token",
        "run:_written",
        "if lagged else memory",
        "if False else memory",
        "memora_of_a_matrix_with_lag_tokens_is_the_printed_equations",
    ),
    lagged(
        "a-chunk-late",
        "spans are counted from the second chunk on",
        "config:Config.first_of_span",
        "position %",
        "(position + self.chunk) %",
        "memora_of_a_matrix_with_lag_tokens_is_the_printed_equations",
    ),
)

DEEP_MEMORY_MUTANTS = (*_MOMENTUM, *_LAG)
