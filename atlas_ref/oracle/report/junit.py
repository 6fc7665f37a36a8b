"""A report as JUnit XML: a suite per case, a test per tensor (SRC-18)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

if TYPE_CHECKING:
    from atlas_ref.oracle.judge.verdicts import Comparison
    from atlas_ref.oracle.report.report import Report


def text(report: Report) -> str:
    """The whole document."""
    root = ElementTree.Element("testsuites", name="atlas-ref check")
    messages = {failure.case: failure.text() for failure in report.failures}
    for case, rows in report.by_case().items():
        suite = ElementTree.SubElement(root, "testsuite", name=legible(case))
        for row in rows:
            _test(suite, row, messages.get(case, ""))
        _count(suite)
    wrong = [("bad input", line, "error") for line in report.bad_input] + [
        ("expected failures", line, "failure") for line in report.problems
    ]
    if wrong:
        suite = ElementTree.SubElement(root, "testsuite", name="the run itself")
        for number, (name, line, kind) in enumerate(wrong):
            test = ElementTree.SubElement(
                suite, "testcase", classname="atlas-ref", name=f"{name} {number + 1}"
            )
            ElementTree.SubElement(test, kind, message=legible(line), type=name)
        _count(suite)
    _count(root)
    ElementTree.indent(root)
    return (
        "<?xml version='1.0' encoding='utf-8'?>\n"
        + ElementTree.tostring(root, encoding="unicode")
        + "\n"
    )


def _test(suite: ElementTree.Element, row: Comparison, message: str) -> None:
    test = ElementTree.SubElement(
        suite, "testcase", classname=legible(Path(row.case).stem), name=legible(row.tensor)
    )
    if row.xfail:
        ElementTree.SubElement(
            test, "skipped", message=legible(f"expected to fail: {row.xfail}"), type="xfail"
        )
    elif row.verdict == "NOT SUPPORTED":
        ElementTree.SubElement(test, "skipped", message=legible(row.why), type=row.verdict)
    elif row.verdict != "PASS":
        kind = "error" if row.verdict == "FAILED" else "failure"
        ElementTree.SubElement(
            test, kind, message=legible(_words(row)), type=row.verdict
        ).text = legible(message)


def _words(row: Comparison) -> str:
    if row.why or row.error is None:
        return f"{row.verdict}: {row.why}" if row.why else row.verdict
    return (
        f"{row.verdict}: error {row.error:.3g}, tolerance {row.tolerance:.3g}, at {row.place}: "
        f"{row.got!r}, expected {row.want!r}"
    )


def _count(element: ElementTree.Element) -> None:
    element.set("tests", str(len(element.findall(".//testcase"))))
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        element.set(attribute, str(len(element.findall(f".//{tag}"))))


def legible(words: str) -> str:
    """Text with the characters that XML 1.0 cannot hold written out."""
    return "".join(
        c
        if c in "\n\t"
        or (c >= " " and not "\ud800" <= c <= "\udfff" and c not in "\x7f\ufffe\uffff")
        else c.encode("unicode_escape", "surrogatepass").decode()
        for c in words
    )
