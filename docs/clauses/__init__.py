"""Which clause of the specs is carried out by which code, proved by which test, exercised by which vector: `atlas-ref trace-spec`.

`specs` reads clauses, `places` reads code, `marks` reads tests, `record` what a run of the tests executed, `trace` joins them.
"""
