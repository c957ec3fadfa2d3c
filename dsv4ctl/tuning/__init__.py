"""How long a request may stay in prefill's inflight queue: evidence, bound, recommendation."""
