"""A rank of ``motley run --elastic``: goes on without ranks that are lost, and with those that take their place.

The launcher knows who is there, as it started all of them: on one host that is enough, and nobody else decides. A rank that cannot go
on as it is, because another one was lost or is to be let in, leaves the process group and says so. Once all who are there have, the
launcher tells each its rank in the next process group, which they make under a new name in the launcher's store. So there is one group
at a time, and whoever is late finds itself in the same one as the others.

A step is done once all ranks have its whole gradients: each says so before its optimizer steps, and waits for the others. That
all-reduce is not atomic: where a rank is lost in it, one of the others may have seen its end and another not. So those who are left tell
each other for how many steps they have gradients. What all have, all do; otherwise the step begins once more, with the whole of its
samples, buffers and random numbers as they were before. Parameters have not changed by then.

A rank that gets SIGTERM does the step under way, says so in the same all-reduce, and leaves before the next one. Where all do, or the
launcher has ended, rank 0 writes the checkpoint first.

A replacement runs the script from its start, in a process group that answers at once, with what this rank gave itself, until
``motley.make_elastic`` lets it in: there it gets what the others have.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from . import _backend
from ._arguments import name_type
from ._control import Announcement, Launcher, find_launcher
from ._loader import DataLoader
from ._ranks import Ranks, describe, find_timeout, forget_groups
from ._weighting import _HookWeight

Result = TypeVar("Result")
_RENDEZVOUS = timedelta(seconds=5)  # in which all ranks make a process group, or try again, with twice the time
_log = logging.getLogger("motley")


def make_elastic(loader: DataLoader, optimizer: torch.optim.Optimizer, *others: Any,
                 checkpoint: str | os.PathLike[str] | None = None) -> None:
    """Lets a script go on under ``motley run --elastic`` where ranks are lost; elsewhere it changes nothing.

        model = motley.weight_gradients(DistributedDataParallel(net), loader)
        optimizer = torch.optim.AdamW(model.parameters())
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        motley.make_elastic(loader, optimizer, scheduler)
        while loader.epoch < epochs:
            for batch in loader:
                loss = motley.run_step(step, batch, loader)

    Called once, before the loop, in which each step goes through ``motley.run_step``. Process groups that the script has made end here, and
    torch.distributed has another one of all ranks from then on. A rank that takes a lost one's place runs the script
    from its start and waits here for the others, which give it weights, buffers, optimizer state, where the loader stands, and the state of
    the others' other objects. Ranks may have other numbers after any step: ask ``torch.distributed.get_rank()`` each time.

    Args:
        loader: whose steps are trained, over all ranks, of one batch each.
        optimizer: whose ``step()`` is called once a step, after backward.
        others: what else a replacement needs: anything with ``state_dict()`` and ``load_state_dict()``, such as learning-rate schedulers,
            and every other ``motley.DataLoader``, such as that of an evaluation.
        checkpoint: a file into which the state is written where fewer ranks are left than are wanted, or all are asked to leave by
            SIGTERM, or the launcher is killed. Where it is there, the run goes on from it.

    Raises:
        ValueError: wrong arguments, a model that ``motley.weight_gradients`` was not given or that is none of CPUs, or a process group
            without the backend ``"motley"``.
    """
    if not isinstance(loader, DataLoader):
        raise ValueError(f"loader is {name_type(loader)}; a motley.DataLoader is accepted")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(f"optimizer is {name_type(optimizer)}; a torch.optim.Optimizer is accepted")
    for other in others:
        if not (hasattr(other, "state_dict") and hasattr(other, "load_state_dict")):
            raise ValueError(f"others has {name_type(other)}; objects with state_dict() and load_state_dict() are accepted")
    if checkpoint is not None and not isinstance(checkpoint, (str, os.PathLike)):
        raise ValueError(f"checkpoint is {checkpoint!r}; the path of a file is accepted")
    own = find_launcher()
    if own is not None:
        _check(loader)
    state = _State(loader, optimizer, others)
    if checkpoint is not None and os.path.exists(checkpoint):
        state.read(checkpoint)
    if own is not None:
        loader._elastic = _Job(own, state, None if checkpoint is None else os.path.abspath(checkpoint))


def _check(loader: DataLoader) -> None:
    """ValueError where the ranks that are left could not go on."""
    if not loader._weights or not all(isinstance(weight, _HookWeight) and weight.is_renewable for weight in loader._weights):
        raise ValueError("motley.make_elastic is for a DistributedDataParallel of all ranks that motley.weight_gradients(model, loader) "
                         "was given, without a hook of your own; call it after that")
    if loader._ranks is not None:
        raise ValueError("the loader's first pass has begun; call motley.make_elastic before it")
    if loader._group is not None or dist.get_backend() != _backend.NAME:
        raise ValueError(f"motley.make_elastic is for all ranks of torch.distributed, over init_process_group({_backend.NAME!r}); here "
                         f"it is {dist.get_backend() if loader._group is None else 'process_group='}")
    if loader._unit != 1:
        raise ValueError("the loader accumulates gradients over several batches; motley.make_elastic is for one batch a step")
    if loader._policy == "replay":
        raise ValueError("batch_split is 'replay:...', recorded for ranks that stay; 'dynamic', 'equal' or proportions are accepted")
    if loader._folder is not None:
        raise ValueError("run_directory is given, and rank 0, which writes it, may be lost; with motley.make_elastic it is left out")
    if any(tensor.device.type != "cpu" for weight in loader._weights for tensor in weight.model.parameters()):
        raise ValueError("the model has parameters on a GPU; motley.make_elastic is for models on CPUs")


class _State:
    """What a replacement needs, and a checkpoint has."""

    def __init__(self, loader: DataLoader, optimizer: torch.optim.Optimizer, others: tuple[Any, ...]) -> None:
        self.loader, self.optimizer = loader, optimizer
        self.other_loaders = [other for other in others if isinstance(other, DataLoader)]
        self._parts = [*(weight.model.module for weight in loader._weights if isinstance(weight, _HookWeight)), optimizer, *others, loader]

    def save(self) -> list[Any]:
        return [part.state_dict() for part in self._parts]

    def read(self, checkpoint: str | os.PathLike[str]) -> None:
        """ValueError where it is damaged or another script's; what is trained is of no use then."""
        try:
            self.load(torch.load(checkpoint, weights_only=False))
        except OSError:
            raise
        except Exception as problem:  # pickle raises any
            raise ValueError(f"checkpoint '{checkpoint}': {describe(problem)}; accepted: what motley.make_elastic has written with the "
                             "same model, optimizer and others, or no file, which begins anew") from problem

    def load(self, saved: list[Any]) -> None:
        for part, own in zip(self._parts, saved, strict=True):
            part.load_state_dict(own)


class _Interrupted(Exception):
    """The step begins once more, with other ranks."""


class _NoGroup(RuntimeError):
    """A process group did not come about."""


class _Job:
    """This rank's part of an elastic job."""

    def __init__(self, own: Launcher, state: _State, checkpoint: str | None) -> None:
        self._launcher, self._state, self._checkpoint = own, state, checkpoint
        self._loader, self._timeout, self._store = state.loader, find_timeout(None), own.connect_store()
        self._ranks: Any = None
        self._places: list[int] = []
        self._has_state = not own.is_replacement
        self._number, self._complete = -1, self._loader._number  # of the step at hand, and for how many steps this rank has whole gradients
        self._is_enough = self._must_regroup = True
        self._unexplained = -1  # the step that failed though nobody was lost
        self._is_asked_to_leave = self._leaves = self._is_last = False  # by SIGTERM; as all know; with all others
        self._processes: list[int] = []  # of the ranks
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._take_notice)
        own.outlive()
        threading.Thread(target=self._outlive_launcher, daemon=True).start()
        state.optimizer.register_step_pre_hook(lambda *_: self._commit())
        self._leave()
        self._regroup(at_step=True)

    def run(self, step: Callable[[Any], Result], batch: Any) -> Result:
        """What ``step(batch)`` gives, when all ranks that are there by then have done it."""
        loader = self._loader
        assert loader._step is not None
        self._number = self._complete = loader._step.number
        buffers = [(buffer, buffer.detach().clone()) for weight in loader._weights for buffer in weight.model.buffers()]
        random_state = torch.get_rng_state()
        while True:
            problem = ""
            if not (self._must_regroup or loader._group_is_broken):
                try:
                    result = step(batch)
                    self._commit()
                    return result
                except _Interrupted:
                    pass
                except dist.DistBackendError as error:
                    if self._complete > self._number:
                        raise RuntimeError("a rank was lost in what the step does with other ranks after optimizer.step(); let it do that "
                                           f"before ({error})") from error
                    problem = str(error)
            # Here the exception is gone, and with it what its frames held.
            must_regroup = problem or self._must_regroup or loader._group_is_broken
            if must_regroup:
                self._leave()  # what writes into buffers has ended then
            self._take_back(buffers, random_state)
            if must_regroup:
                self._regroup(at_step=True, problem=problem)
            batch = loader._deal_again(loader._step, repeats=True)

    def _commit(self) -> None:
        """Waits until all ranks have the step's whole gradients. Raises _Interrupted where they never will."""
        if self._complete > self._number:
            return
        self._complete = self._number + 1
        is_asked = self._is_asked_to_leave
        try:
            waiting, leaving, ended = self._ranks.sum([float(own) for own in (self._launcher.has_replacement(), is_asked,
                                                                              self._launcher.has_ended())])
            self._must_regroup = waiting + leaving + ended > 0
            self._is_last = ended > 0 or leaving == len(self._places)
            self._leaves = is_asked or ended > 0
        except dist.DistBackendError:
            self._leave()
            self._regroup(at_step=False)
            if self._complete == self._number:
                raise _Interrupted from None

    def _take_back(self, buffers: list[tuple[torch.Tensor, torch.Tensor]], random_state: torch.Tensor) -> None:
        """What the step has changed."""
        self._loader._go_back_to(self._number)
        for weight in self._loader._weights:
            for parameter in weight.model.parameters():
                parameter.grad = None
        with torch.no_grad():
            for buffer, kept in buffers:
                buffer.copy_(kept)
        torch.set_rng_state(random_state)

    def _take_notice(self, *_: Any) -> None:
        self._is_asked_to_leave = True

    def _outlive_launcher(self) -> None:
        """Ends the ranks that others wait for in vain once there is no launcher that would."""
        self._launcher.has_ended(wait=True)
        time.sleep(self._timeout.total_seconds())
        for process in set(self._processes) - {os.getpid()}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        os._exit(128 + signal.SIGKILL)

    def _leave(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        # A group that did not come about has taken a number, from which the next one's name is made: all ranks begin with the same.
        dist.distributed_c10d._world.group_count = 0
        forget_groups()

    def _regroup(self, *, at_step: bool, problem: str = "") -> None:
        """Goes on with the ranks that are there, once all of them have left their process group."""
        began, before, written = time.monotonic(), self._places, None
        has_ended = self._launcher.has_ended()
        if (has_ended or self._is_last or not self._is_enough) and at_step and self._checkpoint and before and self._ranks.rank == 0:
            written = self._write_checkpoint(self._checkpoint)
        if at_step and (has_ended or self._leaves):
            if has_ended and before and self._ranks.rank == 0:
                _log.warning("motley: motley run has ended; %s", f"the state is in '{written}'" if written else "the state is lost")
            self._launcher.leave(written)
            raise SystemExit(128 + signal.SIGTERM)
        allowed = min(_RENDEZVOUS, self._timeout)
        while True:
            announced = self._launcher.regroup(at_step=at_step, has_state=self._has_state, timeout=self._timeout, checkpoint=written)
            try:
                self._form(announced, allowed)
                break
            except (dist.DistBackendError, _NoGroup):  # most likely another one was lost meanwhile
                self._leave()
                if allowed == self._timeout:
                    raise
                allowed = min(2 * allowed, self._timeout)
        if problem and announced.places == before:
            if self._unexplained == self._number:
                raise RuntimeError(f"step {self._number} failed twice, and no rank was lost: {problem}")
            self._unexplained = self._number
        if before and self._ranks.rank == 0:
            _log.warning("motley: step %d: %s on after %.3g s", self._complete,
                         "1 rank goes" if len(announced.places) == 1 else f"{len(announced.places)} ranks go", time.monotonic() - began)

    def _form(self, announced: Announcement, allowed: timedelta) -> None:
        """Makes the process group, agrees with its ranks on what is done, and gives those that are new what they need."""
        loader, places = self._loader, announced.places
        ranks = self._connect(announced, allowed)
        for weight in loader._weights:
            weight.renew()
        told = ranks.gather(self._complete if self._has_state else None)
        counts = [complete for complete in told if complete is not None]
        source = told.index(counts[0])
        loader._go_back_to(min(counts))
        if None in told:
            self._hand_over(ranks, source)
        split = ranks.gather(loader._tell_split() if ranks.rank == source else None)[source]
        loader._change_ranks(ranks, places, announced.known, split)
        for other in self._state.other_loaders:
            other._forget_ranks()
        self._ranks, self._places, self._has_state = ranks, places, True
        self._processes = ranks.gather(os.getpid())
        self._complete = min(counts)
        self._is_enough, self._must_regroup = announced.is_enough, not announced.is_enough

    def _connect(self, announced: Announcement, allowed: timedelta) -> Ranks:
        try:
            dist.init_process_group(_backend.NAME, store=PrefixStore(f"motley/{announced.epoch}", self._store), timeout=allowed,
                                    rank=announced.places.index(self._launcher.place), world_size=len(announced.places))
            ranks = Ranks()
        except RuntimeError as problem:  # also of gloo
            raise _NoGroup(f"the ranks that are left did not find each other: {problem}") from problem
        backends: list[Any] = [_backend.find(None), ranks._side]
        for backend in filter(None, backends):
            backend.set_timeout(self._timeout)
        return ranks

    def _hand_over(self, ranks: Ranks, source: int) -> None:
        """The state, from a rank that has it to those that have not."""
        saved = pickle.dumps(self._state.save()) if ranks.rank == source else b""
        size = ranks.gather(len(saved))[source]
        sent = torch.frombuffer(bytearray(saved), dtype=torch.uint8) if saved else torch.empty(size, dtype=torch.uint8)
        ranks.broadcast(sent, source)
        if not self._has_state:
            self._state.load(pickle.loads(sent.numpy().tobytes()))

    def _write_checkpoint(self, path: str) -> str | None:
        """Where it is; None where it cannot be written, and what was there stays."""
        saved = io.BytesIO()  # torch ends the process where a disk is full
        torch.save(self._state.save(), saved)
        part = f"{path}.part"
        try:
            with open(part, "wb") as file:
                file.write(saved.getbuffer())
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        except OSError as problem:
            _log.error("motley: the checkpoint '%s' cannot be written: %s", path, problem.strerror)
            with contextlib.suppress(OSError):
                os.unlink(part)
            return None
        return path
