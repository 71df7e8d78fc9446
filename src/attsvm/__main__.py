"""``python -m attsvm`` is the command line."""

from attsvm.cli import main

raise SystemExit(main())
