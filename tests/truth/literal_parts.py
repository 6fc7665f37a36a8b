"""Parts of the literal evaluation: conventions, gates' functions, norms, feature maps,
Newton-Schulz.

Every function takes float64 or complex128, never conjugates, and compares real parts only, so that
a complex step passes through. Nothing here is fast and nothing is shared with the package under
test.
"""

import functools
import itertools
import math
from decimal import Decimal, localcontext
from typing import Any

import numpy as np

Array = np.ndarray

SPEC: dict[str, Any] = {
    "decay": "after_error",
    "gradient_scale": 1,
    "momentum_sign": "plus",
    "momentum_kind": "sum",
    "retain_bounds": "none",
    "step_bounds": "none",
    "memory_ceiling": "none",
    "direction": "descent",
    "value_sign": "minus",
    "read": "after",
    "reference": "running",
    "span_origin": "first",
    "window_at_boundary": "recompute",
    "window_edge": "truncate",
    "order": "window_then_momentum",
    "query_scale": 1,
    "q_norm": "none",
    "k_norm": "none",
    "norm_place": "before_phi",
    "norm_eps": 1e-6,
    "norm_guard": "root",
    "layout": "plain",
}
NEWTON_SCHULZ: dict[str, Any] = {
    "coefficients": "muon",
    "steps": 5,
    "eps": 1e-7,
    "norm_factor": 1,
    "guard": "add",
    "transpose": "tall",
    "scale": "1",
    "argument": "S",
    "lower_bound": 1e-3,
}
TTL = {"rate": "memory", "gradient_scale": 2, "reference": "call_start", "read": "call_end"}
FLA = {
    "gate": "retain",
    "newton_schulz": "none",
    "layout": "transposed",
    "query_scale": "1/sqrt(d_in)",
}
PRESETS: dict[str, dict[str, Any]] = {
    "spec": {},
    "atlas-paper": {"rate": "memory"},
    "atlas-table1": {"rate": "memory", "direction": "ascent"},
    "atlas-eq40": {
        "rate": "momentum",
        "momentum_sign": "minus",
        "gate": "none",
        "reference": "chunk_start",
    },
    "atlas-eq57": {"rate": "none", "momentum_sign": "minus"},
    "titans-paper": {"gate": "forget", "momentum_sign": "minus", "gradient_scale": 2},
    "ttl": TTL,
    "atlas-mag": {**TTL, "newton_schulz": {"guard": "return", "transpose": "never"}},
    "atlas-rnn": {
        "gate": "retain",
        "rate": "memory",
        "read": "before",
        "reference": "call_start",
        "window_at_boundary": "carry",
        "newton_schulz": "none",
    },
    "fla-delta": FLA,
    "fla-gated-delta": {**FLA, "decay": "before_error"},
    "fla-momentum-delta": {**FLA, "rate": "split"},
    "nl-hecate": {
        "gate": "forget",
        "momentum_sign": "minus",
        "q_norm": "l2",
        "k_norm": "l2",
        "norm_place": "before_phi",
    },
    "nl-hecate-clamp": {
        "gate": "forget",
        "momentum_sign": "minus",
        "q_norm": "l2",
        "k_norm": "l2",
        "norm_place": "before_phi",
        "norm_eps": 1e-8,
        "norm_guard": "clamp",
    },
}


def resolve(header: dict[str, Any]) -> dict[str, Any]:
    """All axes of a case: first values < preset < given, the rest by rule, level and
    Newton-Schulz.
    """
    rule, level = header["rule"], header.get("level", "projected")
    choices = header.get("convention", "spec")
    if isinstance(choices, str):
        choices = {"preset": choices}
    convention = {**SPEC, "newton_schulz": {}, **PRESETS[choices.get("preset", "spec")]}
    preset_keys = convention["newton_schulz"]
    convention.update({axis: value for axis, value in choices.items() if axis != "preset"})
    if isinstance(preset_keys, dict) and isinstance(convention["newton_schulz"], dict):
        convention["newton_schulz"] = {**preset_keys, **convention["newton_schulz"]}
    if rule not in ("omega", "newton_schulz"):
        convention["newton_schulz"] = "none"
    if convention["newton_schulz"] != "none":
        convention["newton_schulz"] = {**NEWTON_SCHULZ, **convention["newton_schulz"]}
    if "rate" not in convention:
        convention["rate"] = (
            "both" if rule == "omega" and convention["newton_schulz"] != "none" else "momentum"
        )
    if "gate" not in convention:
        forgets = level == "token" and rule in ("titans_lmm", "delta", "hebbian")
        convention["gate"] = "forget" if forgets else "retain"
    return convention


def bounded(x: Any, bounds: Any) -> Any:
    """A gate, or the constant at or beyond which it lies."""
    if bounds == "none":
        return x
    low, high = bounds
    return np.where(np.real(x) <= low, low, np.where(np.real(x) >= high, high, x))


def shortened(M: Array, ceiling: Any) -> Array:
    """A memory, or where it is longer than the ceiling, that direction at its length.

    The derivative is stated to be that of M, so a complex step keeps its imaginary part.
    """
    if ceiling == "none":
        return M
    squares = sum(float(np.real(x)) ** 2 for x in M.ravel())
    factor = ceiling / math.sqrt(squares) if squares > ceiling**2 else 1.0
    return factor * np.real(M) + (M - np.real(M))


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x), each branch free of overflow."""
    positive = np.real(x) >= 0
    small = np.exp(np.where(positive, -x, x))
    return np.where(positive, 1 / (1 + small), small / (1 + small))


def softplus(x: Array) -> Array:
    """log(1 + e^x) = max(x, 0) + log(1 + e^-|x|)."""
    positive = np.real(x) >= 0
    return np.where(positive, x, 0) + np.log1p(np.exp(np.where(positive, -x, x)))


def silu(x: Array) -> Array:
    """x sigmoid(x)."""
    return x * sigmoid(x)


def gelu(x: Array) -> Array:
    """The tanh form, x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def softmax(x: Array) -> Array:
    """exp(x_j) / sum_i exp(x_i) over the last axis."""
    weights = np.exp(x - np.real(x).max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def normalise(kind: str, x: Array, convention: dict[str, Any]) -> Array:
    """One vector x under a norm with its eps: none, l2 or rms."""
    if kind == "none":
        return x
    squares = sum(entry * entry for entry in x) / (len(x) if kind == "rms" else 1)
    eps, guard = convention["norm_eps"], convention["norm_guard"]
    if guard == "root":
        return x / np.sqrt(squares + eps)
    length = np.sqrt(squares) if np.real(squares) > 0 else 0.0
    if guard == "add":
        return x / (length + eps)
    return x / (eps if np.real(length) < eps else length)


def polynomial(settings: dict[str, Any], x: Array) -> Array:
    """Each monomial once, times sqrt(a_i multinomial); a constant with coefficient 0 is no
    feature.
    """
    degree = settings.get("degree", 2)
    default = [0.0] + [1 / math.factorial(i) for i in range(1, degree + 1)]
    coefficients = settings.get("coefficients") or default
    features = []
    for i, a in enumerate(coefficients):
        if i == 0 and a == 0:
            continue
        for indices in itertools.combinations_with_replacement(range(len(x)), i):
            multinomial = math.factorial(i)
            for n in range(len(x)):
                multinomial //= math.factorial(indices.count(n))
            monomial = np.asarray(1.0, x.dtype)
            for n in indices:
                monomial = monomial * x[n]
            features.append(math.sqrt(a * multinomial) * monomial)
    return np.array(features)


def pairs(x: Array, every: bool) -> Array:
    """[x; x_i x_j], over every i, j (row-major) or over i <= j."""
    products = [x[i] * x[j] for i in range(len(x)) for j in range(len(x)) if every or i <= j]
    return np.array([*x, *products])


def hashed(c: Array, H: Array, x: Array) -> Array:
    """[c_0; c_1 x; c_2 T_2; ...], a term of T_n for each tuple of buckets, filed under their sum."""
    blocks, m = [c[:1], c[1] * x], H.shape[1]
    for n in range(2, len(c)):
        block = np.zeros(m, np.result_type(c, H, x))
        for buckets in itertools.product(range(m), repeat=n):
            term = np.asarray(1.0, x.dtype)
            for sketch, bucket in enumerate(buckets):
                term = term * (H[sketch, bucket] @ x)
            block[sum(buckets) % m] += term
        blocks.append(c[n] * block)
    return np.concatenate(blocks)


def feature_map(
    settings: dict[str, Any] | str | None, tensors: dict[str, Array], x: Array
) -> Array:
    """phi(x) of one vector."""
    settings = {"kind": settings} if isinstance(settings, str) else settings or {"kind": "identity"}
    kind = settings["kind"]
    if kind == "linear":
        return tensors["in/phi/W"] @ x
    if kind == "random_fourier":
        w, b = tensors["in/phi/W"], tensors["in/phi/b"]
        return math.sqrt(2 / len(b)) * np.cos(w @ x + b)
    if kind == "elu":
        return np.where(np.real(x) > 0, x + 1, np.exp(np.where(np.real(x) > 0, 0, x)))
    if kind == "residual_mlp":
        act = gelu if settings.get("activation", "silu") == "gelu" else silu
        return x + tensors["in/phi/W2"] @ act(tensors["in/phi/W1"] @ x)
    if kind == "polynomial":
        return polynomial(settings, x)
    if kind == "monomials":
        return pairs(x, every=False)
    if kind == "elementwise":
        total, power = np.zeros_like(x), np.ones_like(x)
        for _ in range(settings.get("degree", 2)):
            power = power * x
            total = total + power
        return total
    if kind == "sketch":
        return pairs(x, every=True) @ tensors["in/proj"]
    if kind == "tensor_sketch":
        return hashed(tensors["in/phi/c"], tensors["in/phi/H"], x) @ tensors["in/proj"]
    return x


FIXED_COEFFICIENTS = {"muon": (3.4445, -4.7750, 2.0315), "cubic": (1.5, -0.5, 0.0)}


def solve(matrix: list[list[Decimal]], right: list[Decimal]) -> list[Decimal]:
    """The solution x of A x = b, by Gauss-Jordan elimination with the largest pivot."""
    n = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [value / rows[i][i] for value in rows[i]]
        for r in range(n):
            if r != i:
                rows[r] = [
                    value - rows[r][i] * top for value, top in zip(rows[r], rows[i], strict=True)
                ]
    return [row[n] for row in rows]


def minimax_quintic(low: Decimal, high: Decimal) -> tuple[Decimal, Decimal, Decimal, Decimal]:
    """Coefficients a, b, c and error E of the odd quintic nearest to 1 on [low, high].

    p(x) = a x + b x^3 + c x^5, by exchange of four points.

    p(low) = 1 - E, p(q) = 1 + E, p(r) = 1 - E, p(high) = 1 + E, with q < r the roots of p' = a + 3
    b x^2 + 5 c x^4.
    """
    points = [low, (3 * low + high) / 4, (low + 3 * high) / 4, high]
    previous = Decimal(2)
    for _ in range(200):
        matrix = [
            [x, x**3, x**5, Decimal(sign)] for x, sign in zip(points, (1, -1, 1, -1), strict=True)
        ]
        a, b, c, error = solve(matrix, [Decimal(1)] * 4)
        if abs(error - previous) < Decimal(10) ** -45:
            break
        previous = error
        root = (9 * b * b - 20 * a * c).sqrt()
        points = [
            low,
            ((-3 * b - root) / (10 * c)).sqrt(),
            ((-3 * b + root) / (10 * c)).sqrt(),
            high,
        ]
    return a, b, c, error


@functools.cache
def polar_express(steps: int, lower_bound: float) -> list[tuple[float, float, float]]:
    """Rows of the Polar Express: step i is minimax on [l_i, u_i].

    l_{i+1} = 1 - E_i, u_{i+1} = 1 + E_i; (15, -10, 3) / 8 once u - l < 1e-5.
    """
    table = []
    with localcontext() as context:
        context.prec = 60
        low, high = Decimal(lower_bound), Decimal(1)
        for _ in range(steps):
            if high - low < Decimal("1e-5"):
                table.append((15 / 8, -10 / 8, 3 / 8))
                continue
            a, b, c, error = minimax_quintic(low, high)
            table.append((float(a), float(b), float(c)))
            low, high = 1 - error, 1 + error
    return table


def coefficient_table(settings: dict[str, Any]) -> list[tuple[float, float, float]]:
    """One (a, b, c) for each step; the last given row is repeated."""
    coefficients, steps = settings["coefficients"], settings["steps"]
    if coefficients == "polar_express":
        return polar_express(steps, settings["lower_bound"])
    if isinstance(coefficients, str):
        return [FIXED_COEFFICIENTS[coefficients]] * steps
    return [tuple(coefficients[min(i, len(coefficients) - 1)]) for i in range(steps)]


def newton_schulz(s: Array, settings: dict[str, Any]) -> Array:
    """Newton-Schulz as written in the spec.

    X_0 = S / (f ||S|| + eps); X <- a X + (b A + c A^2) X with A = X X^T; then the scale.
    """
    norm = np.sqrt(np.sum(s * s))
    factor, eps = settings["norm_factor"], settings["eps"]
    if settings["guard"] == "return" and norm.real < eps:
        return s
    denominator = factor * norm + eps
    if settings["guard"] == "clamp":
        denominator = factor * norm if (factor * norm).real > eps else eps
    if not np.any(np.real(s)) and eps == 0:
        return np.zeros_like(s)
    x = s / denominator
    transposed = settings["transpose"] == "tall" and s.shape[0] > s.shape[1]
    if transposed:
        x = x.T
    for a, b, c in coefficient_table(settings):
        gram = x @ x.T
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    if transposed:
        x = x.T
    if settings["scale"] == "sqrt":
        x = x * math.sqrt(max(1.0, s.shape[0] / s.shape[1]))
    if settings["scale"] == "norm":
        x = x * norm
    return x
