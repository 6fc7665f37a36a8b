"""Probes: small tasks whose answer is known, asked of a memory or of a model.

Specified in specs/probes.md.
"""
