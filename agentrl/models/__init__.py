"""Models and their tokenizers: made here from nothing, or read from this machine."""
