"""Stand-in: SGLang imports its transforms for image models; the wheels on PyPI do not load beside a CPU torch."""

from serving.cpu.placeholder import placeholders

# Lower than any release, so that nobody takes a newer path because of it.
__version__ = "0.0.0"
__getattr__ = placeholders(__name__)
