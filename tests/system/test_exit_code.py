"""A command ends with its own exit code, whatever its libraries still do."""

import subprocess
import sys

LEAVES_ARROW_READING = """
import fsspec, pyarrow as pa, pyarrow.dataset as ds, pyarrow.fs as fs, pyarrow.parquet as pq, typer
from lakehouse.cli import console

app = console.group()
left = []

@app.command()
def read(folder: str):
    for each in range(40):
        pq.write_table(pa.table({"a": range(20000)}), f"{folder}/{each}.parquet", row_group_size=500)
    files = fs.PyFileSystem(fs.FSSpecHandler(fsspec.filesystem("file")))
    left.append(ds.dataset(folder, filesystem=files, format="parquet").scanner(batch_size=100).to_batches())
    print(next(left[0]).num_rows)
    raise typer.Exit(3)

console.run(app)
"""


def test_a_command_ends_with_its_exit_code_while_threads_of_arrow_still_hold_python_objects(
    tmp_path,
):
    done = subprocess.run(
        [sys.executable, "-c", LEAVES_ARROW_READING, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,  # the interpreter, taken down as usual, waits for them without end
    )
    assert (done.returncode, done.stdout) == (3, "100\n"), done.stderr
