"""What an engine stands on: packages, UCX and driver, whose versions are read on a host (`facts.read_facts`) and can be
compared with those that a profile was tested with."""

PACKAGES = (
    *("sglang", "sglang-router", "torch", "triton", "nixl", "nixl-cu12", "nixl-cu13", "flashinfer-python"),
    *("sglang-kernel", "transformers", "dsv4ctl"),
)
"""Distributions of Python."""

NIXL = ("nixl-cu12", "nixl-cu13", "nixl")
"""Those that may bring UCX with them."""

UCX, DRIVER = "ucx", "driver"

COMPARED = (*PACKAGES, UCX, DRIVER)
"""All that a profile may name in `engine.tested`."""
