"""Errata of TNT: sums that count twice, projections that are none, what shards hide, and clones."""

import numpy as np
import pytest

import tape
from atlas_ref.forms import tnt
from atlas_ref.forms.tnt import clone
from atlas_ref.forms.tnt.projection import projected
from atlas_ref.forms.tnt.state import Keys
from atlas_ref.rules import delta, titans_lmm
from atlas_ref.rules.sequence import Tokens
from tape import ops
from tests.truth import tnt_loops as loops
from tests.truth.running_loops import near, relative

PLAIN = {"gate": "none"}


def drawn(count, rate=0.05, seed=0, unit=True, d=8, d_out=6):
    """Inputs without gates, and two memories to start from."""
    random = np.random.default_rng(seed)
    keys = random.standard_normal((count, d))
    if unit:
        keys = keys / np.linalg.norm(keys, axis=1, keepdims=True)
    values, queries = random.standard_normal((count, d_out)), random.standard_normal((count, d))
    inputs = loops.Inputs(keys, values, queries, step_size=np.full(count, rate))
    return inputs, *0.5 * random.standard_normal((2, d_out, d))


def rows(inputs, of):
    return inputs._replace(
        **{name: getattr(inputs, name)[of] for name in "kvq"}, step_size=inputs.step_size[of]
    )


def ours(inputs, config, *first):
    """Reads of the package."""
    params = tnt.Params(memories=tuple(tnt.Initial(M=M) for M in first))
    tokens = Tokens(k=inputs.k, v=inputs.v, q=inputs.q, step_size=inputs.step_size)
    return tnt.run(config, params, tokens, tnt.start(config, params))[1]


def settings(rule=delta, *, span=None, local=(), **axes):
    """A TNT without gates: a global memory of a span, local ones of (C, S)."""
    config = rule.Config(d_in=8, d_out=6, convention=PLAIN)
    return tnt.Config(
        global_memory=None if span is None else tnt.Global(config=config, span=span),
        local_memories=tuple(tnt.Local(config=config, span=C, shard=S, **axes) for C, S in local),
    )


def counts(run, inputs, reference, first, last):
    """How often the gradient of each token stands in a memory: by the derivative of its rate."""
    found = []
    for t in range(first, last):
        rate = inputs.step_size.astype(complex)
        rate[t] += 1e-30j
        moved = np.imag(run(inputs._replace(step_size=rate))) / 1e-30
        g = np.outer(reference @ inputs.k[t] - inputs.v[t], inputs.k[t])
        found.append(-float((moved * g).sum() / (g * g).sum()))
    return np.array(found)


@pytest.mark.clause("E-P09")
def test_e_p09_a_summary_of_reads_is_no_write():
    inputs, V, _ = drawn(12, d=6)
    config = clone.Config(
        config=titans_lmm.Config(d_in=6, d_out=6, convention=PLAIN),
        shard=12,
        span=4,
        summary="attention",
        **clone.PRESETS["nl-hecate"],
    )
    leaves = {"V": V, "W": np.random.default_rng(1).standard_normal((6, 6))}
    tokens = Tokens(k=inputs.k, v=inputs.v, q=inputs.q, step_size=inputs.step_size)

    def run(leaves, config=config):
        params = clone.Params(V=leaves["V"], W_summary=leaves["W"])
        twice = [clone.run(config, params, tokens, clone.start(config, params))]
        twice.append(clone.run(config, params, tokens, twice[0][0]))
        return twice

    (state, y), (_, later) = run(leaves)
    want, states = loops.clones(
        inputs, V, shard=12, chunk=4, summary="attention", W_summary=leaves["W"]
    )
    assert relative(y, want) < 1e-12
    assert relative(state.V, states[1]) < 1e-12
    # the move is symmetric and of rank one, whatever was to be learned
    moved = state.V - 0.95 * V
    assert relative(moved, moved.T) < 1e-12
    assert np.linalg.matrix_rank(moved, tol=1e-9) == 1
    # the rule's own write of the same twelve tokens is neither
    written = loops.paper([loops.Memory(inputs, V, 12)]).M[0] - V
    assert np.linalg.matrix_rank(written, tol=1e-9) == 6
    assert relative(written, written.T) > 0.5
    # later reads depend on the matrix of the summary, and its gradient is exactly 0
    other = run({**leaves, "W": -leaves["W"]})[1][1]
    assert relative(other, later) > 1e-3
    found = {
        kind: tape.grad(
            lambda leaves, kind=kind: ops.sum(
                run(leaves, config.replaced(clone_gradient=kind))[1][1] ** 2
            )
        )(leaves)["W"]
        for kind in ("stop", "full")
    }
    assert not np.any(found["stop"])
    assert np.linalg.norm(found["full"]) > 1e-3


@pytest.mark.clause("E-P20")
def test_e_p20_a_sum_that_ends_at_the_next_chunk_writes_its_first_token_twice():
    inputs, V, _ = drawn(48)
    span = 4

    def run(x, doubled):
        return loops.printed([loops.Memory(x, V, span)], doubled=doubled).M[0]

    # at rates so small that V stays where it is, the gradient of token 4 counts twice
    start = rows(inputs, slice(0, 5))
    still = start._replace(step_size=start.step_size * 1e-9)
    assert counts(lambda x: run(x, True), still, V, 0, 5) == near(np.array([1, 1, 1, 1, 2]), 1e-6)
    assert counts(lambda x: run(x, False), still, V, 0, 5) == near(np.ones(5), 1e-6)
    # it reads its first write, against the statement that its own chunk is invisible
    moved = inputs._replace(v=inputs.v + np.eye(48)[4][:, None])
    for doubled in (True, False):
        reads = [
            loops.printed([loops.Memory(x, V, span)], doubled=doubled).y for x in (inputs, moved)
        ]
        assert np.array_equal(reads[0][4], reads[1][4]) != doubled
        assert np.array_equal(reads[0][:4], reads[1][:4])
    distances = []
    for span in (2, 4, 8, 16):
        memories = [loops.Memory(inputs, V, span)]
        literal, whole = loops.printed(memories).y, loops.paper(memories).y
        distances.append(relative(literal, whole))
        config = settings(span=span)
        inclusive = config.replaced(global_memory=config.global_memory.replaced(sum="inclusive"))
        assert relative(ours(inputs, config, V), whole) < 1e-12
        assert relative(ours(inputs, inclusive, V), literal) < 1e-12
    assert distances == near(np.array([0.114, 0.0890, 0.0626, 0.0305]), 0.01)


@pytest.mark.clause("E-P21")
def test_e_p21_the_local_update_counts_gradients_again():
    inputs, _, W = drawn(48)

    def run(x, base):
        return loops.printed([loops.Memory(x, W, 4, 16)], base=base).M[0]

    for base, first, second in (
        ("previous", [3, 3, 2, 1], [4, 3, 2, 1]),
        ("chunk", [1, 1, 1, 1], [1, 1, 1, 1]),
    ):
        chunk = rows(inputs, slice(0, 4))
        assert np.abs(counts(lambda x, b=base: run(x, b), chunk, W, 0, 4) - first).max() < 1e-12
        two = rows(inputs, slice(0, 8))
        R = run(chunk, base)
        assert np.abs(counts(lambda x, b=base: run(x, b), two, R, 4, 8) - second).max() < 1e-12
    distances = []
    for C in (1, 2, 4, 8, 16):
        memory = [loops.Memory(inputs, W, C, 48)]
        literal, once = (loops.printed(memory, base=base).y for base in ("previous", "chunk"))
        distances.append(relative(literal, once))
        axes = {"reset": "instead_of_write"}
        for base, want in (("previous", literal), ("chunk_start", once)):
            config = settings(titans_lmm, local=[(C, 48)], base=base, **axes)
            assert relative(ours(inputs, config, W), want) < 1e-12
    assert distances[0] == 0.0  # the bases agree for chunks of one token alone
    assert distances[1:] == near(np.array([0.192, 0.482, 0.891, 2.06]), 0.01)
    long = drawn(256, rate=0.5)
    ends = [
        np.linalg.norm(loops.printed([loops.Memory(long[0], long[2], 16, 256)], base=base).M[0])
        for base in ("previous", "chunk")
    ]
    assert ends == near(np.array([6.86e15, 6.88]), 0.01)


@pytest.mark.clause("E-P22")
def test_e_p22_the_token_of_a_reset_is_lost():
    for C, lost in ((1, 4), (2, 0), (4, 0)):
        inputs, _, W = drawn(16)
        memory = loops.Memory(inputs, W, C, 4)
        literal = loops.printed([memory])
        rule = titans_lmm if C > 1 else delta
        base = {"base": "previous"} if C > 1 else {}
        config = settings(rule, local=[(C, 4)], reset="instead_of_write", **base)
        y = ours(inputs, config, W)
        assert relative(y, literal.y) < 1e-12
        never, seen_by_itself = 0, 0
        for s in range(16):
            moved = inputs._replace(v=inputs.v + np.eye(16)[s][:, None])
            reads = loops.printed([memory._replace(inputs=moved)]).y
            never += bool(np.array_equal(reads, literal.y))
            seen_by_itself += not np.array_equal(reads[s], literal.y[s])
        assert (never, seen_by_itself) == (lost, 12)
        # with the reset before the write every token reads its own, and none is lost
        y = ours(inputs, settings(local=[(C, 4)]), W)
        for s in range(16):
            moved = inputs._replace(v=inputs.v + np.eye(16)[s][:, None])
            assert not np.array_equal(ours(moved, settings(local=[(C, 4)]), W)[s], y[s])


@pytest.mark.clause("E-P23")
def test_e_p23_chunks_counted_through_resets_leak():
    inputs, V, W = drawn(24)
    order = np.r_[8:16, 0:8, 16:24]
    errors = {}
    for origin in ("shard", "document"):
        config = settings(local=[(3, 8)], chunk_origin=origin)
        y = ours(inputs, config, W)
        want = loops.paper(
            [loops.Memory(inputs, W, 3, 8)], loops.Reading(absolute=origin == "document")
        ).y
        assert relative(y, want) < 1e-12
        errors[origin] = relative(ours(rows(inputs, order), config, W), y[order])
        seen = [
            shard
            for shard in range(2)
            if not np.array_equal(
                ours(
                    inputs._replace(v=inputs.v + (np.arange(24) // 8 == shard)[:, None]), config, W
                )[16:],
                y[16:],
            )
        ]
        assert seen == ([] if origin == "shard" else [0, 1])
    assert errors == {"shard": 0.0, "document": near(1.02, 0.01)}
    # tokens from 1 make the first chunk and the first shard a token short
    short = rows(inputs, slice(0, 11))
    memories = [loops.Memory(short, V, 8), loops.Memory(short, W, 4, 8)]
    config = settings(span=8, local=[(4, 8)])
    reads = [ours(short, config.replaced(origin=origin), V, W) for origin in (0, 1)]
    for origin in (0, 1):
        want = loops.paper(memories, loops.Reading(origin=origin)).y
        assert relative(reads[origin], want) < 1e-12
    assert relative(reads[1], reads[0]) == near(0.216, 0.01)


@pytest.mark.clause("E-P24")
def test_e_p24_a_sum_of_outer_products_is_no_projector():
    inputs, _, W = drawn(16)

    def moved(keys, **axes):
        local = settings(local=[(16, 16)], projection=tnt.Projection(**axes)).local_memories[0]
        return queries(local, keys, inputs.q[: len(keys)])

    same = np.tile(inputs.k[:1] * 1.7, (5, 1))
    along = (inputs.q[:5] @ inputs.k[0])[:, None] * inputs.k[0]
    for axes, factors in (
        ({}, [1, 2, 3, 4, 5]),
        ({"norm": "unit_keys_assumed"}, 1.7**2 * np.arange(1, 6)),
        ({"norm": "sum_of_norms"}, [1] * 5),
        ({"kind": "orthogonal"}, [1] * 5),
    ):
        assert relative(moved(same, **axes), np.array(factors)[:, None] * along) < 1e-12
    # generic keys: n / d on average, and (1 + sqrt(n / d))^2 at the top
    tops = []
    for n in (16, 64, 512, 2048):
        keys = np.random.default_rng(1).standard_normal((n, 64))
        keys = keys / np.linalg.norm(keys, axis=1, keepdims=True)
        values = np.linalg.eigvalsh(keys.T @ keys)
        tops.append(values[-1])
        assert values.mean() == near(n / 64, 1e-12)
        assert (values < 1e-9).sum() == max(0, 64 - n)
    assert tops == near(np.array([2.08, 3.64, 14.7, 43.7]), 0.01)
    # under the printed range a read of C = 1 knows one direction of its query, whatever came before
    for C, want in ((1, [1] * 8), (4, [1, 2, 3, 4] * 2)):
        config = settings(local=[(C, 16)])
        ranks = []
        for t in range(8):
            jacobian = [
                ours(inputs._replace(q=inputs.q + np.outer(np.eye(16)[t], e)), config, W)[t]
                - ours(inputs, config, W)[t]
                for e in np.eye(8)
            ]
            ranks.append(int(np.linalg.matrix_rank(np.array(jacobian), tol=1e-10)))
        assert ranks == want
    one = moved_rows(inputs, 1)
    assert relative(one, inputs.k * (inputs.k * inputs.q).sum(1, keepdims=True)) < 1e-12


def moved_rows(inputs, C):
    """P q of chunks of C tokens."""
    return queries(settings(local=[(C, 16)]).local_memories[0], inputs.k, inputs.q)


def queries(local, keys, q):
    """P q of a memory that has met no key."""
    d = keys.shape[1]
    sums = Keys(total=np.zeros((d, d)), size=np.zeros(()))
    return projected(local, tnt.Initial(), keys, q, sums, 0)[1]


@pytest.mark.clause("E-P25")
def test_e_p25_the_projection_has_three_ranges():
    inputs, V, W = drawn(48)
    memories = [loops.Memory(inputs, V, 16), loops.Memory(inputs, W, 4, 16)]
    reads = {}
    for kind in ("chunk", "shard", "sequence", "none"):
        axes = {"kind": "none"} if kind == "none" else {"range": kind}
        config = settings(span=16, local=[(4, 16)], projection=tnt.Projection(**axes))
        reads[kind] = ours(inputs, config, V, W)
        reading = {"project": False} if kind == "none" else {"range": kind}
        assert relative(reads[kind], loops.paper(memories, loops.Reading(**reading)).y) < 1e-12
    for one, other, number in (
        ("chunk", "shard", 0.553),
        ("chunk", "sequence", 0.912),
        ("shard", "sequence", 0.769),
        ("chunk", "none", 0.544),
        ("shard", "none", 0.574),
        ("sequence", "none", 1.78),
    ):
        assert relative(reads[one], reads[other]) == near(number, 0.01)
    # equal where they must be: in the first chunk of a shard, and in the first shard
    assert np.abs(reads["chunk"][:4] - reads["shard"][:4]).max() < 1e-13
    assert np.abs(reads["shard"][:16] - reads["sequence"][:16]).max() < 1e-13
    # appendix C has no denominator: the same for unit keys alone
    c = tnt.Projection(range="shard", norm="unit_keys_assumed")
    for scale, number in ((0.0, 0.0), (0.2, 0.113)):
        sizes = np.random.default_rng(5).uniform(1 - scale, 1 + scale, (48, 1))
        own = inputs._replace(k=inputs.k * sizes)
        config = settings(span=16, local=[(4, 16)], projection=c)
        y = ours(own, config, V, W)
        truth = [memory._replace(inputs=own) for memory in memories]
        assert relative(y, loops.app_c(truth).y) < 1e-12
        with_norm = loops.paper(truth, loops.Reading(range="shard")).y
        assert relative(y, with_norm) == pytest.approx(number, rel=0.01, abs=1e-12)


@pytest.mark.clause("E-P26")
def test_e_p26_shards_that_chunks_do_not_divide_hide_tokens():
    def hidden(config, count):
        inputs, V, W = drawn(count)
        memories = (V, *[W + i for i in range(len(config.local_memories))])
        y = ours(inputs, config, *memories)
        found = set()
        for s in range(count):
            moved = inputs._replace(v=inputs.v + np.eye(count)[s][:, None])
            same = np.all(ours(moved, config, *memories) == y, axis=-1)
            found |= {(t, s) for t in range(s, count) if same[t]}
        return found

    for span, shards, number in ((4, (6,), 8), (8, (4,), 48), (4, (8,), 0), (6, (2, 6), 0)):
        config = settings(span=span, local=[(2, S) for S in shards])
        found = hidden(config, 24)
        assert len(found) == number
        assert found == {
            (t, s)
            for t in range(24)
            for s in range(t + 1)
            if s >= t - t % span and all(s < t - t % S for S in shards)
        }
    # of 2048 tokens a chunk with shards of 512, those that the average position does not see
    assert np.mean([512 * (t // 512) for t in range(2048)]) == 768


@pytest.mark.clause("E-P27")
def test_e_p27_a_reference_to_itself_has_one_solution():
    inputs, _, W = drawn(24, rate=0.5, unit=False)
    implicit = loops.implicit(inputs, W)
    length = (inputs.k**2).sum(1)
    proximal = inputs._replace(step_size=inputs.step_size / (1 + inputs.step_size * length))
    none = tnt.Projection(kind="none")
    config = settings(local=[(1, 24)], projection=none)
    assert relative(ours(proximal, config, W), implicit) < 1e-12
    explicit = ours(inputs, config, W)
    assert (
        relative(
            explicit, loops.paper([loops.Memory(inputs, W, 1, 24)], loops.Reading(project=False)).y
        )
        < 1e-12
    )
    assert relative(implicit, explicit) == near(1.0, 0.01)
