"""The recipe for a recurrence: its rule, its program, a hand that certifies it, and every command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.copied import ROOT, Copy

pytestmark = [pytest.mark.slow, pytest.mark.host("runs commands in a copy of the packages")]


class Added(NamedTuple):
    """A member like one that there is but for one term, in three files, and its kernel.

    Attributes:
        like: the member that it is like.
        rule, program, certified: text of the files of that one, and what stands in its place.
    """

    like: str
    rule: tuple[str, str]
    program: tuple[str, str]
    certified: tuple[str, str]
    kernel: str


#: h <- w (h + x) in place of w h + x.
ONE_STATE = Added(
    "hgrn",
    (
        "h = retain[..., t, :] * h + tokens.x[..., t, :]",
        "h = retain[..., t, :] * (h + tokens.x[..., t, :])",
    ),
    ("return way.scaled_sum(w, h, x)", "return way.scaled_sum(w, h, w * x)"),
    (
        'sane(hadamard(x.gate(t), h) + x.row("x", t))',
        'sane(hadamard(x.gate(t), h + x.row("x", t)))',
    ),
    """
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
""",
)

#: The mesa memory with the square of the weight in its sum of keys, a state of its own.
TWO_STATES = Added(
    "mesa",
    (
        "G = w * G + ops.outer(weighted, k)",
        "G = w * G + ops.outer(tokens.weight[..., t, None] * weighted, k)",
    ),
    (
        'G = hook("G", t, partial(_add, way), G, w, weight, k, k)',
        "def squared(x, w, b, *rows):\n"
        "                return _add(way, x, w, b * b, *rows)\n\n"
        '            G = hook("G", t, squared, G, w, weight, k, k)',
    ),
    (
        'sane(scaled(w, G) + x.row("k", t) @ key.T)',
        'sane(scaled(w, G) + scaled(x.row("weight", t), x.row("k", t) @ key.T))',
    ),
    """
import numpy as np


def late(case, inputs, early=False):
    inputs = {name: x.astype(float) for name, x in inputs.items()}
    k, v, q, b = (inputs[name] for name in ("k", "v", "q", "weight"))
    turned = case["parameters"].get("state_layout") == "(d_in, d_out)"
    lay = lambda x: np.swapaxes(x, -1, -2) if turned else x
    d, e = k.shape[-1], v.shape[-1]
    first = (
        inputs.get("G0", np.zeros((*k.shape[:-2], d, d))),
        lay(inputs["M0"]) if "M0" in inputs else np.zeros((*k.shape[:-2], e, d)),
    )
    G, M = first
    ridge, reads = inputs["ridge"][..., None] * np.eye(d), []
    for t in range(k.shape[-2]):
        G, M = first if "reset" in inputs and inputs["reset"][t] else (G, M)
        old = G, M
        if "active" not in inputs or inputs["active"][t]:
            w = np.exp(inputs["log_retain"][..., t, None, None])
            weight, key = b[..., t, None, None], k[..., t, None, :]
            G = w * G + weight**2 * k[..., t, :, None] * key
            M = w * M + weight * v[..., t, :, None] * key
        A, B = old if early else (G, M)
        reads.append((B @ np.linalg.solve(A + ridge, q[..., t, :, None]))[..., 0])
    return {"y": np.stack(reads, axis=-2), "G": G, "M": lay(M)}


def early(case, inputs):
    return late(case, inputs, early=True)
""",
)
FILES = [
    "atlas_ref/certify/recurrences/run.py",
    "atlas_ref/oracle/recurrences/late.py",
    "atlas_ref/oracle/recurrences/members.py",
    "atlas_ref/rules/recurrences/late.py",
]


def text_of(path: str, like: str, change: tuple[str, str]) -> str:
    """A file of a member with another term, under the other name."""
    text = (ROOT / path).read_text()
    before, after = change
    assert text.count(before) == 1
    return text.replace(before, after).replace(like, "late")


def certified(like: str, change: tuple[str, str]) -> str:
    """The function that certifies a member, with another term, under the other name."""
    text = (ROOT / "atlas_ref/certify/recurrences/run.py").read_text()
    start = text.index(f"def {like}(x: Sequence")
    function = text[start : text.index("\ndef ", start)]
    before, after = change
    assert function.count(before) == 1
    return function.replace(before, after).replace(f"def {like}(", "def late(").rstrip("\n")


def copy_with(added: Added, room: Path) -> Copy:
    """A copy with the member `late`."""
    found, like = Copy(room), added.like
    for folder, change in (("rules", added.rule), ("oracle", added.program)):
        path = f"atlas_ref/{folder}/recurrences/{like}.py"
        found.add(f"atlas_ref/{folder}/recurrences/late.py", text_of(path, like, change))
    members = "atlas_ref/oracle/recurrences/members.py"
    found.insert(members, f'    "{like}": {like}.MEMBER,', '    "late": late.MEMBER,')
    found.insert(
        members,
        "from atlas_ref.oracle.recurrences.member import Member",
        "from atlas_ref.oracle.recurrences import late",
    )
    run = "atlas_ref/certify/recurrences/run.py"
    function = certified(like, added.certified)
    found.insert(run, f"def {like}(x: Sequence, tokens: Any) -> Results:", function + "\n\n")
    found.insert(run, f'    "{like}": {like},', '    "late": late,')
    (room / "mine.py").write_text(added.kernel)
    return found


@pytest.mark.parametrize(
    ("added", "words"),
    [
        (ONE_STATE, "reads were of the state before their token"),
        (TWO_STATES, "queries read the memory before their token"),
    ],
    ids=["one state", "two states"],
)
def test_a_recurrence_is_four_files_and_has_every_command(
    added: Added, words: str, tmp_path: Path
) -> None:
    copy = copy_with(added, tmp_path)
    assert copy.changed() == FILES
    drawn = ("new", "recurrence", "--parameter", "member=late", "--cotangent")
    copy.run(*drawn, "-o", "case.safetensors")
    copy.run("eval", "case.safetensors", "--grad", "--trace", "-o", "out.safetensors")
    copy.run("check", "case.safetensors", "--against", "out.safetensors", "--json")
    copy.run("replay", "case.safetensors", "--trace", "out.safetensors", "--json")
    copy.run("tolerance", "case.safetensors:y", "--dtype", "float32", "--json")
    copy.run("certify", "case.safetensors", "-o", "exact.safetensors")
    copy.run("check", "case.safetensors", "--against", "exact.safetensors", "--json")
    asked = ("case.safetensors", "--impl", "mine:early", "--json")
    named = json.loads(copy.run("identify", *asked, expected=1))
    assert [each["words"] for each in named["as_if"]] == [words]
    sweep = ("sweep", "recurrence", "--fix", "member=late", "--cases", 6, "--json", "--impl")
    assert json.loads(copy.run(*sweep, "mine:late"))["counts"] == {"PASS": 6}
    assert "WRONG" in json.loads(copy.run(*sweep, "mine:early", expected=1))["counts"]
