"""A test of what moves KV: NIXL writes between two processes a rank, on the devices and transports of an engine.

Nothing of SGLang runs. Each rank of both sides is a process of its own, as in an engine, and does what it is told by
the source side (`conduct.py`) over a TCP connection: register memory, write, look at what arrived.
"""
