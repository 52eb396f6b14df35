"""Fraud alerts on the transfers of `bank`."""
