"""`python -m batch_jobs backfill TABLE ...`: the commands of batch jobs alone, as `lakehouse` has them."""

from batch_jobs.commands import app
from lakehouse.cli import console

if __name__ == "__main__":
    console.run(app, name="python -m batch_jobs")
