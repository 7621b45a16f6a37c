"""Side-by-side benchmarks: everything that is compared runs in one process, interleaved, and counts as a ratio."""
