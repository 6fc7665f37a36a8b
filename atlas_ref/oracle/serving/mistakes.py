"""Mistakes of servers, each what one point of the loop does otherwise (SCHED-10)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from atlas_ref.oracle.program.reading import Reading
from atlas_ref.oracle.serving.members import State, first_state
from atlas_ref.oracle.serving.parameters import Parameters
from atlas_ref.oracle.serving.plan import Moment, moments
from atlas_ref.oracle.serving.server import Now

#: Tokens of the blocks that are tried.
BLOCKS = (2, 4, 8, 16, 32, 64, 128)

#: Formats that a state may have been kept in.
FORMATS: Mapping[str, Any] = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}

#: What stands at a point: (where the loop is, the value there) -> the value instead.
At = Callable[[Now, Any], Any]

#: Which of the calls it concerns.
Concerns = Callable[[Now], bool]


def of_case(own: Parameters) -> Iterator[Reading]:
    """Every mistake that this schedule could show, those that are reported most first."""
    looked = list(moments(own))
    for each in _every(own):
        if each.matters((own, looked)):
            yield each


def _has(*ops: str) -> Callable[[Any], bool]:
    """Whether a schedule has one of these steps."""
    return lambda seen: any(each.step.op in ops for each in seen[1])


def _later(several: bool) -> Callable[[Any], bool]:
    """Whether a request that has a state is called with several tokens, or with one."""

    def matters(seen: tuple[Parameters, list[Moment]]) -> bool:
        counts = (m.part.tokens for m in seen[1] if m.first)
        return any(count > 1 if several else count == 1 for count in counts)

    return matters


def _every(own: Parameters) -> Iterator[Reading]:
    memory, window = own.of.states, ("window",) if own.conv else ()
    parts = {"the memory": memory, "the window": window, "all states": (*own.states, "position")}
    parts = {words: names for words, names in parts.items() if names}
    lost = {
        "the memory was": memory,
        "the window was": window,
        "all states were": parts["all states"],
    }
    lost = {words: names for words, names in lost.items() if names}
    if len(memory) > 1:
        lost |= {f"{name} was": (name,) for name in memory}
    for words, names in lost.items():
        yield _mistake(f"{words} lost between calls", _later(True), enter=_lose(names, _any))
        yield _mistake(
            f"{words} lost in calls of several tokens", _later(True), enter=_lose(names, _several)
        )
        yield _mistake(
            f"{words} lost in calls of one token", _later(False), enter=_lose(names, _one)
        )
        yield _mistake(
            f"{words} not in the cache", _any_schedule, leave=_zero(names), restore=_zero(names)
        )
        yield _mistake(f"{words} not in snapshots", _has("restore"), keep=_zero(names))
    yield from _of_drafts(parts)
    yield from _of_snapshots(own)
    yield from _of_slots(parts)
    yield from _of_packs(parts)
    yield from _of_padding(memory)
    yield from _of_places(memory, window, parts["all states"])
    yield from _of_formats(memory)
    if own.rope:
        again = _put("position", lambda now, state: 0)
        yield _mistake("positions began again in every call", _later(False), enter=again)
        zero = _put("position", lambda now, state: 0)
        yield _mistake("positions began again at a restore", _has("restore"), restore=zero)
    if own.of.weights:
        for words, concerns in (("one token", _one), ("several tokens", _several)):
            yield _mistake(
                f"calls of {words} took steps without their limits",
                _any_schedule,
                limits=_where(concerns, lambda now, limited: False),
            )


def _mistake(words: str, matters: Callable[[Any], bool], **points: At) -> Reading:
    return Reading(words, words, matters, ops=points, whole=True)


# -- what a point does otherwise -----------------------------------------------------------------------


def _any_schedule(seen: Any) -> bool:
    return True


def _any(now: Now) -> bool:
    return True


def _several(now: Now) -> bool:
    return now.several


def _one(now: Now) -> bool:
    return now.alone


def _where(concerns: Concerns, change: At) -> At:
    return lambda now, value: change(now, value) if concerns(now) else value


def _with(state: State, other: State, names: tuple[str, ...]) -> State:
    """A state with some parts of another one."""
    return {**state, **{name: other[name] for name in names if name in state}}


def _fresh(now: Now, state: State) -> State:
    return first_state(now.own, state["M"].dtype)


def _lose(names: tuple[str, ...], concerns: Concerns) -> At:
    return _where(concerns, lambda now, state: _with(state, _fresh(now, state), names))


def _zero(names: tuple[str, ...]) -> At:
    return _lose(names, _any)


def _put(name: str, value: At) -> At:
    return lambda now, state: {**state, name: value(now, state)}


def _after(names: tuple[str, ...], place: Callable[[Now], int], concerns: Concerns) -> At:
    """Some states are those after another number of tokens of the call."""

    def change(now: Now, state: State) -> State:
        assert now.segment is not None
        return _with(state, now.segment.after(place(now)), names)

    return _where(concerns, change)


# -- drafts --------------------------------------------------------------------------------------------


def _drafts(now: Now) -> bool:
    return now.step.op == "draft"


def _of_drafts(parts: Mapping[str, tuple[str, ...]]) -> Iterator[Reading]:
    places: dict[str, tuple[Callable[[Now], int], Concerns]] = {
        "all drafted tokens": (lambda now: now.tokens, _drafts),
        "all drafted tokens where some were kept": (
            lambda now: now.tokens,
            lambda now: _drafts(now) and now.kept > 0,
        ),
        "all drafted tokens where none was kept": (
            lambda now: now.tokens,
            lambda now: _drafts(now) and now.kept == 0,
        ),
        "the token before the last that was kept": (lambda now: max(now.kept - 1, 0), _drafts),
        "one token more than were kept": (lambda now: min(now.kept + 1, now.tokens), _drafts),
        "no drafted token": (lambda now: 0, _drafts),
    }
    for place, (count, concerns) in places.items():
        for words, names in parts.items():
            yield _mistake(
                f"{words} behind a draft {'were' if words[-1] == 's' else 'was'} of {place}",
                _has("draft"),
                leave=_after(names, count, concerns),
            )


# -- snapshots and slots ---------------------------------------------------------------------------------


def _of_snapshots(own: Parameters) -> Iterator[Reading]:
    def live(now: Now, state: State) -> State:
        assert now.live is not None
        return dict(now.live)

    yield _mistake(
        "a snapshot was no copy, and changed with the request", _has("restore"), restore=live
    )


def _of_slots(parts: Mapping[str, tuple[str, ...]]) -> Iterator[Reading]:
    for words, names in parts.items():

        def dirty(now: Now, state: State, names: tuple[str, ...] = names) -> State:
            return state if now.dirty is None else _with(state, now.dirty, names)

        yield _mistake(
            f"{words} of the last owner of a slot stayed for the next one",
            _has("free"),
            begin=dirty,
        )


# -- several requests in one call ------------------------------------------------------------------------


def _packs(now: Now) -> bool:
    return now.step.op == "packed" and now.tokens > 0


def _of_packs(parts: Mapping[str, tuple[str, ...]]) -> Iterator[Reading]:
    for words, names in parts.items():

        def first(now: Now, state: State, names: tuple[str, ...] = names) -> State:
            return state if now.leads is None else _with(state, now.leads, names)

        def ahead(now: Now, state: State, names: tuple[str, ...] = names) -> State:
            return state if now.ahead is None else _with(state, now.ahead, names)

        for op in ("packed", "decode"):
            within = f"of a {op} call" if op == "packed" else "that are decoded together"
            concerns = _packs if op == "packed" else lambda now: now.step.op == "decode"
            yield _mistake(
                f"all requests {within} started from {words} of the first one",
                _has(op),
                enter=_where(concerns, first),
            )
        yield _mistake(
            f"a request of a packed call went on from {words} of the one before it",
            _has("packed"),
            enter=_where(_packs, ahead),
        )
        yield _mistake(
            f"a packed call started without {words}", _has("packed"), enter=_lose(names, _packs)
        )


# -- padding -------------------------------------------------------------------------------------------


def _of_padding(memory: tuple[str, ...]) -> Iterator[Reading]:
    def pads(side: str) -> At:
        def count(now: Now, entered: tuple[int, int]) -> tuple[int, int]:
            more = max(0, now.step.width - now.tokens) if now.step.side == side else 0
            return (more, 0) if side == "left" else (0, more)

        return count

    def decay(now: Now, state: State) -> State:
        if now.step.op != "padded" or now.step.side != "right" or now.step.width <= now.tokens:
            return state
        assert now.retention is not None
        assert now.padding is not None
        return {**state, "M": state["M"] * now.retention(now.padding)}

    def has(side: str) -> Callable[[Any], bool]:
        return lambda seen: any(each.step.side == side for each in seen[1])

    yield _mistake("padding behind tokens decayed the memory", has("right"), leave=decay)
    for side, words in (("left", "in front of"), ("right", "behind")):
        yield _mistake(
            f"padding {words} tokens entered window and memory", has(side), pads=pads(side)
        )


# -- places and formats ----------------------------------------------------------------------------------


def _of_places(
    memory: tuple[str, ...], window: tuple[str, ...], every: tuple[str, ...]
) -> Iterator[Reading]:
    def ends(now: Now) -> bool:
        return now.whole and now.several

    if window:
        yield _mistake(
            "a call shorter than the window left zeros in front of its tokens",
            lambda seen: any(1 < m.part.tokens < seen[0].conv - 1 for m in seen[1]),
            leave=_where(lambda now: ends(now) and now.tokens < now.own.conv - 1, _behind_zeros),
        )
        yield _mistake(
            "a call of one token left zeros in front of it in the window",
            lambda seen: seen[0].conv > 2 and _later(False)(seen),
            leave=_where(lambda now: now.alone and now.whole, _behind_zeros),
        )
    for words, names in (
        ("the window was", window),
        ("the memory was", memory),
        ("all states were", every),
    ):
        for calls, concerns in (
            ("calls of several tokens", ends),
            ("all calls", lambda n: n.whole),
        ):
            if names:
                yield _mistake(
                    f"{words} of before the last token of {calls}",
                    _any_schedule,
                    leave=_after(names, lambda now: max(now.tokens - 1, 0), concerns),
                )
    for size in BLOCKS:
        yield from _of_blocks(memory, size)
    behind: dict[str, Concerns] = {
        "a prefill": lambda now: now.step.op == "prefill",
        "calls of several tokens": ends,
        "every call": lambda now: now.tokens > 0,
    }
    for call, concerned in behind.items():
        yield _mistake(
            f"matrices of the memory were left transposed behind {call}",
            lambda seen: seen[0].d_in == seen[0].d_out > 1,
            leave=_where(concerned, _transpose(memory)),
        )


def _of_blocks(memory: tuple[str, ...], size: int) -> Iterator[Reading]:
    """The memory of the last whole block of a call."""

    def inside(now: Now) -> bool:
        return now.whole and now.tokens > size and now.tokens % size > 0

    def matters(seen: tuple[Parameters, list[Moment]]) -> bool:
        return any(m.part.tokens > size and m.part.tokens % size for m in seen[1])

    words = f"the memory was that of the last whole block of {size} tokens"
    calls: dict[str, Concerns] = {
        "": lambda now: inside(now) and now.step.op not in ("draft", "padded"),
        ", with padding too": inside,
        ", of shorter calls that of before": lambda now: now.whole and now.tokens % size > 0,
    }
    for more, concerns in calls.items():
        place = _after(memory, lambda now: now.tokens // size * size, concerns)
        yield _mistake(f"{words}{more}", matters, leave=place)


def _of_formats(memory: tuple[str, ...]) -> Iterator[Reading]:
    for name, kind in FORMATS.items():

        def through(now: Now, state: State, kind: Any = kind) -> State:
            narrow = {n: state[n].astype(kind).astype(state[n].dtype) for n in memory}
            return {**state, **narrow}

        yield _mistake(f"snapshots were kept in {name}", _has("restore"), keep=through)
        yield _mistake(f"the memory was kept in {name} between calls", _any_schedule, leave=through)


def _behind_zeros(now: Now, state: State) -> State:
    """The window without what was in it before the call."""
    window = state["window"].copy()
    window[: len(window) - now.tokens] = 0
    return {**state, "window": window}


def _transpose(names: tuple[str, ...]) -> At:
    return lambda now, state: {
        **state,
        **{name: np.ascontiguousarray(np.swapaxes(state[name], -1, -2)) for name in names},
    }
