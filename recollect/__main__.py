"""`python -m recollect` is the same command as `recollect`."""

import sys

from recollect.cli.command_line import main

if __name__ == "__main__":
    sys.exit(main())
