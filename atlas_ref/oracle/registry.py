"""The subjects of the oracle: `SUBJECTS` is the only list of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from atlas_ref.on_demand import OnDemand
from atlas_ref.oracle.cases.tensor_spec import BLOCK, LAYER
from atlas_ref.rules import FAMILY, RULES

if TYPE_CHECKING:
    from atlas_ref.oracle.subjects.subject import Subject

#: Folder of the subjects.
SUBJECTS_FOLDER = "atlas_ref.oracle.subjects"


class Entry(NamedTuple):
    """What a header needs to know of every subject before any is imported.

    Attributes:
        module: that holds the subject as `SUBJECT`.
        forms: names of forms that a header may state; None for those of most rules.
        keys: header keys of its own -> their description.
        of_rules: whether its module makes a subject of each rule of the family.
    """

    module: str
    forms: tuple[str, ...] | None = None
    keys: dict[str, str] = {}
    of_rules: bool = False


#: Name in the header -> what is known of the subject without an import of it.
ENTRIES: dict[str, Entry] = {
    **{name: Entry("memory", of_rules=True) for name in FAMILY},
    "newton_schulz": Entry("newton_schulz"),
    "feature_map": Entry("feature_map"),
    **{name: Entry(name) for name in sorted(RULES.keys() - FAMILY.keys())},
    "tnt": Entry("tnt"),
    "dplr": Entry("dplr", forms=("sequential", "scan", "chunk")),
    "recurrence": Entry("recurrence", forms=("sequential",)),
    "schedule": Entry("schedule", forms=("sequential",)),
    BLOCK: Entry("block"),
    LAYER: Entry("layer", keys={"layer": "rule layer: which layer or model of public code"}),
}


#: Modules about sequences with states of their own, which cases without them do not need.
PACKED: OnDemand[Any] = OnDemand(
    {
        name: f"atlas_ref.oracle.sequences.{name}"
        for name in ("parts", "subject", "draw", "identify", "snapshots")
    },
    lambda module, name: module,
)

#: Inputs that only such cases have (CASE-44).
OF_SEQUENCES = ("in/sequences", "in/has_initial_state")

#: Input of a case that asks for states behind some tokens, and answers each as a call (CASE-49).
OF_SNAPSHOTS = "in/states_after"

#: Answers of a subject that are others about sequences, and about states behind some tokens.
BY_SEQUENCE = (
    *("checked", "legal", "evaluate", "plain", "numbers", "continued", "needs", "void"),
    *("undecided", "undeclared", "features", "missed", "check_form"),
)


def _subject(module: Any, name: str) -> Subject:
    found: Subject = module.subject(FAMILY[name]) if ENTRIES[name].of_rules else module.SUBJECT
    if found.calls is None:
        return found._replace(checked=_by_sequence(found, found, "checked"))
    answers: dict[str, Any] = {each: _by_sequence(found, found, each) for each in BY_SEQUENCE}
    if (searched := found.searched) is not None:
        run = _by_sequence(found, searched, "run")
        answers["searched"] = searched._replace(run=run)
    if (search := found.search) is not None:
        answers["search"] = search._replace(identify=_by_sequence(found, search, "identify"))
    return found._replace(**answers)


def _by_sequence(subject: Subject, owner: Any, name: str) -> Callable[..., Any]:
    """An answer of a subject: of a case of sequences by the sequence (CASE-45), of one that asks for
    states behind some tokens with these (CASE-50).
    """
    own = getattr(owner, name)

    def answer(*arguments: Any) -> Any:
        if any(_names_one(each, OF_SEQUENCES) for each in arguments):
            return PACKED["subject"].SEQUENCES[name](subject, *arguments)
        if any(_names_one(each, (OF_SNAPSHOTS,)) for each in arguments):
            return PACKED["subject"].SNAPSHOTS[name](subject, *arguments)
        return own(*arguments)

    return answer


def _names_one(argument: Any, wanted: tuple[str, ...]) -> bool:
    """Whether an argument, a case, its inputs or their names, has one of these inputs."""
    names = getattr(argument, "inputs", argument)
    return isinstance(names, (Mapping, set)) and any(name in names for name in wanted)


#: Name in the header -> subject, which is imported when it is asked for.
SUBJECTS: OnDemand[Subject] = OnDemand(
    {name: f"{SUBJECTS_FOLDER}.{entry.module}" for name, entry in ENTRIES.items()}, _subject
)

#: Rule of recordings of the linear family.
LINEAR_FAMILY = "family"

#: Rule of a recorded file -> module that reads it as a case of another rule.
RECORDED: OnDemand[Any] = OnDemand(
    {LINEAR_FAMILY: f"{SUBJECTS_FOLDER}.recorded_members"}, lambda module, name: module
)
