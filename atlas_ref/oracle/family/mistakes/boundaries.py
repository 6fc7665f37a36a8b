"""Mistakes at the boundaries of chunks: a long call, chunk by chunk, with a state that is lost on
the way (VEC-21).

Every chunk is a call of its own that goes on from the one before (CONV-38), so the mistakes can be
made in every rule. What else is wrong in a kernel shows within few tokens, and is no mutant of a
long vector.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.cases.case import Case, make
from atlas_ref.oracle.evaluate import Results, evaluate
from atlas_ref.oracle.family.mistake import Mistake
from atlas_ref.oracle.subjects.base.hooks import RESUMES
from atlas_ref.oracle.sweep import split
from atlas_ref.oracle.sweep.cut import axes_of
from atlas_ref.oracle.sweep.first import tokens_of

Tensors = dict[str, np.ndarray[Any, Any]]

#: Tokens of a chunk, as kernels have them.
SIZES = (16, 32, 64, 128, 256)

#: What is compared of a call in chunks, beside gradients.
COMPARED = ("out/y", "out/M", "out/S", "out/A")


class Boundary(NamedTuple):
    """A mistake at the start of every chunk but the first.

    Attributes:
        lost: results of the chunk before that do not arrive.
        behind: chunks by which the state that arrives is late.
        bars: cotangents that do not go back to the chunk before.
    """

    words: str
    lost: tuple[str, ...] = ()
    behind: int = 0
    bars: tuple[str, ...] = ()


MISTAKES = {
    "state one chunk late": Boundary("a chunk starts from the state of the chunk before", behind=1),
    "momentum dropped": Boundary("a chunk starts with a momentum of zero", ("out/S",)),
    "squares dropped": Boundary("a chunk starts with a sum of squares of zero", ("out/A",)),
    "window dropped": Boundary(
        "a chunk starts with an empty window",
        ("out/window_k", "out/window_v", "out/window_gate_before", "out/window_residual"),
    ),
    "momenta dropped": Boundary("a chunk starts with no momenta", ("out/window_momentum",)),
    "span restarted": Boundary("a chunk starts a span of its own", ("out/M_ref", "phase")),
    "dM dropped": Boundary("cotangents of M stop at a chunk", bars=("in/M_bar",)),
    "dS dropped": Boundary("cotangents of S stop at a chunk", bars=("in/S_bar",)),
}


def words_by_name() -> dict[str, str]:
    """Every mutant in words, by its name."""
    return {
        _name(name, size): f"{mistake.words}, of {size} tokens"
        for name, mistake in MISTAKES.items()
        for size in SIZES
    }


def mistakes(case: Case, second: str = "") -> list[Mistake]:
    """Every mistake that can be made at the starts of chunks of a case, shorter chunks first.

    Args:
        second: the state beside the memory of a member of the linear family, S or A (VEC-28).
    """
    return [_mistake(case, name, size) for size in SIZES for name in made_in(case, size, second)]


def _mistake(case: Case, name: str, size: int) -> Mistake:
    return Mistake(
        _name(name, size),
        f"{MISTAKES[name].words}, of {size} tokens",
        lambda _: True,
        bool(MISTAKES[name].bars),
        program=lambda arithmetic: run(case, size, name, dtype=arithmetic),
        whole=True,
    )


def _name(mistake: str, size: int) -> str:
    return f"{mistake} in chunks of {size}"


def made_in(case: Case, size: int, second: str = "") -> list[str]:
    """Mistakes that can be made in a case by chunks of that size, which start where no span does.

    Cotangents that stop at a chunk show where a whole chunk lies behind.
    """
    c, inputs, tokens = case.convention, case.inputs, tokens_of(case)
    if c.read == "call_end" or size >= tokens:  # a cut shows the read of the end by definition
        return []
    window_first = c.order == "window_then_momentum"
    momentum = "in/momentum" in inputs or "in/param/W_momentum" in inputs or second == "S"
    plain = case.header.window == 1 and case.header.span is None and case.header.level != "token"
    plain = plain and 2 * size <= tokens
    grad = "in/y_bar" in inputs and plain and not inputs.keys() & {"in/reset", "in/active"}
    grad = grad and not second  # the backward of a chain of calls is that of matrix memories
    has = {
        "state one chunk late": True,
        "momentum dropped": momentum,
        "squares dropped": second == "A",
        "window dropped": case.header.window > 1 and window_first,
        "momenta dropped": case.header.window > 1 and not window_first,
        "span restarted": c.frozen_reference or c.read == "chunk_start",
        "dM dropped": grad,
        "dS dropped": grad and momentum,
    }
    return [name for name in MISTAKES if has[name]]


def run(
    case: Case, size: int, wrong: str | None = None, *, dtype: str = "float64", grad: bool = False
) -> Tensors:
    """Results of a call in chunks, with a mistake by its name; gradients for one of cotangents.

    A packed sequence starts as the call does (CONV-33), and is a call of its own too.

    Args:
        grad: gradients as well, of a case in which a mistake of cotangents can be made.
    """
    mistake = MISTAKES[wrong] if wrong else Boundary("")
    case = make(
        {key: value for key, value in case.header.plain().items() if key != "schedule"},
        case.inputs,
        name=case.name,
    )
    pieces, results = [], []
    for piece, found in _pieces(case, size, mistake, dtype):
        pieces.append(piece)
        results.append(found.tensors)
    tensors = {name: results[-1][name] for name in COMPARED if name in results[-1]}
    tensors["out/y"] = np.concatenate([each["out/y"] for each in results], axis=-2)
    return tensors | (_gradients(pieces, mistake, dtype) if grad or mistake.bars else {})


def _pieces(case: Case, size: int, mistake: Boundary, dtype: str) -> Iterator[tuple[Case, Results]]:
    """The calls that a long one is cut into, each with the state that arrives, and its results."""
    tokens = tokens_of(case)
    resets = np.nonzero(case.inputs.get("in/reset", np.zeros(tokens)))[0].tolist()
    starts = sorted({*range(0, tokens, size), *resets})
    ends: list[Results | None] = [None]  # at the start of every chunk; None for that of the call
    before: Results | None = None
    for first, last in itertools.pairwise([*starts, tokens]):
        arriving, lost = before, tuple[str, ...]()
        if first and first % size == 0:
            ends.append(before)
            arriving, lost = ends[-1 - mistake.behind], mistake.lost
        if first in resets:
            piece = _begin(case, range(first, last), anew=True)
        elif arriving is None:
            piece = _begin(case, range(first, last))
        else:
            piece = split.resume(case, arriving, range(first, last), lost=lost)
        before = evaluate(piece, dtype=dtype)
        yield piece, before


def _begin(case: Case, tokens: range, *, anew: bool = False) -> Case:
    """Tokens with the state of the call; anew, with M0 and S0 alone, as after a reset."""
    piece = split.part(case, tokens)
    if not anew:
        return piece
    header = {key: value for key, value in piece.header.plain().items() if key != "phase"}
    tensors = {
        name: value
        for name, value in piece.inputs.items()
        if name not in RESUMES.values() or name in ("in/M0", "in/S0")
    }
    return make(header, tensors, name=case.name)


def _gradients(pieces: list[Case], mistake: Boundary, dtype: str) -> Tensors:
    """Gradients of the whole call, from its last chunk to the first."""
    bars: Mapping[str, Any] = {}
    gradients: list[Tensors] = []
    for piece in reversed(pieces):
        weighed = {**piece.inputs, **bars}
        found = evaluate(
            make(piece.header.plain(), weighed, name=piece.name), grad=True, dtype=dtype
        )
        own = {name: value for name, value in found.tensors.items() if name.startswith("grad/")}
        gradients.insert(0, own)
        arriving = {
            f"in/{name}_bar": own[f"grad/{name}0"] for name in ("M", "S") if f"grad/{name}0" in own
        }
        bars = {
            name: np.zeros_like(value) if name in mistake.bars else value
            for name, value in arriving.items()
        }
    axes = axes_of(pieces[0])
    whole = {}
    for name, value in gradients[0].items():
        own_axes = axes["in/" + name.removeprefix("grad/")]
        whole[name] = (
            np.concatenate([each[name] for each in gradients], axis=own_axes.index("T"))
            if "T" in own_axes
            else value
        )
    return whole
