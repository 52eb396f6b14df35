"""Small files below the root: where they lie, how they are read, replaced and locked.

layout        where everything lies below the root
root          the root itself
files         small files: lines that are added, values that are replaced as a whole
text_logs     logs of text, and those before
locks         what one process at a time has
publish_lock  which process rewrites a table, and which reconciles what is due of it
typed_values  values of dataclasses of what a file held
full_disk     a disk that is full under a command is named
"""
