"""`python -m webkv` is the `webkv` command."""

import sys

from webkv.cli import main

sys.exit(main())
