"""Training: text as tokens, the loop, checkpoints, and probes of what memories hold.

Specified in specs/train.md.
"""
