"""Case files: one input of a rule, neutral to language and library, and what somebody computed from it.

A case is a safetensors file whose header key `atlas_ref` holds a JSON object. Specified in specs/case.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import safetensors
import safetensors.numpy
from pydantic import ConfigDict, Field, ValidationError, model_validator

from atlas_ref import feature_maps
from atlas_ref.conventions import RULES, Convention, first_problem, resolve, void_axes
from atlas_ref.feature_maps import IDENTITY, FeatureMap
from atlas_ref.oracle.tensors import COTANGENTS, Tensor, legal
from atlas_ref.types import Frozen, bind_dims
from atlas_ref.window import Uniform, WindowWeights

KEY = "atlas_ref"
RESERVED = ("ttl", "qk_projection")
Count = Annotated[int, Field(ge=1)]
Arrays = Mapping[str, np.ndarray[Any, Any]]


class CaseError(ValueError):
    """Bad input: one line naming the file, the tensor or key, what was found and the rule it breaks."""


class Header(Frozen):
    """The JSON object of a case (CASE-3)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)

    schema_: Literal[1] = Field(alias="schema", description="version of the format")
    rule: Literal["omega", "titans_lmm", "delta", "hebbian", "newton_schulz", "feature_map", "ttl", "qk_projection"] = Field(
        description="what is computed; ttl and qk_projection are reserved"
    )
    level: Literal["projected", "token"] = Field("projected", description="whether keys, values, queries and gates are given, or tokens")
    window: Count = Field(1, description="c, tokens that the gradient looks at")
    span: Count | None = Field(None, description="tokens between refreshes of a frozen reference")
    phase: Annotated[int, Field(ge=0)] | None = Field(None, description="position of the first token in its span")
    form: Literal["sequential", "chunkwise", "exact", "scan", "atlas_parallel", "kernel"] = Field(
        "sequential", description="how it was computed"
    )
    chunk: Count | None = Field(None, description="chunk of the form; never changes results")
    convention: str | dict[str, Any] = Field("spec", description="a preset, or axes with values and optionally a preset that they change")
    feature_map: FeatureMap = Field(IDENTITY, description="phi")
    window_weights: WindowWeights | None = Field(None, description="level token: how window tokens are weighed")
    parameters: dict[str, Any] | None = Field(None, description="reserved rules only")
    trace: list[Any] | None = Field(None, description="written by eval")
    note: str = Field("", description="free text")

    @model_validator(mode="after")
    def _possible(self) -> Header:
        given = self.model_fields_set
        if self.parameters is not None and self.rule not in RESERVED:
            raise ValueError(f"parameters: only the reserved rules {' and '.join(RESERVED)} have them, this is {self.rule}")
        if self.rule in RESERVED:
            return self
        if self.rule not in RULES:
            for key in ("level", "window", "span", "phase", "chunk", "window_weights"):
                if key in given:
                    raise ValueError(f"{key}: the rule {self.rule} has no sequence")
        if self.rule in ("titans_lmm", "delta", "hebbian") and self.window != 1:
            raise ValueError(f"window: {self.rule} looks at one token, found {self.window}")
        if self.rule not in ("omega", "feature_map") and self.feature_map.kind != "identity":
            raise ValueError(f"feature_map: {self.rule} has none, found {self.feature_map.kind}")
        if self.window_weights is not None and (self.rule != "omega" or self.level != "token"):
            raise ValueError("window_weights: belongs to rule omega at level token")
        if self.phase is not None and self.span is not None and self.phase >= self.span and not self._lasts_the_call():
            raise ValueError(f"phase: must be below the span {self.span}, found {self.phase}")
        return self

    def _lasts_the_call(self) -> bool:
        try:
            return resolve(self.convention, rule=self.rule, level=self.level).reference == "call_start"
        except ValueError:
            return True  # the convention itself is reported instead


class Case(Frozen):
    """A validated case.

    Attributes:
        name: file it came from, for messages.
        header: the JSON object.
        convention: the convention in force, resolved for the rule and level.
        inputs: `in/...` tensors, in the dtype of the file.
        recorded: `out/...` and `grad/...` tensors, if somebody's results are in the file.
    """

    name: str
    header: Header
    convention: Convention
    inputs: dict[str, Any]
    recorded: dict[str, Any]

    @property
    def supported(self) -> bool:
        return self.header.rule not in RESERVED

    @property
    def void(self) -> dict[str, str]:
        """Settings that were chosen but cannot matter in this case, each with the reason (CASE-12)."""
        h = self.header
        tokens = next((self.inputs[n].shape[-2] for n in ("in/k", "in/x") if n in self.inputs), 0)
        found = void_axes(self.convention, rule=h.rule, window=h.window, span=h.span, tokens=tokens, history="in/window_k" in self.inputs)
        default = resolve("spec", rule=h.rule, level=h.level)
        chosen = {axis: why for axis, why in found.items() if getattr(self.convention, axis) != getattr(default, axis)}
        spans = self.convention.reference == "chunk_start" or self.convention.read == "chunk_start"
        if h.span is not None and not spans:
            chosen["span"] = "nothing is refreshed by spans"
        return chosen


def make(header: Mapping[str, Any], tensors: Arrays, *, name: str = "case") -> Case:
    """A case from a header and tensors in memory.

    Raises:
        CaseError: anything that specs/case.md calls bad input.
    """
    try:
        return _build(name, _header(json.dumps(dict(header))), dict(tensors))
    except (ValueError, TypeError) as error:
        raise _named(name, error) from None


def parse_header(header: Mapping[str, Any], *, name: str = "case") -> Header:
    """The JSON object of a case, validated.

    Raises:
        CaseError: an unknown key, a value that does not exist or that the rule does not have.
    """
    try:
        return _header(json.dumps(dict(header)))
    except (ValueError, TypeError) as error:
        raise _named(name, error) from None


def load(path: str | os.PathLike[str]) -> Case:
    """Read a case file.

    Raises:
        CaseError: anything that specs/case.md calls bad input.
    """
    name = os.fspath(path)
    try:
        text, tensors = _read(name)
        return _build(name, _header(text), tensors)
    except (ValueError, TypeError) as error:
        raise _named(name, error) from None


def save(path: str | os.PathLike[str], header: Mapping[str, Any], tensors: Arrays) -> None:
    """Write a case or results: under a temporary name first, so that nobody ever sees half a file (CASE-14)."""
    target = Path(path)
    if target.is_dir():
        raise CaseError(f"{target}: is a folder, a file name is needed")
    if not target.parent.is_dir():
        raise CaseError(f"{target}: the folder {target.parent} does not exist")
    arrays = {name: np.ascontiguousarray(array).reshape(np.shape(array)) for name, array in sorted(tensors.items())}
    data = safetensors.numpy.save(arrays, metadata={KEY: json.dumps(dict(header), sort_keys=True)})
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(temporary, 0o666 & ~umask)
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise CaseError(f"{target}: cannot be written: {error.strerror}") from None


def _named(name: str, error: Exception) -> CaseError:
    text = first_problem(error) if isinstance(error, ValidationError) else str(error)
    return CaseError(f"{name}: {' '.join(text.split())}")


def _read(name: str) -> tuple[str, dict[str, Any]]:
    path = Path(name)
    if not path.exists():
        raise ValueError("no such file")
    if path.is_dir():
        raise ValueError("is a folder, a case file is needed")
    try:
        with safetensors.safe_open(name, framework="np") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  # not a dict
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror or error}") from None
    except Exception as error:  # the library raises several unrelated types for broken files
        raise ValueError(f"not a safetensors file that can be read: {error}") from None
    if KEY not in metadata:
        raise ValueError(f"metadata key {KEY!r}: missing, a case needs its JSON object there")
    return metadata[KEY], tensors


def _header(text: str) -> Header:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(f"{KEY}: key {key!r} stands twice")
        return dict(pairs)

    def refuse(word: str) -> None:
        raise ValueError(f"{KEY}: {word} is not JSON")

    try:
        data = json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise ValueError(f"{KEY}: not JSON: {error}") from None
    except RecursionError:
        raise ValueError(f"{KEY}: nested too deeply") from None
    if not isinstance(data, dict):
        raise ValueError(f"{KEY}: a JSON object is needed, found {type(data).__name__}")
    if "schema" in data and (data["schema"] != 1 or isinstance(data["schema"], bool)):
        raise ValueError(f"schema: this version reads 1, found {data['schema']!r}")
    return Header.model_validate_json(json.dumps(data))


def _build(name: str, header: Header, tensors: dict[str, Any]) -> Case:
    inputs = {key: value for key, value in tensors.items() if key.startswith("in/")}
    recorded = {key: value for key, value in tensors.items() if key.startswith(("out/", "grad/"))}
    for key in tensors:
        if not key.startswith(("in/", "out/", "grad/", "trace/", "trace_grad/", "chunk/")):
            raise ValueError(f"{key}: tensor names start with in/, out/, grad/ or trace/")
    if header.rule in RESERVED:
        return Case(name=name, header=header, convention=Convention(), inputs=inputs, recorded=recorded)
    convention = resolve(header.convention, rule=header.rule, level=header.level)
    if header.level == "token" and header.rule == "omega" and header.window_weights is None:
        header = header.replaced(window_weights=Uniform())
    _check_convention(header, convention)
    table, refused = legal(header, convention, set(inputs))
    _check_names(header, inputs, table, refused)
    _check_shapes(header, inputs, table)
    for key, tensor in table.items():
        if key in inputs:
            _check_values(key, inputs[key], tensor)
    return Case(name=name, header=header, convention=convention, inputs=inputs, recorded=recorded)


def _check_convention(header: Header, convention: Convention) -> None:
    if header.rule not in RULES:
        return
    for axis in ("reference", "read"):
        spans = getattr(convention, axis) == "chunk_start" and convention.reference != "call_start"
        if spans and header.span is None:
            raise ValueError(f"span: missing, {axis} chunk_start needs one")
    if convention.rate == "split" and header.level == "token":
        raise ValueError("convention: rate split has no second rate at level token")
    if convention.argument == "written_back" and convention.order == "momentum_then_window":
        raise ValueError("convention: newton_schulz.argument written_back is not defined for order momentum_then_window")


def _check_names(header: Header, inputs: Arrays, table: dict[str, Tensor], refused: dict[str, str]) -> None:
    for key in inputs:
        if key in refused:
            raise ValueError(f"{key}: not part of this case: {refused[key]}")
        if key not in table:
            raise ValueError(f"{key}: unknown tensor for rule {header.rule}, level {header.level}; it has {', '.join(table)}")
    stands_in = {"in/retain": "in/log_retain", "in/momentum": "in/log_momentum"}
    for key, tensor in table.items():
        if tensor.need == "yes" and key not in inputs and stands_in.get(key) not in inputs:
            raise ValueError(f"{key}: missing, axes ({tensor.axes}) are needed")


def _check_shapes(header: Header, inputs: Arrays, table: dict[str, Tensor]) -> None:
    """Match every tensor with its axes, the most basic first, so that messages blame the later one."""
    sizes: dict[str, Any] = {}
    if header.rule in RULES:
        sizes["c"] = (header.window, "window")
    for key in table:
        if key not in inputs:
            continue
        found, axes = inputs[key].shape, table[key].axes
        if axes == "gate":
            axes = "... T d_out" if len(found) == len(inputs["in/k"].shape) else "... T"
        if (
            "d_phi" in axes
            and "d_phi" not in sizes
            and "in/phi/W" not in table
            and "in/proj" not in table
            and header.rule != "newton_schulz"
        ):
            sizes["d_phi"] = (feature_maps.d_phi(header.feature_map, sizes["d_in"][0]), f"feature_map {header.feature_map.kind}")
        bind_dims(key, found, axes, sizes)
        if key in ("in/proj", "in/x", "in/k") and header.feature_map.kind == "sketch" and "d_in" in sizes:
            d = sizes["d_in"][0]
            sizes.setdefault("d_sketch", (d + d * d, "d_in + d_in^2"))
        if key in ("in/param/W_V",):
            sizes["d_kv"] = (sizes["d_in"][0] + sizes["d_out"][0], "d_in + d_out")
    for axis, (size, by) in sizes.items():
        for each in size if isinstance(size, tuple) else (size,):
            if each < 1 and axis not in ("n", "m"):
                raise ValueError(f"{by}: axis {axis} has size 0, at least 1 is needed")
        if axis in ("n", "m") and size > header.window - 1:
            raise ValueError(f"{by}: {size} initial window tokens, at most window - 1 = {header.window - 1} fit")
        if axis.startswith("n_") and size not in (1, sizes["d_out"][0]):
            raise ValueError(f"{by}: {size} gates, expected 1 or one per output dimension, {sizes['d_out'][0]}")


def _check_values(key: str, value: np.ndarray[Any, Any], tensor: Tensor) -> None:
    kind = value.dtype
    if tensor.mask:
        if kind not in (np.dtype(bool), np.dtype(np.uint8)):
            raise ValueError(f"{key}: dtype {kind}, bool or uint8 is needed")
        if not bool(np.isin(value, (0, 1)).all()):
            first = int(np.nonzero(~np.isin(value, (0, 1)))[0][0])
            raise ValueError(f"{key}: entries must be 0 or 1, found {value[first]} at ({first},)")
        return
    if kind.name not in ("float64", "float32", "bfloat16", "float16"):
        raise ValueError(f"{key}: dtype {kind}, float64, float32, bfloat16 or float16 is needed")
    numbers = value.astype(np.float64)
    for bad, words in (
        (~np.isfinite(numbers), "must be finite"),
        (numbers < tensor.low if tensor.low is not None else None, f"must be at least {tensor.low}"),
        (numbers > tensor.high if tensor.high is not None else None, f"must be at most {tensor.high}"),
    ):
        if bad is not None and bool(bad.any()):
            at = tuple(int(i[0]) for i in np.nonzero(bad))
            raise ValueError(f"{key}: entries {words}, found {numbers[at]} at {at}")


def differentiable(case: Case) -> list[str]:
    """Names of the inputs that have a gradient: the floating ones but the cotangents."""
    return [key for key, value in case.inputs.items() if value.dtype.kind not in "bu" and key not in COTANGENTS]
