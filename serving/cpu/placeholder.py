"""What a stand-in gives for a name of the package it stands in for: something to import, never something to use."""

from collections.abc import Callable


class _Placeholder(type):
    """A class that can be named, compared and subscripted by dots, and refuses to be called."""

    def __getattr__(cls, name: str) -> "_Placeholder":
        if name.startswith("__"):
            raise AttributeError(name)
        return _make(f"{cls.__module__}.{cls.__qualname__}.{name}")

    def __call__(cls, *_args: object, **_kwargs: object) -> object:
        raise NotImplementedError(
            f"{cls.__module__}.{cls.__qualname__} was called, but this engine runs without a GPU and has a stand-in "
            f"for {cls.__module__.partition('.')[0]} that computes nothing"
        )


def _make(path: str) -> _Placeholder:
    module, _, name = path.rpartition(".")
    return _Placeholder(name, (), {"__module__": module})


def placeholders(module: str) -> Callable[[str], _Placeholder]:
    """A module-level `__getattr__` for `module`: any public name is a class that raises when it is called."""

    def module_getattr(name: str) -> _Placeholder:
        if name.startswith("__"):
            raise AttributeError(f"the stand-in {module} has no {name}")
        return _make(f"{module}.{name}")

    return module_getattr
