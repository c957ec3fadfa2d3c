"""Which decode workers of a prefill engine are alive, and what becomes of the requests of one that is not."""
