"""Models: blocks with an embedding and a head, generation, and the names of public checkpoints."""
