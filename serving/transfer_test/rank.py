"""One rank of one side: a process that does what the source side tells it, one thing after the other.

    python -m serving.transfer_test.rank --side SIDE --rank N --device DEVICE --meet ADDRESS:PORT

It ends with its parent, with its connection, and at its deadline, also in the middle of a call that never returns.
"""

import argparse
import base64
import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from serving.transfer_test import memory, wire
from serving.transfer_test.agent import DONE, Agent, NoNixl, Remote
from serving.transfer_test.memory import CPU, Memory, NoBuffer, Slot
from serving.untyped import Untyped

WORD_VARIABLE: Final = "DSV4_TRANSFER_TOKEN"
"""The variable with the word by which the ranks of one test know each other: it is not on any command line."""

SOURCE: Final = "source"
DESTINATION: Final = "destination"

UNKNOWN, FAILED = "unknown", "failed"
"""What an answer's `error` means: that this could not be tried, or that it was and failed."""

_PR_SET_PDEATHSIG: Final = 1
_LATE_S: Final = 0.2
_SPIN_S: Final = 0.001
_LOOK_EVERY_S: Final = 0.0002

Answer = dict[str, Any]


class Rank:
    """What a rank can be told. Each method takes a message and returns the answer to it."""

    def __init__(self, side: str, number: int, device: str) -> None:
        self.side = side
        self.number = number
        self.device = device
        self._memory: Memory | None = None
        self._agent: Agent | None = None
        self._remotes: dict[str, Remote] = {}

    @property
    def memory(self) -> Memory:
        """Once it is open."""
        assert self._memory is not None
        return self._memory

    @property
    def agent(self) -> Agent:
        """Once it is open."""
        assert self._agent is not None
        return self._agent

    def open(self, told: wire.Message) -> Answer:
        """Take memory, start the agent, and say how others reach it."""
        if self.device == CPU:
            from serving.cpu import engine

            # What the engine without a GPU sets for itself, where its environment does not say otherwise.
            for name, value in engine.ENVIRONMENT.items():
                if name.startswith("UCX_"):
                    os.environ.setdefault(name, value)
        self._memory = memory.allocate(self.device, told["bytes"], told["together"])
        name = f"{self.side}-{self.number}-{os.getpid()}"
        self._agent = Agent(name, self.device, self._memory, is_source=self.side == SOURCE)
        return {
            "metadata": base64.b64encode(self._agent.metadata).decode(),
            "pointer": self._memory.pointer,
            "kind": self._memory.kind,
            "device": self._memory.device,
            "backend": self._agent.backend,
        }

    def meet(self, told: wire.Message) -> Answer:
        """Know a rank of the other side, by the `peer` that later messages call it. Says when, in Unix time."""
        began = time.time()
        name = self.agent.meet(base64.b64decode(told["metadata"]))
        self._remotes[told["peer"]] = Remote(name, told["pointer"], told["kind"], told["device"])
        return {"began": began, "ended": time.time()}

    def fill(self, told: wire.Message) -> Answer:
        """Write patterns into the own memory."""
        for slot in told["slots"]:
            self.memory.fill(Slot(*slot))
        return {}

    def write(self, told: wire.Message) -> Answer:
        """Write to other ranks, all at once, at a moment of the monotonic clock or now, and wait for the end of each.

        Says of each write how it ended, and when it was posted and done by the monotonic clock.
        """
        handles = [
            self.agent.prepare(
                one["offset"], self._remotes[one["peer"]], one["remote_offset"], one["size"], one["word"].encode()
            )
            for one in told["writes"]
        ]
        _sleep_until(told.get("at") or 0.0)
        began_wall = time.time()
        results: list[Answer] = []
        for handle in handles:
            began = time.monotonic()
            try:
                state = self.agent.post(handle)
            except Exception as error:  # noqa: BLE001 - whatever NIXL raises is how this write ended
                state = _words(error)
            results.append({"state": state, "began": began, "ended": time.monotonic()})
        self._wait(handles, results, time.monotonic() + told["within_s"])
        for handle, result in zip(handles, results, strict=True):
            try:
                self.agent.release(handle)
            except Exception as error:  # noqa: BLE001 - likewise
                result["state"] = result["state"] if result["state"] != DONE else _words(error)
        return {"writes": results, "began": began_wall, "ended": time.time()}

    def _wait(self, handles: list[Untyped], results: list[Answer], end: float) -> None:
        began = time.monotonic()
        while True:
            now = time.monotonic()
            open_ones = [at for at, result in enumerate(results) if self.agent.is_under_way(result["state"])]
            if not open_ones:
                return
            for at in open_ones:
                try:
                    results[at]["state"] = self.agent.state(handles[at])
                except Exception as error:  # noqa: BLE001 - likewise
                    results[at]["state"] = _words(error)
                results[at]["ended"] = time.monotonic()
                if self.agent.is_under_way(results[at]["state"]) and now >= end:
                    results[at]["state"] = "it had not ended in time"
            # A small write takes less than the shortest sleep.
            time.sleep(0 if now - began < _SPIN_S else _LOOK_EVERY_S)

    def expect(self, told: wire.Message) -> Answer:
        """Wait for writes by the words that come with them, and look at what they brought, then make it poison again.

        `at_once`: each is looked at when its word comes, with the others still on their way, and not after the last.
        """
        wanted = {one["word"]: Slot(one["offset"], one["size"], one["tag"]) for one in told["arrivals"]}
        end = time.monotonic() + told["within_s"]
        arrived: list[str] = []
        stray: list[str] = []
        problems: list[Answer] = []
        while len(arrived) < len(wanted) and time.monotonic() < end:
            news = [word.decode(errors="replace") for word in self.agent.arrivals()]
            known = [word for word in news if word in wanted and word not in arrived]
            stray += [word for word in news if word not in known]
            arrived += known
            if told["at_once"]:
                problems += self._look(known, wanted)
            if not news:
                time.sleep(_LOOK_EVERY_S)
        if not told["at_once"]:
            problems += self._look(arrived, wanted)
        for slot in wanted.values():
            self.memory.poison(slot.offset, slot.size)
        return {"missing": [word for word in wanted if word not in arrived], "stray": stray, "problems": problems}

    def _look(self, words: list[str], wanted: Mapping[str, Slot]) -> list[Answer]:
        found = []
        for word in words:
            self.arrived(wanted[word])
            difference = self.memory.check(wanted[word])
            if difference is not None:
                time.sleep(_LATE_S)
                is_late = self.memory.check(wanted[word]) is None
                found.append({"word": word, "late": is_late, "what": str(difference)})
        return found

    def arrived(self, slot: Slot) -> None:
        """A write has been told of and is about to be looked at."""

    def sweep(self, told: wire.Message) -> Answer:
        """Whether all of the memory is as it was before anything was written."""
        time.sleep(told["after_s"])
        difference = self.memory.sweep()
        if difference is not None:
            self.memory.poison(0, self.memory.size)
        return {"what": None if difference is None else str(difference)}


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic() - _SPIN_S))
    while time.monotonic() < moment:
        pass


def _words(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def serve(rank: Rank, line: wire.Line, within_s: float) -> None:
    """Do what comes over the line until it ends.

    Raises:
        Late: nothing came for that long.
    """
    methods: dict[str, Callable[[wire.Message], Answer]] = {
        name: getattr(rank, name) for name in ("open", "meet", "fill", "write", "expect", "sweep")
    }
    while True:
        try:
            told = line.receive(within_s)
        except wire.Lost:
            return
        if told["do"] == "close":
            return
        try:
            answer = methods[told["do"]](told)
        except (NoBuffer, NoNixl) as error:
            answer = {"error": str(error), "meaning": UNKNOWN}
        except Exception as error:  # noqa: BLE001 - the other end is to know, whatever it is
            answer = {"error": _words(error), "meaning": FAILED}
        try:
            line.send(answer)
        except wire.Lost:
            return


def end_with_parent(signal_number: int = signal.SIGKILL) -> None:
    """Have the kernel end this process with the one that started it. Linux only; elsewhere the deadline remains."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal_number), 0, 0, 0)


def end_after(seconds: float) -> None:
    """Have the kernel end this process, whatever it does then."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def parser() -> argparse.ArgumentParser:
    """The arguments of a rank."""
    found = argparse.ArgumentParser(prog="python -m serving.transfer_test.rank")
    found.add_argument("--side", choices=(SOURCE, DESTINATION), required=True)
    found.add_argument("--rank", type=int, required=True)
    found.add_argument("--device", required=True)
    found.add_argument("--meet", required=True)
    found.add_argument("--join-within", type=float, required=True)
    found.add_argument("--end-within", type=float, required=True)
    return found


def main(argv: list[str], make: Callable[[str, int, str], Rank] = Rank) -> int:
    """Run a rank. Returns 0 when it was told to end, 1 when nobody had anything for it to do."""
    arguments = parser().parse_args(argv)
    end_with_parent()
    end_after(arguments.end_within)
    address, _, port = arguments.meet.rpartition(":")
    try:
        line = wire.connect((address, int(port)), arguments.join_within)
        line.send(
            {
                "token": os.environ.get(WORD_VARIABLE, ""),
                "side": arguments.side,
                "rank": arguments.rank,
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "device": arguments.device,
            }
        )
        serve(make(arguments.side, arguments.rank, arguments.device), line, arguments.end_within)
    except (wire.Late, wire.Lost) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
