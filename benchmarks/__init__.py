"""Speed, each figure beside a reference that was measured in between, and the error beside the
time.
"""
