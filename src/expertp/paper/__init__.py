"""The findings of the paper: one module per finding, with its study, its figure, its claim and its verdict."""
