"""Everything that knows Slurm: commands, options, versions, directives, the record in a comment."""
