"""Options that a command must not take: one line, exit code 2, nothing written."""

import os
import stat
import subprocess
import sys

import pytest

import atlas_ref
from atlas_ref.oracle.cases.new import Request, new
from tests.support.casefiles import PEERS, some, written

NEW = {
    "no rule": ((), "Missing argument 'rule' (see atlas-ref --help)"),
    "unknown rule": (("titans",), "{out}: rule: must be 'omega', 'titans_lmm', "),
    "reserved rule": (("ttl",), "{out}: rule ttl: not yet supported"),
    "unknown level": (("omega", "--level", "tokens"), "{out}: level: must be 'projected' or 'token', found 'tokens'"),
    "no tokens": (("omega", "--tokens", "0"), "Invalid value for '--tokens': "),
    "tokens as a word": (("omega", "--tokens", "five"), "Invalid value for '--tokens': "),
    "negative seed": (("omega", "--seed", "-1"), "Invalid value for '--seed': "),
    "unknown option": (("omega", "--widow", "3"), "No such option: --widow"),
    "unknown dtype": (("omega", "--dtype", "int8"), "{out}: dtype 'int8' is not available; float64, float32, bfloat16, float16 are"),
    "unknown preset": (("omega", "--convention", "atlas"), "{out}: convention: preset 'atlas' does not exist; presets are spec, "),
    "no preset": (("omega", "--convention", ""), "{out}: convention: preset '' does not exist; presets are spec, "),
    "two presets": (("omega", "--convention", "spec", "--convention", "ttl"), "--convention: preset is given twice"),
    "an axis twice": (("omega", "--convention", "gate=retain", "--convention", "gate=forget"), "--convention: gate is given twice"),
    "unknown axis": (("omega", "--convention", "reed=after"), "{out}: convention: axis 'reed' does not exist; axes are gate, "),
    "unknown value": (("omega", "--convention", "gate=keep"), "{out}: convention: gate: must be 'retain', 'forget' or 'none', found "),
    "no value": (("omega", "--convention", "gate="), "{out}: convention: gate: must be 'retain', 'forget' or 'none', found ''"),
    "null": (("omega", "--convention", "gate=null"), "{out}: convention: gate: null is not a value"),
    "NaN": (("omega", "--convention", "gradient_scale=NaN"), "{out}: atlas_ref: NaN is not JSON"),
    "none with a setting": (
        ("omega", "--convention", "newton_schulz=none", "--convention", "newton_schulz.steps=3"),
        "--convention: newton_schulz is given twice",
    ),
    "steps 0": (("omega", "--convention", "newton_schulz.steps=0"), "{out}: convention: newton_schulz.steps: must be at least 1, found 0"),
    "settings for delta": (("delta", "--convention", "newton_schulz.steps=3"), "{out}: convention: newton_schulz is not part of delta; "),
    "unknown map": (("omega", "--feature-map", "hat"), "{out}: feature_map: kind 'hat' does not exist; kinds are 'identity', "),
    "a map that is no JSON": (("omega", "--feature-map", "{kind}"), "--feature-map: not JSON: "),
    "a deep map": (("omega", "--feature-map", '{"a":' * 9999), "--feature-map: not JSON: "),
    "unknown weights": (("omega", "--level", "token", "--window-weights", "hat"), "{out}: window_weights: kind 'hat' does not exist; "),
    "weights at level projected": (("omega", "--window-weights", "ones"), "{out}: window_weights: belongs to rule omega at level token"),
    "window for delta": (("delta", "--window", "2"), "{out}: window: delta looks at one token, found 2"),
    "history beyond the window": (("omega", "--history", "1"), "{out}: in/window_k: 1 initial window tokens, at most window - 1 = 0 fit"),
    "history for delta": (("delta", "--history", "1"), "{out}: in/window_k: not part of this case: delta has none; it belongs to omega"),
    "window gate for delta": (("delta", "--window-gate",), "{out}: window_gate: belongs to rule omega at level projected"),
    "span for newton_schulz": (("newton_schulz", "--span", "2"), "{out}: span: the rule newton_schulz has no sequence"),
    "no span for chunk_start": (("omega", "--convention", "atlas-eq40"), "{out}: span: missing, reference chunk_start needs one"),
    "too many tokens": (("omega", "--tokens", "1000000000"), "{out}: an array would have more than 268435456 numbers"),
    "too long a window": (("omega", "--window", "1000000000"), "{out}: an array would have more than 268435456 numbers"),
    "too many features": (
        ("omega", "--d-in", "100", "--feature-map", '{"kind": "polynomial", "degree": 50}'),
        "{out}: an array would have more than 268435456 numbers",
    ),
}  # fmt: skip


@pytest.mark.clause("CASE-16", "CASE-17", "CASE-26")
@pytest.mark.parametrize("name", NEW)
def test_new_refuses_what_the_rule_does_not_have(name, cli, tmp_path):
    arguments, message = NEW[name]
    out = tmp_path / "out.safetensors"
    ran = cli("new", *arguments, "-o", out)
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith("atlas-ref: " + message.format(out=out))
    assert ran.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_new_in_python_refuses_with_the_same_words():
    with pytest.raises(
        atlas_ref.CaseError, match=r"^new: window: delta looks at one token, found 2$"
    ):
        new(Request(rule="delta", window=2))


@pytest.fixture
def case(tmp_path):
    folder = tmp_path / "cases"
    folder.mkdir()
    return written(folder / "case.safetensors", *some())


@pytest.mark.clause("CASE-14", "CASE-17", "CASE-26")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--dtype", "float8"),
            "{case}: dtype 'float8' is not available; float64, float32, bfloat16, float16 are",
        ),
        (("--convention", "ttl", "--convention", "spec"), "--convention: preset is given twice"),
        (
            ("--convention", "rate=none"),
            "{case}: in/step_size: not part of this case: rate none has no step size",
        ),
        (
            ("--convention", "rate=split"),
            "{case}: in/step_size_memory: missing, axes (..., T) or (..., T, d_out) are needed",
        ),
        (("--convention", "atlas-eq40"), "{case}: span: missing, reference chunk_start needs one"),
        (
            ("--convention", "nope"),
            "{case}: convention: preset 'nope' does not exist; presets are ",
        ),
        (("--report", "x"), "No such option: --report"),
    ],
)
def test_eval_refuses_an_option_that_does_not_fit(options, message, case, cli, tmp_path):
    out = tmp_path / "out"
    ran = cli("eval", case, "-o", out, *options)
    assert (ran.code, ran.out, out.exists()) == (2, "", False)
    assert ran.err.startswith("atlas-ref: " + message.format(case=case))
    assert ran.err.count("\n") == 1


def test_eval_refuses_what_no_memory_holds_and_show_does_not(cli, tmp_path):
    header, tensors = some(window=2, cotangent=False)
    del tensors["in/window_weights"]
    case = written(tmp_path / "case", {**header, "window": 10**9}, tensors)
    ran = cli("eval", case, "-o", tmp_path / "out")
    numbers = "an array of 10000000000 numbers, at most 268435456 are evaluated"
    assert (ran.code, ran.err) == (
        2,
        f"atlas-ref: {case}: window 1000000000 and 4 features of 10 tokens need {numbers}\n",
    )
    assert cli("show", case).code == 0


@pytest.mark.clause("CASE-14")
def test_gradients_without_a_cotangent_are_refused(cli, tmp_path):
    for rule, cotangent in (
        ("omega", "in/y_bar"),
        ("newton_schulz", "in/X_bar"),
        ("feature_map", "in/phi_bar"),
    ):
        case = written(tmp_path / rule, *some(rule, cotangent=False))
        ran = cli("eval", case, "-o", tmp_path / "out", "--grad")
        assert (ran.code, ran.err) == (
            2,
            f"atlas-ref: {case}: {cotangent}: missing, gradients need it\n",
        )
        assert cli("eval", case, "-o", tmp_path / "out").code == 0
        (tmp_path / "out").unlink()


@pytest.mark.clause("CASE-19")
@pytest.mark.parametrize(
    "link", ["the same path", "another spelling", "through no folder", "symbolic link", "hard link"]
)
def test_a_case_is_never_its_own_output(link, case, cli, tmp_path, monkeypatch):
    out = case
    if link == "another spelling":
        monkeypatch.chdir(tmp_path)
        out = os.path.join("cases", "..", "cases", case.name)
    elif link == "through no folder":
        out = os.path.join(case.parent, "absent", "..", case.name)
    elif link == "symbolic link":
        out = tmp_path / "link"
        out.symlink_to(case)
    elif link == "hard link":
        out = tmp_path / "link"
        out.hardlink_to(case)
    before = case.read_bytes()
    ran = cli("eval", case, "-o", out)
    assert ran.code == 2
    assert ran.err.endswith(": is the case itself, which is not overwritten\n")
    assert case.read_bytes() == before


@pytest.mark.clause("CASE-17", "CASE-19")
def test_a_place_that_cannot_be_written_is_refused(case, cli, tmp_path):
    for out, message in (
        (tmp_path, "is a folder, a file name is needed"),
        (tmp_path / "absent" / "out", f"the folder {tmp_path / 'absent'} does not exist"),
        (case / "out", f"the folder {case} does not exist"),
        ("/dev/null", "exists and is not a regular file"),
        (tmp_path / ("x" * 300), "cannot be written: File name too long"),
    ):
        for arguments in (("eval", case), ("new", "omega")):
            ran = cli(*arguments, "-o", out)
            assert (ran.code, ran.out, ran.err) == (2, "", f"atlas-ref: {out}: {message}\n")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.clause("CASE-17", "CASE-23")
def test_check_refuses_names_that_are_no_result(cli):
    peer = PEERS / "fla_delta_11.safetensors"
    for only, message in (
        (",", "--only: names of results are needed, as in y,M,grad/k"),
        ("y,Z", "only: out/Z: no rule has such a result; results are y, M, S, "),
        ("grad/active", "only: grad/active: no rule has such a result; "),
        ("grad/y_bar", "only: grad/y_bar: no rule has such a result; "),
    ):
        ran = cli("check", peer, "--only", only)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith("atlas-ref: " + message)
        assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("--widow",),
        ("replay",),
        ("show",),
        ("show", "a", "b"),
        ("check",),
        ("eval", "a"),
        ("conventions", "none"),
    ],
)
def test_a_command_line_that_is_none_is_one_line(arguments, cli):
    ran = cli(*arguments)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)


@pytest.mark.clause("CASE-28")
def test_with_json_bad_input_is_an_object_too(case, cli, tmp_path):
    for arguments in (
        ("show", tmp_path),
        ("eval", case, "-o", case),
        ("new", "omegga", "-o", tmp_path / "out"),
        ("conventions", "x"),
        ("show",),
    ):
        ran = cli(*arguments, "--json")
        assert ran.code == 2
        assert ran.json == {
            "exit": 2,
            "bad_input": [ran.err.removeprefix("atlas-ref: ").rstrip("\n")],
        }


def test_a_name_that_a_terminal_would_act_upon_is_written_out(cli, tmp_path):
    case = written(tmp_path / "a\n\x1b[31mb\udcff", *some())
    ran = cli("check", case)
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "\\x1b[31mb\\udcff: no out/... or grad/... tensor is recorded" in ran.err


def test_a_real_process_ends_with_one_line_and_code_2(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-m", "atlas_ref.cli", "show", tmp_path / "absent"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (
        2,
        "",
        f"atlas-ref: {tmp_path / 'absent'}: no such file\n",
    )
