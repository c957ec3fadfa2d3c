"""profile -> workers -> exact argv and environment of each, as data. Nothing here touches a host."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from dsv4ctl.errors import UsageError
from dsv4ctl.profile.checks import asked_of
from dsv4ctl.profile.gpus import Chosen, choose, kernel_id, nearest_of
from dsv4ctl.profile.loading import LoadedProfile, flags
from dsv4ctl.profile.schema import (
    GENERATED,
    LOCAL,
    ROUTER,
    ArgScalar,
    NamedWorker,
    PrefillWorker,
    Profile,
    Role,
    Router,
)

if TYPE_CHECKING:
    from dsv4ctl.facts import GpuFact

UNIT_VARIABLE = "DSV4CTL_UNIT"
"""Set in every worker's environment: finds processes of ours whose record was deleted. It proves nothing by itself."""

# SGLang names its processes with setproctitle, which writes over the environment that we read back from /proc; this
# variable tells setproctitle to leave it alone. Unbuffered, because a start is followed by its log; and the log is a
# file, where the router's colours are noise.
_BASE_ENV = {"SPT_NOENV": "1", "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}

TINY_MODEL_MODULE = "serving.cpu.tiny_model"


@dataclass(frozen=True)
class Site:
    """What building a command line needs to know of one host: the engine's interpreter, our state directory, the
    person's home, the directory for temporary files (short: sockets lie in it, and their paths hold 107 bytes), and,
    where the profile has GPUs there, those that it has; none where nobody could look, and `gpus_unseen` says why."""

    python: str
    state_root: str
    home: str
    tmp_root: str
    gpus: tuple["GpuFact", ...] = ()
    gpus_unseen: str = ""


@dataclass(frozen=True)
class Worker:
    """One process tree to start. `ports` are all the ports it binds, by what they are for.

    `gpus` are those of the profile, with the bus ids in place of "the nearest to a node"; `cards` are what they are on
    its host. An item that no card was found for stands in `gpus` as it is, and `unresolved` says why.
    """

    name: str
    role: str
    host: str
    unit: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    listen: str
    port: int
    ports: Mapping[str, int]
    numa_node: int | None = None
    gpus: tuple[int | str, ...] = ()
    cards: tuple["GpuFact", ...] = ()
    unresolved: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """Where it answers HTTP, as seen from its own host."""
        return f"http://{self.listen}:{self.port}"


@dataclass(frozen=True)
class ModelSource:
    """The model on one host. `make` is the command that generates it, None for one that must be there already."""

    host: str
    path: str
    make: tuple[str, ...] | None


@dataclass(frozen=True)
class Stack:
    """Everything that `serve` starts, in the order of the profile: prefill, decode (or unified), router last."""

    name: str
    supervisor: Literal["process", "systemd"]
    staggered: bool
    start_within_s: float
    served_model: str
    models: tuple[ModelSource, ...]
    workers: tuple[Worker, ...]
    hosts: tuple[str, ...] = field(default=())

    @property
    def entry(self) -> Worker:
        """What clients talk to: the router, or the only worker."""
        return self.workers[-1]

    @property
    def engines(self) -> tuple[Worker, ...]:
        """The workers that run SGLang."""
        return tuple(worker for worker in self.workers if worker.role != ROUTER)

    def on(self, host: str) -> tuple[Worker, ...]:
        """The workers of one host."""
        return tuple(worker for worker in self.workers if worker.host == host)


def hosts_of(profile: Profile) -> tuple[str, ...]:
    """Names of the hosts a profile uses, the entry's host first."""
    names = [worker.spec.host for worker in profile.workers]
    if profile.router is not None:
        names.insert(0, profile.router.host)
    return tuple(dict.fromkeys(names))


def unit_name(stack: str, worker: str) -> str:
    """The unit of a worker: unique on a host as long as stacks have different names."""
    return f"dsv4-{stack}-{worker}"


def build_stack(loaded: LoadedProfile, sites: Mapping[str, Site]) -> Stack:
    """The stack of a profile with its `--set` layer applied. `sites` has an entry for each of `hosts_of(profile)`.

    Raises:
        UsageError: a router that would have to reach workers bound to the loopback of another host.
    """
    profile = loaded.profile
    hosts = hosts_of(profile)
    models = {host: _model(profile.model.path, host, sites[host]) for host in hosts}
    chosen = {host: choose(host, asked_of(profile, host), sites[host].gpus, sites[host].gpus_unseen) for host in hosts}
    engines = tuple(
        _engine(loaded, worker, models[worker.spec.host], sites, chosen[worker.spec.host]) for worker in profile.workers
    )
    router = (_router(loaded, profile.router, engines, sites),) if profile.router is not None else ()
    engine_hosts = {engine.host for engine in engines}
    return Stack(
        name=profile.name,
        supervisor=profile.supervisor,
        staggered=profile.start == "staggered",
        start_within_s=profile.start_within_s,
        served_model=profile.model.served_name,
        models=tuple(model for host, model in models.items() if host in engine_hosts),
        workers=engines + router,
        hosts=hosts,
    )


def _model(path: str, host: str, site: Site) -> ModelSource:
    if path.startswith("~/"):
        return ModelSource(host, site.home + path[1:], None)
    if not path.startswith(GENERATED):
        return ModelSource(host, path, None)
    variant = path.removeprefix(GENERATED)
    directory = f"{site.state_root}/models/{variant}"
    return ModelSource(host, directory, (site.python, "-m", TINY_MODEL_MODULE, directory, "--variant", variant))


def _engine(
    loaded: LoadedProfile,
    worker: NamedWorker,
    model: ModelSource,
    sites: Mapping[str, Site],
    chosen: "Chosen[GpuFact]",
) -> Worker:
    profile, spec = loaded.profile, worker.spec
    ports = {"http": spec.port}
    own: dict[str, ArgScalar] = {
        "model-path": model.path,
        "served-model-name": profile.model.served_name,
        "host": spec.listen,
        "port": spec.port,
    }
    if worker.role is not Role.UNIFIED:
        own["disaggregation-mode"] = worker.role.value
    if isinstance(spec, PrefillWorker):
        own["disaggregation-bootstrap-port"] = ports["bootstrap"] = spec.bootstrap_port
    if spec.nccl_port is not None:
        own["nccl-port"] = ports["nccl"] = spec.nccl_port
    given = {name: valued.value for name, valued in loaded.worker_args(worker).items()}
    unit = unit_name(profile.name, worker.name)
    found = [chosen.cards.get((worker.name, position), ()) for position in range(len(spec.gpus))]
    visible = [str(name) for gpu, cards in zip(spec.gpus, found, strict=True) for name in _indices(gpu, cards)]
    env = {**_base_env(unit, sites[spec.host]), **_gpu_env(visible)}
    env |= {name: valued.value for name, valued in loaded.worker_env(worker).items()}
    return Worker(
        name=worker.name,
        role=worker.role.value,
        host=spec.host,
        unit=unit,
        argv=(
            *_numactl(spec.numa_node),
            sites[spec.host].python,
            "-m",
            profile.engine.module,
            *flags({**own, **given}),
        ),
        env=env,
        listen=spec.listen,
        port=spec.port,
        ports=ports,
        numa_node=spec.numa_node,
        gpus=tuple(name for gpu, cards in zip(spec.gpus, found, strict=True) for name in _names(gpu, cards)),
        cards=tuple(card for cards in found for card in cards),
        unresolved=tuple(f"{item.gpu} {item.why}" for item in chosen.missing if item.worker == worker.name),
    )


def _router(loaded: LoadedProfile, spec: Router, engines: Sequence[Worker], sites: Mapping[str, Site]) -> Worker:
    for engine in engines:
        if engine.host != spec.host and engine.listen in {"127.0.0.1", "localhost", "::1"}:
            raise UsageError(
                f"the router on {spec.host} cannot reach {engine.name} on {engine.host}",
                why=f"{engine.name} listens on {engine.listen}, the loopback of its own host",
                hint=f"give {engine.name} a `listen` address that {spec.host} can reach",
            )
    ports = {"http": spec.port}
    own: dict[str, ArgScalar] = {"host": spec.listen, "port": spec.port}
    words = list(flags(own))
    prefills = [engine for engine in engines if engine.role == Role.PREFILL.value]
    if prefills:
        words.append("--pd-disaggregation")
        for prefill in prefills:
            words += ["--prefill", prefill.url, str(prefill.ports["bootstrap"])]
        for decode in engines:
            if decode.role == Role.DECODE.value:
                words += ["--decode", decode.url]
    else:
        words += ["--worker-urls", *(engine.url for engine in engines)]
    if spec.metrics_port is not None:
        ports["metrics"] = spec.metrics_port
        words += ["--prometheus-host", spec.listen, "--prometheus-port", str(spec.metrics_port)]
    given = {name: valued.value for name, valued in loaded.router_args().items()}
    unit = unit_name(loaded.profile.name, ROUTER)
    env = {**_base_env(unit, sites[spec.host]), **{name: valued.value for name, valued in loaded.router_env().items()}}
    return Worker(
        name=ROUTER,
        role=ROUTER,
        host=spec.host,
        unit=unit,
        argv=(sites[spec.host].python, "-m", spec.module, *words, *flags(given)),
        env=env,
        listen=spec.listen,
        port=spec.port,
        ports=ports,
    )


def _base_env(unit: str, site: Site) -> dict[str, str]:
    """What every worker gets. A temporary directory of its own is removed with the worker, whatever it left there."""
    return {**_BASE_ENV, UNIT_VARIABLE: unit, "TMPDIR": f"{site.tmp_root}/{unit}"}


def _indices(gpu: int | str, cards: "Sequence[GpuFact]") -> "Sequence[int | str]":
    """What a worker is told for one item. An item without a card stays as it is: a plan can be looked at on another
    machine, and `serve` refuses it before anything is started."""
    return [card.index for card in cards] or [gpu]


def _names(gpu: int | str, cards: "Sequence[GpuFact]") -> "Sequence[int | str]":
    return [kernel_id(card.pci_bus_id) for card in cards] if nearest_of(gpu) and cards else [gpu]


def _gpu_env(visible: Sequence[str]) -> dict[str, str]:
    """Which GPUs a worker sees. As indices, since SGLang reads them as numbers (custom_all_reduce_utils.py)."""
    if not visible:
        return {}
    # Without PCI order CUDA numbers the fastest card first, and an index means something else than in nvidia-smi.
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(visible)}


def _numactl(node: int | None) -> tuple[str, ...]:
    return () if node is None else ("numactl", f"--cpunodebind={node}", f"--membind={node}")


def default_python(profile: Profile, host: str, own_python: str) -> str:
    """The engine's interpreter on a host: what the profile says, or on this host the one that we run under.

    Raises:
        UsageError: another host, and the profile does not say.
    """
    if profile.engine.python is not None:
        return profile.engine.python
    if host == LOCAL:
        return own_python
    raise UsageError(
        f"profile {profile.name} does not say which Python runs the engine on {host}",
        hint="set engine.python to the interpreter of the engine's environment on that host",
    )
