"""What an adapter says of a neural memory of several layers, and the answer to a case of the rule
deep_memory that comes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from torch_calls import Tensors, pytorch

from atlas_ref.rules.deep_memory import Config

#: Inputs that none of them takes.
BEYOND = ("active", "reset", "window_weights", "step_size_memory")
STATE, BAR, MEMORY = "state/", "state_bar/", "memory/"

Header = Mapping[str, Any]


class DeepMemory(NamedTuple):
    """A neural memory of a package under the settings that it computes.

    Attributes:
        label: as tables show it.
        package: as the package index calls it.
        own: (parameters of a case, its convention) -> both as the package computes them, with what
            it leaves free as the case has it.
        core: (leaves, parameters, convention) -> results, by the names of a case.
        without: inputs whose gradient it does not have.
        wants: why inputs are not such that it can be asked for them; empty where they are.
    """

    label: str
    package: str
    own: Callable[[dict[str, Any], dict[str, Any]], tuple[dict[str, Any], dict[str, Any]]]
    core: Callable[[Tensors, Config], Mapping[str, Any]]
    without: tuple[str, ...] = ()
    wants: Callable[[Mapping[str, Any]], str] = lambda inputs: ""

    def __call__(self, case: Header, inputs: dict[str, Any]) -> dict[str, Any]:
        """Answer a case for `--impl`.

        Raises:
            NotImplementedError: the case asks for what this memory does not compute.
        """
        why = self.refusal(case, inputs)
        if why:
            raise NotImplementedError(why)
        return self.answer(config_of(case, inputs), inputs)

    def refusal(self, case: Header, inputs: Mapping[str, Any]) -> str:
        """The reason not to ask it a case; empty where there is none."""
        if case["rule"] != "deep_memory":
            return f"rule {case['rule']}: it computes deep_memory"
        beyond = [each for each in inputs if each in BEYOND or each.startswith(STATE)]
        if beyond:
            return f"in/{beyond[0]}"
        theirs = config_of(case, inputs)
        mine = config_of(self.header(case), inputs)
        for name in Config.model_fields:
            if name != "convention" and getattr(theirs, name) != getattr(mine, name):
                return f"parameters.{name}: it computes {getattr(mine, name)}"
        for name in type(mine.convention).model_fields:
            own = getattr(mine.convention, name)
            if getattr(theirs.convention, name) != own:
                return f"{name} {getattr(theirs.convention, name)}: it computes {own}"
        return self.wants(inputs)

    def header(self, case: Header) -> dict[str, Any]:
        """The header of a case under the settings that the package computes."""
        parameters, convention = self.own(
            dict(case.get("parameters", {})), dict(case.get("convention", {}))
        )
        return {**case, "parameters": parameters, "convention": convention}

    def answer(self, config: Config, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Values, and autograd's gradients where the case has cotangents."""
        torch = pytorch()
        floats = {name: x for name, x in inputs.items() if np.issubdtype(x.dtype, np.floating)}
        bars = {name for name in floats if name == "y_bar" or name.startswith(BAR)}
        leaves = {
            name: torch.from_numpy(np.array(x)).requires_grad_()
            for name, x in floats.items()
            if name not in bars
        }
        outputs = dict(self.core(leaves, config))
        graded = "y_bar" in bars
        found = dict(outputs)
        if graded:
            loss = sum(
                (outputs[name.replace("_bar", "")] * torch.from_numpy(np.array(floats[name]))).sum()
                for name in sorted(bars)
            )
            gradients = torch.autograd.grad(loss, [*leaves.values()], allow_unused=True)
            found |= {
                f"grad/{name}": each
                for name, each in zip(leaves, gradients, strict=True)
                if each is not None and name not in self.without
            }
        return {name: np.ascontiguousarray(each.detach().numpy()) for name, each in found.items()}


def config_of(case: Header, inputs: Mapping[str, Any]) -> Config:
    """The settings of a case with these inputs."""
    parameters = dict(case.get("parameters", {}))
    parameters.setdefault("window", parameters.get("chunk", 1))
    widths = {"d_in": inputs["k"].shape[-1], "d_out": inputs["v"].shape[-1]}
    return Config(**widths, convention=case.get("convention", {}), **parameters)


def kept(given: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """What a case states of these names."""
    return {name: given[name] for name in names if name in given}


def memory_function(given: Mapping[str, Any], names: tuple[str, ...], **own: Any) -> dict[str, Any]:
    """Settings of the memory function: the case's of these names, the package's own."""
    return {"memory": {"kind": "mlp", **kept(given.get("memory", {}), names), **own}}


class Rows:
    """Leading axes of a case's tokens as one axis, and back."""

    def __init__(self, x: Tensors) -> None:
        self.lead = tuple(x["k"].shape[:-2])
        self.count = int(np.prod(self.lead, dtype=int))

    def tokens(self, value: Any) -> Any:
        """(L, T, d) or (L, T) as (rows, T, d)."""
        return value.reshape(self.count, value.shape[len(self.lead)], -1)

    def first(self, value: Any, own: int) -> Any:
        """A tensor of the memory with `own` axes, for each row."""
        shape = value.shape[value.ndim - own :]
        return value.expand(*self.lead, *shape).reshape(self.count, *shape)

    def back(self, value: Any) -> Any:
        return value.reshape(*self.lead, *value.shape[1:])
