"""Scoreboards: norewind on public benchmarks with their own protocols, next to the published results."""
