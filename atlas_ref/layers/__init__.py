"""Layers around the rules: projections from tokens."""
