"""From the name of a user's model code to a traced summary: found, loaded and run in a child process."""
