"""A sweep: its draws, its findings, the size of its failures, and the words of the command."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.cases.new import DTYPES
from atlas_ref.oracle.dplr import draw, members
from atlas_ref.oracle.drawing import LONG
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.judge.answers import Answer
from atlas_ref.oracle.sweep.draw import SWEPT, draw_case, regimes
from atlas_ref.oracle.sweep.sweep import Named, sweep
from atlas_ref.types import same_bits
from tests import sweep_kernels
from tests.support.golden import assert_golden

PLAIN: dict[str, tuple[Any, ...]] = {"convention": ("spec",), "level": ("projected",)}
HERE = "tests.sweep_kernels"


def kernel(name: str) -> Any:
    """A source inside this process."""
    function = getattr(sweep_kernels, name)

    def source(case: Case) -> Answer:
        try:
            found = function(
                case.header.plain(),
                {key.removeprefix("in/"): value for key, value in case.inputs.items()},
            )
        except NotImplementedError as error:
            return Answer.no_support(str(error))
        return Answer({f"out/{key}": value for key, value in found.items()})

    return source


def ours(case: Case) -> Answer:
    """Results of the case itself, with gradients."""
    return Answer(dict(evaluate(case, grad=True).tensors))


# -- what is drawn ---------------------------------------------------------------------------------


@pytest.mark.clause("SWEEP-1")
@pytest.mark.parametrize("rule", SWEPT)
def test_a_case_depends_on_its_number_and_the_seed_alone(rule: str) -> None:
    first = [draw_case(rule, 3, number, {}) for number in range(6)]
    again = [draw_case(rule, 3, number, {}) for number in reversed(range(6))][::-1]
    for one, other in zip(first, again, strict=True):
        assert (one.request, one.regime) == (other.request, other.regime)
        assert same_bits(one.case.inputs, other.case.inputs)
    assert any(
        one.request != draw_case(rule, 4, number, {}).request for number, one in enumerate(first)
    )


#: Digests of 200 requests of seed 0 with their regimes, as draw 2 was published.
PUBLISHED = {
    "omega": "3b28e1f0279a0957",
    "titans_lmm": "0195e2fcebd8f76f",
    "delta": "804b6b28bcde6277",
    "hebbian": "0b0af0881bb8285a",
    "newton_schulz": "915c99d643445193",
    "feature_map": "088caf0e35af393a",
    "deep_memory": "b16ea90894e4f616",
    "tnt": "7f6a78000ade2d70",
    "dplr": "7b32e67a5cc2e9ee",
    "recurrence": "15f906be4dba8581",
}


@pytest.mark.clause("SWEEP-14")
@pytest.mark.parametrize("rule", PUBLISHED)
def test_a_published_draw_stays_as_it_is(rule: str) -> None:
    assert digest_of_draws(rule) == PUBLISHED[rule]


def digest_of_draws(rule: str) -> str:
    """A digest of 200 requests of seed 0 with their regimes."""
    cases = [draw_case(rule, 0, number, {}) for number in range(200)]
    lines = [json.dumps([each.request, each.regime], sort_keys=True) for each in cases]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


@pytest.mark.clause("SWEEP-14")
def test_every_rule_that_is_swept_has_published_draws() -> None:
    assert set(SWEPT) == set(PUBLISHED)


@pytest.mark.clause("SWEEP-14")
def test_the_place_of_a_row_among_members_moves_no_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = dict(members.MEMBERS)
    monkeypatch.setattr(members, "MEMBERS", {"new": rows["gla"], **dict(reversed(rows.items()))})
    # A second copy of the module, which reads the table as it stands now.
    spec = importlib.util.spec_from_file_location("second_draw", draw.__file__)
    assert spec is not None
    assert spec.loader is not None
    second = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(second)
    assert second.MEMBERS is members.MEMBERS
    assert second.SPACE == draw.SPACE


@pytest.mark.clause("SWEEP-2")
def test_the_draw_reaches_every_kind_of_case() -> None:
    cases = [draw_case("omega", 0, number, {}) for number in range(300)]
    assert {each.request["dtype"] for each in cases} == set(DTYPES)
    assert {each.regime for each in cases} == {*regimes("omega"), "slow"}
    assert {each.request["level"] for each in cases} == {"projected", "token"}
    tokens = {each.request["tokens"] for each in cases}
    assert {1, 2, 3, 7, 31, 33} | set(LONG) <= tokens
    assert any(each.request["window"] > each.request["tokens"] for each in cases)
    assert any(each.request["d_out"] > each.request["d_in"] for each in cases)
    assert any(each.request["d_out"] < each.request["d_in"] for each in cases)
    assert len({each.case.convention.model_dump_json() for each in cases}) > 100
    assert len({each.request["feature_map"]["kind"] for each in cases}) == 9
    assert any("in/active" in each.case.inputs for each in cases)
    assert any("in/reset" in each.case.inputs for each in cases)
    assert any("in/window_k" in each.case.inputs for each in cases)


@pytest.mark.clause("SWEEP-3")
def test_what_is_fixed_is_drawn_from_its_values_and_moves_nothing_else() -> None:
    fixed = {"dtype": ("float32",), "tokens": (5, 6)}
    moved = 0
    for number in range(40):
        free, held = (
            draw_case("delta", 0, number, {}).request,
            draw_case("delta", 0, number, fixed).request,
        )
        assert held["dtype"] == "float32"
        assert held["tokens"] in (5, 6)
        moved += {key: value for key, value in free.items() if key not in fixed} != {
            k: v for k, v in held.items() if k not in fixed
        }
    assert moved < 10  # where what was drawn does not fit what is fixed, it is drawn again


@pytest.mark.clause("SWEEP-12")
@pytest.mark.parametrize("rule", ["omega", "titans_lmm", "delta", "hebbian"])
def test_every_tenth_case_is_long_and_its_gates_stay_within_float32(rule: str) -> None:
    met = set()
    for number in range(100):
        one = draw_case(rule, 5, number, {})
        assert (one.request["tokens"] > 33) == (number % 10 == 9)
        if number % 10 != 9:
            continue
        met.add(one.request["tokens"])
        assert one.regime == "slow"
        assert set(one.request.get("convention", {})) <= {"preset", "newton_schulz"}
        retain = one.case.inputs.get("in/retain")
        if retain is not None and retain.astype(np.float64).mean() > 0.5:
            gates = retain.astype(np.float64).reshape(-1, one.request["tokens"], 1)[0]
            assert np.prod(gates) > 1e-4
    assert met == set(LONG)
    fixed = draw_case(rule, 5, 9, {"tokens": (7,)})
    assert (fixed.request["tokens"], fixed.regime in regimes(rule)) == (7, True)
    assert draw_case(rule, 5, 9, {"regime": ("edges",)}).regime == "edges"


@pytest.mark.clause("SWEEP-12")
def test_gradients_of_the_longest_cases_are_compared_by_name_alone(tmp_path: Path) -> None:
    def wrong_gradients(case: Case) -> Answer:
        found = dict(evaluate(case, grad=True).tensors)
        longer = case.header.level == "projected" and case.inputs["in/k"].shape[-2] > 65
        return Answer(found | ({"grad/k": 2 * found["grad/k"]} if longer else {}))

    options: dict[str, Any] = {"cases": 30, "folder": tmp_path, "keep": 0}
    choices = {"level": ("projected",)}
    assert any(
        draw_case("delta", 0, number, choices).request["tokens"] > 65 for number in (9, 19, 29)
    )
    assert sweep("delta", wrong_gradients, choices=choices, **options).failures == []
    found = sweep("delta", wrong_gradients, choices=choices, only=["grad/k"], **options)
    assert found.failures
    assert {each.number % 10 for each in found.failures} == {9}


@pytest.mark.clause("SWEEP-4")
def test_regimes_put_the_inputs_where_they_say() -> None:
    def inputs(regime: str) -> dict[str, np.ndarray]:
        fixed = {
            "level": ("projected",),
            "regime": (regime,),
            "dtype": ("float64",),
            "tokens": (33,),
            "heads": (3,),
        }
        return draw_case(
            "omega", 0, 1, fixed | {"convention": ({"newton_schulz": "none"},)}
        ).case.inputs

    edges = inputs("edges")
    assert {0.0, 1.0} <= set(edges["in/retain"].ravel())
    assert (edges["in/step_size"] == 0).any()
    assert ((edges["in/retain"] > 0) & (edges["in/retain"] < 1)).any()
    ones = inputs("ones")
    assert (ones["in/retain"] == 1).all()
    assert (ones["in/momentum"] == 1).all()
    fading = np.cumprod(
        inputs("fading")["in/retain"].reshape(-1)[:33].astype(np.float32), dtype=np.float32
    )
    assert fading[-1] < np.finfo(np.float32).tiny
    assert np.abs(inputs("small")["in/step_size"]).max() < 1e-3
    repeated = inputs("repeated")["in/k"]
    assert (repeated == repeated[..., :1, :]).all()
    assert not {"in/M0", "in/S0", "in/window_k"} & inputs("empty").keys()
    slow = inputs("slow")
    assert slow["in/retain"].min() > 0.987
    assert slow["in/momentum"].min() > 0.9
    assert slow["in/step_size"].max() <= 0.1


def test_regimes_of_matrices() -> None:
    def matrix(regime: str) -> np.ndarray:
        return np.asarray(
            draw_case(
                "newton_schulz",
                0,
                2,
                {"regime": (regime,), "dtype": ("float64",), "d_in": (3,), "d_out": (4,)},
            ).case.inputs["in/G"]
        )

    assert not matrix("zero").any()
    assert np.abs(matrix("tiny")).max() < 1e-5
    assert (np.linalg.matrix_rank(matrix("rank_one"), tol=1e-12) == 1).all()


# -- what is found ---------------------------------------------------------------------------------


@pytest.mark.sample(2)
@pytest.mark.clause("SWEEP-5")
@pytest.mark.parametrize("rule", SWEPT)
def test_we_pass_our_own_sweep(rule: str, tmp_path: Path) -> None:
    found = sweep(rule, ours, cases=30, folder=tmp_path)
    assert found.counts == {"PASS": 30}
    assert found.exit_code == 0
    assert found.nearest is not None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.clause("SWEEP-5")
def test_a_right_kernel_passes_what_it_supports(tmp_path: Path) -> None:
    assert sweep("delta", kernel("right"), cases=60, choices=PLAIN, folder=tmp_path).counts == {
        "PASS": 60
    }
    found = sweep("delta", kernel("right"), cases=60, folder=tmp_path)
    assert set(found.counts) == {"PASS", "NOT SUPPORTED"}
    assert found.exit_code == 0
    assert sweep("delta", kernel("unsupported"), cases=3, folder=tmp_path).exit_code == 3


@pytest.mark.clause("SWEEP-7")
def test_a_failure_shrinks_to_the_one_token_that_shows_it(tmp_path: Path) -> None:
    found = sweep("delta", kernel("no_pulse"), cases=20, choices=PLAIN, folder=tmp_path, keep=2)
    assert found.exit_code == 1
    assert found.counts["WRONG"] == len(found.failures) > 2
    kept = [each for each in found.failures if each.file is not None]
    assert len(kept) == 2
    for each in kept:
        case = atlas_ref.load(tmp_path / str(each.file))
        assert case.inputs["in/active"].tolist() == [0]
        assert case.inputs["in/k"].shape == (1, 1)
        assert set(case.inputs) == {
            "in/k",
            "in/v",
            "in/q",
            "in/retain",
            "in/step_size",
            "in/active",
        }
        assert all(set(np.unique(value)) <= {0.0, 1.0} for value in case.inputs.values())
        assert f"case {each.number}, shrunk" in case.header.note
        assert any(row.verdict == "WRONG" for row in atlas_ref.check(case))


@pytest.mark.clause("SWEEP-7")
def test_shrinking_keeps_what_the_mistake_needs(tmp_path: Path) -> None:
    """A mistake in the remainder after whole chunks of four, which needs at least five tokens."""
    found = sweep(
        "delta", kernel("by_chunks_of_four"), cases=30, choices=PLAIN, folder=tmp_path, keep=1
    )
    case = atlas_ref.load(tmp_path / str(next(each.file for each in found.failures if each.file)))
    assert case.inputs["in/k"].shape == (5, 1)
    assert "in/active" not in case.inputs


@pytest.mark.clause("SWEEP-7")
def test_every_kind_of_failure_is_kept_before_a_second_of_its_kind(tmp_path: Path) -> None:
    found = sweep(
        "delta", kernel("no_pulse"), cases=40, choices=PLAIN, folder=tmp_path, keep=2, shrink=0
    )
    kinds = {each.row["tensor"] for each in found.failures}
    assert kinds == {"out/y", "out/M"}
    assert {each.row["tensor"] for each in found.failures if each.file} == kinds


def test_not_a_number_is_wrong_and_can_be_logged(tmp_path: Path) -> None:
    choices = {**PLAIN, "regime": ("fading",), "tokens": (31, 33), "dtype": ("float32",)}
    found = sweep(
        "delta",
        kernel("divides_by_gates"),
        cases=20,
        choices=choices,
        folder=tmp_path,
        resume=tmp_path / "log",
        keep=1,
    )
    assert found.counts["WRONG"] > 3
    wrong = found.failures[0]
    assert wrong.row["got"] == "nan"
    lines = [
        json.loads(line, parse_constant=pytest.fail)
        for line in (tmp_path / "log").read_text().splitlines()
    ]
    assert len(lines) == 1 + 20 + 1


@pytest.mark.slow
@pytest.mark.clause("SWEEP-6")
def test_a_crash_is_a_verdict_and_shrinks(tmp_path: Path) -> None:
    choices = {**PLAIN, "tokens": (2, 5, 13)}
    crashing = Named("function", f"{HERE}:crashes_after_eight")
    found = sweep("delta", crashing, cases=6, choices=choices, folder=tmp_path, keep=1, shrink=30)
    assert set(found.counts) == {"PASS", "FAILED"}
    failure = next(each for each in found.failures if each.file)
    assert failure.row["why"] == "crash: killed by SIGSEGV"
    case = atlas_ref.load(tmp_path / str(failure.file))
    assert case.inputs["in/k"].shape[-2] == 9
    assert case.recorded == {}


@pytest.mark.slow
@pytest.mark.clause("SWEEP-6")
def test_a_hang_is_a_verdict_and_the_sweep_goes_on(tmp_path: Path) -> None:
    hanging = Named("function", f"{HERE}:hangs_on_three", timeout=3.0)
    found = sweep(
        "delta",
        hanging,
        cases=4,
        choices={**PLAIN, "tokens": (2, 2, 2, 2, 3)},
        folder=tmp_path,
        keep=0,
        seed=1,
    )
    assert found.counts == {"FAILED": 1, "PASS": 3}
    assert found.failures[0].row["why"].startswith("time-out")


@pytest.mark.clause("SWEEP-6")
def test_garbage_is_a_verdict(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = sweep(
        "delta",
        Named("function", f"{HERE}:garbage"),
        cases=2,
        choices=PLAIN,
        folder=tmp_path,
        keep=0,
    )
    assert found.counts == {"FAILED": 2}
    assert "garbage" in found.failures[0].row["why"]
    assert capfd.readouterr().out == ""
    found = sweep(
        "delta", kernel("another_result"), cases=2, choices=PLAIN, folder=tmp_path, keep=0
    )
    assert found.failures[0].row["why"].startswith("garbage: out/S: not a result of this case")
    found = sweep(
        "delta",
        Named("function", f"{HERE}:no_such_result"),
        cases=2,
        choices=PLAIN,
        folder=tmp_path,
        keep=0,
    )
    assert found.failures[0].row["why"].startswith("garbage: zz: no rule has such a result")


@pytest.mark.slow
@pytest.mark.clause("SWEEP-6")
def test_a_program_is_swept_like_a_function(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    root = str(Path(__file__).parents[3])
    script.write_text(
        "import sys, atlas_ref\n"
        f"sys.path.insert(0, {root!r})\n"
        "from tests.sweep_kernels import no_pulse\n"
        "case = atlas_ref.load(sys.argv[1])\n"
        "found = no_pulse(case.header.plain(), {k[3:]: v for k, v in case.inputs.items()})\n"
        "atlas_ref.save(sys.argv[2], case.header, {f'out/{k}': v for k, v in found.items()})\n"
    )
    program = Named("program", f"{sys.executable} {script} {{case}} {{out}}")
    by_program = sweep("delta", program, cases=4, choices=PLAIN, folder=tmp_path, keep=0)
    by_function = sweep(
        "delta", kernel("no_pulse"), cases=4, choices=PLAIN, folder=tmp_path, keep=0
    )
    assert by_program == by_function
    assert by_program.exit_code == 1


# -- the command -----------------------------------------------------------------------------------


@pytest.mark.clause("SWEEP-11")
def test_the_command_prints_what_failed_and_how_to_repeat_it(cli: Any, tmp_path: Path) -> None:
    out = tmp_path / "failures"
    words = (
        "sweep",
        "delta",
        "--impl",
        f"{HERE}:no_pulse",
        "--convention",
        "spec",
        "--fix",
        "level=projected",
    )
    ran = cli(*words, "--fix", "dtype=float32", "--cases", "6", "--keep", "1", "-o", out)
    assert (ran.code, ran.err) == (1, "")
    text = ran.out.replace(str(out), "FAILURES")
    assert_golden(
        "sweep_failures.txt",
        "\n".join(line.rstrip() for line in text.splitlines() if "nearest to" not in line) + "\n",
    )
    (file,) = out.iterdir()
    assert cli("check", file).code == 1


@pytest.mark.clause("SWEEP-11")
def test_the_command_answers_with_one_object(cli: Any, tmp_path: Path) -> None:
    ran = cli(
        "sweep",
        "delta",
        "--impl",
        f"{HERE}:no_pulse",
        "--convention",
        "spec",
        "--fix",
        "level=projected",
        "--cases",
        "4",
        "-o",
        tmp_path,
        "--json",
    )
    assert (ran.code, ran.err) == (1, "")
    found = ran.json
    assert found["exit"] == 1
    assert found["cases"] == 4
    assert sum(found["counts"].values()) == 4
    assert {each["number"] for each in found["failures"]} <= set(range(4))


IMPL = ("--impl", f"{HERE}:right")
BAD: tuple[tuple[str, ...], ...] = (
    ("delta",),
    ("delta", *IMPL, "--exec", "x {case} {out}"),
    ("omicron", *IMPL),
    ("ttl", *IMPL),
    ("delta", *IMPL, "--fix", "colour=red"),
    ("delta", *IMPL, "--fix", "tokens="),
    ("delta", *IMPL, "--fix", "=3"),
    ("delta", *IMPL, "--fix", "tokens=3", "--fix", "tokens=4"),
    ("delta", *IMPL, "--fix", "regime=odd"),
    ("delta", *IMPL, "--fix", "dtype=float8"),
    ("delta", *IMPL, "--fix", "window=3"),
    ("delta", *IMPL, "--fix", "tokens=many"),
    ("delta", *IMPL, "--fix", "tokens=0"),
    ("delta", *IMPL, "--fix", "heads=-1"),
    ("delta", *IMPL, "--fix", "d_in=99999999999999999999999"),
    ("delta", *IMPL, "--fix", "pulse=99999999999999999999999"),
    ("omega", *IMPL, "--fix", "window=wide"),
    ("delta", *IMPL, "--fix", "dtype={}"),
    ("delta", *IMPL, "--fix", "convention=spec", "--convention", "spec"),
    ("delta", *IMPL, "--convention", "colour=red"),
    ("delta", *IMPL, "--convention", "reference=chunk_start", "--fix", "span=null"),
    ("delta", *IMPL, "--seed", str(2**64)),
    ("delta", *IMPL, "--only", "zz"),
    ("delta", *IMPL, "--dtype", "float8"),
    ("delta", *IMPL, "--state-dtype", "float8"),
    ("delta", *IMPL, "--timeout", "0"),
    ("delta", "--impl", f"{HERE}:nothing"),
    ("delta", "--impl", "nowhere:f"),
    ("delta", "--impl", "nowhere"),
    ("delta", "--exec", "./nothing {case} {out}"),
    ("delta", "--exec", "cat {case}"),
)


@pytest.mark.slow
@pytest.mark.clause("SWEEP-11")
def test_bad_options_are_one_line(cli: Any, tmp_path: Path) -> None:
    lines = []
    for words in BAD:
        ran = cli("sweep", *words, "-o", tmp_path / "out", "--resume", tmp_path / "log")
        assert (ran.code, ran.out) == (2, ""), words
        assert ran.err.count("\n") == 1, words
        as_json = cli("sweep", *words, "-o", tmp_path / "out", "--json")
        assert (as_json.code, as_json.json["exit"]) == (2, 2), words
        assert [f"atlas-ref: {as_json.json['bad_input'][0]}\n"] == [ran.err], words
        lines.append(f"$ atlas-ref sweep {shlex.join(words)}\n{ran.err}")
    assert list(tmp_path.iterdir()) == []  # neither a log nor a folder
    assert_golden("sweep_messages.txt", "\n".join(lines))


@pytest.mark.slow
@pytest.mark.clause("SWEEP-11")
def test_a_crash_is_repeated_with_the_implementation(cli: Any, tmp_path: Path) -> None:
    out = tmp_path / "failures"
    words = (
        "sweep",
        "delta",
        "--impl",
        f"{HERE}:crashes_after_eight",
        "--convention",
        "spec",
        "--fix",
        "level=projected",
        "--only",
        "y",
    )
    ran = cli(
        *words, "--fix", "tokens=9", "--cases", "2", "--keep", "1", "--shrink", "0", "-o", out
    )
    assert (ran.code, ran.err) == (1, "")
    text = ran.out.replace(str(out), "FAILURES")
    assert_golden("sweep_crash.txt", "\n".join(line.rstrip() for line in text.splitlines()) + "\n")
    *_, command = ran.out.splitlines()
    assert cli(*shlex.split(command.removeprefix("repeat with: atlas-ref "))).code == 1


@pytest.mark.clause("SWEEP-7", "SWEEP-11")
def test_a_case_without_an_answer_is_repeated_with_the_implementation(
    cli: Any, tmp_path: Path
) -> None:
    words = (
        "sweep",
        "delta",
        "--impl",
        f"{HERE}:answers_nothing",
        "--cases",
        "1",
        "--keep",
        "1",
        "--shrink",
        "0",
        "-o",
        tmp_path,
    )
    ran = cli(*words)
    assert (ran.code, ran.err) == (1, "")
    assert "1 MISSING" in ran.out
    *_, command = ran.out.splitlines()
    assert cli(*shlex.split(command.removeprefix("repeat with: atlas-ref "))).code == 1


@pytest.mark.clause("SWEEP-11")
def test_errors_that_no_number_holds_are_words(cli: Any, tmp_path: Path) -> None:
    words = (
        "sweep",
        "delta",
        "--impl",
        f"{HERE}:enormous",
        "--fix",
        "level=projected",
        "--cases",
        "2",
        "--keep",
        "0",
    )
    ran = cli(*words)
    assert (ran.code, ran.err) == (1, "")
    assert " inf " in ran.out
    assert cli(*words, "--json").json["failures"][0]["row"]["error"] == "inf"


@pytest.mark.slow
def test_a_folder_that_cannot_be_made_is_one_line(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    words = (
        "sweep",
        "delta",
        "--impl",
        f"{HERE}:no_pulse",
        "--convention",
        "spec",
        "--fix",
        "level=projected",
    )
    ran = cli(*words, "-o", tmp_path / "file" / "out")
    assert ran.code == 2
    assert "cannot be made" in ran.err


def test_in_python_bad_numbers_are_refused() -> None:
    for bad in ({"cases": 0}, {"jobs": 0}, {"keep": -1}, {"seed": -1}):
        with pytest.raises(CaseError, match="must be at least"):
            sweep("delta", kernel("right"), **bad)


@pytest.mark.clause("SRC-21", "SWEEP-5")
def test_what_an_implementation_does_not_have_is_skipped_and_counted(
    cli: Any, tmp_path: Path
) -> None:
    def lacking(case: Case) -> Answer:
        assert "in/reset" not in case.inputs
        assert "in/active" not in case.inputs
        return Answer(dict(evaluate(case).tensors))

    options: dict[str, Any] = {"cases": 30, "folder": tmp_path, "keep": 0, "choices": PLAIN}
    assert sweep("delta", ours, **options).skipped == {}
    found = sweep("delta", lacking, **options, without=["pulse", "reset"])
    assert found.exit_code == 0
    with_either = [
        case
        for number in range(30)
        if {"in/active", "in/reset"}
        & (case := draw_case("delta", 0, number, PLAIN).case.inputs).keys()
    ]
    assert found.counts == {"PASS": 30 - len(with_either), "NOT SUPPORTED": len(with_either)}
    assert found.skipped == {
        "pulse": sum("in/active" in inputs for inputs in with_either),
        "reset": sum("in/reset" in inputs for inputs in with_either),
    }
    with pytest.raises(CaseError, match="without: feature 'pulses' does not exist"):
        sweep("delta", lacking, **options, without=["pulses"])


@pytest.mark.clause("SRC-21", "SWEEP-9", "SWEEP-11")
def test_the_command_counts_what_it_skips_and_its_log_knows(cli: Any, tmp_path: Path) -> None:
    words = ["sweep", "delta", "--impl", f"{HERE}:right", "--convention", "spec", "--cases", "12"]
    words += ["--fix", "level=projected", "--resume", str(tmp_path / "log"), "--out", str(tmp_path)]
    ran = cli(*words, "--without", "pulse")
    assert ran.code == 0
    (line,) = (line for line in ran.out.splitlines() if line.startswith("skipped by --without: "))
    count = int(line.split()[3])
    assert line == f"skipped by --without: {count} with pulse"
    assert f"{count} NOT SUPPORTED" in ran.out
    assert cli(*words, "--without", "pulse", "--json").json["skipped"] == {"pulse": count}
    other = cli(*words)
    assert (other.code, other.out) == (2, "")
    assert 'without: the log is that of a sweep with ["pulse"], this one has []' in other.err


@pytest.mark.clause("SWEEP-3")
def test_a_value_may_have_commas_in_parentheses() -> None:
    from atlas_ref.cli.sweep import _values

    assert _values("(d_out, d_in)") == ["(d_out, d_in)"]
    assert _values("(d_in, d_out),(d_out, d_in)") == ["(d_in, d_out)", "(d_out, d_in)"]
    assert _values("float32,bfloat16,3") == ["float32", "bfloat16", 3]


@pytest.mark.clause("SWEEP-7")
def test_a_crash_of_another_kind_or_line_is_another_mistake() -> None:
    from atlas_ref.oracle.sweep.run import _kind

    one = _kind("crash: ValueError: too long: (2, 5, 5) (mine.py:4)")
    assert one == _kind("crash: ValueError: too long: (1, 1, 5) (mine.py:4)")
    others = ("crash: ValueError: too long (mine.py:9)", "crash: KeyError: 'k' (mine.py:4)")
    assert one not in {_kind(each) for each in (*others, "crash: killed by SIGSEGV", "slow")}
