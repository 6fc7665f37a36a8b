"""`OPTIMISERS`: the one list that groups, runs and the help of a command are built from."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from atlas_ref.cli.train.train import train
from atlas_ref.optim import DEFAULT, OF_MATRICES, OF_RUNS, OPTIMISERS, groups, module_of
from atlas_ref.optim.matrices import MatrixSettings
from atlas_ref.train.settings import Optimiser

EACH = pytest.mark.parametrize("name", OPTIMISERS)


@EACH
def test_the_name_of_an_optimiser_is_the_kind_of_its_settings(name: str) -> None:
    facts = OPTIMISERS[name]
    config = facts.module.Config(rate=0.1, **(facts.run or {}))
    assert (config.kind, module_of(config)) == (name, facts.module)
    assert isinstance(config, MatrixSettings) >= facts.matrices


@EACH
def test_a_group_takes_the_settings_of_each(name: str) -> None:
    given: dict[str, Any] = {"kind": name, "rate": 0.1}
    group = groups.Group(name="all", optimiser=given)  # type: ignore[arg-type]  # from JSON
    assert type(group.optimiser) is OPTIMISERS[name].module.Config


def test_a_group_refuses_another_kind_and_names_all() -> None:
    with pytest.raises(ValidationError) as refused:
        groups.Group(name="all", optimiser={"kind": "lion", "rate": 0.1})  # type: ignore[arg-type]
    assert ", ".join(f"'{name}'" for name in OPTIMISERS) in str(refused.value)


def test_a_run_takes_those_that_say_so_the_default_first() -> None:
    said = {name for name, each in OPTIMISERS.items() if each.run is not None}
    assert (set(OF_RUNS), OF_RUNS[0], Optimiser().name) == (said, DEFAULT, DEFAULT)
    assert get_args(Optimiser.model_fields["name"].annotation) == OF_RUNS
    with pytest.raises(ValidationError, match=f"'{OF_RUNS[-2]}' or '{OF_RUNS[-1]}'"):
        Optimiser(name="adamw_flat")


def test_the_help_of_train_names_all_of_a_run() -> None:
    options = inspect.signature(train, eval_str=True).parameters
    words = {name: options[name].annotation.__metadata__[0].help for name in options}
    assert words["optimiser"] == "adamw, sgd, muon, adamuon or m3. adamw."
    assert words["hidden_rate"] == f"Of {', '.join(OF_MATRICES)}. 0.02."


def test_the_list_loads_no_optimiser() -> None:
    code = (
        "import sys, atlas_ref.optim\n"
        "print(sorted(name for name in sys.modules if name.startswith('atlas_ref.optim.')))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
