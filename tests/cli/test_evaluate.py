"""The commands evaluate and generate."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from atlas_ref.cli import output
from atlas_ref.cli.train import evaluate
from atlas_ref.models import checkpoint as models
from atlas_ref.models import language_model
from atlas_ref.train import run
from atlas_ref.train.use.watch import RESULTS
from tests.support import trained

pytestmark = pytest.mark.host("trains in folders")

ROOT = Path(__file__).parents[2]
LIKE = ("--batch-size", 2, "--seq-len", 16, "--batches", 2)


@pytest.mark.clause("EVAL-6", "EVAL-4")
def test_an_evaluation_says_what_the_run_said_and_what_memory_adds(cli):
    said = trained.ended("mag").held_out
    ran = cli("evaluate", trained.model("mag"), *LIKE, "--json")
    assert ran.code == 0, ran.err
    about = ran.json
    assert (about["loss"], about["tokens"]) == (said.loss, said.tokens)
    assert [each["what"] for each in about["without"]] == ["writes", "memory"]
    lines = cli("evaluate", trained.model("mag"), *LIKE).out.splitlines()
    assert lines[0].endswith(evaluate.words(about))
    assert lines[2].startswith("without memory: loss ")
    assert lines[2].endswith(" % of perplexity")
    plain = cli("evaluate", trained.model("mag"), *LIKE, "--without", "none", "--json").json
    assert plain["without"] == []


@pytest.mark.clause("EVAL-6", "EVAL-3")
def test_documents_are_told_beside_the_same_calls_anew(cli):
    words = (*LIKE, "--data", trained.text(), "--state", "document", "--without", "memory")
    ran = cli("evaluate", trained.ended("mac").path, *words)
    assert ran.code == 0, ran.err
    first, second, third = ran.out.splitlines()
    assert "each call from a start: loss " in second
    assert first.partition("loss")[2] != second.partition("loss")[2]
    assert third == "without memory: layers: block 1 is MAC, which needs its memory"


@pytest.mark.clause("EVAL-6", "EVAL-1")
def test_what_cannot_be_evaluated_is_one_line(cli, tmp_path):
    model = trained.model()
    config, params = models.load(model)
    models.save(tmp_path / "bare.safetensors", config, params)
    wide = config.replaced(vocabulary=300)
    models.save(tmp_path / "wide.safetensors", wide, language_model.init(wide))
    (tmp_path / "words.json").write_text("{")
    for words, message in (
        ((), "a MODEL or --watch DIR is needed, one of them"),
        ((model, "--watch", tmp_path), "a MODEL or --watch DIR is needed, one of them"),
        ((model, "--once"), "--once: belongs to --watch"),
        ((model, "-o", tmp_path / "x"), "--out: belongs to --watch"),
        ((model, "--state", "rows"), "state: must be 'row' or 'document'"),
        ((model, "--without", "writes,writes"), "--without: 'writes,writes' names one twice"),
        ((model, "--without", "write"), "without.0: must be 'writes' or 'memory'"),
        ((model, "--poll", "inf"), "--poll: inf, a finite number is needed"),
        ((model, "--seq-len", 5000), "held out: "),
        ((model, "--seq-len", 16, "--skip-tokens", 16), "skip: 16, no row or document"),
        ((model, "--data", tmp_path / "no"), "no: no such file or folder"),
        ((model, "--tokenizer", tmp_path / "words.json"), "words.json"),
        ((tmp_path / "bare.safetensors",), "--data: files or folders of text are needed"),
        ((tmp_path / "wide.safetensors",), "a model of 300 tokens, bytes have 256"),
        ((tmp_path / "words.json",), "words.json: not a whole safetensors file"),
        (("--watch", tmp_path / "no"), "does not exist"),
    ):
        ran = cli("evaluate", *words)
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), (words, ran)
        assert message in ran.err, ran.err


@pytest.mark.clause("EVAL-5", "EVAL-6")
def test_a_watch_once_appends_a_line_for_each_checkpoint(cli, tmp_path):
    folder = trained.copied(tmp_path / "run")
    (folder / "step-00000001.safetensors").write_bytes(b"broken")
    ran = cli("evaluate", "--watch", folder, "--once", *LIKE, "--json")
    assert ran.code == 0, ran.err
    found = ran.json["evaluations"]
    assert [(each["step"], "error" in each) for each in found] == [
        *((0, False), (1, True)),
        (2, False),
    ]
    assert found[-1]["loss"] == trained.ended().held_out.loss
    assert run.lines(folder / RESULTS) == found
    again = cli("evaluate", "--watch", folder, "--once", *LIKE)
    assert (again.code, again.err) == (0, f"0 checkpoints evaluated, in {folder / RESULTS}\n")


@pytest.mark.clause("EVAL-5", "EVAL-6")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--data", "gone"), "gone: no such file or folder"),
        (("--tokenizer", "gone"), "gone: no such file"),
        (("--tokenizer", "{folder}/run.json"), "run.json"),
        (("--seq-len", 9999), "held out: .* a row needs 10000"),
        (("--skip-tokens", 99), "skip: 99, no row or document"),
        (("--data", "{folder}", "--only", "x"), "no file in this folder matches x"),
    ],
)
def test_a_watch_with_text_that_fits_no_checkpoint_writes_nothing(words, message, cli, tmp_path):
    folder = trained.copied(tmp_path / "run")
    more = [str(each).format(folder=folder) for each in words]
    ran = cli("evaluate", "--watch", folder, "--once", *LIKE, *more)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert re.search(message, ran.err), ran.err
    assert not (folder / RESULTS).exists()


@pytest.mark.clause("EVAL-5")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["INT", "TERM"])
@pytest.mark.sample(1)
def test_a_signal_ends_a_watch_with_a_whole_file(number, tmp_path):
    folder = trained.copied(tmp_path / "run")
    words = ["--watch", str(folder), "--poll", "60", *map(str, LIKE), "--without", "none"]
    child = subprocess.Popen(
        [sys.executable, "-m", "atlas_ref.cli", "evaluate", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    while child.poll() is None and len(run.lines(folder / RESULTS)) < 3:
        time.sleep(0.05)
    child.send_signal(number)
    _, told = child.communicate(timeout=600)
    assert child.returncode == 0
    assert told.endswith(f"3 checkpoints evaluated, in {folder / RESULTS}\n")
    text = (folder / RESULTS).read_text()
    assert [json.loads(line)["step"] for line in text.splitlines()] == [0, 1, 2]
    assert text.endswith("\n")


@pytest.mark.clause("EVAL-8")
def test_a_text_is_the_same_for_the_same_seed(cli):
    words = ("generate", trained.model(), "-p", "memory learns", "--tokens", 8)
    one = cli(*words, "--seed", 3, "--samples", 2, "--json")
    assert one.code == 0, one.err
    first, second = one.json["samples"]
    assert (first["seed"], second["seed"], len(first["tokens"])) == (3, 4, 8)
    assert first["tokens"] != second["tokens"]
    (alone,) = cli(*words, "--seed", 4, "--json").json["samples"]
    assert alone == second
    shown = cli(*words, "--seed", 3, "--echo")
    assert shown.out == output.readable(f"memory learns{first['text']}\n")
    assert shown.err.startswith("seed 3: 8 tokens, ")


@pytest.mark.clause("EVAL-8", "EVAL-7")
def test_a_text_ends_with_its_stop_token(cli, tmp_path):
    (tmp_path / "prompt").write_text("memory learns")
    words = ("generate", trained.model(), "--prompt-file", tmp_path / "prompt", "--tokens", 40)
    likeliest = ("--temperature", 0, "--json")
    (whole,) = cli(*words, *likeliest).json["samples"]
    letter = chr(whole["tokens"][0])
    (cut,) = cli(*words, *likeliest, "--stop", letter).json["samples"]
    assert (cut["tokens"], cut["text"], cut["stopped"]) == (whole["tokens"][:1], "", True)


@pytest.mark.clause("EVAL-8", "EVAL-7")
def test_what_cannot_be_generated_is_one_line(cli, tmp_path):
    words = ("generate", trained.model())
    for more, message in (
        ((), "--prompt TEXT or --prompt-file FILE is needed, one of them"),
        (("-p", "a", "--prompt-file", tmp_path), "is needed, one of them"),
        (("-p", ""), "prompt: is empty"),
        (("--prompt-file", tmp_path / "no"), "no: no such file"),
        (("-p", "a", "--stop", "ab"), "stop: 'ab' is 2 tokens, one is needed"),
        (("-p", "a", "--top-p", 0), "top_p: 0.0, expected more than 0, up to 1"),
        (("-p", "a", "--min-p", 2), "min_p: 2.0, expected 0 to 1"),
        (("-p", "a", "--temperature", "nan"), "temperature: nan, expected a finite number"),
    ):
        ran = cli(*words, *more)
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), (more, ran)
        assert message in ran.err, ran.err


@pytest.mark.clause("EVAL-7")
def test_logits_that_are_not_finite_are_one_line(cli, tmp_path):
    config, params = models.load(trained.model())
    wild = params.replaced(head=np.sign(params.head) * np.float32(3e38))
    models.save(tmp_path / "wild.safetensors", config, wild)
    ran = cli("generate", tmp_path / "wild.safetensors", "-p", "memory")
    want = "atlas-ref: logits: the largest of each row must be finite\n"
    assert (ran.code, ran.out, ran.err) == (2, "", want)


@pytest.mark.clause("EVAL-8")
def test_what_a_terminal_would_act_upon_is_written_out(cli):
    words = ("generate", trained.model(), "-p", "\x1b[31m\ta\n", "--tokens", 0)
    assert cli(*words, "--echo").out == "\\x1b[31m    a\n\n"
    assert cli(*words, "--json").json["prompt"] == "\x1b[31m\ta\n"
