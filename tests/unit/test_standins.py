"""Stand-ins can be imported, compute nothing, and give way to a real package."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import serving.cpu

STANDINS = Path(serving.cpu.__file__).parent / "standins"


@pytest.fixture
def stood_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(STANDINS))
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in {"sgl_kernel", "torchvision"}:
            del sys.modules[name]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("sgl_kernel", "silu_and_mul"),
        ("torchvision.transforms", "Resize"),
        ("torchvision.transforms.functional", "resize"),
        ("torchvision.transforms.v2.functional", "resize"),
        ("torchvision.io", "decode_jpeg"),
    ],
)
def test_a_call_raises_and_names_what_was_called(stood_in: None, module: str, name: str) -> None:
    with pytest.raises(NotImplementedError, match=f"{module}.{name} was called"):
        getattr(importlib.import_module(module), name)()


def test_an_attribute_of_an_attribute_can_be_named_and_not_called(stood_in: None) -> None:
    transforms = importlib.import_module("torchvision.transforms")
    with pytest.raises(NotImplementedError, match=r"InterpolationMode\.BICUBIC"):
        transforms.InterpolationMode.BICUBIC()


def test_what_python_asks_of_a_module_is_not_made_up(stood_in: None) -> None:
    with pytest.raises(AttributeError):
        importlib.import_module("sgl_kernel").__wrapped__  # noqa: B018


def test_there_are_no_others() -> None:
    assert sorted(path.name for path in STANDINS.iterdir() if path.name != "__pycache__") == [
        "sgl_kernel",
        "torchvision",
    ]


def test_the_real_triton_is_used() -> None:
    triton = importlib.import_module("triton")
    assert STANDINS not in Path(str(triton.__file__)).parents
