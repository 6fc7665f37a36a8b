"""What models of public code have in common, whatever the project: names of tensors, files."""
