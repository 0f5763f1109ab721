"""Figures, tables, and the display of objects."""
