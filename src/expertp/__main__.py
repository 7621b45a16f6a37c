"""`python -m expertp`: the command `expertp`, for launchers such as `torchrun -m`."""

import sys

from expertp.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
