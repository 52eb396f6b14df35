"""What tests of several rooms share. A test imports from here, never from another test.

sensors_job      the job of the sensors: what is sent to it, and what its tables must hold
dagster_dev      a live Dagster, and its API
cluster          a Spark cluster
full_disk        the job of the sensors on a disk that is full for a while: a program
full_disk_under_an_upgrade  a table that is upgraded on a disk that is full: a program
hungry           a pipeline that takes as much memory as a message asks for
both_ways        steps by prepared plans, compared with the ordinary way
observed         what the control loop sees of a job
signals          a signal that a process sends itself before a call of a step
sensors_log      commits of a table of the sensors, as its commit log has them
torn_logs        commit logs that are cut in the middle of a line
deleted_logs     commit logs that somebody deletes at any moment
small_log        a Delta table whose log is cut after two versions; files that become older
payments         keyed and versioned tables, and what they read
purchases        tables whose ingest table reads two topics
ads_and_sales    tables that read two ingest tables, each of a topic
changing_tables  tables that tests declare otherwise
schema_registry  a schema registry over a dictionary, and values in its wire format
calls            a process function that reports each call
first_load       windows of each engine over a topic that gives no further row
quiet            tables whose topics may be silent
accounts         rows of a keyed table, written without Spark
wide_rows        rows with a column of each type
workloads        workloads of the producers
lines            lines of commit logs that tests write themselves
kinds_of_change  kinds of change of a running table, with what `lakehouse plan` says of each
changed_job      a job whose tables are changed in each of these ways, under kills: a program
killed_commands  commands of `lakehouse`, killed before their steps: a program
killed_savepoints  a savepoint created or forked, killed before one step after another: a program
killed_run       a run of a job of Dagster's, killed before one of its steps: a program
iceberg_shop     an Iceberg table in a catalog, and what its owner does to it
orders           two topics, and a process function over both
orders_in_a_folder  orders in files, and totals whose state Spark keeps: a pipeline without a broker
sleeper          a process that runs streams and backfills, and stops itself at a commit point
sites            readings of sites that are slow, and whose watermark waits for them
sales            reports over rows that may come late
visitors         a process function whose state lasts
expiring         keyed tables whose rows count for a minute
transfers        a bank in a database: keyed tables that count whole transfers
ruled            rules that change while payments flow: the example of a page
kept             what must hold of each version of a keyed table
auctions         an auction house: keyed tables over joins, ranks and other keyed tables
nexmark_oracle   the queries of Nexmark in plain SQL
pattern_oracle   what a pattern matches, by its definition
places           a service that says where an address is: slow, failing or of another opinion
acting           a table whose rows are posted and mailed, and a server whose answers are given
committed        the messages of a topic that were committed
followed_balances  a table that is published, and a target that follows it through deaths beside a reader
published        tables that are published, and versions of them written without Spark
sinks            the sink of a page as a module, and sinks that are wrong
own_sources      the sources of a page as a module, one that a test fills, and classes that break the contract
drawn_rows       rows that are drawn at random, by which plans are compared
dying            sinks that die at a point
redis            a server of Redis
opensearch       a server of OpenSearch
secured_broker   a broker that asks for TLS, a password and rights
tls_front        HTTPS with a user and a password, in front of a server
own_server       a server of another program, in a folder of its own
change_events    what Debezium sends, recorded
backfills        a backfill as its command runs it
starts           what the start of a stream does first, for tests that start none
taken_orders     a row table of orders, as text that is declared with another filter
changed_accounts  accounts of a database as tables that follow its log, and what they must be
window_queries   random queries over windows, and what DuckDB makes of them
zoned            windows of time zones
zone_oracle      windows of a zone by a walk through its instants
change_chain     database, Debezium, broker and job under kills
"""

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The repository."""
TESTS = ROOT / "tests"
"""Where a child process finds this package."""
