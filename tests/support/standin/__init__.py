"""An array type that is as strict as CuPy's, for machines without a GPU: what would break there breaks here."""
