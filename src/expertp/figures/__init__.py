"""One file per figure: `data(...)` gathers the numbers, `draw(figure, data)` draws them, `data.rows()` is their CSV.

Only drawing imports matplotlib.
"""
