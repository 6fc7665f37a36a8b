"""The neural memories of titans-pytorch, titans-memory and titans-unofficial with memories of
several layers, as cases of the rule deep_memory.

    atlas-ref check cases/ --impl of_deep_memories:titans_pytorch

As in `of_titans.py`, their projections hand on columns of what they get, so that they work on a
case's keys, values, queries and gates. Matrices are (in, out) or (out, in) as each has them; ours
are (out, in). A case is answered where it states what the package computes; what a package leaves
free, as sizes, is the case's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from of_titans import _SHIFT, _Gate
from torch_calls import Tensors, by_file, column, imported, pytorch

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
        return self.answer(_config(case, inputs), inputs)

    def refusal(self, case: Header, inputs: Mapping[str, Any]) -> str:
        """The reason not to ask it a case; empty where there is none."""
        if case["rule"] != "deep_memory":
            return f"rule {case['rule']}: it computes deep_memory"
        beyond = [each for each in inputs if each in BEYOND or each.startswith(STATE)]
        if beyond:
            return f"in/{beyond[0]}"
        theirs = _config(case, inputs)
        mine = _config(self.header(case), inputs)
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


def _config(case: Header, inputs: Mapping[str, Any]) -> Config:
    """The settings of a case with these inputs."""
    parameters = dict(case.get("parameters", {}))
    parameters.setdefault("window", parameters.get("chunk", 1))
    widths = {"d_in": inputs["k"].shape[-1], "d_out": inputs["v"].shape[-1]}
    return Config(**widths, convention=case.get("convention", {}), **parameters)


def _kept(given: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """What a case states of these names."""
    return {name: given[name] for name in names if name in given}


def _memory(given: Mapping[str, Any], names: tuple[str, ...], **own: Any) -> dict[str, Any]:
    """Settings of the memory function: the case's of these names, the package's own."""
    return {"memory": {"kind": "mlp", **_kept(given.get("memory", {}), names), **own}}


class _Rows:
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


# -- titans-pytorch --------------------------------------------------------------------------------

#: Its iteration, as the axis has it: a guard that clamps, matrices turned where they are tall.
TITANS_MUON = {"guard": "clamp", "eps": 1e-7}


def _own_titans_pytorch(
    given: dict[str, Any], convention: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    clip = given.get("clip", "none")
    parameters = {
        **_memory(given, ("depth", "expansion", "residual_norm")),
        **_kept(given, ("chunk", "span", "clip_norm")),
        "clip": clip if clip in ("none", "soft") else "soft",
        "fast": "all",
        "vectors": "raw",
    }
    settings = convention.get("newton_schulz", "none")
    return parameters, {
        "gate": "forget",
        "momentum_sign": "minus",
        "gradient_scale": "2/d_out",
        "rate": "none",
        "newton_schulz": settings if settings == "none" else TITANS_MUON,
        **_kept(convention, ("reference",)),
    }


def _put_columns(memory: Any, width: int, *, momentum: bool) -> None:
    """Modules in place of its projections, for tokens that hold keys, values, queries and gates."""
    torch = pytorch()

    class Gates(torch.nn.Module):
        def __init__(self, place: int, order: bool) -> None:
            super().__init__()
            self.place, self.order = place, order

        def forward(self, seq: Any) -> _Gate:
            value = seq[..., self.place : self.place + 1]
            return _Gate(value[None] if self.order else value)

    class Steps(torch.nn.Module):
        def forward(self, seq: Any) -> Any:
            return seq[..., 3 * width]

    class Last(torch.nn.Module):
        """Gates of a write are those of its last token, not of the mean of its tokens."""

        def forward(self, seq: Any, chunk_size: int) -> Any:
            return seq[:, chunk_size - 1 :: chunk_size]

    memory.to_keys, memory.to_values, memory.to_queries = (
        column(n * width, (n + 1) * width) for n in range(3)
    )
    memory.to_adaptive_step, memory.reduce_to_chunk_rep = Steps(), Last()
    memory.to_decay_factor = Gates(3 * width + 1, False)
    if momentum:
        memory.to_momentum = Gates(3 * width + 2, True)


def _names(config: Config) -> dict[str, str]:
    """Names of a case's tensors of the memory, by those of titans-pytorch."""
    normed = config.memory.residual_norm
    within = "model." if normed else ""
    names = {f"{within}weights.{i}": f"W_{i + 1}" for i in range(config.memory.depth)}
    return names | ({"norm.gamma": "norm/gain"} if normed else {})


def neural_memory(config: Config, *, momentum: bool) -> Any:
    """A NeuralMemory of titans-pytorch that takes keys, values, queries and gates as columns."""
    package, function = imported("titans_pytorch"), config.memory
    reference = config.convention.reference
    batch = {"running": config.chunk, "chunk_start": config.span, "call_start": None}[reference]
    memory = package.NeuralMemory(
        config.d_in,
        chunk_size=config.chunk,
        batch_size=batch,
        model=package.MemoryMLP(config.d_in, function.depth, function.expansion),
        momentum=momentum,
        pre_rmsnorm=False,
        mem_model_norm_add_residual=function.residual_norm,
        adaptive_step_transform=lambda step: step,
        max_grad_norm=None if config.clip == "none" else config.clip_norm,
        spectral_norm_surprises=config.convention.has_newton_schulz,
    )
    _put_columns(memory, config.d_in, momentum=momentum)
    return memory


def _titans_pytorch(x: Tensors, config: Config) -> Tensors:
    """titans-pytorch chunk by chunk, with a memory for each leading index of the case."""
    return titans_results(neural_memory(config, momentum="momentum" in x), x, config)


def titans_results(memory: Any, x: Tensors, config: Config) -> Tensors:
    """What a `neural_memory` computes of a case's tensors."""
    torch = pytorch()
    rows, momentum = _Rows(x), "momentum" in x
    ones = torch.ones_like(x["retain"])
    gates = [x.get("window_gate", ones), x["retain"], *([x["momentum"]] if momentum else [])]
    tokens = torch.cat([rows.tokens(each) for each in (x["k"], x["v"], x["q"], *gates)], dim=-1)
    names, first = _names(config), {}
    for name in memory.memory_model_parameter_names:
        own = 1 if name == "norm.gamma" else 2
        value = rows.first(x[f"memory/{names[name]}"], own)
        first[name] = value.transpose(1, 2) if own == 2 else value
    S = {name: torch.zeros_like(each)[None] for name, each in first.items()}
    state = imported("titans_pytorch.neural_memory").NeuralMemState(
        0, dict(first), None, (dict(first), S), None
    )
    y, state = memory(tokens, state=state)
    kinds = {"weights": state.states[0]}
    if momentum:
        kinds["momentum"] = {name: each[0] for name, each in state.states[1].items()}
    if config.convention.reference == "call_start":
        kinds["reference"] = state.weights  # where a span ends it is the next one's already
    outputs = {"y": rows.back(y)}
    for kind, tensors in kinds.items():
        for name, ours in names.items():
            value = tensors[name]
            value = value.transpose(1, 2) if value.ndim == 3 else value
            outputs[f"state/{kind}/{ours}"] = rows.back(value)
    return outputs


def _square(inputs: Mapping[str, Any]) -> str:
    d_in, d_out = inputs["k"].shape[-1], inputs["v"].shape[-1]
    if d_in != d_out:
        return f"d_in {d_in} and d_out {d_out}: it knows one width"
    return "one token: it reads that of the last state" if inputs["k"].shape[-2] == 1 else ""


titans_pytorch = DeepMemory(
    "NeuralMemory", "titans-pytorch", _own_titans_pytorch, _titans_pytorch, wants=_square
)


# -- titans-memory ---------------------------------------------------------------------------------


def _own_titans_memory(
    given: dict[str, Any], convention: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    depth = given.get("memory", {}).get("depth", 2)
    whole = convention.get("read") == "call_end"
    parameters = {
        **_memory(given, ("depth", "expansion"), activation="silu"),
        "fast": (f"W_{depth}",),
    }
    convention = {"gate": "forget", "momentum_sign": "minus", "gradient_scale": 1.0}
    convention |= {"rate": "momentum", "newton_schulz": "none"}
    one_chunk = {"read": "call_end", "reference": "call_start"}
    return parameters, convention | (one_chunk if whole else {})


def _titans_memory(x: Tensors, config: Config) -> Tensors:
    """The loop of titans-memory over chunks of one token, or over one chunk, row after row.

    A memory starts from the weights of its last layer, cut off from the graph.
    """
    torch = pytorch()
    module, rows = by_file("titans.memory.neural_memory"), _Rows(x)
    tokens, width, depth = x["k"].shape[-2], config.d_in, config.memory.depth
    whole = config.convention.read == "call_end"
    named = {name: rows.tokens(each) for name, each in x.items() if not name.startswith(MEMORY)}
    reads = []
    for row in range(rows.count):
        memory = module.NeuralMemory(
            width,
            d_hidden=int(config.memory.expansion * width),
            n_layers=depth,
            chunk_size=tokens if whole else 1,
            use_momentum="momentum" in x,
        )
        memory.to(x["k"].dtype)
        layers = [each for each in memory.memory.net if hasattr(each, "weight")]
        for n, layer in enumerate(layers):
            value = x[f"memory/W_{n + 1}"]
            del layer.weight  # a parameter: a tensor of the graph takes its place
            layer.weight = value.detach() if n == depth - 1 else value
        one = [named[name][row : row + 1] for name in ("q", "k", "v")]
        momentum = "momentum" if "momentum" in x else "retain"
        gates = [named[name][row : row + 1] for name in ("step_size", momentum, "retain")]
        reads.append(memory._retrieve_chunked(*one, *gates)[0])
    return {"y": rows.back(torch.stack(reads))}


titans_memory = DeepMemory(
    "NeuralMemory", "titans-memory", _own_titans_memory, _titans_memory, wants=_square
)


# -- titans-unofficial -----------------------------------------------------------------------------


def _own_titans_unofficial(
    given: dict[str, Any], convention: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    clip = given.get("clip", "none")
    parameters = {
        **_memory(given, ("depth", "expansion", "activation")),
        **_kept(given, ("clip_norm",)),
        "clip": clip if clip in ("none", "hard") else "hard",
    }
    return parameters, {
        "gate": "forget",
        "momentum_sign": "minus",
        "gradient_scale": 2.0,
        "rate": "momentum",
        "read": "before",
        "newton_schulz": "none",
    }


def _titans_unofficial(x: Tensors, config: Config, *, biases: bool) -> Tensors:
    """titans-unofficial, whose layers have biases, which start at 0 here.

    Its activation is relu, which no memory function of ours has. Keys and queries are normalised
    inside.

    Args:
        biases: whether they are written; if not, their gradient is made 0.
    """
    torch = pytorch()
    module, rows = by_file("titans.utils.memory"), _Rows(x)
    width, depth = config.d_in, config.memory.depth
    memory = module.NeuralMemoryModule(
        width,
        memory_depth=depth,
        use_momentum="momentum" in x,
        max_grad_norm=None if config.clip == "none" else config.clip_norm,
    )

    class Logit(torch.nn.Module):
        def __init__(self, place: int, shift: float = 0.0) -> None:
            super().__init__()
            self.place, self.shift = place, shift

        def forward(self, seq: Any) -> Any:
            return seq[..., self.place : self.place + 1].logit() + self.shift

    memory.W_K, memory.W_V, memory.W_Q = (column(n * width, (n + 1) * width) for n in range(3))
    memory.theta_proj, memory.alpha_proj = Logit(3 * width), Logit(3 * width + 1, _SHIFT)
    memory.eta_proj = Logit(3 * width + (2 if "momentum" in x else 1))
    if not biases:
        whole = memory._surprise
        memory._surprise = lambda *given: [
            each if each.ndim == 3 else torch.zeros_like(each) for each in whole(*given)
        ]
    gates = [x[name] for name in ("step_size", "retain", "momentum") if name in x]
    seq = torch.cat([rows.tokens(each) for each in (x["k"], x["v"], x["q"], *gates)], dim=-1)
    params = []
    for n in range(depth):
        weight = rows.first(x[f"memory/W_{n + 1}"], 2)
        params += [weight, weight.new_zeros(weight.shape[:2])]
    state = (params, [torch.zeros_like(each) for each in params])
    y, (weights, momenta) = memory(seq, state)
    outputs = {"y": rows.back(y)}
    for kind, tensors in (("weights", weights), ("momentum", momenta)):
        if kind == "weights" or "momentum" in x:
            for n in range(depth):
                outputs[f"state/{kind}/W_{n + 1}"] = rows.back(tensors[2 * n])
    return outputs


def _unit(inputs: Mapping[str, Any]) -> str:
    for name in ("k", "q"):
        length = np.linalg.norm(np.asarray(inputs[name], np.float64), axis=-1)
        if np.abs(length - 1).max() > 1e-12:
            return f"in/{name}: it takes unit vectors"
    return _square(inputs)


#: Gradients by keys and queries pass through its norm.
_BY_NORM = ("k", "q")

titans_unofficial = DeepMemory(
    "NeuralMemoryModule",
    "titans-unofficial",
    _own_titans_unofficial,
    lambda x, config: _titans_unofficial(x, config, biases=True),
    without=_BY_NORM,
    wants=_unit,
)
titans_unofficial_without_biases = titans_unofficial._replace(
    label="NeuralMemoryModule, biases held at 0",
    core=lambda x, config: _titans_unofficial(x, config, biases=False),
)
