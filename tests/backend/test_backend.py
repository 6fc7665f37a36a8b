"""Backends: the switch, its refusals, and the same numbers on each without copies in passing.

The stand-in has CuPy's manners (BACKEND-12); where CuPy and a GPU are there, they are tested too.
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tape
from atlas_ref import backend, evaluate
from atlas_ref import forms as parallel
from atlas_ref.forms import tnt
from atlas_ref.forms.support import FORMS
from atlas_ref.layers import projection
from atlas_ref.levels import block, buffers, learned, nested
from atlas_ref.levels.level import Level
from atlas_ref.levels.pulse import Conductor
from atlas_ref.oracle.cases import files
from atlas_ref.oracle.cases.case import Case, save
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.parts import feature_maps, memory_functions
from atlas_ref.rules import delta, hebbian, omega, sequence, titans_lmm
from tape import ops
from tests.support.close import EXACT, assert_close, reordered
from tests.support.command import Ran, cli
from tests.support.memory_functions import FUNCTIONS, drawn
from tests.support.standin.array import API, NAME, Refused, Strict
from tests.support.standin.record import described
from tests.support.strategies import cases, form_cases, repeatable
from tests.support.tnt import setup as tnt_setup

__all__ = ["cli"]

COMPUTED = [form for form in FORMS if form != "tnt"]


@pytest.fixture(params=[NAME, "cupy"])
def there(request: pytest.FixtureRequest) -> Iterator[backend.Backend]:
    """A backend in use that is not NumPy's."""
    if request.param == NAME and request.config.getoption("--backend") == "cupy":
        pytest.skip("the tests compute on CuPy")
    try:
        found = backend.named(request.param)
    except backend.BackendError as error:
        pytest.skip(str(error))
    with backend.used(request.param):
        yield found


def amplification(case: Case) -> float:
    """Amplification of a rounding error by a rule, as in tests/forms/test_forms.py."""
    return 1e7 if case.convention.has_newton_schulz else 1e4


# -- the switch ------------------------------------------------------------------------------------


@pytest.mark.clause("BACKEND-1")
def test_the_backend_in_use_is_the_last_named_else_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backend, "_current", [])
    monkeypatch.delenv(backend.VARIABLE, raising=False)
    assert backend.current().name == "numpy"
    monkeypatch.setattr(backend, "_current", [])
    monkeypatch.setenv(backend.VARIABLE, NAME)
    assert backend.current().name == NAME
    with backend.used("numpy"):
        assert backend.current().name == "numpy"
    assert backend.current().name == NAME
    assert backend.use("numpy") is backend.current()


@pytest.mark.clause("BACKEND-1", "BACKEND-3")
def test_a_backend_that_is_not_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, cli: Callable[..., Ran], tmp_path: Path
) -> None:
    with pytest.raises(
        backend.BackendError, match=r"^backend 'torch': expected one of numpy, cupy, strict$"
    ):
        backend.use("torch")
    monkeypatch.setattr(backend, "_made", {"numpy": backend.NUMPY})
    monkeypatch.setitem(__import__("sys").modules, "cupy", None)
    with pytest.raises(
        backend.BackendError,
        match=r"^backend cupy: CuPy is not installed \(.*\): .* -m pip install .*\[cuda\]\S* for CUDA 13",
    ):
        backend.use("cupy")
    save(tmp_path / "case.safetensors", *_parts(new(Request(rule="delta"))))
    for option, variable in ((["--backend", "cupy"], None), ([], "cupy")):
        monkeypatch.setattr(backend, "_current", [])
        if variable:
            monkeypatch.setenv(backend.VARIABLE, variable)
        ran = cli(
            "eval",
            tmp_path / "case.safetensors",
            "-o",
            tmp_path / "out.safetensors",
            *option,
            "--json",
        )
        assert ran.code == 2
        assert "CuPy is not installed" in ran.json["bad_input"][0]
        assert ran.err.count("\n") == 1


def _parts(case: Case) -> tuple[dict[str, Any], dict[str, Any]]:
    return case.header.plain(), dict(case.inputs)


def fake_cupy(devices: Any) -> Any:
    """The part of CuPy that the backend checks before use."""

    def count() -> int:
        if isinstance(devices, Exception):
            raise devices
        return int(devices)

    runtime = types.SimpleNamespace(getDeviceCount=count)
    return types.SimpleNamespace(
        ndarray=Strict, cuda=types.SimpleNamespace(runtime=runtime), asarray=None, asnumpy=None
    )


@pytest.mark.clause("BACKEND-3")
@pytest.mark.parametrize(
    ("devices", "words"),
    [
        (
            RuntimeError("cudaErrorInsufficientDriver: driver is too old\nmore"),
            r"no GPU can be used \(cudaErrorInsufficientDriver: driver is too old\)",
        ),
        (0, "no GPU was found"),
    ],
    ids=["driver", "none"],
)
def test_cupy_without_a_gpu_is_one_line(
    monkeypatch: pytest.MonkeyPatch, devices: Any, words: str
) -> None:
    monkeypatch.setattr(backend, "_made", {"numpy": backend.NUMPY})
    monkeypatch.setitem(__import__("sys").modules, "cupy", fake_cupy(devices))
    with pytest.raises(
        backend.BackendError, match=rf"^backend cupy: {words}; --backend numpy runs on the host$"
    ):
        backend.use("cupy")


@pytest.mark.clause("BACKEND-6")
@pytest.mark.parametrize("name", ["CUPY_TF32", "NVIDIA_TF32_OVERRIDE"])
def test_tf32_is_refused_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    core = types.SimpleNamespace(COMPUTE_TYPE_TF32=7, get_compute_type=lambda kind: 1)
    monkeypatch.setitem(__import__("sys").modules, "cupy._core._routines_linalg", core)
    backend.refuse_tf32({})
    backend.refuse_tf32({name: "0"})
    with pytest.raises(
        backend.BackendError,
        match=rf"^backend cupy: {name}=1 makes float32 products in TF32.*; unset it, or set ATLAS_REF_TF32=1",
    ):
        backend.refuse_tf32({name: "1"})
    backend.refuse_tf32({name: "1", "ATLAS_REF_TF32": "1"})
    core.get_compute_type = lambda kind: 7
    with pytest.raises(backend.BackendError, match="float32 products are set to TF32"):
        backend.refuse_tf32({})


@pytest.mark.clause("BACKEND-3", "BACKEND-6")
def test_cupy_has_what_is_asked_of_it() -> None:
    """The real CuPy, which can be imported without a GPU."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    products = importlib.import_module("cupy._core._routines_linalg")
    assert products.get_compute_type(np.dtype(np.float32)) != products.COMPUTE_TYPE_TF32
    backend.refuse_tf32({})
    assert callable(importlib.import_module("cupy.lib.stride_tricks").as_strided)
    assert all(
        callable(each)
        for each in (cupy.cuda.runtime.getDevice, cupy.asarray, cupy.asnumpy, cupy.zeros)
    )
    assert described() == API, (
        "cupy.json is of another version: python -m tests.support.standin.record"
    )


# -- one backend a call ----------------------------------------------------------------------------


def tokens_of(T: int = 5, d: int = 3, **more: Any) -> dict[str, Any]:
    draw = np.random.default_rng(T)
    made = {name: draw.standard_normal((2, T, d)) for name in ("k", "v", "q")}
    return {
        **made,
        "retain": draw.uniform(0.5, 1, (2, T)),
        "step_size": draw.uniform(0, 0.3, (2, T)),
        **more,
    }


@pytest.mark.clause("BACKEND-4")
def test_arrays_of_two_backends_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    here = tokens_of()
    with backend.used(NAME):
        away = backend.device(here)
        state = delta.start(delta.Config(d_in=3, d_out=3), (2,))
    with pytest.raises(
        ValueError, match=r"v: in numpy, but k is in strict; move it with backend\.device"
    ):
        sequence.Tokens(**{**away, "v": here["v"]})
    with pytest.raises(ValueError, match="retain: in numpy, but k is in strict"):
        sequence.Tokens(**{**away, "retain": here["retain"]})
    for form in ("sequential", "exact"):
        with pytest.raises(ValueError, match=r"state\.M: in strict, but k is in numpy"):
            parallel.run(
                delta.RULE, delta.Config(d_in=3, d_out=3), sequence.Tokens(**here), state, form=form
            )
    other = backend.Backend("other", Other, None, Other, Other, lambda *_: None)
    monkeypatch.setitem(backend._by_type, Other, other)
    with pytest.raises(
        backend.BackendError, match=r"^arrays of strict and of other: move them to one backend$"
    ):
        backend.of(away["k"], Other())


class Other:
    """An array of a third library."""


@pytest.mark.clause("BACKEND-4")
def test_a_value_out_of_its_range_is_named_with_its_place_on_any_backend(
    there: backend.Backend,
) -> None:
    for name, value, words in (
        ("k", np.nan, "every entry must be finite, found nan"),
        ("retain", 1.5, "entries must be at most 1, found 1.5"),
    ):
        made = tokens_of()
        made[name][1, 2] = value
        with pytest.raises(ValueError, match=rf"{name}: {words}.* at \(1, 2"):
            sequence.Tokens(**backend.device(made))


# -- the same numbers ------------------------------------------------------------------------------


@pytest.mark.clause("BACKEND-1", "BACKEND-9")
@pytest.mark.parametrize(
    "module",
    [omega, titans_lmm, delta, hebbian],
    ids=lambda module: module.__name__.rpartition(".")[2],
)
def test_parameters_and_states_are_made_there_with_the_same_bits(
    module: Any, there: backend.Backend
) -> None:
    config = module.Config(d_in=4, d_out=3, d_model=5, heads=2)
    made, state = projection.init(config, 7), module.start(config, (2,))
    with backend.used("numpy"):
        same, zero = projection.init(config, 7), module.start(config, (2,))
    assert isinstance(made.W_K, there.array)
    assert isinstance(state.M, there.array)
    assert backend.host(made) == same
    assert backend.host(state) == zero
    assert backend.device(same) == made


@pytest.mark.sample(3)
@pytest.mark.clause("BACKEND-2", "BACKEND-8", "BACKEND-11", "BACKEND-12")
@pytest.mark.parametrize("form", COMPUTED)
@settings(repeatable, max_examples=25)
@given(st.data())
def test_every_form_has_the_same_results_and_gradients_there(
    form: str, data: st.DataObject
) -> None:
    case, chunk = (
        data.draw(cases() if form == "sequential" else form_cases(form)),
        data.draw(st.sampled_from([None, 1, 3, 64])),
    )
    want = evaluate(case, grad=True, form=form, chunk=chunk).tensors
    with backend.used(NAME):
        got = evaluate(case, grad=True, form=form, chunk=chunk).tensors
    assert got.keys() == want.keys()
    for name, value in want.items():
        assert_close(name, got[name], value, reordered(1, amplification=amplification(case)))


@pytest.mark.clause("BACKEND-10", "BACKEND-11")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("form", ["sequential", "exact"])
def test_formats_are_rounded_alike(there: backend.Backend, form: str, dtype: str) -> None:
    case = new(Request(rule="titans_lmm", tokens=9, cotangent=True))
    got = evaluate(case, grad=True, dtype=dtype, form=form).tensors
    with backend.used("numpy"):
        want = evaluate(case, grad=True, dtype=dtype, form=form).tensors
    eps = {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}[dtype]
    for name, value in want.items():
        assert got[name].dtype == value.dtype
        gap = np.linalg.norm(got[name].astype(float) - value.astype(float))
        assert gap <= 16 * eps * max(np.linalg.norm(value.astype(float)), 1e-30), name


@pytest.mark.clause("BACKEND-2", "BACKEND-11")
def test_every_feature_map_computes_there(there: backend.Backend) -> None:
    x = np.random.default_rng(0).standard_normal((2, 5, 3))
    maps: list[Any] = [
        feature_maps.Identity(),
        feature_maps.Elu(),
        feature_maps.Polynomial(degree=3),
        feature_maps.Monomials(),
    ]
    maps += [
        feature_maps.Elementwise(degree=3),
        feature_maps.Linear(),
        feature_maps.RandomFourier(),
        feature_maps.Sketch(),
    ]
    for each in maps:
        parameters = feature_maps.init(each, 3, 1, features=4)
        want = feature_maps.apply(each, parameters, x)
        far = feature_maps.apply(each, backend.device(parameters), there.from_host(x))
        assert_close(each.kind, there.to_host(far), want, reordered(64))


@pytest.mark.clause("BACKEND-2", "BACKEND-11", "MEMFUN-3")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_memory_function_computes_there(name: str, there: backend.Backend) -> None:
    function, given = FUNCTIONS[name], drawn(FUNCTIONS[name], "mixed")
    far = backend.device(tuple(given))
    memory_functions.check(function, far[0], 4, 4)
    before = there.copies.to_host
    by_name, gx = memory_functions.gradient(function, *far)
    found = {"y": memory_functions.apply(function, *far[:2]), "x": gx, **by_name}
    assert there.copies.to_host == before
    want, of_x = memory_functions.gradient(function, *given)
    want |= {"y": memory_functions.apply(function, *given[:2]), "x": of_x}
    for each, value in found.items():
        assert_close(each, there.to_host(value), want[each], reordered(64))


@pytest.mark.clause("TAPE-13", "TAPE-19")
def test_the_error_function_computes_there_but_of_complex_arrays(there: backend.Backend) -> None:
    x = np.linspace(-3.0, 3.0, 13)
    value = ops.erf(there.from_host(x))
    assert isinstance(value, there.array)
    assert_close("erf", there.to_host(value), ops.erf(x), reordered(2))
    with pytest.raises(TypeError):
        ops.erf(there.from_host(x + 0.1j))


@pytest.mark.clause("BACKEND-2", "BACKEND-11")
@pytest.mark.parametrize("combine", ["softmax", "masked"])
def test_a_block_of_levels_computes_there(there: backend.Backend, combine: Any) -> None:
    sizes = {"d_model": 4, "heads": 2, "d_in": 3, "d_out": 3}
    levels = (
        Level(period=1, config=delta.Config(**sizes), form="exact"),
        Level(period=2, config=omega.Config(**sizes, window=2)),
    )
    config = block.Config(levels=levels, combine=combine)
    x, reset = np.random.default_rng(0).standard_normal((1, 9, 4)), np.arange(9) == 5

    def outcome(place: Callable[[Any], Any]) -> tuple[Any, Any]:
        params = block.init(config, 3)

        def loss(params: Any) -> Any:
            return ops.sum(
                block.run(config, params, place(x), block.start(config), reset=reset)[1] ** 2
            )

        return backend.host(loss(params)), backend.host(tape.grad(loss)(params).logits)

    got = outcome(there.from_host)
    with backend.used("numpy"):
        want = outcome(np.asarray)
    for name, far, near in zip(("loss", "gradient"), got, want, strict=True):
        assert_close(name, far, near, reordered(64, amplification=1e3))


@pytest.mark.clause("BACKEND-2", "BACKEND-11")
@pytest.mark.parametrize("kind", ["nested", "learned"])
def test_nested_levels_and_gates_that_decide_compute_there(
    there: backend.Backend, kind: str
) -> None:
    sizes = {"d_model": 4, "heads": 2, "d_in": 3, "d_out": 3}
    levels = (
        Level(period=1, config=delta.Config(**sizes)),
        Level(period=3, config=omega.Config(**sizes, window=2)),
    )
    own: Any = {"nested": nested, "learned": learned}[kind]
    config = own.Config(block=block.Config(levels=levels))
    x, reset = np.random.default_rng(0).standard_normal((2, 9, 4)), np.arange(9) == 5

    def outcome(place: Callable[[Any], Any]) -> tuple[Any, Any]:
        context = block.start(config.block, 2)
        params = (block if kind == "nested" else learned).init(
            config.block if kind == "nested" else config, 3
        )

        def loss(params: Any) -> Any:
            return ops.sum(own.run(config, params, place(x), context, reset=reset)[1] ** 2)

        gradient = tape.grad(loss)(params)
        of_block = gradient if kind == "nested" else gradient.block
        return backend.host(loss(params)), backend.host(of_block.levels[1].W_K)

    got = outcome(there.from_host)
    with backend.used("numpy"):
        want = outcome(np.asarray)
    for name, far, near in zip(("loss", "gradient"), got, want, strict=True):
        assert_close(name, far, near, reordered(64, amplification=1e3))


@pytest.mark.clause("BACKEND-2", "BACKEND-11", "TNT-10", "TNT-13")
@pytest.mark.parametrize(
    "axes",
    [{}, {"range": "sequence", "norm": "sum_of_norms"}, {"kind": "orthogonal"}],
    ids=["chunk", "sequence", "orthogonal"],
)
def test_tnt_computes_there(there: backend.Backend, axes: Any) -> None:
    of_local = {"projection": tnt.Projection(**axes)}
    setting = tnt_setup("titans_lmm", 2, tokens=70, of_local=of_local)

    def loss(leaves: Any) -> Any:
        return ops.sum(setting.run(leaves)[1] ** 2)

    def outcome(leaves: Any) -> tuple[Any, Any]:
        return backend.host(setting.run(leaves)[1]), backend.host(tape.grad(loss)(leaves))

    y, gradient = outcome(backend.device(setting.leaves))
    with backend.used("numpy"):
        want, near = outcome(setting.leaves)
    assert_close("y", y, want, reordered(70))
    for name, value in near["tokens"][0].items():
        assert_close(name, gradient["tokens"][0][name], value, reordered(70, amplification=8))


@pytest.mark.clause("BACKEND-2", "CMS-11", "CMS-12")
def test_gradients_wait_there_and_their_health_is_a_number(there: backend.Backend) -> None:
    conductor = Conductor(periods=(1, 4))
    x = np.random.default_rng(0).standard_normal((3, 2))

    def outcome(place: Callable[[Any], Any]) -> tuple[float, Any]:
        buffer, conducted = buffers.buffers(conductor, threshold=0.5, clip=True)[1], conductor
        applied, ratio = None, 0.0
        for step in range(5):
            pending = buffers.add(buffer, {"W": place(x * (step + 1))}, conducted.pulse, 1)
            buffer, applied, ratio = (
                pending.buffer,
                pending.applied or applied,
                pending.health.ratio,
            )
            conducted = conducted.advanced(1)
        return ratio, backend.host(applied)["W"]

    with pytest.warns(buffers.BufferWarning):
        (far, total), (near, want) = outcome(there.from_host), outcome(np.array)
    assert far == pytest.approx(near, rel=1e-12)
    assert_close("applied", total, want, reordered(64))


# -- no copies in passing --------------------------------------------------------------------------

NONE = {"newton_schulz": "none"}
SPAN = {**NONE, "reference": "chunk_start"}
STEPS: dict[str, Any] = {"newton_schulz": {"steps": 2}}

#: form, rule, convention: every way in which a form computes something on its own.
WAYS: list[tuple[str, str, dict[str, Any]]] = [
    ("sequential", "omega", STEPS),
    ("sequential", "omega", {**SPAN, "window_at_boundary": "carry"}),
    ("sequential", "omega", {**NONE, "order": "momentum_then_window"}),
    ("sequential", "delta", {}),
    ("chunkwise", "omega", SPAN),
    ("chunkwise", "omega", {**SPAN, "window_at_boundary": "carry"}),
    ("chunkwise", "omega", {**SPAN, "window_at_boundary": "carry", "decay": "before_error"}),
    ("chunkwise", "omega", {**SPAN, "window_at_boundary": "cut", "read": "chunk_start"}),
    ("chunkwise", "omega", {**STEPS, "reference": "chunk_start"}),
    ("exact", "omega", NONE),
    ("exact", "titans_lmm", {}),
    ("exact", "delta", {"decay": "before_error"}),
    ("exact", "omega", {**NONE, "order": "momentum_then_window"}),
    ("scan", "omega", NONE),
    ("scan", "hebbian", {}),
    ("atlas_parallel", "omega", {**STEPS, "reference": "chunk_start"}),
    ("kernel", "omega", STEPS),
]


def copies_of(
    form: str, rule: str, convention: dict[str, Any], T: int
) -> tuple[int, int, int, int]:
    """Number of copies to the device and back in a run and its backward, on arrays already
    there.
    """
    module = {"omega": omega, "titans_lmm": titans_lmm, "delta": delta, "hebbian": hebbian}[rule]
    stated = {"gate": "retain", **convention}
    sizes: dict[str, Any] = {"d_in": 3, "d_out": 3, "convention": stated}
    sizes |= {"window": 3, "span": 8} if rule == "omega" else {}
    made = tokens_of(T)
    if rule in ("omega", "titans_lmm"):
        made["momentum"] = made["retain"] * 0.9
    if rule == "hebbian":
        made.pop("step_size")
    config = module.Config(**sizes)
    tokens = sequence.Tokens(
        **backend.device(made), active=np.arange(T) % 8 != 3, reset=np.arange(T) == T - 2
    )
    state = module.start(config, (2,))
    counts = backend.current().copies

    def loss(tokens: Any) -> Any:
        return ops.sum(parallel.run(module.RULE, config, tokens, state, form=form)[1])

    before = (counts.to_device, counts.to_host)
    _, pullback = tape.vjp(loss, tokens)
    between = (counts.to_device, counts.to_host)
    pullback(backend.current().from_host(np.ones(())))
    return (
        between[0] - before[0],
        between[1] - before[1],
        counts.to_device - between[0] - 1,
        counts.to_host - between[1],
    )


@pytest.mark.clause("BACKEND-5")
@pytest.mark.parametrize(
    "way", WAYS, ids=lambda way: f"{way[0]}-{way[1]}-{'-'.join(map(str, way[2].values()))}"
)
def test_a_run_copies_masks_and_nothing_else_however_long_it_is(
    there: backend.Backend, way: Any
) -> None:
    tape.constants._kept.cache_clear()
    short = copies_of(*way, T=24)
    tape.constants._kept.cache_clear()
    long = copies_of(*way, T=48)
    assert short[1] == long[1] <= 2  # whether keys and queries are finite, before the feature map
    assert short[3] == long[3] == 0
    assert long[0] + long[2] <= 24  # masks and indices
    assert long[0] + long[2] <= short[0] + short[2] + 2


@pytest.mark.clause("BACKEND-5")
def test_copies_are_counted(there: backend.Backend) -> None:
    before = (there.copies.to_device, there.copies.to_host, there.copies.bytes)
    x = there.from_host(np.ones(4))
    assert there.from_host(x) is x
    assert there.to_host(x).tolist() == [1.0] * 4
    assert there.to_host(np.ones(2)).tolist() == [1.0] * 2
    assert (there.copies.to_device, there.copies.to_host, there.copies.bytes) == (
        before[0] + 1,
        before[1] + 1,
        before[2] + 64,
    )


@pytest.mark.clause("BACKEND-5")
def test_device_and_host_move_every_array_of_a_nest_and_no_setting(there: backend.Backend) -> None:
    nest = {
        "a": (np.ones(2), 0.5, None, "word"),
        "b": [np.zeros((1, 1))],
        "c": feature_maps.RandomFourier(bandwidth=2.0),
    }
    moved = backend.device(nest)
    assert isinstance(moved["a"][0], there.array)
    assert moved["a"][1:] == (0.5, None, "word")
    assert moved["c"] == nest["c"]
    back = backend.host(moved)
    assert_close("a", back["a"][0], nest["a"][0], EXACT)
    assert isinstance(back["b"][0], np.ndarray)


@pytest.mark.clause("BACKEND-7")
def test_arrays_of_a_state_are_protected_where_they_can_be(there: backend.Backend) -> None:
    M = np.zeros((3, 3))
    held = delta.start(delta.Config(d_in=3, d_out=3), M=there.from_host(M)).M
    assert isinstance(held, there.array)
    with backend.used("numpy"), pytest.raises(ValueError, match="read-only"):
        delta.start(delta.Config(d_in=3, d_out=3), M=M).M[0, 0] = 1.0


# -- commands --------------------------------------------------------------------------------------


@pytest.mark.clause("BACKEND-1", "BACKEND-8")
def test_commands_compute_there(
    cli: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: backend.Backend
) -> None:
    monkeypatch.setenv(backend.VARIABLE, "numpy")  # put back afterwards
    case, own, far = (tmp_path / f"{name}.safetensors" for name in ("case", "own", "far"))
    assert cli("new", "omega", "--tokens", 6, "--window", 2, "--cotangent", "-o", case).code == 0
    assert cli("eval", case, "--grad", "-o", own, "--backend", "numpy").code == 0
    before = there.copies.to_device
    assert cli("eval", case, "--grad", "-o", far, "--backend", there.name).code == 0
    assert there.copies.to_device > before
    want, got = files.read(str(own))[1], files.read(str(far))[1]
    assert want.keys() == got.keys()
    for name, value in want.items():
        assert_close(name, got[name], value, reordered(1, amplification=1e7))
    for command in (
        ["check", case, "--against", own],
        ["identify", case, "--out", own, "--depth", "0"],
    ):
        before = there.copies.to_device
        assert cli(*command, "--backend", there.name).code == 0
        assert there.copies.to_device > before, command


# -- the stand-in ----------------------------------------------------------------------------------


@pytest.mark.clause("BACKEND-12")
def test_the_stand_in_refuses_what_cupy_refuses() -> None:
    with backend.used(NAME) as there:
        x, host = there.from_host(np.ones((2, 2))), np.ones((2, 2))
        mask = x > 0.5
    refused: dict[str, Callable[[], Any]] = {
        "a NumPy array beside it": lambda: x + host,
        "on the left": lambda: host * x,
        "as a result": lambda: np.add(x, x, out=host),
        "conversion": lambda: np.asarray(x),
        "a branch": lambda: bool(x[0, 0]),
        "a number": lambda: float(x[0, 0]),
        "item": lambda: x[0, 0].item(),
        "a host index": lambda: x[np.array([0])],
        "a list as an index": lambda: x[[0, 1]],
        "a mask as an index": lambda: x[mask],
        "assignment of a host array": lambda: x.__setitem__(0, host[0]),
        "a parameter that CuPy lacks": lambda: np.max(x, initial=0.0),
        "a result of einsum": lambda: np.einsum("ij,ij->i", x, x, out=x[0]),
        "a result over an argument": lambda: np.matmul(x, x, out=x),
        "a function that CuPy lacks": lambda: np.lib.stride_tricks.sliding_window_view(x, 2),
        "a function that waits": lambda: np.nonzero(x),
        "a ufunc's mask": lambda: np.add(x, x, where=mask),
        "its flags": lambda: x.flags.writeable,
        "a dtype that CuPy lacks": lambda: x.astype(np.longdouble),
    }
    for what, attempt in refused.items():
        try:
            attempt()
        except (Refused, TypeError):
            continue
        pytest.fail(f"not refused: {what}")
    assert np.isnan(np.empty_like(x)._host).all()
    assert (x @ x + 1.0)[0, 0]._host == 3.0


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.host("negates strided NumPy arrays")
def test_a_negative_takes_the_entries_it_was_given_whatever_lies_between_them(kind: Any) -> None:
    """Guard against an error of `np.negative` in NumPy 2.4.

    It goes wrong for entries 8 float64 or 4 float32 apart whose results go to entries that are
    apart too.
    """
    for apart in range(1, 20):
        x = np.arange(1, 9 * apart + 1, dtype=kind).reshape(9, apart)[:, -1:]
        want = x * kind(-1)
        for room in (np.zeros((9, 3), kind)[:, 1:2], x):
            assert backend.negated(x, out=room) is room
            assert room.tobytes() == want.tobytes()


@pytest.mark.host("negates NumPy arrays")
def test_the_negative_of_a_complex_infinity_is_that_of_its_parts() -> None:
    x = np.array([complex(np.inf, 0.0), complex(1.0, -np.inf), complex(0.0, -2.0)])
    assert backend.negated(x, out=np.empty_like(x)).tobytes() == (-x).tobytes()


@pytest.mark.host("views of NumPy arrays")
@pytest.mark.parametrize("kind", [np.float32, np.complex128, object])
def test_a_strided_view_is_that_of_numpy_whatever_the_array_is(kind: Any) -> None:
    whole = np.arange(24).astype(kind).reshape(4, 6)
    locked = whole.copy()
    locked.flags.writeable = False
    for x in (whole, whole[:, 1:], whole.T, locked, np.zeros((0, 3), kind)):
        shape, strides = (2, 3) if x.size else (0, 3), (x.itemsize, x.itemsize)
        got, want = (
            backend.as_strided(x, shape, strides),
            np.lib.stride_tricks.as_strided(x, shape, strides),
        )
        assert got.tolist() == want.tolist()
        assert (got.dtype, got.strides, got.flags.writeable) == (
            want.dtype,
            want.strides,
            want.flags.writeable,
        )
        assert not x.size or np.shares_memory(got, x)


@pytest.mark.host("views of NumPy arrays")
def test_a_strided_view_beyond_a_contiguous_array_is_refused() -> None:
    with pytest.raises(ValueError, match="strides"):
        backend.as_strided(np.zeros(4), (2, 3), (16, 8))
