"""Stand-in: the real wheel needs libcuda.so.1 to be imported."""

from serving.cpu.placeholder import placeholders

__getattr__ = placeholders(__name__)
