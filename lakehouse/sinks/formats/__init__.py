"""Rows as texts and bytes of targets.

kinds         the kinds of Arrow's types
encoding      a row and its key as text
texts         the same of columns of Arrow
encoded       the changes of a version, and their texts
avro          rows as Avro with a schema registry
protobuf      rows as Protobuf with a schema registry
"""
