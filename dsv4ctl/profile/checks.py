"""What one key alone cannot show: roles that belong together, ports and GPUs used twice, hosts, reserved names."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv4ctl.profile.gpus import Asked, choose, nearest_of, same_gpu
from dsv4ctl.profile.keys import KeyPath, Problem, dotted
from dsv4ctl.profile.schema import LOCAL, ROUTER, ArgTable, NamedWorker, Profile, Router, Worker
from dsv4ctl.profile.sources import Document

if TYPE_CHECKING:
    from dsv4ctl.facts import HostFacts

_EVERYWHERE = frozenset({"0.0.0.0", "::", "[::]"})  # noqa: S104 - named in order to refuse it

_WORKER_FLAGS = {
    "host": "a worker's listen",
    "port": "a worker's port",
    "model-path": "model.path",
    "model": "model.path",
    "served-model-name": "model.served_name",
    "nccl-port": "a worker's nccl_port",
    "disaggregation-mode": "the worker's role",
    "disaggregation-bootstrap-port": "a prefill worker's bootstrap_port",
}
_ROUTER_FLAGS = {
    "host": "router.listen",
    "port": "router.port",
    "prometheus-host": "router.listen",
    "prometheus-port": "router.metrics_port",
    "pd-disaggregation": "the workers' roles",
    "prefill": "prefill.workers",
    "decode": "decode.workers",
    "worker-urls": "unified.workers",
}


def check(profile: Profile, document: Document) -> tuple[Problem, ...]:
    """Every problem that spans keys. The keys themselves are already known to be right."""
    checker = _Checker(profile, document)
    return tuple(
        problem
        for part in (
            checker.roles,
            checker.hosts,
            checker.listening,
            checker.ports,
            checker.gpus,
            checker.reserved,
            checker.canary,
        )
        for problem in part()
    )


@dataclass(frozen=True)
class _Place:
    """Something that runs on a host and listens there."""

    path: KeyPath
    spec: Worker | Router


class _Checker:
    def __init__(self, profile: Profile, document: Document) -> None:
        self.profile = profile
        self.document = document
        self.places = [_Place(worker_path(worker), worker.spec) for worker in profile.workers]
        if profile.router:
            self.places.append(_Place((ROUTER,), profile.router))

    def problem(self, path: KeyPath, what: str) -> Problem:
        return Problem(self.document.nearest(path), dotted(path), what)

    def beside(self, path: KeyPath) -> str:
        """Another key, with its line when that helps: it may be in another file."""
        origin = self.document.origin(path)
        return f"{dotted(path)} ({origin.place})" if origin else dotted(path)

    def roles(self) -> Iterator[Problem]:
        """Roles that need each other, or exclude each other, and the router that several workers need."""
        p = self.profile
        for has, lacks in (("prefill", "decode"), ("decode", "prefill")):
            if getattr(p, has) and not getattr(p, lacks):
                yield self.problem((has,), f"needs a [{lacks}] beside it: one half cannot answer alone")
        if p.unified and (p.prefill or p.decode):
            other = "prefill" if p.prefill else "decode"
            yield self.problem(("unified",), f"must not stand beside {self.beside((other,))}: use either")
        if not p.workers:
            yield self.problem(("prefill",), "is missing: add [prefill] and [decode], or else [unified]")
        if p.router is None and p.prefill and p.decode:
            yield self.problem(("prefill",), "needs a [router], which joins prefill and decode")
        elif p.router is None and len(p.workers) > 1:
            yield self.problem(("unified", "workers"), "needs a [router], as there is more than one worker")

    def hosts(self) -> Iterator[Problem]:
        known = [LOCAL, *(name for name in self.profile.hosts if name != LOCAL)]
        if LOCAL in self.profile.hosts:
            yield self.problem(("hosts", LOCAL), "is the machine dsv4ctl runs on; give this host another name")
        for place in self.places:
            if place.spec.host not in known:
                what = f'"{place.spec.host}" is not in [hosts]; known here: {", ".join(known)}'
                yield self.problem((*place.path, "host"), what)
        remote = next((place for place in self.places if place.spec.host in known[1:]), None)
        if remote and self.profile.engine.python is None:
            what = f"is missing: {dotted(remote.path)} runs on {remote.spec.host}, and its interpreter must be named"
            yield self.problem(("engine", "python"), what)

    def listening(self) -> Iterator[Problem]:
        hosts = {place.spec.host for place in self.places}
        if len(hosts) < 2 or hosts - {LOCAL, *self.profile.hosts}:
            return
        for place in self.places:
            # Nobody of the stack connects to the router; its clients may well sit on its own host.
            listen = place.spec.listen
            if place.path != (ROUTER,) and (listen in _EVERYWHERE or _is_loopback(listen)):
                what = f"must be the address of {place.spec.host} that the other hosts reach, not {listen}"
                yield self.problem((*place.path, "listen"), what)

    def ports(self) -> Iterator[Problem]:
        taken: dict[tuple[str, int], KeyPath] = {}
        for place in self.places:
            for key in ("port", "metrics_port", "bootstrap_port", "nccl_port"):
                port = getattr(place.spec, key, None)
                if port is None:
                    continue
                here, host = (*place.path, key), place.spec.host
                other = taken.setdefault((host, port), here)
                if other != here:
                    what = f"{port} is already taken on host {host} by {self.beside(other)}; choose another"
                    yield self.problem(here, what)

    def gpus(self) -> Iterator[Problem]:
        taken: dict[tuple[str, int | str], KeyPath] = {}
        for worker in self.profile.workers:
            path = (*worker_path(worker), "gpus")
            for position, gpu in enumerate(worker.spec.gpus):
                if nearest_of(gpu):
                    continue
                here = (*path, position)
                other = taken.setdefault((worker.spec.host, same_gpu(gpu)), here)
                if other != here:
                    what = f"{gpu} is already used on host {worker.spec.host} by {self.beside(other)}"
                    yield self.problem(here, f"{what}; give each GPU to one worker")

    def reserved(self) -> Iterator[Problem]:
        """Flags that follow from other keys, and GPUs that are named twice over."""
        tables: list[tuple[KeyPath, ArgTable, Mapping[str, str]]] = [(("args",), self.profile.args, _WORKER_FLAGS)]
        tables += [((role.value, "args"), table.args, _WORKER_FLAGS) for role, table in self.profile.roles.items()]
        for worker in self.profile.workers:
            path = worker_path(worker)
            tables.append(((*path, "args"), worker.spec.args, _WORKER_FLAGS))
            if worker.spec.gpus:
                yield from self._double_gpus(worker)
        if self.profile.router:
            tables.append(((ROUTER, "args"), self.profile.router.args, _ROUTER_FLAGS))
        for path, args, flags in tables:
            for flag in args:
                if flag in flags:
                    what = f"must not be set here: it comes from {flags[flag]}"
                    yield self.problem((*path, flag), what)

    def _double_gpus(self, worker: NamedWorker) -> Iterator[Problem]:
        path = worker_path(worker)
        env = "CUDA_VISIBLE_DEVICES"
        for table in (("env",), (worker.role.value, "env"), (*path, "env")):
            if (*table, env) in self.document.origins:
                what = f"must not be set: it comes from {self.beside((*path, 'gpus'))}"
                yield self.problem((*table, env), what)

    def canary(self) -> Iterator[Problem]:
        """A large generation that would not fit the context."""
        for worker in self.profile.workers:
            path = worker_path(worker)
            for table in ((*path, "args"), (worker.role.value, "args"), ("args",)):
                limit = _at(self.document.data, (*table, "context-length"))
                if limit is None:
                    continue
                if isinstance(limit, int) and self.profile.canary.large_tokens >= limit:
                    what = f"{self.profile.canary.large_tokens} does not fit the context of {worker.name}"
                    where = self.beside((*table, "context-length"))
                    yield self.problem(("canary", "large_tokens"), f"{what}; stay below {limit}, {where}")
                    return
                break


def worker_path(worker: NamedWorker) -> KeyPath:
    """The key path of a worker's own table."""
    return (worker.role.value, "workers", worker.index)


def asked_of(profile: Profile, host: str) -> tuple[Asked, ...]:
    """What the workers of one host ask for in GPUs, in the order of the profile."""
    return tuple(Asked(worker.name, worker.spec.gpus) for worker in profile.workers if worker.spec.host == host)


def host_problems(profile: Profile, document: Document, host: str, facts: "HostFacts") -> tuple[Problem, ...]:
    """What the profile asks of `host` that it does not have: NUMA nodes and GPUs; and GPUs named in two ways. Of GPUs
    that could not be looked at nothing is said."""
    problems: list[Problem] = []
    chosen = choose(host, asked_of(profile, host), facts.gpus)
    missing = {(item.worker, item.position): item.why for item in chosen.missing}
    users: dict[int, tuple[KeyPath, int | str]] = {}

    def note(path: KeyPath, what: str) -> None:
        problems.append(Problem(document.nearest(path), dotted(path), what))

    for worker in profile.workers:
        if worker.spec.host != host:
            continue
        path, node = worker_path(worker), worker.spec.numa_node
        if node is not None and node not in facts.numa_nodes:
            nodes = ", ".join(str(known) for known in sorted(facts.numa_nodes)) or "none"
            note((*path, "numa_node"), f"{node} does not exist on host {host}; its NUMA nodes: {nodes}")
        for position, gpu in enumerate(() if facts.gpus_unseen else worker.spec.gpus):
            here = (*path, "gpus", position)
            if why := missing.get((worker.name, position)):
                note(here, f"{gpu} {why}")
            elif not nearest_of(gpu):
                (found,) = chosen.cards[worker.name, position]
                other, named = users.setdefault(found.index, (here, gpu))
                if other != here and not isinstance(gpu, type(named)):
                    note(here, f"{gpu} is the GPU that {dotted(other)} names too; give each GPU to one worker")
    return tuple(problems)


def _at(node: object, path: KeyPath) -> object:
    for part in path:
        if isinstance(part, str) and isinstance(node, Mapping):
            node = node.get(part)
        elif isinstance(part, int) and isinstance(node, tuple) and part < len(node):
            node = node[part]
        else:
            return None
    return node


def _is_loopback(listen: str) -> bool:
    return listen in ("localhost", "::1", "[::1]") or listen.startswith("127.")
