"""An array type as strict as CuPy's, for machines without a GPU: code that breaks there breaks
here.
"""
