"""Models of others: roles by family, sizes from tensor shapes, settings with forward multipliers folded in."""
