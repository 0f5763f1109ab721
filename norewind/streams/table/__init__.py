"""Streams of the rows of a table, from CSV, JSON lines, messages or Python."""
