"""Layers on NumPy arrays as opaque blocks, with backwards written by hand. Each file names its
plain twin, the target and the gain.
"""
