"""Drawn numbers: the definition as plain loops over Python's integers, and the bits behind the
draws.
"""

from __future__ import annotations

import numpy as np
import pytest

from atlas_ref.vectors.inputs import stream
from atlas_ref.vectors.inputs.draw import drawn, exact
from atlas_ref.vectors.inputs.targets import TARGETS, target_named, topic_named

BITS = 2**64


def mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % BITS
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % BITS
    return z ^ (z >> 31)


def fnv1a64(text: str) -> int:
    found = 0xCBF29CE484222325
    for byte in text.encode():
        found = (found ^ byte) * 0x100000001B3 % BITS
    return found


@pytest.mark.clause("VEC-4")
def test_words_are_the_sums_of_the_definition() -> None:
    golden = 0x9E3779B97F4A7C15
    for seed, name in ((0, "in/k"), (7, "in/v"), (2**40, "edges of in/retain")):
        key = mix((fnv1a64(name) + seed * golden) % BITS)
        want = [mix((key + (i + 1) * golden) % BITS) for i in range(9)]
        assert stream.words(seed, name, 9).tolist() == want


@pytest.mark.clause("VEC-4")
def test_published_values_of_both_generators() -> None:
    """The first numbers of SplitMix64 from state 0, and FNV-1a of "a"."""
    state = np.arange(1, 4, dtype=np.uint64) * np.uint64(stream.GOLDEN)
    assert stream.mixed(state).tolist() == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]
    assert stream.hashed("a") == 0xAF63DC4C8601EC8C
    assert stream.hashed("") == 0xCBF29CE484222325


@pytest.mark.clause("VEC-4")
def test_whole_numbers_are_within_their_bounds_and_all_occur() -> None:
    words = stream.words(3, "in/k", 500).tolist()
    found = stream.whole(3, "in/k", 500, -4, 5)
    assert found.tolist() == [-4 + ((word >> 32) * 10 >> 32) for word in words]
    assert set(found) == set(range(-4, 6))


@pytest.mark.sample(5)
@pytest.mark.clause("VEC-4")
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_every_draw_is_exact_in_every_format(target) -> None:
    for topic in target.topics:
        for seed in (0, 3):
            case = drawn(target, topic, seed)
            for name, value in case.inputs.items():
                assert value.dtype.kind in "bu" or (value.dtype == np.float32 and exact(value)), (
                    topic.name,
                    name,
                )


def test_a_draw_depends_on_its_seed_alone() -> None:
    target = target_named("omega")
    topic = topic_named(target, "pulsed")
    one, same, other = (drawn(target, topic, seed) for seed in (4, 4, 5))
    assert all(np.array_equal(value, same.inputs[name]) for name, value in one.inputs.items())
    assert not np.array_equal(one.inputs["in/k"], other.inputs["in/k"])


@pytest.mark.clause("VEC-3")
def test_regimes_do_what_they_say() -> None:
    def of(target: str, topic: str):
        found = target_named(target)
        return drawn(found, topic_named(found, topic), 0)

    edges = of("titans_lmm", "edges")
    for name in ("in/retain", "in/momentum"):
        assert {0.0, 1.0} <= set(edges.inputs[name].ravel().tolist())
    assert 0.0 in edges.inputs["in/step_size"]
    repeated = of("delta", "repeated").inputs["in/k"]
    assert np.array_equal(repeated, np.broadcast_to(repeated[..., :1, :], repeated.shape))
    cancelling = of("omega-linear", "cancelling")
    import atlas_ref

    left = atlas_ref.evaluate(cancelling).tensors["out/M"]
    assert np.linalg.norm(left) < 2**-6 * np.linalg.norm(cancelling.inputs["in/M0"])
    zero = of("delta", "zero")
    first = np.einsum("...ij,...j->...i", zero.inputs["in/M0"], zero.inputs["in/k"][..., 0, :])
    assert np.array_equal(first, zero.inputs["in/v"][..., 0, :])
    equal = np.linalg.svd(of("newton_schulz", "equal").inputs["in/G"], compute_uv=False)
    assert np.allclose(equal, 0.5, atol=1e-15)
    ranks = np.linalg.matrix_rank(of("newton_schulz", "rank-one").inputs["in/G"].astype(float))
    assert (ranks == 1).all()
