"""Models of a public project from its files, and back: one engine, of which each project is a row.

A project is data: names of tensors, what tells each setting, and where ours keeps it. Specified in
specs/language_model.md (MODEL-12, MODEL-13).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from atlas_ref import backend
from atlas_ref.messages import in_one_line, meant, shown
from atlas_ref.models import checkpoint, language_model
from atlas_ref.models.initial import Initial
from atlas_ref.models.public import names
from atlas_ref.models.public.difference import difference
from atlas_ref.models.public.tells import Fact
from atlas_ref.models.shapes import params_of
from atlas_ref.storage import files
from atlas_ref.storage.json_text import decoded
from atlas_ref.types import read_only
from tape import plain

Path = str | os.PathLike[str]
Tensors = Mapping[str, Any]

#: Metadata key of the arguments of the public constructor (MODEL-12).
KEY = "config"

#: What a pickle, alone or in a zip archive, begins with.
PICKLES = (b"PK\x03\x04", *(b"\x80" + bytes([version]) for version in range(2, 6)))

#: Among facts and settings: whether blocks are memories alone, which is no argument.
MEMORY_ONLY = "memory_only"


class Setting(NamedTuple):
    """A setting of a model of public code, in the types of JSON, and what told it.

    Attributes:
        by: shapes (names and shapes of the tensors), given, or default.
    """

    value: Any
    by: str


class Told(NamedTuple):
    """Settings of a public model, and what told each of those that have an effect.

    Attributes:
        by: name -> as `Setting` has it.
        memory_only: a model of memories alone, without blocks around them.
    """

    settings: Any
    by: Mapping[str, str] = {}
    memory_only: bool = False


class Imported(NamedTuple):
    """A model of public code.

    Attributes:
        told: what told its settings, which `Importer.settings` puts in words.
        initial: for each block None, or memories that it starts from; () for none (MODEL-16).
    """

    config: language_model.Config
    params: language_model.Params
    told: Told
    initial: Initial = ()


class Importer(NamedTuple):
    """Files of a public project, read and written: what `model import` and `export` ask of it.

    `cli.models.programs.PROGRAMS` lists modules with an `IMPORTER`. Errors are one line each.

    Attributes:
        program, arguments: the project; its constructor's arguments, with names and defaults.
        tells: (tensors) -> what they tell of the arguments, as `tells.facts` has it.
        nearest: (our settings as JSON) -> the arguments that come nearest, as `tells.read_off`.
        table, sizes: every tensor of a state_dict; the length of each axis, by the word for it.
        config: (told, tensors) -> settings of ours.
        like: (told, settings of ours) -> those of the arguments, with these positions.
        effective: names of arguments that have an effect.
        always, never: names that an export has even at their defaults, and those that it has only so.
        aliases, ignored: arguments under another name, and those that the project ignores.
        agrees: argument -> (stated, told, all that tensors tell) -> whether both say the same.
        stated: arguments that hold as they were stated, where both say the same.
        refuse: (settings or None before they are known, given, told by tensors, tensors).
        free: parts of our settings that change no result, or that a tensor holds.
        buffers: (told, settings of ours, initial memories, dtype) -> tensors that hold no parameter and
            are not 0.
        initial: (arguments, tensors) -> memories that the model starts from.
    """

    program: str
    arguments: type[Any]
    tells: Callable[[Tensors], dict[str, Fact]]
    nearest: Callable[[Any], dict[str, Any]]
    table: Callable[[Told], names.Table]
    sizes: Callable[[Any], Mapping[str, int]]
    config: Callable[[Told, Tensors], language_model.Config]
    like: Callable[[Told, language_model.Config], language_model.Config]
    effective: Callable[[Told], Collection[str]]
    always: Callable[[Told], Collection[str]]
    never: Collection[str] = ()
    aliases: Mapping[str, str] = {}
    ignored: Collection[str] = ()
    agrees: Mapping[str, Callable[[Any, Any, Mapping[str, Any]], bool]] = {}
    stated: Collection[str] = ()
    refuse: Callable[[Any, Tensors, Tensors, Tensors], None] = lambda *_: None
    free: Collection[str] = ()
    buffers: Callable[[Told, Any, Initial, Any], Tensors] = lambda *_: {}
    initial: Callable[[Any, Tensors], Initial] = lambda *_: ()

    # -- from tensors ------------------------------------------------------------------------------

    def read(self, path: Path, given: Mapping[str, Any] | None = None) -> Imported:
        """A model from a safetensors file of a public state_dict (MODEL-12, MAG-6).

        Args:
            given: arguments of the constructor, beside those of the file's metadata.

        Raises:
            ValueError: names the file, and what is wrong with it.
        """
        try:
            metadata, tensors = tensors_of(path)
            told = self.read_settings(tensors, arguments_of(metadata, given or {}))
            config, params, initial = self.model_from(tensors, told)
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from None
        return Imported(config, params, told, initial)

    def read_settings(self, tensors: Tensors, given: Mapping[str, Any]) -> Told:
        """Settings from tensors, then arguments, then public defaults (MODEL-12, MAG-7).

        Raises:
            ValueError: an argument that is unknown, contradicts the tensors, or must be stated.
        """
        given, facts = self._canonical(given), self.tells(tensors)
        found = {name: fact.value for name, fact in facts.items()}
        for name in [each for each in given if each in found]:
            value, its, tensor = given[name], found[name], facts[name].tensor
            same = type(value) is type(its) and value == its  # types are those of JSON
            if not (same or (name in self.agrees and self.agrees[name](value, its, found))):
                where = f", by {tensor} {tuple(tensors[tensor].shape)}" if tensor else ""
                raise ValueError(
                    f"{name}: {shown(value)}, but the tensors have {shown(its)}{where}"
                )
        self.refuse(None, given, found, tensors)
        memory_only = bool(found.pop(MEMORY_ONLY, False))
        stated = {name: given[name] for name in self.stated if name in given}
        with in_one_line():
            settings = self.arguments(**{**given, **found, **stated})
        self.refuse(settings, given, found, tensors)
        told_by = {
            name: "shapes" if name in found else "given" if name in given else "default"
            for name in self.effective(Told(settings, memory_only=memory_only))
        }
        return Told(settings, told_by, memory_only)

    def _canonical(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by our names, without those that have no effect."""
        fields, result = self.arguments.model_fields, dict[str, Any]()
        for name, value in given.items():
            ours = self.aliases.get(name, name)
            if ours in self.ignored:
                continue
            if ours not in fields:
                raise ValueError(f"{name}: unknown setting{meant(name, fields)}")
            if ours in result:
                raise ValueError(f"{name}: given twice, as {' and as '.join(sorted({name, ours}))}")
            result[ours] = value
        return result

    def model_from(
        self, tensors: Tensors, told: Told
    ) -> tuple[language_model.Config, language_model.Params, Initial]:
        """A model from the tensors of a public state_dict (MODEL-12, MAG-6).

        Raises:
            ValueError: names tensors that are missing, unknown, misshapen or not finite.
        """
        table = self.table(told)
        names.check(table, self.sizes(told.settings), tensors)
        with in_one_line():
            config = self.config(told, tensors)
        place = backend.current().from_host
        arrays = {name: read_only(place(each)) for name, each in tensors.items()}
        params = names.parameters(params_of(config), table, arrays)
        return config, params, self.initial(told.settings, arrays)

    # -- from our settings -------------------------------------------------------------------------

    def write(self, path: Path, model: checkpoint.Checkpoint) -> dict[str, Any]:
        """Write a model as a public state_dict; return its arguments (MODEL-12, MAG-6).

        Raises:
            ValueError: names the file, or the first setting that the public code does not have.
        """
        told = self.express(model.config, self._hint(model.source))
        tensors = self.state_dict(model.config, model.params, model.initial, told)
        its = self.constructor_arguments(told)
        try:
            files.write(path, {KEY: json.dumps(its)}, tensors)
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from None
        return its

    def _hint(self, source: Mapping[str, Any]) -> Any:
        """Settings that a checkpoint says it came from; None where it came from elsewhere."""
        if source.get("from") != self.program:
            return None
        with in_one_line("source.settings: "):
            return self.arguments.model_validate(source.get("settings"))

    def express(self, config: language_model.Config, hint: Any = None) -> Told:
        """The public settings of a model of ours (MODEL-12, MAG-7).

        Args:
            hint: settings that it came from, which hold if they still say the same.

        Raises:
            ValueError: names the first setting that the public code does not have.
        """
        ours, problem = checkpoint.described(config), ""
        found = self.nearest(ours)
        memory_only = bool(found.pop(MEMORY_ONLY, False))
        for each in (found,) if hint is None else (hint, found):
            try:
                with in_one_line():
                    settings = self.arguments(**found) if each is found else each
                    told = Told(settings, memory_only=memory_only)
                    its = checkpoint.described(self.like(told, config))
                    problem = difference(ours, its, self.program, free=self.free)
            except ValueError as error:
                problem = str(error)
            if not problem:
                return told
        raise ValueError(f"{self.program} has no such model: {problem}")

    def state_dict(
        self,
        config: language_model.Config,
        params: language_model.Params,
        initial: Initial = (),
        told: Told | None = None,
    ) -> dict[str, np.ndarray[Any, Any]]:
        """The tensors of a public state_dict of a model (MODEL-12, MAG-6).

        Args:
            initial: memories that it starts from: momenta, and weights in place of the parameters.
            told: settings that say the same; None for those that its own settings say.

        Raises:
            ValueError: names the first setting that the public code does not have.
        """
        checkpoint.tensors_of(config, params, initial)
        told = self.express(config) if told is None else told
        table, sizes = self.table(told), self.sizes(told.settings)
        dtype = plain(params.embedding).dtype
        named = {
            name: np.zeros(names.shape(each.axes, sizes), dtype)
            for name, each in table.items()
            if not (each.field or each.copy_of)
        }
        named |= names.tensors_of(params, table, sizes)
        named |= self.buffers(told, config, initial, dtype)
        return {name: np.asarray(backend.host(plain(each))) for name, each in named.items()}

    # -- in words ----------------------------------------------------------------------------------

    def constructor_arguments(self, told: Told) -> dict[str, Any]:
        """Arguments of the public constructor, which an export states (MODEL-12, MAG-7)."""
        always, public = self.always(told), {ours: name for name, ours in self.aliases.items()}
        defaults = {name: field.default for name, field in self.arguments.model_fields.items()}
        return {
            public.get(name, name): value
            for name, value in told.settings.model_dump(mode="json").items()
            if name in always or (value != defaults[name] and name not in self.never)
        }

    def settings(self, told: Told) -> dict[str, Setting]:
        """Settings that have an effect, with what told each (MODEL-13)."""
        values = told.settings.model_dump(mode="json")
        return {name: Setting(values[name], by) for name, by in told.by.items()}

    def source(self, told: Told) -> dict[str, Any]:
        """Where an imported model came from, as its checkpoint says it (MODEL-11)."""
        return {"from": self.program, "settings": told.settings.model_dump(mode="json")}


def tensors_of(path: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """Metadata and tensors of a public state_dict in a safetensors file (MODEL-12).

    Raises:
        ValueError: what is wrong with the file, without its name, such as a pickle.
    """
    try:
        metadata, tensors = files.read(path, "is a folder, a file of tensors is needed")
    except ValueError:
        if _is_pickle(path):
            raise ValueError(
                "is a pickle, as torch.save writes it, and reading one may run its code; convert it "
                "with safetensors.torch.save_file(torch.load(FILE, weights_only=True), NEW)"
            ) from None
        raise
    if checkpoint.KEY in metadata:
        raise ValueError("is a model of atlas-ref already")
    return metadata, tensors


def _is_pickle(path: Path) -> bool:
    try:
        start = files.read_bytes(path, read=lambda stream: stream.read(9))
    except ValueError:
        return False
    return start.startswith(PICKLES) and start[8:] != b"{"


def arguments_of(metadata: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of the metadata, and others that do not contradict them (MODEL-12).

    Raises:
        ValueError: metadata that are no JSON object, or an argument that differs from them.
    """
    if KEY not in metadata:
        return dict(given)
    try:
        stated = decoded(metadata[KEY])
    except ValueError as error:
        raise ValueError(f"metadata key {KEY!r}: {error}") from None
    if not isinstance(stated, dict):
        raise ValueError(f"metadata key {KEY!r}: an object is needed, found {shown(stated)}")
    for name, value in given.items():
        if name in stated and json.dumps(stated[name]) != json.dumps(value):
            raise ValueError(
                f"{name}: {shown(value)}, but metadata key {KEY!r} has {shown(stated[name])}"
            )
    return {**stated, **given}
