"""Subjects of the oracle, one file each; `atlas_ref.oracle.registry` lists them.

A case asks the registry for its subject, which is imported then, so this folder lies above `cases`.
Nothing is imported here, since every file of a subject would need all of them first.
"""
