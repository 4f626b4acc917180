"""What the planning functions return: each result holds what the command of the same name writes, and shows it as text, as a page in
a notebook, as a pandas DataFrame, and as a Matplotlib plot; pandas, Matplotlib and rich are used where they are installed.
"""

from __future__ import annotations

import csv
import html
import importlib
import io
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from . import _motley

_PAGE_HEIGHT = 720  # pixels of a page in a notebook
_MOST_LINES = 60  # of a table in text

Self = TypeVar("Self", bound="Result")


def _optional(module: str, purpose: str) -> Any:
    """A module of a package that Motley does not need otherwise."""
    try:
        return importlib.import_module(module)
    except ImportError as problem:
        package = module.split(".")[0]
        raise RuntimeError(f"{purpose} needs {package}, which is not installed: pip install {package}") from problem


@dataclass(frozen=True, repr=False)
class Result:
    """A result, as texts.

    Attributes:
        json: the file that the command writes.
        text: what the command prints; empty where it was read from a file, which is then shown by its JSON, or a profile by a table.
        page: the page of ``--html``; empty where there is none.
    """

    json: str
    text: str = ""
    page: str = ""

    @classmethod
    def load(cls: type[Self], path: str | os.PathLike[str]) -> Self:
        """A result that was saved as JSON. OSError where the file cannot be read."""
        return cls(Path(path).read_text(encoding="utf-8"))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the page to a path that ends with ``.html``, and the JSON to any other."""
        path = Path(path)
        if path.suffix == ".html" and not self.page:
            raise ValueError(f"save: '{path}', but this {type(self).__name__} has no page; accepted: a path for its JSON")
        path.write_text(self.page if path.suffix == ".html" else self.json, encoding="utf-8")

    @property
    def data(self) -> dict[str, Any]:
        """The JSON, parsed."""
        value: dict[str, Any] = json.loads(self.json)
        return value

    def rows(self) -> list[dict[str, Any]]:
        """The result as a table: a dict a row, with the same keys."""
        raise NotImplementedError

    def to_frame(self) -> Any:
        """The rows as a pandas DataFrame. RuntimeError where pandas is not installed."""
        return _optional("pandas", "to_frame").DataFrame(self.rows())

    def plot(self, ax: Any = None) -> Any:
        """Draws on the axes, or on new ones, and returns them. RuntimeError where Matplotlib is not installed."""
        if ax is None:
            _, ax = _optional("matplotlib.pyplot", "plot").subplots(figsize=(9, 4), layout="constrained")
        self._draw(ax)
        return ax

    def _draw(self, ax: Any) -> None:
        raise NotImplementedError

    def __str__(self) -> str:
        return (self.text or self.json).rstrip("\n")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self._summary().items())})"

    def _summary(self) -> dict[str, Any]:
        raise NotImplementedError

    def __rich__(self) -> Any:
        return _optional("rich.text", "__rich__").Text(str(self), no_wrap=True)

    def _repr_html_(self) -> str | None:
        if not self.page:
            return None
        return (f'<iframe srcdoc="{html.escape(self.page)}" sandbox="allow-scripts" '
                f'style="width:100%;height:{_PAGE_HEIGHT}px;border:0"></iframe>')


@dataclass(frozen=True, repr=False)
class Profile(Result):
    """How long each layer of a model takes on each type of devices: ``profile.json``."""

    @property
    def model(self) -> str:
        """The model's name."""
        return str(self.data["graph"]["name"])

    def combine(self, *others: Profile) -> Profile:
        """One profile with the device types of several, for a model that was measured on several machines.

        Raises:
            ValueError: another model, other layers, or a device type that two of them have.
        """
        combined = self.data
        for profile in others:
            data = profile.data
            if data["graph"]["name"] != combined["graph"]["name"] or _sizes(data) != _sizes(combined):
                differ = next((f"layers {one} and {other}" for one, other in zip(_sizes(combined), _sizes(data)) if one != other),
                              "one has more layers than the other")
                raise ValueError(f"combine: profiles of '{self.model}' and of '{profile.model}' ({differ}); accepted: profiles of one "
                                 "model")
            for device in data["devices"]:
                if any(device["type"] == own["type"] for own in combined["devices"]):
                    raise ValueError(f"combine: the device type '{device['type']}' is in two profiles; accepted: a type in one of them, "
                                     "as profile(device_type=...) names it")
            combined["devices"] += data["devices"]
            combined["links"] = combined.get("links", []) + data.get("links", [])
        return Profile(json.dumps(combined, ensure_ascii=False))

    def rows(self) -> list[dict[str, Any]]:
        """A row a device type and layer: parameters, bytes of activations a sample, and seconds of a batch of ``batch_size``."""
        data = self.data
        batch = data["batch_size"]
        rows = []
        for device in data["devices"]:
            for layer, time in zip(data["graph"]["layers"], device["layers"]):
                rows.append({"device_type": device["type"], "layer": layer["name"], "kind": layer["kind"],
                             "parameters": layer.get("parameters", 0), "activation_bytes": layer.get("activation_bytes", 0),
                             "batch_size": batch, **{f"{way}_seconds": _seconds(time, way, batch) for way in ("forward", "backward")}})
        return rows

    def __str__(self) -> str:
        data, rows = self.data, self.rows()
        types = [device["type"] for device in data["devices"]]
        count = len(data["graph"]["layers"])
        lines = [["layer", "kind", "parameters", "output KB", *(f"{kind} ms" for kind in types)]]
        for number, row in enumerate(rows[:min(count, _MOST_LINES)]):
            times = [rows[number + count * place] for place in range(len(types))]
            lines.append([row["layer"], row["kind"], f"{row['parameters']:,.0f}", f"{row['activation_bytes'] / 1e3:,.1f}",
                          *(f"{1e3 * time['forward_seconds']:.3g} + {1e3 * time['backward_seconds']:.3g}" for time in times)])
        widths = [max(map(len, column)) for column in zip(*lines)]
        text = [f"{self.model}: {count} layers, forward + backward of a batch of {data['batch_size']:.0f}"]
        text += ["  ".join(cell.ljust(width) if place < 2 else cell.rjust(width) for place, (cell, width) in enumerate(zip(line, widths)))
                 for line in lines]
        if count > _MOST_LINES:
            text.append(f"... and {count - _MOST_LINES} more")
        if source := data["graph"].get("source"):
            text.append(f"sizes: {source}")
        for device in data["devices"]:
            text.append(f"{device['type']}: {device['origin']}, {device['rule']}")
            if (noise := device.get("noise")) and device["origin"] == "measured":
                text.append(f"  how quiet it was: load average {noise['load_average']:.2g}, other processes took "
                            f"{noise['others_fraction']:.0%} of the processors' time, other virtual machines "
                            f"{noise['stolen_fraction']:.0%}; passes spread by {noise['pass_spread']:.1%} "
                            f"and drifted by {noise['drift']:+.1%}")
        return "\n".join(text)

    def _summary(self) -> dict[str, Any]:
        data = self.data
        return {"model": self.model, "layers": len(data["graph"]["layers"]),
                "device_types": [device["type"] for device in data["devices"]]}

    def _draw(self, ax: Any) -> None:
        rows = self.rows()
        for device in {row["device_type"]: None for row in rows}:
            own = [row for row in rows if row["device_type"] == device]
            ax.plot([row["layer"] for row in own], [row["forward_seconds"] + row["backward_seconds"] for row in own], "o-", label=device)
        ax.set(title=f"{self.model}, batch of {rows[0]['batch_size']:.0f}", ylabel="seconds, forward and backward", yscale="log")
        ax.tick_params(axis="x", rotation=90)
        ax.legend()


def _sizes(data: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """What tells layers of one model from those of another."""
    return [(layer["name"], layer["kind"], layer.get("parameters", 0), layer.get("activation_bytes", 0))
            for layer in data["graph"]["layers"]]


def _seconds(time: Mapping[str, Any], way: str, batch: float) -> float:
    """Of a layer, forward or backward; a layer without one has none."""
    affine = time.get(way, {})
    return float(affine.get("fixed", 0) + affine.get("per_sample", 0) * batch)


@dataclass(frozen=True, repr=False)
class Plan(Result):
    """Which layers run on which devices, and what that is predicted to take: ``plan.json``."""

    @classmethod
    def load(cls: type[Self], path: str | os.PathLike[str]) -> Self:
        """A plan from a file, also one by hand that leaves out what has a default. OSError where it cannot be read, ValueError where it is
        refused."""
        name = str(path)
        return cls(_motley.read_plan(name, {name: Path(path).read_text(encoding="utf-8")}))

    @property
    def stages(self) -> list[dict[str, Any]]:
        """In order: ``first_layer``, ``last_layer``, ``replicas`` (``type`` and ``count``), ``gradient_sync``, ``recompute``."""
        stages: list[dict[str, Any]] = self.data["stages"]
        return stages

    @property
    def step_seconds(self) -> float:
        """Predicted, of a step."""
        return float(self.data["predicted"]["step_seconds"])

    @property
    def throughput(self) -> float:
        """Predicted, in samples per second."""
        return float(self.data["predicted"]["throughput"])

    @property
    def cost(self) -> float:
        """Predicted, of the whole training, in the currency of the cluster."""
        return float(self.data["predicted"]["cost"])

    def rows(self) -> list[dict[str, Any]]:
        """A row a stage and device type."""
        return [{"stage": number, "first_layer": stage["first_layer"], "last_layer": stage["last_layer"],
                 "device_type": replicas["type"], "count": replicas["count"], "gradient_sync": stage["gradient_sync"],
                 "recompute": stage["recompute"]}
                for number, stage in enumerate(self.stages) for replicas in stage["replicas"]]

    def _summary(self) -> dict[str, Any]:
        return {"model": self.data["model"], "stages": len(self.stages), "throughput": self.throughput}

    def _draw(self, ax: Any) -> None:
        layers = self.data["layers"]
        for number, stage in enumerate(self.stages):
            first, last = layers.index(stage["first_layer"]), layers.index(stage["last_layer"])
            ax.barh(number, last - first + 1, left=first)
            devices = " + ".join(f"{replicas['count']} × {replicas['type']}" for replicas in stage["replicas"])
            ax.text((first + last + 1) / 2, number, devices, ha="center", va="center")
        ax.set(title=f"{self.data['model']}: {self.throughput:,.0f} samples/s", ylabel="stage", yticks=range(len(self.stages)),
               xticks=[index + 0.5 for index in range(len(layers))], xlim=(0, len(layers)))
        ax.set_xticklabels(layers, rotation=90)
        ax.invert_yaxis()


@dataclass(frozen=True, repr=False)
class Simulation(Result):
    """A simulated step of a plan.

    Attributes:
        timeline: what each device does when, in Chrome's trace format, for Perfetto or ``chrome://tracing``.
    """

    timeline: str = ""

    @property
    def step_seconds(self) -> float:
        """Of the step."""
        return float(self.data["step_seconds"])

    @property
    def throughput(self) -> float:
        """In samples per second."""
        return float(self.data["throughput"])

    def rows(self) -> list[dict[str, Any]]:
        """A row a device: ``stage``, ``replica``, ``type``, ``busy_seconds``, ``bubble_fraction``."""
        rows: list[dict[str, Any]] = self.data["devices"]
        return rows

    def _summary(self) -> dict[str, Any]:
        return {"model": self.data["model"], "step_seconds": self.step_seconds, "throughput": self.throughput}

    def _draw(self, ax: Any) -> None:
        events = [event for event in json.loads(self.timeline)["traceEvents"] if event["ph"] == "X"]
        tracks = sorted({(event["pid"], event["tid"]) for event in events})
        for number, name in enumerate(dict.fromkeys(event["name"] for event in events)):
            own = [event for event in events if event["name"] == name]
            ax.barh([tracks.index((event["pid"], event["tid"])) for event in own], [event["dur"] / 1e6 for event in own],
                    left=[event["ts"] / 1e6 for event in own], color=f"C{number}", edgecolor="white", linewidth=0.3, label=name)
        ax.set(title=f"{self.data['model']}: one step", xlabel="seconds", yticks=range(len(tracks)),
               yticklabels=[f"stage {stage}, {track}" for stage, track in tracks])
        ax.invert_yaxis()
        ax.legend()


@dataclass(frozen=True, repr=False)
class Schedule(Result):
    """What policies made of a trace of jobs.

    Attributes:
        csv: a line a policy and job: when it started and finished, and how often it was restarted.
    """

    csv: str = ""

    @property
    def policies(self) -> list[str]:
        """Their names."""
        return [row["policy"] for row in self.rows()]

    def rows(self) -> list[dict[str, Any]]:
        """A row a policy; times in seconds, from a job's arrival to its completion."""
        rows: list[dict[str, Any]] = self.data["policies"]
        return rows

    def jobs(self) -> list[dict[str, Any]]:
        """A row a policy and job; times in seconds from the first arrival, infinite where there was no such time."""
        texts = ("policy", "job")
        return [{key: value if key in texts else float(value) for key, value in row.items()}
                for row in csv.DictReader(io.StringIO(self.csv))]

    def _summary(self) -> dict[str, Any]:
        return {"trace": self.data["trace"], "jobs": self.data["jobs"], "policies": self.policies}

    def _draw(self, ax: Any) -> None:
        jobs = self.jobs()
        for policy in self.policies:
            hours = sorted((job["finished_seconds"] - job["arrival_seconds"]) / 3600 for job in jobs
                           if job["policy"] == policy and job["finished_seconds"] < float("inf"))
            ax.step(hours, [(index + 1) / self.data["jobs"] for index in range(len(hours))], where="post", label=policy)
        ax.set(title=self.data["trace"], xlabel="hours from arrival to completion", ylabel="fraction of jobs", ylim=(0, 1))
        ax.legend()
