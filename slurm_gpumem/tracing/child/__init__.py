"""From the name of somebody's model code to a traced summary: found, loaded and run in a child process."""
