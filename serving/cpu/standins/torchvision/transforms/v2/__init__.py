"""Stand-in, see torchvision."""

from serving.cpu.placeholder import placeholders

__getattr__ = placeholders(__name__)
