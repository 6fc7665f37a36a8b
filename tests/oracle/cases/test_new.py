"""New cases: every rule, level and preset evaluates with gradients; a seed fixes the bytes."""

import numpy as np
import pytest

import atlas_ref
from atlas_ref.conventions import PRESETS
from atlas_ref.oracle.cases.files import read
from atlas_ref.oracle.cases.new import Request, new, without_effect
from tests.support.casefiles import some

SEQUENCES = ("omega", "titans_lmm", "delta", "hebbian")


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("level", ["projected", "token"])
@pytest.mark.parametrize("rule", SEQUENCES)
def test_every_rule_level_and_preset_makes_a_case_that_evaluates_with_gradients(
    rule, level, preset, cli, tmp_path
):
    case, out = tmp_path / "case", tmp_path / "out"
    options = [
        "--level",
        level,
        "--convention",
        preset,
        "--span",
        3,
        "--tokens",
        5,
        "--cotangent",
        "--pulse",
        2,
    ]
    options += ["--window", 3, "--history", 2] if rule == "omega" else []
    ran = cli("new", rule, "-o", case, *options)
    if (level, preset) == ("token", "fla-momentum-delta"):
        assert (
            ran.err
            == f"atlas-ref: {case}: convention: rate split has no second rate at level token\n"
        )
        return
    assert (ran.code, ran.out, ran.err) == (0, "", f"wrote {case}\n")
    ran = cli("eval", case, "-o", out, "--grad", "--json")
    assert (ran.code, ran.json["not_finite"]) == (0, [])
    loaded = atlas_ref.load(case)
    masks = {"in/active", "in/reset", "in/y_bar", "in/M_bar", "in/S_bar"}
    assert {name for name in ran.json["tensors"] if name.startswith("grad/")} == {
        name.replace("in/", "grad/", 1) for name in loaded.inputs.keys() - masks
    }
    _, results = read(str(out))
    assert all(np.abs(value).max() < 100 for value in results.values())


@pytest.mark.parametrize(
    "options",
    [
        ["omega", "--feature-map", "linear", "--features", 7],
        ["omega", "--feature-map", "random_fourier", "--features", 5],
        ["omega", "--feature-map", "elu"],
        ["omega", "--feature-map", '{"kind": "residual_mlp", "activation": "gelu"}'],
        [
            "omega",
            "--feature-map",
            '{"kind": "polynomial", "degree": 3, "coefficients": [1, 1, 0.5, 0.25]}',
        ],
        ["omega", "--feature-map", "monomials"],
        ["omega", "--feature-map", '{"kind": "elementwise", "degree": 3}'],
        ["omega", "--feature-map", "sketch", "--features", 5],
        ["omega", "--feature-map", "tensor_sketch", "--features", 5],
        ["omega", "--level", "token", "--window", 3, "--window-weights", "softmax"],
        [
            "omega",
            "--level",
            "token",
            "--window",
            3,
            "--history",
            1,
            "--window-weights",
            "gate",
            "--batch",
            2,
        ],
        [
            "omega",
            "--level",
            "token",
            "--window",
            3,
            "--window-weights",
            '{"kind": "product", "of": [{"kind": "decay"}, {"kind": "gate"}]}',
        ],
        ["omega", "--window", 3, "--window-gate", "--history", 2, "--reset", 2],
        ["titans_lmm", "--per-dimension", "--level", "token"],
        ["delta", "--per-dimension", "--convention", "rate=both"],
        [
            "omega",
            "--convention",
            "newton_schulz.steps=3",
            "--convention",
            "newton_schulz.scale=norm",
        ],
        [
            "newton_schulz",
            "--d-in",
            5,
            "--d-out",
            7,
            "--convention",
            "newton_schulz.coefficients=cubic",
        ],
        ["feature_map", "--feature-map", "sketch", "--features", 3],
        ["feature_map", "--feature-map", '{"kind": "tensor_sketch", "degree": 3}'],
        ["omega", "--feature-map", '{"kind": "random_fourier", "learned": false}'],
        ["feature_map"],
    ],
    ids=lambda options: " ".join(map(str, options)),
)
def test_every_option_makes_a_case_that_evaluates_with_gradients(options, cli, tmp_path):
    case, out = tmp_path / "case", tmp_path / "out"
    assert cli("new", *options, "-o", case, "--cotangent").code == 0
    ran = cli("eval", case, "-o", out, "--grad", "--json")
    assert (ran.code, ran.json["not_finite"]) == (0, [])
    assert cli("show", case).code == 0


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(cli, tmp_path):
    for rule in (*SEQUENCES, "newton_schulz", "feature_map"):
        for i, seed in enumerate((5, 5, 6)):
            cli("new", rule, "-o", tmp_path / f"{i}", "--seed", seed, "--cotangent")
        first, second, other = ((tmp_path / str(i)).read_bytes() for i in range(3))
        assert first == second != other


def test_the_options_are_the_shapes_and_the_header(cli, tmp_path):
    case = tmp_path / "case"
    sizes = [
        "--tokens",
        6,
        "--d-in",
        5,
        "--d-out",
        2,
        "--heads",
        3,
        "--window",
        4,
        "--history",
        3,
        "--span",
        2,
        "--pulse",
        3,
        "--reset",
        4,
    ]
    ran = cli(
        "new",
        "omega",
        "-o",
        case,
        *sizes,
        "--per-dimension",
        "--dtype",
        "float16",
        "--convention",
        "atlas-rnn",
        "--json",
    )
    found = ran.json
    assert (found["case"], found["header"]) == (
        str(case), {"schema": 1, "rule": "omega", "window": 4, "span": 2, "convention": {"preset": "atlas-rnn"}, "gate_axis": "d_out"},
    )  # fmt: skip
    shapes = {name: tuple(tensor["shape"]) for name, tensor in found["tensors"].items()}
    gates = dict.fromkeys(("in/retain", "in/momentum", "in/step_size"), (3, 6, 2))
    assert shapes == gates | {
        "in/k": (3, 6, 5), "in/v": (3, 6, 2), "in/q": (3, 6, 5), "in/window_weights": (3, 6, 4), "in/M0": (3, 2, 5), "in/S0": (3, 2, 5),
        "in/window_k": (3, 3, 5), "in/window_v": (3, 3, 2), "in/window_residual": (3, 3, 2), "in/active": (6,), "in/reset": (6,),
    }  # fmt: skip
    loaded = atlas_ref.load(case)
    assert loaded.inputs["in/active"].tolist() == [1, 0, 0, 1, 0, 0]
    assert loaded.inputs["in/reset"].tolist() == [0, 0, 0, 0, 1, 0]
    assert {tensor["dtype"] for tensor in found["tensors"].values()} == {"float16", "uint8"}


def test_python_and_the_command_make_the_same_case(cli, tmp_path):
    cli(
        "new",
        "omega",
        "-o",
        tmp_path / "case",
        "--window",
        3,
        "--seed",
        9,
        "--convention",
        "decay=before_error",
    )
    made = new(
        Request(rule="omega", window=3, seed=9, convention={"decay": "before_error"}),
        name=str(tmp_path / "case"),
    )
    assert atlas_ref.load(tmp_path / "case") == made


def test_initial_states_are_neither_zero_nor_symmetric():
    """Initial states that show a transposition or a dropped carry."""
    for convention in ("spec", "fla-delta"):
        _, tensors = some(d_in=3, d_out=3, convention=convention)
        for name in ("in/M0", "in/S0"):
            assert np.abs(tensors[name] - np.swapaxes(tensors[name], -1, -2)).max() > 0.1


@pytest.mark.parametrize(
    ("fields", "idle"),
    [
        ({"rule": "newton_schulz", "batch": 3}, ["batch"]),
        ({"rule": "feature_map", "packed": True, "state": False}, ["packed", "state"]),
        ({"rule": "delta", "batch": 3, "packed": True, "state": False}, []),
        ({"rule": "delta", "features": 5, "d_model": 7}, ["d_model", "features"]),
        ({"rule": "newton_schulz", "tokens": 5}, ["tokens"]),
        ({"rule": "feature_map", "d_out": 5, "reset": 3}, ["d_out", "reset"]),
        ({"rule": "delta", "level": "token", "batch": 3, "d_model": 7}, []),
        ({"rule": "cms", "level": "token"}, []),
        ({"rule": "omega", "feature_map": {"kind": "random_fourier"}, "features": 6}, []),
    ],
)
def test_a_setting_that_changes_nothing_of_the_case_is_named(fields, idle):
    request = Request(**fields)
    assert without_effect(request, new(request)) == idle
