"""`dibs serve` with a bug: `broken.py BUG serve ...`. It imports nothing of the tests but `bugs`."""

import sys

from bugs import plant  # type: ignore[import-not-found]  # it lies beside this file

from dibs.cli import main

if __name__ == "__main__":
    plant(sys.argv[1])
    sys.exit(main(sys.argv[2:]))
