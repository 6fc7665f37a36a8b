"""Words for every command of the command line, as its own parameters say what it takes.

Commands and options are read from the program itself, so that a new one is fuzzed without a line
here; a line of `GOOD` says what a parameter needs so that the command gets further.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import typer

from atlas_ref.cli.main import program
from atlas_ref.conventions import AXES, PRESETS
from atlas_ref.forms import FORMS
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.schema.schema import axis_values
from atlas_ref.rules import RULES
from tests.fuzz import implementations
from tests.fuzz.room import Room
from tests.fuzz.values import HOSTILE, WORDS

#: Chance that a command has one of its optional options.
OFTEN, SELDOM = 0.2, 0.03

#: Words that no option should take for more than what they are.
ODD_WORDS = ("", " ", "-1", "0", "1e400", "nan", "inf", "-inf", "9" * 30, "1" * 5000, "\u0663")
ODD_WORDS += ("1_0", " 2", "0x10", "true", "1.5", "-0", "{", "[", "{}", "[]", "null", '{"kind":1}')
ODD_WORDS += ("[" * 5000, '{"a":' * 3000, '{"kind":"x","kind":"y"}', '[{"rule":"delta"}]', "a=b")
ODD_WORDS += ("=x", "x=", "newton_schulz.steps=x", "newton_schulz=3", "preset=", "query_scale=nan")
ODD_WORDS += (
    HOSTILE,
    "\udcff\udcfe",
    "x" * 5000,
    "ü",
    ",",
    ",,1",
    "1,2",
    "-",
    "--",
    "--json",
    "-o",
)
ODD_WORDS += ("--help", "--version", "--no-such", "-x", "v1:", ":y", "a:b:c", "%s", "$(id)", "`id`")
ODD_WORDS += ("out/y", "grad/k", "in/k", "y", "*", "~", "{case}", "{out}", "2030-01-01", "\u202e")


class Command(NamedTuple):
    """A command by its words, and its parameters as the program declares them."""

    words: tuple[str, ...]
    parameters: tuple[Any, ...]

    @property
    def name(self) -> str:
        return " ".join(self.words)


def _leaves(command: Any, words: tuple[str, ...] = ()) -> Iterator[Command]:
    inner = getattr(command, "commands", None)
    if not inner:
        yield Command(words, tuple(command.params))
    for name, each in (inner or {}).items():
        yield from _leaves(each, (*words, name))


#: The program, built once: building is most of the time of a small command.
PROGRAM = typer.main.get_command(program())

COMMANDS = {each.name: each for each in _leaves(PROGRAM)}

Draw = Callable[[Room, bool], str]

#: A function with the arguments of a name.
KERNEL = """
def kernel(q, k, v, g=None, beta=None, initial_state=None): raise ValueError(HOSTILE)
"""


def _word(*words: str) -> Draw:
    return lambda room, good: room.random.choice(words if good else ODD_WORDS)


def _number(*numbers: int) -> Draw:
    """Small numbers; large ones are a matter of time and memory, not of form."""
    wrong = ("0", "-1", "-999", "1e3", "x", "", "9" * 30, str(2**63), str(2**64), "1.0", "nan")
    return lambda room, good: room.random.choice((*map(str, numbers),) if good else wrong)


def _few(*numbers: int) -> Draw:
    """Numbers of processes or cases, which no odd value may make many."""
    return lambda room, good: room.random.choice(
        (*map(str, numbers),) if good else ("0", "-1", "x", "", "1e3", "1.0", "nan", str(-(2**63)))
    )


def _convention(room: Room, good: bool) -> str:
    if room.random.random() < 0.3:
        return room.random.choice(list(PRESETS))
    axis = room.random.choice(list(AXES))
    return f"{axis}={room.random.choice(axis_values(axis)) if good else odd_word(room)}"


def odd_word(room: Room) -> str:
    """An odd word, or one of the format in a place that is not its own."""
    return room.random.choice(WORDS if room.random.random() < 0.3 else ODD_WORDS)


def _json(*kinds: str) -> Draw:
    def draw(room: Room, good: bool) -> str:
        kind = room.random.choice(kinds)
        if room.random.random() < 0.5:
            return kind if good else odd_word(room)
        key = room.random.choice(("degree", "base", "of", "scale", "hidden", "rule", "window"))
        value = room.random.choice((1, 2, 0.5, [], None, -1, 10**17, "x", [{"kind": kind}]))
        return json.dumps({"kind": kind} | ({} if good else {key: value}))

    return draw


def _tensors(kind: str) -> Draw:
    return lambda room, good: room.tensors(kind, good)


def _or_folder(kind: str) -> Draw:
    def draw(room: Room, good: bool) -> str:
        folder = room.random.random() < 0.1
        return room.folder_of(kind, good) if folder else room.tensors(kind, good)

    return draw


def _text(kind: str) -> Draw:
    return lambda room, good: room.text(kind, good)


def _tree(kind: str) -> Draw:
    def draw(room: Room, good: bool) -> str:
        here = good or room.random.random() < 0.85
        return room.tree(kind, good) if here else room.random.choice(("v0", room.place()))

    return draw


def _mostly(draw: Draw) -> Draw:
    """What a command always has, so that it gets further: odd in a third of the odd draws."""
    return lambda room, good: draw(room, good or room.random.random() < 0.7)


def _watched(room: Room, good: bool) -> str:
    """A folder of checkpoints, with the file that a watch appends to."""
    name = _tree("checkpoints")(room, good)
    room.read.discard(f"{name}/evaluations.jsonl")
    room.written.add(f"{name}/evaluations.jsonl")
    return name


def _out(*endings: str) -> Draw:
    return lambda room, good: room.out(room.random.choice(endings), good)


def _impl(room: Room, good: bool) -> str:
    room.put("mine.py", implementations.MODULE.encode())
    for name, text in implementations.BROKEN.items():
        room.put(name, text.encode())
    return implementations.function(room.random, good)


def _function(room: Room, good: bool) -> str:
    """A function of a file, of which few have the arguments of a name."""
    room.put("mine.py", (implementations.MODULE + KERNEL).encode())
    odd = (
        "mine.py",
        "mine.py:",
        ":kernel",
        "absent.py:f",
        "mine:raises",
        "os:abort",
        "\udcff.py:f",
    )
    return room.random.choice(("mine.py:kernel", "mine.py:good") if good else (*odd, "mine.py:no"))


def _program(room: Room, good: bool) -> str:
    command, text = implementations.program(room.random, good)
    room.put("does", text.encode())
    file = room.case if room.case in room.good["results"] else sorted(room.good["results"])[0]
    answer = room.good["results"][file]
    room.put("answer", answer if good else room.spoilt(".safetensors")(answer))
    return command


def _prose(room: Room, good: bool) -> str:
    """A text; no folder but the room, since all that lies below one is read."""
    if not good and room.random.random() < 0.3:
        return room.random.choice(("absent", "", "/dev/null", "x" * 300, "/dev/zero"))
    return room.put(room.name(".txt"), room.good["prose"]["a.txt"])


#: Parameter, or command and parameter -> what is good for it, or malformed.
GOOD: dict[str, Draw] = {
    "file": _tensors("case"),
    "files": _or_folder("case"),
    "levels file": lambda room, good: room.tensors("case", good, "block.safetensors"),
    "what": lambda room, good: (
        f"{room.tensors('case', good)}:{_word('y', 'M', 'grad/k')(room, good)}"
    ),
    "out": _out(".safetensors"),
    "levels out": _out(""),
    "model import file": _tensors("public"),
    "model export file": _tensors("model"),
    "model show file": _tensors("model"),
    "model replay file": _tensors("recording"),
    "model identify file": _tensors("recording"),
    "origin": _word("atlas-rnn"),
    "destination": _word("atlas-rnn"),
    "probe capacity memories": _word(*RULES, "least_squares"),
    "probe capacity pairs": _word("1", "2,3", "4"),
    "probe capacity period": _word("1", "2", "pairs"),
    "probe capacity keys": _word("unit", "free"),
    "probe capacity step_size": _word("0.5", "1"),
    "probe capacity momentum": _word("0", "0.5"),
    "probe capacity retain": _word("0.9", "1"),
    "probe capacity feature_map": _word("identity", "polynomial"),
    "probe capacity out": _out(".png", ".svg"),
    "probe capacity parameter": _word("window=2", "window=pairs", "chunk=2", "memory.kind=mlp"),
    "probe recall memories": _word("hebbian", "delta", "gated_delta", "titans_lmm", "omega"),
    "probe recall pairs": _word("1", "1,2"),
    "probe recall steps": _few(0, 1, 2),
    "probe recall preset": _word("unit", "causal", "titans", "atlas-rnn"),
    "config": _text("settings"),
    "sweep out": _out(""),
    "identify out": _or_folder("results"),
    "vectors make out": _out(""),
    "vectors search out": _out(".json"),
    "decide": _out(".safetensors"),
    "report": _out(".json", ".xml", ".html"),
    "vectors kill-matrix report": _out(".md", ".json"),
    "against": _or_folder("results"),
    "replay trace": _tensors("trace"),
    "xfail": _text("xfail"),
    "resume": lambda room, good: room.log(good),
    "root": _tree("root"),
    "record": lambda room, good: room.put(
        room.name(".json"),
        (room.spoilt(".json") if not good else bytes)(room.good["root"]["build/trace/run.json"]),
    ),
    "clauses": _word("SMALL-1", "SMALL-2"),
    "name": _tree("set"),
    "old": _tree("set"),
    "new": _tree("set"),
    "sets": _tree("set"),
    "vectors make name": _text("plan"),
    "vectors search name": _word("small"),
    "version": _word("1.0.0"),
    "rule": _word(*SUBJECTS),
    "new rule": _word(*SUBJECTS),
    "sweep rule": _word("delta", "delta", "tnt", "dplr"),
    "target": _word("hebbian", "newton_schulz"),
    "preset": _word(*PRESETS),
    "command": _word(*COMMANDS),
    "check command": _program,
    "identify command": _program,
    "check keep": _out(".safetensors"),
    "program": _program,
    "impl": _impl,
    "try name": _word("kda", "gdn", "GLA", "linear-attn"),
    "try function": _function,
    "try keep": _out(""),
    "try like": _word("fla", "mlx", "onnx"),
    "arrays": _word("numpy"),
    "fix": _word("tokens=2", "d_in=2", "dtype=float32", "heads=1", "member=kda", "locals=1"),
    "timeout": lambda room, good: "0.4" if good else room.random.choice(("0", "-1", "nan", "x")),
    "only": _word("y", "M", "grad/k", "y,M", "X"),
    "dtype": _word("float64", "float32", "bfloat16", "float16"),
    "state_dtype": _word("float32", "bfloat16"),
    "convention": _convention,
    "without": _word("pulse", "reset,rows", "gradient", "token"),
    "form": _word(*FORMS),
    "level": _word("projected", "token"),
    "feature_map": _json(
        "identity", "linear", "polynomial", "elu", "sketch", "residual_mlp", "tensor_sketch"
    ),
    "window_weights": _json("uniform", "ones", "decay", "softmax", "gate", "product"),
    "periods": _word("1,2", "2", "1"),
    "levels": _word("delta,omega", "delta", '[{"rule":"omega","window":2}]'),
    "combine": _word("softmax", "masked"),
    "backend": _word("numpy"),
    "scheduler": lambda room, good: room.random.choice(("", "x", "x://y", "\udcff")),
    "jobs": _few(1),
    "workers": _few(2),
    "cases": _few(1, 2),
    "seeds": _few(1),
    "keep": _few(0, 1),
    "shrink": _few(0, 5),
    "max_bits": _few(53, 256),
    "depth": _few(0, 0, 0, 0, 1),
    "train out": _mostly(_out("")),
    "tensorboard": _out(""),
    "data": _prose,
    "held_out": _prose,
    "train model": _word("lmm", "mag", "omega", "titans"),
    "train rule": _word("delta", "hebbian"),
    "train preset": _word("unit", "causal", "titans"),
    "tokenizer": _text("settings"),
    "mixture": _word("smollm-corpus"),
    "subsets": _word("cosmopedia-v2"),
    "weights": _word("1"),
    "optimiser": _word("adamw", "muon"),
    "state": _word("fresh", "carried"),
    "schedule": _word("cosine", "constant"),
    "train only": _word("*", "*.txt"),
    "steps": _mostly(_few(1, 2)),
    "dim": _mostly(_few(8)),
    "layers": _mostly(_few(1)),
    "rows": _mostly(_few(1, 2)),
    "train tokens": _mostly(_few(4)),
    "tnt_global_span": _few(2, 4),
    "tnt_local_spans": _word("1", "2", "1,2"),
    "tnt_shards": _word("4", "2"),
    "tnt_params": _word("shared", "per_memory"),
    "tnt_preset": _word("paper", "paper-app-c", "paper-literal"),
    "train periods": _word("1", "1,2", "2,3"),
    "begins_from": _tensors("trained"),
    "learns": _word("all", "locals"),
    "runs": _tree("run"),
    "plot out": _out(".svg"),
    "unit": _word("bits", "nats"),
    "evaluate model": _mostly(_tensors("trained")),
    "evaluate rows": _mostly(_few(1, 2)),
    "evaluate tokens": _mostly(_few(1, 4)),
    "batches": _mostly(_few(1)),
    "evaluate state": _word("row", "document"),
    "evaluate without": _word("writes", "memory", "writes,memory", "none"),
    "evaluate skip": _few(0, 2),
    "evaluate tokenizer": _text("settings"),
    "watch": _watched,
    "evaluate out": _out(".jsonl"),
    "poll": _few(0, 1),
    "generate model": _mostly(_tensors("trained")),
    "prompt": _mostly(_word("a memory", "x")),
    "prompt_file": _prose,
    "generate tokens": _mostly(_few(0, 1, 3)),
    "generate tokenizer": _text("settings"),
    "temperature": _word("0", "1", "0.7"),
    "top_k": _few(0, 1, 50),
    "top_p": _word("1", "0.9"),
    "min_p": _word("0", "0.1"),
    "stop": _word(".", "a"),
    "samples": _mostly(_few(1, 2)),
    "probe needle model": _mostly(_tensors("trained")),
    "lengths": _mostly(_word("70", "60,70")),
    "depths": _mostly(_word("0", "0,100", "50")),
    "digits": _few(1, 2),
    "probe needle out": _out(".png", ".svg"),
    "probe needle tokenizer": _text("settings"),
}

#: Options that cost a process, or the search of many conventions: seldom is enough.
COSTLY = {"impl", "program", "jobs", "workers", "scheduler", "decide", "form"}

#: Parameters without which a command takes v1, or many cases, which takes long, or finds nothing.
ALWAYS = {
    "vectors verify": ("name",),
    "vectors kill-matrix": ("name",),
    "sweep": ("cases", "out", "timeout"),
    "identify": ("depth", "timeout"),
    "check": ("timeout",),
    "try": ("timeout", "keep"),
    "trace-spec": ("root",),
    "probe capacity": ("pairs",),
    "train": ("data", "steps", "dim", "layers", "rows", "tokens"),
    "evaluate": ("data", "rows", "tokens", "batches", "once"),
    "generate": ("tokens",),
    "probe needle": ("data", "lengths", "depths", "samples"),
    "probe recall": ("steps",),
}

#: Options that go together: without the one the other is refused, which is said soon enough.
TOGETHER = {"target": "sets", "larger": "sets", "shrink": "program", "chunk": "form"}
TOGETHER |= {"once": "watch", "tnt_shards": "tnt_local_spans", "learns": "begins_from"}
TOGETHER |= {"tnt_params": "tnt_global_span", "tnt_preset": "tnt_global_span"}
TOGETHER |= {"by_level": "periods"}

#: Chance of an option of commands with many, most of which exclude each other.
FEWER = {"new": 0.06, "train": 0.015, "evaluate": 0.05, "generate": 0.1}

#: Options of which a command takes one.
EITHER = (
    {"against", "impl", "command", "program"},
    {"model", "watch"},
    {"prompt", "prompt_file"},
)

#: Chances of parameters without which a command does little.
CHANCES = {"evaluate model": 0.7, "evaluate watch": 0.8}
CHANCES |= {"generate prompt": 0.7, "generate prompt_file": 0.8}

#: Commands that take minutes on good input, and that are only given what must be refused.
REFUSED = {"vectors search": ("version", "name")}


def draw(room: Room, command: Command) -> list[str]:
    """The words of a command line of this command, its files drawn into the room."""
    random = room.random
    mode = random.choice(("files", "files", "files", "options", "both", "good"))
    words, last, chosen = list(command.words), [], set()
    for parameter in sorted(command.parameters, key=lambda each: each.param_type_name == "option"):
        chance = SELDOM if parameter.name in COSTLY else OFTEN
        if parameter.name == "command":
            chance = 0.1
        if command.name in FEWER and not parameter.required:
            chance = FEWER[command.name]
        chance = CHANCES.get(f"{command.name} {parameter.name}", chance)
        if random.random() < 0.95 and not _fits(parameter.name, chosen):
            continue
        if parameter.required or parameter.name == "files":
            chance = 0.97
        if parameter.name in ALWAYS.get(command.name, ()):
            chance = 1.0
        if random.random() >= chance or parameter.name in ("install_completion", "show_completion"):
            continue
        chosen.add(parameter.name)
        for _ in range(
            random.choice((1, 1, 2)) if parameter.multiple or parameter.nargs < 0 else 1
        ):
            good = random.random() < (
                0.95 if mode == "good" else 0.5 if _is_file(parameter) else 0.9
            )
            if mode in ("options", "both") and not _is_file(parameter):
                good = random.random() < 0.6
            drawn = _drawn(room, command, parameter, good)
            if parameter.param_type_name == "argument":
                last.append(drawn[0])
            else:
                words += drawn
    if (
        command.name in ("sweep",)
        and not {"--impl", "--exec"} & set(words)
        and random.random() < 0.9
    ):
        words += ["--exec", _program(room, random.random() < 0.8)]
    if command.name in REFUSED:
        last[:2] = [odd_word(room), odd_word(room)]
    if "--json" not in words and random.random() < 0.4:
        words.append("--json")
    if mode in ("options", "both") and random.random() < 0.2:
        place = random.randrange(len(words) + 1)
        words.insert(place, odd_word(room))
    return words + last


def wants_json(words: list[str]) -> bool:
    """Whether a command line asks for one JSON object, beyond doubt."""
    doubtful = {"--", "--help", "--version", "-o", *ODD_WORDS} - {"--json"}
    after = {words[i - 1] for i, word in enumerate(words) if word == "--json"}
    takes = {
        name
        for each in COMMANDS.values()
        for p in each.parameters
        for name in p.opts
        if not getattr(p, "is_flag", False)
    }
    return words.count("--json") == 1 and not after & takes and not doubtful & set(words)


def _fits(name: str, chosen: set[str]) -> bool:
    """Whether an option goes with those that were drawn."""
    other = TOGETHER.get(name)
    taken = any(name in group and chosen & group for group in EITHER)
    return (other is None or other in chosen) and not taken


def _is_file(parameter: Any) -> bool:
    return "Path" in str(parameter.type_descriptor.annotation) or parameter.name in (
        *("what", "name", "old", "new", "sets", "impl", "program", "command"),
    )


def _drawn(room: Room, command: Command, parameter: Any, good: bool) -> list[str]:
    name = parameter.name
    option = parameter.opts[0]
    if getattr(parameter, "is_flag", False):
        return [room.random.choice([*parameter.opts, *parameter.secondary_opts])]
    value = (GOOD.get(f"{command.name} {name}") or GOOD.get(name) or _by_type(parameter))(
        room, good
    )
    # an argument that the system takes holds no zero
    value = value.replace("\0", "")
    if parameter.param_type_name == "option" and room.random.random() < 0.2 and option[:2] == "--":
        return [f"{option}={value}"]
    return [option, value] if parameter.param_type_name == "option" else [value]


def _by_type(parameter: Any) -> Draw:
    """What is good for a parameter that `GOOD` does not know."""
    kind = str(parameter.type_descriptor.annotation)
    if "Path" in kind:
        return _out(".json", ".safetensors", "")
    if "int" in kind or "float" in kind:
        return _number(1, 2, 3)
    return _word("x", "spec", "delta")


def shown(words: list[str]) -> str:
    """A command line as it is typed, with every character that a terminal acts upon written out."""
    import shlex

    return (
        shlex.join(["atlas-ref", *words])
        .encode(sys.getdefaultencoding(), "surrogateescape")
        .decode(errors="backslashreplace")
    )
