"""Write the names and parameters that CuPy offers to cupy.json: `python -m
tests.support.standin.record`.

Needs CuPy, but no GPU.
"""

from __future__ import annotations

import importlib
import inspect
import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("cupy.json")


def described() -> dict[str, Any]:
    """The version of CuPy and the names that it offers.

    Names are of ufuncs, of special functions with their types, of functions with their parameters
    ("**name" for any), of linear algebra, and of attributes of arrays.
    """
    cupy = importlib.import_module("cupy")
    ufuncs, functions = [], {}
    for name in dir(cupy):
        attribute = getattr(cupy, name)
        if (
            name.startswith("_")
            or inspect.ismodule(attribute)
            or inspect.isclass(attribute)
            or not callable(attribute)
        ):
            continue
        if type(attribute).__name__ in ("ufunc", "_GUFunc"):
            ufuncs.append(name)
            continue
        try:
            parameters = inspect.signature(attribute).parameters.values()
        except ValueError:  # written in Cython
            continue
        marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
        functions[name] = [marks.get(each.kind, "") + each.name for each in parameters]
    module = importlib.import_module("cupyx.scipy.special")
    special = {
        name: [kind for kind in each.types if "E" not in kind]  # bfloat16, beside ml_dtypes alone
        for name, each in vars(module).items()
        if type(each).__name__ == "ufunc" and not name.startswith("_")
    }
    return {
        "version": cupy.__version__,
        "ufuncs": ufuncs,
        "special": dict(sorted(special.items())),
        "functions": functions,
        "linalg": [name for name, each in vars(cupy.linalg).items() if inspect.isfunction(each)],
        "array": [name for name in dir(cupy.ndarray) if not name.startswith("_")],
    }


if __name__ == "__main__":
    FILE.write_text(
        json.dumps(described(), indent=None, separators=(",", ":")).replace('],"', '],\n"') + "\n"
    )
    print(f"written: {FILE.name}")
