"""Sizes and defaults of public scripts, by the name of each (TRAIN-16)."""

from __future__ import annotations

import re

import pytest

from atlas_ref.cli.train import settings
from atlas_ref.train import models, run
from atlas_ref.train.settings import Model
from tests.support.training import library

pytestmark = pytest.mark.host("trains in folders")

SMALL = ("--dim", 8, "--layers", 1, "--heads", 2, "--expansion", 1, "--batch-size", 1)
SMALL += ("--seq-len", 8, "--steps", 1, "--eval-every", 0, "--poly-rank", 0)


@pytest.fixture
def text(tmp_path):
    return library(tmp_path)


@pytest.mark.clause("TRAIN-16", "MODEL-14")
@pytest.mark.parametrize(("name", "count"), [("small", 42_569_990), ("base", 124_741_644)])
def test_the_sizes_of_the_text_of_atlas_mag_are_a_configuration(name, count):
    own = Model(**settings.configuration(name))
    assert models.numbers(models.model(own, 32_000)) == count


@pytest.mark.clause("TRAIN-16")
def test_options_stand_before_a_configuration(cli, text, tmp_path):
    out = tmp_path / "out"
    ran = cli("train", "--config", "small", *SMALL, "--data", text, "--out", out)
    assert ran.code == 0, ran.err
    own = run.settings_of(out).model
    assert (own.model, own.dim, own.window, own.memory_mlp) == ("atlas-mag", 8, 512, "geglu")


@pytest.mark.clause("TRAIN-16")
def test_defaults_of_public_scripts(cli, text, tmp_path):
    mag, rnn = tmp_path / "mag", tmp_path / "rnn"
    ran = cli("train", "--defaults", "atlas-mag", *SMALL, "--data", text, "--out", mag)
    assert ran.code == 0, ran.err
    own = run.settings_of(mag)
    assert (own.model.ns_steps, own.model.ttl_step, own.model.ttl_adaptive) == (10, 0.01, True)
    assert (own.optimiser.rate, own.optimiser.decay, own.optimiser.clip) == (3e-4, 0.1, 1.0)
    assert (own.optimiser.warmup, own.save_every, own.log_every, own.rows) == (0, 500, 10, 1)
    words = (*SMALL[:-2], "--dim-head", 4, "--model", "titans")
    ran = cli("train", "--defaults", "atlas-rnn", *words, "--data", text, "--out", rnn)
    assert ran.code == 0, ran.err
    own = run.settings_of(rnn)
    assert (own.model.rule, own.model.window, own.text.limit) == ("titans_lmm", 64, 95_000_000)
    assert (own.optimiser.rate, own.optimiser.decay, own.text.share) == (1e-3, 0.01, 0.05)


@pytest.mark.clause("TRAIN-16")
@pytest.mark.parametrize(("steps", "warmup"), [(None, 100), (50, 49), (1000, 100), (50_000, 500)])
def test_the_warm_up_of_atlas_mag_is_a_hundredth_and_at_least_a_hundred(steps, warmup):
    assert settings.defaults("atlas-mag", steps)["warmup"] == warmup


@pytest.mark.clause("TRAIN-16")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--config", "huge"),
            "configuration 'huge' does not exist; configurations are small, base",
        ),
        (("--defaults", "atlas-rn"), "did you mean atlas-rnn"),
        (("--memory-mlp", "relu", "--model", "atlas-mag"), "model.memory_mlp: must be 'gelu' or"),
        (("--memory-mlp", "geglu"), "memory_mlp: "),
        (("--config", "small", "--model", "mag"), "poly_rank|memory_mlp|poly_degree"),
    ],
)
def test_bad_names_are_one_line(words, message, cli, text, tmp_path):
    ran = cli("train", *words, "--data", text, "--out", tmp_path / "out")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran.err
    assert re.search(message, ran.err), ran.err
    assert not (tmp_path / "out").exists()


@pytest.mark.clause("TRAIN-16")
def test_how_memories_learn_are_options(cli, text, tmp_path):
    """Of a public configuration, TTL_ENABLED, TTL_THETA, TTL_ALPHA and the window."""
    words = ("--model", "atlas-mag", *SMALL, "--data", text, "--out")
    learning = ("--ttl-theta", 0.5, "--ttl-alpha", 0.9, "--omega-context-window", 3)
    assert cli("train", *words, tmp_path / "on", *learning).code == 0
    own = run.settings_of(tmp_path / "on").model
    memory = models.model(own, 256).blocks[0].memory
    assert (memory.rates.momentum, memory.rates.retain) == (0.5, 0.9)
    assert memory.level.config.window == 3
    assert cli("train", *words, tmp_path / "off", "--no-ttl").code == 0
    off = models.model(run.settings_of(tmp_path / "off").model, 256).blocks[0].memory
    assert (off.level.config.phase, memory.level.config.phase != "off") == ("off", True)


@pytest.mark.clause("TRAIN-16", "EVAL-6", "EVAL-8")
@pytest.mark.parametrize("command", ["evaluate", "generate"])
@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--checkpoint-dir", "the folder, or a checkpoint in it, is the argument MODEL"),
        ("--checkpoint", "the file, or its folder, is the argument MODEL"),
        ("--device", "--backend cupy computes on a GPU"),
    ],
)
def test_public_flags_of_other_commands_are_refused_by_name(command, flag, message, cli):
    ran = cli(command, flag, "x")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        f"atlas-ref: {flag}: a flag of a public script that has no meaning here: {message}\n"
    )
