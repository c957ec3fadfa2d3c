"""Prefill's inflight queue: how long each request has been in it, when it has been there too long, and what is told."""
