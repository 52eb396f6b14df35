"""`lakehouse tour`: ten minutes on a small lakehouse of its own, in which each step is verified by the program.

command   the command: the folder, the steps in their order, the end of all that was started
guide     what a step can do: run a command as it is typed, send orders, wait, check
steps     the nine steps
"""
