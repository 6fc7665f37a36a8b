"""Frequency levels: memories that write at every token, at every eighth, at every sixty-fourth, and read at all of them."""
