"""Transfer studies: specification, cells, table of results, directory, and the sweep that trains the runs."""
