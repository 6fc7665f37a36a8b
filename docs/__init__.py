"""How the docs site is made from the specs, the code and the tests; `hooks` is what mkdocs calls, `pages/` what is written by hand."""
