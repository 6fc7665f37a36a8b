"""The Triton ops of fla-core as answers to cases: each row names what exists, and where torch is, answers."""

import importlib
import importlib.util
import types
from pathlib import Path

import pytest

from benchmarks.survey.field.packages import packages

PUBLIC = Path(__file__).parents[2] / "examples" / "adapters" / "public"

#: Ops that take bfloat16 alone, which Triton's interpreter does not compute.
ON_A_GPU = {"delta", "gated_delta_product"}


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(str(PUBLIC.parent))
    monkeypatch.syspath_prepend(str(PUBLIC))
    return importlib.import_module("of_fla_triton")


def test_every_op_is_of_a_member_and_is_asked_in_the_survey_or_needs_a_gpu(module):
    kernels = importlib.import_module("kernels")
    assert {getattr(module, name).member for name in module.NAMES} <= set(kernels.MEMBERS)
    (fla,) = [package for package in packages() if package.name == "fla-core"]
    asked = {
        entry.adapter.partition(":")[2]: entry.target.removeprefix("dplr-")
        for entry in fla.entries
        if entry.adapter.startswith("of_fla_triton:")
    }
    members = {name: getattr(module, name).member for name in set(module.NAMES) - ON_A_GPU}
    assert asked == members


def test_what_kernels_hold_under_other_names_is_found_late(module, monkeypatch):
    """Names bound before the interpreter stands in for them lead to what stands in; counters are
    tensors.
    """

    def gather():
        return "compiled"

    language = types.SimpleNamespace(gather=gather)
    op = types.SimpleNamespace(gather=gather, other=len)
    interpreter = types.SimpleNamespace(_implicit_cvt=lambda number: ("tensor", number))
    known = {"triton.language": language, "triton.runtime.interpreter": interpreter}
    monkeypatch.setattr(module, "import_module", known.__getitem__)
    monkeypatch.setitem(module.sys.modules, "fla.ops.made_up", op)
    module.interpretable()
    language.gather = lambda: "interpreted"
    assert op.gather() == "interpreted"
    assert op.other is len
    assert list(op.range(1, 3)) == [("tensor", 1), ("tensor", 2)]


def test_without_a_gpu_an_op_says_what_it_lacks(module):
    if importlib.util.find_spec("torch") is not None:
        pytest.skip("torch is installed: make survey asks the ops")
    with pytest.raises(ModuleNotFoundError, match="torch"):
        module.kda({}, {})
