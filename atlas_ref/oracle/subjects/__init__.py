"""Subjects of the oracle, one file each; `atlas_ref.oracle.registry` lists them.

Cases are read by the rules of their subject, so this folder lies below `cases` and does not import
it. Nothing is imported here, since every file of a subject would need all of them first.
"""
