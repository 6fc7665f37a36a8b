"""Functions of the linear family as answers to cases of rule dplr, by NumPy alone.

`kernels` and the files beside it import nothing else of this package, so that they can be copied beside
a kernel; `examples/adapters` links to them.
"""
