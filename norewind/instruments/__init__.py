"""Instruments to judge methods by: `diagnose`, `compare`, and the tables and figures of everything."""
