"""Which worker serves which role, one policy a file."""
