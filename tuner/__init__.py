"""Writes models to try, measures and learns."""
