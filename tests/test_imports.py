"""Direction of imports, from tape to the command line, without a cycle.

Tape, storage, parts, optimisers, engine, rules, forms, levels and oracle, certify, vectors, command line.
"""

from __future__ import annotations

import ast
import functools
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

#: What each layer holds, from the lowest: a module may import from its own layer and from those
#: before it.
LAYERS = (
    ("tape",),
    (
        "atlas_ref.adapters",
        "atlas_ref.backend",
        "atlas_ref.types",
        "atlas_ref.messages",
        "atlas_ref.on_demand",
        "atlas_ref.storage",
    ),
    ("atlas_ref.parts",),
    ("atlas_ref.optim",),
    ("atlas_ref.engine",),
    ("atlas_ref.conventions",),
    ("atlas_ref.rules",),
    ("atlas_ref.layers.projection", "atlas_ref.layers.__init__"),
    ("atlas_ref.forms",),
    ("atlas_ref.levels",),
    tuple(
        f"atlas_ref.layers.{name}"
        for name in (
            "checks",
            "convention",
            "norm",
            "rotary",
            "convolution",
            "feed_forward",
            "log_gate",
            "attention",
            "memory",
            "memory_levels",
            "memory_params",
            "memory_tnt",
            "memory_tokens",
            "neural_memory",
            "query_key",
            "shared_memory",
        )
    ),
    ("atlas_ref.blocks",),
    ("atlas_ref.models",),
    ("atlas_ref.train",),
    ("atlas_ref.oracle",),
    ("atlas_ref.certify",),
    ("atlas_ref.vectors",),
    ("atlas_ref.cli", "atlas_ref.pytest_plugin", "atlas_ref.__init__"),
)


def modules() -> dict[str, Path]:
    """Module name -> file; a package is its `__init__`."""
    found = {}
    for package in ("tape", "atlas_ref"):
        for path in (ROOT / package).rglob("*.py"):
            found[".".join(path.relative_to(ROOT).with_suffix("").parts)] = path
    return found


FILES = modules()


def layer(name: str) -> int:
    """The last layer that claims the module."""
    return max(
        i
        for i, starts in enumerate(LAYERS)
        for start in starts
        if name == start or name.startswith(f"{start}.")
    )


@functools.cache
def imported(name: str, *, types: bool) -> frozenset[str]:
    """Modules of the two packages that a module imports; without `types` only those imported at run
    time.
    """
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(FILES[name].read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif types or not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            # an expression holds no import
            waiting += [
                each
                for each in ast.iter_child_nodes(node)
                if isinstance(each, ast.stmt | ast.excepthandler | ast.match_case)
            ]
    return frozenset(own for each in found if (own := _own(each)) is not None)


def _own(name: str) -> str | None:
    """The module that an import reaches: itself, the package, or the module that holds the name."""
    module = name.rpartition(".")[0]
    return next(
        (
            place
            for place in (name, f"{name}.__init__", module, f"{module}.__init__")
            if place in FILES
        ),
        None,
    )


def test_a_module_imports_from_its_own_layer_and_from_below() -> None:
    upwards = {
        (name, each)
        for name in FILES
        for each in imported(name, types=True)
        if layer(each) > layer(name)
        and not (each == "atlas_ref.__init__" and _asks_the_package_for_its_version_alone(name))
    }
    assert upwards == set()


def imports(of: tuple[str, ...], what: tuple[str, ...]) -> set[tuple[str, str]]:
    """Pairs of a module of some rooms and what it imports of others."""
    rooms = [name for name in FILES if name.startswith(of)]
    assert rooms
    return {
        (name, each)
        for name in rooms
        for each in imported(name, types=True)
        if each.startswith(what)
    }


def test_the_engine_knows_no_rule_and_no_form() -> None:
    """An engine without rules: a form hands its plain function to the engine."""
    assert imports(("atlas_ref.engine.",), ("atlas_ref.rules", "atlas_ref.forms")) == set()


def test_the_loop_of_the_base_family_computes_nothing_by_the_rules() -> None:
    """A plain loop that knows of the rules their facts alone, so that each is evidence for the other."""
    of = ("atlas_ref.oracle.family.", "atlas_ref.oracle.replay.")
    found = imports(of, ("atlas_ref.rules.", "atlas_ref.forms.", "atlas_ref.layers."))
    assert {each for _, each in found} <= {"atlas_ref.rules.__init__", "atlas_ref.rules.checks"}


def test_the_oracle_knows_no_block_of_levels() -> None:
    """An oracle without blocks of levels.

    It computes a block from the cases of its levels, so that the two are evidence for each other.
    """
    of = ("atlas_ref.oracle.", "atlas_ref.certify.", "atlas_ref.vectors.")
    assert imports(of, ("atlas_ref.levels",)) == set()


def _asks_the_package_for_its_version_alone(name: str) -> bool:
    attributes = {
        ast.unparse(node)
        for node in ast.walk(ast.parse(FILES[name].read_text()))
        if isinstance(node, ast.Attribute)
    }
    return {each for each in attributes if each.startswith("atlas_ref.")} == {
        "atlas_ref.__version__"
    }


def packages(name: str) -> set[str]:
    """The packages above a module, which are imported before it."""
    parts = name.split(".")
    return {".".join((*parts[:i], "__init__")) for i in range(2, len(parts))} & set(FILES)


def test_no_cycle() -> None:
    """No circle of imports, so any module can be the first that a program imports."""
    graph = {
        name: found.union(*(packages(each) - packages(name) for each in found)) - {name}
        for name in FILES
        for found in [imported(name, types=False) - {"atlas_ref.__init__", "tape.__init__"}]
    }
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"imports in a circle: {' <- '.join(error.args[1])}")
    assert set(order) >= set(FILES) - {"atlas_ref.__init__", "tape.__init__"}


def test_imports_inside_functions_are_those_of_start_up_time() -> None:
    """Imports inside functions: only those of start-up time and of extras.

    The command line and what is loaded with every start, such as the ops of the tape, may put an
    import off; so may what gives a verdict, of what only explains one or asks every subject; an
    extra, or the framework of a kernel, is imported at its use.
    """
    lazy = {
        name
        for name, path in FILES.items()
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    commands = {name for name in FILES if layer(name) == len(LAYERS) - 1}
    assert lazy - commands == {
        "atlas_ref.adapters.front",
        "atlas_ref.adapters.jax_kernels",
        "atlas_ref.adapters.mlx_kernels",
        "atlas_ref.adapters.torch_kernels",
        "atlas_ref.backend.cluster",
        "atlas_ref.certify.__init__",
        "atlas_ref.forms.__init__",
        "atlas_ref.forms.sequential",
        "atlas_ref.oracle.identify.departed",
        "atlas_ref.oracle.identify.identify",
        "atlas_ref.oracle.identify.observation",
        "atlas_ref.oracle.judge.compare",
        "atlas_ref.oracle.report.failures",
        "atlas_ref.oracle.report.nearest",
        "atlas_ref.oracle.report.report",
        "atlas_ref.oracle.judge.answers",
        "atlas_ref.oracle.judge.arrays",
        "atlas_ref.train.shown.board",
        "atlas_ref.train.shown.curve",
        "atlas_ref.train.shards",
        "atlas_ref.train.vocabulary",
        "atlas_ref.vectors.sets.cases",
        "tape.elementwise",
    }
