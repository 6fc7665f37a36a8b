"""Files read safely and written whole, without knowledge of what is in them."""
