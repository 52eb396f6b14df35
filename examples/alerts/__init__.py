"""Alerts on the readings of `sensors`."""
