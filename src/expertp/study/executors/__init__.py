"""Executors: how the workers of a sweep are started."""
