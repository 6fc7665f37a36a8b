"""The papers that the specs cite, and which clause carries out which of their equations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from docs.cells import table
from docs.clauses.specs import Clause
from docs.clauses.trace import Trace


class Paper(NamedTuple):
    """Name by which the specs cite it, number at arXiv, authors, title."""

    name: str
    arxiv: str
    authors: str
    title: str


PAPERS = (
    Paper(
        "Titans",
        "2501.00663",
        "Behrouz, Zhong, Mirrokni",
        "Titans: Learning to Memorize at Test Time",
    ),
    Paper(
        "Atlas",
        "2505.23735",
        "Behrouz and others",
        "ATLAS: Learning to Optimally Memorize the Context at Test Time",
    ),
    Paper(
        "MIRAS",
        "2504.13173",
        "Behrouz, Razaviyayn, Zhong, Mirrokni",
        "It's All Connected: A Journey Through Test-Time Memorization, Attentional Bias, Retention, "
        "and Online Optimization",
    ),
    Paper(
        "TNT",
        "2511.07343",
        "Li and others",
        "TNT: Improving Chunkwise Training for Test-Time Memorization",
    ),
    Paper(
        "Nested Learning",
        "2512.24695",
        "Behrouz and others",
        "Nested Learning: The Illusion of Deep Learning Architectures",
    ),
    Paper(
        "Gated DeltaNet",
        "2412.06464",
        "Yang, Kautz, Hatamizadeh",
        "Gated Delta Networks: Improving Mamba2 with Delta Rule",
    ),
    Paper(
        "Kimi Linear",
        "2510.26692",
        "Kimi Team",
        "Kimi Linear: An Expressive, Efficient Attention Architecture",
    ),
    Paper(
        "Polar Express",
        "2505.16932",
        "Amsel, Persson, Musco, Gower",
        "The Polar Express: Optimal Matrix Sign Methods and Their Application to the Muon Algorithm",
    ),
    Paper("Muon at scale", "2502.16982", "Liu and others", "Muon is Scalable for LLM Training"),
    Paper("AdaMuon", "2507.11005", "Si, Zhang, Shen", "AdaMuon: Adaptive Muon Optimizer"),
    Paper("Adam", "1412.6980", "Kingma, Ba", "Adam: A Method for Stochastic Optimization"),
    Paper("AdamW", "1711.05101", "Loshchilov, Hutter", "Decoupled Weight Decay Regularization"),
    Paper("layer norm", "1607.06450", "Ba, Kiros, Hinton", "Layer Normalization"),
    Paper("RMS norm", "1910.07467", "Zhang, Sennrich", "Root Mean Square Layer Normalization"),
    Paper("attention", "1706.03762", "Vaswani and others", "Attention Is All You Need"),
    Paper(
        "attention in a window",
        "2004.05150",
        "Beltagy, Peters, Cohan",
        "Longformer: The Long-Document Transformer",
    ),
    Paper(
        "rotary positions",
        "2104.09864",
        "Su and others",
        "RoFormer: Enhanced Transformer with Rotary Position Embedding",
    ),
    Paper("GELU", "1606.08415", "Hendrycks, Gimpel", "Gaussian Error Linear Units (GELUs)"),
    Paper("gated feed-forward", "2002.05202", "Shazeer", "GLU Variants Improve Transformer"),
)

#: A paper with numbers of equations behind it: "Titans (2501.00663) Eqs 13-15", "Atlas Eqs 9, 10, 56".
_CITED = re.compile(
    r"\b(Atlas|Titans|TNT|HOPE)(?:'s?)?(?: \(\d{4}\.\d{5}\))?(?:,? Appendix [A-Z],| Table \d+ and)?"
    r"\s+Eqs?\s+(\d+(?:(?:-|,? and | to |, )\d+)*)"
)
#: In the spec of one paper its equations stand without its name.
_OWN = re.compile(r"(?<![a-z\d)] )Eqs? (\d+(?:(?:-|,? and | to |, )\d+)*)")
_OF_SPEC = {"specs/tnt.md": "TNT"}


def numbers(text: str) -> Iterator[int]:
    """The equations of a list such as "9, 10, 32-34 and 56"."""
    for part in re.split(r",? and |, ", text):
        first, _, last = re.sub(r" to ", "-", part).partition("-")
        yield from range(int(first), int(last or first) + 1)


def index(clauses: Mapping[str, Clause]) -> dict[tuple[str, int], list[str]]:
    """Clauses by paper and equation, in the order of papers and equations."""
    found: dict[tuple[str, int], list[str]] = {}
    for name, clause in clauses.items():
        text = " ".join(f"{clause.title}. {clause.text}".split())
        cited = [(match[1], match[2]) for match in _CITED.finditer(text)]
        if clause.path in _OF_SPEC:
            cited += [(_OF_SPEC[clause.path], match[1]) for match in _OWN.finditer(text)]
        for paper, listed in cited:
            for equation in numbers(listed):
                own = found.setdefault((paper, equation), [])
                own += [name] if name not in own else []
    papers = ["Atlas", "Titans", "TNT", "HOPE"]
    return dict(sorted(found.items(), key=lambda item: (papers.index(item[0][0]), item[0][1])))


def papers(trace: Trace, page: str) -> str:
    """Every paper with a link to it."""
    rows = [
        (
            each.name,
            f"{each.authors}: {each.title}",
            f"[{each.arxiv}](https://arxiv.org/abs/{each.arxiv})",
        )
        for each in PAPERS
    ]
    return table(("cited as", "paper", "arXiv"), rows)


def equations(trace: Trace, page: str) -> str:
    """Equation by equation, the clauses that name it."""
    from docs.tables import to_clauses

    rows = [
        (f"{paper} {equation}", to_clauses(ids, trace, page))
        for (paper, equation), ids in index(trace.clauses).items()
    ]
    return table(("equation", "clauses"), rows)


TABLES = (papers, equations)
