"""The operator's tool for a DeepSeek-V4-Flash stack with prefill and decode on separate GPUs."""

__version__ = "0.1.0"
