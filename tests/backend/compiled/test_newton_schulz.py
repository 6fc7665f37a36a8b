"""The compiled steps of Newton-Schulz: NumPy's numbers and the definition's, and the calls that are
left to NumPy (NS-1, NS-20).
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from atlas_ref.backend import compiled
from atlas_ref.parts import newton_schulz as module
from atlas_ref.parts.newton_schulz import (
    NewtonSchulz,
    coefficient_table,
    compiled_steps,
    newton_schulz,
    numpy_steps,
    plain_newton_schulz,
)
from tape import vjp
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs, reordered

pytest.importorskip("numba", reason="compiled steps need Numba (extra fast)")
pytestmark = pytest.mark.host("compiled steps take arrays of NumPy alone")

#: Sizes at, below and beyond those of a tile, 16 or 8, and of its blocks of 4 and 6 rows.
SHAPES = [
    *((n, n) for n in (2, 4, 5, 6, 7, 8, 9, 11, 13, 15, 16, 17, 24, 31, 33, 64)),
    *((1, 6), (6, 1), (3, 8), (7, 40), (16, 33), (20, 17), (33, 16), (40, 7)),
]
#: a, b and c, with and without each of them.
CHOICES: dict[str, dict[str, Any]] = {
    "muon": {},
    "cubic": {"coefficients": "cubic"},
    "one step": {"steps": 1},
    "one cubic step": {"coefficients": "cubic", "steps": 1},
    "steps that differ": {"coefficients": ((2.0, -1.5, 0.5), (1.5, -0.5, 0.0), (0.0, 1.2, -0.2))},
    "never transposed": {"transpose": "never"},
    "scale norm": {"scale": "norm", "steps": 2},
    "scale sqrt, clamp": {"scale": "sqrt", "guard": "clamp"},
    "return": {"guard": "return", "eps": 1e-3},
}
each_choice = pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES.keys())


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The ways that compiled loops ran, one a group, with no work too little."""
    ran: list[str] = []
    plain = compiled.loop

    def noted(name: str, kind: Any, way: str) -> Any:
        loop = plain(name, kind, way)

        def run(*args: Any) -> None:
            ran.append(way)
            loop(*args)

        return run

    monkeypatch.setattr(compiled, "loop", noted)
    monkeypatch.setattr(compiled_steps, "WORK", 0)
    monkeypatch.delenv("ATLAS_REF_COMPILED", raising=False)
    return ran


def gaussian(*shape: int, seed: int = 0, kind: Any = np.float64) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(kind)


def value_and_pullback(settings: NewtonSchulz, S: Any, G: Any) -> tuple[Any, Any]:
    value, pullback = vjp(lambda x: newton_schulz(x, settings), S)
    return value, pullback(G)[0]


def by_numpy(settings: NewtonSchulz, S: Any, G: Any) -> tuple[Any, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATLAS_REF_COMPILED", "0")
        return value_and_pullback(settings, S, G)


def literal(S: Any, settings: NewtonSchulz) -> Any:
    """One matrix by loops over its entries: guard add, scale 1."""
    rows, columns = S.shape
    size = sum(float(x) ** 2 for x in S.flat) ** 0.5 + settings.eps
    X = [[float(x) / size for x in row] for row in S]
    for a, b, c in coefficient_table(settings):
        A = [[sum(x * y for x, y in zip(p, q, strict=True)) for q in X] for p in X]
        B = [
            [b * A[i][j] + c * sum(A[i][k] * A[k][j] for k in range(rows)) for j in range(rows)]
            for i in range(rows)
        ]
        X = [
            [a * X[i][j] + sum(B[i][k] * X[k][j] for k in range(rows)) for j in range(columns)]
            for i in range(rows)
        ]
    return np.array(X)


def both(got: tuple[Any, Any], want: tuple[Any, Any], tolerance: Any, label: Any = "") -> None:
    for name, a, b in zip(("value", "pullback"), got, want, strict=True):
        assert_close(f"{name} {label}", a, b, tolerance)


# -- values and gradients --------------------------------------------------------------------------


@each_choice
@pytest.mark.clause("NS-1", "NS-20", "NS-21")
def test_is_what_numpy_makes_of_it(loops: list[str], choice: dict[str, Any]) -> None:
    settings = NewtonSchulz(**choice)
    for shape in SHAPES:
        S, G = gaussian(3, *shape), gaussian(3, *shape, seed=1)
        loops.clear()
        got = value_and_pullback(settings, S, G)
        assert loops == ["forward", "backward"]
        both(got, by_numpy(settings, S, G), reordered(max(shape), amplification=1e2), shape)
        assert loops == ["forward", "backward"]


@each_choice
@pytest.mark.clause("NS-1", "NS-20")
def test_float32_is_float64_up_to_rounding(loops: list[str], choice: dict[str, Any]) -> None:
    settings = NewtonSchulz(**choice)
    for shape in SHAPES[2:]:
        S, G = gaussian(3, *shape, kind=np.float32), gaussian(3, *shape, seed=1, kind=np.float32)
        got = value_and_pullback(settings, S, G)
        assert {each.dtype for each in got} == {np.dtype(np.float32)}
        want = by_numpy(settings, S.astype(float), G.astype(float))
        both(got, want, reordered(8, dtype=np.float32, amplification=300), shape)
        assert_differs("float64", got[0], want[0], 1e-9)
    assert loops == ["forward", "backward"] * len(SHAPES[2:])


@pytest.mark.parametrize("name", ["muon", "cubic", "one step", "steps that differ"])
@pytest.mark.clause("NS-1")
def test_is_the_definition_entry_by_entry(loops: list[str], name: str) -> None:
    settings = NewtonSchulz(**CHOICES[name])
    for shape in ((1, 1), (5, 5), (7, 19), (17, 17), (21, 9)):
        S = gaussian(2, *shape)
        want = np.stack([literal(each, settings) for each in S])
        assert_close(f"{shape}", newton_schulz(S, settings), want, ANALYTIC)
    assert loops == ["forward"] * 5


@each_choice
@pytest.mark.clause("NS-20", "NS-21")
def test_the_pullback_is_the_complex_step_of_the_plain_twin(
    loops: list[str], choice: dict[str, Any]
) -> None:
    """<G, J V> by a complex step, against <J^T G, V>."""
    settings = NewtonSchulz(**choice)
    for shape in ((6, 6), (9, 20), (20, 9), (18, 18)):
        S, G, V = (gaussian(2, *shape, seed=seed) for seed in range(3))
        pulled = value_and_pullback(settings, S, G)[1]
        pushed = plain_newton_schulz(S + 1e-30j * V, settings).imag / 1e-30
        got, want = (np.sum(x * y, axis=(-2, -1)) for x, y in ((pulled, V), (G, pushed)))
        size = np.linalg.norm(pulled) * np.linalg.norm(V)
        assert np.all(np.abs(got - want) <= reordered(20, amplification=10).bound * size)
        assert_close(
            "pullback",
            pulled,
            vjp(lambda x: plain_newton_schulz(x, settings), S)[1](G)[0],
            reordered(20, amplification=1e2),
        )
    assert loops == ["forward", "backward"] * 4


@pytest.mark.clause("NS-1", "NS-20")
def test_steps_of_a_hundred(loops: list[str]) -> None:
    """More steps than a backward alternates between."""
    S, G = gaussian(2, 9, 9), gaussian(2, 9, 9, seed=1)
    for steps in (2, 3, 100):
        settings = NewtonSchulz(coefficients="cubic", steps=steps)
        got = value_and_pullback(settings, S, G)
        both(got, by_numpy(settings, S, G), reordered(9, amplification=1e3), steps)
    assert loops == ["forward", "backward"] * 3


# -- batches ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.float64, np.float32])
@pytest.mark.clause("NS-1", "NS-20")
def test_groups_threads_and_neighbours_change_no_bit(
    loops: list[str], kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = NewtonSchulz(scale="norm")
    for shape in ((6, 6), (17, 33), (33, 17)):
        S, G = (gaussian(13, *shape, seed=seed, kind=kind) for seed in (0, 1))
        S[4] = 0
        want = [value_and_pullback(settings, S[i : i + 1], G[i : i + 1]) for i in range(13)]
        for size, processors in itertools.product((1, 3 * S[0].nbytes, 10**9), (1, 2, 7)):
            monkeypatch.setattr(numpy_steps, "GROUP_BYTES", size)
            monkeypatch.setattr(numpy_steps, "THREAD_WORK", 0)
            monkeypatch.setattr(numpy_steps, "processors", lambda count=processors: count)
            got = value_and_pullback(settings, S, G)
            both(
                got,
                tuple(np.concatenate(each) for each in zip(*want, strict=True)),
                EXACT,
                (shape, size, processors),
            )
    assert len(loops) > 3 * 9 * 2


@pytest.mark.clause("NS-1")
def test_large_products_are_shared_out_over_threads(
    loops: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the size from which the BLAS has threads of its own."""
    monkeypatch.setattr(numpy_steps, "processors", lambda: 2)
    monkeypatch.setattr(numpy_steps, "BLAS_WORK", 0)
    S = gaussian(64, 48, 48, kind=np.float32)
    newton_schulz(S, NewtonSchulz(steps=1))
    assert loops == ["forward"] * 2


@pytest.mark.clause("NS-1", "NS-8", "NS-20")
def test_read_only_strided_and_broadcast_arguments(loops: list[str]) -> None:
    settings = NewtonSchulz()
    base, G = gaussian(3, 6, 18), gaussian(3, 6, 18, seed=1)
    want = value_and_pullback(settings, base.copy(), G.copy())
    wide = np.empty((3, 6, 36))
    wide[..., ::2] = base
    base.flags.writeable = G.flags.writeable = False
    before = base.tobytes(), G.tobytes()
    for name, S in {
        "read-only": base,
        "strided": wide[..., ::2],
        "column-major": np.asfortranarray(base),
        "transposed": np.ascontiguousarray(base.swapaxes(-1, -2)).swapaxes(-1, -2),
    }.items():
        both(value_and_pullback(settings, S, G), want, ANALYTIC, name)
    repeated = np.broadcast_to(base[0], (4, 6, 18))
    got = newton_schulz(repeated, settings)
    assert_close("broadcast", got, np.stack([want[0][0]] * 4), ANALYTIC)
    got = newton_schulz(base.reshape(3, 1, 6, 18), settings)
    assert_close("more axes", got, want[0].reshape(3, 1, 6, 18), ANALYTIC)
    assert (base.tobytes(), G.tobytes()) == before
    assert loops == ["forward", "backward"] * 5 + ["forward"] * 2


# -- what is not taken -----------------------------------------------------------------------------


def test_other_numbers_go_to_numpy(loops: list[str]) -> None:
    S = gaussian(2, 5, 5)
    for kind in (complex, np.complex64, np.longdouble, np.float16):
        newton_schulz(S.astype(kind), NewtonSchulz(steps=1))
    assert loops == []
    newton_schulz(np.array([[3, -1], [0, 4]]), NewtonSchulz(steps=1))  # which become float64
    assert loops == ["forward"]
    assert newton_schulz(np.zeros((0, 4, 4)), NewtonSchulz()).shape == (0, 4, 4)


def test_little_work_and_large_matrices_go_to_numpy(
    loops: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    S, settings = gaussian(3, 4, 8), NewtonSchulz(steps=2)
    monkeypatch.setattr(compiled_steps, "WORK", 3 * 3 * 2 * 4 * 4 * 8)
    newton_schulz(S[:2], settings)
    assert loops == []
    newton_schulz(S, settings)
    assert loops == ["forward"]
    monkeypatch.setattr(compiled_steps, "LARGEST", 7)
    value_and_pullback(settings, S, S)
    assert loops == ["forward"]
    monkeypatch.setattr(compiled_steps, "LARGEST", 8)
    monkeypatch.setattr(compiled_steps, "KEPT_BYTES", 1)  # more than a backward may keep
    value_and_pullback(settings, S, S)
    assert loops == ["forward"] * 2


def test_the_environment_and_a_numba_that_fails_go_to_numpy(
    loops: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    S, settings = gaussian(3, 5, 5), NewtonSchulz()
    want = by_numpy(settings, S, S)
    monkeypatch.setenv("ATLAS_REF_COMPILED", "0")
    both(value_and_pullback(settings, S, S), want, EXACT)
    monkeypatch.delenv("ATLAS_REF_COMPILED")
    monkeypatch.setattr(compiled, "loop", lambda *_: None)
    both(value_and_pullback(settings, S, S), want, EXACT)
    assert loops == []


@pytest.mark.parametrize("size", [1, 10**9])
@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_numpy_says_what_overflows(
    loops: list[str], kind: Any, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the matrices of a group, those alone that are not finite are computed again."""
    settings = NewtonSchulz(coefficients=((1.0, 1e30, 1e30),), steps=4)
    S, G = gaussian(3, 5, 5, kind=kind), gaussian(3, 5, 5, seed=1, kind=kind)
    S[::2] = 0
    monkeypatch.setattr(numpy_steps, "GROUP_BYTES", size)
    with np.errstate(all="raise"), pytest.raises(FloatingPointError, match=r"overflow|invalid"):
        newton_schulz(S, settings)
    again: list[tuple[str, int]] = []
    for name in ("forward", "backward"):
        plain = getattr(numpy_steps, name)

        def noted(X: Any, *args: Any, plain: Any = plain, name: str = name) -> None:
            again.append((name, len(X)))
            plain(X, *args)

        monkeypatch.setattr(numpy_steps, name, noted)
    loops.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        got = value_and_pullback(settings, S, G)
        groups = 1 if size > 1 else 3
        assert loops == ["forward"] * groups + ["backward"] * groups
        assert again[:2] == [("forward", 1), ("backward", 1)]
        assert set(again[2:]) == {("forward", 1)}  # of that backward
        want = by_numpy(settings, S, G)
    both(got, want, EXACT)
    assert not np.isfinite(got[0][1]).any()
    assert np.isfinite(got[0][::2]).all()


def test_a_last_iterate_that_overflows_is_computed_again(loops: list[str]) -> None:
    """Whose cotangent does not, since only scale norm looks at it."""
    settings = NewtonSchulz(
        coefficients=((10.0, 0.0, 0.0), (1e308, 0.0, 0.0)), steps=2, scale="norm"
    )
    S, G = gaussian(1, 3, 3), np.zeros((1, 3, 3))
    with np.errstate(all="raise"), pytest.raises(FloatingPointError, match="overflow"):
        module._backward(S, G, settings)
    assert loops == ["backward"]


# -- loading it ------------------------------------------------------------------------------------


def test_numba_is_loaded_when_it_is_needed() -> None:
    code = (
        "import sys, numpy as np; from atlas_ref.parts.newton_schulz import *;"
        "newton_schulz(np.ones((2, 8, 8)), NewtonSchulz()); print('numba' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
