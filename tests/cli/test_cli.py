"""Output and files of the commands."""

import json
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import typer

import atlas_ref
from atlas_ref.cli.main import program
from atlas_ref.conventions import AXES, PRESETS
from atlas_ref.oracle.cases.files import read
from atlas_ref.rules import RULES
from docs import command_line
from tests.support.casefiles import PEERS, RESERVED, some, written
from tests.support.close import EXACT, assert_close

PROGRAM = [sys.executable, "-m", "atlas_ref.cli"]
PEER = PEERS / "fla_delta_11.safetensors"


@pytest.mark.clause("CASE-12", "CASE-14", "CASE-28")
@pytest.mark.parametrize("grad", [False, True])
def test_eval_writes_what_python_computes(grad, cli, tmp_path):
    case, out = written(tmp_path / "case", *some(window=3)), tmp_path / "out"
    ran = cli("eval", case, "-o", out, *["--grad"] * grad)
    want = atlas_ref.evaluate(atlas_ref.load(case), grad=grad)
    assert (ran.code, ran.out, ran.err) == (0, "", f"wrote {out}: {', '.join(want.tensors)}\n")
    text, tensors = read(str(out))
    assert json.loads(text) == want.header
    for name, value in want.tensors.items():
        assert_close(name, tensors[name], value, EXACT)
    described = cli("eval", case, "-o", out, *["--grad"] * grad, "--json").json
    assert described["tensors"] == {
        name: {"dtype": "float64", "shape": list(value.shape)}
        for name, value in want.tensors.items()
    }
    assert (described["case"], described["out"], described["void"], described["not_finite"]) == (
        str(case),
        str(out),
        {},
        [],
    )


@pytest.mark.clause("CASE-4", "CASE-22")
@pytest.mark.parametrize(
    "rule", ["omega", "titans_lmm", "delta", "hebbian", "newton_schulz", "feature_map"]
)
def test_float32_arithmetic_is_float32_from_end_to_end(rule, cli, tmp_path):
    """Inputs exact in float32, so that all of the error is that of the arithmetic."""
    extra = {"feature_map": {"kind": "elu"}} if rule == "feature_map" else {}
    case = written(tmp_path / "case", *some(rule, tokens=40, dtype="float32", **extra))
    for dtype in ("float64", "float32"):
        assert cli("eval", case, "-o", tmp_path / dtype, "--grad", "--dtype", dtype).code == 0
    (_, wide), (_, narrow) = read(str(tmp_path / "float64")), read(str(tmp_path / "float32"))
    assert wide.keys() == narrow.keys()
    for name, want in wide.items():
        assert narrow[name].dtype == np.float32
        error = np.linalg.norm(narrow[name] - want) / np.linalg.norm(want)
        assert 1e-9 < error < 1e-4, name


@pytest.mark.clause("CASE-22")
@pytest.mark.parametrize("rule", ["omega", "delta", "newton_schulz", "feature_map"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_dtypes_round_what_goes_in_and_what_comes_out(rule, dtype, cli, tmp_path):
    extra = {"feature_map": {"kind": "elu"}} if rule == "feature_map" else {}
    header, tensors = some(rule, **extra)
    case, kind = written(tmp_path / "case", header, tensors), getattr(ml_dtypes, dtype, dtype)
    inside = written(
        tmp_path / "inside",
        header,
        {name: value.astype(kind).astype(np.float32) for name, value in tensors.items()},
    )
    assert cli("eval", case, "-o", tmp_path / "narrow", "--grad", "--dtype", dtype).code == 0
    assert cli("eval", inside, "-o", tmp_path / "single", "--grad", "--dtype", "float32").code == 0
    (_, narrow), (_, single) = read(str(tmp_path / "narrow")), read(str(tmp_path / "single"))
    assert narrow.keys() == single.keys()
    for name, want in single.items():
        assert_close(name, narrow[name], want.astype(kind), EXACT)
    assert cli("check", case, "--against", tmp_path / "narrow", "--dtype", dtype).code == 0


def test_an_input_beyond_float32_is_refused_in_float32_alone(cli, tmp_path):
    header, tensors = some()
    case = written(tmp_path / "case", header, tensors | {"in/M0": 1e300 * tensors["in/M0"]})
    assert cli("eval", case, "-o", tmp_path / "out").code == 0
    ran = cli("eval", case, "-o", tmp_path / "narrow", "--dtype", "float32")
    assert (ran.code, (tmp_path / "narrow").exists()) == (2, False)
    assert ran.err.startswith(f"atlas-ref: {case}: in/M0: has entries up to ")
    assert ran.err.endswith(", which float32 cannot hold\n")


def test_a_rule_that_overflows_says_so_and_no_more(cli, tmp_path):
    header, tensors = some(window=3)
    case = written(tmp_path / "case", header, tensors | {"in/k": 1e200 * tensors["in/k"]})
    ran = cli("eval", case, "-o", tmp_path / "out", "--grad")
    assert ran.code == 0
    assert "out/M: not finite: the rule itself gives no finite number on this case\n" in ran.err
    assert cli("eval", case, "-o", tmp_path / "out", "--json").json["not_finite"] == [
        "out/y",
        "out/M",
        "out/S",
    ]
    token, weights = some(level="token")
    case = written(
        tmp_path / "token", token, {name: 1e200 * value for name, value in weights.items()}
    )
    ran = cli("eval", case, "-o", tmp_path / "out2")
    assert (ran.code, ran.err.count("\n"), (tmp_path / "out2").exists()) == (2, 1, False)
    assert "every entry must be finite" in ran.err


@pytest.mark.clause("CASE-3")
def test_eval_under_another_convention_is_the_case_with_that_convention(cli, tmp_path):
    """A change of the convention on the command line.

    An axis changes the case's own convention; a preset replaces it.
    """
    own = {"preset": "atlas-paper", "read": "before", "newton_schulz": {"eps": 1e-3}}
    case, out = written(tmp_path / "case", *some(convention=own)), tmp_path / "out"
    for options, want in (
        (["decay=before_error"], {**own, "decay": "before_error"}),
        (["read=after", "momentum_sign=minus"], {**own, "read": "after", "momentum_sign": "minus"}),
        (["newton_schulz.steps=3"], {**own, "newton_schulz": {"eps": 1e-3, "steps": 3}}),
        (["newton_schulz=none"], {**own, "newton_schulz": "none"}),
        (
            ["newton_schulz.scale=1", "gradient_scale=0.5"],
            {**own, "newton_schulz": {"eps": 1e-3, "scale": "1"}, "gradient_scale": 0.5},
        ),
        (
            ["newton_schulz.coefficients=[[1.5,-0.5,0]]"],
            {**own, "newton_schulz": {"eps": 1e-3, "coefficients": [[1.5, -0.5, 0]]}},
        ),
        (["titans-paper"], {"preset": "titans-paper"}),
        (["ttl", "read=after"], {"preset": "ttl", "read": "after"}),
        (["preset=ttl"], {"preset": "ttl"}),
    ):
        ran = cli(
            "eval",
            case,
            "-o",
            out,
            *(word for option in options for word in ("--convention", option)),
        )
        assert ran.code == 0, ran.err
        header, tensors = some(convention=own)
        expected = atlas_ref.evaluate(atlas_ref.make({**header, "convention": want}, tensors))
        text, results = read(str(out))
        assert json.loads(text)["convention"] == want
        for name, value in expected.tensors.items():
            assert_close(f"{options} {name}", results[name], value, EXACT)


@pytest.mark.clause("CASE-18")
def test_void_settings_are_listed_and_change_nothing(cli, tmp_path):
    convention = {"window_at_boundary": "carry", "norm_place": "after_phi"}
    header, tensors = some(convention=convention)
    case = written(tmp_path / "case", {**header, "span": 3, "phase": 1}, tensors)
    listed = cli("eval", case, "-o", tmp_path / "out", "--json").json["void"]
    assert listed.keys() == {"window_at_boundary", "norm_place", "span", "phase"}
    assert all(listed.values())
    ran = cli("eval", case, "-o", tmp_path / "out")
    assert ran.err.splitlines()[:-1] == [f"void: {axis}: {why}" for axis, why in listed.items()]
    assert cli("show", case, "--json").json["void"] == listed
    _, results = read(str(tmp_path / "out"))
    plain = atlas_ref.evaluate(atlas_ref.make({**header, "convention": "spec"}, tensors)).tensors
    for name, value in plain.items():
        assert_close(name, results[name], value, EXACT)
    both = written(tmp_path / "both", {**header, "span": 3, "phase": 1}, {**tensors, **plain})
    assert cli("check", both, "--json").json["void"] == {str(both): listed}
    assert cli("check", both).code == 0


@pytest.mark.clause("CASE-24", "CASE-26")
def test_a_reserved_rule_is_unsupported_and_not_bad(cli, tmp_path):
    ran = cli("eval", RESERVED, "-o", tmp_path / "out")
    assert (ran.code, ran.out, ran.err) == (
        3,
        "",
        f"atlas-ref: {RESERVED}: rule qk_projection: not yet supported\n",
    )
    assert not (tmp_path / "out").exists()
    assert cli("eval", RESERVED, "-o", tmp_path / "out", "--json").json["exit"] == 3
    assert cli("show", RESERVED).code == 0
    ran = cli("tolerance", f"{RESERVED}:y")
    assert (ran.code, ran.err) == (
        3,
        f"atlas-ref: {RESERVED}: rule qk_projection: not yet supported\n",
    )


def test_show_describes_a_case(cli, tmp_path):
    header, tensors = some(window=2, convention="atlas-paper", dtype="float32")
    case = written(
        tmp_path / "case",
        {**header, "note": "by [bold]hand[/]"},
        tensors | {"out/[/b]": np.array([np.nan, 2.0])},
    )
    found = cli("show", case, "--json").json
    assert set(found["tensors"]) == {*tensors, "out/[/b]"}
    assert (found["header"]["note"], found["convention"]["rate"]) == ("by [bold]hand[/]", "memory")
    assert found["tensors"]["in/k"]["least"] == float(tensors["in/k"].min())
    assert found["tensors"]["in/k"] | {"least": 0, "greatest": 0} == {
        "dtype": "float32", "shape": [2, 5, 4], "least": 0, "greatest": 0, "finite": True,
    }  # fmt: skip
    assert found["tensors"]["out/[/b]"] == {
        "dtype": "float64",
        "shape": [2],
        "least": 2.0,
        "greatest": 2.0,
        "finite": False,
    }
    ran = cli("show", case)
    assert (ran.code, ran.err) == (0, "")
    for words in (
        "rule omega, level projected",
        "by [bold]hand[/]",
        "convention in force: gate retain, ",
        "│ out/[/b] ",
        "no     │",
    ):
        assert words in ran.out


def test_a_tensor_name_stays_on_its_line_of_the_table(cli, tmp_path):
    header, tensors = some()
    ran = cli(
        "show", written(tmp_path / "case", header, tensors | {"out/a\n\x1b[2J\u202eb": np.zeros(1)})
    )
    assert (ran.code, ran.err) == (0, "")
    assert "│ out/a \\x1b[2J\\u202eb │" in ran.out


@pytest.mark.clause("CASE-12")
def test_show_describes_results_too(cli, tmp_path):
    case, out = written(tmp_path / "case", *some()), tmp_path / "out"
    cli("eval", case, "-o", out, "--grad")
    found = cli("show", out, "--json").json
    assert (
        found["tensors"].keys()
        == atlas_ref.evaluate(atlas_ref.load(case), grad=True).tensors.keys()
    )
    assert "│ out/y" in cli("show", out).out


def test_conventions_lists_every_axis_and_preset(cli):
    found = cli("conventions", "--json").json
    assert tuple(found["axes"]) == AXES
    assert set(found["presets"]) == set(PRESETS)
    assert found["axes"]["gate"]["values"] == ["retain", "forget", "none"]
    for preset in PRESETS:
        one = cli("conventions", preset, "--json").json
        assert (one["preset"], one["changes"], tuple(one["resolved"])) == (
            preset,
            PRESETS[preset],
            tuple(RULES),
        )
        assert cli("conventions", preset).out.count(preset) >= 1
    text = cli("conventions").out
    assert all(word in text for word in [*AXES, *PRESETS])


def test_schema_prints_the_published_schema(cli):
    assert cli("schema").json == cli("schema", "--json").json
    assert cli("schema").json["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_help_names_every_command(cli):
    ran = cli("--help")
    assert (ran.code, ran.err) == (0, "")
    assert all(
        word in ran.out for word in ("new", "show", "conventions", "schema", "eval", "check")
    )
    for command in ("new", "show", "conventions", "schema", "eval", "check"):
        assert cli(command, "--help").code == 0


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["check", PEER], 0), (["check", PEER, RESERVED, "{bad}", "--json"], 2), (["schema"], 0)],
)
def test_a_reader_who_leaves_changes_neither_the_exit_code_nor_standard_error(
    arguments, code, tmp_path
):
    bad = tmp_path / "bad"
    reading, writing = os.pipe()
    os.close(reading)
    words = [str(word).format(bad=bad) for word in arguments]
    ended = subprocess.run(
        [*PROGRAM, *words], stdout=writing, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)
    assert ended.returncode == code
    assert ended.stderr == (f"atlas-ref: {bad}: no such file\n" if code else "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no full device")
def test_a_full_disk_under_standard_output_is_one_line(tmp_path):
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [*PROGRAM, "schema"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (ended.returncode, ended.stderr) == (
        2,
        "atlas-ref: standard output: cannot be written: No space left on device\n",
    )


@pytest.mark.slow
def test_standard_output_that_holds_ascii_alone_still_gets_every_name(tmp_path):
    header, tensors = some()
    case = written(
        tmp_path / "né", {**header, "note": "née"}, tensors | {"out/y": np.zeros((2, 5, 3))}
    )
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    for command, words in (("show", "n\\\\xe9e"), ("check", "n\\xe9")):
        ended = subprocess.run(
            [*PROGRAM, command, case], capture_output=True, text=True, check=False, env=environment
        )
        assert ended.returncode == (1 if command == "check" else 0), ended.stderr
        assert ended.stderr == ""
        assert words.replace("\\\\", "\\") in ended.stdout or "n\\u00e9e" in ended.stdout


def test_lists_of_commands_have_one_line_of_text_for_each() -> None:
    """A line end of a docstring is not one of the list."""
    for name, each in command_line.commands(typer.main.get_command(program())):
        assert each.get_short_help_str(limit=1000), name
        assert "\n" not in (each.short_help or ""), name


def test_new_refuses_a_setting_that_its_rule_does_not_have(cli, tmp_path):
    out = tmp_path / "case"
    ran = cli("new", "delta", "--d-model", "7", "-o", str(out))
    assert ran.code == 2
    assert ran.err == f"atlas-ref: {out}: d_model: has no effect on a case of rule delta\n"
    assert not out.exists()
