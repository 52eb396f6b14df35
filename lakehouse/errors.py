"""Every error of the library, under one root. Each says *what (field=value): the rule; the consequence or the fix*."""


class LakehouseError(Exception):
    """Root of the tree; its text is meant for the user, without a traceback."""


class SettingsError(LakehouseError):
    """A setting cannot be used."""


class DeclarationError(LakehouseError):
    """A declaration of a table, a source or a target cannot be honoured."""


class RangeError(LakehouseError):
    """A run may not touch a range of event time."""


class PathError(LakehouseError):
    """A name cannot be a folder or file, or leaves the folder it belongs in."""


class UnknownTable(LakehouseError):
    """No module declares a table of this name."""


class QueryError(LakehouseError):
    """SQL cannot be answered."""


class BrokerError(LakehouseError):
    """The broker cannot be started or reached."""


class AccessError(LakehouseError):
    """The broker refuses this client, or what it asks for."""


class JarsError(LakehouseError):
    """The jars cannot be resolved, or are not the ones checked in."""


class SourceError(LakehouseError):
    """A source, such as a folder or a table of others, has lost something or breaks its contract."""


class SourceAway(SourceError):
    """A source of your own does not answer; its job tries again."""


class TopicError(SourceError):
    """A topic is not the one that a table has read."""


class SavepointError(LakehouseError):
    """A savepoint is damaged, missing, or cannot be restored now."""


class JobError(LakehouseError):
    """A job cannot be started or stopped, or must wait for another."""


class ServiceAway(LakehouseError):
    """A service that a step needs has not answered."""


class LookupFailed(ServiceAway):
    """The service that a lookup asks has not answered."""


class RegistryAway(ServiceAway):
    """The schema registry has not answered."""


class CommitError(LakehouseError):
    """A table differs from the log tables, its input or its checkpoint."""


class SinkError(LakehouseError):
    """A target cannot be written, or holds other rows than the table."""


class SinkAway(SinkError):
    """A target does not answer; `after` is the seconds after which to try again, 0 if the target did not say."""

    def __init__(self, message: str, after: float = 0.0) -> None:
        super().__init__(message)
        self.after = after
