"""The command under the client's former name: `python -m trainer.client`."""

import sys

from cohort.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
