"""Rules of the house: files per folder, their lengths, and names of rules and subjects only in
their own files.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from pathlib import Path

import pytest

from atlas_ref.cli import sweep
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.sweep.draw import SWEPT
from atlas_ref.rules import FAMILY, RULES

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "atlas_ref").rglob("*.py"))
TAPE = sorted((ROOT / "tape").rglob("*.py"))
DOCUMENTED = [*FILES, *TAPE]

#: Where rules and other subjects of the oracle may be compared by name: the rules' own room, the
#: axes that depend on them, the second implementation, and adapters, which know nothing of the
#: oracle and name members of one rule alone.
OF_RULES = (
    "atlas_ref/rules/",
    "atlas_ref/conventions/",
    "atlas_ref/certify/",
    "atlas_ref/adapters/",
)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def walked(tree: ast.AST) -> list[ast.AST]:
    return list(ast.walk(tree))


OUTSIDE = [path for path in FILES if not name(path).startswith(OF_RULES)]


def comparisons(tree: ast.AST) -> list[int]:
    """Lines that compare with the name of a rule, or look one up in a table of such names."""
    found = []
    for node in walked(tree):
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.Dict):
            parts = [key for key in node.keys if key is not None]
        elif isinstance(node, ast.Match):
            parts = [case.pattern for case in node.cases]
        else:
            continue
        constants = {
            each.value
            for part in parts
            for each in ast.walk(part)
            if isinstance(each, ast.Constant)
        }
        if constants & set(RULES):
            found.append(node.lineno)
    return found


def of_subjects(tree: ast.AST) -> list[int]:
    """Lines that compare the rule of a header with the name of a subject.

    One side is a rule by its own name; axes of a convention and tensors may be called like one.
    """
    found = []
    for node in walked(tree):
        if isinstance(node, ast.Compare):
            sides: list[ast.AST] = [node.left, *node.comparators]
        elif isinstance(node, ast.Match):
            sides = [node.subject, *(case.pattern for case in node.cases)]
        elif isinstance(node, ast.Subscript):
            sides = [node.slice, *(_keys(node.value))]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            sides = [*node.args[:1], *(_keys(node.func.value))]
        else:
            continue
        if any(map(_is_rule, sides)) and any(map(_names_a_subject, sides)):
            found.append(node.lineno)
    return found


def _keys(node: ast.AST) -> list[ast.AST]:
    return [key for key in node.keys if key is not None] if isinstance(node, ast.Dict) else []


def _is_rule(node: ast.AST) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == "rule") or (
        isinstance(node, ast.Name) and node.id in ("rule", "name")
    )


def _names_a_subject(node: ast.AST) -> bool:
    return any(
        isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value in SUBJECTS
        for each in ast.walk(node)
    )


def probes(tree: ast.AST) -> list[int]:
    """Lines that ask a rule, its configuration or its state for a name that it may not have."""
    return [
        node.lineno
        for node in walked(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and (node.func.id == "hasattr" or (node.func.id == "getattr" and len(node.args) == 3))
        and isinstance(node.args[0], ast.Name)
        and node.args[0].id in ("rule", "config", "state", "params", "before")
    ] + [
        node.lineno
        for node in walked(tree)
        if isinstance(node, ast.Attribute)
        and node.attr == "get"
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "__dict__"
    ]


def test_no_other_file_compares_names_of_rules_or_probes_them() -> None:
    found = {name(path): comparisons(parsed(path)) + probes(parsed(path)) for path in OUTSIDE}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_no_other_file_compares_a_rule_with_the_name_of_a_subject() -> None:
    found = {name(path): of_subjects(parsed(path)) for path in OUTSIDE}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "code",
    [
        "case.header.rule == 'newton_schulz'",
        "'feature_map' != h.rule",
        "rule in ('feature_map', BLOCK)",
        "self.rule not in (*FAMILY, 'cms')",
        "rule not in (*names_with('has_window'), 'newton_schulz')",
        "match header.rule:\n    case 'cms':\n        pass",
        "{'newton_schulz': 'in/X_bar'}[header.rule]",
        "{'newton_schulz': 'in/X_bar'}.get(header.rule, '')",
    ],
)
def test_a_comparison_with_the_name_of_a_subject_is_seen(code: str) -> None:
    assert of_subjects(ast.parse(code)) == [1]


@pytest.mark.parametrize(
    "code",
    [
        "axis == 'newton_schulz' and case.header.rule in FAMILY",
        "key == 'feature_map'",
        "changes['newton_schulz'] == 'none'",
        "plain.get('feature_map', {})",
        "header.rule == BLOCK",
    ],
)
def test_an_axis_or_a_key_called_like_a_subject_is_no_comparison(code: str) -> None:
    assert of_subjects(ast.parse(code)) == []


def test_a_comparison_and_a_probe_are_seen() -> None:
    code = "if rule == 'delta' or h.rule in ('omega', 'x'):\n    pass\nx = {'hebbian': 1}\n"
    code += "y = getattr(config, 'window', 1)\nz = hasattr(state, 'S')\n"
    code += "get = state.__dict__.get\n"
    tree = ast.parse(code)
    assert sorted(comparisons(tree)) == [1, 1, 3]
    assert probes(tree) == [4, 5, 6]


#: Rooms that ask a subject for its facts, never for the group that its rule belongs to.
OF_SUBJECTS = ("atlas_ref/oracle/", "atlas_ref/vectors/", "atlas_ref/cli/")


def groups_asked(tree: ast.AST) -> list[int]:
    """Lines that ask whether a rule is of the family, is the block, or has what only some have."""
    found = []
    for node in walked(tree):
        if isinstance(node, ast.Compare):
            member = isinstance(node.ops[0], ast.In | ast.NotIn)
            sides = node.comparators if member else [node.left, *node.comparators]
            names = {each.id for side in sides for each in ast.walk(side) if _is_name(each)}
            asked = names & ({"FAMILY", "BLOCK"} if member else {"BLOCK"})
        else:
            asked = _is_own(node)
        if asked:
            found.append(node.lineno)
    return found


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name)


def _is_own(node: ast.AST) -> bool:
    """Whether this is what some subjects have in place of a table: SUBJECTS[rule].own."""
    return (
        isinstance(node, ast.Attribute)
        and node.attr == "own"
        and any(_is_name(each) and each.id in ("SUBJECTS", "subject") for each in ast.walk(node))
    )


def test_no_room_asks_for_the_group_of_a_rule() -> None:
    rooms = [path for path in FILES if name(path).startswith(OF_SUBJECTS)]
    found = {name(path): groups_asked(parsed(path)) for path in rooms}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "code",
    [
        "case.header.rule in FAMILY",
        "if h.rule not in (*FAMILY, BLOCK): pass",
        "header.rule == BLOCK",
        "BLOCK != case.header.rule",
        "own = SUBJECTS[case.header.rule].own",
        "x = 0 if subject.own is None else 1",
    ],
)
def test_a_question_for_a_group_is_seen(code: str) -> None:
    assert groups_asked(ast.parse(code)) == [1]


def test_a_list_of_rules_and_a_fact_of_a_subject_are_no_question() -> None:
    code = "x = [each for each in FAMILY]\ny = subject.calls is None\nz = answer.own\n"
    assert groups_asked(ast.parse(code + "w = f'rule {BLOCK}'\n")) == []


#: Participles that do not end in "ed".
IRREGULAR = (
    "asked begun blown bound broken built chosen cut done drawn flown found frozen given gone "
    "ground grown held hit hung kept known laid left let lost made meant moved paid put read said "
    "seen sent set shown sold sought split spoken stolen stood struck stuck sung sunk swept swung "
    "taken taught thought thrown told torn understood won worn wound woven written wrung"
)
#: Words that end in "ed" and are no participles.
NO_PARTICIPLES = "bed embed exceed feed need proceed red seed shed speed weed"
#: Verbs in the imperative that are spelt like their participle.
VERBS = frozenset({"cut", "let", "put", "read", "set", "split"})
#: First words of a question or a demand, which a participle may end.
ASKING = ("has_", "is_", "may_", "require_")
#: Functions that the pages of the reference document under such a name; settings have `replaced` as
#: every frozen type of `types` has it, since a reading changes either.
PUBLISHED = {
    "atlas_ref/oracle/cases/case.py": {"named", "supported", "unsupported"},
    "atlas_ref/oracle/deep/settings.py": {"replaced"},
    "atlas_ref/oracle/identify/identify.py": {"described"},
    "atlas_ref/oracle/identify/readings/__init__.py": {"described"},
    "atlas_ref/oracle/judge/arrays.py": {"judged"},
    "atlas_ref/oracle/judge/compare.py": {"checked", "chosen"},
    "atlas_ref/oracle/tnt/settings.py": {"replaced"},
}


def participles(tree: ast.AST) -> list[str]:
    """Functions whose name is a participle, or ends in one: neither an action nor a thing."""
    irregular, others = IRREGULAR.split(), NO_PARTICIPLES.split()
    found = []
    for node in walked(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        bare = node.name.strip("_")
        last = bare.rpartition("_")[2]
        ends = last in irregular or (last.endswith("ed") and last not in others)
        if ends and bare not in VERBS and not bare.startswith(ASKING):
            found.append(node.name)
    return found


def test_no_function_of_the_oracle_is_called_by_a_participle() -> None:
    found = {
        name(path): set(participles(parsed(path)))
        for path in FILES
        if name(path).startswith("atlas_ref/oracle/")
    }
    assert {path: names for path, names in found.items() if names} == PUBLISHED


@pytest.mark.parametrize(
    "called", ["held", "_moved", "state_left", "not_refreshed", "Case.checked"]
)
def test_a_participle_is_seen(called: str) -> None:
    room, _, function = called.rpartition(".")
    code = f"def {function}(x): ..."
    tree = ast.parse(f"class {room}:\n    {code}" if room else code)
    assert participles(tree) == [function]


@pytest.mark.parametrize("called", ["read", "_cut", "is_scaled", "require_traced", "shift", "seed"])
def test_a_verb_a_question_and_a_noun_are_no_participle(called: str) -> None:
    assert participles(ast.parse(f"async def {called}(x): ...")) == []


def test_a_folder_has_at_most_sixteen_files() -> None:
    counts = Counter(name(path.parent) for path in FILES)
    assert {folder: count for folder, count in counts.items() if count > 16} == {}


def test_the_root_of_the_package_has_at_most_five_modules() -> None:
    assert len(list((ROOT / "atlas_ref").glob("*.py"))) <= 5


def test_a_file_has_at_most_400_lines() -> None:
    lines = {name(path): len(path.read_text().splitlines()) for path in FILES}
    assert {path: count for path, count in lines.items() if count > 400} == {}


def test_the_tape_has_at_most_2000_lines() -> None:
    """A tape that is read whole: code, docstrings and comments count, and so do blank lines."""
    lines = {name(path): len(path.read_text().splitlines()) for path in TAPE}
    assert {"tape/core.py", "tape/ops.py", "tape/transforms.py"} <= set(lines)
    assert sum(lines.values()) <= 2000


def summary(node: ast.AST) -> str:
    """First sentence of a docstring, or its first paragraph where that is shorter."""
    assert isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
    paragraph = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
    return re.split(r"(?<=[^.]{3}[.:;]) ", paragraph)[0]


def test_a_docstring_begins_with_at_most_twenty_words() -> None:
    long = {
        f"{name(path)}: {getattr(node, 'name', 'module')}": summary(node)
        for path in DOCUMENTED
        for node in walked(parsed(path))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and len(summary(node).split()) > 20
    }
    assert long == {}


def test_every_rule_declares_its_facts() -> None:
    for key, rule in FAMILY.items():
        assert (rule.name, SUBJECTS[key].rule) == (key, rule)
        assert {"M", "y", "out", "grad", "trace_grad"} <= set(rule.clauses)
        assert ("momentum" in rule.gates) == rule.has_momentum
        assert ("step_size" in rule.gates) == rule.has_error
        assert rule.has_window == ("window" in rule.Config.model_fields)
        assert rule.has_momentum == ("S" in rule.State.model_fields)


def test_every_subject_declares_its_facts() -> None:
    for key, subject in SUBJECTS.items():
        assert subject.name == key
        assert subject.has_tokens == (subject.argument not in subject.tensors)
        assert subject.has_tokens or {subject.argument, subject.cotangent} == set(subject.tensors)
        alone = subject.rule is None and not subject.has_parameters
        assert subject.needs_newton_schulz == (alone and subject.has_newton_schulz)


def test_the_help_of_a_command_that_loads_no_rule_names_all_of_them() -> None:
    """The command line starts without the rules, so that their names are typed there."""
    names = list(SWEPT)
    assert sweep.Rule.__metadata__[0].help == f"{', '.join(names[:-1])} or {names[-1]}"
