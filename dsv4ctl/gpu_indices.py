"""What each GPU index of a profile meant when its stack last started, and whether it still means that.

An index is no name for a card: the driver counts what it finds, and after a reboot with a card less, or with another
order of the bus, the same index is another card, on another socket perhaps. Nothing fails then.

STATE/stacks/NAME/gpu-indices.json on each host; `stop` leaves it there.
"""

import json
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from dsv4ctl.errors import CannotLook
from dsv4ctl.findings import Finding, Severity
from dsv4ctl.profile.gpus import kernel_id, same_gpu

if TYPE_CHECKING:
    from dsv4ctl.facts import GpuFact
    from dsv4ctl.fleet import Place
    from dsv4ctl.stack import Worker

_VERSION = 1
_FILE = "gpu-indices.json"


@dataclass(frozen=True)
class Card:
    """A card by its place on the bus, as the kernel writes it, and by its own name (empty: the driver told none)."""

    pci_bus_id: str
    uuid: str

    def is_another(self, now: "GpuFact") -> bool:
        """Whether `now` is neither in the same place nor the same card. A card that was replaced in its slot does as
        well as the one before, and so does one whose bus was given another number."""
        moved = same_gpu(self.pci_bus_id) != same_gpu(now.pci_bus_id)
        return moved and not (self.uuid and self.uuid == now.uuid)


Meanings = Mapping[int, Card]


class IndexMemory:
    """Reads and writes what is remembered on one host of one stack."""

    def __init__(self, place: "Place", stack: str) -> None:
        self._host = place.host
        self.path = posixpath.join(place.store.directory(stack), _FILE)

    def load(self) -> Meanings:
        """What the indices meant; empty where no start with indices has succeeded yet.

        Raises:
            CannotLook: there is a file that cannot be read or understood.
            HostUnreachable
        """
        try:
            raw = self._host.read(self.path)
        except FileNotFoundError:
            return {}
        except (PermissionError, NotADirectoryError, IsADirectoryError) as error:
            raise self._unreadable(str(error)) from error
        try:
            body = json.loads(raw)
            if body["version"] != _VERSION:
                raise self._unreadable(f"this dsv4ctl reads version {_VERSION}")
            return {
                int(index): Card(str(card["pci_bus_id"]), str(card["uuid"])) for index, card in body["cards"].items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._unreadable(f"{type(error).__name__}: {error}") from error

    def remember(self, workers: "Iterable[Worker]") -> None:
        """Keep what the indices mean by which these workers name their GPUs. What others meant stays remembered.

        Raises:
            OperationFailed: it cannot be written.
            HostUnreachable
        """
        new = {
            card.index: Card(kernel_id(card.pci_bus_id), card.uuid)
            for worker in workers
            for card in worker.cards
            if card.index in worker.gpus
        }
        if not new:
            return
        try:
            old = dict(self.load())
        except CannotLook:
            old = {}
        if old | new != old:
            cards = {str(index): asdict(card) for index, card in sorted((old | new).items())}
            self._host.write(self.path, json.dumps({"version": _VERSION, "cards": cards}, indent=1).encode())

    def _unreadable(self, why: str) -> CannotLook:
        return CannotLook(f"{self.path} on {self._host.name} cannot be read", why=why, hint=f"rm {self.path}")


def check_indices(
    host: str, workers: "Iterable[Worker]", there: "Iterable[GpuFact]", memory: IndexMemory
) -> tuple[Finding, ...]:
    """GPU_INDEX_MOVED where an index by which one of these workers names a GPU is another card than it was.

    Raises:
        HostUnreachable
    """
    used = {gpu for worker in workers for gpu in worker.gpus if isinstance(gpu, int)}
    if not used:
        return ()
    try:
        remembered = memory.load()
    except CannotLook as error:
        return (
            Finding(
                "GPU_INDEX_MOVED",
                Severity.UNKNOWN,
                f"whether GPU indices on {host} mean what they meant at the last start is not known: {error}",
                f"name the GPUs by bus id in the profile, or forget what they meant, on {host}: rm {memory.path}",
                {"host": host, "path": memory.path},
            ),
        )
    cards = {card.index: card for card in there}
    moved = {
        index: was
        for index, was in sorted(remembered.items())
        if index in used and index in cards and was.is_another(cards[index])
    }
    if not moved:
        return ()
    words = [f"{index} was {_card(was)} and is {_now(cards[index])}" for index, was in moved.items()]
    meant = ", ".join(f'"{was.pci_bus_id}"' for was in moved.values())
    return (
        Finding(
            "GPU_INDEX_MOVED",
            Severity.ERROR,
            f"GPU indices on {host} mean other cards than when this stack last started there: {'; '.join(words)}",
            f"name the cards by bus id in the profile (they were {meant}), or by the node that they are nearest to; if "
            f"the new meaning is right, forget the old one, on {host}: rm {memory.path}",
            {
                "host": host,
                "path": memory.path,
                "indices": " ".join(map(str, moved)),
                "were": " ".join(was.pci_bus_id for was in moved.values()),
                "are": " ".join(kernel_id(cards[index].pci_bus_id) for index in moved),
            },
        ),
    )


def _card(card: Card) -> str:
    return f"{card.pci_bus_id} ({card.uuid or 'without a UUID'})"


def _now(gpu: "GpuFact") -> str:
    return _card(Card(kernel_id(gpu.pci_bus_id), gpu.uuid))
