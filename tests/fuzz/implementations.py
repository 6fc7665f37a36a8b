"""Implementations that crash, hang or hand over nonsense: functions of a module, and programs."""

from __future__ import annotations

from random import Random

#: A module `mine` whose functions are no good, each in a way of its own.
MODULE = r"""
import os, signal, sys, time
import numpy as np

HOSTILE = "\x1b[31m\x1b]0;x\x07\x9b2J\r[bold]\n"


class Liar:
    def __init__(self, value): self.value = value
    def __array__(self, *arguments, **options):
        if isinstance(self.value, BaseException): raise self.value
        return self.value


class Wordless(Exception):
    def __str__(self): raise ValueError


class Odd(dict):
    def items(self): raise KeyError(HOSTILE)


def good(case, inputs): return {"y": np.zeros(inputs["v"].shape)}
def raises(case, inputs): raise ValueError(HOSTILE * 100)
def wordless(case, inputs): raise Wordless
def exits(case, inputs): sys.exit(HOSTILE)
def exits_well(case, inputs): sys.exit(0)
def ends(case, inputs): os._exit(7)
def killed(case, inputs): os.kill(os.getpid(), signal.SIGKILL)
def hangs(case, inputs): time.sleep(60)
def interrupted(case, inputs): raise KeyboardInterrupt
def unsupported(case, inputs): raise NotImplementedError(HOSTILE)
def recursive(case, inputs): return recursive(case, inputs)
def nothing(case, inputs): return None
def a_list(case, inputs): return [1, 2]
def a_word(case, inputs): return HOSTILE
def odd_mapping(case, inputs): return Odd(y=1)
def numbers(case, inputs): return {"y": 3.0}
def lists(case, inputs): return {"y": [[1.0]]}
def words(case, inputs): return {"y": np.array(["a", HOSTILE])}
def objects(case, inputs): return {"y": np.array([object()])}
def dates(case, inputs): return {"y": np.array(["2020"], "M8")}
def long_doubles(case, inputs): return {"y": np.zeros(inputs["v"].shape, np.longdouble)}
def complexes(case, inputs): return {"y": np.zeros(inputs["v"].shape, np.complex128)}
def halves(case, inputs): return {"y": np.zeros(inputs["v"].shape, np.float16)}
def integers(case, inputs): return {"y": np.zeros(inputs["v"].shape, np.int8)}
def swapped(case, inputs): return {"y": np.zeros(inputs["v"].shape, ">f8")}
def structured(case, inputs): return {"y": np.zeros(3, "f8,i4")}
def nans(case, inputs): return {"y": np.full(inputs["v"].shape, np.nan)}
def huge(case, inputs): return {"y": np.full(inputs["v"].shape, 1e308)}
def shapeless(case, inputs): return {"y": np.float64(1.0)}
def empty(case, inputs): return {"y": np.zeros((0, 3))}
def lazy(case, inputs): return {"y": np.broadcast_to(np.float64(1.0), (2, 5, 3))}
def liar(case, inputs): return {"y": Liar(np.zeros(inputs["v"].shape))}
def liar_raises(case, inputs): return {"y": Liar(RuntimeError(HOSTILE))}
def liar_of_words(case, inputs): return {"y": Liar("x")}
def unknown_name(case, inputs): return {HOSTILE: np.zeros(2)}
def traced_name(case, inputs): return {f"trace/{HOSTILE}": np.zeros(2), **good(case, inputs)}
def numbered(case, inputs): return {1: np.zeros(2)}
def twice(case, inputs): return {"y": np.zeros(2), "out/y": np.zeros(2)}
def half_a_pair(case, inputs): return {"trace/\ud800": np.zeros(2)}
def floods(case, inputs):
    for stream in (sys.stdout, sys.stderr): stream.write("x" * 10**5 + "\n")
    return good(case, inputs)
def closes(case, inputs):
    os.closerange(0, 64)
    return good(case, inputs)
def loses_its_folder(case, inputs):
    os.chdir("/")
    return good(case, inputs)
def changes_inputs(case, inputs):
    case.clear()
    inputs["v"][:] = 0
    return {"y": inputs["v"]}
word = "no function"
"""

FUNCTIONS = tuple(
    line.split("(")[0].removeprefix("def ")
    for line in MODULE.splitlines()
    if line.startswith("def ") and "(case, inputs)" in line
)

#: Names that no module or function has.
NO_FUNCTIONS = ("", ":", "mine", "mine:", ":good", "mine:word", "mine:absent", "mine.py:good")
NO_FUNCTIONS += ("absent:f", "broken:f", "exits:f", "..:f", "a b:f", "mine:good.x", "-m:f", "ü:f")

#: Modules that cannot be imported.
BROKEN = {"broken.py": "raise ValueError('\\x1b[31m')\n", "exits.py": "import os\nos._exit(3)\n"}

#: What a program does, in the words of a shell; $1 is the case, $2 the place of its results.
PROGRAMS = (
    "exit 0",
    "exit 1",
    "exit 3",
    "exit 255",
    "printf '\\033[31mwords\\n' >&2; exit 3",
    "printf '\\377\\376\\033]0;x\\007\\n'; exit 9",
    "kill -KILL $$",
    "kill -SEGV $$",
    "sleep 30",
    "exec 1>&- 2>&-; exit 4",
    "sleep 30 & exit 0",
    'cp "$1" "$2"',
    'cp "$PWD/answer" "$2"',
    'cp "$PWD/answer" "$2"; exit 3',
    'cp "$PWD/answer" "$2"; exit 1',
    'head -c 100 "$PWD/answer" > "$2"',
    'mkdir "$2"',
    'mkfifo "$2"',
    'ln -s "$2" "$2"',
    'ln -s /dev/zero "$2"',
    'ln -s "$PWD/answer" "$2"',
    'printf garbage > "$2"',
    ': > "$2"',
    'printf "\\377\\377\\377\\377\\377\\377\\377\\377" > "$2"',
    'rm -rf "$(dirname "$2")"',
    'rm "$1"; cp "$PWD/answer" "$2"',
    'chmod 000 "$(dirname "$2")"; exit 0',
    "head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2; exit 5",
)

#: Commands that name no program, or lack a place.
NO_PROGRAMS = ("", " ", "'", "sh", "sh {case}", "sh {out}", "absent {case} {out}", ". {case} {out}")
NO_PROGRAMS += ("/dev/null {case} {out}", "{case} {out}", "'' {case} {out}", "\\", "{case}{out}")
NO_PROGRAMS += ("true --x={case} '{out}' {case}", "false {case} {out}", "./answer {case} {out}")


def function(random: Random, good: bool) -> str:
    """The name of a function of `mine`, or of none."""
    return f"mine:{random.choice(FUNCTIONS)}" if good else random.choice(NO_FUNCTIONS)


def program(random: Random, good: bool) -> tuple[str, str]:
    """A command, and the text of the program `does` that it may start."""
    text = random.choice(PROGRAMS)
    return ("sh ./does {case} {out}" if good else random.choice(NO_PROGRAMS)), text + "\n"
