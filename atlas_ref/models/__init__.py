"""Models of public code by the names that they have there."""
