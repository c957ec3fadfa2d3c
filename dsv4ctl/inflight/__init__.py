"""Is a request pinned in the inflight queue of prefill, or does work flow through it? Samples and their verdicts."""
