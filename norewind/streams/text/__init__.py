"""Streams of symbols."""
