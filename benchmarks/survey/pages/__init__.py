"""The page of the survey, made from its data, and rows that it keeps from an earlier run."""
