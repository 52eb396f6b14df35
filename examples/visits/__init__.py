"""The access log of a web site: visitors, sessions, pages."""
