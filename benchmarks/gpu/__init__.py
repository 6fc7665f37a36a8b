"""Speed on a GPU, against PyTorch on the same one: `python -m benchmarks.gpu`, `make bench-gpu`."""
