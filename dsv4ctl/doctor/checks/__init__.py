"""One module a check, named after its code."""
