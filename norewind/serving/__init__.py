"""A trained run as a service: predictions over HTTP while it learns, and a live page."""
