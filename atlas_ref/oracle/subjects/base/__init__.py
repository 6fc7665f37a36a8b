"""What memories of one matrix, Newton-Schulz alone and feature maps alone put into their subjects."""
