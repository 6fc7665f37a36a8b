"""Search the fewest vectors that kill every mutant and let every legal variant pass (VEC-7).

For each target all topics are drawn with one seed after the other, until no mutant is left that
some draw could kill and none does, or the seeds are spent. Then vectors are chosen greedily: always
the one that kills most of what is not yet killed. Of each long topic one draw is taken, the
first that kills most of its mutants.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Literal, NamedTuple

from pydantic import TypeAdapter

import atlas_ref
from atlas_ref.messages import Progress, unwatched
from atlas_ref.oracle.cases.case import CaseError
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.judge.arrays import relative_error
from atlas_ref.oracle.sweep.lines import Number, Task, holds
from atlas_ref.oracle.sweep.log import Log
from atlas_ref.oracle.sweep.modes import Result, Work
from atlas_ref.oracle.sweep.tasks import Line, Tasks
from atlas_ref.vectors.inputs.draw import drawn
from atlas_ref.vectors.inputs.large import LARGE
from atlas_ref.vectors.inputs.properties import properties
from atlas_ref.vectors.inputs.target import Target
from atlas_ref.vectors.inputs.targets import LATER, TARGETS
from atlas_ref.vectors.inputs.topics import Topic
from atlas_ref.vectors.mutants.score import FORMATS, score
from atlas_ref.vectors.refusals.negative import NEGATIVE
from atlas_ref.vectors.sets.expected import expected
from atlas_ref.vectors.sets.plan import Entry, Plan, planned

#: A kill is listed if the error is this many tolerances: PASS is up to 2, so that no other rounding
#: of the same mistake passes.
LISTED = 3.0

#: A legal variant may have this many tolerances at most on a vector.
CALM = 1.5

#: Relative distance from the certified values that our own float64 evaluation may have: ten times
#: less than a set allows (VEC-15).
NEAR = 1e-13

#: Seeds that are drawn at most per topic, and the numbers of topics and of seeds that a task's
#: number can hold.
SEEDS, TOPICS, ROOM = 12, 64, 1024

Goal = tuple[str, str]


class Candidate(NamedTuple):
    """A draw that may become a vector.

    Attributes:
        kills: (dtype, mutant) -> error over tolerance.
        shows: properties that it has.
        refused: why it cannot be a vector; "" where it can.
    """

    target: str
    topic: str
    seed: int
    kills: dict[Goal, float]
    shows: frozenset[str]
    refused: str


class Logged(Task):
    """The line of a draw in a log."""

    task: Literal["score"]
    refused: str
    shows: list[str]
    kills: dict[Literal["float32", "bfloat16"], dict[str, Number]]


class Scoring(NamedTuple):
    """The plan of the tasks: task `score` N scores the draw of that number.

    Attributes:
        long: of the long topics.
    """

    long: bool = False

    def perform(self, source: Any, kind: str, number: int) -> Result:
        """Score mutants and legal variants on one draw, in every format."""
        target, topic, seed = parts(number, self.long)
        case = drawn(target, topic, seed)
        line: Line = {"refused": "", "shows": properties(case), "kills": {}}
        for dtype in FORMATS:
            result = score(case, dtype)
            line["kills"][dtype] = {
                name: float(f"{ratio:.4g}") for name, ratio in result.mutants.items()
            }
            loud = [
                f"{name}: {ratio:.3g}"
                for name, ratio in result.controls.items()
                if not ratio <= CALM
            ]
            if loud or result.hidden:
                line["refused"] = f"{dtype}: {(loud or result.hidden)[0]}"
        try:
            truth = expected(case, grad=topic.grad)
        except CaseError as error:
            return line | {"refused": str(error)}
        ours = evaluate(case, grad=topic.grad).tensors
        far = [name for name, value in truth.items() if relative_error(ours[name], value) > NEAR]
        return line | ({"refused": f"{far[0]}: float64 itself is too far from it"} if far else {})


def number(target: int, topic: int, seed: int) -> int:
    """The number of a draw."""
    return (target * TOPICS + topic) * ROOM + seed


def parts(number: int, long: bool = False) -> tuple[Target, Any, int]:
    """The draw of a number."""
    rest, seed = divmod(number, ROOM)
    place, topic = divmod(rest, TOPICS)
    target = searched(long)[place]
    return target, topics(target, long)[topic], seed


def searched(long: bool) -> tuple[Target, ...]:
    """Targets of a set: those of one version of sets come behind those before them."""
    return (*TARGETS, *LATER) if long else TARGETS


def topics(target: Target, long: bool) -> tuple[Topic, ...]:
    """Topics that are drawn of a target."""
    return target.long if long and not target.later else target.topics


def search(
    name: str,
    version: str,
    *,
    seeds: int = SEEDS,
    long: bool = False,
    only: Sequence[str] = (),
    jobs: int = 1,
    scheduler: str | None = None,
    resume: str | os.PathLike[str] | None = None,
    progress: Progress = unwatched,
) -> tuple[Plan, dict[str, list[str]]]:
    """A plan of a set, and for each target the mutants that no draw kills.

    Args:
        name, version: of the set.
        seeds: drawn at most per topic.
        long: a set of the long topics, each once: the first draw that rejects all its mutants.
        only: names of topics, which are drawn alone and each once, for a plan to add to (VEC-27).
        jobs, scheduler, resume: as for `sweep`.

    Raises:
        CaseError: python-flint is missing, a log of another search, no scheduler; a name or version
            that no set has.
    """
    others: dict[str, list[str]] = {"negative": [], "large": []}
    if not long:
        others = {
            "negative": [each.name for each in NEGATIVE],
            "large": [each.name for each in LARGE],
        }
    known = {topic.name for target in searched(long) for topic in topics(target, long)}
    for each_topic in only:
        if each_topic not in known:
            raise CaseError(f"topic {each_topic!r}: no target has it")
    # refused before the search, not after it
    empty = planned(set=name, version=version, vectors=[], **others)
    entries: list[Entry] = []
    survivors: dict[str, list[str]] = {}
    with ExitStack() as stack:
        described = {
            "version": atlas_ref.__version__,
            "targets": [repr(target) for target in searched(long)],
            "long": long,
            **({"only": list(only)} if only else {}),
        }
        log = (
            None
            if resume is None
            else stack.enter_context(
                Log(
                    resume,
                    described,
                    key="atlas_ref_search",
                    what="a search for vectors",
                    holds=holds(TypeAdapter(Logged)),
                )
            )
        )
        run = Tasks(Work(Scoring(long), None), lambda line: line, jobs, scheduler, log, progress)
        for place, target in enumerate(searched(long)):
            listed = topics(target, long)
            apart = [i for i, topic in enumerate(listed) if not only or topic.name in only]
            if only or (long and not target.later):
                picks, left = _each(run, place, apart, seeds, long=long)
            else:
                picks, left = _fewest(run, place, seeds, long=long)
            survivors[target.name] = [f"{mutant} ({dtype})" for dtype, mutant in left]
            entries += [_entry(each) for each in picks]
    return empty.replaced(vectors=entries), {
        name: mutants for name, mutants in survivors.items() if mutants
    }


def _fewest(
    run: Tasks, place: int, seeds: int, *, long: bool
) -> tuple[list[Candidate], list[Goal]]:
    """The fewest draws of a target that kill every mutant, and mutants that none kills."""
    pool: list[Candidate] = []
    for seed in range(seeds):
        listed = topics(searched(long)[place], long)
        shown = _showing(pool) if seed and long else {topic.name for topic in listed}
        numbers = [number(place, i, seed) for i, topic in enumerate(listed) if topic.name in shown]
        pool += [_candidate(line, long=long) for line in run.lines("score", numbers)]
        if (seed or long) and not missing(pool):  # draws of a function take seconds each
            break
    return chosen(pool, searched(long)[place].always), missing(pool)


def _showing(pool: Sequence[Candidate]) -> set[str]:
    """Topics that may show a mutant which is left."""
    left = set(missing(pool))
    return {each.topic for each in pool if left & each.kills.keys()}


def _each(
    run: Tasks, place: int, listed: Sequence[int], seeds: int, *, long: bool
) -> tuple[list[Candidate], list[Goal]]:
    """A draw of each listed topic, the first that kills most, and mutants that none of them kills."""
    picks: list[Candidate] = []
    drawn_goals: set[Goal] = set()
    for topic in listed:
        pool: list[Candidate] = []
        for seed in range(seeds):
            (line,) = run.lines("score", [number(place, topic, seed)])
            pool.append(_candidate(line, long=long))
            if not missing(pool[-1:]):
                break
        drawn_goals |= goals(pool)
        free = [each for each in pool if not each.refused]
        picks += [min(free, key=lambda each: (len(missing([each])), each.seed))] if free else []
    killed = drawn_goals - set(missing(picks)) if picks else set()
    return picks, sorted(drawn_goals - killed)


def _candidate(line: Mapping[str, Any], *, long: bool = False) -> Candidate:
    target, topic, seed = parts(line["case"], long)
    kills = {
        (dtype, name): float(ratio)
        for dtype, ratios in line["kills"].items()
        for name, ratio in ratios.items()
    }
    return Candidate(
        target.name, topic.name, seed, kills, frozenset(line["shows"]), line["refused"]
    )


def goals(pool: Sequence[Candidate]) -> set[Goal]:
    """Every mutant in every format."""
    return {goal for each in pool for goal in each.kills}


def missing(pool: Sequence[Candidate]) -> list[Goal]:
    """Mutants that no acceptable draw kills."""
    killed = {
        goal
        for each in pool
        if not each.refused
        for goal, ratio in each.kills.items()
        if ratio >= LISTED
    }
    return sorted(goals(pool) - killed)


def chosen(pool: Sequence[Candidate], always: Sequence[str] = ()) -> list[Candidate]:
    """The fewest draws, greedily, that kill every mutant and show every property that some draw
    does.

    Ties go to the earliest draw.

    Args:
        always: topics whose first draw is taken in any case.
    """
    free = [each for each in pool if not each.refused]
    cover = [
        {
            *(goal for goal, ratio in each.kills.items() if ratio >= LISTED),
            *(("shows", name) for name in each.shows),
        }
        for each in free
    ]
    open_goals: set[Goal] = set().union(*cover)
    kept = [i for i, each in enumerate(free) if each.topic in always and not each.seed]
    picks: list[int] = list(kept)
    open_goals -= set().union(*(cover[i] for i in kept))
    while open_goals:
        best = max(range(len(free)), key=lambda i: (len(cover[i] & open_goals), -free[i].seed, -i))
        picks.append(best)
        open_goals -= cover[best]
    for i in picks[len(kept) :]:  # the first chosen may have become superfluous
        others = [j for j in picks if j != i]
        if cover[i] <= set().union(*(cover[j] for j in others)):
            picks = others
    return [free[i] for i in sorted(picks)]


def _entry(each: Candidate) -> Entry:
    kills: Any = {
        dtype: sorted(
            name for (kind, name), ratio in each.kills.items() if kind == dtype and ratio >= LISTED
        )
        for dtype in FORMATS
    }
    return Entry(target=each.target, topic=each.topic, seed=each.seed, kills=kills)
