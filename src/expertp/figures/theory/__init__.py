"""Figures of the theory, made like all others: `data(...)`, `draw(figure, data)`, `data.rows()`."""
