"""Programs and functions in processes of their own: their rights, and survival of the run."""

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.sources import sources
from atlas_ref.oracle.sources.programs import Isolated
from tests.support.casefiles import some, written

TESTS = Path(__file__).parents[2] / "support"


@pytest.fixture
def case():
    return atlas_ref.make(*some("delta"))


@pytest.fixture
def script(tmp_path):
    """A program of some Python lines with `case`, `out` and `solve()`, which leaves a right answer
    at `out`.
    """

    def made(body, *, name="mine.py"):
        file = tmp_path / name
        lines = f"""
            import os, signal, subprocess, sys, time
            sys.path.insert(0, {str(TESTS)!r})
            case, out = sys.argv[1:3]

            def solve(**header):
                import implementations, safetensors, safetensors.numpy, json
                with safetensors.safe_open(case, "np") as file:
                    given = json.loads(file.metadata()["atlas_ref"])
                inputs = {{name[3:]: value for name, value in safetensors.numpy.load_file(case).items()}}
                answer = {{"out/" + name: value for name, value in implementations.right(given, inputs).items()}}
                safetensors.numpy.save_file(answer, out, metadata={{"atlas_ref": json.dumps({{**given, **header}})}})
        """
        file.write_text(textwrap.dedent(lines) + "\n" + textwrap.dedent(body))
        return f"{sys.executable} {file} {{case}} {{out}}"

    return made


def answered(command, case, **options):
    return atlas_ref.check(case, source=sources.program(command, **options))


def gone(pid):
    """Whether a process has ended, or is about to be collected by its parent."""
    try:
        return "(zombie)" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True


def ends(pid):
    until = time.monotonic() + 5
    while not gone(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return gone(pid)


@pytest.mark.clause("SRC-4", "CASE-24")
def test_a_program_that_answers_is_compared(script, case):
    assert {row.tensor: row.verdict for row in answered(script("solve()"), case)} == {
        "out/y": "PASS",
        "out/M": "PASS",
    }


@pytest.mark.clause("SRC-4")
def test_a_program_sees_the_inputs_and_never_the_recorded_results(script, case):
    recorded = case.replaced(recorded=dict(atlas_ref.evaluate(case).tensors))
    body = "import safetensors.numpy; print(sorted(safetensors.numpy.load_file(case))); sys.exit(3)"
    (row,) = answered(script(body), recorded)
    assert (row.verdict, row.why) == ("NOT SUPPORTED", str(sorted(case.inputs)))


@pytest.mark.clause("SRC-5")
@pytest.mark.parametrize(
    ("body", "verdict", "why"),
    [
        ("sys.exit(3)", "NOT SUPPORTED", "the implementation does not support this case"),
        ("print('no windows'); sys.exit(3)", "NOT SUPPORTED", "no windows"),
        ("sys.exit(4)", "FAILED", "crash: exit code 4"),
        ("print('  two  words ', file=sys.stderr); sys.exit(3)", "NOT SUPPORTED", "two words"),
        (
            "print('a warning', file=sys.stderr); print('no windows'); sys.exit(3)",
            "NOT SUPPORTED",
            "no windows",
        ),
        (
            "print('one'); print('  two  words ', file=sys.stderr); sys.exit(1)",
            "FAILED",
            "crash: exit code 1: two words",
        ),
        (
            "print('  two  words ', file=sys.stderr); print('one'); sys.exit(1)",
            "FAILED",
            "crash: exit code 1: two words",
        ),
        (
            "print('one'); print(' ', file=sys.stderr); sys.exit(1)",
            "FAILED",
            "crash: exit code 1: one",
        ),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "FAILED", "crash: killed by SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "FAILED", "crash: killed by SIGKILL"),
        ("pass", "FAILED", "garbage: exit code 0, and no {out} was written"),
        (
            "open(out, 'w').write('y = 3')",
            "FAILED",
            "garbage: {out}: not a whole safetensors file: ",
        ),
        (
            "open(out, 'wb').write(open(case, 'rb').read()[:-9])",
            "FAILED",
            "garbage: {out}: not a whole safetensors file: ",
        ),
        ("os.mkdir(out)", "FAILED", "garbage: {out}: is a folder"),
        ("os.mkfifo(out)", "FAILED", "garbage: {out}: is not a regular file"),
        (
            "solve(rule='hebbian')",
            "FAILED",
            "garbage: {out}: rule: the case has delta, found hebbian",
        ),
        ("solve(windw=3)", "FAILED", "garbage: {out}: windw: unknown key; keys are "),
    ],
)
def test_however_a_program_ends_it_is_a_verdict(body, verdict, why, script, case):
    (row,) = answered(script(body), case)
    assert (row.tensor, row.verdict) == ("-", verdict)
    assert row.why.startswith(why)


@pytest.mark.clause("SRC-5")
def test_a_program_that_talks_without_end_is_heard_to_the_last_line(script, case):
    body = (
        "for i in range(20000): print('x' * 100)\nprint('the last'); sys.stdout.flush(); "
        "sys.exit(9)"
    )
    (row,) = answered(script(body), case)
    assert row.why == "crash: exit code 9: the last"


@pytest.mark.sample(1)
@pytest.mark.clause("SRC-5")
@pytest.mark.parametrize(
    "how",
    ["hangs", "ignores the polite signal", "hangs and is silent", "its child hangs on its output"],
)
def test_a_hang_is_a_verdict_and_the_whole_group_is_killed(how, script, case, tmp_path):
    pids = tmp_path / "pids"
    body = f"""
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        open({str(pids)!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
        {"signal.signal(signal.SIGTERM, signal.SIG_IGN)" if "ignores" in how else ""}
        {"sys.exit(1)" if "child" in how else "time.sleep(600)"}
    """
    began = time.monotonic()
    (row,) = answered(script(body), case, timeout=5 if "child" in how else 1)
    assert time.monotonic() - began < 4.5
    assert row.why == (
        "crash: exit code 1" if "child" in how else "time-out: did not end within 1 s"
    )
    assert all(ends(pid) for pid in pids.read_text().split())


@pytest.mark.clause("SRC-4")
def test_nothing_stands_on_standard_input_and_no_file_is_left(script, case, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "temporary").mkdir()
    (row,) = answered(script("print(repr(sys.stdin.read())); sys.exit(3)"), case)
    assert row.why == "''"
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.clause("SRC-4")
@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            "./mine {case}",
            "exec: {out} is needed, as in './mine {case} {out}', found './mine {case}'",
        ),
        (
            "./mine {out}",
            "exec: {case} is needed, as in './mine {case} {out}', found './mine {out}'",
        ),
        ("", "exec: {case} is needed, as in './mine {case} {out}', found ''"),
        ("'./mine {case} {out}", 'exec: "\'./mine {case} {out}": No closing quotation'),
        (
            "no-such-program {case} {out}",
            "exec: no-such-program: no such program, or it may not be executed",
        ),
        (
            "/etc/passwd {case} {out}",
            "exec: /etc/passwd: no such program, or it may not be executed",
        ),
    ],
)
def test_a_command_that_is_none_is_bad_input(command, words):
    with pytest.raises(atlas_ref.CaseError) as found:
        sources.program(command)
    assert str(found.value) == words


def test_a_time_limit_is_greater_than_zero():
    for seconds in (0.0, -1.0, float("nan")):
        with pytest.raises(atlas_ref.CaseError, match=r"^timeout: must be greater than 0, found "):
            sources.program("true {case} {out}", timeout=seconds)
        with pytest.raises(atlas_ref.CaseError, match=r"^timeout: must be greater than 0, found "):
            Isolated("implementations:right", timeout=seconds)


@pytest.mark.clause("SRC-4")
def test_a_command_is_split_as_a_shell_would_and_no_shell_reads_it(script, case, tmp_path):
    """A command line split into words without a shell: quotes group, special characters are
    text.
    """
    heard = tmp_path / "heard"
    command = script(f"open({str(heard)!r}, 'w').write(repr(sys.argv[3:])); solve()")
    rows = answered(command + " 'two words' --to={out}.x $HOME '; false' *", case)
    assert {row.verdict for row in rows} == {"PASS"}
    words = json.loads(heard.read_text().replace("'", '"'))
    assert words[0] == "two words"
    assert words[1].endswith("out.safetensors.x")
    assert words[2:] == ["$HOME", "; false", "*"]


@pytest.fixture
def path_of_tests(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS))


@pytest.mark.clause("SRC-9")
@pytest.mark.usefixtures("path_of_tests")
def test_an_isolated_function_answers_case_after_case_in_one_process(case):
    with Isolated("implementations:brain", timeout=30) as source:
        for _ in range(2):
            rows = atlas_ref.check(case, source=source)
            assert {row.tensor: row.verdict for row in rows} == {"out/y": "PASS", "out/M": "PASS"}
            process = source._process
        assert source._process is process
        answer = source(case)
        assert {value.dtype.name for value in answer.tensors.values()} == {"bfloat16"}
    assert ends(process.pid)


@pytest.mark.sample(2)
@pytest.mark.clause("SRC-1", "SRC-9")
@pytest.mark.usefixtures("path_of_tests")
@pytest.mark.parametrize(
    ("name", "verdict", "why"),
    [
        ("ends_the_process", "FAILED", "crash: exit code 7"),
        ("segfault", "FAILED", "crash: killed by SIGSEGV"),
        ("raises", "FAILED", "crash: ValueError: the kernel wants (implementations.py:"),
        ("leaves", "FAILED", "crash: SystemExit: 5 (implementations.py:"),
        ("a_list", "FAILED", "garbage: a dict of arrays is needed, found list"),
        ("unsupported", "NOT SUPPORTED", "the implementation does not support this case"),
        ("raises_without_words", "FAILED", "crash: Speechless: without words (implementations.py:"),
        ("interrupts_itself", "FAILED", "crash: KeyboardInterrupt"),
        ("closes_every_file", "FAILED", "crash: exit code 1"),
        (
            "writes_everywhere",
            "FAILED",
            r"garbage: something wrote b'loss 0.25\n' where results are announced",
        ),
        (
            "announces_a_number",
            "FAILED",
            'garbage: something wrote b\'{"status": "failed", "message": 0.25}\\n\' where',
        ),
    ],
)
def test_whatever_an_isolated_function_does_the_next_case_is_answered(
    name, verdict, why, case, capfd
):
    with Isolated(f"implementations:{name}", timeout=30) as source:
        for _ in range(2):
            (row,) = atlas_ref.check(case, source=source)
            assert (row.tensor, row.verdict) == ("-", verdict)
            assert row.why.startswith(why)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.clause("SRC-9", "SRC-18")
@pytest.mark.usefixtures("path_of_tests")
def test_a_number_where_words_are_announced_is_a_row_of_a_report(cli, tmp_path):
    path = written(tmp_path / "case.safetensors", *some("delta"))
    words = ("--impl", "implementations:announces_a_number", "--report", tmp_path / "out.html")
    ran = cli("check", path, *words)
    assert ran.code == 1, ran.err
    assert "garbage: something wrote" in (tmp_path / "out.html").read_text()


@pytest.mark.clause("SRC-9")
@pytest.mark.usefixtures("path_of_tests")
@pytest.mark.parametrize("seconds", [1e30, float("inf")])
def test_a_time_out_may_be_longer_than_any_clock(seconds, case):
    with Isolated("implementations:right", timeout=seconds) as source:
        assert {row.verdict for row in atlas_ref.check(case, source=source)} == {"PASS"}
    assert {
        row.verdict
        for row in atlas_ref.check(
            case, source=sources.program("false {case} {out}", timeout=seconds)
        )
    } == {"FAILED"}


@pytest.mark.clause("SRC-9")
@pytest.mark.usefixtures("path_of_tests")
def test_a_crash_costs_the_case_that_crashed_and_no_other():
    header, tensors = some("delta")
    cases = [
        atlas_ref.make({**header, "note": note}, tensors) for note in ("first", "second", "third")
    ]
    with Isolated("implementations:crashes_on_the_second", timeout=30) as source:
        found = [[row.verdict for row in atlas_ref.check(each, source=source)] for each in cases]
    assert found == [["PASS", "PASS"], ["FAILED"], ["PASS", "PASS"]]


@pytest.mark.slow
@pytest.mark.clause("SRC-9")
@pytest.mark.usefixtures("path_of_tests")
def test_an_isolated_function_that_hangs_is_killed_with_its_children(case, tmp_path, monkeypatch):
    monkeypatch.setenv("ATLAS_REF_TEST_PID", str(tmp_path / "pid"))
    with Isolated("implementations:hangs", timeout=3) as source:
        (row,) = atlas_ref.check(case, source=source)
    assert (row.verdict, row.why) == ("FAILED", "time-out: did not end within 3 s")
    assert ends((tmp_path / "pid").read_text())


@pytest.mark.slow
@pytest.mark.clause("SRC-9")
@pytest.mark.usefixtures("path_of_tests")
def test_an_isolated_function_that_cannot_be_imported_is_bad_input(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dying_module.py").write_text("import os\nos._exit(9)")
    (tmp_path / "sleeping_module.py").write_text("import time\ntime.sleep(60)")
    for name, words, seconds in (
        ("implementations:no_such", "impl implementations:no_such: AttributeError: ", 30),
        ("dying_module:f", "impl dying_module:f: while it was imported: crash: exit code 9", 30),
        (
            "sleeping_module:f",
            "impl sleeping_module:f: while it was imported: time-out: did not end within 2 s",
            2,
        ),
    ):
        source = Isolated(name, timeout=seconds, importing=seconds)
        with pytest.raises(atlas_ref.CaseError) as found, source:
            pass
        assert str(found.value).startswith(words)
        with pytest.raises(atlas_ref.CaseError) as found:
            source(case)
        assert str(found.value).startswith(words)


@pytest.mark.clause("SRC-9")
def test_the_time_of_a_case_does_not_count_its_import(case, tmp_path, monkeypatch):
    """What it does count is the time of the case."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slow_module.py").write_text(
        "import time\ntime.sleep(2.5)\n"
        "def f(case, inputs):\n    raise NotImplementedError('late')\n"
        "def g(case, inputs):\n    time.sleep(60)\n"
    )
    with Isolated("slow_module:f", timeout=1, path=[tmp_path]) as source:
        assert source(case).failure == "late"
    with Isolated("slow_module:g", timeout=1, path=[tmp_path]) as source:
        assert source(case).failure == "time-out: did not end within 1 s"


@pytest.mark.clause("SRC-9")
@pytest.mark.usefixtures("path_of_tests")
def test_an_isolated_answer_under_a_wrong_name_is_bad_input_and_the_worker_lives_on(case):
    with Isolated("implementations:unknown_name", timeout=30) as source:
        for _ in range(2):
            with pytest.raises(
                atlas_ref.CaseError,
                match=r"^case: Y: no rule has such a result; results are y, M, S, ",
            ):
                source(case)


@pytest.mark.slow
@pytest.mark.clause("SRC-1", "SRC-9", "CASE-26", "CASE-28")
@pytest.mark.usefixtures("path_of_tests")
def test_check_with_a_source_goes_through_every_case(cli, script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    header, tensors = some("delta")
    right = atlas_ref.evaluate(atlas_ref.make(header, tensors)).tensors
    (tmp_path / "cases").mkdir()
    (tmp_path / "results").mkdir()
    for note in ("first", "second", "third"):
        written(tmp_path / "cases" / f"{note}.safetensors", {**header, "note": note}, tensors)
        written(tmp_path / "results" / f"{note}.safetensors", header, right)
    written(tmp_path / "cases" / "omega.safetensors", *some("omega"))

    def verdicts(*options):
        ran = cli("check", "cases", *options, "--no-nearest", "--json")
        found = {}
        for row in ran.json["results"]:
            found.setdefault(Path(row["case"]).stem, []).append(row["verdict"])
        return ran.code, found

    both = ["PASS", "PASS"]
    assert verdicts("--impl", "implementations:crashes_on_the_second") == (
        1,
        {"first": both, "second": ["FAILED"], "third": both, "omega": ["NOT SUPPORTED"]},
    )
    assert verdicts("--impl", "implementations:prints") == (
        0,
        {"first": both, "second": both, "third": both, "omega": ["NOT SUPPORTED"]},
    )
    assert verdicts("--impl", "implementations:unsupported")[0] == 3
    assert verdicts("--impl", "implementations:prints", "--only", "M", "--dtype", "float32")[1][
        "first"
    ] == ["PASS"]
    assert verdicts("--exec", script("solve()")) == (
        1,
        {"first": both, "second": both, "third": both, "omega": ["FAILED"]},
    )
    assert verdicts("--against", "results") == (
        1,
        {"first": both, "second": both, "third": both, "omega": ["MISSING"]},
    )
    ran = cli("check", "cases", "--impl", "implementations:unknown_name", "--json")
    assert (ran.code, len(ran.json["bad_input"])) == (2, 3)


@pytest.mark.clause("SRC-1", "SRC-2", "CASE-26")
@pytest.mark.usefixtures("path_of_tests")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["--impl", "a:b", "--exec", "x {case} {out}"],
            "--impl and --exec: one source of results at a time",
        ),
        (
            ["--impl", "a:b", "--against", "."],
            "--against and --impl: one source of results at a time",
        ),
        (
            ["--impl", "no_such_module:f"],
            "impl no_such_module:f: ModuleNotFoundError: No module named 'no_such_module'",
        ),
        (
            ["--exec", "x {case}"],
            "exec: {out} is needed, as in './mine {case} {out}', found 'x {case}'",
        ),
        (["--against", "absent"], "absent: no such file or folder"),
        (
            ["--against", "one.safetensors"],
            (
                "--against one.safetensors: is one file for 2 cases; a folder with a file of the "
                "same name "
            ),
        ),
        (
            ["--impl", "implementations:right", "--timeout", "0"],
            "--timeout: must be greater than 0, found 0",
        ),
        (
            ["--impl", "implementations:right", "--timeout", "nan"],
            "--timeout: must be greater than 0, found nan",
        ),
        (
            ["--impl", "implementations:right", "--dtype", "float8"],
            "one.safetensors: dtype 'float8' is not available; float64, ",
        ),
        (
            ["--report", "result.txt"],
            "--report result.txt: a name that ends in .json, .xml, .html is needed",
        ),
        (["--xfail", "absent.toml"], "absent.toml: no such file"),
    ],
)
def test_options_that_do_not_fit_are_one_line_and_code_2(
    options, words, cli, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        written(tmp_path / f"{name}.safetensors", *some("delta"))
    ran = cli("check", "one.safetensors", "two.safetensors", *options)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"atlas-ref: {words}")
    assert len(set(ran.err.replace("two.", "one.").splitlines())) == 1


@pytest.mark.clause("CASE-16", "SRC-3")
@pytest.mark.parametrize(
    "fault",
    ["truncated", "empty", "text", "another rule", "other inputs", "unknown tensor", "no result"],
)
def test_a_result_file_that_is_none_is_bad_input_and_one_line(fault, cli, tmp_path):
    header, tensors = some("delta")
    case, out = (
        written(tmp_path / "case.safetensors", header, tensors),
        tmp_path / "out.safetensors",
    )
    results = dict(atlas_ref.evaluate(atlas_ref.load(case)).tensors)
    whole = written(out, header, results).read_bytes()
    contents = {"truncated": whole[:-5], "empty": b"", "text": b"out/y = 1"}
    if fault in contents:
        out.write_bytes(contents[fault])
    else:
        changes = {
            "other inputs": {"in/q": 2 * tensors["in/q"]},
            "unknown tensor": {"out/z": np.zeros(2)},
            "no result": {},
        }
        written(
            out,
            header | ({"rule": "hebbian"} if fault == "another rule" else {}),
            results | changes.get(fault, {}),
        )
        if fault == "no result":
            written(out, header, {"note": np.zeros(2)})
    ran = cli("check", case, "--against", out)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert (
        os.path.basename(out) in ran.err
        or "out/z: not a result of this case; it has out/y, out/M" in ran.err
    )


@pytest.mark.clause("SRC-8", "CASE-28")
@pytest.mark.usefixtures("path_of_tests")
def test_what_a_function_prints_goes_to_standard_error_whatever_it_prints_with(tmp_path):
    file = written(tmp_path / "case.safetensors", *some("delta"))
    words = [
        sys.executable,
        "-m",
        "atlas_ref.cli",
        "check",
        file,
        "--impl",
        "implementations:prints",
        "--json",
    ]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, cwd=TESTS.parents[1])
    assert (ended.returncode, json.loads(ended.stdout)["exit"]) == (0, 0)
    assert {"a word of its own", "and another"} <= set(ended.stderr.splitlines())
