"""The cases that a function of a known name is asked: a feature each. Specified in specs/sources.md."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from atlas_ref.adapters import kernels, names

if TYPE_CHECKING:
    from atlas_ref.oracle.cases.case import Case

#: Module of the adapter that is written beside the cases, and the first line of its file.
ADAPTER = "try_adapter"
FIRST = '"""An adapter that `atlas-ref try` wrote, and writes anew."""'

#: Seconds for the import of a function, as of `--impl`.
IMPORT = 600.0


class Trial(NamedTuple):
    """A case with one feature more than a plain one.

    Attributes:
        name: of its file.
        feature: in words, as the table of what a kernel supports has it.
        request: what `atlas_ref.oracle.cases.new.Request` has of it; scale, for another one of reads.
        kernel: of the adapter, which is asked: mine, or shared, which takes fewer heads of keys.
        needs: tensor that an argument takes, without which it is not asked.
        lacked: verdicts that tell of a feature that the kernel has not, since no argument says it.
    """

    name: str
    feature: str
    request: dict[str, Any]
    kernel: str = "mine"
    needs: str = ""
    lacked: tuple[str, ...] = ()


#: The cases in the order in which they are asked.
TRIALS = (
    Trial("plain", "2 rows, 2 heads, 8 tokens", {"state": False, "batch": 2}),
    Trial("first_state", "a first state", {"batch": 2}, needs="M0"),
    Trial("long", "65 tokens", {"tokens": 65, "state": False}),
    Trial(
        "scale",
        "another scale of reads",
        {"state": False, "scale": "other"},
        needs="query_scale",
    ),
    Trial("packed", "packed sequences", {"tokens": 24, "packed": True}, needs="cu_seqlens"),
    Trial("sequences", "states of sequences", {"sequences": (5, 17, 2)}, needs="cu_seqlens"),
    Trial("gradients", "gradients", {"cotangent": True}),
    Trial(
        "two_widths", "values of another width", {"d_out": 6, "state": False}, lacked=("FAILED",)
    ),
    Trial(
        "shared_keys",
        "2 value heads a key head",
        {"heads": 4, "groups": 2, "state": False},
        kernel="shared",
        lacked=("FAILED", "WRONG", "MARGINAL", "MISSING", "UNDECIDABLE"),
    ),
)

#: Names of families of rules, and the rule that people mean.
RULES = {"titans": "titans_lmm", "ttt": "ttt_linear"}

#: What functions without backward are asked nothing of.
GRADIENTS = "gradients"

#: Lengths of keys and values: many kernels know one alone.
WIDTHS = {"d_in": 8, "d_out": 8}


def check_names(name: str, function: str) -> str:
    """The member that a name is of (SRC-28).

    Raises:
        CaseError: no such name, or no such file.
    """
    from atlas_ref.messages import no_such
    from atlas_ref.oracle.cases.case import CaseError

    own = names.plain(name)
    if own in names.ELSEWHERE:
        raise CaseError(f"try {name}: {names.ELSEWHERE[own]}")
    own = RULES.get(own, own)
    if own not in names.SIGNATURES and _is_known(own):
        raise CaseError(
            f"try {name}: has no signature that kernels share: atlas-ref new {own} -o CASE draws a "
            "case, atlas-ref check CASE --impl asks your code"
        )
    if own not in names.SIGNATURES:
        raise CaseError(f"try: {no_such('name', name, names.known())}")
    place, colon, called = function.rpartition(":")
    if not (colon and place and called):
        raise CaseError(
            f"try: FILE.py:FUNCTION or PKG.MODULE:FUNCTION is needed, found {function!r}"
            + _functions_of(function)
        )
    if place.endswith(".py") and not os.path.isfile(place):
        raise CaseError(f"{place}: no such file")
    return own


def _is_known(name: str) -> bool:
    """Whether a name is one of a rule or member whose kernels have no signature in common."""
    from atlas_ref.cli.reference import rule_with
    from atlas_ref.oracle.registry import SUBJECTS

    return name in SUBJECTS or bool(rule_with(name))


def _functions_of(place: str) -> str:
    """The functions of a file, for a message; empty for what is no file of Python."""
    if not (place.endswith(".py") and os.path.isfile(place)):
        return ""
    try:
        body = ast.parse(Path(place).read_bytes()).body
    except (SyntaxError, ValueError, OSError):
        return ""
    found = [each.name for each in body if isinstance(each, ast.FunctionDef)]
    own = [name for name in found if not name.startswith("_")]
    return f"; it has {', '.join(own)}" if own else ""


def check_free(folder: Path) -> None:
    """Refuse a folder whose adapter is none that this command wrote.

    Raises:
        CaseError: there is a file of another hand, or the folder is a file.
    """
    from atlas_ref.oracle.cases.case import CaseError

    if os.path.exists(folder) and not os.path.isdir(folder):
        raise CaseError(f"--keep {folder}: is a file, a folder is needed")
    place = folder / f"{ADAPTER}.py"
    if os.path.exists(place) and not place.read_bytes().startswith(FIRST.encode()):
        raise CaseError(
            f"{place}: is not of atlas-ref try and would be lost: choose another --keep"
        )


def ask_signature(name: str, function: str, like: str, arrays: str) -> dict[str, Any]:
    """What of a function is taken, as a process of its own finds it (SRC-29).

    Raises:
        CaseError: it cannot be imported, or has arguments that the name has not.
    """
    from atlas_ref.oracle.cases.case import CaseError

    question = json.dumps({"name": name, "function": function, "like": like, "arrays": arrays})
    words = [sys.executable, "-P", "-m", "atlas_ref.adapters.front", question]
    try:
        ran = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=IMPORT,
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CaseError(f"{function}: its import did not end within {IMPORT:g} s") from None
    lines = ran.stdout.decode(errors="replace").strip().splitlines()
    try:
        found = json.loads(lines[-1])
        assert isinstance(found, dict)
    except (IndexError, ValueError, AssertionError):
        raise CaseError(
            f"{function}: its import ended the process, exit code {ran.returncode}"
        ) from None
    if "refused" in found:
        raise CaseError(str(found["refused"]))
    return found


def draw(trial: Trial, taken: dict[str, Any], name: str, *, state: bool, seed: int) -> Case:
    """The case of a trial, of the member as its code has it (SRC-30).

    Args:
        name: of the case, its file.
        state: whether a final state comes back, and has a cotangent.
    """
    from atlas_ref.oracle.cases.case import make
    from atlas_ref.oracle.cases.new import Request
    from atlas_ref.oracle.cases.new import new as make_new

    own = {} if "M0" in taken["arguments"].values() else {"state": False}
    settings = {**WIDTHS, **trial.request, **own}
    parameters = {"member": taken["member"], **taken["settings"]}
    if settings.pop("scale", ""):
        own_scale = parameters.get("query_scale", kernels.MEMBERS[taken["member"]].query_scale)
        parameters["query_scale"] = 1 if own_scale != 1 else "1/sqrt(d_in)"
    case = make_new(Request(rule="dplr", seed=seed, parameters=parameters, **settings), name=name)
    if not state and "in/M_bar" in case.inputs:
        inputs = {key: x for key, x in case.inputs.items() if key != "in/M_bar"}
        return make(case.header.plain(), inputs, name=name)
    return case


def adapter(
    name: str, function: str, taken: dict[str, Any], how: dict[str, Any], folder: Path
) -> str:
    """The file that `--impl` imports, in which a function stands by its place from there."""
    place, _, called = function.rpartition(":")
    text = ascii(function)
    if place.endswith(".py"):
        near = os.path.relpath(os.path.realpath(place), os.path.realpath(folder))
        text = f"str(HERE) + {f'/{near}:{called}'!a}"
    stated = {"like": taken["like"], "arrays": taken["arrays"], **how}
    words = "".join(f", {key}={value!r}" for key, value in stated.items())
    lines = [
        FIRST,
        "",
        *(["from pathlib import Path", ""] if "HERE" in text else []),
        "from atlas_ref.adapters import front",
        "",
        *(["HERE = Path(__file__).resolve().parent"] if "HERE" in text else []),
        f"mine = front.of({name!r}, {text}{words})",
        "shared = mine._replace(grouped=True)  # takes fewer heads of keys",
        "",
    ]
    return "\n".join(lines)
