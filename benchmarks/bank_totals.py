"""The record and the totals of the bank, for `benchmarks.bank`."""

from lakehouse.tables import bank

transaction_topic, customer_topic, account_topic = bank.transaction_topic, bank.customer_topic, bank.account_topic
bank_events, account_totals = bank.bank_events, bank.account_totals
