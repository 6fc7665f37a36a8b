"""Settings of a TNT in the file of a model, and files whose settings of it are wrong."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from atlas_ref.models import checkpoint
from tests.support.memories import tnt_of
from tests.support.models import MODELS

Edit = Callable[[dict[str, Any]], Any]


def settings() -> Any:
    return checkpoint.described(MODELS["memory tnt"])


@pytest.mark.clause("MODEL-11")
def test_a_tnt_has_its_kind_and_its_memories_their_rules() -> None:
    levels = settings()["blocks"][0]["memory"]["levels"]
    assert (levels["kind"], levels["params"]) == ("tnt", "shared")
    memories = [levels["tnt"]["global_memory"], *levels["tnt"]["local_memories"]]
    assert [each["rule"] for each in memories] == ["titans_lmm"] * 3
    assert checkpoint.described(checkpoint.config_of(settings())) == settings()
    alone = MODELS["memory tnt locals"]
    assert alone.blocks[0].memory.levels == tnt_of(
        "delta", span=None, spans=(2,), shards=(4,), origin=1
    )
    said = checkpoint.described(alone)
    assert checkpoint.described(checkpoint.config_of(said)) == said
    names = checkpoint.needed_by(MODELS["memory tnt"])
    assert names["blocks.0.memory.initial.2.M"].shape == (2, 3, 3)
    plain = checkpoint.described(MODELS["memory delta"])["blocks"][0]["memory"]["levels"]
    assert "kind" not in plain


WRONG: dict[str, tuple[Edit, str]] = {
    "another kind": (
        lambda levels: levels.update(kind="tn"),
        "levels.kind: 'tnt' or no key is needed, found 'tn'",
    ),
    "no object": (
        lambda levels: levels["tnt"].update(global_memory=3),
        "global_memory.0: an object is needed, found 3",
    ),
    "no rule": (
        lambda levels: levels["tnt"]["global_memory"].pop("rule"),
        "global_memory.0.rule: one of .* is needed, missing",
    ),
    "unknown key": (
        lambda levels: levels["tnt"]["local_memories"][1].update(shards=4),
        "local_memories.1.shards: unknown key",
    ),
    "no span": (
        lambda levels: levels["tnt"]["local_memories"][0].update(span=0),
        "local_memories.0.span",
    ),
}


@pytest.mark.clause("MODEL-11")
@pytest.mark.parametrize("name", WRONG)
def test_wrong_settings_of_a_tnt_are_one_line(name: str) -> None:
    edit, says = WRONG[name]
    value = copy.deepcopy(settings())
    edit(value["blocks"][0]["memory"]["levels"])
    with pytest.raises(ValueError, match=says) as error:
        checkpoint.config_of(value)
    assert "\n" not in str(error.value)
