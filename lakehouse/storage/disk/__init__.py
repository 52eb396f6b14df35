"""Small files below the root: where they lie, how they are read, replaced and locked.

layout        where everything lies below the root
root          the root itself
files         small files: lines that are added, values that are replaced as a whole
notes         values in a file of lines, the rule for torn lines and for its size
text_logs     logs of text, and the older ones beside them
locks         locks between processes
publish_lock  the process that rewrites a table, and the one that reconciles what is due of it
typed_values  values of dataclasses, made of the JSON of a file
full_disk     the error of a command whose disk is full
objects       the same in an object store: files, locks, and what readers and writers of Parquet take
probe         whether an object store keeps two writers apart
"""
