"""The page made from the survey's data: specs/survey.md.

It holds no number that is not in the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from atlas_ref.oracle.identify.stated import setting
from benchmarks.survey.pages import deep, family, field
from benchmarks.survey.pages.kept import asked_on

Data = Mapping[str, Any]

INTRODUCTION = """# Survey of public implementations

What code that others wrote and publish computes, asked by the adapters of
[`examples/adapters`](../examples/adapters/README.md) and judged by `atlas-ref`. One command writes this page from what
it finds (`make survey`):

    python -m benchmarks.survey {name} --write specs/survey

The run is of {date}. {kept}

It says which reading of which equation an implementation agrees with, on the cases named here, and no more: not that a library is
right or wrong, and nothing about its other functions, its kernels on a GPU or its speed. Where something fails, the reason is given as far
as it is known.
"""

KEPT = """A row that says `asked` and a date was not asked again in this run, or its package was absent from it:
it stands as the run of that date recorded it."""
ALL_ASKED = "Every row was asked in it."

FIELD = """## The field

Each package is installed by itself, with the pins of [`packages.toml`](../benchmarks/survey/field/packages.toml), in an environment
that the command makes (`build/survey`), and every function of it is asked all vectors of its rule or [member](dplr_cases.md) in {sets}:
{vectors}. `--only PACKAGE` asks one again; the other rows stand with their dates.

- A case PASSes where every value and every gradient that the function returns is within the [tolerance](tolerance.md). The worst error
  is that of a value, in tolerances; up to 2 is PASS (TOL-6).
- Members are asked the vectors as they stand, in float32 unless the row says otherwise. What a function does not take is not asked,
  and named behind *lacks* with the number of vectors. Functions of a rule with conventions are asked the vector under their own
  (see [below](#which-cases)).
- A package that cannot be installed is a row that says why.
"""

CONVENTIONS = """## Which convention

`identify` searched every convention that is up to two changes from the adapter's or from a preset, on one small case, in the finest
format that the implementation computes in. MATCH: one alone explains the results. UNDECIDABLE: the axes named cannot be told from what
is returned. NO MATCH: none explains them within the tolerance of that format; the nearest is shown. The axes are those of
[conventions](conventions.md); the number of conventions that were compared is that of the row's own run, and grows with the axes.
"""

CASES = """## Which cases

The set `{name}` holds {cases} cases; {refused} more files are bad input and meant to be. An implementation is asked the cases of its
rule: as they stand where they state its convention, else restated under it ([`restate.py`](../benchmarks/survey/restate.py)), with our
truth for the restated case. PASS is within the tolerance of the precision ([tolerance](tolerance.md)), 1e-12 at float64; values and
gradients are counted by tensor.
"""

FAILURES = """## What fails

By the clause that the failing tensors are about; "up to" is the power of ten above the largest error in the deciding norm.
"""

ASKED = """## What was changed, and what was not asked

Numbers are cases. An implementation is not asked for what it does not take. Gates that it takes as logarithms are given as such where
none is 0; where one is, the adapter takes the logarithm and leaves out gradients.
"""

OTHERS = """## Others that were looked at

Found by searching the package index for these rules, installed or unpacked, and read.
"""

BRACKET_TITLE = "## The lost bracket in fla-core's Titans\n"

BRACKET = r"""
fla-core {version} has a PyTorch reference of Titans with a linear memory (`ops/titans/naive.py`) in two forms, token by token and in
chunks. Its loss, read from the file, is that of Titans (2501.00663) Eq 12 with a LayerNorm of weight $w$ and bias $b$ around the
memory's answer and the target $u = v - k$. With $p = kM$, $\sigma = \sqrt{{\mathrm{{var}}\,p + \epsilon}}$,
$\hat p = (p - \mathrm{{mean}}\,p)/\sigma$ and $z = w\,(w\hat p + b - u)$, loss and gradient of a token are

$$ \ell(M) = \lVert w \hat p + b - u\rVert^2, \qquad
\nabla \ell = 2\,k^{{\top}}\,\frac{{d\,z - \sum z - \hat p \sum z \hat p}}{{d\,\sigma}} . $$

What it applies is

$$ 2\,k^{{\top}}\Bigl(d\,z - \frac{{\sum z}}{{d\,\sigma}} - \frac{{\hat p \sum z \hat p}}{{d\,\sigma}}\Bigr) : $$

the bracket around the numerator is lost, and its first term is not divided. The applied gradient is read off from outside: from
no momentum, one token gives $M_1 = (1 - \alpha) M_0 - \theta\,(\mathrm{{applied}})$. Relative differences in the Frobenius norm, over
{seeds} seeds, d = {width}, {heads} heads:

| compared | relative difference |
|---|---|
| the formula with the bracket, by hand, and autograd of the loss, in float64 | at most {hand_from_autograd} |
| the applied gradient and the formula without the bracket | at most {applied_from_lost} |
| the applied gradient and autograd of the loss | {applied_from_autograd[0]} to {applied_from_autograd[1]} |
| its two forms, {tokens} tokens in chunks of {chunk}: reads and last memory | at most {forms_apart} |

The applied gradient is {norm_ratio[0]} to {norm_ratio[1]} times as long as that of the loss and points elsewhere: their cosine is
{cosine[0]} to {cosine[1]}. Both forms hold the same line, so they agree with each other to rounding, and a test that compares one
with the other cannot see it. (The test of this code in its repository, `tests/ops/test_titans.py` at commit 0315a70, compares just
these two, and is marked as skipped.) [`bracket.py`](../benchmarks/survey/bracket.py) computes these numbers; nothing of fla-core is
copied.
"""

RNN = """## Faults of atlas-rnn's layers

What layers, models and scripts of atlas-rnn do otherwise than their description, or than the paper they name, each by one number
([`rnn_faults.py`](../benchmarks/survey/rnn_faults.py)).
{package}
The other two columns are ours, in float64, with the same parameters and tokens, under the presets of [layers](layers.md): where
atlas-rnn has the number of the package, our preset reproduces the fault. A percentage is a relative difference in the Frobenius
norm; 0 stands for one below 1e-5, above the rounding of float32. What a document states is an erratum too.
"""

RNN_ASKED = "The package, commit {version}{kept}, computes in float32 unless a row says otherwise."

RNN_ABSENT = "Its clone was not on the path (`PYTHONPATH`), so nothing was asked of it."

CHUNKS_TITLE = "## A second call of titans-pytorch\n"

CHUNKS = """
`NeuralMemory` of titans-pytorch {version} returns a state that holds the tokens of an unfinished chunk. Here its chunk is {chunk}, its
memory one matrix or an MLP of two, with a norm and its argument added, and a sequence is cut into two calls, each of 1 to {longest}
tokens: {pairs} pairs, in float64. `same`: the second call returns what one call of all tokens returns, to 1e-12. `raises`: it raises
RuntimeError, sizes of two tensors disagree. `apart`: it returns something else without a word, and by how much. `ours`: our layer of
the same parameters ([NEURAL-10](neural_memory.md)), cut the same way, against the package's one call, the largest of all pairs: what a
second call should return ([`chunks.py`](../benchmarks/survey/chunks.py)).
"""

CONVENTION_HEAD = ("implementation", "rule", "convention", "verdict", "stated reading")
CASE_HEAD = (
    "implementation",
    "precision",
    "as they stand",
    "restated",
    "not asked",
    "cases PASS",
    "values PASS",
    "gradients PASS",
)
FAILURE_HEAD = (
    "implementation",
    "precision",
    "clause",
    "tensors",
    "cases",
    "verdict",
    "up to",
    "known reason",
)
RNN_HEAD = (
    "atlas-rnn",
    "measured",
    "package",
    "ours, atlas-rnn",
    "ours, causal",
    "reading of ours",
)
CHUNK_HEAD = (
    "memory",
    "weights renewed",
    "same",
    "second call of one token",
    "first call of whole chunks",
    "raises",
    "as at",
    "apart",
    "as at",
    "by",
    "ours",
)
OTHER_HEAD = ("package", "why nothing of it is asked")


def page(data: Data) -> str:
    """The whole page."""
    rows = data["implementations"]
    parts = [
        _introduction(data),
        *_field(data),
        CONVENTIONS,
        _table(CONVENTION_HEAD, [_convention(row) for row in rows]),
        CASES.format(**data["set"]),
        _table(CASE_HEAD, _cases(rows)),
        FAILURES,
        _table(FAILURE_HEAD, _failures(rows)),
        ASKED,
        _list(
            [
                *(_asked(row) for row in rows),
                *(f"{_name(row)} - {row['note']}" for row in rows if row["note"]),
            ]
        ),
        OTHERS,
        _table(OTHER_HEAD, list(data["others"].items())),
        *(_beside(data) if "family" in data else ()),
    ]
    return "\n".join(parts)


def _beside(data: Data) -> list[str]:
    """What does not come from the sets."""
    return [
        *family.parts(data["family"], data["family_faults"], _table),
        *deep.parts(data["deep"], data["deep_faults"], _table),
        BRACKET_TITLE + _bracket(data),
        *_rnn(data["rnn"]),
        CHUNKS_TITLE + _chunks(data["chunks"]),
    ]


def _field(data: Data) -> list[str]:
    said = data["field"]
    sets = [f"{each['cases']} of `{each['name']}`" for each in said["sets"]]
    names = " and ".join(f"`{each['name']}`" for each in said["sets"])
    text = FIELD.format(sets=names, vectors=f"{' and '.join(sets)} of all rules")
    return [text, _table(field.HEAD, field.lines(said["rows"], data["date"]))]


def _introduction(data: Data) -> str:
    parts = list(data["implementations"])
    days = {row["date"] for row in data["field"]["rows"]} - {data["date"]}
    if "family" in data:
        parts += [data["rnn"], data["bracket"], data["chunks"]]
        parts += [*data["deep"]["found"], *data["family"]["found"]]
        parts += [*data["deep_faults"], *data["family_faults"]]
    kept = KEPT if days or any("kept" in part for part in parts) else ALL_ASKED
    return INTRODUCTION.format(name=data["set"]["name"], date=data["date"], kept=kept)


def _name(row: Data) -> str:
    words = " ".join(f"{row['package']} {row['version']}".split()) + f", {row['label']}"
    return words + asked_on(row)


def _convention(row: Data) -> tuple[str, ...]:
    if "missing" in row:
        return (_name(row), row["rule"], "", row["missing"], row["source"])
    result = row["identified"]
    undecided = f" ({', '.join(result['undecided'])})" if result["verdict"] == "UNDECIDABLE" else ""
    verdict = result["verdict"] + undecided + f", of {result['searched']}"
    words = (
        result["convention"]
        if result["own"]
        else f"{result['convention']}, where {setting(row['convention'])} was expected"
    )
    matches = result["own"] and result["verdict"] in ("MATCH", "UNDECIDABLE")
    return (
        _name(row),
        row["rule"],
        words,
        verdict,
        f"{'matches' if matches else 'meant as'} {row['source']}",
    )


def _cases(rows: Sequence[Data]) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for row in rows:
        for dtype, result in row.get("results", {}).items():
            cases, skipped = result["cases"], sum(row["not_asked"].values())
            total = cases["as they stand"] + cases["restated"]
            counts = (
                str(cases["as they stand"]),
                str(cases["restated"]),
                str(skipped),
                f"{cases['passed']} of {total}",
            )
            lines.append(
                (
                    _name(row),
                    dtype,
                    *counts,
                    _passed(result["values"]),
                    _passed(result["gradients"]),
                )
            )
    return lines


def _passed(counts: Mapping[str, int]) -> str:
    return f"{counts.get('PASS', 0)} of {sum(counts.values())}" if counts else "-"


def _failures(rows: Sequence[Data]) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for row in rows:
        for dtype, result in row.get("results", {}).items():
            for clause, each in sorted(result["failed"].items()):
                cases = each["cases"]
                named = ", ".join(cases) if len(cases) <= 3 else f"{len(cases)}, as {cases[0]}"
                words = (
                    ", ".join(each["verdicts"]),
                    each["worst"],
                    "; ".join(each["why"]) or "as noted below" * bool(row["note"]),
                )
                lines.append((_name(row), dtype, clause, ", ".join(each["tensors"]), named, *words))
    return lines


def _asked(row: Data) -> str:
    changed = ", ".join(f"{words} {count}" for words, count in row.get("changes", {}).items())
    refused = ", ".join(f"{why} {count}" for why, count in row.get("not_asked", {}).items())
    said = "; ".join(
        part
        for part in (f"changed: {changed}" * bool(changed), f"not asked: {refused}" * bool(refused))
        if part
    )
    return f"{_name(row)} - {said}" if said else ""


def _bracket(data: Data) -> str:
    if "missing" in data["bracket"]:
        return f"\nNot computed: {data['bracket']['missing']}.\n"
    version = next(
        (row["version"] for row in data["implementations"] if row["package"] == "fla-core"), ""
    )
    return BRACKET.format(**{**data["bracket"], "version": version + asked_on(data["bracket"])})


def _rnn(data: Data) -> list[str]:
    said = {"version": data["version"], "kept": asked_on(data)}
    package = RNN_ASKED.format(**said) if data["version"] else RNN_ABSENT
    names = ("fault", "measured", "package", "atlas-rnn", "causal", "by")
    lines = [tuple(row[name] for name in names) for row in data["rows"]]
    return [RNN.format(package=package), _table(RNN_HEAD, lines)]


def _chunks(data: Data) -> str:
    if "missing" in data:
        return f"\nNot computed: {data['missing']}.\n"
    lines = []
    for row in data["rows"]:
        exact = (
            f"{row[name]} of {row[f'all of {name}']}" for name in ("one token", "whole chunks")
        )
        raised, apart = (
            "{} and {} tokens".format(*row[f"first {name}"]) for name in ("raised", "apart")
        )
        counts = (str(row["raised"]), raised, str(row["apart"]), apart)
        between = " to ".join(row["between"])
        start = (row["memory"], row["batch"], str(row["same"]))
        lines.append((*start, *exact, *counts, between, f"below {row['ours']}"))
    words = CHUNKS.format(**{**data, "version": data["version"] + asked_on(data)})
    return words + "\n" + _table(CHUNK_HEAD, lines)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return "Nothing.\n"
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return (
        "\n".join(
            [
                *lines,
                *(
                    "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
                    for row in rows
                ),
            ]
        )
        + "\n"
    )


def _list(lines: Iterable[str]) -> str:
    return "".join(f"- {line}\n" for line in lines if line)
