"""The kernel form with features known through a kernel alone, possibly infinitely many."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atlas_ref.conventions import resolve
from atlas_ref.forms.kernel import Coefficients, attend, exponential, inner, polynomial
from atlas_ref.parts import feature_maps
from atlas_ref.parts.newton_schulz import NewtonSchulz
from atlas_ref.rules import omega, sequence
from tape import check, ops, vjp
from tests.support.close import ANALYTIC, EXACT, assert_close, relative_error, reordered
from tests.support.conditioning import amplification, together
from tests.support.strategies import AXES, NEWTON_SCHULZ, repeatable

#: As in tests/rules/test_literal.py: what a rule amplifies, and Newton-Schulz in small singular
#: values, once per token.
WITHOUT, WITH = 1e4, 1e7


def arrays(
    T: int,
    d: int,
    d_out: int,
    c: int,
    *,
    lead: tuple[int, ...] = (),
    per_dimension: bool = False,
    seed: int = 0,
) -> dict[str, Any]:
    """Tokens and gates for `attend`, all products of keys and queries within 0.9."""
    draw = np.random.default_rng(seed)
    p = {name: draw.uniform(-1, 1, (*lead, T, d)) * math.sqrt(0.9 / d) for name in ("k", "q")}
    p["v"] = draw.standard_normal((*lead, T, d_out))
    shape = (*lead, T, d_out) if per_dimension else (*lead, T)
    p |= {"retain": draw.uniform(0.7, 1, shape), "momentum": draw.uniform(0.3, 0.8, shape)}
    p |= {
        "step_size": draw.uniform(0.1, 0.4, shape),
        "step_size_memory": draw.uniform(0.1, 0.4, shape),
    }
    return p | {"window_weights": draw.uniform(0.5, 1.5, (*lead, T, c)) / c}


#: What `attend` lets one choose, each value of each axis.
CHOICES = {
    axis: AXES[axis] for axis in ("reference", "decay", "window_at_boundary", "order", "read")
}


@st.composite
def asked(draw: st.DrawFn, *, written_back: bool = False) -> dict[str, Any]:
    """Axes of `attend`, Newton-Schulz among them.

    What is written back is drawn only for a start of full rank. From zero the rule itself loses
    digits: every step multiplies the rounding in the rows that S does not fill yet, by up to 6800 a
    token, and the sequential gradients are off by 1e-7.
    """
    chosen = {axis: draw(st.sampled_from(values)) for axis, values in CHOICES.items()}
    ns = (
        {key: draw(st.sampled_from(values)) for key, values in NEWTON_SCHULZ.items()}
        if draw(st.booleans())
        else {}
    )
    if ns.get("argument") == "written_back" and (
        not written_back or chosen["order"] == "momentum_then_window"
    ):
        ns["argument"] = "nesterov"
    ns |= {"scale": "norm"} if ns.get("scale") == "sqrt" else {}  # which would read d_phi
    settings_ = resolve({"newton_schulz": ns}, rule="omega").newton_schulz if ns else None
    return chosen | {"span": draw(st.sampled_from([1, 2, 3])), "newton_schulz": settings_}


def through_features(
    p: dict[str, Any],
    choices: dict[str, Any],
    active: Any,
    feature_map: dict[str, Any],
    **state: Any,
) -> tuple[Any, Any]:
    """The sequential rule on features, for the arguments of `attend`."""
    axes = {name: value for name, value in choices.items() if name not in ("span", "newton_schulz")}
    axes |= {"rate": "split", "newton_schulz": choices["newton_schulz"] or "none"}
    config = omega.Config.model_validate(
        {
            "d_in": p["k"].shape[-1],
            "d_out": p["v"].shape[-1],
            "window": p["window_weights"].shape[-1],
            "span": choices["span"],
            "convention": axes,
            "feature_map": feature_map,
        }
    )
    start = omega.start(config, p["k"].shape[:-2], **state)
    return sequence.run(omega.RULE, config, sequence.Tokens(**p, active=active), start)


CUBIC = (0.5, 1.0, 0.25, 0.1)


MONOMIALS = {"kind": "polynomial", "degree": 3, "coefficients": CUBIC}
CUBIC_KERNEL = functools.partial(polynomial, coefficients=CUBIC)


@pytest.mark.clause("KERNEL-2", "KERNEL-4", "KERNEL-6")
@pytest.mark.parametrize("reference", AXES["reference"])
@pytest.mark.parametrize("boundary", AXES["window_at_boundary"])
def test_a_polynomial_kernel_computes_what_its_monomials_compute(
    reference: str, boundary: str
) -> None:
    for i, (decay, order, read) in enumerate(
        itertools.product(AXES["decay"], AXES["order"], AXES["read"])
    ):
        choices = {
            "reference": reference,
            "window_at_boundary": boundary,
            "decay": decay,
            "order": order,
            "read": read,
        }
        choices |= {"span": 2 + i % 2, "newton_schulz": None}
        p = arrays(T=8, d=2, d_out=3, c=4, seed=i)
        active = np.arange(8) % 3 != 1
        _, y = attend(CUBIC_KERNEL, **p, active=active, **choices)
        _, want = through_features(p, choices, active, MONOMIALS)
        assert_close(f"{choices}", y, want, ANALYTIC)


@pytest.mark.clause("KERNEL-3", "KERNEL-5", "KERNEL-6", "KERNEL-13", "KERNEL-14")
@settings(repeatable, max_examples=80)
@given(
    asked(written_back=True),
    st.sampled_from([1, 2, 9]),
    st.sampled_from([1, 3]),
    st.booleans(),
    st.integers(0, 1000),
)
def test_a_start_over_earlier_keys_has_the_results_and_gradients_of_its_monomials(
    choices: dict[str, Any], c: int, pulse: int, per_dimension: bool, seed: int
) -> None:
    p, draw = (
        arrays(T=6, d=2, d_out=3, c=c, lead=(2,), per_dimension=per_dimension, seed=seed),
        np.random.default_rng(seed),
    )
    p |= {
        "keys": draw.standard_normal((2, 5, 2)),
        "B": draw.standard_normal((2, 3, 5)),
        "Z": draw.standard_normal((2, 3, 5)),
    }
    active = np.arange(6) % pulse == 0

    def by_kernel(keys: Any, B: Any, Z: Any, **tokens: Any) -> Any:
        return attend(
            CUBIC_KERNEL, **tokens, before=Coefficients(keys, B, Z), active=active, **choices
        )[1]

    def by_features(keys: Any, B: Any, Z: Any, **tokens: Any) -> Any:
        Phi = features(keys)
        return through_features(tokens, choices, active, MONOMIALS, M=B @ Phi, S=Z @ Phi)[1]

    y, pulled = vjp(lambda p: by_kernel(**p), p)
    want, pulled_features = vjp(lambda p: by_features(**p), p)
    bound = reordered(1, amplification=WITH if choices["newton_schulz"] else WITHOUT)
    assert_close("y", y, want, bound)
    g = draw.standard_normal(y.shape)
    got, reference = pulled(g)[0], pulled_features(g)[0]
    size = max(float(np.linalg.norm(value)) for value in reference.values())
    worst = max(float(np.linalg.norm(got[n] - value)) for n, value in reference.items()) / size
    if worst > bound.bound:  # steep Newton-Schulz, written back token by token

        def gradients(p: Any) -> Any:
            return [together(vjp(lambda p: by_features(**p), p)[1](g)[0].values())]

        bound = reordered(6 + 5, amplification=amplification(gradients, p))  # tokens and keys
        assert worst <= bound.bound, {n: got[n] - value for n, value in reference.items()}


def features(keys: Any) -> Any:
    return feature_maps.apply(feature_maps.Polynomial(degree=3, coefficients=CUBIC), {}, keys)


@pytest.mark.clause("KERNEL-1", "KERNEL-14")
def test_the_coefficients_times_the_features_of_all_keys_are_the_memory() -> None:
    p = arrays(T=5, d=2, d_out=3, c=2)
    after, _ = attend(CUBIC_KERNEL, **p, newton_schulz=NewtonSchulz())
    state, _ = through_features(p, {"span": None, "newton_schulz": NewtonSchulz()}, None, MONOMIALS)
    assert_close("M", after.M @ features(after.keys), state.M, reordered(1, amplification=WITH))
    assert_close("S", after.S @ features(after.keys), state.S, reordered(1, amplification=WITHOUT))


@pytest.mark.clause("KERNEL-6", "KERNEL-7")
@settings(repeatable, max_examples=60)
@given(asked(), st.sampled_from([1, 3]), st.booleans(), st.integers(0, 1000))
def test_a_kernel_matrix_has_features_of_its_own_on_which_the_rule_gives_the_same(
    choices: dict[str, Any], c: int, per_dimension: bool, seed: int
) -> None:
    p = arrays(T=5, d=3, d_out=2, c=c, per_dimension=per_dimension, seed=seed)
    points = np.concatenate([p["k"], p["q"]])
    values, vectors = np.linalg.eigh(exponential(points, points))
    # rows @ rows.T is the kernel of every two points
    rows = vectors * np.sqrt(np.maximum(values, 0.0))
    _, y = attend(exponential, **p, **choices)
    _, want = through_features(
        p | {"k": rows[:5], "q": rows[5:]}, choices, None, {"kind": "identity"}
    )
    assert_close(
        "y", y, want, reordered(1, amplification=WITH if choices["newton_schulz"] else WITHOUT)
    )


@pytest.mark.clause("KERNEL-6")
@pytest.mark.parametrize("argument", ["none", "S", "nesterov", "accumulated"])
@pytest.mark.parametrize("reference", ["running", "chunk_start"])
def test_the_polynomial_map_approaches_the_exponential_kernel_factorially(
    argument: str, reference: str
) -> None:
    p = arrays(T=6, d=2, d_out=2, c=2)
    settings_ = None if argument == "none" else NewtonSchulz(argument=argument)
    choices = {"reference": reference, "span": 3, "newton_schulz": settings_}
    _, y = attend(exponential, **p, **choices)
    points = np.concatenate([p["k"], p["q"]])
    u = float(np.max(np.abs(p["k"] @ points.T)))
    errors, remainders = [], []
    for degree in range(2, 18, 3):
        taylor = tuple(1 / math.factorial(i) for i in range(degree + 1))
        _, reads = through_features(
            p, choices, None, {"kind": "polynomial", "degree": degree, "coefficients": taylor}
        )
        errors.append(relative_error(reads, y))
        remainders.append(u ** (degree + 1) / math.factorial(degree + 1))
    assert errors[-1] < 1e-12
    assert errors[0] > 1e-3
    resolved = [
        error / remainder
        for error, remainder in zip(errors, remainders, strict=True)
        if error > 1e-12
    ]
    assert len(resolved) >= 3
    assert max(resolved) <= 10 * resolved[0]


def continues(choices: dict[str, Any], c: int, first: int, seed: int) -> None:
    p = arrays(T=6, d=3, d_out=2, c=c, lead=(2,), seed=seed)
    active = np.arange(6) % 3 != 1
    whole, y = attend(exponential, **p, active=active, **choices)

    def part(tokens: slice, before: Coefficients | None) -> tuple[Coefficients, Any]:
        return attend(
            exponential,
            **{n: x[:, tokens] for n, x in p.items()},
            active=active[tokens],
            before=before,
            **choices,
        )

    middle, early = part(slice(0, first), None)
    end, late = part(slice(first, 6), middle)
    bound = reordered(1, amplification=WITH if choices["newton_schulz"] else WITHOUT)
    if choices["read"] != "call_end":
        assert_close("y", np.concatenate([early, late], axis=-2), y, bound)
    assert_close("keys", end.keys, p["k"], EXACT)
    assert_close("values", end.values, p["v"][:, max(0, 6 - (c - 1)) :], EXACT)
    for name in ("M", "S", "reference", "residuals"):
        assert (getattr(end, name) is None) == (getattr(whole, name) is None)
        if getattr(whole, name) is not None:
            assert_close(name, getattr(end, name), getattr(whole, name), bound)
    assert (
        len(end.momenta or ())
        == len(whole.momenta or ())
        == (min(6, c - 1) if choices["order"] == "momentum_then_window" else 0)
    )
    assert (
        end.position
        == whole.position
        == (6 if choices["reference"] == "call_start" else 6 % choices["span"])
    )


@pytest.mark.clause("KERNEL-14")
@pytest.mark.parametrize("order", AXES["order"])
@pytest.mark.parametrize("boundary", AXES["window_at_boundary"])
def test_a_later_call_continues_from_coefficients_wherever_it_starts(
    order: str, boundary: str
) -> None:
    choices = {
        "reference": "chunk_start",
        "decay": "before_error",
        "window_at_boundary": boundary,
        "order": order,
        "read": "before",
    }
    for i, (c, first, span) in enumerate(itertools.product((1, 2, 4, 9), range(1, 6), (1, 4))):
        continues(choices | {"span": span, "newton_schulz": None}, c, first, seed=i)


@pytest.mark.clause("KERNEL-14")
@settings(repeatable, max_examples=60)
@given(asked(), st.sampled_from([1, 2, 4]), st.integers(1, 5), st.integers(0, 1000))
def test_a_later_call_continues_from_coefficients_under_every_choice(
    choices: dict[str, Any], c: int, first: int, seed: int
) -> None:
    continues(choices, c, first, seed)


@pytest.mark.clause("KERNEL-8")
@pytest.mark.parametrize("newton_schulz", [None, NewtonSchulz()])
def test_a_memory_has_no_higher_rank_than_keys_it_has_seen(
    newton_schulz: NewtonSchulz | None,
) -> None:
    after, _ = attend(inner, **arrays(T=2, d=6, d_out=5, c=3), newton_schulz=newton_schulz)
    for coefficients in (after.M, after.S):
        assert np.linalg.matrix_rank(coefficients @ after.keys, tol=1e-10) == 2


@pytest.mark.clause("KERNEL-12")
def test_delta_with_a_kernel_is_kernel_least_mean_squares() -> None:
    p = arrays(T=7, d=3, d_out=2, c=1)
    columns: list[Any] = []
    reads = []
    for t in range(7):
        error = sum(
            (column * math.exp(p["k"][i] @ p["k"][t]) for i, column in enumerate(columns)),
            -p["v"][t],
        )
        columns.append(-p["step_size"][t] * error)
        reads.append(
            sum(column * math.exp(p["k"][i] @ p["q"][t]) for i, column in enumerate(columns))
        )
    after, y = attend(exponential, p["k"], p["v"], p["q"], step_size=p["step_size"])
    assert_close("y", y, np.array(reads), ANALYTIC)
    assert_close("B", after.M, np.array(columns).T, ANALYTIC)


@pytest.mark.clause("KERNEL-11")
def test_a_zero_reference_with_the_exponential_is_the_numerator_of_softmax_attention() -> None:
    p = arrays(T=6, d=3, d_out=2, c=1)
    scores = np.tril(np.exp(0.5 * p["q"] @ p["k"].T))
    _, y = attend(
        functools.partial(exponential, scale=0.5), p["k"], p["v"], p["q"], reference="zero"
    )
    assert_close("y", y, scores @ p["v"], ANALYTIC)


@pytest.mark.clause("KERNEL-11")
def test_columns_under_a_zero_reference_are_decayed_values_times_their_rates() -> None:
    p = arrays(T=6, d=3, d_out=2, c=1)
    a, b = np.random.default_rng(1).uniform(0.2, 0.9, (2, 6))
    after, y = attend(
        exponential,
        p["k"],
        p["v"],
        p["q"],
        p["retain"],
        step_size=a,
        step_size_memory=b,
        reference="zero",
    )
    columns = [np.prod(p["retain"][i + 1 :]) * a[i] * b[i] * p["v"][i] for i in range(6)]
    assert_close("B", after.M, np.array(columns).T, ANALYTIC)
    reads = [
        sum(
            np.prod(p["retain"][i + 1 : t + 1])
            * a[i]
            * b[i]
            * math.exp(p["k"][i] @ p["q"][t])
            * p["v"][i]
            for i in range(t + 1)
        )
        for t in range(6)
    ]
    assert_close("y", y, np.array(reads), ANALYTIC)


@pytest.mark.clause("KERNEL-13")
@pytest.mark.parametrize("argument", ["none", "S", "nesterov", "written_back", "accumulated"])
def test_gradients_through_the_exponential_kernel_equal_the_complex_step(argument: str) -> None:
    p = arrays(T=4, d=2, d_out=2, c=2, per_dimension=True)
    earlier = arrays(T=3, d=2, d_out=2, c=2, seed=1)
    p |= {"keys": earlier["k"], "M": 0.5 * earlier["v"].T, "S": earlier["retain"] * earlier["v"].T}
    g = np.random.default_rng(2).standard_normal((4, 2))
    settings_ = None if argument == "none" else NewtonSchulz(argument=argument, steps=3)

    def loss(p: dict[str, Any]) -> Any:
        before = Coefficients(p["keys"], p["M"], p["S"])
        tokens = {name: value for name, value in p.items() if name not in ("keys", "M", "S")}
        after, y = attend(
            exponential,
            **tokens,
            before=before,
            newton_schulz=settings_,
            reference="chunk_start",
            span=3,
        )
        return ops.sum(y * g) + ops.sum(after.M * after.M)

    # written back, and from small singular values, rounding grows by up to 3.4445^3 = 41 a token
    check.check_gradient(loss, p, tolerance=1e-11)


GIVEN = arrays(T=4, d=3, d_out=2, c=2)
BEFORE = Coefficients(np.zeros((3, 3)), np.zeros((2, 3)), values=np.zeros((1, 2)))
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a kernel of every two, as a vector": (
        {"kappa": lambda x, y: (x @ y.T)[..., 0]},
        "kappa: (4,) for arguments (4, 3) and (4, 3), expected (4, 4)",
    ),
    "a kernel that is no array": (
        {"kappa": lambda x, y: 1.0},
        "kappa: float for arguments (4, 3) and (4, 3), expected (4, 4)",
    ),
    "a kernel that overflows": (
        {"kappa": lambda x, y: inner(x, y) * np.inf},
        "kappa: every entry must be finite, found ",
    ),
    "fewer values than keys": (
        {"v": GIVEN["v"][:3]},
        "v: shape (3, 2) makes T 3, but k makes it 4",
    ),
    "queries of another length": (
        {"q": GIVEN["q"][:, :2]},
        "q: shape (4, 2) makes d_in 2, but k makes it 3",
    ),
    "a gate of another length": (
        {"retain": GIVEN["retain"][:3]},
        "retain: shape (3,), expected (4,) or, one per output dimension, (4, 2)",
    ),
    "a gate above 1": (
        {"momentum": GIVEN["momentum"] + 1},
        "momentum: entries must be at most 1, found ",
    ),
    "a pulse of numbers": (
        {"active": np.ones(4)},
        "active: float64 of shape (4,), expected bool of shape (4,)",
    ),
    "an axis without that value": ({"read": "later"}, "convention: read: must be 'after', "),
    "no span": ({"reference": "chunk_start"}, "span: missing, reference chunk_start needs one"),
    "written back after the window": (
        {"order": "momentum_then_window", "newton_schulz": NewtonSchulz(argument="written_back")},
        "newton_schulz.argument: written_back is not defined for order momentum_then_window",
    ),
    "coefficients of other keys": (
        {"before": BEFORE._replace(M=np.zeros((2, 4)))},
        "before.M: shape (2, 4) makes n 4, but before.keys makes it 3",
    ),
    "earlier keys of another length": (
        {"before": BEFORE._replace(keys=np.zeros((3, 2)))},
        "before.keys: shape (3, 2) makes d 2, but k makes it 3",
    ),
    "other leading axes": (
        {"before": BEFORE._replace(M=np.zeros((5, 2, 3)))},
        "before.M: shape (5, 2, 3) makes leading axes (5,), but k makes it ()",
    ),
    "more values than keys": (
        {"before": BEFORE._replace(values=np.zeros((4, 2)))},
        "before.values: 4 rows, but 3 keys",
    ),
    "no residuals to carry": (
        {"before": BEFORE, "window_at_boundary": "carry", "reference": "call_start"},
        "before.residuals: missing, window_at_boundary carry needs one for each of before.values",
    ),
}


@pytest.mark.clause("KERNEL-5", "KERNEL-6")
@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_in_one_line(name: str) -> None:
    changes, message = REFUSED[name]
    with np.errstate(invalid="ignore"), pytest.raises(ValueError) as refusal:
        attend(**{"kappa": exponential, **GIVEN, **changes})
    assert str(refusal.value).startswith(message)
    assert "\n" not in str(refusal.value)
