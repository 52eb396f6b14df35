"""One declaration of a table, filled live and in batch, and a proof that both agree.

This file makes `lakehouse` a regular package: without it, any other regular package of that name on the path would replace it.
"""

__version__ = "0.1.0"  # the only place: the package's metadata take it from here
