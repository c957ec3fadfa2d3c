"""The packages beside an engine whose versions are read on a host (`facts.read_facts`), and can be compared."""

PACKAGES = (
    *("sglang", "sglang-router", "torch", "triton", "nixl", "nixl-cu12", "nixl-cu13", "flashinfer-python"),
    *("sglang-kernel", "transformers", "dsv4ctl"),
)
