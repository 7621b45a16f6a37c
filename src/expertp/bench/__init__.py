"""Side-by-side benchmarks: contestants run interleaved in one process and are compared by ratios."""
