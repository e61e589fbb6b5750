"""Reports for people: live progress, plans, verdicts, what a machine can do."""
