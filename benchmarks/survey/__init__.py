"""Public implementations held against the rules: what they compute, by what convention, and where
they differ.
"""
