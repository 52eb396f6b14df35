"""Readings of thermometers, and their averages."""
