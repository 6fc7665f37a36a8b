"""Trace of every clause to its code, tests and vectors: `atlas-ref trace-spec`.

`specs` reads clauses, `places` reads code, `marks` reads tests, `record` reads the lines that a run
of the tests executed, `trace` joins them.
"""
