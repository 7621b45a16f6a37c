"""Helpers shared by several packages: files, the machine, statistics, text."""
