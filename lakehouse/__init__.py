"""One declaration of a table, filled live and in batch, and a proof that both agree.

This file makes `lakehouse` a regular package: without it, any other regular package of that name on the path would replace it.
"""
