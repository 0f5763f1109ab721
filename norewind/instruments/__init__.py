"""Instruments: what is measured, drawn and tabulated about methods and runs."""
