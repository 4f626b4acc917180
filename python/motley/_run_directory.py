"""The run directory of a script: who trains, and what each step took, as docs/reference/run-directory.md has it.

Rank 0 writes it. When its process ends, the run is marked as ended, with the error that ended it if there was one, and the page is
written.
"""

from __future__ import annotations

import atexit
import errno
import json
import math
import os
import pathlib
import signal
import sys
import threading
import time
import types
import warnings
from typing import Any

from . import _motley
from ._ranks import describe

# What may be in the folder of a run that begins: what runs leave, and what frameworks write beside it.
_OF_A_RUN = ("run.json*", "metrics.jsonl", "report.html", "checkpoint*", "tensorboard", "events.out.tfevents.*", "logs", ".*")

STARVED = 0.2  # of a rank's time, in which it wanted a processor and had none: more is said (moments are made up for)

Worker = dict[str, Any]  # name, device, kind, emulated


class RunDirectory:
    """A folder that holds one run, written by this process alone.

    Raises:
        ValueError: the folder holds a run, and this one does not go on with it; it holds something else; or it cannot be written.
    """

    def __init__(self, folder: str | os.PathLike[str], workers: list[Worker], *, resumed_at: int | None, **facts: Any) -> None:
        self._folder = pathlib.Path(folder)
        self._reason, self._is_lost, self._is_interrupted = "", False, False
        self._error_before = getattr(sys, "last_value", None)  # of an interactive session, which went on
        self.is_in_pass = False  # over the loader
        now = began = time.time()
        attempts: list[dict[str, Any]] = []
        if (self._folder / "run.json").exists():
            if resumed_at is None:
                raise ValueError(f"run_directory is '{self._folder}', which holds a run: another folder is accepted, or this one where "
                                 "the loader goes on from a state (load_state_dict)")
            try:
                before = json.loads((self._folder / "run.json").read_text())
                began = float(before["started"])
                attempts = list(before.get("attempts") or
                                [{"started": began, "first_step": 0, "after_seconds": 0.0, "workers": len(before["workers"]),
                                  "exit": before.get("exit")}])
            except (ValueError, TypeError, KeyError, OSError) as problem:
                raise ValueError(f"run_directory is '{self._folder}', whose run.json is damaged ({describe(problem)}); the folder of the "
                                 "run that goes on is accepted") from problem
        elif self._folder.is_dir() and (others := sorted(
                file.name for file in self._folder.iterdir() if not any(file.match(pattern) for pattern in _OF_A_RUN))):
            raise ValueError(f"run_directory is '{self._folder}', which holds '{others[0]}', of no run: a new or an empty folder is "
                             "accepted")
        self._run = {"motley_version": _motley.version, "started": began, "name": self._folder.name, "finished": False,
                     "workers": [{"rank": rank, **worker} for rank, worker in enumerate(workers)],
                     "machine": f"{os.cpu_count()} cores", **facts}
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            _cut_torn_line(self._folder / "metrics.jsonl")
            done = _last_time(self._folder / "metrics.jsonl")
            self._zero = now - done  # of the lines' times: what all attempts took, one after the other
            self._run["attempts"] = [*attempts, {"started": now, "first_step": resumed_at or 0, "after_seconds": done,
                                                 "workers": len(workers), "exit": None}]
            self._write_run()
            self._metrics = open(self._folder / "metrics.jsonl", "ab", buffering=0)  # each line at once, and whole
        except OSError as problem:
            raise ValueError(f"run_directory is '{self._folder}': {problem.strerror}; a folder that can be made and written is "
                             "accepted") from problem
        if resumed_at is not None:
            self._write({"step": resumed_at, "event": "resumed", "text": f"goes on at step {resumed_at}"})
        self._began, self._starved = time.monotonic(), _motley.seconds_without_processor(os.getpid())
        self._note_interrupts()
        atexit.register(self._end)

    def write_step(self, step: int, epoch: int, mode: str, split: list[int], measured: list[list[float]], reason: str) -> None:
        """Of each rank measured has: samples, seconds until its gradients were complete, the rest of the step, seconds of these in which
        it loaded, and the sum of losses (nan: not told)."""
        samples, seconds, rests, loads, losses = (list(column) for column in zip(*measured))
        loss = sum(losses) / sum(samples)
        together = min(rests)  # nobody was waited for by the rank that came last
        line = {"step": step, "epoch": epoch, "loss": loss if math.isfinite(loss) else None,
                "step_seconds": max(a + b for a, b in zip(seconds, rests)), "mode": mode, "batch_split": split,
                "compute_seconds": [a - b for a, b in zip(seconds, loads)], "load_seconds": loads,
                "gradient_sync_seconds": [together] * len(rests), "wait_seconds": [rest - together for rest in rests]}
        if reason != self._reason:
            self._reason = line["decision"] = reason
        self._write(line)

    def _write(self, line: dict[str, Any]) -> None:
        """A line of metrics.jsonl. Training does not end with the disk: where it is full, lines are lost from then on."""
        if self._is_lost:
            return
        text = json.dumps(line | {"time": time.time() - self._zero}, separators=(",", ":")) + "\n"
        end = self._metrics.tell()
        try:
            if self._metrics.write(text.encode()) < len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as problem:
            self._is_lost = True
            os.truncate(self._metrics.fileno(), end)
            warnings.warn(f"nothing is recorded any more in run_directory '{self._folder}': {problem.strerror}", stacklevel=1)

    def _write_run(self) -> None:
        aside = self._folder / "run.json.new"
        try:
            with open(aside, "w", encoding="utf-8") as file:
                json.dump(self._run, file, indent=2)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(self._folder / "run.json")
        except OSError:
            aside.unlink(missing_ok=True)
            raise

    def _note_starvation(self) -> None:
        """Beside an emulated speed: whether this process waited for a processor, so that the speed was another one."""
        own = self._run["workers"][0]
        share = (_motley.seconds_without_processor(os.getpid()) - self._starved) / max(time.monotonic() - self._began, 1e-9)
        if own.get("emulated") and share > STARVED:
            own["emulated"] += f"; in {100 * share:.0f} % of the time it wanted a processor and had none, as this machine was busy"

    def _note_interrupts(self) -> None:
        """What ends an interrupted rank may be that another one has ended already, or the interrupt came while C++ raised an error."""
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler) and threading.current_thread() is threading.main_thread():
            def note(number: int, frame: types.FrameType | None) -> None:
                self._is_interrupted = True
                handler(number, frame)

            signal.signal(signal.SIGINT, note)

    def _end(self) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # asked again to end: what the run leaves is written whole
        self._metrics.close()
        error = getattr(sys, "last_value", None)  # what the interpreter has just printed
        if error is self._error_before or (hasattr(sys, "ps1") and not self.is_in_pass):  # an interactive session's, which is not the run's
            error = None
        self._run |= {"finished": True, "exit": "done"}
        if error is not None:
            is_interrupted = self._is_interrupted or isinstance(error, KeyboardInterrupt)
            self._run |= {"exit": "interrupted" if is_interrupted else "failed", "error": f"{type(error).__name__}: {error}"}
        self._run["attempts"][-1]["exit"] = self._run["exit"]
        self._note_starvation()
        try:
            self._write_run()
            _motley.write_report(str(self._folder))
        except (OSError, RuntimeError, ValueError) as problem:
            warnings.warn(f"no page for run_directory '{self._folder}': {problem}", stacklevel=1)


def _cut_torn_line(file: pathlib.Path) -> None:
    """A run that was killed may have left half a line."""
    if file.exists() and not (text := file.read_bytes()).endswith(b"\n"):
        os.truncate(file, text.rfind(b"\n") + 1)


def _last_time(file: pathlib.Path) -> float:
    """Of the latest line that has one; 0 where there is none."""
    times = [0.0]
    for line in file.read_text().splitlines() if file.exists() else []:
        try:
            times.append(float(json.loads(line)["time"]))
        except (ValueError, TypeError, KeyError):
            continue  # the page names it
    return max(times)
