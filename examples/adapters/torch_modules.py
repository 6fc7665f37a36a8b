"""What the modules of a PyTorch model receive and return, as a recording for atlas-ref.

with Recorder(model, header) as recorder:
    model(ids)
recorder.save("mine.safetensors")

With `gradients=True` and a backward before `save`, it also holds the gradient of the loss by what each module received, through this
module alone, and by what it returned. Hooks see every `torch.nn.Module`; what is no module is put in by hand: `recorder.put("layers.0.mix",
{"a": a, "m": m}, {"y": y})`. A model that is called several times is recorded over all its calls; a module that runs twice in one
call is left out of `names`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Self

import torch
from safetensors.torch import save_file

Tensor = torch.Tensor

#: Names of what a module receives and returns, by the last word of its name; x and y for all others.
PORTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "embed": (("ids",), ("y",)),
    "rotary": (("q", "k"), ("q", "k")),
    "attend": (("q", "k", "v"), ("y",)),
    "cell": (
        ("q", "k", "v", "step_size", "retain", "momentum", "window_gate"),
        ("y", "state/M", "state/S"),
    ),
    "combine": (tuple(f"y{i}" for i in range(64)), ("y",)),
    "mix": (("a", "m", "g"), ("y",)),
    "loss": (("logits", "targets"), ("y",)),
}


class Recorder:
    """Hooks on the modules of a model, and what they saw.

    Args:
        model: whose parameters are recorded under their own names.
        header: of the recording, without `calls`, which are counted here.
        names: module of the model -> name in the recording; None takes every module by its own
            name. A module that is left out is not recorded.
        ports: names of what modules receive and return, beside PORTS.
        parameters: parameter of the model -> name in the recording; None takes them all by their
            own names.
        gradients: also record cotangents, of a backward before `save`. Inputs that need no
            gradient have none.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        header: Mapping[str, Any],
        *,
        names: Mapping[str, str] | None = None,
        ports: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] | None = None,
        parameters: Mapping[str, str] | None = None,
        gradients: bool = False,
    ) -> None:
        self.gradients = gradients
        self.bars: dict[str, dict[int, Tensor]] = {}
        self.header = dict(header)
        self.ports = {**PORTS, **(ports or {})}
        self.seen: dict[str, list[Tensor]] = {}
        state = model.state_dict()
        own = {name: name for name in state} if parameters is None else parameters
        self.parameters = {f"in/param/{own[name]}": state[name] for name in own}
        modules = dict(model.named_modules())
        self.names = {name: name for name in modules if name} if names is None else dict(names)
        self._modules = [(modules[name], self.names[name]) for name in self.names]
        self._hooks: list[Any] = []

    def __enter__(self) -> Self:
        for module, name in self._modules:

            def hook(_: Any, given: Any, named: Any, result: Any, name: str = name) -> None:
                _, outputs = self._ports(name)
                results = result if isinstance(result, tuple | list) else (result,)
                received = self._received(name, given, named)
                self.put(name, received, dict(zip(outputs, results, strict=False)))

            def before(_: Any, given: Any, named: Any) -> Any:
                # a copy of each input, whose gradient is the one through this module alone
                own = tuple(_copied(each) for each in given)
                return own, {port: _copied(value) for port, value in named.items()}

            if self.gradients:
                self._hooks.append(module.register_forward_pre_hook(before, with_kwargs=True))
            self._hooks.append(module.register_forward_hook(hook, with_kwargs=True))
        return self

    def _ports(self, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return self.ports.get(name.rpartition(".")[2], (("x",), ("y",)))

    def _received(self, name: str, given: Any, named: Mapping[str, Any]) -> dict[str, Any]:
        inputs, _ = self._ports(name)
        return dict(zip(inputs, given, strict=False)) | {
            port: value for port, value in named.items() if port in inputs
        }

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def put(self, name: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
        """Record one call of a module, or of a place in the code that is no module."""
        for way, ports in (("in", inputs), ("out", outputs)):
            for port, value in ports.items():
                if isinstance(value, Tensor):
                    key = f"modules/{name}/{way}/{port}"
                    self.seen.setdefault(key, []).append(value.detach().clone())
                    if self.gradients and value.requires_grad:
                        self._watch(f"modules/{name}/grad/{way}/{port}", key, value)

    def _watch(self, name: str, key: str, value: Tensor) -> None:
        """Keep the gradient by a value of this call, when it comes."""
        call, bars = len(self.seen[key]) - 1, self.bars.setdefault(name, {})

        def keep(gradient: Tensor) -> None:
            bars[call] = gradient.detach().clone()

        value.register_hook(keep)

    def tensors(self) -> dict[str, Tensor]:
        """Parameters, and values and gradients with the tokens of all calls one after another.

        After a backward a gradient that never came is 0.
        """
        values = {key: _joined(key, calls) for key, calls in self.seen.items()}
        for name, bars in self.bars.items() if any(self.bars.values()) else ():
            calls = self.seen[name.replace("/grad/", "/")]
            each = [bars.get(i, torch.zeros_like(value)) for i, value in enumerate(calls)]
            values[name] = _joined(name, each)
        values |= self.parameters
        return {key: value.detach().contiguous().clone() for key, value in values.items()}

    def save(self, path: Any) -> None:
        """Write the recording."""
        header = {"schema": 1, "recording": "modules", **self.header}
        calls = [len(each) for each in self.seen.values()]
        if calls and max(calls) > 1:
            header["calls"] = self._lengths()
        save_file(self.tensors(), path, metadata={"atlas_ref": json.dumps(header)})

    def _lengths(self) -> list[int]:
        """Tokens of each call, from a value that has them."""
        key = next(key for key, calls in self.seen.items() if calls[0].ndim > 1)
        return [each.shape[_token_axis(each)] for each in self.seen[key]]


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) and value.requires_grad else value


def _token_axis(value: Tensor) -> int:
    """Axis of the tokens: (B, T), (B, T, D) or (B, H, T, D)."""
    return 2 if value.ndim == 4 else 1


def _joined(key: str, calls: list[Tensor]) -> Tensor:
    """A value over all calls: a state as it was at first, or at last; else the tokens of all."""
    if "/state/" in key:
        return calls[0] if "/in/" in key else calls[-1]
    if calls[0].ndim == 0:
        return calls[-1]
    heads = key.rpartition("/")[2] in ("step_size", "retain", "momentum", "window_gate")
    return torch.cat(calls, dim=2 if heads else _token_axis(calls[0]))
