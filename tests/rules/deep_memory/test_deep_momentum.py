"""Deep momentum: loops, the complex step, what it learns, splits, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.parts.deep_momentum import DeepMomentum, slope
from atlas_ref.parts.memory_functions import MemoryFunction, tensors
from atlas_ref.rules import deep_memory
from atlas_ref.rules.deep_memory.deep_momentum import step
from tape import grad, ops
from tests.rules.deep_memory.test_biases import plain
from tests.support import deep_memories as deep
from tests.support.close import (
    EXACT,
    Tolerance,
    assert_close,
    assert_differs,
    relative_error,
    reordered,
)
from tests.truth import deep_memory_loops as loops

pytestmark = pytest.mark.host("plain loops of the tests")

#: Networks by name, for the package and for the loops.
NETWORKS: dict[str, dict[str, Any]] = {
    "linear": {"kind": "linear"},
    "silu": {"kind": "mlp", "activation": "silu", "expansion": 0.5},
    "gelu": {"kind": "mlp", "activation": "gelu", "expansion": 0.4, "depth": 3},
    "residual": {
        "kind": "mlp",
        "activation": "silu",
        "expansion": 0.3,
        "residual_norm": True,
    },
}
OBJECTIVES = ("l2", "dot", "ones")
SIGNS = ("plus", "minus")
CLOSE = reordered(64, amplification=100.0)


def own(network: str = "silu", objective: str = "l2") -> dict[str, Any]:
    return {"function": NETWORKS[network], "objective": objective}


def of_loops(settings: dict[str, Any], sign: str = "plus") -> dict[str, Any]:
    function = {n: x for n, x in settings["function"].items() if n != "expansion"}
    if function.get("activation") == "gelu":
        function["activation"] = "gelu_erf"
    return {"function": function, "objective": settings["objective"], "sign": sign}


def config(choice: dict[str, Any], settings: Any, sign: str = "plus", **axes: Any) -> Any:
    made = deep.config(choice, deep_momentum=settings)
    return made.replaced(convention=made.convention.replaced(momentum_sign=sign, **axes))


def inputs(choice: dict[str, Any], of: Any, **how: Any) -> Any:
    """Inputs with first tensors of the network, away from 0."""
    given = deep.inputs(choice, **how)
    rng = np.random.default_rng(21)
    network = {
        f"momentum/{name}": 0.5 * rng.standard_normal(shape) / np.sqrt(shape[-1])
        for name, shape in of.momentum_shapes.items()
    }
    return given._replace(tensors={**given.tensors, **network})


def drawn(number: int, network: str, objective: str, sign: str) -> tuple[Any, Any, Any]:
    """A drawn choice with a momentum gate, its settings and its inputs."""
    fixed = {
        "momentum": True,
        "phase": "both",
        "reduction": "mean",
        "newton_schulz": number % 2 * 3,
    }
    choice = deep.drawn(number, clip=("hard", "none", "hard", "hard")[number % 4], **fixed)
    choice["rate"] = ("both", "momentum", "both", "memory")[number % 4]
    of = config(choice, own(network, objective), sign)
    return choice, of, inputs(choice, of, seed=number)


def amplified(of: Any, given: Any) -> Tolerance:
    """The bound of a sum in another order, times the amplification of a nudge by the memory."""
    results = []
    for size in (0.0, 1e-8):
        noise = np.random.default_rng(5).standard_normal(given.k.shape)
        state, y = deep.run(of, given._replace(k=given.k * (1.0 + size * noise)))
        results.append([y, *state.weights.values(), *state.momentum.values()])
    worst = max(relative_error(a, b) for a, b in zip(*results, strict=True)) / 1e-8
    assert worst < 1e5  # else the loops would prove nothing
    return reordered(64, amplification=max(10.0, worst))


@pytest.mark.clause("DEEP-37", "DEEP-38")
@pytest.mark.parametrize("number", range(900, 906))
@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("network", NETWORKS)
def test_reads_and_states_are_those_of_plain_loops(
    network: str, objective: str, sign: str, number: int
) -> None:
    choice, of, given = drawn(number, network, objective, sign)
    tolerance = amplified(of, given)
    state, y = deep.run(of, given)
    reset = None if given.reset is None else np.tile(given.reset, (len(given.k), 1))
    settings = deep.of_loops(choice, deep_momentum=of_loops(own(network, objective), sign))
    rows = (given.tensors, given.k, given.v, given.q, deep.kept(choice, given))
    want, after = loops.run(settings, *rows, reset=reset, calls=given.calls)
    assert_close("y", y, want, tolerance)
    for kind, found in (("memory", state.weights), ("momentum", state.momentum)):
        for name, tensor in found.items():
            full = np.broadcast_to(tensor, after[f"{kind}/{name}"].shape)
            assert_close(f"{kind}/{name}", full, after[f"{kind}/{name}"], tolerance)


def of_choice(**more: Any) -> dict[str, Any]:
    """A choice whose network learns at the step size."""
    fixed = {"read": "after", "gate": "retain", "rate": "both", "unfinished": "wait"}
    fixed |= {"reduction": "mean", "memory_reset": "sequence", "momentum_reset": "sequence"}
    return plain("mlp", **fixed | {"chunk": 1, "window": 1} | more)


def small(network: str, objective: str, sign: str, **axes: Any) -> tuple[Any, Any, Any]:
    choice = of_choice(chunk=2, window=4)
    of = config(choice, own(network, objective), sign, **axes)
    return choice, of, inputs(choice, of, tokens=7)


@pytest.mark.clause("DEEP-37", "DEEP-38", "DEEP-18", "DEEP-25")
@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("network", NETWORKS)
def test_outer_gradients_are_complex_steps_of_plain_loops(
    network: str, objective: str, sign: str
) -> None:
    """By every token, gate and tensor, those of the network too, of reads and of both states."""
    choice, of, given = small(network, objective, sign)
    rng = np.random.default_rng(2)
    bars = {"y": rng.standard_normal(given.v.shape)}
    state, _ = deep.run(of, given)
    for kind, each in (("memory", state.weights), ("momentum", state.momentum)):
        bars |= {f"{kind}/{name}": rng.standard_normal(x.shape) for name, x in each.items()}

    def loss(at: Any) -> Any:
        gates = {name: at[name] for name in given.gates}
        tensors = {name: at[name] for name in given.tensors}
        moved = given._replace(k=at["k"], v=at["v"], q=at["q"], gates=gates, tensors=tensors)
        state, y = deep.run(of, moved)
        total = ops.sum(bars["y"] * y)
        for kind, each in (("memory", state.weights), ("momentum", state.momentum)):
            for name, x in each.items():
                total = total + ops.sum(bars[f"{kind}/{name}"] * x)
        return total

    at = {"k": given.k, "v": given.v, "q": given.q, **given.gates, **given.tensors}
    got = grad(loss)(at)
    settings = deep.of_loops(choice, deep_momentum=of_loops(own(network, objective), sign))
    rows = (given.tensors, given.k, given.v, given.q, deep.kept(choice, given), bars)
    for label, x in got.items():
        way = np.random.default_rng(7).standard_normal(x.shape)
        want = loops.along(settings, *rows, {label: way})
        size = np.linalg.norm(x) * np.linalg.norm(way)
        assert size > 0.0, label
        assert abs(np.sum(x * way) - want) <= 1e-12 * size, label


@pytest.mark.clause("DEEP-19", "DEEP-37")
def test_the_first_order_takes_the_network_and_its_step_as_constants() -> None:
    choice = of_choice(chunk=2, window=4)
    of = config(choice, own("silu")).replaced(outer_gradient="first_order")
    given = inputs(choice, of, batch=1, tokens=5)
    bars = {"y": np.random.default_rng(2).standard_normal(given.v.shape)}

    def loss(at: Any) -> Any:
        return ops.sum(bars["y"] * deep.run(of, given._replace(tensors=at))[1])

    got = grad(loss)(given.tensors)
    settings = deep.of_loops(choice, deep_momentum=of_loops(own("silu")))
    rows = (given.tensors, given.k, given.v, given.q, deep.kept(choice, given), bars)
    names = ["W_1", "momentum/W_2"]
    want = loops.outer(settings | {"outer_gradient": "first_order"}, *rows, names=names)
    assert_close("W_1", got["W_1"], want["W_1"], Tolerance("ANALYTIC", 1e-12))
    assert not got["momentum/W_2"].any()
    assert not want["momentum/W_2"].any()


@pytest.mark.clause("DEEP-38")
@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_slope_is_the_complex_step_of_the_objective(objective: str, sign: str) -> None:
    rng, direction = np.random.default_rng(3), 1.0 if sign == "plus" else -1.0
    p, u = rng.standard_normal((2, 1, 7))
    target = direction * (np.ones_like(u) if objective == "ones" else u)

    def value(p: Any) -> Any:
        return np.sum((p - target) ** 2) / 2.0 if objective == "l2" else -np.sum(p * target)

    got = slope(DeepMomentum(objective=objective), p, u, minus=sign == "minus")
    ways = 1e-40j * np.eye(7)[:, None]
    want = [np.imag(value(p + way)) / 1e-40 for way in ways]
    assert_close("slope", got[0], np.array(want), Tolerance("ANALYTIC", 1e-14))


@pytest.mark.clause("DEEP-37")
def test_a_linear_network_attends_to_the_gradients_before() -> None:
    """From 0 under dot: s = sum_i a_i momentum^(n - i) <u_i, u_n> u_i, with the present one."""
    of = deep_memory.Config(
        d_in=3,
        d_out=2,
        memory={"kind": "linear"},
        deep_momentum=own("linear", "dot"),
        convention={"newton_schulz": "none", "rate": "momentum"},
    )
    rng = np.random.default_rng(0)
    given, network = rng.standard_normal((5, 2, 3)), {"W": np.zeros((6, 6))}
    for n, g in enumerate(given):
        network, s = step(of, np.asarray(0.8), network, np.asarray(0.3), {"W": g})
        want = sum(0.3 * 0.8 ** (n - i) * np.sum(given[i] * g) * given[i] for i in range(n + 1))
        assert_close("s", s["W"], want, reordered(16))


@pytest.mark.clause("DEEP-37", "DEEP-23")
@pytest.mark.parametrize("reset", ["sequence", "never"])
@pytest.mark.parametrize("network", NETWORKS)
def test_calls_cut_anywhere_carry_the_network(network: str, reset: str) -> None:
    choice = of_choice(chunk=3, window=5, documents=True, momentum_reset=reset)
    of = config(choice, own(network))
    given = inputs(choice, of)
    state, want = deep.run(of, given)
    for calls in ([4, 1, 8], [1] * 13):
        after, y = deep.run(of, given._replace(calls=calls))
        assert_close("y", y, want, CLOSE)
        for name, x in state.momentum.items():
            assert_close(name, after.momentum[name], x, CLOSE)


@pytest.mark.clause("DEEP-16", "DEEP-37")
def test_a_document_starts_from_the_network_that_its_call_brings() -> None:
    choice = of_choice(chunk=2, window=2, documents=True)
    of = config(choice, own())
    given = inputs(choice, of)
    first = int(np.nonzero(given.reset)[0][-1])
    own_rows = {name: x[:, first:] for name, x in given.gates.items()}
    alone = given._replace(
        k=given.k[:, first:], v=given.v[:, first:], q=given.q[:, first:], gates=own_rows, reset=None
    )._replace(calls=[given.k.shape[1] - first])
    (state, y), (of_last, of_last_y) = deep.run(of, given), deep.run(of, alone)
    assert_close("y", y[:, first:], of_last_y, EXACT)
    for name, x in of_last.momentum.items():
        assert_close(name, state.momentum[name], x, EXACT)


@pytest.mark.clause("DEEP-38")
def test_objectives_and_a_sum_of_gradients_differ() -> None:
    choice = of_choice(clip="hard", rate="memory")
    of = config(choice, own())
    given = inputs(choice, of, tokens=5)
    larger = {n: (4.0 if "momentum/" in n else 1.0) * x for n, x in given.tensors.items()}
    given = given._replace(tensors=larger)
    _, want = deep.run(of, given)
    for objective in ("dot", "ones"):
        _, y = deep.run(config(choice, own("silu", objective)), given)
        assert_differs(objective, y, want, 1e-3)
    _, y = deep.run(config(choice, own(), "minus"), given)
    assert_differs("minus", y, want, 1e-3)
    memory = {name: x for name, x in given.tensors.items() if not name.startswith("momentum/")}
    _, y = deep.run(deep.config(choice), given._replace(tensors=memory))
    assert_differs("sum", y, want, 1e-3)


# -- refusals, starts ------------------------------------------------------------------------------


@pytest.mark.clause("DEEP-37")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"momentum_order": 2}, "deep_momentum: given beside momentum_order 2, but a network has"),
        (
            {"convention": {"newton_schulz": {"argument": "nesterov"}}},
            r"deep_momentum: given, but newton_schulz\.argument nesterov looks ahead along a sum",
        ),
        ({"deep_momentum": {"objective": "l1"}}, "objective"),
        ({"deep_momentum": {"function": {"kind": "tree"}}}, "linear"),
        ({"deep_momentum": {"function": {"kind": "mlp", "expansion": 0.01}}}, "expansion: 0.01"),
    ],
    ids=str,
)
def test_settings_that_contradict_each_other(settings: dict[str, Any], words: str) -> None:
    fields = {"d_in": 3, "d_out": 3, "deep_momentum": own()} | settings
    with pytest.raises(ValueError, match=words):
        deep_memory.Config(**fields)


@pytest.mark.clause("DEEP-24", "DEEP-37")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda g: g._replace(gates={n: x for n, x in g.gates.items() if n != "momentum"}),
            "momentum: missing, deep_momentum forgets by this gate",
        ),
        (
            lambda g: g._replace(tensors={n: x for n, x in g.tensors.items() if "m/W_2" not in n}),
            "memory/momentum/W_2: missing, shape",
        ),
        (
            lambda g: g._replace(tensors=g.tensors | {"momentum/W_1": np.zeros((2, 2))}),
            r"memory/momentum/W_1: shape \(2, 2\), expected",
        ),
        (
            lambda g: g._replace(tensors=g.tensors | {"momentum/V": np.zeros(2)}),
            "memory/momentum/V: unknown, kind mlp has W_1, W_2",
        ),
        (
            lambda g: g._replace(
                tensors=g.tensors | {"momentum/W_1": np.stack([g.tensors["momentum/W_1"]] * 3)}
            ),
            r"memory/momentum/W_1: .* broadcast to \(2,\) of the tokens",
        ),
    ],
)
def test_calls_that_contradict_their_settings(change: Any, words: str) -> None:
    choice = of_choice()
    of = config(choice, own())
    with pytest.raises(ValueError, match=words):
        deep.run(of, change(inputs(choice, of)))


@pytest.mark.clause("DEEP-37")
def test_tensors_of_a_network_without_the_setting_are_unknown() -> None:
    choice = of_choice()
    given = inputs(choice, config(choice, own()))
    with pytest.raises(ValueError, match="memory/momentum/W_1: unknown"):
        deep.run(deep.config(choice), given)


@pytest.mark.clause("DEEP-37")
def test_a_network_is_drawn_for_each_head_from_streams_of_its_own() -> None:
    of = deep_memory.Config(d_in=2, d_out=2, heads=2, deep_momentum=own())
    drawn = deep_memory.RULE.draw(of, 5)
    assert {n: x.shape for n, x in drawn.items()} == dict(deep_memory.RULE.tensors(of))
    network = tensors(MemoryFunction(**NETWORKS["silu"]), of.entries, of.entries)
    assert {n: (2, *shape) for n, shape in network.items()} == {
        n.removeprefix("momentum/"): x.shape for n, x in drawn.items() if "momentum/" in n
    }
    assert_differs("heads", drawn["momentum/W_1"][0], drawn["momentum/W_1"][1], 0.1)
    plainly = deep_memory.RULE.draw(of.replaced(deep_momentum=None), 5)
    for name, x in plainly.items():
        assert_close(name, drawn[name], x, EXACT)
    size = drawn["W_1"][0].size
    alike = drawn["momentum/W_1"][0].ravel()[:size] / drawn["W_1"][0].ravel()
    assert np.std(alike) > 0.1
