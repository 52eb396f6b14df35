"""A shop: its products, and which of them are viewed together."""
