"""The commands `eval --trace` and `replay`: files, words, JSON and exit codes.

Numbers here are exact in every arithmetic.
"""

import json

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.files import read
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.replay.trace import header_trace, trace
from tests.support.casefiles import bfloat16, raw, some, written
from tests.support.golden import assert_golden

HEADER = {"schema": 1, "rule": "titans_lmm", "convention": {"gate": "forget"}}

#: Two heads, four tokens, keys of one number, values of two; every product and sum of the rule is
#: exact in bfloat16.
INPUTS = {
    "in/k": np.array([[[1.0], [0.5], [-1.0], [2.0]], [[0.5], [1.0], [1.0], [-1.0]]]),
    "in/v": np.array(
        [
            [[1.0, 0.5], [0.25, 0.0], [-0.5, 1.0], [1.0, 1.0]],
            [[0.0, 1.0], [0.5, 0.5], [1.0, -1.0], [0.25, 0.5]],
        ]
    ),
    "in/q": np.array([[[1.0], [1.0], [0.5], [-1.0]], [[-0.5], [1.0], [2.0], [1.0]]]),
    "in/retain": np.array([[0.0, 0.5, 0.0, 0.5], [0.5, 0.0, 0.5, 0.0]]),
    "in/momentum": np.array([[0.5, 0.0, 0.5, 1.0], [1.0, 0.5, 0.0, 0.5]]),
    "in/step_size": np.array([[0.5, 0.25, 0.5, 0.25], [0.25, 0.5, 0.25, 0.5]]),
    "in/M0": np.array([[[0.5], [-0.5]], [[1.0], [0.25]]]),
    "in/y_bar": np.ones((2, 4, 2)),
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder to run in, so that messages show file names as typed."""
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "case.st", HEADER, INPUTS)
    return tmp_path


def mine(folder, tensors, header=HEADER):
    return written(folder / "mine.st", header, tensors)


def right(folder, dtype="float32"):
    return trace(atlas_ref.load(folder / "case.st"), dtype=dtype)


def shown(ran) -> str:
    return f"exit {ran.code}\n{ran.out}{ran.err}"


# -- eval --trace ----------------------------------------------------------------------------------


@pytest.mark.clause("CASE-15", "REPLAY-1", "REPLAY-2", "CASE-28")
@pytest.mark.parametrize("grad", [False, True])
def test_eval_writes_the_trace_and_its_ops(grad, cli, tmp_path):
    case, out = written(tmp_path / "case", *some(window=3)), tmp_path / "out"
    ran = cli("eval", case, "-o", out, "--trace", *["--grad"] * grad)
    loaded = atlas_ref.load(case)
    text, tensors = read(str(out))
    want = trace(loaded, grad=grad)
    assert ran.code == 0
    assert {
        name: value.tobytes() for name, value in tensors.items() if name.startswith("trace")
    } == {name: value.tobytes() for name, value in want.items()}
    assert set(tensors) == {*want, *atlas_ref.evaluate(loaded, grad=grad).tensors}
    header = json.loads(text)
    assert header["trace"] == header_trace(loaded)
    assert [each["op"] for each in header["trace"]] == [
        name.removeprefix("trace/") for name in want if name.startswith("trace/")
    ]
    again = cli("eval", case, "-o", out, "--trace", *["--grad"] * grad, "--json").json
    assert set(again["tensors"]) == set(tensors)
    assert cli("replay", case, "--trace", out).code == 0


@pytest.mark.clause("REPLAY-2")
def test_every_op_lists_what_it_is_computed_from():
    def inputs(rule="omega", **request):
        return {
            each["op"]: each["inputs"]
            for each in header_trace(new(Request(rule=rule, tokens=3, **request)))
        }

    plain = inputs(window=3)
    assert plain["residual"] == ["M[t-1]", "phi_k[t-j]", "in/v[t-j]"]
    assert plain["gradient"] == ["residual", "phi_k[t-j]", "in/window_weights"]
    assert plain["S"] == ["gradient", "S[t-1]", "in/momentum", "in/step_size"]
    assert (plain["X0"], plain["X1"], plain["U"]) == (["S"], ["X0"], ["X5"])
    assert plain["M"] == ["M[t-1]", "U", "in/step_size", "in/retain"]
    assert plain["y"] == ["M", "phi_q"]
    frozen = inputs(
        span=2,
        convention={
            "reference": "chunk_start",
            "read": "chunk_start",
            "decay": "before_error",
            "rate": "split",
        },
    )
    assert frozen["residual"] == ["M[start]", "phi_k", "in/v", "in/retain"]
    assert frozen["M"] == ["M[t-1]", "U", "in/step_size_memory", "in/retain"]
    assert frozen["y"] == ["M[start]", "phi_q"]
    first = inputs(
        window=2,
        convention={
            "order": "momentum_then_window",
            "newton_schulz": {"argument": "nesterov", "scale": "norm"},
        },
    )
    assert (first["P"], first["X0"], first["U"]) == (
        ["S[t-j]", "in/window_weights"],
        ["P", "gradient", "in/momentum"],
        ["X5", "P", "gradient", "in/momentum"],
    )
    read_through = inputs(
        convention={"read": "call_end", "newton_schulz": {"argument": "accumulated", "steps": 1}}
    )
    assert list(read_through)[-5:] == ["M", "X0", "X1", "phi_q", "y"]
    assert (read_through["X0"], read_through["y"]) == (["M[end]"], ["X1", "phi_q"])
    token = inputs("delta", level="token")
    assert token["k"] == ["in/x", "in/param/W_K"]
    assert token["step_size"] == ["k", "v", "in/param/W_step_size", "in/param/b_step_size"]
    assert token["M"] == ["M[t-1]", "gradient", "step_size", "retain"]
    assert inputs("hebbian") == {
        "phi_k": ["in/k"],
        "M": ["M[t-1]", "phi_k", "in/v", "in/retain"],
        "phi_q": ["in/q"],
        "y": ["M", "phi_q"],
    }


# -- replay ----------------------------------------------------------------------------------------


@pytest.mark.clause("REPLAY-17", "REPLAY-18")
def test_a_right_trace(here, cli):
    mine(here, right(here))
    ran = cli("replay", "case.st", "--trace", "mine.st")
    assert_golden("replay_right.txt", shown(ran))
    assert cli("replay", "case.st", "--trace", "mine.st", "--json").json["first_wrong"] is None


@pytest.mark.clause("CASE-27", "REPLAY-15", "REPLAY-16", "REPLAY-17")
def test_a_wrong_op(here, cli):
    """A gate read in the other sense.

    From token 0 on the memory is another function of recorded inputs.
    """
    cli(
        "eval",
        "case.st",
        "-o",
        "mine.st",
        "--trace",
        "--convention",
        "gate=retain",
        "--dtype",
        "float32",
    )
    assert_golden("replay_wrong.txt", shown(cli("replay", "case.st", "--trace", "mine.st")))


@pytest.mark.clause("CASE-27", "REPLAY-14", "REPLAY-17")
def test_a_gap(here, cli):
    """A momentum that is wrong from token 2 on and is not recorded."""
    whole = {name: value.copy() for name, value in right(here).items()}
    whole["trace/M"][1, 2:] += 0.5
    mine(here, {name: whole[name] for name in ("trace/residual", "trace/M")})
    assert_golden(
        "replay_gap.txt",
        shown(cli("replay", "case.st", "--trace", "mine.st", "--no-nearest", "--dtype", "float32")),
    )


@pytest.mark.clause("CASE-21", "REPLAY-15")
def test_what_is_not_finite(here, cli):
    whole = {name: value.copy() for name, value in right(here, "bfloat16").items()}
    whole["trace/S"][0, 1] = np.nan
    whole["trace/M"][0, 1:] = np.nan
    mine(here, whole)
    assert_golden("replay_not_finite.txt", shown(cli("replay", "case.st", "--trace", "mine.st")))
    assert cli("replay", "case.st", "--trace", "mine.st", "--json").json["first_wrong"]["got"] == {
        "decimal": "nan",
        "hex": "nan",
    }


@pytest.mark.clause("REPLAY-17", "REPLAY-21")
def test_a_chunk_kernel(here, cli):
    """Chunks of two tokens whose second starts from a wrong momentum."""
    whole = right(here)
    M = np.stack([INPUTS["in/M0"], whole["trace/M"][:, 1]], axis=1).astype(np.float32)
    S = np.stack([0 * INPUTS["in/M0"], whole["trace/S"][:, 1]], axis=1).astype(np.float32)
    S[0, 1] *= -1
    E = whole["trace/residual"].reshape(2, 2, 2, 2).astype(np.float32)
    mine(here, {"chunk/M": M, "chunk/S": S, "chunk/E": E}, HEADER | {"chunk": 2})
    assert_golden("replay_chunk.txt", shown(cli("replay", "case.st", "--trace", "mine.st")))


@pytest.mark.clause("REPLAY-17", "REPLAY-23")
def test_adjoints(here, cli):
    whole = {
        name: value.copy()
        for name, value in trace(atlas_ref.load("case.st"), grad=True, dtype="float32").items()
    }
    whole["trace_grad/S"][:, :2] *= 0.5
    mine(here, {name: value for name, value in whole.items() if "S" in name or "M" in name})
    assert_golden("replay_adjoint.txt", shown(cli("replay", "case.st", "--trace", "mine.st")))


@pytest.mark.clause("CASE-28", "REPLAY-18")
def test_json(here, cli):
    whole = {name: value.copy() for name, value in right(here).items()}
    whole["trace/gradient"][0, 1, 1, 0] += 1.0
    mine(here, {name: whole[name] for name in ("trace/gradient", "trace/residual")})
    ran = cli("replay", "case.st", "--trace", "mine.st", "--json")
    assert (ran.code, ran.err) == (1, "")
    found = ran.json
    for each in [found["first_wrong"], *found["findings"]]:
        assert each["error_over_tolerance"] == pytest.approx(
            each["error"] / each["tolerance"], rel=1e-12
        )
        for key in ("error", "tolerance", "error_over_tolerance"):
            each[key] = float(f"{each[key]:.3g}")
    assert_golden("replay_json.txt", json.dumps(found, indent=2) + "\n")


def bad_files(folder):
    """Every kind of refused file, by name."""
    whole = right(folder)
    good = (folder / "case.st").read_bytes()
    yield "missing.st", None
    yield "folder", lambda path: path.mkdir()
    yield "empty.st", lambda path: path.write_bytes(b"")
    yield "cut.st", lambda path: path.write_bytes(good[: len(good) // 2])
    yield "long.st", lambda path: path.write_bytes(good + b"\0")
    yield "text.st", lambda path: path.write_text("trace/M: 1 2 3")
    yield "foreign.st", lambda path: raw(path, {"M": whole["trace/M"]}, {"format": "pt"})
    yield "names.st", lambda path: written(path, HEADER, {"M": whole["trace/M"]})
    yield "json.st", lambda path: written(path, "{", whole)
    yield "key.st", lambda path: written(path, HEADER | {"traces": []}, whole)
    yield "rule.st", lambda path: written(path, HEADER | {"rule": "delta"}, whole)
    yield (
        "window.st",
        lambda path: written(path, {"schema": 1, "rule": "omega", "window": 3}, whole),
    )
    yield "nothing.st", lambda path: written(path, HEADER, {"out/y": whole["trace/y"]})
    yield "case.st", None
    yield "op.st", lambda path: written(path, HEADER, {"trace/X0": whole["trace/M"]})
    yield "shape.st", lambda path: written(path, HEADER, {"trace/M": whole["trace/M"][:, 1:]})
    yield (
        "dtype.st",
        lambda path: written(path, HEADER, {"trace/M": whole["trace/M"].astype(np.int32)}),
    )
    yield (
        "other.st",
        lambda path: written(path, HEADER, {**whole, "in/k": bfloat16(INPUTS["in/k"] * 3)}),
    )
    yield "chunk.st", lambda path: written(path, HEADER, {"chunk/M": whole["trace/M"]})
    yield (
        "chunks.st",
        lambda path: written(path, HEADER | {"chunk": 3}, {"chunk/M": whole["trace/M"]}),
    )
    yield "A.st", lambda path: written(path, HEADER | {"chunk": 4}, {"chunk/A": whole["trace/M"]})
    yield "Q.st", lambda path: written(path, HEADER | {"chunk": 4}, {"chunk/Q": whole["trace/M"]})


@pytest.mark.clause("CASE-17", "REPLAY-9")
def test_bad_files_are_one_line_each(here, cli):
    lines = []
    for name, write in bad_files(here):
        if write is not None:
            write(here / name)
        ran = cli("replay", "case.st", "--trace", name)
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), name
        assert ran.err.startswith(f"atlas-ref: {name}: ")
        found = cli("replay", "case.st", "--trace", name, "--json")
        assert found.json == {
            "exit": 2,
            "bad_input": [ran.err.removeprefix("atlas-ref: ").rstrip("\n")],
        }
        lines.append(ran.err)
    assert_golden("replay_bad.txt", "".join(lines))


@pytest.mark.clause("CASE-17", "REPLAY-9")
def test_bad_options(here, cli):
    mine(here, right(here))
    for arguments, words in [
        (["case.st", "--trace", "mine.st", "--dtype", "int8"], "dtype 'int8' is not available"),
        (["missing.st", "--trace", "mine.st"], "missing.st: no such file"),
        (["mine.st", "--trace", "mine.st"], "mine.st: no in/... tensor"),
        (["case.st"], "Missing option '--trace'"),
    ]:
        ran = cli("replay", *arguments)
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert words in ran.err


@pytest.mark.clause("CASE-26", "REPLAY-18")
def test_a_reserved_rule_is_exit_3(here, cli):
    written(here / "later.st", {"schema": 1, "rule": "ttl"}, {"in/x": np.zeros(3)})
    mine(here, right(here), HEADER)
    ran = cli("replay", "later.st", "--trace", "mine.st")
    assert (ran.code, ran.out, ran.err) == (
        3,
        "",
        "atlas-ref: later.st: rule ttl: not yet supported\n",
    )


@pytest.mark.clause("CASE-26")
def test_the_command_that_is_printed_repeats_the_replay(here, cli):
    whole = right(here)
    mine(here, {"trace/M": whole["trace/M"] + np.float32(1)})
    ran = cli("replay", "case.st", "--trace", "mine.st", "--dtype", "bfloat16")
    (line,) = [line for line in ran.out.splitlines() if line.startswith("  repeat with")]
    assert cli(*line.split()[3:]).out == ran.out
