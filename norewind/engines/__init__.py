"""The two engines, JAX and Numba: how loops are compiled, and where compiled code is stored."""
