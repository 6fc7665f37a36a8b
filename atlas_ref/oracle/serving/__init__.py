"""Schedules of several requests as cases: what a server does with them, and what is right.

Specified in specs/schedules.md (SCHED-7 to SCHED-11).
"""
