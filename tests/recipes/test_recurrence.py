"""The recipe for a recurrence: its rule, its program, a hand that certifies it, and every command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.copied import ROOT, Copy

pytestmark = [pytest.mark.slow, pytest.mark.host("runs commands in a copy of the packages")]

#: Files of a member that is like hgrn but for one term: h <- w (h + x) in place of w h + x.
RULE = (
    "h = retain[..., t, :] * h + tokens.x[..., t, :]",
    "h = retain[..., t, :] * (h + tokens.x[..., t, :])",
)
PROGRAM = ("return way.scaled_sum(w, h, x)", "return way.scaled_sum(w, h, w * x)")
CERTIFIED = '''def late(x: Sequence, tokens: Any) -> Results:
    """h <- w (h + x), y = h."""
    given = x.inputs.optional("in/h0", *x.index)
    h = first = zeros(x.d_out, 1) if given is None else given
    reads = []
    for t, starts, active in tokens:
        h = first if starts else h
        h = sane(hadamard(x.gate(t), h + x.row("x", t))) if active else h
        reads.append(h)
    return {"out/y": reads, "out/h": h}


'''
KERNEL = """
import numpy as np


def late(case, inputs):
    x, gates = inputs["x"], np.exp(inputs["log_retain"])
    first = inputs.get("h0", np.zeros_like(x[..., 0, :]))
    h, reads = first, []
    for t in range(x.shape[-2]):
        h = first if "reset" in inputs and inputs["reset"][t] else h
        if "active" not in inputs or inputs["active"][t]:
            h = gates[..., t, :] * (h + x[..., t, :])
        reads.append(h)
    return {"y": np.stack(reads, axis=-2), "h": h}


def early(case, inputs):
    right = late(case, inputs)
    first = inputs.get("h0", np.zeros_like(right["h"]))
    before = np.concatenate([first[..., None, :], right["y"][..., :-1, :]], axis=-2)
    return {**right, "y": before}
"""
FILES = [
    "atlas_ref/certify/recurrences/run.py",
    "atlas_ref/oracle/recurrences/late.py",
    "atlas_ref/oracle/recurrences/members.py",
    "atlas_ref/rules/recurrences/late.py",
]


def text_of(path: str, change: tuple[str, str]) -> str:
    """The file of hgrn with another term, under the other name."""
    text = (ROOT / path).read_text()
    before, after = change
    assert text.count(before) == 1
    return text.replace(before, after).replace("hgrn", "late")


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    """A copy with the member `late`."""
    made = Copy(tmp_path)
    made.add(
        "atlas_ref/rules/recurrences/late.py", text_of("atlas_ref/rules/recurrences/hgrn.py", RULE)
    )
    path = "atlas_ref/oracle/recurrences/hgrn.py"
    made.add("atlas_ref/oracle/recurrences/late.py", text_of(path, PROGRAM))
    members = "atlas_ref/oracle/recurrences/members.py"
    made.insert(members, '    "hgrn": hgrn.MEMBER,', '    "late": late.MEMBER,')
    made.insert(
        members,
        "from atlas_ref.oracle.recurrences.member import Member",
        "from atlas_ref.oracle.recurrences import late",
    )
    run = "atlas_ref/certify/recurrences/run.py"
    made.insert(
        run, "def hgrn(x: Sequence, tokens: Any) -> Results:", CERTIFIED.rstrip("\n") + "\n\n"
    )
    made.insert(run, '    "hgrn": hgrn,', '    "late": late,')
    (tmp_path / "mine.py").write_text(KERNEL)
    return made


def test_a_recurrence_is_four_files_and_has_every_command(copy: Copy) -> None:
    assert copy.changed() == FILES
    words = ("new", "recurrence", "--parameter", "member=late", "--cotangent")
    copy.run(*words, "-o", "case.safetensors")
    copy.run("eval", "case.safetensors", "--grad", "--trace", "-o", "out.safetensors")
    copy.run("check", "case.safetensors", "--against", "out.safetensors", "--json")
    copy.run("replay", "case.safetensors", "--trace", "out.safetensors", "--json")
    copy.run("tolerance", "case.safetensors:y", "--dtype", "float32", "--json")
    copy.run("certify", "case.safetensors", "-o", "exact.safetensors")
    copy.run("check", "case.safetensors", "--against", "exact.safetensors", "--json")
    asked = ("case.safetensors", "--impl", "mine:early", "--json")
    named = json.loads(copy.run("identify", *asked, expected=1))
    assert [each["words"] for each in named["as_if"]] == [
        "reads were of the state before their token"
    ]
    sweep = ("sweep", "recurrence", "--fix", "member=late", "--cases", 6, "--json", "--impl")
    assert json.loads(copy.run(*sweep, "mine:late"))["counts"] == {"PASS": 6}
    assert "WRONG" in json.loads(copy.run(*sweep, "mine:early", expected=1))["counts"]
