import sys

from lakehouse.cli.main import main

if __name__ == "__main__":
    # as for the script `lakehouse`, modules are not looked for in the current folder
    if not sys.flags.safe_path:
        del sys.path[0]
    main()
