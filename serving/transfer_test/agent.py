"""One NIXL agent, made as SGLang makes those of its ranks (NixlKVManager.__init__, SGLang 0.5.23)."""

import importlib
import importlib.metadata
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from serving.cpu import host_memory
from serving.transfer_test.memory import CPU, Memory
from serving.untyped import Untyped

BACKEND: Final = "SGLANG_DISAGGREGATION_NIXL_BACKEND"
PARAMETERS: Final = "SGLANG_DISAGGREGATION_NIXL_BACKEND_PARAMS"

_SOURCE_THREADS: Final = "8"
"""What SGLang gives the backend of a prefill rank; decode has none."""

_UNDER_WAY: Final = "PROC"
DONE: Final = "DONE"


class NoNixl(Exception):
    """This interpreter has no NIXL, or none with the backend that is wanted."""


@dataclass(frozen=True)
class Remote:
    """The memory of another rank, as NIXL names it."""

    name: str
    pointer: int
    kind: str
    device: int


class Agent:
    """An agent with one memory, which it may write from, or be written to."""

    def __init__(self, name: str, device: str, memory: Memory, *, is_source: bool) -> None:
        """Start the backend that the environment names, and register the memory.

        Raises:
            NoNixl: there is nothing to start.
            Exception: whatever NIXL makes of a backend that does not start.
        """
        self.backend = os.environ.get(BACKEND) or "UCX"
        api = _api(device)
        if device == CPU:
            host_memory.let_agents_sleep(api)
        # SGLang's choice: its threads share an agent.
        sync = api.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
        self._agent: Untyped = api.nixl_agent(name, api.nixl_agent_config(backends=[], sync_mode=sync))
        known = self._agent.get_plugin_list()
        if self.backend not in known:
            raise NoNixl(f"NIXL has no backend {self.backend} here; it has {', '.join(known)}")
        with host_memory.one_process_at_a_time():
            self._agent.create_backend(self.backend, _parameters(self.backend, is_source=is_source))
        self._memory = memory
        self._agent.register_memory([(memory.pointer, memory.size, memory.device, "")], memory.kind)

    @property
    def metadata(self) -> bytes:
        """What another agent needs in order to write to this one."""
        found: bytes = self._agent.get_agent_metadata()
        return found

    def meet(self, metadata: bytes) -> str:
        """Know another agent from now on, by the name that is returned."""
        name = self._agent.add_remote_agent(metadata)
        return name.decode() if isinstance(name, bytes) else str(name)

    def prepare(self, offset: int, remote: Remote, remote_offset: int, size: int, word: bytes) -> Untyped:
        """A write that can be posted; `word` reaches the other side after it."""
        local = self._agent.get_xfer_descs(
            [(self._memory.pointer + offset, size, self._memory.device)], self._memory.kind
        )
        there = self._agent.get_xfer_descs([(remote.pointer + remote_offset, size, remote.device)], remote.kind)
        return self._agent.initialize_xfer("WRITE", local, there, remote.name, word)

    def post(self, handle: Untyped) -> str:
        """Begin it. Returns its state in NIXL's word."""
        return str(self._agent.transfer(handle))

    def state(self, handle: Untyped) -> str:
        """Its state in NIXL's word; DONE when the other side has it."""
        return str(self._agent.check_xfer_state(handle))

    def is_under_way(self, state: str) -> bool:
        """Whether a write in this state may still end."""
        return state == _UNDER_WAY

    def release(self, handle: Untyped) -> None:
        """Forget a write. One that has not ended is given up, if the backend can do that."""
        self._agent.release_xfer_handle(handle)

    def arrivals(self) -> list[bytes]:
        """The words that came with writes since the last look."""
        return [word for words in self._agent.get_new_notifs().values() for word in words]


def _api(device: str) -> Untyped:
    """NIXL's Python API. Its front asks torch which CUDA there is, and takes the package made for that; without a GPU
    it takes the first of those that are installed, for which torch need not be loaded (three seconds a rank).

    Raises:
        NoNixl
    """
    names = ("nixl_cu13._api", "nixl_cu12._api", "nixl._api") if device == CPU else ("nixl._api",)
    why: ImportError | None = None
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError as error:
            why = error
    raise NoNixl(f"NIXL cannot be imported here: {why}") from why


def _parameters(backend: str, *, is_source: bool) -> Mapping[str, str]:
    found: dict[str, str] = json.loads(os.environ.get(PARAMETERS) or "{}")
    if is_source and backend == "UCX":
        found.setdefault("num_threads", _SOURCE_THREADS)
    return found


def version() -> str | None:
    """That of the installed NIXL."""
    try:
        return importlib.metadata.version("nixl")
    except importlib.metadata.PackageNotFoundError:
        return None
