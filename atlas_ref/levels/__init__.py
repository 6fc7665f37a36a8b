"""Frequency levels: memories that write at periods such as 1, 8 and 64, and read at every token."""
