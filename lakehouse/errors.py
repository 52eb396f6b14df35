"""Every error of the library, under one root.

LakehouseError
├── SettingsError        a setting cannot be used
├── DeclarationError     a declaration of a table or source cannot be honoured
├── RangeError           a run may not touch a range of event time
├── PathError            a name cannot be a folder or file, or leaves the folder it belongs in
├── UnknownTable         no module declares a name
├── QueryError           SQL cannot be answered
├── BrokerError          the broker cannot be started or reached
├── AccessError          the broker refuses this client, or what it asks for
├── JarsError            the jars cannot be resolved, or are not the ones checked in
├── SourceError          a folder, or a table of others, has lost something
│   └── TopicError       a topic is not the one that a table has read
├── SinkError            a target cannot be written, or holds other rows than the table
│   └── SinkAway         it does not answer; its follower waits for it
├── SavepointError       a savepoint is damaged, missing, or cannot be restored now
├── JobError             a job cannot be started or stopped, or must wait for another
├── ServiceAway          a service that a step needs has not answered
│   ├── LookupFailed     it is the one that a lookup asks
│   └── RegistryAway     it is the schema registry
└── CommitError          a table differs from the log tables, its input or its checkpoint

Text: *what (field=value): the rule; the consequence or the fix*.
"""


class LakehouseError(Exception):
    """Root of the tree; its text is meant for the user, without a traceback."""


class SettingsError(LakehouseError):
    pass


class DeclarationError(LakehouseError):
    pass


class RangeError(LakehouseError):
    pass


class PathError(LakehouseError):
    pass


class UnknownTable(LakehouseError):
    pass


class QueryError(LakehouseError):
    pass


class BrokerError(LakehouseError):
    pass


class AccessError(LakehouseError):
    pass


class JarsError(LakehouseError):
    pass


class SourceError(LakehouseError):
    pass


class SourceAway(SourceError):
    pass


class TopicError(SourceError):
    pass


class SavepointError(LakehouseError):
    pass


class JobError(LakehouseError):
    pass


class ServiceAway(LakehouseError):
    pass


class LookupFailed(ServiceAway):
    pass


class RegistryAway(ServiceAway):
    pass


class CommitError(LakehouseError):
    pass


class SinkError(LakehouseError):
    pass


class SinkAway(SinkError):
    """A target does not answer; `after` is the seconds after which to try again, 0 if the target did not say."""

    def __init__(self, message: str, after: float = 0.0) -> None:
        super().__init__(message)
        self.after = after
