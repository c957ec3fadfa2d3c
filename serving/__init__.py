"""The patched SGLang stack: what runs inside the engine's processes, on the box."""
