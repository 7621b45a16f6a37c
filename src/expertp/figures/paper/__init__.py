"""Figures that only the paper has."""
