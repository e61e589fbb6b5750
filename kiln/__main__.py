"""`python -m kiln`."""

from kiln.cli import main

main()
