"""`python -m gpufleet.cli`, the same as the console script."""

import sys

from gpufleet.cli.app import main

sys.exit(main())
