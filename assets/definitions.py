"""The Definitions that `workspace.yaml` loads: everything follows from the catalog that the environment names."""

from assets.location import build
from lakehouse.settings import from_environment

definitions = build(from_environment())
