"""Newton-Schulz by definition: iteration, settings, guards, orientation, scale (NS-1 to NS-9)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

import atlas_ref
from atlas_ref.conventions import resolve
from atlas_ref.parts.newton_schulz import (
    NewtonSchulz,
    coefficient_table,
    iterates,
    newton_schulz,
    plain_newton_schulz,
)
from tests.support.close import EXACT, assert_close, assert_differs, reordered
from tests.truth import spectral
from tests.truth.spectral import SETTINGS, assert_near, map_of, natural_size

each_setting = pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())


def gaussian(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


# -- values ----------------------------------------------------------------------------------------


@each_setting
@pytest.mark.clause("NS-1", "NS-3", "NS-4", "NS-5", "NS-6", "NS-7", "NS-8", "NS-9")
def test_newton_schulz_is_the_loop_of_its_definition(settings: dict[str, Any]) -> None:
    m = map_of(settings)
    for name, S in spectral.arguments():
        assert_near(
            name,
            newton_schulz(S, NewtonSchulz(**settings)),
            spectral.loops(m, S),
            natural_size(m, S, 0),
        )


@each_setting
@pytest.mark.clause("NS-10", "NS-6", "NS-7", "NS-9")
def test_newton_schulz_acts_on_singular_values_alone(settings: dict[str, Any]) -> None:
    m = map_of(settings)
    for name, S in spectral.arguments(seed=1):
        assert_near(
            name,
            newton_schulz(S, NewtonSchulz(**settings)),
            spectral.spectral(m, S),
            natural_size(m, S, 0),
        )


@each_setting
@pytest.mark.clause("NS-1")
def test_the_plain_form_is_the_same_function(settings: dict[str, Any]) -> None:
    m = map_of(settings)
    for name, S in spectral.arguments(seed=2):
        assert_near(
            name,
            plain_newton_schulz(S, NewtonSchulz(**settings)),
            spectral.spectral(m, S),
            natural_size(m, S, 0),
        )


@pytest.mark.clause("NS-1")
def test_iterates_are_the_matrices_between_the_steps_in_the_orientation_of_the_argument() -> None:
    for shape in ((4, 7), (7, 4)):
        S = gaussian(*shape)
        found = iterates(S, NewtonSchulz(steps=3))
        assert len(found) == 4
        for n, X in enumerate(found):
            # n = 0 is the normalised argument
            want = spectral.loops(spectral.Map([spectral.MUON] * n), S)
            assert_close(f"X_{n}", X, want, reordered(7, amplification=100))


@pytest.mark.clause("NS-1")
def test_each_matrix_of_a_batch_is_taken_on_its_own() -> None:
    S = gaussian(2, 3, 4, 6) * np.array([1e-8, 1.0, 1e5])[:, None, None]
    S[1, 2] = 0
    for settings in ({}, {"guard": "return"}, {"scale": "norm"}, {"guard": "clamp", "eps": 1.0}):
        X = newton_schulz(S, NewtonSchulz(**settings))
        assert X.shape == S.shape
        for index in np.ndindex(2, 3):
            m = map_of(settings)
            assert_near(
                f"{settings} {index}",
                X[index],
                spectral.loops(m, S[index]),
                natural_size(m, S[index], 0),
            )


@pytest.mark.clause("NS-1")
def test_an_empty_batch_stays_empty() -> None:
    assert newton_schulz(np.zeros((0, 3, 4)), NewtonSchulz()).shape == (0, 3, 4)
    assert newton_schulz(np.zeros((2, 0, 4, 3)), NewtonSchulz()).shape == (2, 0, 4, 3)


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.clause("NS-2")
def test_the_first_value_of_every_setting_is_its_default() -> None:
    assert NewtonSchulz().model_dump() == {
        "coefficients": "muon",
        "steps": 5,
        "eps": 1e-7,
        "norm_factor": 1.0,
        "guard": "add",
        "transpose": "tall",
        "scale": "1",
        "argument": "S",
        "lower_bound": 1e-3,
    }


@pytest.mark.clause("NS-2")
@pytest.mark.parametrize(
    "settings",
    [
        {"coefficients": "newton"},
        {"coefficients": 5},
        {"steps": 0},
        {"steps": -1},
        {"steps": 1001},
        {"steps": 2.5},
        {"steps": True},
        {"eps": -1e-9},
        {"eps": np.nan},
        {"eps": np.inf},
        {"eps": "1e-7"},
        {"norm_factor": 0.0},
        {"norm_factor": -1.0},
        {"norm_factor": np.inf},
        {"norm_factor": np.nan},
        {"guard": "max"},
        {"guard": None},
        {"transpose": True},
        {"transpose": "wide"},
        {"scale": 1},
        {"scale": "rms"},
        {"argument": "M"},
        {"lower_bound": 0.0},
        {"lower_bound": 1.0},
        {"lower_bound": -0.5},
        {"lower_bound": np.nan},
        {"lower": 1e-3},
    ],
    ids=str,
)
def test_a_value_outside_its_setting_is_refused_by_name(settings: dict[str, Any]) -> None:
    (key,) = settings
    with pytest.raises(ValidationError) as caught:
        NewtonSchulz(**settings)
    assert {str(error["loc"][0]) for error in caught.value.errors()} == {key}


@pytest.mark.clause("NS-2")
def test_every_value_of_the_table_is_accepted_and_seen() -> None:
    S = gaussian(6, 4)
    base = newton_schulz(S, NewtonSchulz())
    changes: list[dict[str, Any]] = [
        {"coefficients": "cubic"},
        {"coefficients": "polar_express"},
        {"coefficients": [[2, -1.5, 0.5]]},
        {"steps": 6},
        {"eps": 0.5},
        {"eps": 20.0, "guard": "clamp"},
        {"eps": 100.0, "guard": "return"},
        {"norm_factor": 2},
        {"scale": "sqrt"},
        {"scale": "norm"},
    ]
    for change in changes:
        assert_differs(str(change), newton_schulz(S, NewtonSchulz(**change)), base, 0.01)
    for unseen in (
        {"transpose": "never"},
        {"lower_bound": 0.1},
        *({"argument": a} for a in ("nesterov", "written_back", "accumulated")),
    ):
        assert_close(
            str(unseen),
            newton_schulz(S, NewtonSchulz(**unseen)),
            base,
            reordered(6, amplification=500),
        )
    wide = NewtonSchulz(coefficients="polar_express", lower_bound=0.1)
    assert_differs(
        "lower_bound",
        newton_schulz(S, wide),
        newton_schulz(S, NewtonSchulz(coefficients="polar_express")),
        0.01,
    )


@pytest.mark.clause("NS-2")
def test_none_leaves_newton_schulz_out() -> None:
    assert not resolve({"newton_schulz": "none"}, rule="omega").has_newton_schulz
    given = {"in/k": gaussian(5, 3), "in/v": gaussian(5, 4), "in/q": gaussian(5, 3)}
    gates = {"in/retain": np.full(5, 0.9), "in/step_size": np.full(5, 0.1)}

    def memory(newton_schulz: Any) -> Any:
        header = {
            "schema": 1,
            "rule": "omega",
            "convention": {"newton_schulz": newton_schulz, "rate": "memory"},
        }
        return atlas_ref.evaluate(atlas_ref.make(header, given | gates)).tensors["out/M"]

    M = np.zeros((4, 3))
    for k, v in zip(given["in/k"], given["in/v"], strict=True):
        M = 0.9 * M - 0.1 * np.outer(M @ k - v, k)
    assert_close("none", memory("none"), M, reordered(20))
    assert_differs("with it", memory({}), M, 0.1)


@pytest.mark.clause("NS-2", "NS-8")
def test_settings_are_data() -> None:
    settings = NewtonSchulz(coefficients=[[1.5, -0.5, 0]], eps=0.0)
    assert settings == NewtonSchulz(coefficients=((1.5, -0.5, 0.0),), eps=0.0)
    assert NewtonSchulz(steps=1000).steps == 1000
    assert hash(settings) == hash(NewtonSchulz(coefficients=((1.5, -0.5, 0.0),), eps=0.0))
    assert settings != NewtonSchulz(coefficients=((1.5, -0.5, 0.0),), eps=0.0, transpose="never")
    assert NewtonSchulz.model_validate_json(settings.model_dump_json()) == settings
    with pytest.raises(ValidationError, match="frozen"):
        settings.steps = 3


# -- coefficients ----------------------------------------------------------------------------------


@pytest.mark.clause("NS-3")
def test_named_coefficients_are_one_row_for_every_step() -> None:
    assert coefficient_table(NewtonSchulz(steps=3)) == ((3.4445, -4.7750, 2.0315),) * 3
    assert coefficient_table(NewtonSchulz(coefficients="cubic", steps=4)) == ((1.5, -0.5, 0.0),) * 4


@pytest.mark.clause("NS-4")
def test_explicit_rows_serve_one_step_each_and_the_last_repeats() -> None:
    one, two, three = (2.0, -1.5, 0.5), (1.5, -0.5, 0.0), (1.0, 0.25, -0.125)
    assert coefficient_table(NewtonSchulz(coefficients=(one, two), steps=4)) == (one, two, two, two)
    assert coefficient_table(NewtonSchulz(coefficients=(one, two, three), steps=2)) == (one, two)
    S = gaussian(3, 5)
    for steps, used in ((1, [one]), (2, [one, two]), (3, [one, two, two])):
        got = newton_schulz(S, NewtonSchulz(coefficients=(one, two), steps=steps))
        assert_close(
            f"{steps} steps",
            got,
            spectral.loops(spectral.Map(used), S),
            reordered(5, amplification=10),
        )


@pytest.mark.clause("NS-4")
@pytest.mark.parametrize(
    "rows",
    [
        [],
        (),
        [[]],
        [[1.5, -0.5]],
        [[1.5, -0.5, 0.0, 1.0]],
        [[1.5, -0.5, np.nan]],
        [[1.5, np.inf, 0.0]],
        [["a", 0, 0]],
        [1.5, -0.5, 0.0],
        [None],
    ],
    ids=str,
)
def test_rows_that_are_not_three_finite_numbers_are_refused(rows: Any) -> None:
    with pytest.raises(ValidationError, match="coefficients"):
        NewtonSchulz(coefficients=rows)


@pytest.mark.clause("NS-4")
def test_an_empty_list_is_refused_in_plain_words() -> None:
    with pytest.raises(
        ValidationError, match=r"explicit coefficients need at least one row \[a, b, c\]"
    ):
        NewtonSchulz(coefficients=[])


# -- guards ----------------------------------------------------------------------------------------


@pytest.mark.clause("NS-6")
@pytest.mark.parametrize("norm", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("f", [0.5, 1.0, 3.0])
def test_the_divisor_of_each_guard(norm: float, f: float) -> None:
    eps = 0.7
    S = gaussian(3, 4)
    S *= norm / np.linalg.norm(S)
    divisors = {"add": f * norm + eps, "clamp": max(f * norm, eps), "return": f * norm + eps}
    for guard, N in divisors.items():
        # one step that changes nothing
        settings = NewtonSchulz(guard=guard, eps=eps, norm_factor=f, coefficients=[[1, 0, 0]])
        want = S if guard == "return" and norm < eps else S / N
        assert_close(guard, newton_schulz(S, settings), want, reordered(12))
        start = iterates(S, settings)[0]
        assert_close(f"X_0 under {guard}", start, S / N, reordered(12))


@pytest.mark.clause("NS-6")
def test_return_gives_back_the_argument_bit_for_bit_and_jumps_at_eps() -> None:
    S = gaussian(2, 4, 3)
    S /= np.linalg.norm(S, axis=(-2, -1), keepdims=True)
    settings = {"eps": 0.5}
    below, above = (1 - 1e-9) * 0.5 * S, (1 + 1e-9) * 0.5 * S
    X = newton_schulz(np.stack([below, above]), NewtonSchulz(guard="return", **settings))
    assert_close("below", X[0], below, EXACT)
    assert_close("above", X[1], newton_schulz(above, NewtonSchulz(**settings)), EXACT)
    assert_differs("jump", X[1], X[0], 0.5)
    for guard in ("add", "clamp"):
        low, high = (
            newton_schulz(each, NewtonSchulz(guard=guard, **settings)) for each in (below, above)
        )
        assert_close(f"{guard} is continuous", low, high, reordered(1, amplification=1e8))


@pytest.mark.clause("NS-6")
def test_at_eps_itself_the_argument_is_not_returned() -> None:
    S = np.array([[3.0, 4.0]])
    got = newton_schulz(S, NewtonSchulz(guard="return", eps=5.0))
    assert_close("norm = eps", got, newton_schulz(S, NewtonSchulz(eps=5.0)), EXACT)


@pytest.mark.clause("NS-7")
@pytest.mark.parametrize("guard", ["add", "clamp", "return"])
@pytest.mark.parametrize("scale", ["1", "sqrt", "norm"])
@pytest.mark.parametrize("eps", [1e-7, 0.0])
def test_zero_stays_zero(guard: str, scale: str, eps: float) -> None:
    for shape in ((1, 1), (3, 5), (5, 3), (2, 4, 4)):
        for coefficients in ("muon", "cubic", "polar_express"):
            settings = NewtonSchulz(guard=guard, scale=scale, eps=eps, coefficients=coefficients)
            for form in (newton_schulz, plain_newton_schulz):
                assert_close(
                    f"{shape} {coefficients}",
                    form(np.zeros(shape), settings),
                    np.zeros(shape),
                    EXACT,
                )


@pytest.mark.clause("NS-7")
def test_a_zero_matrix_in_a_batch_disturbs_no_other() -> None:
    S = gaussian(3, 4, 5)
    S[1] = 0
    X = newton_schulz(S, NewtonSchulz(eps=0.0))
    assert not X[1].any()
    for i in (0, 2):
        assert_close(f"matrix {i}", X[i], newton_schulz(S[i], NewtonSchulz(eps=0.0)), EXACT)


# -- orientation and scale -------------------------------------------------------------------------


@pytest.mark.clause("NS-8", "NS-19")
@pytest.mark.parametrize("shape", [(7, 3), (3, 7), (4, 4), (6, 1), (1, 6)])
def test_transposing_never_shows(shape: tuple[int, int]) -> None:
    S = gaussian(*shape)
    for coefficients in ("muon", "cubic", "polar_express"):
        tall, never = (
            newton_schulz(S, NewtonSchulz(coefficients=coefficients, transpose=t))
            for t in ("tall", "never")
        )
        assert_near(
            coefficients,
            tall,
            never,
            natural_size(map_of({"coefficients": coefficients}), S, 0),
            reordered(7, amplification=10),
        )
        turned = newton_schulz(S.T, NewtonSchulz(coefficients=coefficients))
        assert_near(
            coefficients,
            turned.T,
            never,
            natural_size(map_of({"coefficients": coefficients}), S, 0),
            reordered(7, amplification=10),
        )


@pytest.mark.clause("NS-8")
def test_a_transposed_view_gives_what_a_copy_gives() -> None:
    S = gaussian(3, 6, 4).swapaxes(-1, -2)  # (3, 4, 6), not contiguous
    assert_close(
        "wide",
        newton_schulz(S, NewtonSchulz()),
        newton_schulz(S.copy(), NewtonSchulz()),
        reordered(6, amplification=500),
    )


@pytest.mark.clause("NS-9")
@pytest.mark.parametrize("shape", [(7, 3), (3, 7), (4, 4), (2, 6, 3)])
def test_the_result_is_scaled_last(shape: tuple[int, ...]) -> None:
    S = gaussian(*shape)
    plain = newton_schulz(S, NewtonSchulz())
    root = np.sqrt(max(1.0, shape[-2] / shape[-1]))
    norm = np.sqrt((S * S).sum(axis=(-2, -1), keepdims=True))
    assert_close("sqrt", newton_schulz(S, NewtonSchulz(scale="sqrt")), root * plain, reordered(1))
    assert_close("norm", newton_schulz(S, NewtonSchulz(scale="norm")), norm * plain, reordered(20))


@pytest.mark.clause("NS-9")
@pytest.mark.parametrize("scale", ["sqrt", "norm"])
def test_an_argument_that_is_returned_is_not_scaled(scale: str) -> None:
    S = gaussian(5, 3)
    settings = NewtonSchulz(guard="return", eps=100.0, scale=scale)
    for form in (newton_schulz, plain_newton_schulz):
        assert_close(scale, form(S, settings), S, EXACT)
