"""One file for each format of a summary, and the reading of tables that they share."""
