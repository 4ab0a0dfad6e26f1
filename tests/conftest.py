"""Puts this folder on the import path, so that tests share the makers of sample data."""
