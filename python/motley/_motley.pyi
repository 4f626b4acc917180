"""Motley's C++ library, for the package motley: src/motley/bind."""

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

version: str
torch_version: str  # that it was built for

class BatchSplitter:
    """How many samples each rank gets, step by step (src/motley/data/local/batch_split.h). Raises ValueError on what fits no ranks."""

    def __init__(self, policy: str, batch: int, limits: Sequence[tuple[int, int]], proportions: Sequence[float] = ...,
                 recorded: str = ..., name: str = ...) -> None: ...
    @property
    def shares(self) -> list[int]: ...
    @property
    def reason(self) -> str: ...
    def plan(self, step: int, window: int) -> list[int]: ...
    def observe(self, step: int, observations: Sequence[tuple[int, float, float]]) -> None: ...
    def limit(self, step: int, limits: Sequence[tuple[int, int]]) -> None: ...
    def save(self) -> str: ...
    def restore(self, text: str) -> bool: ...

class Ledger:
    """An epoch's order of samples (src/motley/data/local/ledger.h)."""

    def __init__(self, seed: int, epoch: int, cursor: int, size: int) -> None: ...
    def samples(self, begin: int, end: int) -> list[int]: ...

class GradientWeight:
    """What a communication hook is told, and tells (src/motley/bind/gradient_hook.h)."""

    weight: float
    share: float
    @property
    def finished(self) -> float: ...
    def begin(self, device: torch.device) -> None: ...
    def note_finished(self, device: torch.device) -> None: ...
    def begin_statistics(self, layers: Sequence[torch.Tensor], before: torch.Tensor, kept: torch.Tensor,
                         kept_once: torch.Tensor) -> None: ...
    def device_seconds(self) -> float: ...

def register_gradient_hook(reducer: object, group: dist.ProcessGroup, weight: GradientWeight) -> None: ...

def set_own_program(command: Sequence[str], folder: str | os.PathLike[str]) -> None:
    """How this process is started once more (src/motley/base/os/own_program.h)."""

def run_command(words: Sequence[str]) -> int:
    """What the program motley does with these words (src/motley/cli/run.h); the exit code."""

_Keywords = Mapping[str, str | list[str]]  # options of the command of the same name
_Documents = Mapping[str, str]  # JSON, YAML or CSV, by the names that stand in place of files' paths

def estimate(keywords: _Keywords, documents: _Documents) -> dict[str, str]:
    """``json``. As those below, raises ValueError for wrong input and RuntimeError for any other failure."""

def plan(keywords: _Keywords, documents: _Documents, warn: Callable[[str], object], tell: Callable[[str], object]) -> dict[str, str]:
    """``json``, ``text``, ``page``."""

def simulate(plan: str, keywords: _Keywords, documents: _Documents) -> dict[str, str]:
    """``json``, ``text``, ``page``, ``timeline``."""

def schedule(trace: str, keywords: _Keywords, documents: _Documents) -> dict[str, str]:
    """``json``, ``text``, ``page``, ``csv``."""

def read_plan(plan: str, documents: _Documents) -> str:
    """A plan, checked, as its file has it."""

def format_profile(text: str) -> str:
    """A profile, checked, as its file has it."""

def describe_machine() -> tuple[str, float]:
    """The processor's name, and the bytes of memory that this process may use."""

def measure_loopback() -> tuple[float, float]:
    """Bytes per second of a TCP connection over loopback, each way, and its latency in seconds (src/motley/net/link_speed.h)."""

def write_report(run: str) -> None:
    """Writes the page of a run directory, report.html, into it."""

class ProcessPacer:
    """Holds processes to so many processors' worth of CPU time (src/motley/base/os/process_pacer.h)."""

    def __init__(self, rates: Sequence[tuple[int, float]]) -> None: ...
    def stop(self) -> None: ...

def seconds_without_processor(pid: int) -> float: ...

class Rendezvous:
    """What the ranks of a process group have agreed on (src/motley/bind/backend_module.cpp)."""

    def __init__(self, secret: str, is_given_secret: bool, endpoint: str, bind_host: str, publish: Callable[[str], None],
                 over_tcp: bool) -> None: ...

class Backend(dist.Backend):
    """The backend motley of a process group (src/motley/bind/backend.h). Waits for all ranks; raises DistBackendError."""

    def __init__(self, rank: int, ranks: Sequence[int], timeout: timedelta, rendezvous: Rendezvous | None, gloo: object,
                 why_no_gloo: str) -> None: ...
    def give_up(self, reason: str) -> None: ...
    @property
    def is_out_of_memory(self) -> bool: ...
    def renew(self, ranks: Sequence[int], seconds: float, rendezvous: Rendezvous, gloo: object, why_no_gloo: str) -> None: ...
    @property
    def transport(self) -> str: ...

def shutdown_backends() -> None: ...
def generate_secret() -> str: ...
def read_secret(path: str) -> str: ...
TOKEN_FILE_VARIABLE: str
SECRET_FILE_VARIABLE: str

def host_id() -> str: ...

class Secret:
    """What ranks of a job, or clients of a server, prove that they know (src/motley/net/session.h). Never shown."""

    @staticmethod
    def generate() -> Secret: ...
    @staticmethod
    def from_file(path: str, variable: str) -> Secret: ...
    def write(self, path: str) -> None: ...

class ParameterServer:
    """A server in this process, until the object goes (src/motley/ps/service/service.h)."""

    def __init__(self, token: Secret, listen: str, embedding_dir: str) -> None: ...
    @property
    def address(self) -> str: ...

class Session:
    """Ranks that know of each other, and of each other's end (src/motley/net/session.h)."""

    def __init__(self, job: str, rank: int, size: int, rendezvous: str, secret: Secret, bind_host: str, given_secret: bool,
                 seconds: float, publish: Callable[[str], None] | None) -> None: ...
    def abort(self, reason: str) -> None: ...
    def leave(self) -> None: ...

class UpdateOptions:
    """An optimizer's step (src/motley/kernels/update.h); rule: "sum", "sgd", "momentum", "nesterov", "adam" or "adamw"."""

    momentum: float
    dampening: float
    weight_decay: float
    beta1: float
    beta2: float
    epsilon: float
    def __init__(self, rule: str) -> None: ...

class ServedParameters:
    """Parameters that a server has (src/motley/bind/served_parameters.h)."""

    def __init__(self, session: Session, servers: Sequence[str], token: Secret, suffix: str, update: UpdateOptions,
                 parameters: Sequence[tuple[str, torch.Tensor]], bucket_bytes: int, begin_step: Callable[[], tuple[float, float]],
                 seconds: float) -> None: ...
    def load(self, updates: int, arrays: Sequence[Sequence[torch.Tensor]], seconds: float) -> None: ...
    def arm(self) -> None: ...
    def disarm(self) -> bool: ...
    def flush(self) -> None: ...
    def wait(self, seconds: float) -> None: ...
    @property
    def announced_at(self) -> float: ...
    def save(self, seconds: float) -> tuple[int, list[list[torch.Tensor]]]: ...
    def leave(self) -> None: ...

class RowOptimizer:
    """What moves the rows of a table (src/motley/ps/embedding/row_optimizer.h); kind: "sgd", "adagrad" or "adam"."""

    def __init__(self, kind: str, learning_rate: float, epsilon: float, beta1: float, beta2: float) -> None: ...

class TableOptions:
    """A table of embeddings (src/motley/ps/protocol/sparse_protocol.h)."""

    def __init__(self, name: str, dimension: int, init_scale: float, seed: int, optimizer: RowOptimizer, memory_bytes: int) -> None: ...

class EmbeddingTables:
    """A rank's side of tables at a server (src/motley/ps/client/sparse_client.h)."""

    def __init__(self, session: Session, servers: Sequence[str], token: Secret, suffix: str, tables: Sequence[TableOptions],
                 seconds: float) -> None: ...
    @property
    def step(self) -> int: ...
    def start_pull(self, table: int, ids: torch.Tensor, ahead: bool) -> int: ...
    def wait(self, ticket: int, rows: torch.Tensor, seconds: float) -> None: ...
    def push(self, table: int, ids: torch.Tensor, gradients: torch.Tensor, weight: float) -> None: ...
    def finish_step(self, weight: float, seconds: float) -> None: ...
    def leave(self) -> None: ...
