"""Writes a Parquet or Arrow (Feather) file as CSV to the standard output, for open_arrow.cpp. On an error the output ends in a
line of its own with the reason; exit code 2: of the file, 3: there is no pyarrow."""

import sys


def plain(batch, pyarrow):
    """The columns as numbers and texts: truths as 0 and 1, what a dictionary stands for, decimal numbers as float64."""
    columns = []
    for column in batch.columns:
        kind = column.type
        if pyarrow.types.is_dictionary(kind):
            column, kind = column.cast(kind.value_type), kind.value_type
        if pyarrow.types.is_boolean(kind):
            column = column.cast(pyarrow.int8())
        elif pyarrow.types.is_decimal(kind):
            column = column.cast(pyarrow.float64())
        elif pyarrow.types.is_float16(kind):
            column = column.cast(pyarrow.float32())
        columns.append(column)
    return pyarrow.RecordBatch.from_arrays(columns, names=batch.schema.names)


def batches(path, pyarrow):
    """First one without rows, for the names of the columns."""
    with open(path, "rb") as file:
        start = file.read(6)
    if start.startswith(b"PAR1"):
        parquet = pyarrow.parquet.ParquetFile(path)
        yield pyarrow.RecordBatch.from_pylist([], schema=parquet.schema_arrow)
        yield from parquet.iter_batches()
    elif start == b"ARROW1":
        with pyarrow.memory_map(path) as file:
            reader = pyarrow.ipc.open_file(file)
            yield pyarrow.RecordBatch.from_pylist([], schema=reader.schema)
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)
    else:
        raise ValueError("neither a Parquet file nor an Arrow file (Feather, version 2)")


def main(path):
    try:
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError as problem:
        print(f"\n{problem}")
        return 3
    try:
        writer = None
        for batch in batches(path, pyarrow):
            batch = plain(batch, pyarrow)
            writer = writer or pyarrow.csv.CSVWriter(sys.stdout.buffer, batch.schema)
            writer.write(batch)
        if writer:
            writer.close()
    except Exception as problem:
        sys.stdout.flush()
        print("\n" + " ".join(str(problem).split()))
        return 2
    return 0


sys.exit(main(sys.argv[1]))
