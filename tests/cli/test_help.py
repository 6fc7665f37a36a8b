"""What the program says of itself: help, version, completion, suggestions, what to install."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

import atlas_ref
from atlas_ref import messages
from tests.support.casefiles import some, written

RUN = "import sys; sys.argv[0] = 'atlas-ref'; from atlas_ref.cli.main import main; main()"


def test_the_program_alone_prints_its_help(cli):
    bare, asked = cli(), cli("--help")
    assert (bare.code, bare.err) == (0, "")
    assert bare.out == asked.out
    assert "Usage: " in bare.out


def test_the_version_is_one_line(cli):
    ran = cli("--version")
    assert (ran.code, ran.out, ran.err) == (0, f"atlas-ref {atlas_ref.__version__}\n", "")


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("atlas-ref che", {"check"}),
        ("atlas-ref check --noth", set()),
        ("atlas-ref check --ag", {"--against"}),
        ("atlas-ref new om", {"omega"}),
        ("atlas-ref sweep titans", {"titans_lmm"}),
        ("atlas-ref conventions atlas-m", {"atlas-mag"}),
        ("atlas-ref eval --convention rea", {"read="}),
        ("atlas-ref eval --convention ttl", {"ttl"}),
        ("atlas-ref model s", {"show"}),
        ("atlas-ref model import --from at", {"atlas-mag", "atlas-rnn"}),
        ("atlas-ref model export --to x", set()),
        ("atlas-ref eval --convention read=c", {"read=chunk_start", "read=call_end"}),
    ],
)
def test_a_shell_completes_commands_options_rules_presets_and_axes(line, words):
    environment = {
        **os.environ,
        "_ATLAS_REF_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(line.count(" ")),
    }
    done = subprocess.run(
        [sys.executable, "-c", RUN], env=environment, capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) == words


@pytest.mark.sample(1)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_program_prints_its_completion_for_a_shell(shell):
    environment = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run(
        [sys.executable, "-c", RUN, "--show-completion", shell],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "_ATLAS_REF_COMPLETE" in done.stdout


@pytest.mark.clause("CASE-35")
@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["new", "titans", "-o", "x"], "titans_lmm"),
        (["new", "omgea", "-o", "x"], "omega"),
        (["new", "omega", "--level", "tokens", "-o", "x"], "token"),
        (["sweep", "detla", "--impl", "a:b"], "delta"),
        (["conventions", "titans-papre"], "titans-paper"),
        (["new", "omega", "--convention", "fla-detla", "-o", "x"], "fla-delta"),
        (["new", "omega", "--convention", "dekay=after_error", "-o", "x"], "decay"),
        (["new", "omega", "--convention", "decay=after", "-o", "x"], "after_error"),
        (["check", "--set", "v1", "--target", "delat"], "delta"),
        (["check", "v1:delta-row"], "delta-rows"),
    ],
)
def test_a_mistyped_name_is_answered_by_the_nearest(arguments, meant, cli):
    ran = cli(*arguments)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert ran.err.endswith("?\n")
    assert meant in ran.err.rpartition("; did you mean ")[2].rstrip("?\n").split(" or ")


def test_a_name_that_resembles_none_is_answered_by_the_list_alone(cli):
    ran = cli("conventions", "x")
    assert ran.code == 2
    assert "did you mean" not in ran.err


@pytest.mark.sample(2)
@pytest.mark.clause("SRC-6")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("kernel.py:f", "a module is needed: write kernel:f"),
        ("src/kernel.py:f.g", "a module is needed: write src.kernel:f.g"),
        ("./kernel.py", "a module is needed: write kernel:FUNCTION"),
        ("../kernel.py:f", "a module is needed: in the folder .., write kernel:f"),
        ("my-code/kernel.py:f", "a module is needed: in the folder my-code, write kernel:f"),
    ],
)
def test_a_file_in_place_of_a_module_is_answered_by_what_to_write(
    name, words, cli, tmp_path, monkeypatch
):
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path / "inside")
    case = written(tmp_path / "case.safetensors", *some("delta"))
    ran = cli("check", case, "--impl", name)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"atlas-ref: impl {name}: is a file, {words}\n"


class TestInstall:
    """The command of an install hint, by where the package came from."""

    def words(self, root: Path) -> list[str]:
        python, *words = shlex.split(messages.install("certify", root=root))
        assert python == sys.executable
        assert words[:3] == ["-m", "pip", "install"]
        return words[3:]

    def test_a_clone_is_named_by_its_folder(self, tmp_path):
        (tmp_path / "a clone").mkdir()
        (tmp_path / "a clone/pyproject.toml").touch()
        assert self.words(tmp_path / "a clone") == ["-e", f"{tmp_path}/a clone[certify]"]
        assert self.words(messages.ROOT) == ["-e", f"{messages.ROOT}[certify]"]

    @pytest.mark.parametrize(
        ("origin", "want"),
        [
            (None, "atlas-ref[certify]"),
            (
                {"url": "file:///src/atlas", "dir_info": {}},
                "atlas-ref[certify] @ file:///src/atlas",
            ),
            (
                {"url": "https://x/a.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
                "atlas-ref[certify] @ git+https://x/a.git@abc",
            ),
        ],
    )
    def test_an_installation_by_what_it_was_installed_from(
        self, origin, want, tmp_path, monkeypatch
    ):
        text = None if origin is None else json.dumps(origin)
        found = SimpleNamespace(read_text=lambda name: text)
        monkeypatch.setattr(metadata, "distribution", lambda name: found)
        assert self.words(tmp_path) == [want]

    def test_a_package_without_metadata_by_its_name(self, tmp_path, monkeypatch):
        def absent(name):
            raise metadata.PackageNotFoundError(name)

        monkeypatch.setattr(metadata, "distribution", absent)
        assert self.words(tmp_path) == ["atlas-ref[certify]"]


def test_trace_spec_of_an_installation_says_that_it_takes_a_clone(cli, monkeypatch):
    for name in [each for each in sys.modules if each.partition(".")[0] == "docs"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "docs", None)
    ran = cli("trace-spec")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "in a clone of the repository" in ran.err
