"""What a run looks like: curves as a picture, and scalars of TensorBoard."""
