"""Evaluation of models that were trained: what text costs them, and what their memory adds.

Specified in specs/evaluate.md (EVAL-1 to EVAL-6).
"""
