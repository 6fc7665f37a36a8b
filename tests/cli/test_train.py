"""The commands train and plot."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from atlas_ref.backend import compiled
from atlas_ref.cli.train import flags, progress, train, weights
from atlas_ref.models import checkpoint as models
from atlas_ref.train import checkpoint, data, run
from atlas_ref.train.vocabulary import Bytes
from tape.nested import flatten
from tests.support.training import FakeParquet, library

pytestmark = pytest.mark.host("trains in folders")

ROOT = Path(__file__).parents[2]
TINY = ("--model", "lmm", "--rule", "delta", "--dim", 8, "--layers", 1, "--heads", 2)
TINY += ("--kernel", 1, "--expansion", 1, "--batch-size", 2, "--seq-len", 16)

#: Flags of the scripts of seeds 001 and 004.
PUBLIC = """
--dim --layers --heads --batch-size --epochs --lr --seq-len --max-steps --subsets --subset-weights
--gradient-accumulation-steps --output-dir --tokenizer --device --poly-degree --ns-iterations
--ttl-eta --no-ttl-adaptive-eta --poly-rank --frozen-m0-ratio --disable-memory --log-every
--save-every --num-workers --log-file --arch --depth --dim-head --window-size --persist-mem --model
--omega-window --use-omega-gate --poly-mode --grad-clip --data-bytes --data-path --log-interval
--save-path --use-momentum
"""


@pytest.fixture
def text(tmp_path):
    return library(tmp_path)


@pytest.mark.clause("TRAIN-16", "TRAIN-15", "TRAIN-17")
def test_a_run_goes_on_and_is_drawn(cli, text, tmp_path):
    out = tmp_path / "out"
    words = (*TINY, "--data", text, "--held-out-share", 0.25, "--out", out)
    ran = cli("train", *words, "--steps", 4, "--eval-every", 2, "--save-every", 2, "--json")
    assert ran.code == 0, ran.err
    about = ran.json
    assert (about["step"], about["exit"]) == (4, 0)
    assert about["held_out"]["bits_per_byte"] > 1
    assert "documents of" in ran.err
    assert ran.err.count("held out ") == 2
    config, _ = models.load(out / "model.safetensors")
    assert config.d_model == 8
    again = cli("train", "--out", out, "--resume", "--rollback", 2)
    assert again.code == 0, again.err
    assert again.out.startswith("step 4: loss ")
    assert checkpoint.steps(out) == [4, 2, 0]
    for kind, start in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        picture = tmp_path / f"curve.{kind}"
        drawn = cli("plot", out, "-o", picture)
        assert (drawn.code, drawn.err) == (0, f"wrote {picture}\n")
        assert picture.read_bytes().startswith(start)
    told = cli("plot", out, out, "-o", tmp_path / "two.svg", "--unit", "nats", "--json").json
    assert [each["steps"] for each in told["runs"]] == [4, 4]


@pytest.mark.clause("TRAIN-7", "TRAIN-13")
def test_a_run_goes_on_behind_its_end(cli, text, tmp_path):
    out, kept = tmp_path / "out", ("--save-every", 2, "--eval-every", 0, "--schedule", "constant")
    words = (*TINY, "--data", text, "--held-out-share", 0.25, *kept)
    assert cli("train", *words, "--out", out, "--steps", 3).code == 0
    fewer = cli("train", "--out", out, "--resume", "--steps", 2)
    assert fewer.err == "atlas-ref: steps: 2, but the run has 3; more of them would go on\n"
    ran = cli("train", "--out", out, "--resume", "--steps", 5, "--json")
    assert (ran.code, ran.json["step"], ran.json["steps"]) == (0, 5, 5), ran.err
    assert run.settings_of(out).steps == 5
    assert [line["step"] for line in run.lines(out / run.LOG)] == [1, 2, 3, 4, 5]
    # under a constant rate it is the run of five steps from the start
    assert cli("train", *words, "--out", tmp_path / "whole", "--steps", 5).code == 0
    ends = [
        flatten(models.load(each / "model.safetensors")[1]) for each in (out, tmp_path / "whole")
    ]
    assert ends[0][1] == ends[1][1]
    for x, y in zip(ends[0][0], ends[1][0], strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.clause("TRAIN-16")
def test_a_run_without_a_terminal_says_its_first_step(cli, text, tmp_path):
    few = ("--data", text, "--eval-every", 0, "--steps", 3, "--out", tmp_path / "out")
    said = cli("train", *TINY, *few).err.splitlines()
    steps = [line for line in said if line.startswith("step ")]
    assert len(steps) == 1
    assert re.fullmatch(
        r"step 1 of 3: loss [\d.]+ nats, [\d.]+ bits/byte, after [\d.]+ s", steps[0]
    )
    assert compiled.wanted() == any("the first step compiles its loops" in line for line in said)


@pytest.mark.clause("TRAIN-16")
def test_a_step_a_minute_is_said(capsys):
    now = [0.0]
    tell = progress._lines(9, lambda: now[0])
    line = {"loss": 2.0, "bits_per_byte": 3.0, "tokens_per_second": 1234.0}
    for step, seconds in enumerate((2, 30, 61, 63, 125), 1):
        now[0] = seconds
        tell({"step": step, **line})
    tell({"step": 5, "held_out": {"loss": 1.0, "bits_per_byte": 1.5}})
    assert capsys.readouterr().err.splitlines() == [
        "step 1 of 9: loss 2.0000 nats, 3.0000 bits/byte, after 2.0 s",
        "step 4 of 9: loss 2.000 3.000 bits/byte 1,234 tokens/s",
        "step 5 of 9: loss 2.000 3.000 bits/byte 1,234 tokens/s",
        "step 5 of 9: held out 1.0000 nats, 1.5000 bits/byte",
    ]


@pytest.mark.clause("TRAIN-17")
def test_the_numbers_of_a_run_are_a_table(cli, text, tmp_path):
    out, table = tmp_path / "out", tmp_path / "log.csv"
    few = ("--data", text, "--held-out-share", 0.25, "--eval-every", 2, "--steps", 4)
    assert cli("train", *TINY, *few, "--out", out).code == 0
    assert cli("plot", out, "-o", table).err == f"wrote {table}\n"
    with table.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    lines = run.lines(out / run.LOG)
    steps = [line for line in lines if "loss" in line]
    held = {line["step"]: line["held_out"]["loss"] for line in lines if "held_out" in line}
    assert [float(row["loss"]) for row in rows] == [line["loss"] for line in steps]
    assert [row["held_out_loss"] for row in rows] == [
        str(held.get(line["step"], "")) for line in steps
    ]
    assert {row["run"] for row in rows} == {"out"}
    bad = cli("plot", out, "-o", tmp_path / "x.pdf")
    assert (bad.code, bad.err.count("\n")) == (2, 1)
    assert "a picture ends in .png, .svg, numbers in .csv" in bad.err


@pytest.mark.clause("TRAIN-17")
def test_a_watched_run_is_drawn_until_it_ends(cli, text, tmp_path, monkeypatch):
    out, table = tmp_path / "out", tmp_path / "log.csv"
    few = ("--data", text, "--eval-every", 0, "--out", out)
    looks: list[int] = []
    assert cli("plot", out, "-o", table, "--watch").code == 2  # there is no run to wait for
    assert cli("train", *TINY, *few, "--steps", 2).code == 0
    (out / "model.safetensors").rename(tmp_path / "later")  # as of a run that goes on

    def sleep(seconds):
        """What happens between two looks: the run ends."""
        assert seconds == 0.5
        looks.append(len(looks))
        assert table.read_text().count("\n") == 3
        (tmp_path / "later").rename(out / "model.safetensors")

    monkeypatch.setattr("time.sleep", sleep)
    watched = cli("plot", out, "-o", table, "--watch", "--every", 0.5)
    assert (watched.code, looks) == (0, [0])
    assert watched.err.splitlines()[-1] == f"wrote {table}"


@pytest.mark.clause("TRAIN-16", "TRAIN-7", "TRAIN-1")
def test_bad_input_is_one_line_and_exit_code_2(cli, text, tmp_path):
    out = tmp_path / "out"
    run.prepare(out, _small(text))
    (tmp_path / "empty").touch()
    for words, message in (
        (("--epochs", 2), "--epochs: a flag of a public script that has no meaning here"),
        (("--device", "cuda"), "--device: .*--backend cupy"),
        (("--data", tmp_path / "none"), "none: no such file or folder"),
        (("--data", tmp_path / "empty"), "empty: is empty"),
        (("--data", tmp_path / ("x" * 300)), "x: (no such file|cannot be read)"),
        (("--data", ""), "a path is empty, a file or folder of text is needed"),
        (("--data", "\udcff"), r"text.paths: \['\\udcff'\], a name in UTF-8 is needed"),
        (("--data", text, "--seq-len", 5000), "a row needs 5001"),
        (("--data", text, "--batch-size", 2**17), "tokens: 33554432 in a batch, at most 16777216"),
        (("--data", text, "--layers", 2**20), "model.layers: must be at most 1024"),
        (("--data", text, "--dim", 2**20), "model: 74767475758464 numbers of parameters, at most"),
        ((), "--data: files or folders of text are needed"),
        (("--data", text, "--model", "gru"), "model.model: must be 'mag'"),
        (("--data", text, "--arch", "mal"), "--arch: belongs to --model titans or omeganet"),
        (("--data", text, "--rollback", 2), "--rollback: belongs to --resume"),
        (("--data", text, "--weights", "x"), "--weights: numbers between commas"),
        (("--data", text, "--weights", ""), "--weights: numbers between commas"),
        (("--data", text, "--weights", "nan"), "--weights: numbers between commas"),
        (("--data", text, "--weights", "a:1,2"), "all of them have names or none has"),
        (("--data", text, "--weights", "a:1 a:2"), "--weights: a has two weights"),
        (("--data", text, "--weights", "txt:1"), "--weights: txt is no source; sources are .*text"),
        (("--data", text, "--weights", f"{text}:1,text:1"), "--weights: .*text has two weights"),
        (
            ("--data", text, "--mixture", "smollm-corpus", "--weights", "cosmopedia-v2:1"),
            "--weights: fineweb-edu-dedup has none; sources are cosmopedia-v2, ",
        ),
        (("--resume",), "run.json: no such file"),
    ):
        ran = cli("train", "--out", tmp_path / "new", *words)
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), words
        assert re.search(message, ran.err), ran.err
        assert not (tmp_path / "new").exists()
    ran = cli("train", "--out", out, "--data", text)
    assert (ran.code, "has a run already" in ran.err) == (2, True)
    ran = cli("train", "--out", out, "--resume", "--dim", 16)
    assert ran.err == ("atlas-ref: model.dim: 16, but the run has 8; --resume keeps it\n")


@pytest.mark.clause("TRAIN-14")
def test_nothing_is_rolled_back_for_a_run_that_cannot_go_on(cli, text, tmp_path, monkeypatch):
    out = tmp_path / "out"
    few = ("--data", text, "--held-out-share", 0.25, "--out", out)
    assert cli("train", *TINY, *few, "--steps", 4, "--save-every", 1).code == 0
    back = ("train", "--out", out, "--resume", "--rollback")
    before = {each.name: each.read_bytes() for each in out.iterdir()}
    monkeypatch.setitem(sys.modules, "tensorboardX", _refusing())

    def broken():
        for step in (0, 1):
            (out / checkpoint.NAME.format(step)).write_bytes(b"")

    for prepared, words, message in (
        (None, (2, "--dim", 16), "model.dim: 16, but the run has 8"),
        (None, (2, "--tensorboard", tmp_path / "events"), "events: cannot be written"),
        (broken, (1,), "no checkpoint is whole"),
        ((text / "0.txt").unlink, (2,), "the text is not that of the run"),
        (lambda: text.rename(tmp_path / "gone"), (2,), "text: no such file or folder"),
    ):
        if prepared is not None:
            prepared()
        ran = cli(*back, *words)
        assert (ran.code, ran.err.count("\n")) == (2, 1)
        assert message in ran.err, ran.err
        left = {each.name: each.read_bytes() for each in out.iterdir()}
        assert {name: data or before[name] for name, data in left.items()} == before


def _refusing():
    """A package of TensorBoard that can write no folder."""

    def refuses(folder, purge_step):
        raise NotADirectoryError(20, "Not a directory")

    package = ModuleType("tensorboardX")
    package.SummaryWriter = refuses
    return package


def _small(text):
    from tests.support.training import settings

    return settings(text)


@pytest.mark.clause("TRAIN-17")
@pytest.mark.parametrize("name", ["_hidden", "a $x_ b$", "\x1b[31m", "n\udcffx", "\u65e5\u672c"])
def test_a_picture_names_every_run(name, cli, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib comes with the extra figures")
    folder = tmp_path / name
    folder.mkdir()
    (folder / "log.jsonl").write_text(
        '{"step": 1, "tokens": 2, "loss": 3.0, "bits_per_byte": 4.0}\n'
    )
    ran = cli("plot", folder, "-o", tmp_path / "a.svg")
    assert (ran.code, ran.err) == (0, f"wrote {tmp_path / 'a.svg'}\n")
    shown = name.encode("unicode_escape").decode() if not name.isprintable() else name
    assert f"<!-- {shown} -->" in (tmp_path / "a.svg").read_text().replace(r"\$", "$").replace(
        "<!--  _", "<!-- _"
    )


@pytest.mark.clause("TRAIN-17")
def test_a_picture_that_cannot_be_drawn_is_refused(cli, tmp_path):
    for words, message in (
        ((tmp_path, "-o", tmp_path / "a.png"), "log.jsonl: no log of a run"),
        ((tmp_path, "-o", tmp_path / "no" / "a.png"), "does not exist"),
    ):
        ran = cli("plot", *words)
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert message in ran.err
    (tmp_path / "log.jsonl").write_text(
        json.dumps({"step": 1, "tokens": 2, "loss": 3.0, "bits_per_byte": 4.0}) + "\n"
    )
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "log.jsonl").write_text(
        '{"step": 1, "tokens": null, "loss": 3.0, "bits_per_byte": 4.0}\n'
    )
    ran = cli("plot", tmp_path / "none", "-o", tmp_path / "a.png")
    assert (ran.code, "log.jsonl: a line has something else where a number" in ran.err) == (2, True)
    for words, message in (
        (("-o", tmp_path / "a.gif"), "a picture ends in .png, .svg, numbers in .csv"),
        (("-o", tmp_path / "a.png", "--unit", "bit"), "did you mean bits"),
    ):
        ran = cli("plot", tmp_path, *words)
        assert (ran.code, message in ran.err) == (2, True)


@pytest.mark.clause("TRAIN-19")
def test_events_of_tensorboard_are_written_beside_the_log(cli, text, tmp_path, monkeypatch):
    told = []
    writer = SimpleNamespace(add_scalar=lambda *each: told.append(each), close=lambda: None)
    package = ModuleType("tensorboardX")
    package.SummaryWriter = lambda folder, purge_step: writer
    monkeypatch.setitem(sys.modules, "tensorboardX", package)
    out, events = tmp_path / "out", ("--tensorboard", tmp_path / "events")
    words = (*TINY, "--data", text, "--held-out-share", 0.25, "--steps", 4, "--out", out, *events)
    assert cli("train", *words).code == 0
    losses = [each["loss"] for each in run.lines(out / run.LOG) if "loss" in each]
    assert [value for name, value, _ in told if name == "loss"] == losses

    monkeypatch.setitem(sys.modules, "tensorboardX", _refusing())
    again = ("--out", tmp_path / "refused", *events)
    ran = cli("train", *TINY, "--data", text, "--held-out-share", 0.25, "--steps", 4, *again)
    assert (ran.code, ran.err) == (
        2,
        f"atlas-ref: {events[1]}: cannot be written: Not a directory\n",
    )
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    ran = cli("train", "--out", tmp_path / "other", "--data", text, *events)
    assert (ran.code, "[tensorboard]" in ran.err, ran.err.count("\n")) == (2, True, 1)
    assert not (tmp_path / "other").exists()


@pytest.mark.clause("TRAIN-16")
@pytest.mark.parametrize(
    ("given", "want"),
    [
        (("mag", None, None, None), ("mag", None, None)),
        (("titans", None, None, 1), ("mag", "titans_lmm", None)),
        (("titans", "mac", None, None), ("mac", "titans_lmm", None)),
        (("omeganet", "mal", None, 4), ("mal", "omega", 4)),
    ],
)
def test_words_of_public_scripts_name_blocks_and_rule(given, want):
    assert flags.kind_and_rule(*given) == want


@pytest.mark.clause("TRAIN-16")
def test_every_flag_of_the_public_scripts_is_taken_or_refused_by_name():
    import typer

    from atlas_ref.cli.main import program

    command = typer.main.get_command(program()).commands["train"]
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    public = set(PUBLIC.split())
    assert public - known == set()
    table = (ROOT / "specs" / "train.md").read_text()
    assert [flag for flag in sorted(public) if flag not in table] == []
    assert [flag for flag in flags.REFUSED if flag not in table] == []


@pytest.mark.clause("TRAIN-16")
def test_words_of_seed_001_become_settings():
    given = dict.fromkeys(train.of_options.PLACES)
    given |= dict.fromkeys(("arch", "data", "no_memory", "subsets", "weights", "held_out"))
    given |= {"dim": 512, "layers": 6, "model": "atlas-mag", "no_memory": True}
    given |= {"data": ["corpus"], "mixture": "smollm-corpus", "ttl_adaptive": False}
    given |= {"subsets": "a,b", "weights": "a:0.4 b:0.6"}
    found = train._chosen(given)
    assert found == {
        "model": "atlas-mag",
        "dim": 512,
        "layers": 6,
        "memory": False,
        "paths": ["corpus"],
        "mixture": "smollm-corpus",
        "subsets": ["a", "b"],
        "weights": {"a": 0.4, "b": 0.6},
        "ttl_adaptive": False,
    }


@pytest.mark.clause("TRAIN-16")
def test_a_step_in_words_of_the_bar():
    line = {"loss": 1.5, "bits_per_byte": 2.25, "tokens_per_second": 12345.6}
    assert progress.words(line, None) == "loss 1.500  2.250 bits/byte  12,346 tokens/s"
    assert " (held out 2.500) " in progress.words(line, 2.5)


@pytest.mark.clause("TRAIN-16", "TRAIN-13")
def test_an_interrupt_ends_a_run_after_its_step_with_a_checkpoint(text, tmp_path):
    out = tmp_path / "out"
    words = [*TINY, "--data", text, "--steps", 100000, "--save-every", 100000, "--eval-every", 0]
    child = subprocess.Popen(
        [sys.executable, "-m", "atlas_ref.cli", "train", *map(str, words), "--out", str(out)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    while child.poll() is None and len(run.lines(out / run.LOG)) < 3:
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    _, told = child.communicate(timeout=600)
    assert child.returncode == 130
    step = checkpoint.steps(out)[0]
    assert step >= 3
    assert told.endswith(f"stopped after step {step}; --resume goes on\n")
    assert run.lines(out / run.LOG)[-1]["step"] == step


@pytest.mark.clause("TRAIN-16", "TRAIN-5")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"mixture": "smollm-corpus", "subsets": ["python-edu-cleaned", "cosmopedia-v2"]}, [3, 1]),
        ({"paths": ["b/python-edu-cleaned", "a/cosmopedia-v2/"]}, [3, 1]),
        ({"paths": ["cosmopedia-v2", "python-edu-cleaned"]}, [1, 3]),
    ],
)
def test_weights_with_names_go_to_these_sources(given, expected):
    """Whatever order they are in; those of an earlier run are its sources too."""
    named = weights.parsed("cosmopedia-v2/:1 python-edu-cleaned:3")
    assert weights.of_sources(given | {"weights": named}) == expected
    fields = {"paths": ["x"], **given}
    before = SimpleNamespace(text=SimpleNamespace(**{"mixture": None, "subsets": ()} | fields))
    assert weights.of_sources({"weights": named}, before) == expected
    assert weights.of_sources({"weights": weights.parsed("1,3")}, before) == [1, 3]


def _printed():
    """The commands that the specification of training prints."""
    page = (ROOT / "specs" / "train.md").read_text()
    found = re.findall(r"^    atlas-ref (train .*)$", page, re.M)
    assert len(found) > 6
    return found


@pytest.mark.clause("TRAIN-16")
def test_every_printed_command_runs(cli, monkeypatch, tmp_path):
    """In their order, since some go on from others, each for a step of a small model."""
    monkeypatch.chdir(tmp_path)
    shutil.move(library(tmp_path), "lib")
    (tmp_path / "lib" / "a.py").write_text("print('some text')\n" * 300)
    files = {}
    for name in data.MIXTURES["smollm-corpus"]:
        shard = Path("corpus", name, "a.parquet")
        shard.parent.mkdir(parents=True)
        shard.touch()
        files[str(shard.resolve())] = [[name * 20] * 4] * 30
    FakeParquet(files).install(monkeypatch)
    monkeypatch.setattr(data, "vocabulary", lambda file: Bytes())
    (tmp_path / "tokenizer.json").write_text("{}")
    small = ("--dim", 8, "--layers", 1, "--heads", 2, "--batch-size", 2, "--seq-len", 16)
    for line in _printed():
        words = shlex.split(line.replace("--steps 1000", "").replace("--workers 4", ""))
        words += [] if "--resume" in words else ["--steps", 1, "--eval-every", 0]
        words += [] if {"--resume", "--from"} & set(words) else small
        ran = cli(*words)
        assert ran.code == 0, (line, ran.err)
