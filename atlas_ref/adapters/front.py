"""A function of a known name as an answer to cases: its arguments say what it takes.

    mine = front.of("gated_delta", "mine.py:chunk_fn")

    atlas-ref check case.safetensors --impl module:mine

`python -m atlas_ref.adapters.front '{"name": "gated_delta", "function": "mine.py:chunk_fn"}'` prints
what is taken as JSON, or why nothing is. A framework is imported by the function's own file alone.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from . import kernels, names

Function = Callable[..., Any]

#: Framework -> packages whose import tells it.
FRAMEWORKS = {"torch": ("torch", "triton", "fla"), "jax": ("jax",), "mlx": ("mlx",)}

#: Arguments of flat tensors, (B, T, H D), that tell the number of heads.
HEADS = ("q_num_heads", "kv_num_heads")

#: Longest line of a refusal.
LINE = 300


class Refused(ValueError):
    """Why a function cannot be asked, in one line."""


class Taken(NamedTuple):
    """How a function is called.

    Attributes:
        like: library whose names and layout it has.
        signature: what it computes and takes.
        arguments: argument -> tensor of a case.
        options: further arguments.
        ignored: optional arguments that nothing is handed to.
    """

    like: str
    signature: names.Signature
    arguments: dict[str, str]
    options: dict[str, Any]
    ignored: tuple[str, ...]


def load(function: str) -> Function:
    """The function that `FILE.py:FUNCTION` or `PKG.MODULE:FUNCTION` names.

    Raises:
        Refused: no such module or function, or its import fails.
    """
    place, _, name = function.rpartition(":")
    try:
        module = _file(place) if place.endswith(".py") else _module(place)
    except (KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:  # a module under test may raise anything
        raise Refused(f"{place}: {type(error).__name__}: {_short(error)}") from None
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            own = [each for each, x in vars(module).items() if _is_own(x, module, each)]
            has = f"; it has {', '.join(own)}" if own else ""
            raise Refused(f"{place}: no function {name}{has}")
        found = getattr(found, part)
    if not callable(found):
        raise Refused(f"{function}: a function is needed, found {type(found).__name__}")
    call: Function = found
    return call


def _is_own(x: Any, module: ModuleType, name: str) -> bool:
    """Whether a value is a public function that a module defines."""
    own = getattr(x, "__module__", "") == module.__name__ and not inspect.isclass(x)
    return callable(x) and own and not name.startswith("_")


def _file(place: str) -> ModuleType:
    """The module of a file, which finds files that lie beside it, as a script does."""
    path = Path(place).resolve()
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _module(place: str) -> ModuleType:
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    return importlib.import_module(place)


def framework(call: Function) -> str:
    """The arrays that a function takes, by what its file imports; NumPy's where nothing tells."""
    while (inner := getattr(call, "__wrapped__", None) or _called(call)) is not None:
        call = inner
    place = getattr(call, "__module__", None) or type(call).__module__
    module = sys.modules.get(place)
    values = list(vars(module).values()) if module else []
    # what the file defines itself tells nothing: it may be called as a package is
    told = {_package(x) for x in values if getattr(x, "__module__", "") != place}
    return next((name for name, packages in FRAMEWORKS.items() if told & set(packages)), "numpy")


def _called(call: Function) -> Function | None:
    """The function behind a partial one."""
    return call.func if isinstance(call, functools.partial) else None


def _package(value: Any) -> str:
    """The package that a value of a module comes from."""
    named = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", "")
    return str(named or "").partition(".")[0]


def taken(name: str, function: str, call: Function, like: str = "", arrays: str = "numpy") -> Taken:
    """How a function is called: by the layout that knows most of its arguments (SRC-29).

    Raises:
        Refused: an argument that is none of the name's, or one that is missing.
    """
    parameters = _parameters(function, call)
    found = [
        _match(each, signature, parameters)
        for each in ([like] if like else names.LAYOUTS)
        for signature in names.SIGNATURES[name]
    ]
    if not like:  # the layouts of two libraries may differ in what no argument tells
        found.sort(key=lambda each: each.like == "mlx" and arrays != "mlx")
    best = max(found, key=lambda each: (len(each.arguments), -len(_missing(each, parameters))))
    _refuse(name, function, best, parameters)
    return best


def _parameters(function: str, call: Function) -> dict[str, inspect.Parameter]:
    try:
        found = dict(inspect.signature(call).parameters)
    except (TypeError, ValueError):
        raise Refused(f"{function}: its arguments cannot be read: wrap it in a def") from None
    for name, each in found.items():
        if each.kind in (each.VAR_POSITIONAL, each.POSITIONAL_ONLY):
            raise Refused(
                f"{function}: argument {name} has no name to call it by: wrap it in a def with names"
            )
    return found


def _match(like: str, signature: names.Signature, has: dict[str, inspect.Parameter]) -> Taken:
    """The arguments of a function that a layout knows."""
    layout, arguments = names.LAYOUTS[like], {}
    called = {**layout.called, **{n: c for n, c in signature.called.items() if _applies(n, layout)}}
    wanted = ["q", "k", "v", *signature.tensors, *names.OPTIONAL]
    for tensor in wanted:
        kinds = names.GATES if tensor == "gate" else (tensor,)
        for kind in kinds:
            argument = next((a for a in called.get(kind, ()) if a in has), None)
            if argument is not None and argument not in arguments:
                arguments[argument] = kind
                break
    options = {
        argument: value
        for argument, value in {**names.OPTIONS, **signature.options}.items()
        if argument in has
    }
    needed = [n for n, each in has.items() if each.default is each.empty]
    options |= {n: names.NEEDED[n] for n in needed if n in names.NEEDED and n not in arguments}
    given = {*arguments, *options}
    rest = tuple(n for n, each in has.items() if n not in given and each.kind != each.VAR_KEYWORD)
    scaled = kernels.MEMBERS[signature.member].query_scale != 1
    if layout.unscaled and scaled and "query_scale" not in arguments.values():
        signature = signature._replace(settings={**signature.settings, "query_scale": 1})
    return Taken(like, signature, arguments, options, rest)


def _applies(tensor: str, layout: names.Layout) -> bool:
    """Whether a name of a signature is about a tensor that the layout has: one kind of gate."""
    return tensor not in names.GATES or tensor in layout.called


def _missing(one: Taken, has: dict[str, inspect.Parameter]) -> list[str]:
    """Arguments that a function needs and nothing is known of."""
    heads = HEADS if names.LAYOUTS[one.like].flat else ()
    return [n for n in one.ignored if has[n].default is inspect.Parameter.empty and n not in heads]


def _refuse(name: str, function: str, one: Taken, has: dict[str, inspect.Parameter]) -> None:
    wanted = argument_names(one.like, one.signature)
    if missing := _missing(one, has):
        raise Refused(
            f"{function}: argument {missing[0]} is none of {name} ({', '.join(wanted)}): give it a "
            "default, or write a def with these names that calls it"
        )
    gates, given = set(names.GATES), set(one.arguments.values())
    for tensor in ("q", "k", "v", *one.signature.tensors):
        if not (given & gates if tensor == "gate" else tensor in given):
            layout = {**names.LAYOUTS[one.like].called, **one.signature.called}
            kinds = names.GATES if tensor == "gate" else (tensor,)
            called = next((layout[kind][0] for kind in kinds if kind in layout), tensor)
            raise Refused(
                f"{function}: no argument {called}, which {name} needs; as {one.like} calls them: "
                f"{', '.join(wanted)}"
            )


def argument_names(like: str, signature: names.Signature) -> list[str]:
    """The arguments of a name in a layout, in the order in which people write them."""
    layout = names.LAYOUTS[like].called
    own = {n: c for n, c in signature.called.items() if _applies(n, names.LAYOUTS[like])}
    found = []
    for tensor in ("q", "k", "v", *signature.tensors, "query_scale", "M0", "cu_seqlens"):
        kinds = names.GATES if tensor == "gate" else (tensor,)
        called = next((c for kind in kinds if (c := {**layout, **own}.get(kind))), None)
        found += [called[0]] if called else []
    return found


def of(
    name: str,
    function: str,
    *,
    like: str = "",
    arrays: str = "",
    grouped: bool = False,
    **how: Any,
) -> kernels.Kernel:
    """The kernel behind a function of a known name.

    Args:
        name: of `names.SIGNATURES`, or an alias.
        function: `FILE.py:FUNCTION` or `PKG.MODULE:FUNCTION`.
        like: library whose names and layout it has; its arguments tell where this is empty.
        arrays: torch, jax, mlx or numpy; what its file imports where this is empty.
        grouped: hand over fewer heads of keys where a case shares them.
        how: further fields of `kernels.Kernel`, as head_axis=1.

    Raises:
        Refused: an argument that is none of the name's, or one that is missing.
    """
    call = load(function)
    arrays = arrays or framework(call)
    one = taken(names.plain(name), function, call, like, arrays)
    layout = names.LAYOUTS[one.like]
    fields: dict[str, Any] = {
        "member": one.signature.member,
        "channels": one.signature.channels,
        "settings": one.signature.settings,
        "state": layout.state,
        "options": one.options,
        "grouped": grouped,
        **how,
    }
    wrapped = _wrapped(call, one, fields["member"])
    if arrays == "numpy":
        return kernels.Kernel(wrapped, one.arguments, **fields)
    library: Any = importlib.import_module(f".{arrays}_kernels", __package__)
    if arrays == "torch":
        import torch

        fields.setdefault("device", "cuda" if torch.cuda.is_available() else "cpu")
    made: kernels.Kernel = library.of(wrapped, one.arguments, **fields)
    return made


def _wrapped(call: Function, one: Taken, member: str) -> Function:
    """A function that returns o and the final state, or None in its place.

    The scale of reads is handed over wherever there is an argument for it, since its default may be
    another one.
    """
    has = inspect.signature(call).parameters
    needed = {n for n, each in has.items() if each.default is each.empty}
    argument_of = {tensor: argument for argument, tensor in one.arguments.items()}
    scale, packed = (argument_of.get(tensor, "") for tensor in ("query_scale", "cu_seqlens"))
    flat, first = names.LAYOUTS[one.like].flat, argument_of["q"]
    asks_state = one.options.get("output_final_state") is True

    def wrapped(**given: Any) -> tuple[Any, Any]:
        for argument in needed.intersection(one.arguments) | ({scale} - {""}):
            if argument not in given:
                width = given[first].shape[-1]
                own = 1 if kernels.MEMBERS[member].query_scale == 1 else width**-0.5
                given[argument] = own if argument == scale else None
        shape: Any = None
        if flat:
            given, shape = _flat(given, one, has)
        v, starts = given[argument_of["v"]], given.get(packed)
        o, state = _two(call(**given))
        if tuple(o.shape) != tuple(v.shape):
            raise ValueError(f"o has shape {tuple(o.shape)}, expected that of v, {tuple(v.shape)}")
        if state is None and asks_state:
            raise ValueError("output_final_state is True, and no final state came back")
        if state is not None and starts is not None and len(state) != len(starts) - 1:
            raise ValueError(
                f"{len(state)} final states for {len(starts) - 1} packed sequences: is {packed} heeded?"
            )
        return (o if shape is None else o.reshape(shape)), state

    return wrapped


def _two(found: Any) -> tuple[Any, Any]:
    """What a function returned as o and the final state.

    Raises:
        TypeError: something else.
    """
    several = isinstance(found, tuple | list)
    o, *more = found if several else (found,)
    state = more[0] if more else None
    for name, x in (("o", o), ("the final state", state)):
        if not hasattr(x, "shape") and (name == "o" or x is not None):
            kind = type(found).__name__ if x is found else f"{type(x).__name__} for {name}"
            raise TypeError(f"returned a {kind}; o, or (o, final state), is needed")
    return o, state


def _flat(given: dict[str, Any], one: Taken, has: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Tensors (B, T, H, D) as (B, T, H D), and the shape of what comes back."""
    tensors = {tensor: given[a] for a, tensor in one.arguments.items() if a in given}
    v, q, k = (tensors[name] for name in ("v", "q", "k"))
    shape = (*v.shape[:3], v.shape[3])
    packed = {
        argument: x.reshape(*x.shape[:2], -1)
        if one.arguments.get(argument) not in ("M0", "query_scale", None)
        else x
        for argument, x in given.items()
    }
    heads = dict(zip(HEADS, (q.shape[2], k.shape[2]), strict=True))
    return {**packed, **{n: x for n, x in heads.items() if n in has}}, shape


def description(name: str, function: str, like: str = "", arrays: str = "") -> dict[str, Any]:
    """What of a function is taken, as JSON can hold it.

    Raises:
        Refused: it cannot be asked.
    """
    call = load(function)
    arrays = arrays or framework(call)
    if arrays != "numpy" and importlib.util.find_spec(arrays) is None:
        raise Refused(f"--with {arrays}: no package {arrays} is installed for this Python")
    one = taken(names.plain(name), function, call, like, arrays)
    return {
        "like": one.like,
        "arrays": arrays,
        "member": one.signature.member,
        "settings": dict(one.signature.settings),
        "arguments": one.arguments,
        "options": one.options,
        "ignored": [each for each in one.ignored if each not in HEADS],
        "channels": one.signature.channels,
        "state": names.LAYOUTS[one.like].state,
        "flat": names.LAYOUTS[one.like].flat,
    }


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= LINE else text[: LINE - 3] + "..."


def main(question: str) -> None:
    """Print the description of a function, or why there is none, on the last line."""
    with contextlib.redirect_stdout(sys.stderr):
        try:
            answer = description(**json.loads(question))
        except Refused as error:
            answer = {"refused": str(error)}
    sys.__stdout__.write("\n" + json.dumps(answer) + "\n") if sys.__stdout__ else None


if __name__ == "__main__":
    main(sys.argv[1])
