"""One file per figure: `data(...)` gathers numbers, `draw(figure, data)` puts them on paper, `data.rows()` is a table.

matplotlib is imported when something is drawn; the numbers never need it.
"""
