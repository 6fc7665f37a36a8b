"""A kernel that takes cu_seqlens gets a first state of each sequence, as fla's layout has it (CASE-45)."""

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

from tests.adapters.test_kernels_states import by_complex_step  # noqa: E402

SEEN: list[dict] = []


def kda(q, k, v, g, beta, initial_state=None, cu_seqlens=None, has_initial_state=None):
    """Kimi Delta Attention over (B, T, H, D), states (N, H, K, V), as public kernels have them."""
    if initial_state is not None and not np.iscomplexobj(initial_state):
        SEEN.append({"initial_state": initial_state.shape, "cu_seqlens": cu_seqlens})
    B, T, H, K = q.shape
    edges = [0, T] if cu_seqlens is None else cu_seqlens.tolist()
    kind = np.result_type(q, k, v, g, beta, *([] if initial_state is None else [initial_state]))
    y, lasts = np.zeros(v.shape, kind), []
    for n, (a, b) in enumerate(itertools.pairwise(edges)):
        rows = slice(None) if cu_seqlens is None else slice(n, n + 1)
        M = np.zeros((B, H, K, v.shape[-1]), kind)
        if initial_state is not None and (has_initial_state is None or has_initial_state[n]):
            M = initial_state[rows] + 0 * M
        for t in range(a, b):
            M = M * np.exp(g[:, t])[..., None]
            change = beta[:, t, :, None] * (v[:, t] - np.einsum("bhk,bhkv->bhv", k[:, t], M))
            M = M + k[:, t][..., None] * change[..., None, :]
            y[:, t] = np.einsum("bhk,bhkv->bhv", q[:, t] * K**-0.5, M)
        lasts.append(M)
    return y, np.concatenate(lasts)


MINE = kernels.Kernel(kda, kernels.KDA, "kda", by_complex_step(kda))


def case(lengths=(2, 0, 3, 1), **request):
    sizes = {"d_in": 3, "d_out": 2, "heads": 2, "seed": 5, "cotangent": True}
    own = {"parameters": {"member": "kda"}, "sequences": lengths}
    return new(Request(rule="dplr", **own, **(sizes | request)))


def rows(one, mine):
    return atlas_ref.check(one, source=lambda each: sources.respond(mine, each))


@pytest.mark.clause("CASE-45", "SRC-6")
@pytest.mark.parametrize(
    "request_of",
    [{}, {"batch": 2}, {"groups": 2}, {"lengths": (0, 4, 0)}, {"lengths": (4,)}, {"state": False}],
    ids=str,
)
def test_each_sequence_has_its_own_states(request_of):
    one = case(**request_of)
    found = rows(one, MINE)
    assert [(row.tensor, row.verdict, row.why) for row in found if row.verdict != "PASS"] == []
    names = {"out/y", "out/M", "grad/k"} | ({"grad/M0"} if "in/M0" in one.inputs else set())
    assert names <= {row.tensor for row in found}


@pytest.mark.clause("CASE-45")
def test_what_a_kernel_is_handed():
    """N states and N + 1 places, of both rows of a batch, and none repeated."""
    SEEN.clear()
    rows(case(batch=2, cotangent=False), MINE)
    (seen,) = SEEN
    assert seen["initial_state"] == (8, 2, 3, 2)
    assert seen["cu_seqlens"].tolist() == [0, 2, 2, 5, 6, 8, 8, 11, 12]


@pytest.mark.clause("CASE-44")
def test_a_kernel_that_is_told_which_sequences_have_a_first_state():
    told = {**kernels.KDA, "has_initial_state": "has_initial_state"}
    one = case(batch=2)
    assert not one.inputs["in/has_initial_state"].all()
    found = rows(one, MINE._replace(arguments=told))
    assert {row.verdict for row in found} == {"PASS"}


@pytest.mark.clause("CASE-46")
def test_a_kernel_that_takes_the_first_state_for_all_is_wrong():
    def first(initial_state, **x):
        return kda(initial_state=np.repeat(initial_state[:1], len(initial_state), axis=0), **x)

    found = rows(case(lengths=(2, 3)), MINE._replace(call=first, gradients=None))
    assert {row.tensor: row.verdict for row in found} == {"out/y": "WRONG", "out/M": "WRONG"}


@pytest.mark.clause("CASE-47")
def test_a_kernel_without_cu_seqlens_is_not_asked():
    plain = {name: tensor for name, tensor in kernels.KDA.items() if name != "cu_seqlens"}
    (row,) = rows(case(), MINE._replace(arguments=plain))
    assert (row.verdict, row.why) == ("NOT SUPPORTED", "in/sequences: it takes none")
