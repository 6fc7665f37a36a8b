"""Training: text as tokens, the loop, checkpoints, and what a run is.

Specified in specs/train.md.
"""
