"""Tools of the project itself, which are not part of the package."""
