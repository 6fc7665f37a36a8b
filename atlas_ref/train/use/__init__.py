"""Use of models that were trained: what text costs them, what memory adds, how they go on.

Specified in specs/evaluate.md (EVAL-1 to EVAL-8).
"""
