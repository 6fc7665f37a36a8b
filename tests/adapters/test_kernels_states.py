"""Kernels with two states: first ones, last ones, cotangents and gradients of both."""

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.sources import sources

ADAPTERS = Path(__file__).parents[2] / "examples" / "adapters"
sys.path.insert(0, str(ADAPTERS))
import kernels  # noqa: E402

QKV = {"q": "q", "k": "k", "v": "v", "M0": "M0", "starts": "cu_seqlens"}


def sequences(x, starts):
    """(first token, last, its number) of each packed sequence, and the number of them all."""
    edges = [0, x["v"].shape[1]] if starts is None else starts.tolist()
    return [(a, b, n) for n, (a, b) in enumerate(itertools.pairwise(edges))]


def packed(step, second):
    """A kernel of a step (row, M, other) -> (o, M, other), in the layout (B, T, H, D)."""

    def call(*, starts=None, **x):
        first, other = x.pop("M0", None), x.pop("first", None)
        kind = np.result_type(*[each for each in (*x.values(), first, other) if each is not None])
        B, _, H, K = x["q"].shape
        V, spans = x["v"].shape[-1], sequences(x, starts)
        shape = {"z": (H, K), "A": (x["k"].shape[2], K), "S": (H, K, V)}[second]
        y, lasts = np.zeros(x["v"].shape, kind), []
        for a, b, n in spans:
            rows = slice(None) if len(spans) == 1 else slice(n, n + 1)
            M = np.zeros((B, H, K, V), kind) if first is None else first[rows]
            s = np.zeros((B, *shape), kind) if other is None else other[rows]
            for t in range(a, b):
                y[:, t], M, s = step({name: each[:, t] for name, each in x.items()}, M, s)
            lasts.append((M, s))
        Ms, others = zip(*lasts, strict=True)
        return y, np.concatenate(Ms), np.concatenate(others)

    return call


def normalised(x, M, z):
    """DPLR-19."""
    M, z = M + x["k"][..., None] * x["v"][..., None, :], z + x["k"]
    q = x["q"] * x["q"].shape[-1] ** -0.5
    found = (z * q).sum(-1, keepdims=True)
    return np.einsum("bhk,bhkv->bhv", q, M) / (found + 1e-10), M, z


def preconditioned(x, M, A):
    """DPLR-20: A of key heads, whose keys value heads share."""
    shared = M.shape[1] // x["k"].shape[1]
    A = np.exp(x["g_precond"])[..., None] * A + x["b_precond"][..., None] * x["k"] ** 2
    r = np.log(A + 1e-6) + 0.2
    size = np.where(r.real < 0, -r, r)  # of complex numbers too
    w = x["k"] * 1.5 ** (-r / (1 + size))
    k, w, q = (np.repeat(each, shared, axis=1) for each in (x["k"], w, x["q"]))
    M = M * np.exp(x["g"])[..., None]
    change = x["beta"][..., None] * (x["v"] - np.einsum("bhk,bhkv->bhv", k, M))
    M = M + w[..., None] * change[..., None, :]
    return np.einsum("bhk,bhkv->bhv", q * q.shape[-1] ** -0.5, M), M, A


def with_momentum(x, M, S):
    """DPLR-21."""
    error = np.einsum("bhk,bhkv->bhv", x["p"], M) - x["v"]
    S = np.exp(x["mu"])[..., None, None] * S
    S = S + x["k"][..., None] * (x["eta"][..., None] * error)[..., None, :]
    M = M * np.exp(x["g"])[..., None, None] - x["beta"][..., None, None] * S
    return np.einsum("bhk,bhkv->bhv", x["q"] * x["q"].shape[-1] ** -0.5, M), M, S


def by_complex_step(call):
    """Gradients of a kernel by every argument, from cotangents of all results."""

    def gradients(given, *bars):
        found = {}
        for name in (name for name, x in given.items() if x.dtype.kind == "f"):
            found[name] = np.zeros(given[name].shape)
            for place in np.ndindex(given[name].shape):
                near = given[name].astype(complex)
                near[place] += 1e-30j
                pairs = zip(call(**{**given, name: near}), bars, strict=True)
                found[name][place] = sum(
                    (x.imag * bar).sum() / 1e-30 for x, bar in pairs if bar is not None
                )
        return found

    return gradients


GATED = {"g": "log_retain", "beta": "beta"}
PRECOND = GATED | {"g_precond": "log_retain_precond", "b_precond": "beta_precond", "first": "A0"}
MOMENTUM = GATED | {"mu": "log_momentum", "eta": "eta", "p": "erase_key", "first": "S0"}

#: Member -> its step, second state, arguments beside those of all, and other fields.
KERNELS = {
    "linear_attn_normalized": (normalised, "z", {"first": "z0"}, {}),
    "precond_kda": (preconditioned, "A", PRECOND, {"grouped": True}),
    "momentum_delta": (with_momentum, "S", MOMENTUM, {"channels": False}),
}


def kernel(member):
    step, second, arguments, how = KERNELS[member]
    call = packed(step, second)
    return kernels.Kernel(call, QKV | arguments, member, by_complex_step(call), second=True, **how)


def case(member, groups=1, **request):
    """A case from a first memory and a first second state, with cotangents of both last ones."""
    second = KERNELS[member][1]
    own = {"member": member} | ({"groups": groups} if groups > 1 else {})
    sizes = {"tokens": 4, "d_in": 3, "d_out": 2, "heads": 2, "seed": 5, "cotangent": True}
    asked = Request(rule="dplr", parameters=own, state=True, **(sizes | request))
    found = new(asked)
    rng, inputs = np.random.default_rng(3), dict(found.inputs)
    k, v = inputs["in/k"].shape, inputs["in/v"].shape
    memory = (*v[:-2], v[-1], k[-1])
    shape = {"z": (*v[:-2], k[-1]), "A": (*k[:-2], k[-1]), "S": memory}[second]
    for name, size in (("M", memory), (second, shape)):
        inputs[f"in/{name}0"] = np.abs(rng.standard_normal(size)) + 0.1
        inputs[f"in/{name}_bar"] = rng.standard_normal(size)
    return atlas_ref.make(found.header.plain(), inputs, name=member)


def rows(one, mine):
    return atlas_ref.check(one, source=lambda each: sources.respond(mine, each))


@pytest.mark.clause("SRC-6")
@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("member", KERNELS)
def test_both_states_are_handed_over_and_judged(member, packs):
    found = rows(case(member, reset=3 if packs else 0), kernel(member))
    second = KERNELS[member][1]
    assert [(row.tensor, row.verdict, row.why) for row in found if row.verdict != "PASS"] == []
    names = {"out/M", f"out/{second}", "grad/M0", f"grad/{second}0"}
    assert names <= {row.tensor for row in found}


@pytest.mark.parametrize("grouped", [False, True])
def test_a_state_of_key_heads_is_handed_over_shared_or_for_each_value_head(grouped):
    one = case("precond_kda", groups=2)
    assert one.inputs["in/v"].shape[0] == 2 * one.inputs["in/A0"].shape[0]
    found = rows(one, kernel("precond_kda")._replace(grouped=grouped))
    assert [(row.tensor, row.verdict, row.why) for row in found if row.verdict != "PASS"] == []
    assert {"out/A", "grad/A0"} <= {row.tensor for row in found}


@pytest.mark.parametrize("member", KERNELS)
def test_a_wrong_second_state_is_wrong(member):
    mine, second = kernel(member), KERNELS[member][1]

    def stale(**x):
        y, M, last = mine.call(**x)
        return y, M, 0.5 * last

    verdicts = {row.tensor: row.verdict for row in rows(case(member), mine._replace(call=stale))}
    assert verdicts[f"out/{second}"] == "WRONG"
    assert verdicts["out/y"] == verdicts["out/M"] == "PASS"


def test_a_kernel_without_the_second_state_is_not_asked_for_it():
    member = "momentum_delta"
    mine = kernel(member)
    alone = mine._replace(call=lambda **x: mine.call(**x)[:2], second=False)
    (row,) = rows(case(member), alone)
    assert (row.verdict, row.why) == ("NOT SUPPORTED", "in/S_bar: it takes none")


def test_a_second_state_that_no_member_has_and_a_wrong_number_of_results_are_refused():
    one = case("momentum_delta")
    with pytest.raises(ValueError, match=r"Kernel.second: True, needed is False for a member"):
        kernels.Kernel(lambda: None, {}, "kda", second=True).check()
    mine = kernel("momentum_delta")
    two = mine._replace(call=lambda **x: mine.call(**x)[:2])
    found = rows(one, two)
    assert {row.verdict for row in found} == {"FAILED"}
    assert "Kernel.call: 2 results, needed are o and M and S" in found[0].why
