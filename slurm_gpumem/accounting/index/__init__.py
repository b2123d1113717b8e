"""The index of job records: its tables, rows and sums."""
