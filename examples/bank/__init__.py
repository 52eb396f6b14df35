"""Transfers between accounts, and balances."""
