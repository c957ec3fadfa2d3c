"""What a profile may say, as strict and frozen models. docs/profiles.md explains every key.

Lists arrive here as tuples (`sources.freeze`), so that a loaded profile cannot be changed by anybody.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from dsv4ctl.packages import COMPARED
from dsv4ctl.profile.gpus import is_gpu_name

LOCAL = "local"
"""The name of the host that dsv4ctl itself runs on; every other host is named in `[hosts]`."""

GENERATED = "generated:"
"""Prefix of a model path that names a model which `python -m serving.cpu.tiny_model` makes."""


class Role(StrEnum):
    """What an engine worker does: half of a disaggregated pair, or all of it."""

    PREFILL = "prefill"
    DECODE = "decode"
    UNIFIED = "unified"


ROUTER = "router"
"""The router's identity beside `prefill-0`, `decode-1`, ..."""

Scalar = str | int | float | bool
EnvScalar = str | int | bool
ArgScalar = Scalar | tuple[Scalar, ...]

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FLAG_NAME = re.compile(r"[a-z0-9][A-Za-z0-9._-]*")
_MODEL_PATH = re.compile(r"generated:[a-z0-9][a-z0-9-]*|/.+|~/.+")
_SLUG = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


def _wrong(sentence: str) -> PydanticCustomError:
    # Braces would be read as a template by pydantic; values never get in here.
    return PydanticCustomError("profile_value", sentence)


def _env_value(value: object) -> object:
    if not isinstance(value, str | int):
        raise _wrong("must be a string, an integer, true or false (put any other value in quotes)")
    if isinstance(value, str) and "\0" in value:
        raise _wrong("must not contain a NUL character")
    return value


def _arg_value(value: object) -> object:
    if isinstance(value, tuple):
        if not value or not all(isinstance(item, str | int | float) for item in value):
            raise _wrong("must be a list of strings and numbers, with at least one item")
    elif not isinstance(value, str | int | float):
        raise _wrong("must be a string, a number, true, false, or a list of strings and numbers")
    return value


def _env_name(name: object) -> object:
    if not (isinstance(name, str) and _ENV_NAME.fullmatch(name)):
        raise _wrong("is not an environment name: letters, digits and _ only, not starting with a digit")
    return name


def _flag_name(name: object) -> object:
    if not (isinstance(name, str) and _FLAG_NAME.fullmatch(name)):
        raise _wrong("is not a flag name: write it as in --help, without the leading dashes")
    return name


def _gpu(value: object) -> object:
    if not is_gpu_name(value):
        raise _wrong('must be a GPU index such as 0, a PCI bus id such as "0000:41:00.0", or "4 nearest to node 0"')
    return value


def _one_or_more(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _model_path(value: object) -> object:
    if not (isinstance(value, str) and _MODEL_PATH.fullmatch(value)):
        raise _wrong('must be an absolute path on the host, or "generated:NAME" for a model made here')
    return value


def _slug(value: object) -> object:
    if not (isinstance(value, str) and _SLUG.fullmatch(value)):
        raise _wrong("must be lower-case letters, digits and dashes, at most 40 (unit names contain it)")
    return value


EnvTable = Mapping[Annotated[str, BeforeValidator(_env_name)], Annotated[EnvScalar, BeforeValidator(_env_value)]]
ArgTable = Mapping[Annotated[str, BeforeValidator(_flag_name)], Annotated[ArgScalar, BeforeValidator(_arg_value)]]
Slug = Annotated[str, BeforeValidator(_slug)]
Gpu = Annotated[int | str, BeforeValidator(_gpu)]
Gpus = Annotated[tuple[Gpu, ...], BeforeValidator(_one_or_more)]
Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1)]


def _known_packages(tested: Mapping[str, str]) -> Mapping[str, str]:
    for name in tested:
        if name not in COMPARED:
            raise _wrong(f"{name}: its version is not read on a host; those that are: {', '.join(COMPARED)}")
    return tested


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Engine(_Model):
    """Which SGLang: the version the profile was tested with, its interpreter, what `python -m` runs, and the versions
    of other packages, of UCX and of the driver that it was tested with."""

    version: Text
    python: Text | None = None
    module: Text = "sglang.launch_server"
    tested: Annotated[Mapping[Text, Text], AfterValidator(_known_packages)] = {}


class Model(_Model):
    """The model: where it is on the host, the name clients use, and how much it needs."""

    path: Annotated[str, BeforeValidator(_model_path)]
    served_name: Text
    size_gb: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


class HostEntry(_Model):
    """A machine reached over SSH, by its name in the person's ssh_config."""

    ssh: Text
    state_dir: Text | None = None


class Router(_Model):
    """`sglang-router`: the one port that clients talk to, and what `python -m` runs for it."""

    module: Text = "sglang_router.launch_router"
    host: Text = LOCAL
    listen: Text = "127.0.0.1"
    port: Port
    metrics_port: Port | None = None
    env: EnvTable = {}
    args: ArgTable = {}


class Worker(_Model):
    """One engine process tree: where it runs, what it listens on, which GPUs and memory it is bound to."""

    host: Text = LOCAL
    listen: Text = "127.0.0.1"
    port: Port
    nccl_port: Port | None = None
    gpus: Gpus = ()
    numa_node: Annotated[int, Field(ge=0)] | None = None
    env: EnvTable = {}
    args: ArgTable = {}


class PrefillWorker(Worker):
    """A prefill worker also serves the bootstrap of every transfer."""

    bootstrap_port: Port


class _RoleTables(_Model):
    env: EnvTable = {}
    args: ArgTable = {}


class PrefillRole(_RoleTables):
    """Prefill workers and what they share."""

    workers: Annotated[tuple[PrefillWorker, ...], Field(min_length=1)]


class EngineRole(_RoleTables):
    """Decode or unified workers and what they share."""

    workers: Annotated[tuple[Worker, ...], Field(min_length=1)]


class Canary(_Model):
    """The generations that prove readiness: prompt sizes in tokens, how long each may take, how long a token is in
    characters (to make a prompt of that size without a tokenizer), and what the model needs in the request's body to
    answer plainly."""

    small_tokens: Annotated[int, Field(ge=1)] = 16
    large_tokens: Annotated[int, Field(ge=1)] = 4096
    deadline_s: Seconds = 60.0
    characters_per_token: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 4.0
    request: Mapping[str, Any] = {}


class Profile(_Model):
    """One stack, on one machine or several. `load_profile` makes it, and checks what spans keys."""

    schema_version: Literal[1]
    name: Slug
    description: Text
    supervisor: Literal["process", "systemd"] = "process"
    start: Literal["together", "staggered"] = "together"
    start_within_s: Seconds = 1800.0
    engine: Engine
    model: Model
    env: EnvTable = {}
    args: ArgTable = {}
    router: Router | None = None
    prefill: PrefillRole | None = None
    decode: EngineRole | None = None
    unified: EngineRole | None = None
    hosts: Mapping[str, HostEntry] = {}
    canary: Canary = Canary()

    @property
    def roles(self) -> "dict[Role, PrefillRole | EngineRole]":
        """The roles that there are, in the order prefill, decode, unified."""
        tables = {Role.PREFILL: self.prefill, Role.DECODE: self.decode, Role.UNIFIED: self.unified}
        return {role: table for role, table in tables.items() if table is not None}

    @property
    def workers(self) -> "tuple[NamedWorker, ...]":
        """Every engine worker, in the order of `roles` and of the file."""
        return tuple(
            NamedWorker(role, index, spec)
            for role, table in self.roles.items()
            for index, spec in enumerate(table.workers)
        )


@dataclass(frozen=True)
class NamedWorker:
    """A worker with its identity in the stack."""

    role: Role
    index: int
    spec: Worker

    @property
    def name(self) -> str:
        """Its name everywhere, e.g. `prefill-0`."""
        return f"{self.role}-{self.index}"

    @property
    def bootstrap_port(self) -> int | None:
        """Where a prefill worker serves its transfers' bootstrap; None for the other roles."""
        return self.spec.bootstrap_port if isinstance(self.spec, PrefillWorker) else None
