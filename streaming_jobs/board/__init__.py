"""`lakehouse board`: a page on which the jobs and tables of a lakehouse are seen at once, live, without a JVM.

facts    what the page shows, as plain values, read from the files that jobs write
lanes    the facts of one table, and what is kept of it between two looks
server   the page, its events and the page of a table over HTTP

`page/` has the page itself: HTML, CSS and one script of its own.
"""
