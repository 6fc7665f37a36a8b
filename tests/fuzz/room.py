"""The folder of one input: files good and malformed, under good and odd names."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.fuzz import contents
from tests.fuzz.values import HOSTILE

#: Content by the name of a file and its bytes.
Corpus = dict[str, dict[str, bytes]]

#: Names that a shell passes on and a reader of options or a terminal may trip over.
NAMES = (
    "-",
    "--",
    "--json",
    "-o",
    "-x",
    "a b",
    "'q'",
    "[bold]",
    "{case}",
    "v1:x",
    "a:y",
    "~",
    "%s",
)
NAMES += (HOSTILE.replace("/", ""), "\udcff\udcfe", "ü\u0301", "\U0001f600", "x" * 200, "a=b", "*")

#: Places that are no regular files, or none at all.
PLACES = ("", ".", "..", "/", "/dev/null", "/dev/full", "/dev/zero", "/proc/self/mem", "absent")
PLACES += ("absent/x", "x" * 300, "/dev/stdin", "v1:", "v1:absent", "v1:delta-rows", ":", "link")
PLACES += ("loop", "pipe", "\udcff", "/proc/self/fd/99", "folder", "../" * 3 + "dev/null")


def loaded(folder: Path) -> Corpus:
    """All good files of a folder by kind, of a set and a clone by their paths."""
    return {
        kind.name: {
            path.relative_to(kind).as_posix(): path.read_bytes()
            for path in sorted(kind.rglob("*"))
            if path.is_file()
        }
        for kind in sorted(folder.iterdir())
    }


class Room:
    """Draws files into a folder, and keeps what must not change and what may be written.

    Attributes:
        read: names of files that a command must leave as they are.
        written: names of files, and of folders, that a command may write.
    """

    def __init__(self, random: Random, folder: Path, good: Corpus) -> None:
        self.random, self.folder, self.good = random, folder, good
        self.read: set[str] = set()
        self.written: set[str] = set()
        self.case = ""
        self.environment: dict[str, str] = {}

    def put(self, name: str, data: bytes) -> str:
        """Write a file, and its name as a command takes it."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self.read.add(name)
        return name if not name.startswith("-") or self.random.random() < 0.3 else f"./{name}"

    def name(self, ending: str) -> str:
        """A name of a file, sometimes an odd one."""
        if self.random.random() < 0.9:
            return f"file{len(self.read)}{ending}"
        return self.random.choice(NAMES) + self.random.choice((ending, ""))

    def place(self) -> str:
        """A place that is no regular file."""
        (self.folder / "folder").mkdir(exist_ok=True)
        for name, target in (("link", "absent"), ("loop", "loop")):
            if not os.path.lexists(self.folder / name):
                (self.folder / name).symlink_to(target)
        if not (self.folder / "pipe").exists():
            os.mkfifo(self.folder / "pipe")
        return self.random.choice(PLACES)

    def tensors(self, kind: str, good: bool, most: str = "") -> str:
        """A safetensors file of a kind; results and traces are those of the case, if it has any.

        Args:
            most: the file that is taken most often.
        """
        files = self.good[kind]
        same = (most or self.case) if self.random.random() < 0.9 else ""
        same = same if same in files else ""
        file = same or self.random.choice(sorted(files))
        if kind == "case":
            self.case = file
        if good:
            return self.put(self.name(".safetensors"), files[file])
        if self.random.random() < 0.12:
            return self.place()
        return self.put(
            self.name(".safetensors"), contents.tensors_spoilt(self.random, files[file])
        )

    def log(self, good: bool) -> str:
        """A log, which a command may append to."""
        name = self.text("log", good)
        self.read.discard(name.removeprefix("./"))
        self.written.add(name.removeprefix("./"))
        return name

    def folder_of(self, kind: str, good: bool) -> str:
        """A folder with a few safetensors files, some of them malformed."""
        name = f"folder{len(self.read)}"
        (self.folder / name).mkdir()
        for file in self.random.sample(sorted(self.good[kind]), 2):
            data = self.good[kind][file]
            bad = not good and self.random.random() < 0.7
            self.put(f"{name}/{file}", contents.tensors_spoilt(self.random, data) if bad else data)
        return name

    def text(self, kind: str, good: bool) -> str:
        """A file of JSON, TOML or lines."""
        file = self.random.choice(sorted(self.good[kind]))
        data = self.good[kind][file]
        if not good and self.random.random() < 0.12:
            return self.place()
        return self.put(
            self.name(Path(file).suffix), data if good else self.spoilt(Path(file).suffix)(data)
        )

    def spoilt(self, suffix: str) -> Callable[[bytes], bytes]:
        """What malforms a file, by the ending of its name."""
        kinds = {".json": contents.json_spoilt, ".safetensors": contents.tensors_spoilt}
        change = kinds.get(suffix, contents.lines_spoilt)
        return lambda data: change(self.random, data)

    def tree(self, kind: str, good: bool) -> str:
        """A folder of several files that belong together, as a set has them."""
        name = f"{kind}{len(self.read)}"
        files = dict(self.good[kind])
        if not good:
            for _ in range(self.random.choice((1, 1, 2))):
                self._spoil_tree(name, files)
        for file, data in files.items():
            path = self.folder / name / file
            if not os.path.lexists(path):
                self.put(f"{name}/{file}", data)
        return name

    def _spoil_tree(self, name: str, files: dict[str, bytes]) -> None:
        if not files:  # the one that there was is gone
            return
        file = self.random.choice(sorted(files))
        place = self.folder / name / file
        match self.random.randrange(8):
            case 0:
                del files[file]
            case 1:
                files[f"{Path(file).parent}/{self.random.choice(NAMES)}"] = b"x"
            case 2:
                place.parent.mkdir(parents=True, exist_ok=True)
                if not os.path.lexists(place):
                    place.symlink_to(self.random.choice(PLACES) or "x")
            case 3:
                place.mkdir(parents=True, exist_ok=True)
            case _:
                files[file] = self.spoilt(Path(file).suffix)(files[file])
                if self.random.random() < 0.8 and "SHA256SUMS" in files and file != "SHA256SUMS":
                    files["SHA256SUMS"] = _summed(files)

    def out(self, ending: str, good: bool) -> str:
        """A file to write; sometimes one that is read, or that no command can write."""
        if not good and self.random.random() < 0.5:
            name = self.random.choice((self.place(), *sorted(self.read)))
            if name in self.read:
                return name  # which it must refuse
            name = "absent" if name.startswith(("..", "/")) and "dev" not in name else name
        else:
            name = self.name(ending if good else self.random.choice((ending, "", ".txt")))
            name = f"out-{name}" if name in self.read else name
            if self.random.random() < 0.1:
                (self.folder / name).write_bytes(b"earlier")
        # a link that leads to no file, and folders that are made on the way
        self.written |= {name, "absent"} if name in ("link", "absent/x") else {name}
        return name if not name.startswith("-") else f"./{name}"


def _summed(files: dict[str, bytes]) -> bytes:
    from atlas_ref.vectors.sets import manifest

    return manifest.sums({name: data for name, data in files.items() if name != manifest.SUMS})
