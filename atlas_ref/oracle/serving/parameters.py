"""The key `parameters` of a case of rule schedule, and the steps in it (SCHED-7)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import ConfigDict, Field

from atlas_ref.messages import meant, shown
from atlas_ref.oracle.parameters import check_keys, check_names, validate
from atlas_ref.oracle.serving.members import MEMBERS, Member
from atlas_ref.types import Count, Frozen

#: Keys of a header of this rule.
KEYS = ("schema", "rule", "parameters", "note")

#: Names of members.
Name: Any = Literal[tuple(MEMBERS)]

#: Requests and tokens that a schedule may count.
MOST = 2**20

Finite = Annotated[float, Field(allow_inf_nan=False, ge=-1e6, le=1e6)]


class Parameters(Frozen):
    """Settings of a case of rule schedule (SCHED-7).

    Attributes:
        member: the rule of a token, a row of `members.MEMBERS`.
        heads, d_in, d_out: sizes; d_in of keys and queries.
        scale: of what is read.
        qk_norm: x / sqrt(sum x^2 + 1e-6) of queries and keys.
        conv: taps of the short convolution of what comes in; 0 for none.
        conv_silu: whether its sum goes through silu.
        rope: queries and keys are turned by their position in the request.
        dt_min, dt_max: of member mamba2, the least and the greatest step.
        schedule: its steps, in order.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    member: Name
    heads: Count
    d_in: Count
    d_out: Count
    scale: Finite = 1.0
    qk_norm: bool = False
    conv: Annotated[int, Field(ge=0, le=MOST)] = 0
    conv_silu: bool = True
    rope: bool = False
    dt_min: Annotated[Finite, Field(ge=0)] = 0.0
    dt_max: Annotated[float, Field(ge=0)] | None = None
    schedule: tuple[dict[str, Any], ...]

    @property
    def of(self) -> Member:
        return MEMBERS[self.member]

    @property
    def channels(self) -> int:
        """Numbers of a token: queries and keys of every head, and values."""
        return self.heads * (2 * self.d_in + self.d_out)

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the states of a request that are handed over."""
        return (*self.of.states, *(("window",) if self.conv else ()))


class Part(NamedTuple):
    """What a step does with one request.

    Attributes:
        request: its number.
        tokens: how many, or rows of a draft.
        fresh: whether it begins here; None where that is not said.
    """

    request: int
    tokens: int = 0
    fresh: bool | None = None


class Step(NamedTuple):
    """One step of a schedule.

    Attributes:
        number: from 0.
        op: a key of `OPS`.
        parts: requests in order.
        rows: drafted rows; accept: how many of them are kept.
        name: of a snapshot; at: tokens before it; source: the request that it is of, where that is said.
        width, side: of rows with padding.
    """

    number: int
    op: str
    parts: tuple[Part, ...]
    rows: tuple[int, ...] = ()
    accept: int = 0
    name: str = ""
    at: int = 0
    width: int = 0
    side: str = ""
    source: int | None = None

    @property
    def words(self) -> str:
        return f"step {self.number} {self.op}"


#: Step -> its keys beside `op`, and those of them that may be left out.
OPS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "prefill": (("r", "n"), ()),
    "decode": (("r",), ()),
    "packed": (("r", "n", "fresh"), ("fresh",)),
    "padded": (("r", "n", "width", "side"), ()),
    "draft": (("r", "rows", "accept"), ()),
    "snapshot": (("r", "name"), ()),
    "restore": (("r", "from", "name", "at"), ("from",)),
    "free": (("r",), ()),
}


def check_header(header: Any) -> None:
    """Refuse keys of other rules, settings that do not exist, and steps that are none (SCHED-7).

    Raises:
        ValueError: names the key or the step, what was found and what is needed.
    """
    check_keys(header, KEYS)
    own = parse(header)
    if own.conv == 1:
        raise ValueError("parameters.conv: one tap leaves no window; 0 for none, or 2 at least")
    if own.rope and own.d_in < 2:
        raise ValueError(f"parameters.rope: d_in {own.d_in} has no pair to turn, 2 are needed")
    if own.dt_max is not None and own.dt_max < own.dt_min:
        raise ValueError(f"parameters.dt_max: {own.dt_max:g} is below dt_min {own.dt_min:g}")
    tuple(steps(own))


def parse(header: Any) -> Parameters:
    """The parameters of a case, validated one by one (SCHED-7).

    Raises:
        ValueError: names the parameter, what was found and what is needed.
    """
    given = check_names(header, Parameters.model_fields)
    parameters: Parameters = validate(Parameters, given)
    return parameters


def steps(own: Parameters) -> Iterator[Step]:
    """The steps of a schedule, each of a form that there is (SCHED-7).

    Raises:
        ValueError: names the step and the key.
    """
    for number, given in enumerate(own.schedule):
        yield _step(number, given)


def _step(number: int, given: Mapping[str, Any]) -> Step:
    op = given.get("op")
    where = f"parameters.schedule: step {number}"
    if not isinstance(op, str) or op not in OPS:
        raise ValueError(f"{where}: op: {shown(op)} is no step; {', '.join(OPS)} are")
    keys, open_ = OPS[op]
    for key in given:
        if key != "op" and key not in keys:
            raise ValueError(
                f"{where} {op}: {key}: unknown key; it has {', '.join(keys)}{meant(key, keys)}"
            )
    for key in keys:
        if key not in given and key not in open_:
            raise ValueError(f"{where} {op}: {key}: missing")
    read = _Read(f"{where} {op}", given)
    return Step(
        number,
        op,
        read.parts(),
        rows=read.numbers("rows"),
        accept=read.number("accept"),
        name=read.word("name"),
        at=read.number("at"),
        width=read.number("width"),
        side=read.word("side", ("left", "right")),
        source=read.number("from") if "from" in given else None,
    )


class _Read(NamedTuple):
    """The values of a step, each of the kind that it needs."""

    where: str
    given: Mapping[str, Any]

    def number(self, key: str) -> int:
        found = self.given.get(key, 0)
        if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < MOST:
            raise ValueError(f"{self.where}: {key}: a count is needed, found {shown(found)}")
        return found

    def numbers(self, key: str) -> tuple[int, ...]:
        found = self.given.get(key, [])
        if not isinstance(found, list):
            raise ValueError(f"{self.where}: {key}: a list is needed, found {shown(found)}")
        return tuple(self._replace(given={key: each}).number(key) for each in found)

    def word(self, key: str, known: tuple[str, ...] = ()) -> str:
        found = self.given.get(key, "")
        if not isinstance(found, str) or (key in self.given and known and found not in known):
            needed = " or ".join(known) or "a name"
            raise ValueError(f"{self.where}: {key}: {needed} is needed, found {shown(found)}")
        return found

    def parts(self) -> tuple[Part, ...]:
        """Requests with their tokens; one for a step that has one."""
        op = self.given["op"]
        if op not in ("decode", "packed", "padded"):
            count = len(self.numbers("rows")) if op == "draft" else self.number("n")
            return (Part(self.number("r"), count),)
        requests = self.numbers("r")
        counts = (1,) * len(requests) if op == "decode" else self.numbers("n")
        fresh = self.given.get("fresh", [None] * len(requests))
        if not isinstance(fresh, list) or not all(x is None or isinstance(x, bool) for x in fresh):
            raise ValueError(f"{self.where}: fresh: a list of true and false is needed")
        if not len(requests) == len(counts) == len(fresh) or not requests:
            raise ValueError(
                f"{self.where}: {len(requests)} requests, {len(counts)} counts and {len(fresh)} "
                "words of fresh; as many of each are needed, and one at least"
            )
        if len(set(requests)) < len(requests):
            raise ValueError(f"{self.where}: r: a request stands there twice")
        return tuple(Part(*each) for each in zip(requests, counts, fresh, strict=True))
