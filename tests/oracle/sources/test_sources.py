"""Sources of results: files and functions, and the legal contents of an answer."""

import sys
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.identify.report import results_of
from atlas_ref.oracle.judge import answers
from atlas_ref.oracle.judge.answers import Garbage
from atlas_ref.oracle.replay.replay import replay_file
from atlas_ref.oracle.replay.trace import trace
from atlas_ref.oracle.sources import sources
from tests.support import implementations
from tests.support.casefiles import some, written
from tests.support.close import EXACT, assert_close


@pytest.fixture
def case():
    return atlas_ref.make(*some("delta"))


@pytest.fixture
def results(case):
    return dict(atlas_ref.evaluate(case).tensors)


def verdicts(case, source, **options):
    return {row.tensor: row.verdict for row in atlas_ref.check(case, source=source, **options)}


class OnlyDlpack:
    """An array of a library unknown to NumPy."""

    def __init__(self, value):
        self.value = value

    def __dlpack__(self, **options):
        return self.value.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.value.__dlpack_device__()


class OnlyArray:
    def __init__(self, value):
        self.value = value

    def __array__(self, dtype=None, copy=None):
        return self.value


@pytest.mark.clause("SRC-7")
@pytest.mark.parametrize("wrap", [np.asarray, OnlyDlpack, OnlyArray])
@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16])
def test_whatever_hands_over_its_numbers_is_an_array_in_its_own_dtype(wrap, kind):
    value = np.arange(6, dtype=kind).reshape(2, 3)
    assert_close("y", answers.array("y", wrap(value)), value, EXACT)


@pytest.mark.clause("SRC-7")
def test_bfloat16_stays_bfloat16():
    value = np.linspace(-1, 1, 6).astype(ml_dtypes.bfloat16).reshape(2, 3)
    for wrapped in (value, OnlyArray(value)):
        assert_close("y", answers.array("y", wrapped), value, EXACT)


@pytest.mark.clause("SRC-7")
@pytest.mark.parametrize("kind", ["float64", "float32", "bfloat16", "float16"])
def test_a_tensor_of_pytorch_keeps_its_dtype_whether_a_gradient_is_recorded_or_not(kind):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    want = np.linspace(-1, 1, 6).reshape(2, 3).astype(getattr(ml_dtypes, kind, kind))
    value = torch.from_numpy(want.astype(np.float64)).to(getattr(torch, kind))
    for each in (
        value,
        value.clone().requires_grad_(),
        value.T.contiguous().T,
        torch.nn.Parameter(value),
    ):
        assert_close("y", answers.array("y", each), want, EXACT)


@pytest.mark.clause("SRC-7")
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
def test_an_array_of_jax_keeps_its_dtype(kind):
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    want = np.linspace(-1, 1, 6).reshape(2, 3).astype(getattr(ml_dtypes, kind, kind))
    assert_close("y", answers.array("y", jax.numpy.asarray(want)), want, EXACT)


@pytest.mark.clause("SRC-7", "SRC-8")
@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([1.0], "y: an array with __array__ or __dlpack__ is needed, found list"),
        (1.0, "y: an array with __array__ or __dlpack__ is needed, found float"),
        (None, "y: an array with __array__ or __dlpack__ is needed, found NoneType"),
        (np.array(["a"]), "y: an array of numbers is needed, found dtype <U1"),
        (np.array([None]), "y: an array of numbers is needed, found dtype object"),
        (OnlyArray(3), "y: cannot be read as an array: ValueError: "),
        (OnlyDlpack(SimpleNamespace()), "y: cannot be read as an array: AttributeError: "),
    ],
)
def test_what_holds_no_numbers_is_garbage(value, words):
    with pytest.raises(Garbage) as found:
        answers.array("y", value)
    assert str(found.value).startswith(words)


@pytest.mark.clause("SRC-6")
def test_names_are_completed_and_unknown_ones_refused():
    for name in ("y", "M", "window_k", "X", "phi"):
        assert answers.full_name(name) == f"out/{name}"
    for name in ("out/y", "grad/k", "grad/param/W_K", "trace/S", "trace_grad/S", "chunk/A"):
        assert answers.full_name(name) == name
    for name in ("Y", "out/Y", "grad/y_bar", "in/k", "grad/", ""):
        with pytest.raises(
            atlas_ref.CaseError, match=r"no rule has such a result; results are y, M, S, "
        ):
            answers.full_name(name)


@pytest.mark.clause("SRC-6")
def test_a_function_gets_the_header_and_arrays_of_its_own(case):
    seen = {}

    def look(header, inputs):
        seen.update(header=header, inputs=inputs)
        return implementations.changes_its_inputs(header, inputs)

    before = {name: value.copy() for name, value in case.inputs.items()}
    answer = sources.respond(look, case)
    assert set(seen["inputs"]) == {name.removeprefix("in/") for name in case.inputs}
    assert answer.tensors is not None
    for name, value in before.items():
        assert_close(name, case.inputs[name], value, EXACT)
    assert case.header.plain()["rule"] == "delta"


@pytest.mark.clause("SRC-6", "CASE-25")
def test_a_right_function_passes_and_a_wrong_one_does_not(case):
    assert verdicts(case, sources.function("implementations:right")) == {
        "out/y": "PASS",
        "out/M": "PASS",
    }
    assert verdicts(case, sources.function("implementations:wrong_from_3")) == {
        "out/y": "WRONG",
        "out/M": "WRONG",
    }
    assert verdicts(case, sources.function("implementations:memory_alone")) == {
        "out/y": "MISSING",
        "out/M": "PASS",
    }
    assert verdicts(case, sources.function("implementations:right"), only=["M"]) == {
        "out/M": "PASS"
    }


@pytest.mark.clause("SRC-1", "SRC-8", "CASE-25")
@pytest.mark.parametrize(
    ("name", "verdict", "why"),
    [
        ("raises", "FAILED", "crash: ValueError: the kernel wants (implementations.py:{line})"),
        ("leaves", "FAILED", "crash: SystemExit: 5 (implementations.py:{line})"),
        ("unsupported", "NOT SUPPORTED", "the implementation does not support this case"),
        ("a_list", "FAILED", "garbage: a dict of arrays is needed, found list"),
        (
            "lists_inside",
            "FAILED",
            "garbage: y: an array with __array__ or __dlpack__ is needed, found list",
        ),
        ("words", "FAILED", "garbage: y: an array of numbers is needed, found dtype <U1"),
    ],
)
def test_what_goes_wrong_inside_a_function_is_a_verdict(name, verdict, why, case):
    (row,) = atlas_ref.check(case, source=sources.function(f"implementations:{name}"))
    line = getattr(implementations, name).__code__.co_firstlineno + 1
    assert (row.tensor, row.verdict, row.why) == ("-", verdict, why.format(line=line))


@pytest.mark.clause("SRC-8")
def test_names_that_are_no_strings_and_results_handed_over_twice_are_garbage():
    for answer, words in (
        ({3: np.zeros(1)}, "names of results are strings, found 3"),
        ({"y": np.zeros(1), "out/y": np.zeros(1)}, "twice"),
    ):
        with pytest.raises(Garbage, match=words):
            answers.tensors(answer)


@pytest.mark.clause("SRC-1", "SRC-6", "CASE-23")
def test_the_name_of_a_result_that_does_not_exist_is_bad_input_and_says_what_does(case):
    with pytest.raises(
        atlas_ref.CaseError, match=r"^case: Y: no rule has such a result; results are y, M, S, "
    ):
        atlas_ref.check(case, source=sources.function("implementations:unknown_name"))
    with pytest.raises(
        atlas_ref.CaseError, match=r"^case: out/S: not a result of this case; it has out/y, out/M$"
    ):
        atlas_ref.check(case, source=sources.function("implementations:of_another_rule"))


@pytest.mark.clause("SRC-6")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("implementations", "pkg.module:function is needed, found 'implementations'"),
        (":right", "pkg.module:function is needed, found ':right'"),
        ("implementations:", "pkg.module:function is needed, found 'implementations:'"),
        ("no_such_module:f", "ModuleNotFoundError: No module named 'no_such_module'"),
        (
            "implementations:no_such",
            "AttributeError: module 'implementations' has no attribute 'no_such'",
        ),
        ("implementations:not_a_function", "a function is needed, found int"),
        (
            "implementations:right.deeper",
            "AttributeError: 'function' object has no attribute 'deeper'",
        ),
    ],
)
def test_a_function_that_cannot_be_imported_is_bad_input(name, words):
    with pytest.raises(atlas_ref.CaseError) as found:
        sources.function(name)
    assert str(found.value).endswith(words)
    assert "\n" not in str(found.value)


@pytest.mark.clause("SRC-6")
def test_a_module_that_fails_or_leaves_while_it_is_imported_is_bad_input(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "leaving_module.py").write_text("raise SystemExit('no device')")
    (tmp_path / "broken_module.py").write_text("def f(:")
    for name, words in (
        ("leaving_module", "SystemExit: no device"),
        ("broken_module", "SyntaxError: "),
    ):
        with pytest.raises(atlas_ref.CaseError, match=f"^impl {name}:f: {words}"):
            sources.function(f"{name}:f")


@pytest.mark.clause("SRC-2", "SRC-3", "CASE-23")
def test_results_in_a_file_or_in_a_folder_are_compared(case, results, tmp_path):
    header, tensors = some("delta")
    case = atlas_ref.load(written(tmp_path / "one.safetensors", header, tensors))
    (tmp_path / "out").mkdir()
    alone = written(tmp_path / "out" / "one.safetensors", header, results)
    assert verdicts(case, sources.against(alone)) == {"out/y": "PASS", "out/M": "PASS"}
    assert verdicts(case, sources.against(tmp_path / "out")) == {"out/y": "PASS", "out/M": "PASS"}
    written(alone, header, {**results, "out/y": results["out/y"] + 1e-6, "trace/M": np.zeros(3)})
    assert verdicts(case, sources.against(tmp_path / "out")) == {"out/y": "WRONG", "out/M": "PASS"}
    alone.unlink()
    (row,) = atlas_ref.check(case, source=sources.against(tmp_path / "out"))
    assert (row.verdict, row.why) == ("MISSING", f"{tmp_path / 'out'} holds no one.safetensors")
    with pytest.raises(atlas_ref.CaseError, match="no such file or folder"):
        sources.against(tmp_path / "absent")


@pytest.mark.clause("SRC-3")
@pytest.mark.parametrize("kind", [np.float64, np.float32, ml_dtypes.bfloat16])
def test_inputs_that_came_back_must_be_those_of_the_case_in_any_precision(
    kind, case, results, tmp_path
):
    header, tensors = some("delta")
    back = {
        name: value.astype(kind) if value.dtype.kind == "f" else value
        for name, value in tensors.items()
    }
    file = written(tmp_path / "mine.safetensors", header, {**back, **results})
    assert sources.read_results(file, case).keys() == results.keys()
    other = {**back, "in/q": back["in/q"][..., ::-1, :].copy()}
    written(file, header, {**other, **results})
    with pytest.raises(
        atlas_ref.CaseError, match=r"in/q: differs from the case's: results of another case$"
    ):
        sources.read_results(file, case)
    written(file, header, {**back, "in/extra": np.zeros(2), **results})
    with pytest.raises(atlas_ref.CaseError, match=r"in/extra: differs from the case's"):
        sources.read_results(file, case)


@pytest.mark.clause("SRC-3", "IDENT-1", "REPLAY-9")
@pytest.mark.parametrize("kind", ["float64", "float32", "bfloat16", "float16", "int8", "complex64"])
def test_inputs_that_come_back_are_the_cases_own_in_every_floating_format(kind, tmp_path):
    """Inputs returned with the results, accepted in every floating format.

    The rule is that of all result files; numbers cut to integers are other inputs.
    """
    header, tensors = some("delta")
    case = atlas_ref.make(header, tensors, name="case")
    back = {"in/k": tensors["in/k"].astype(ml_dtypes.bfloat16 if kind == "bfloat16" else kind)}
    file = written(
        tmp_path / "file", header, back | dict(atlas_ref.evaluate(case).tensors) | trace(case)
    )
    for read in (
        sources.read_results,
        lambda path, case: results_of(case, sources.against(path)).tensors,
        lambda path, case: replay_file(case, path, nearest=False),
    ):
        if kind in ("int8", "complex64"):
            with pytest.raises(atlas_ref.CaseError, match="in/k: "):
                read(file, case)
        else:
            assert read(file, case)


@pytest.mark.clause("SRC-3")
def test_a_file_of_another_rule_is_refused(case, results, tmp_path):
    file = written(tmp_path / "mine.safetensors", {"schema": 1, "rule": "hebbian"}, results)
    with pytest.raises(
        atlas_ref.CaseError,
        match=r"rule: the case has delta, found hebbian: results of another case$",
    ):
        sources.read_results(file, case)


@pytest.mark.clause("SRC-10", "CASE-22")
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_inputs_arrive_rounded_in_the_dtype_that_is_asked_for(dtype, case):
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    seen = {}

    def look(header, inputs):
        seen.update(inputs)
        return implementations.in_its_dtype(header, inputs)

    rows = atlas_ref.check(case, source=lambda each: sources.respond(look, each), dtype=dtype)
    assert {row.tensor: row.verdict for row in rows} == {"out/y": "PASS", "out/M": "PASS"}
    for name, value in seen.items():
        want = case.inputs[f"in/{name}"]
        assert_close(
            name,
            value,
            want.astype(np.float32).astype(kind) if kind.itemsize < 4 else want.astype(kind),
            EXACT,
        )


@pytest.mark.clause("SRC-10")
def test_a_precision_that_does_not_exist_and_an_input_beyond_it_are_bad_input(case):
    for dtype in ("float8", "int64", ""):
        with pytest.raises(
            atlas_ref.CaseError, match="is not available; float64, float32, bfloat16, float16 are"
        ):
            atlas_ref.check(case, source=sources.function("implementations:right"), dtype=dtype)
    large = case.replaced(inputs={**case.inputs, "in/M0": 1e6 + case.inputs["in/M0"]})
    with pytest.raises(
        atlas_ref.CaseError, match=r"in/M0: has entries up to 1e\+06, which float16 cannot hold$"
    ):
        atlas_ref.check(large, source=sources.function("implementations:right"), dtype="float16")


@pytest.mark.clause("SRC-10")
def test_a_result_is_judged_by_its_own_dtype_unless_one_is_asked_for(case):
    own = sources.function("implementations:brain")
    assert verdicts(case, own) == {"out/y": "PASS", "out/M": "PASS"}
    assert verdicts(case, own, dtype="bfloat16") == {"out/y": "PASS", "out/M": "PASS"}
    assert verdicts(case, own, dtype="float32") == {"out/y": "WRONG", "out/M": "WRONG"}
    assert verdicts(case, sources.function("implementations:single")) == {
        "out/y": "PASS",
        "out/M": "PASS",
    }
    assert verdicts(case, sources.function("implementations:single"), dtype="float64") == {
        "out/y": "WRONG",
        "out/M": "WRONG",
    }


@pytest.mark.clause("SRC-11")
def test_an_implementation_gets_the_case_under_the_convention_that_is_asked_for(case):
    seen = []

    def look(header, inputs):
        seen.append(header["convention"])
        return implementations.right(header, inputs)

    rows = atlas_ref.check(
        case, source=lambda each: sources.respond(look, each), convention={"read": "before"}
    )
    assert seen == [{"preset": "spec", "read": "before"}]
    assert {row.verdict for row in rows if row.tensor == "out/y"} == {"WRONG"}
