"""`python -m leasehold` is the command line."""

import sys

from leasehold.cli import main

if __name__ == "__main__":
    sys.exit(main())
