"""Restarting prefill and decode as one act: what is kept, what changes, each step of it, and the way back."""
