"""A pipeline as a Component of Dagster's: `dg scaffold defs assets.component.Pipeline NAME` adds one in YAML.

    type: assets.component.Pipeline
    attributes:
      tables: [orders]
      settings:
        fresh_within: 5 seconds
        freshness: {orders: every 30 seconds}

`docs/how-to/automation.md` has the commands.
"""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import dagster as dg
from click import ClickException
from pydantic import BaseModel, Field

from lakehouse import settings_values
from lakehouse.errors import SettingsError
from lakehouse.settings import Settings, from_environment, overridden

_SECRET = (
    "it may hold secrets, which Dagster would show; set it in lakehouse.toml or the environment"
)
_NO_PROCESS = (
    "it is for `lakehouse metrics`, which Dagster does not start; set it in lakehouse.toml"
)
_ELSEWHERE = {
    "tables": "it is an attribute of its own; write it beside `settings`",
    **dict.fromkeys(settings_values.SECRET, _SECRET),
    **dict.fromkeys(("metrics_host", "metrics_port"), _NO_PROCESS),
}
_FORM = ("`{}: value`".format, "`{}:` and below it a line `name: value` for each".format)


class ScaffoldParams(BaseModel):
    """The parameters of `dg scaffold defs` for a pipeline."""

    tables: list[str] = Field(
        default=[], description="modules of tables; without any the one of the pipeline's name"
    )


class PipelineScaffolder(dg.Scaffolder[ScaffoldParams]):
    """Writes the `defs.yaml` of a pipeline."""

    @classmethod
    def get_scaffold_params(cls) -> type[ScaffoldParams]:
        return ScaffoldParams

    def scaffold(self, request: dg.ScaffoldRequest[ScaffoldParams]) -> None:
        """Refuses a second pipeline: both would bring the same jobs and sensors."""
        for other in request.target_path.parent.glob("*/defs.yaml"):
            if request.type_name in other.read_text():
                request.target_path.rmdir()  # made a moment ago; the next try would find it there
                raise ClickException(  # which `dg` prints without a traceback
                    f"pipeline={request.target_path.name}: a project has one Pipeline; name your module in `tables` of {other}"
                )
        tables = request.params.tables or [request.target_path.name]
        dg.scaffold_component(request, {"tables": tables})


@dg.scaffold_with(PipelineScaffolder)
class Pipeline(dg.Component, dg.Model, dg.Resolvable):
    """The tables of some modules: as assets, with their streaming jobs, checks and schedules.

    Settings reach all that Dagster runs or starts: sensors, batch runs, streaming jobs. What they
    do not name is as the environment or `lakehouse.toml` says. Settings that may hold secrets, and
    those of `lakehouse metrics`, are refused. The command line does not read them.
    """

    tables: list[str] = Field(description="modules of tables; a module is a pipeline")
    settings: dict[str, Any] = Field(
        default={},
        description="settings by their names in lakehouse.toml; a relative folder is one of the project",
    )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Raises SettingsError."""
        # imported here, because each `dg` command imports this module: that must be quick and need no settings
        from assets.location import build

        own = settings_of(self.settings, context.project_root)
        settings = overridden(from_environment(required=False), own | {"tables": self.tables})
        return build(settings, own=own)


def settings_of(given: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Returns the settings of a component, checked by name, in the form that `overridden` takes; raises SettingsError."""
    for name, why in _ELSEWHERE.items():
        if name in given:  # its value is not repeated: it may be the secret
            raise SettingsError(f"settings, {name}: {why}")
    allowed = {f.name: f.type for f in fields(Settings) if f.name not in _ELSEWHERE}
    return settings_values.read(settings_values.Place("settings", folder, *_FORM), given, allowed)
