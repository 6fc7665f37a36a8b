"""The plan of a run in order of importance: subjects, forms, references, sizes, and omissions with
reasons.

A subject is a memory of `benchmarks.memories`. All its candidates - our forms and the references -
share inputs, truth and rounds of timing at one size, which is a group. The smallest sizes come
first, so that later ones can be foreseen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from benchmarks import memories
from benchmarks.memories import Memory

Size = tuple[int, int, int]
KINDS = ("forward", "both")
FEW = 1024  # tokens: the size from which others are foreseen

#: (heads, d, tokens), the most telling first.
SIZES = (
    (8, 64, 1024),
    (8, 64, 8192),
    (64, 64, 8192),
    (64, 128, 8192),
    (8, 64, 32768),
    (64, 64, 32768),
    (8, 64, 131072),
    (64, 64, 1024),
    (64, 128, 32768),
    (64, 128, 131072),
    (8, 128, 8192),
    (8, 128, 1024),
    (64, 128, 1024),
    (8, 128, 32768),
    (8, 128, 131072),
    (64, 64, 131072),
)
QUICK = SIZES[:3]
TINY = ((2, 8, 128), (2, 8, 256))  # of a run on the CPU


class Candidate(NamedTuple):
    """One side of a comparison.

    Attributes:
        label: as tables and figures show it.
        form: ours, by name; None for a reference.
        peer: a reference, as `benchmarks.gpu.peers` knows it.
        options: what the reference is called with.
        storage: format of keys, values and queries: float32 or bfloat16.
        graph: whether it is recorded once as a CUDA graph and replayed.
        grows: what its memory grows with: "numbers" of the inputs' size, "matrices" of one state a
            token, "steps" of coefficients over all earlier tokens.
        floats: how many of those it holds at its peak, forward and with backward; a guess on the
            safe side.
        longest: tokens beyond which it is not tried; None for no bound but time and memory.
        judged: whether the issue's targets concern it.
    """

    label: str
    form: str | None = None
    peer: str | None = None
    options: dict[str, Any] = {}
    storage: str = "float32"
    graph: bool = False
    grows: str = "numbers"
    floats: tuple[float, float] = (10, 22)
    longest: int | None = None
    judged: bool = False

    @property
    def ours(self) -> bool:
        return self.form is not None

    @property
    def is_triton(self) -> bool:
        """Whether Triton compiles it."""
        return self.peer in ("fla delta", "fla gated delta")

    def bytes_needed(self, kind: str, heads: int, d: int, tokens: int) -> float:
        """Bytes at its peak, inputs included, by the guess."""
        inputs = heads * tokens * d
        each = {"numbers": inputs, "matrices": inputs * d, "steps": inputs * tokens}[self.grows]
        return 4.0 * (self.floats[KINDS.index(kind)] * each + 5 * inputs)


class Subject(NamedTuple):
    """A memory and what computes it; quick: what remains of that in a short run."""

    name: str
    memory: Memory
    candidates: tuple[Candidate, ...]
    quick: tuple[str, ...]

    def some(self, quick: bool) -> tuple[Candidate, ...]:
        return tuple(each for each in self.candidates if not quick or each.label in self.quick)


class Group(NamedTuple):
    """A subject at one size."""

    subject: Subject
    heads: int
    d: int
    tokens: int
    candidates: tuple[Candidate, ...]

    @property
    def memory(self) -> Memory:
        return memories.sized(self.subject.memory, self.d)

    @property
    def has_triton(self) -> bool:
        return any(each.is_triton for each in self.candidates)

    @property
    def title(self) -> str:
        return f"{self.subject.name}, {self.heads} heads, d = {self.d}, T = {self.tokens}"


# -- ours ------------------------------------------------------------------------------------------


def _own(form: str, **more: Any) -> Candidate:
    """The subject's own form."""
    return Candidate(form, form, judged=True, **more)


def _graph(form: str) -> Candidate:
    return Candidate(f"{form}, CUDA graph", form, graph=True, floats=(14, 36), longest=8192)


def _stored(form: str) -> Candidate:
    """Inputs and reads in bfloat16, arithmetic in float32."""
    return Candidate(f"{form}, bfloat16 storage", form, storage="bfloat16", floats=(14, 30))


def _sequential(floats: tuple[float, float] = (0.5, 12)) -> Candidate:
    return Candidate("sequential", "sequential", grows="matrices", floats=floats)


SCAN_OF_PAIRS = Candidate("scan", "scan", grows="matrices", floats=(4, 36))
SCAN = Candidate("scan", "scan", grows="matrices", floats=(2, 12))
KERNEL = Candidate("kernel", "kernel", grows="steps", floats=(0.2, 8), longest=FEW)
ATLAS_PARALLEL = Candidate("atlas_parallel", "atlas_parallel", grows="matrices", floats=(4, 16))

# -- references ------------------------------------------------------------------------------------

EAGER = Candidate("PyTorch eager", peer="eager", floats=(24, 70))
EAGER_NEWTON_SCHULZ = Candidate(
    "PyTorch eager", peer="eager", grows="matrices", floats=(1, 36), longest=8192
)
EAGER_WINDOW = Candidate("PyTorch eager", peer="eager", floats=(1600, 3200), longest=8192)
FLA = {"floats": (10, 24)}
CELL = Candidate(
    "atlas-rnn cell",
    peer="atlas-rnn",
    options={"scan_chunk_len": None},
    grows="matrices",
    floats=(14, 22),
)
CELL_SCAN = Candidate(
    "atlas-rnn cell, scan in chunks of 64",
    peer="atlas-rnn",
    options={"scan_chunk_len": 64},
    grows="matrices",
    floats=(2, 16),
)


def _fla(name: str, storage: str, label: str) -> Candidate:
    return Candidate(f"{label}, {storage}", peer=name, storage=storage, floats=(10, 24))


FLA_DELTA = _fla("fla delta", "bfloat16", "fla Triton chunk")
FLA_GATED = _fla("fla gated delta", "float32", "fla Triton chunk")
FLA_GATED_LOW = _fla("fla gated delta", "bfloat16", "fla Triton chunk")
FLA_MOMENTUM = Candidate(
    "fla chunk (PyTorch), bfloat16",
    peer="fla momentum delta",
    storage="bfloat16",
    floats=(40, 120),
    longest=32768,
)


def _subject(
    name: str, memory: Memory, ours: tuple[Candidate, ...], references: tuple[Candidate, ...]
) -> Subject:
    """A subject whose own form also runs as a graph and on bfloat16 storage."""
    form = memory.form
    own = (
        _own(form, **({"floats": (12, 30)} if memory.config.convention.has_newton_schulz else {})),
        _graph(form),
        _stored(form),
    )
    quick = (form, own[1].label, *(each.label for each in references))
    return Subject(name, memory, (*own, *ours, *references), quick)


SUBJECTS = (
    _subject("frozen Omega", memories.FROZEN, (_sequential(),), (EAGER, CELL, CELL_SCAN)),
    _subject(
        "gated delta",
        memories.FLA_GATED_DELTA,
        (SCAN, KERNEL, _sequential()),
        (EAGER, FLA_GATED, FLA_GATED_LOW),
    ),
    _subject("delta", memories.FLA_DELTA, (SCAN, _sequential()), (EAGER, FLA_DELTA)),
    _subject(
        "Titans as momentum delta",
        memories.FLA_MOMENTUM_DELTA,
        (SCAN_OF_PAIRS, _sequential()),
        (EAGER, FLA_MOMENTUM),
    ),
    _subject(
        "frozen Omega in spans",
        memories.FROZEN_SPANS,
        (ATLAS_PARALLEL, KERNEL, _sequential()),
        (EAGER,),
    ),
    _subject(
        "frozen Omega with Newton-Schulz",
        memories.FROZEN_NEWTON_SCHULZ,
        (ATLAS_PARALLEL._replace(floats=(6, 60)), _sequential((0.5, 60))),
        (EAGER_NEWTON_SCHULZ,),
    ),
    _subject("Omega", memories.RUNNING_OMEGA, (SCAN_OF_PAIRS, _sequential()), (EAGER_WINDOW,)),
)

#: (matrices, d) of the batches of Newton-Schulz.
BATCHES = ((8192, 64), (2048, 128))


def groups(
    *, quick: bool, storage: tuple[str, ...] = ("float32",), sizes: Sequence[Size] | None = None
) -> Iterator[Group]:
    """Groups in order of importance; our own rows on bfloat16 storage only where that is asked
    for.

    Triton's kernels come last, beside the subject's own form, since they take minutes to compile.
    """
    asked = tuple(sizes or (QUICK if quick else SIZES))
    for heads, d, tokens in asked:
        for subject in SUBJECTS:
            chosen = tuple(
                each
                for each in subject.some(quick)
                if not each.is_triton and (not each.ours or each.storage in storage)
            )
            yield Group(subject, heads, d, tokens, chosen)
    for heads, d, tokens in asked:
        for subject in SUBJECTS:
            theirs = tuple(each for each in subject.candidates if each.is_triton)
            if theirs:
                yield Group(subject, heads, d, tokens, (*subject.candidates[:2], *theirs))


def refusal(candidate: Candidate, group: Group, kind: str, free: float) -> str | None:
    """The reason not to run a candidate at a size, or None.

    It is the memory that the candidate would hold, or a bound of its own.
    """
    if candidate.longest is not None and group.tokens > candidate.longest:
        return f"not tried beyond T = {candidate.longest}"
    needs = candidate.bytes_needed(kind, group.heads, group.d, group.tokens)
    if needs > 0.8 * free:
        return f"would hold about {needs / 1e9:.0f} GB of {free / 1e9:.0f} GB that are free"
    return None


class Foreseen:
    """Seconds of one run at a size, foreseen from those of the same candidate at smaller ones."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, str], list[tuple[int, int, int, float]]] = {}

    def note(self, group: Group, candidate: Candidate, kind: str, seconds: float) -> None:
        key = (group.subject.name, candidate.label, kind)
        self._seen.setdefault(key, []).append((group.heads, group.d, group.tokens, seconds))

    def seconds(self, group: Group, candidate: Candidate, kind: str) -> float | None:
        """At most, if time grows no faster than work: the least over the sizes seen; None where
        nothing was.
        """
        power = 2 if candidate.grows == "steps" else 1
        found = [
            seconds
            * max(1.0, (group.tokens / tokens) ** power)
            * max(1.0, group.heads / heads)
            * max(1.0, (group.d / d) ** 2)
            for heads, d, tokens, seconds in self._seen.get(
                (group.subject.name, candidate.label, kind), []
            )
        ]
        return min(found, default=None)
