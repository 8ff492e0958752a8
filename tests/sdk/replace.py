"""`python -m tests.sdk.replace PROGRAM`: become another program, so that a crew can start it."""

import os
import sys

if __name__ == "__main__":
    os.execv(sys.argv[1], sys.argv[1:])
