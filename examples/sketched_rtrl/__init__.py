"""The tables of SK-RTRL (2026): chaotic and real series, with our estimators and the published numbers."""
