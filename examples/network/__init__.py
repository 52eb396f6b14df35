"""A network: the quality of its radio cells, and who tries to break in."""
