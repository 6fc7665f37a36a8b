"""The scoreboard of the field: each public package in an environment of its own, every function of
it asked the vectors of the member that it computes.
"""
