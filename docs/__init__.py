"""The docs site, made from the specs, the code and the tests.

mkdocs calls `hooks`. The pages in `pages/` are written by hand.
"""
