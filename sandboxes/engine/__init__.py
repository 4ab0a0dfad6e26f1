"""The docker backend: boxes as containers of a Docker engine, or of one that speaks its API."""
