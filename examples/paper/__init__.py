"""The experiments of Tallec & Ollivier (2017), "Unbiased Online Recurrent Optimization", reproduced."""
