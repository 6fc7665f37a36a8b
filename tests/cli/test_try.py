"""The command try: a function by its name, one screen, and the cases that repeat it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import atlas_ref
from atlas_ref.adapters import front, kernels, names
from atlas_ref.cli.front.trials import FIRST
from atlas_ref.oracle.cases.new import Request
from atlas_ref.oracle.cases.new import new as make_new
from tests.support import member_kernel
from tests.support.golden import assert_golden

ROOT = Path(__file__).parents[2]
FIGURE = re.compile(r"-?0x[0-9a-fp.+-]+|-?\d+\.\d+(?:e[+-]\d+)?|\d+e[+-]\d+(?= times)")
KERNELS = Path(__file__).with_name("try_kernels.py")


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """An empty folder with the kernels' file, which is the current one."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(KERNELS, tmp_path / "mine.py")
    return tmp_path


@pytest.mark.sample(3)
@pytest.mark.clause("SRC-28", "SRC-29", "SRC-30", "SRC-31")
@pytest.mark.parametrize(
    ("function", "code"),
    [
        ("chunk", 0),
        ("twice", 1),
        ("heads_first", 1),
        ("raises", 1),
        ("reads_alone", 0),
    ],
)
def test_one_screen_says_what_passes_what_is_wrong_and_what_was_not_asked(
    function, code, mine, cli
):
    ran = cli("try", "gated_delta", f"mine.py:{function}")
    assert (ran.code, ran.err) == (code, "")
    assert (mine / "try_gated_delta").is_dir() == (code == 1)
    assert_golden(f"try_{function}.txt", FIGURE.sub("#", ran.out))


@pytest.mark.clause("SRC-31")
def test_a_layout_that_is_stated_is_right(mine, cli):
    ran = cli("try", "gdn", "mine.py:heads_first", "--heads-first")
    assert (ran.code, "(B, H, T, D)" in ran.out) == (0, True)
    ran = cli("try", "gdn", "mine.py:value_first", "--like", "mlx", "--dtype", "float32")
    assert (ran.code, "g (gate of each head)" in ran.out) == (0, True)
    assert "NumPy, float32; layout of mlx: (B, T, H, D), states (V, K)" in ran.out
    ran = cli("try", "gdn", "mine.py:packed_heads")
    assert (ran.code, "layout of onnx: (B, T, H D), states (K, V)" in ran.out) == (0, True)


@pytest.mark.clause("SRC-28", "SRC-29")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gated_delta", "mine.py:unknown"], "argument block is none of gated_delta (q, k, v, g,"),
        (["gdn", "mine.py:without_beta"], "no argument beta, which gated_delta needs"),
        (["gdn", "mine.py:unnamed"], "argument tensors has no name to call it by"),
        (["gdn", "mine.py:nothing"], "no function nothing; it has chunk, twice"),
        (["gated_detla", "mine.py:chunk"], "did you mean gated_delta"),
        (["mamba2", "mine.py:chunk"], "write simple_gla"),
        (["gdn", "absent.py:chunk"], "absent.py: no such file"),
        (["gdn", "chunk"], "FILE.py:FUNCTION or PKG.MODULE:FUNCTION is needed, found 'chunk'"),
        (["gdn", "no_such_module:f"], "ModuleNotFoundError"),
        (["gdn", "mine.py:chunk", "--dtype", "int4"], "--dtype: dtype 'int4' is not available"),
        (["gdn", "mine.py:chunk", "--with", "mlx"], "no package mlx is installed"),
        (["gdn", "mine.py:chunk", "--keep", "mine.py"], "is a file, a folder is needed"),
        (["gdn", "ends.py:f"], "its import ended the process, exit code 7"),
    ],
)
def test_what_cannot_be_asked_is_one_line_that_says_what_to_write(words, said, mine, cli):
    if "--with" in words and importlib.util.find_spec(words[-1]):
        pytest.skip(f"{words[-1]} is installed, of which this says what is said without")
    (mine / "ends.py").write_text("import os\nos._exit(7)\n")
    ran = cli("try", *words)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert said in ran.err


@pytest.mark.clause("SRC-31")
def test_what_is_kept_repeats_the_verdict(mine, cli):
    words = ("try", "gdn", "mine.py:round_robin")
    done = cli(*words, "--json")
    assert (done.code, done.json["supports"][-1]["verdict"]) == (0, "NOT SUPPORTED")
    done = cli(*words, "--grouped", "--keep", "a folder", "--json")
    assert (done.code, done.json["kept"]) == (1, "a folder")
    verdicts = {each["feature"]: each["verdict"] for each in done.json["supports"]}
    assert verdicts["values of another width"] == "PASS"
    assert verdicts["2 value heads a key head"] == "WRONG"
    (shared,) = done.json["failures"]
    assert shared["command"] == (
        "PYTHONPATH='a folder' atlas-ref check 'a folder/shared_keys.safetensors' "
        "--impl try_adapter:shared"
    )
    assert "group_order=round_robin" in shared["nearest_convention"]
    again = [sys.executable, "-m", "atlas_ref.cli", "check", "a folder/shared_keys.safetensors"]
    path = os.pathsep.join(["a folder", str(ROOT)])
    ran = subprocess.run(
        [*again, "--impl", "try_adapter:shared", "--json"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert json.loads(ran.stdout)["failures"][0]["first_wrong"] == shared["first_wrong"]


@pytest.mark.clause("SRC-31")
def test_an_adapter_of_another_hand_is_not_written_over(mine, cli):
    assert cli("try", "gdn", "mine.py:reads_alone", "--keep", "kept").code == 0
    place = mine / "kept" / "try_adapter.py"
    assert place.read_text().startswith(FIRST)
    place.write_text("mine = None\n")
    ran = cli("try", "gdn", "mine.py:chunk", "--keep", "kept")
    assert (ran.code, place.read_text()) == (2, "mine = None\n")
    assert "would be lost: choose another --keep" in ran.err


def restated(signature, like):
    """A function of a member by the numbers of the rule, with the names of a library."""
    gate = "log_retain" if "log_retain" in names.LAYOUTS[like].called else "retain"
    tensors = [gate if name == "gate" else name for name in signature.tensors]
    tensors = dict(
        zip(front.argument_names(like, signature), ["q", "k", "v", *tensors], strict=False)
    )
    parameters = {"state_layout": names.LAYOUTS[like].state, **signature.settings}
    if names.LAYOUTS[like].unscaled and kernels.MEMBERS[signature.member].query_scale != 1:
        parameters["query_scale"] = 1

    def run(given):
        own = {**parameters, **({"steps": given["num_householder"]} if "steps" in tensors else {})}
        x = {tensors[name]: value for name, value in given.items() if name in tensors}
        x |= {"M0": given["M0"]} if given["M0"] is not None else {}
        steps = {"steps": x.pop("steps")} if "steps" in x else {}
        return member_kernel.Strict(signature.member, **own, **steps)(**x)

    state = names.LAYOUTS[like].called["M0"][0]
    space = {"run": run}
    taken = ", ".join(tensors)
    exec(f"def f({taken}, {state}=None): return run({{**locals(), 'M0': {state}}})", space)
    return space["f"]


@pytest.mark.clause("SRC-28", "SRC-29")
@pytest.mark.parametrize("like", ["fla", "mlx", "rwkv", "transformers", "ggml"])
@pytest.mark.parametrize("name", names.SIGNATURES)
def test_the_arguments_of_every_name_are_those_of_its_member(name, like, monkeypatch):
    for signature in names.SIGNATURES[name]:
        function = restated(signature, like)
        monkeypatch.setattr(front, "load", lambda place, own=function: own)
        kernel = front.of(name, "mine.py:f", like=like, arrays="numpy")
        assert kernel.member == signature.member
        parameters = {"member": signature.member, **kernel.settings}
        case = make_new(Request(rule="dplr", batch=2, parameters=parameters))
        inputs = {key.removeprefix("in/"): np.array(x) for key, x in case.inputs.items()}
        want = atlas_ref.evaluate(case).tensors
        found = kernel(case.header.plain(), inputs)
        assert found.keys() == {"y", "M"}
        for result, value in found.items():
            np.testing.assert_allclose(value, want[f"out/{result}"], rtol=1e-12, atol=1e-14)


@pytest.mark.clause("SRC-29")
@pytest.mark.parametrize(
    ("source", "framework"),
    [
        ("import torch", "torch"),
        ("from jax import numpy as jnp", "jax"),
        ("import mlx.core as mx", "mlx"),
        ("import numpy as np", "numpy"),
    ],
)
def test_arrays_are_those_that_the_file_of_a_function_imports(source, framework, monkeypatch):
    for name in ("torch", "jax", "jax.numpy", "mlx", "mlx.core"):
        module = type(sys)(name)
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules["jax"].numpy = sys.modules["jax.numpy"]
    sys.modules["mlx"].core = sys.modules["mlx.core"]
    mine = type(sys)("a_module_of_mine")
    monkeypatch.setitem(sys.modules, mine.__name__, mine)
    exec(f"{source}\ndef f(q, k, v): pass", vars(mine))
    assert front.framework(mine.f) == framework


@pytest.mark.clause("DPLRCASE-30")
@pytest.mark.parametrize(
    ("name", "member"),
    [("kda", "kda"), ("gdn", "gated_delta"), ("comba", "comba_decay_after_erase"), ("GLA", "gla")],
)
def test_new_takes_the_name_of_a_member(name, member, tmp_path, cli):
    case = tmp_path / "case.safetensors"
    ran = cli("new", name, "-o", case)
    assert (ran.code, ran.err.splitlines()[0]) == (0, f"{name}: member {member} of rule dplr")
    assert atlas_ref.load(case).header.plain()["parameters"]["member"] == member
    ran = cli("new", name, "-o", case, "--parameter", "member=rwkv6")
    assert (ran.code, f"is member {member}, found" in ran.err) == (2, True)
    ran = cli("new", "mamba2", "-o", case)
    assert (ran.code, "write simple_gla" in ran.err) == (2, True)


@pytest.mark.clause("SRC-30")
def test_a_kernel_that_knows_one_width_is_right_and_says_what_it_lacks(mine, cli):
    ran = cli("try", "gdn", "mine.py:one_width", "--json")
    verdicts = {each["feature"]: each["verdict"] for each in ran.json["supports"]}
    assert ran.code == 0
    assert verdicts["values of another width"] == "NOT SUPPORTED"
    assert verdicts["2 value heads a key head"] == "PASS"


@pytest.mark.clause("SRC-30")
@pytest.mark.parametrize(
    ("kernel", "code", "feature", "verdict", "why"),
    [
        ("keeps_state", 1, "65 tokens", "FAILED", "no final state came back"),
        ("own_scale", 0, "another scale of reads", "PASS", ""),
        ("no_scale", 1, "another scale of reads", "WRONG", ""),
        ("as_dict", 1, "65 tokens", "FAILED", "returned a dict; o, or (o, final state), is needed"),
        ("state_alone", 1, "65 tokens", "FAILED", "o has shape (1, 2, 8, 8), expected that of v"),
        ("one_sequence", 1, "packed sequences", "FAILED", "is cu_seqlens heeded?"),
    ],
)
def test_what_comes_back_is_looked_at(kernel, code, feature, verdict, why, mine, cli):
    ran = cli("try", "gdn", f"mine.py:{kernel}", "--json", "--no-nearest")
    found = {each["feature"]: (each["verdict"], each["why"]) for each in ran.json["supports"]}
    assert (ran.code, found[feature][0]) == (code, verdict)
    assert why in found[feature][1]


@pytest.mark.clause("SRC-31")
def test_a_layout_that_is_wrong_is_told_too(mine, cli):
    ran = cli("try", "gdn", "mine.py:chunk", "--heads-first", "--no-nearest")
    assert ran.code == 1
    assert "without --heads-first it would be right there" in ran.out


@pytest.mark.clause("SRC-31")
def test_the_case_that_is_shown_says_what_was_found_in_another():
    from atlas_ref.cli.front.asking import _first_told
    from atlas_ref.oracle.report.failures import Failure

    blank = dict.fromkeys(Failure._fields, None)
    put_off = Failure(**{**blank, "case": "a/plain.safetensors", "nearest": "not searched: b was"})
    found = put_off._replace(case="a/long.safetensors", nearest="as if so")
    told = _first_told([put_off, found])
    assert [each.nearest for each in told] == ["as if so (searched in long)", "as if so"]
    assert _first_told([found, put_off]) == [found, put_off]
    assert _first_told([put_off, put_off]) == [put_off, put_off]


@pytest.mark.clause("SRC-29")
def test_a_partial_function_has_the_arrays_of_what_it_calls(monkeypatch):
    import functools

    def kernel(q, k, v, g, beta, scale):
        return None

    module = type(sys)("of_torch")
    module.torch = type(sys)("torch")
    kernel.__module__ = "of_torch"
    monkeypatch.setitem(sys.modules, "of_torch", module)
    assert front.framework(functools.partial(kernel, scale=1.0)) == "torch"


@pytest.mark.clause("SRC-31")
def test_a_second_run_leaves_nothing_of_the_first_and_repeats_its_timeout(mine, cli):
    stale = mine / "try_gated_delta" / "gradients.safetensors"
    assert cli("try", "gdn", "mine.py:twice", "--no-nearest").code == 1
    shutil.copy(stale.parent / "plain.safetensors", stale)
    ran = cli("try", "gdn", "mine.py:twice", "--no-nearest", "--timeout", "20", "--json")
    assert not stale.exists()
    assert ran.json["failures"][0]["command"].endswith("try_adapter:mine --timeout 20")
